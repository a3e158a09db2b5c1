//! Shards die while they call and are called. No call hangs, and a dead shard's calls are cancelled where they run.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use windlass::shards::{CallError, Defect, OnFailure, Shard};
use windlass::sim::Sim;
use windlass::time::{sleep, timeout};

use super::{Count, pool};
use crate::scenarios::{finds, passes};
use crate::{SEC, TestResult};

/// The calls that run, by the caller's shard.
type Served = Rc<RefCell<Vec<u32>>>;

thread_local! {
    /// Closures of calls are `Send`, so this is the way to the ledger of the run. All shards run on one thread.
    static SERVED: Served = Rc::default();
}

struct Running(usize);

impl Running {
    fn new(caller: usize) -> Running {
        SERVED.with(|served| served.borrow_mut()[caller] += 1);
        Running(caller)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        SERVED.with(|served| served.borrow_mut()[self.0] -= 1);
    }
}

/// Whether a shard has ended is known to all a second later.
const LIMIT: Duration = Duration::from_secs(200);

async fn caller(shard: Shard, calls: u64) {
    let mut rng = windlass::rand::Rng::new();
    let index = shard.index();
    for _ in 0..calls {
        let other = shard.peer(rng.below(shard.count() as u64) as usize);
        let time = match rng.below(4) {
            0 => Duration::ZERO,
            1 => Duration::from_secs(rng.range(10..100)),
            _ => Duration::from_micros(rng.below(5_000)),
        };
        let call = other.call(move || async move {
            let _running = Running::new(index);
            sleep(time).await;
            7
        });
        match timeout(LIMIT, call).await {
            Ok(Ok(value)) => assert_eq!(value, 7),
            Ok(Err(error)) => {
                assert_eq!(error, CallError::Gone);
                if other.is_alive() {
                    // It ends right now.
                    sleep(SEC).await;
                    assert!(!other.is_alive(), "gone, but alive");
                }
            }
            Err(_) => panic!("a call hangs"),
        }
    }
}

async fn run(shard: Shard, calls: u64, fails_after: Option<Duration>, done: Count) -> Result<(), String> {
    let callers: Vec<_> = (0..4).map(|_| windlass::spawn(caller(shard.clone(), calls))).collect();
    let all = async {
        for caller in callers {
            caller.await.expect("a task that does not panic");
        }
    };
    let dies = async {
        match fails_after {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    match windlass::task::select(all, dies).await {
        windlass::task::Either::Left(()) => {
            done.add();
            Ok(())
        }
        windlass::task::Either::Right(()) => Err("it fails".to_owned()),
    }
}

async fn scenario(sim: Sim, defect: Option<Defect>) -> TestResult {
    let shards = sim.size("shards", 2..=4);
    let calls = sim.size("calls", 1..=10);
    let mut rng = sim.rng();
    SERVED.with(|served| *served.borrow_mut() = vec![0; shards as usize]);
    let victim = rng.below(shards) as usize;
    let dies_after = match rng.below(3) {
        0 => Duration::from_micros(rng.below(1_000)),
        1 => Duration::from_micros(rng.below(20_000)),
        _ => Duration::from_millis(rng.below(60_000)),
    };
    let is_killed = rng.chance(0.7);
    let is_paused = rng.chance(0.5);
    let done = Count::default();
    let counted = done.clone();
    sim.host("server").may_fail().start_shards(
        move || pool(shards, defect).calls_per_peer(2).on_failure(OnFailure::KeepOthers),
        move |_| {
            let counted = counted.clone();
            Ok(move |shard: Shard| {
                let fails_after = (!is_killed && shard.index() == victim).then_some(dies_after);
                run(shard, calls, fails_after, counted.clone())
            })
        },
    );
    if is_paused {
        // Calls wait in its inbox when it dies.
        sim.after(dies_after / 2, move |sim| sim.pause_loop("server", victim));
    }
    sleep(dies_after).await;
    match is_killed {
        true => sim.kill_loop("server", victim),
        false => sim.resume_loop("server", victim),
    }
    let had_ended = done.get();
    sleep(SEC).await;
    let served = SERVED.with(|served| served.borrow()[victim]);
    if is_killed {
        assert_eq!(served, 0, "a call of a dead shard is still served");
    }
    done.reaches(shards as usize - 1, "shards that have ended").await;
    sim.sometimes("a shard was killed under load", is_killed && had_ended == 0);
    sim.sometimes("a shard failed under load", !is_killed && had_ended == 0);
    Ok(())
}

#[test]
fn calls_end_with_their_shards() {
    passes(|sim| scenario(sim, None));
}

#[test]
fn answers_that_are_lost_with_a_shard_are_found() {
    finds("a call hangs", |sim| scenario(sim, Some(Defect::LostAnswers)));
}

#[test]
fn calls_that_survive_their_caller_are_found() {
    finds("is still served", |sim| scenario(sim, Some(Defect::LostCancels)));
}
