//! Shards flood each other with nested calls, with one unit per peer and hop class. Some calls are dropped.

use std::pin::Pin;
use std::time::Duration;

use windlass::shards::{CallError, Defect, MAX_HOPS, Shard};
use windlass::sim::Sim;
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};

use super::{Count, pool};
use crate::TestResult;
use crate::scenarios::{finds, passes};

/// Calls another shard, which calls another one, and so on. Returns the length of the chain.
fn nested(depth: usize) -> Pin<Box<dyn Future<Output = Result<usize, CallError>>>> {
    Box::pin(async move {
        let mut rng = windlass::rand::Rng::new();
        match rng.below(4) {
            0 => yield_now().await,
            1 => sleep(Duration::from_micros(rng.below(200))).await,
            _ => {}
        }
        if depth == 0 {
            return Ok(0);
        }
        let shard = Shard::current().expect("a shard");
        let step = 1 + rng.below(shard.count() as u64 - 1) as usize;
        let other = shard.peer((shard.index() + step) % shard.count());
        Ok(other.call(move || nested(depth - 1)).await?? + 1)
    })
}

async fn flood(calls: u64, drops: bool) -> Result<(), CallError> {
    let mut tasks = Vec::new();
    for _ in 0..calls {
        tasks.push(windlass::spawn(async move {
            let mut rng = windlass::rand::Rng::new();
            let depth = rng.range(1..=MAX_HOPS as u64) as usize;
            match drops && rng.chance(0.3) {
                true => {
                    let limit = Duration::from_micros(rng.below(2_000));
                    let _ = timeout(limit, nested(depth)).await;
                }
                false => assert_eq!(nested(depth).await, Ok(depth)),
            }
        }));
    }
    for task in tasks {
        task.await.expect("a task that does not panic");
    }
    assert_eq!(nested(MAX_HOPS + 1).await, Err(CallError::TooDeep));
    Ok(())
}

async fn scenario(sim: Sim, defect: Option<Defect>) -> TestResult {
    let shards = sim.size("shards", 2..=4);
    let calls = sim.size("calls", 1..=20);
    let drops = sim.rng().chance(0.5);
    let done = Count::default();
    let counted = done.clone();
    sim.host("server").start_shards(
        move || pool(shards, defect).calls_per_peer(1),
        move |_| {
            let counted = counted.clone();
            Ok(move |_shard| {
                let counted = counted.clone();
                async move {
                    let flooded = flood(calls, drops).await;
                    counted.add();
                    flooded
                }
            })
        },
    );
    done.reaches(shards as usize, "shards whose calls have ended").await;
    Ok(())
}

#[test]
fn nested_calls_with_one_unit_end() {
    passes(|sim| scenario(sim, None));
}

#[test]
fn one_hop_class_for_all_calls_is_found() {
    finds("shards whose calls have ended", |sim| {
        scenario(sim, Some(Defect::OneHopClass))
    });
}
