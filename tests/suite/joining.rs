//! Waiting for several futures: `join`, `gather`, `race`, `as_completed`, `wait`; and how failures are reported.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use windlass::task::{
    Either, TaskError, WaitFor, as_completed, gather, join, join_all, race, select, try_join, try_join_all, wait,
    wait_until, yield_now,
};
use windlass::time::{sleep, timeout};
use windlass::{JoinHandle, counters, spawn};

use crate::groups::until_receives_in_flight;
use crate::panics::{assert_one_exception, run_and_collect_exceptions};
use crate::support::{
    CountDrop, PanicOnDrop, Random, exceptions_of, on_every_driver, pair, poll_once, poll_with, turns,
};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

async fn after(millis: u32) -> u32 {
    sleep(millis * MS).await;
    millis
}

/// The same in turns of the loop, which a slow machine cannot reorder.
async fn later(steps: u32) -> u32 {
    turns(u64::from(4 * steps)).await;
    steps
}

/// Counts how often it is polled.
struct Polled<F>(Pin<Box<F>>, Rc<Cell<usize>>);

impl<F: Future> Future for Polled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        add_one(&self.1);
        self.0.as_mut().poll(cx)
    }
}

#[test]
fn results_come_in_the_order_of_the_futures() {
    on_every_driver(|case| {
        case.run(async {
            assert_eq!(join_all([3, 1, 2].map(later)).await, [3, 1, 2]);
            assert_eq!(join_all(Vec::<std::future::Ready<u8>>::new()).await, []);
            let tasks = [3, 1, 2].map(|millis| spawn(later(millis)));
            let results: Vec<u32> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(results, [3, 1, 2]);
            let fine = |millis| async move { Ok::<_, io::Error>(later(millis).await) };
            assert_eq!(try_join_all([2, 1].map(fine)).await.unwrap(), [2, 1]);
            assert_eq!(gather([3, 1, 2].map(fine)).await.unwrap(), [3, 1, 2]);
            assert_eq!(
                gather(Vec::<std::future::Ready<Result<u8, String>>>::new())
                    .await
                    .unwrap(),
                []
            );
        });
    });
}

#[test]
fn only_woken_futures_are_polled() {
    on_every_driver(|case| {
        case.run(async {
            let count: usize = if cfg!(miri) { 60 } else { 10_000 };
            let (polls, mut random) = (counter(), Random::new(42));
            // Each future waits for its own promise; they are resolved one by one in random order.
            let (mut promises, mut waiting) = (Vec::new(), Vec::new());
            for _ in 0..count {
                let (promise, placeholder) = windlass::promise::<()>();
                promises.push(promise);
                waiting.push(Polled(Box::pin(placeholder), polls.clone()));
            }
            let resolver = spawn(async move {
                while !promises.is_empty() {
                    let index = random.below(promises.len() as u64) as usize;
                    promises.swap_remove(index).resolve(()).unwrap();
                    yield_now().await;
                }
            });
            let results = join_all(waiting).await;
            assert_eq!(results.len(), count);
            assert_eq!(polls.get(), 2 * count, "one poll to wait and one to complete");
            resolver.await.unwrap();
        });
    });
}

#[test]
fn a_yielding_future_lets_others_run() {
    on_every_driver(|case| {
        case.run(async {
            // A future that wakes itself in every poll: the loop turns between two polls.
            let before = counters().turns;
            join_all([turns(10), turns(20)]).await;
            assert!(counters().turns - before >= 20);
            let busy = async {
                loop {
                    yield_now().await;
                }
            };
            let runners: [Pin<Box<dyn Future<Output = u32>>>; 2] = [Box::pin(busy), Box::pin(later(2))];
            assert_eq!(race(runners).await, 2);
        });
    });
}

