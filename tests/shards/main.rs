//! Pools of shards: calls, services, listeners, failures and stops, on every driver.

mod calls;
mod cancelling;
mod failures;
mod foreign;
mod listeners;
#[cfg(target_os = "linux")]
mod pinning;
mod reports;
mod stopping;
#[path = "../suite/support.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use windlass::shards::{self, Shard, ShardCounters};

use crate::support::{Case, turns};

/// A pool whose loops run on the driver under test.
fn pool(case: Case, count: usize) -> shards::Builder {
    shards::Builder::new()
        .count(count)
        .each_loop(move |_, _| case.builder())
        .grace(Duration::from_secs(60))
}

/// A number that threads increase and wait for.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }

    /// Turns the loop until the number is reached.
    async fn reaches(&self, number: usize) {
        while self.get() < number {
            std::thread::yield_now();
            turns(1).await;
        }
    }

    fn on_drop(&self) -> AddOnDrop {
        AddOnDrop(self.clone())
    }
}

/// Increases its number when it is dropped.
struct AddOnDrop(Count);

impl Drop for AddOnDrop {
    fn drop(&mut self) {
        self.0.add();
    }
}

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn block(&self) {
        let is_open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// The counters of all shards, which must answer.
async fn counters(shard: &Shard) -> Vec<ShardCounters> {
    let reports = shard.report().await.into_iter();
    reports.map(|report| report.answer.expect("an answer").0).collect()
}

/// Turns the loop until no shard has a call in flight.
async fn no_calls(shard: &Shard) {
    loop {
        let counters = counters(shard).await;
        if counters
            .iter()
            .all(|shard| shard.in_flight + shard.serving + shard.queued == 0)
        {
            return;
        }
        turns(1).await;
    }
}

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
