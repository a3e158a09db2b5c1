//! Cancellation at random points leaves no child task and no operation in flight, and loses no error.

use std::cell::Cell;
use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpStream;
use windlass::task::{self, CancelToken, TaskGroup, gather, join_all, on_cancel, race, shield, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{Exception, counters, spawn};

use crate::support::{Random, on_every_driver, pair, rounds, turns};

const SHORT: Duration = Duration::from_micros(50);

/// The counts that all futures of a test update.
#[derive(Clone, Default)]
struct Counts(Rc<CountCells>);

#[derive(Default)]
struct CountCells {
    /// Futures that have begun and not ended.
    alive: Cell<usize>,
    /// Errors and panics that were produced, and those that were observed.
    produced: Cell<usize>,
    observed: Cell<usize>,
    /// Cleanups that were armed, and those that ran.
    armed_cleanups: Cell<usize>,
    run_cleanups: Cell<usize>,
}

fn add(cell: &Cell<usize>, count: usize) {
    cell.set(cell.get() + count);
}

struct Alive(Counts);

impl Alive {
    fn new(counts: &Counts) -> Alive {
        add(&counts.0.alive, 1);
        Alive(counts.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.0.alive.set(self.0.0.alive.get() - 1);
    }
}

/// A stream to read from, shared by all rounds; its peer writes little or nothing.
type Stream = Rc<TcpStream>;

type Work = Pin<Box<dyn Future<Output = Result<(), Counted>>>>;

/// An error that is counted when it is produced, and again when it is observed.
#[derive(Debug)]
struct Counted;

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counted")
    }
}

impl std::error::Error for Counted {}