#[test]
fn a_future_may_be_woken_from_another_thread() {
    on_every_driver(|case| {
        case.run(async {
            let jobs = (0..20u32).map(|number| windlass::spawn_blocking(move || number));
            let results: Vec<u32> = join_all(jobs).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(results, (0..20).collect::<Vec<_>>());
        });
    });
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    on_every_driver(|case| {
        case.run(async {
            let (promise, placeholder) = windlass::promise::<u8>();
            let mut all = pin!(join_all([Polled(Box::pin(placeholder), counter())]));
            assert!(poll_with(Waker::noop(), all.as_mut()).is_pending());
            assert!(poll_once(all.as_mut()).await.is_pending());
            promise.resolve(1).unwrap();
            assert_eq!(all.await, [Ok(1)]);

            // One future is woken while an earlier batch is handled, and another waker polls next.
            let mut completed = as_completed((0..3).map(|number| async move {
                match number {
                    0 => yield_now().await,
                    2 => pending().await,
                    _ => {}
                }
                number
            }));
            {
                let mut next = pin!(completed.next());
                assert_eq!(poll_with(Waker::noop(), next.as_mut()), Poll::Ready(Some(1)));
            }
            // The timeout's own wake would find it too, but the wake must not be lost.
            let limit = Duration::from_secs(5);
            let start = windlass::time::Instant::now();
            assert_eq!(timeout(limit, completed.next()).await, Ok(Some(0)));
            assert!(start.elapsed() < limit);
        });
    });
}

#[test]
fn the_first_error_of_try_join_all_drops_the_others() {
    on_every_driver(|case| {
        case.run(async {
            let drops = counter();
            let work = |number: u32| {
                let held = CountDrop(drops.clone());
                async move {
                    let _held = held;
                    match number {
                        1 => Err(after(1).await),
                        _ => pending().await,
                    }
                }
            };
            let result: Result<Vec<()>, u32> = try_join_all((0..4).map(work)).await;
            assert_eq!((result.unwrap_err(), drops.get()), (1, 4));
        });
    });
}

#[test]
fn gather_returns_the_first_failure_and_the_siblings_continue() {
    on_every_driver(|case| {
        let finished = counter();
        let (error, exceptions) = run_and_collect_exceptions(&case.event_loop(), {
            let finished = finished.clone();
            async move {
                let work = |millis: u32| {
                    let finished = finished.clone();
                    async move {
                        later(millis).await;
                        add_one(&finished);
                        match millis {
                            2 => Err(io::Error::other("first")),
                            6 => Err(io::Error::other("second")),
                            _ => Ok(millis),
                        }
                    }
                };
                let error = gather([4, 2, 6, 8].map(work)).await.unwrap_err();
                assert_eq!(finished.get(), 1, "gather returns at once");
                // Longer than the slowest sibling.
                later(10).await;
                error
            }
        });
        assert_eq!(finished.get(), 4, "the siblings continued");
        assert!(matches!(error, TaskError::Failed(error) if error.to_string() == "first"));
        assert_one_exception(&exceptions, &["second", "joining.rs", "`gather` had ended"]);
    });
}

#[test]
fn a_cancelled_gather_cancels_its_tasks_and_waits_for_them() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let parent = spawn({
                let ended = ended.clone();
                async move {
                    gather((0..3).map(|_| {
                        let held = CountDrop(ended.clone());
                        async move {
                            let _held = held;
                            let (_client, server) = pair().await;
                            server.read(vec![0; 8]).await.0
                        }
                    }))
                    .await
                }
            });
            until_receives_in_flight(3).await;
            parent.cancel();
            assert!(parent.await.unwrap_err().is_cancelled());
            assert_eq!((ended.get(), counters().in_flight), (3, 0));
            turns(3).await;
            assert_eq!(counters().tasks, 1, "no watching task is left");
        });
        // A failure before the cancel is reported.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let mut gathering = gather([async { Err::<(), _>("unseen") }]);
            assert!(poll_once(Pin::new(&mut gathering)).await.is_pending());
            turns(2).await;
            drop(gathering);
        });
        assert_one_exception(&exceptions, &["unseen"]);
    });
}

#[test]
fn gather_returns_panics_and_cancels_its_tasks_when_dropped() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let error = gather([0, 1].map(|number| async move {
                match number {
                    0 => pending::<Result<(), String>>().await,
                    _ => panic!("gathered"),
                }
            }));
            let mut error = timeout(HOUR, error).await.unwrap().unwrap_err();
            match &mut error {
                TaskError::Ended(error) => assert!(error.is_panic()),
                TaskError::Failed(_) => unreachable!(),
            }
            assert!(error.to_string().contains("gathered"));
        });
        assert!(exceptions.is_empty(), "{exceptions:?}");
        // A running task, gathered and then cancelled with the gather. On a loop of its own, so that tasks can be
        // counted.
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let result = event_loop.run_until_complete(async {
            let before = counters().tasks;
            let running = spawn(sleep(HOUR));
            let id = running.id();
            let gathering = gather([running.cancel_on_drop()]);
            assert!(timeout(MS, gathering).await.is_err());
            turns(5).await;
            assert_eq!(counters().tasks, before, "task {id} has ended");
        });
        result.expect("the loop runs");
        assert!(exceptions.borrow().is_empty(), "{exceptions:?}");
    });
}

