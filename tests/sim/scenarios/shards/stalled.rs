//! The thread of a shard is blocked while others call it. What they keep for it is bounded, and all of it is returned.

use std::time::Duration;

use windlass::shards::{CallError, Defect, Shard};
use windlass::sim::Sim;
use windlass::time::{sleep, timeout};

use super::{Count, pool};
use crate::scenarios::{finds, passes};
use crate::{SEC, TestResult};

const STALLED: usize = 0;

/// The calls of a shard that are in flight, and those that it serves or has queued.
async fn tables(shard: &Shard) -> (usize, usize) {
    let reports = shard.report().await;
    let answer = reports.into_iter().nth(shard.index()).expect("one per shard").answer;
    let (counters, _) = answer.expect("its own report");
    (counters.in_flight, counters.serving + counters.queued)
}

async fn run(shard: Shard, calls: u64, units: usize) -> Result<(), CallError> {
    let limit = units * (shard.count() - 1);
    if shard.index() == STALLED {
        // After the pause everything has arrived at once.
        for _ in 0..40 {
            let (_, served) = tables(&shard).await;
            assert!(served <= limit, "{served} calls are queued, the limit is {limit}");
            sleep(SEC).await;
        }
        return Ok(());
    }
    let mut rng = windlass::rand::Rng::new();
    let target = shard.peer(STALLED);
    let tasks: Vec<_> = (0..calls)
        .map(|_| {
            let (target, patience) = (target.clone(), Duration::from_millis(rng.below(60_000)));
            windlass::spawn(async move {
                let call = target.call(|| async { sleep(Duration::from_millis(10)).await });
                // Some give up while the shard is blocked.
                let _ = timeout(patience, call).await;
            })
        })
        .collect();
    for _ in 0..20 {
        let (in_flight, _) = tables(&shard).await;
        // The report has a call of its own to every shard.
        let most = limit + shard.count();
        assert!(
            in_flight <= most,
            "{in_flight} calls are in flight, the limit is {most}"
        );
        sleep(Duration::from_millis(rng.below(2_000))).await;
    }
    for task in tasks {
        task.await.expect("a task that does not panic");
    }
    sleep(SEC).await;
    // Every unit is back.
    let mut held = Vec::new();
    for _ in 0..units {
        let call = target.try_call(|| async {});
        held.push(call.expect("a unit was not returned"));
    }
    assert!(target.try_call(|| async {}).is_err(), "more units than there are");
    for call in held {
        call.await?;
    }
    Ok(())
}

async fn scenario(sim: Sim, defect: Option<Defect>) -> TestResult {
    let shards = sim.size("shards", 2..=3);
    let calls = sim.size("calls", 1..=60);
    let units = sim.size("units", 1..=8) as usize;
    let mut rng = sim.rng();
    let done = Count::default();
    let counted = done.clone();
    sim.host("server").start_shards(
        move || pool(shards, defect).calls_per_peer(units),
        move |_| {
            let counted = counted.clone();
            Ok(move |shard| {
                let counted = counted.clone();
                async move {
                    let ran = run(shard, calls, units).await;
                    counted.add();
                    ran
                }
            })
        },
    );
    sleep(Duration::from_micros(rng.below(2_000))).await;
    sim.pause_loop("server", STALLED);
    sleep(Duration::from_millis(rng.range(1..30_000))).await;
    sim.resume_loop("server", STALLED);
    done.reaches(shards as usize, "shards that have ended").await;
    sim.sometimes("more calls than units", calls as usize > units);
    Ok(())
}

#[test]
fn a_stalled_shard_costs_a_bounded_amount() {
    passes(|sim| scenario(sim, None));
}

#[test]
fn units_that_cancelled_calls_keep_are_found() {
    finds("a unit was not returned", |sim| scenario(sim, Some(Defect::KeptUnits)));
}

#[test]
fn calls_without_a_limit_are_found() {
    finds("the limit is", |sim| scenario(sim, Some(Defect::NoLimit)));
}
