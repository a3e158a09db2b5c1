//! Cancels at random points: whatever is cut off wherever, no child and no flight is left, and every error is seen.

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

/// What every future of a round reports to.
#[derive(Clone, Default)]
struct Books(Rc<Entries>);

#[derive(Default)]
struct Entries {
    /// Futures that have begun and not ended.
    alive: Cell<usize>,
    /// Errors and panics that were made, and those that somebody was told of.
    made: Cell<usize>,
    seen: Cell<usize>,
    /// Cleanups that were owed, and done.
    owed: Cell<usize>,
    cleaned: Cell<usize>,
}

fn add(cell: &Cell<usize>, count: usize) {
    cell.set(cell.get() + count);
}

struct Alive(Books);

impl Alive {
    fn new(books: &Books) -> Alive {
        add(&books.0.alive, 1);
        Alive(books.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.0.alive.set(self.0.0.alive.get() - 1);
    }
}

/// Somewhere to read from, shared by a round; nobody writes, or somebody writes a little.
type Stream = Rc<TcpStream>;

type Work = Pin<Box<dyn Future<Output = Result<(), Counted>>>>;

/// An error that counts whether it was made; each holder who looks at it counts it as seen.
#[derive(Debug)]
struct Counted;

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counted")
    }
}

impl std::error::Error for Counted {}

fn fail(books: &Books) -> Counted {
    add(&books.0.made, 1);
    Counted
}

/// A child: reads, sleeps, yields, fails, panics, cleans up, or has children of its own.
fn work(books: &Books, streams: &[Stream], random: &mut Random, depth: u32) -> Work {
    let (books, streams) = (books.clone(), streams.to_vec());
    let alive = Alive::new(&books);
    let choice = random.below(if depth == 0 { 6 } else { 12 });
    let seed = random.next();
    Box::pin(async move {
        let _alive = alive;
        let mut random = Random::new(seed);
        match choice {
            0 => turns(random.below(4)).await,
            1 | 2 => {
                let stream = streams[random.below(streams.len() as u64) as usize].clone();
                // A read that nothing may answer is ended by somebody else, or by this.
                let _ = timeout(SHORT * 4, stream.read(vec![0; 16])).await;
            }
            3 => sleep(SHORT * random.below(4) as u32).await,
            4 => {
                turns(random.below(3)).await;
                return Err(fail(&books));
            }
            5 => {
                let armed = on_cancel(Duration::from_secs(5), {
                    let books = books.clone();
                    add(&books.0.owed, 1);
                    async move {
                        yield_now().await;
                        add(&books.0.cleaned, 1);
                    }
                });
                turns(random.below(4)).await;
                armed.run().await;
            }
            _ => scope(&books, &streams, &mut random, depth - 1).await,
        }
        Ok(())
    })
}

/// One of the ways to wait for several.
async fn scope(books: &Books, streams: &[Stream], random: &mut Random, depth: u32) {
    let count = 1 + random.below(4);
    let mut children: Vec<Work> = (0..count).map(|_| work(books, streams, random, depth)).collect();
    let see = |count: usize| add(&books.0.seen, count);
    match random.below(8) {
        0 => {
            let result = task::group(async |group| {
                for child in children.drain(..) {
                    group.spawn(child);
                }
                turns(2).await;
            });
            if let Err(error) = result.await {
                see(error.leaves().len());
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
                see(error.leaves().len());
            }
        }
        2 => {
            if let Err(task::TaskError::Failed(Counted)) = gather(children).await {
                see(1);
            }
        }
        3 => {
            if race(children).await.is_err() {
                see(1);
            }
        }
        4 => {
            // A result that is dropped unseen would be the caller's loss, so the tasks look themselves.
            let looking = children.into_iter().map(|child| {
                let books = books.clone();
                spawn(async move {
                    if child.await.is_err() {
                        add(&books.0.seen, 1);
                    }
                })
            });
            join_all(looking.map(|task| task.cancel_on_drop())).await;
        }
        5 => {
            let mut shielded = shield(children.remove(0));
            let result = match timeout(SHORT, &mut shielded).await {
                Ok(result) => result,
                Err(_) => shielded.await,
            };
            see(usize::from(matches!(result, Ok(Err(_)))));
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
                see(1);
            }
            canceller.await.unwrap();
        }
        _ => {
            let child = children.remove(0);
            drop(children);
            if let Ok(Err(_)) = timeout(SHORT * random.below(4) as u32, child).await {
                see(1);
            }
        }
    }
}

#[test]
fn wherever_a_cancel_comes_nothing_is_left_and_no_error_is_lost() {
    on_every_driver(|case| {
        let seed = crate::support::variable::<u64>("WINDLASS_TEST_SEED").unwrap_or(0x5EED);
        let event_loop = case.event_loop();
        let books = Books::default();
        event_loop.set_exception_handler({
            let books = books.clone();
            move |exception: &Exception| match exception.error_ref() {
                Some(error) if error.is::<Counted>() => add(&books.0.seen, 1),
                Some(error) => match error.downcast_ref::<task::GroupError>() {
                    Some(group) => add(&books.0.seen, group.leaves().len()),
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
                    let (books, streams) = (books.clone(), streams.clone());
                    let mut random = Random::new(random.next());
                    async move { scope(&books, &streams, &mut random, 2).await }
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
                // Siblings that a failed gather let go on, and losers of whom nobody is asked.
                let mut patience = 10_000;
                while books.0.alive.get() > 0 || counters().tasks > 1 {
                    assert!(patience > 0, "{what}: {} alive, {:?}", books.0.alive.get(), counters());
                    patience -= 1;
                    sleep(SHORT / 5).await;
                }
                assert_eq!(counters().in_flight, 0, "{what}");
                assert_eq!(counters().timers, 0, "{what}");
                assert_eq!(books.0.cleaned.get(), books.0.owed.get(), "{what}: cleanups");
                assert_eq!(books.0.seen.get(), books.0.made.get(), "{what}: errors seen and made");
            }
            drop(peers);
            drop(streams);
        };
        event_loop.run_until_complete(body).unwrap();
        assert!(rounds() < 1_000 || books.0.made.get() > 100, "the rounds were too tame");
        assert!(rounds() < 1_000 || books.0.owed.get() > 100, "the rounds were too tame");
    });
}

/// Groups alone, whose children are all in the kernel: when the group has returned, or its task is joined, they are not.
#[test]
fn no_flight_outlives_its_group() {
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