fn fail(counts: &Counts) -> Counted {
    add(&counts.0.produced, 1);
    Counted
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// A child: reads, sleeps, yields, fails, cleans up, or has children of its own.
fn work(counts: &Counts, streams: &[Stream], random: &mut Random, depth: u32) -> Work {
    let (counts, streams) = (counts.clone(), streams.to_vec());
    let alive = Alive::new(&counts);
    let choice = random.below(if depth == 0 { 6 } else { 12 });
    let seed = random.next();
    Box::pin(async move {
        let _alive = alive;
        let mut random = Random::new(seed);
        match choice {
            0 => turns(random.below(4)).await,
            1 | 2 => {
                let stream = streams[random.below(streams.len() as u64) as usize].clone();
                // No bytes may ever arrive: a cancel or this timeout ends the read.
                let _ = timeout(SHORT * 4, stream.read(vec![0; 16])).await;
            }
            3 => sleep(SHORT * random.below(4) as u32).await,
            4 => {
                turns(random.below(3)).await;
                return Err(fail(&counts));
            }
            5 => {
                let armed = on_cancel(Duration::from_secs(5), {
                    let counts = counts.clone();
                    add(&counts.0.armed_cleanups, 1);
                    async move {
                        yield_now().await;
                        add(&counts.0.run_cleanups, 1);
                    }
                });
                turns(random.below(4)).await;
                armed.run().await;
            }
            _ => scope(&counts, &streams, &mut random, depth - 1).await,
        }
        Ok(())
    })
}

/// Waits for several children in one of the ways that the runtime offers.
async fn scope(counts: &Counts, streams: &[Stream], random: &mut Random, depth: u32) {
    let count = 1 + random.below(4);
    let mut children: Vec<Work> = (0..count).map(|_| work(counts, streams, random, depth)).collect();
    let observe = |count: usize| add(&counts.0.observed, count);
    match random.below(8) {
        0 => {
            let result = task::group(async |group| {
                for child in children.drain(..) {
                    group.spawn(child);
                }
                turns(2).await;
            });
            if let Err(error) = result.await {
                observe(error.leaves().len());
            }
        }
        1 => {
            let group = TaskGroup::new();
            for child in children {
                group.spawn(child);
            }
            turns(random.below(3)).await;
            match random.below(3) {
                0 => group.cancel(),
                1 => return,
                _ => {}
            }
            if let Err(error) = group.join().await {
                observe(error.leaves().len());
            }
        }
        2 => {
            if let Err(task::TaskError::Failed(Counted)) = gather(children).await {
                observe(1);
            }
        }
        3 => {
            // A cancelled race drops the winner's error if it still waits for the children of the losers.
            let observed_when_dropped = children.into_iter().map(|child| {
                let counts = counts.clone();
                async move {
                    child
                        .await
                        .map_err(|Counted| OnDrop(move || add(&counts.0.observed, 1)))
                }
            });
            drop(race(observed_when_dropped).await);
        }
        4 => {
            // `join_all` would drop the results of cancelled tasks unobserved, so each task observes its own.
            let observing = children.into_iter().map(|child| {
                let counts = counts.clone();
                spawn(async move {
                    if child.await.is_err() {
                        add(&counts.0.observed, 1);
                    }
                })
            });
            join_all(observing.map(|task| task.cancel_on_drop())).await;
        }
        5 => {
            let mut shielded = shield(children.remove(0));
            let result = match timeout(SHORT, &mut shielded).await {
                Ok(result) => result,
                Err(_) => shielded.await,
            };
            observe(usize::from(matches!(result, Ok(Err(_)))));
        }
        6 => {
            let token = CancelToken::new();
            let under = token.child();
            let canceller = spawn(async move {
                turns(2).await;
                token.cancel();
            });
            let child = children.remove(0);
            drop(children);
            if let Some(Err(_)) = under.run_until_cancelled(child).await {
                observe(1);
            }
            canceller.await.unwrap();
        }
        _ => {
            let child = children.remove(0);
            drop(children);
            if let Ok(Err(_)) = timeout(SHORT * random.below(4) as u32, child).await {
                observe(1);
            }
        }
    }
}

#[test]
fn random_cancels_leave_nothing_and_lose_no_error() {
    on_every_driver(|case| {
        let seed = crate::support::variable::<u64>("WINDLASS_TEST_SEED").unwrap_or(0x5EED);
        let event_loop = case.event_loop();
        let counts = Counts::default();
        event_loop.set_exception_handler({
            let counts = counts.clone();
            move |exception: &Exception| match exception.error_ref() {
                Some(error) if error.is::<Counted>() => add(&counts.0.observed, 1),
                Some(error) => match error.downcast_ref::<task::GroupError>() {
                    Some(group) => add(&counts.0.observed, group.leaves().len()),
                    None => panic!("{exception}"),
                },
                None => panic!("{exception}"),
            }
        });
        let body = async {
            let mut streams: Vec<Stream> = Vec::new();
            let mut peers = Vec::new();
            for _ in 0..3 {
                let (client, server) = pair().await;
                streams.push(Rc::new(server));
                peers.push(client);
            }
            let rounds = if case.is_kernel() {
                rounds()
            } else {
                rounds().min(20_000)
            };
            for round in 0..rounds {
                let mut random = Random::new(seed ^ (round as u64) << 20 ^ 0x9E37_79B9);
                random.next();
                let root = spawn({
                    let (counts, streams) = (counts.clone(), streams.clone());
                    let mut random = Random::new(random.next());
                    async move { scope(&counts, &streams, &mut random, 2).await }
                });
                if random.below(2) == 0 {
                    let peer = &peers[random.below(3) as usize];
                    peer.write_all(vec![1; 4]).await.0.unwrap();
                }
                turns(random.below(8)).await;
                if random.below(4) > 0 {
                    root.cancel();
                }
                let what = format!("round {round} on {}, WINDLASS_TEST_SEED={seed}", case.name);
                match timeout(Duration::from_secs(60), root).await {
                    Err(_) => panic!("{what}: stuck: {:?}", counters()),
                    Ok(Err(error)) => {
                        if let Ok(payload) = error.try_into_panic() {
                            resume_unwind(payload);
                        }
                    }
                    Ok(Ok(())) => {}
                }
                // Siblings that a failed gather leaves running, and losers of a race.
                let mut patience = 10_000;
                while counts.0.alive.get() > 0 || counters().tasks > 1 {
                    assert!(patience > 0, "{what}: {} alive, {:?}", counts.0.alive.get(), counters());
                    patience -= 1;
                    sleep(SHORT / 5).await;
                }
                assert_eq!(counters().in_flight, 0, "{what}");
                assert_eq!(counters().timers, 0, "{what}");
                assert_eq!(
                    counts.0.run_cleanups.get(),
                    counts.0.armed_cleanups.get(),
                    "{what}: cleanups"
                );
                assert_eq!(
                    counts.0.observed.get(),
                    counts.0.produced.get(),
                    "{what}: errors seen and made"
                );
            }
            drop(peers);
            drop(streams);
        };
        event_loop.run_until_complete(body).unwrap();
        assert!(
            rounds() < 1_000 || counts.0.produced.get() > 100,
            "too few errors to mean anything"
        );
        assert!(
            rounds() < 1_000 || counts.0.armed_cleanups.get() > 100,
            "too few cleanups to mean anything"
        );
    });
}

/// Groups whose children all wait in the kernel: when the group returns or its task is joined, none is in flight.
#[test]
fn no_operation_outlives_its_group() {
    on_every_driver(|case| {
        case.run(async move {
            let mut random = Random::new(99);
            let (_peer, stream) = pair().await;
            let stream = Rc::new(stream);
            for round in 0..rounds() / 2 {
                let way = random.below(4);
                let work = {
                    let stream = stream.clone();
                    let fail_after = random.below(4);
                    async move {
                        task::group(async |group| {
                            for _ in 0..3 {
                                let stream = stream.clone();
                                group.spawn(async move { stream.read(vec![0; 32]).await.0.map(drop) });
                            }
                            turns(fail_after).await;
                            if way == 0 {
                                return Err::<(), _>("down");
                            }
                            if way == 1 {
                                group.cancel();
                            }
                            pending().await
                        })
                        .await
                    }
                };
                let task = spawn(work);
                turns(random.below(6)).await;
                if way >= 2 {
                    task.cancel();
                }
                let result = task.await;
                assert_eq!(counters().in_flight, 0, "round {round}, way {way}: {result:?}");
                assert_eq!(counters().tasks, 1, "round {round}, way {way}");
            }
        });
    });
}