#[test]
fn the_first_of_a_race_wins_and_the_others_are_dropped() {
    on_every_driver(|case| {
        case.run(async {
            let drops = counter();
            let run = |millis: u32| {
                let held = CountDrop(drops.clone());
                async move {
                    let _held = held;
                    later(millis).await
                }
            };
            assert_eq!(race([30, 2, 3600].map(run)).await, 2);
            assert_eq!((drops.get(), counters().timers), (3, 0));
            // Several are ready: the first one wins.
            assert_eq!(race([ready(1), ready(2)]).await, 1);
            let empty = catch_unwind(|| drop(race(Vec::<std::future::Ready<()>>::new())));
            assert!(empty.is_err());

            assert_eq!(select(after(1), pending::<()>()).await, Either::Left(1));
            assert_eq!(select(pending::<()>(), after(1)).await, Either::Right(1));
            assert_eq!(select(ready(1), ready(2)).await, Either::Left(1));
        });
        // A loser's panicking destructor does not affect the winner.
        let (winner, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            race([1, 2].map(|number| async move {
                match number {
                    1 => {
                        let _held = PanicOnDrop("sore loser");
                        pending::<u32>().await
                    }
                    _ => after(1).await,
                }
            }))
            .await
        });
        assert_eq!(winner, 1);
        assert_one_exception(&exceptions, &["sore loser"]);
    });
}

#[test]
fn a_read_that_loses_a_race_loses_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut got = Vec::new();
            let mut random = Random::new(7);
            let sender = spawn(async move {
                for number in 0..200u8 {
                    client.write_all(vec![number]).await.0.unwrap();
                    if number % 3 == 0 {
                        yield_now().await;
                    }
                }
            });
            while got.len() < 200 {
                let pause = turns(random.below(3));
                if let Either::Left((result, bytes)) = select(server.read(vec![0; 4]), pause).await {
                    got.extend_from_slice(&bytes[..result.unwrap()]);
                }
            }
            assert_eq!(got, (0..200).collect::<Vec<u8>>());
            sender.await.unwrap();
        });
    });
}

#[test]
fn as_completed_yields_in_completion_order() {
    on_every_driver(|case| {
        case.run(async {
            let mut completed = as_completed([30, 10, 20].map(later));
            assert_eq!(completed.len(), 3);
            // A dropped wait loses nothing.
            assert!(poll_once(pin!(completed.next())).await.is_pending());
            assert_eq!(completed.next_numbered().await, Some((1, 10)));
            assert_eq!(completed.next().await, Some(20));
            assert_eq!(completed.next().await, Some(30));
            assert!(completed.next().await.is_none() && completed.is_empty());

            let mut tasks = as_completed([2, 1].map(|millis| spawn(later(millis))));
            assert_eq!(tasks.next().await.unwrap().unwrap(), 1);
            drop(tasks);
        });
    });
}

#[test]
fn a_panic_leaves_the_other_futures_usable() {
    on_every_driver(|case| {
        case.run(async {
            let mut completed = as_completed((0..3).map(|number| async move {
                assert_ne!(number, 1, "number one panics");
                number
            }));
            assert_eq!(completed.next().await, Some(0));
            let panicked = poll_fn(|cx| {
                let mut next = pin!(completed.next());
                Poll::Ready(catch_unwind(AssertUnwindSafe(|| next.as_mut().poll(cx))).is_err())
            });
            assert!(panicked.await);
            assert_eq!(completed.next().await, Some(2));
            assert_eq!(completed.next().await, None);
        });
    });
}

#[test]
fn wait_returns_finished_and_pending_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let tasks = || [5, 1, 1_000_000].map(|millis| spawn(later(millis)));
            let first = wait(tasks(), WaitFor::First).await;
            assert_eq!(first.done.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
            let places: Vec<_> = first.pending.iter().map(|(index, _)| *index).collect();
            assert_eq!(places, [0, 2]);
            // Pending tasks are not cancelled and can be awaited again.
            let rest = first.pending.into_iter().map(|(_, task)| task);
            let second = wait(rest, WaitFor::First).await;
            assert_eq!(second.done[0].1.as_ref().unwrap(), &5);
            let (_, last) = second.pending.into_iter().next().unwrap();
            last.cancel();
            assert!(last.await.unwrap_err().is_cancelled());

            // Two that complete at once are both returned.
            let both = wait([spawn(ready(1)), spawn(ready(2)), spawn(pending())], WaitFor::First).await;
            assert_eq!((both.done.len(), both.pending.len()), (2, 1));
            drop(both);

            let all = wait([2, 1].map(|millis| spawn(later(millis))), WaitFor::All).await;
            let order: Vec<_> = all.done.iter().map(|(index, _)| *index).collect();
            assert_eq!((order, all.pending.len()), (vec![1, 0], 0));

            let waited = wait([spawn(sleep(HOUR))], WaitFor::All).within(2 * MS).await;
            assert_eq!((waited.done.len(), waited.pending.len()), (0, 1));
            let no_tasks = wait(Vec::<JoinHandle<()>>::new(), WaitFor::First).await;
            assert!(no_tasks.done.is_empty() && no_tasks.pending.is_empty());
        });
    });
}

#[test]
fn wait_for_the_first_error_ignores_successes() {
    on_every_driver(|case| {
        case.run(async {
            let tasks: Vec<JoinHandle<()>> = (0..4)
                .map(|number| {
                    spawn(async move {
                        later(number).await;
                        match number {
                            1 => panic!("the first error"),
                            3 => pending().await,
                            _ => {}
                        }
                    })
                })
                .collect();
            let waited = wait(tasks, WaitFor::FirstError).await;
            let order: Vec<_> = waited
                .done
                .iter()
                .map(|(index, result)| (*index, result.is_ok()))
                .collect();
            assert_eq!(order, [(0, true), (1, false)]);
            assert_eq!(waited.pending.len(), 2);
            drop(waited);

            let tasks = (0..3).map(|number| {
                spawn(async move {
                    later(number).await;
                    (number != 1).then_some(()).ok_or("down")
                })
            });
            let waited = wait_until(tasks, |result| !matches!(result, Ok(Ok(())))).await;
            assert_eq!((waited.done.len(), waited.pending.len()), (2, 1));
        });
    });
}

#[test]
fn futures_of_different_types_are_joined_as_a_tuple() {
    on_every_driver(|case| {
        case.run(async {
            let start = windlass::time::Instant::now();
            let joined = join((after(3), async { "text" }, spawn(after(1)), ready([1u8; 3]))).await;
            assert_eq!(
                (joined.0, joined.1, joined.2.unwrap(), joined.3),
                (3, "text", 1, [1; 3])
            );
            assert!(
                case.is_kernel() || start.elapsed() == 3 * MS,
                "the futures run concurrently"
            );
            let eight = join((
                ready(1),
                ready(2),
                ready(3),
                ready(4),
                ready(5),
                ready(6),
                ready(7),
                after(8),
            ))
            .await;
            assert_eq!(eight, (1, 2, 3, 4, 5, 6, 7, 8));

            let both = try_join((async { Ok::<_, String>(after(1).await) }, ready(Ok(2u8)))).await;
            assert_eq!(both.unwrap(), (1, 2));
            let drops = counter();
            let held = CountDrop(drops.clone());
            let stuck = async move {
                let _held = held;
                pending::<Result<(), u32>>().await
            };
            let error = try_join((
                stuck,
                async { Err::<u8, _>(after(1).await) },
                ready(Ok::<_, u32>(String::new())),
            ))
            .await;
            assert_eq!((error.unwrap_err(), drops.get()), (1, 1));
        });
    });
}

/// A future that uses up the budget of a poll does not starve the others.
#[test]
fn joined_futures_rotate_the_poll_order() {
    on_every_driver(|case| {
        case.run(async {
            let order: Rc<RefCell<Vec<u8>>> = Rc::default();
            let member = |number: u8| {
                let order = order.clone();
                let mut polls = 0;
                poll_fn(move |cx| {
                    order.borrow_mut().push(number);
                    polls += 1;
                    cx.waker().wake_by_ref();
                    if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
                })
            };
            join((member(0), member(1), member(2))).await;
            assert_eq!(*order.borrow(), [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        });
    });
}
