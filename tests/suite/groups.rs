//! Task groups: no child outlives the group, the first failure cancels the siblings, and every error is kept.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::future::{Future, pending};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use windlass::task::{self, Builder, GroupError, TaskGroup, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{JoinHandle, counters, spawn};

use crate::panics::{assert_one_exception, run_and_collect_exceptions};
use crate::support::{CountDrop, PanicOnDrop, on_every_driver, pair, poll_with, quiet, turns};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A child that waits for bytes that never arrive, and counts its end.
async fn stuck_read(ended: Rc<Cell<usize>>) -> io::Result<()> {
    let _ended = CountDrop(ended);
    let (_client, server) = pair().await;
    server.read(vec![0; 64]).await.0?;
    unreachable!("the peer does not write");
}

/// Waits until exactly `count` receives are in flight and the operations that made their connections have completed.
pub(crate) async fn until_receives_in_flight(count: usize) {
    let receives = || {
        windlass::metrics::metrics()
            .ops
            .iter()
            .filter(|(name, _)| *name == "recv")
            .map(|(_, count)| count)
            .sum::<usize>()
    };
    while receives() < count || counters().in_flight > count {
        sleep(MS).await;
    }
}

#[test]
fn a_group_returns_when_every_child_has_ended() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let value = task::group(async |group| {
                for delay in [3, 1, 2] {
                    let ended = ended.clone();
                    group.spawn(async move {
                        sleep(delay * MS).await;
                        add_one(&ended);
                    });
                }
                assert_eq!(group.len(), 3);
                7
            });
            assert_eq!(value.await.unwrap(), 7);
            assert_eq!((ended.get(), counters().tasks), (3, 1));
        });
    });
}

#[test]
fn a_childs_handle_returns_its_value_and_may_be_dropped() {
    on_every_driver(|case| {
        case.run(async {
            let sum = task::group(async |group| {
                let one = group.spawn(async { 1u8 });
                let two = group.spawn(async { Ok::<_, io::Error>(2) });
                drop(group.spawn(async { sleep(MS).await }));
                Ok::<_, task::JoinError>(one.await? + two.await?)
            });
            assert_eq!(sum.await.unwrap(), 3);
        });
    });
}

#[test]
fn the_first_failure_cancels_the_siblings_and_waits_for_the_kernel() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let failed: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
            let result = task::group(async |group| {
                for _ in 0..4 {
                    group.spawn(stuck_read(ended.clone()));
                }
                until_receives_in_flight(4).await;
                let handle = group.spawn(async { Err::<(), _>(io::Error::other("down")) });
                failed.replace(Some(handle));
                pending::<()>().await;
            });
            let error = result.await.unwrap_err();
            assert_eq!(counters().in_flight, 0, "their operations have completed");
            assert_eq!((ended.get(), counters().tasks), (4, 1));
            assert_eq!(error.failures().len(), 1);
            assert_eq!(
                error.failures()[0].downcast_ref::<io::Error>().unwrap().to_string(),
                "down"
            );
            let handle = failed.take().unwrap();
            assert_eq!(error.failures()[0].task(), Some(handle.id()));
            let join_error = handle.await.unwrap_err();
            assert!(join_error.is_failed() && !join_error.is_cancelled() && !join_error.is_panic());
        });
    });
}

#[test]
fn siblings_are_cancelled_although_the_group_is_not_awaited() {
    on_every_driver(|case| {
        case.run(async {
            let group = TaskGroup::new();
            let sibling = group.spawn(sleep(HOUR));
            group.spawn(async { Err::<(), _>("down") });
            turns(5).await;
            assert!(sibling.is_finished());
            // A child spawned afterwards is dropped without a poll.
            let drops = counter();
            let held = CountDrop(drops.clone());
            let late = group.spawn(async move {
                drop(held);
                unreachable!("never polled");
            });
            assert_eq!(drops.get(), 1);
            assert!(late.await.unwrap_err().is_cancelled());
            assert_eq!(group.join().await.unwrap_err().failures().len(), 1);
        });
    });
}

#[test]
fn every_error_is_kept_and_prints_as_a_tree() {
    on_every_driver(|case| {
        case.run(async {
            #[derive(Debug)]
            struct Outer(io::Error);
            impl std::fmt::Display for Outer {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("cannot save")
                }
            }
            impl Error for Outer {
                fn source(&self) -> Option<&(dyn Error + 'static)> {
                    Some(&self.0)
                }
            }

            let error = task::group(async |group| {
                Builder::new().name("inner").spawn_in(
                    group,
                    task::group(async |inner| {
                        // Both fail in the turn in which they start: neither is cancelled first.
                        inner.spawn(async { Err::<(), _>(Outer(io::Error::other("disk full"))) });
                        inner.spawn(async { panic!("off by one") });
                        inner.spawn(async { Err::<(), _>("two\nlines") });
                        pending::<()>().await;
                    }),
                );
                let error = pending::<Result<(), String>>();
                timeout(HOUR, error).await.map_err(|_| "the body gave up".to_owned())?
            })
            .await
            .unwrap_err();
            let ids: Vec<_> = error.leaves().iter().filter_map(|leaf| leaf.task()).collect();
            let inner = error.failures()[0].task().unwrap();
            let text = format!(
                "1 task of the group failed\n\
                 └─ task {inner} 'inner': 3 tasks of the group failed\n   \
                    ├─ task {}: cannot save\n   \
                    │  └─ because: disk full\n   \
                    ├─ task {} panicked: off by one\n   \
                    └─ task {}: two\n      lines",
                ids[0], ids[1], ids[2]
            );
            assert_eq!(error.to_string(), text);
            assert_eq!(format!("{error:?}"), text, "`Debug` shows the same");
            assert!(error.leaves()[1].is_panic());
            let place = error.failures()[0].spawned_at().unwrap();
            assert!(place.file().ends_with("groups.rs"));
            let _: &(dyn Error + Send + Sync) = &error;
            let payload = error.into_iter().next().unwrap().into_error().unwrap();
            let inner: Box<GroupError> = payload.downcast().unwrap();
            let payload = inner.into_iter().nth(1).unwrap().into_error().unwrap_err();
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"off by one"));
        });
    });
}

#[test]
fn an_error_of_the_body_is_a_failure_too() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let result = task::group(async |group| {
                group.spawn(stuck_read(ended.clone()));
                until_receives_in_flight(1).await;
                Err::<(), _>(io::Error::other("body down"))
            });
            let error = result.await.unwrap_err();
            assert_eq!((ended.get(), counters().in_flight), (1, 0));
            assert_eq!(error.failures()[0].task(), None);
            assert_eq!(
                error.to_string(),
                "the body of the group failed\n└─ the body: body down"
            );
        });
    });
}

#[test]
fn cancelling_the_parent_cancels_the_children_and_waits_for_them() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let parent = spawn({
                let ended = ended.clone();
                async move {
                    task::group(async |group| {
                        for _ in 0..3 {
                            group.spawn(stuck_read(ended.clone()));
                        }
                        // A child with a child of its own.
                        group.spawn(task::group(async move |inner| {
                            inner.spawn(stuck_read(ended.clone()));
                            pending::<()>().await;
                        }));
                    })
                    .await
                }
            });
            until_receives_in_flight(4).await;
            parent.cancel();
            assert!(parent.await.unwrap_err().is_cancelled());
            assert_eq!((ended.get(), counters().in_flight, counters().tasks), (4, 0, 1));
        });
    });
}

#[test]
fn a_dropped_group_makes_its_task_wait() {
    on_every_driver(|case| {
        case.run(async {
            // The task completes only after the children of the group that it dropped.
            let ended = counter();
            let parent = spawn({
                let ended = ended.clone();
                async move {
                    let group = TaskGroup::new();
                    group.spawn(stuck_read(ended.clone()));
                    until_receives_in_flight(1).await;
                    drop(group);
                    assert_eq!(ended.get(), 0, "they end at their next suspension point");
                    "done"
                }
            });
            assert_eq!(parent.await.unwrap(), "done");
            assert_eq!((ended.get(), counters().in_flight, counters().tasks), (1, 0, 1));

            // The same with a group that is awaited: a plain drop does not wait, but the task completes after the child.
            let parent = spawn({
                let ended = ended.clone();
                async move {
                    let mut slow = Box::pin(task::group(async |group| {
                        group.spawn(stuck_read(ended.clone()));
                    }));
                    task::select(slow.as_mut(), until_receives_in_flight(1)).await;
                    drop(slow);
                    assert!(counters().tasks >= 3, "the child is being cancelled");
                }
            });
            parent.await.unwrap();
            assert_eq!((ended.get(), counters().in_flight, counters().tasks), (2, 0, 1));
        });
    });
}

/// The task that dropped a group is itself the child of a dropped group: the outermost task waits for all.
#[test]
fn nested_dropped_groups_make_the_outermost_task_wait() {
    on_every_driver(|case| {
        case.run(async {
            let depth = 5;
            let ended = counter();
            fn nest(depth: u32, ended: Rc<Cell<usize>>) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
                Box::pin(async move {
                    let group = TaskGroup::new();
                    match depth {
                        0 => drop(group.spawn(stuck_read(ended))),
                        _ => drop(group.spawn(nest(depth - 1, ended))),
                    }
                    pending().await
                })
            }
            let outer = spawn(nest(depth, ended.clone()));
            until_receives_in_flight(1).await;
            outer.cancel();
            assert!(outer.await.unwrap_err().is_cancelled());
            assert_eq!((ended.get(), counters().in_flight, counters().tasks), (1, 0, 1));
        });
    });
}

#[test]
fn children_may_spawn_children() {
    on_every_driver(|case| {
        case.run(async {
            fn tree(group: &task::GroupHandle, depth: u32, born: &Rc<Cell<usize>>) {
                for _ in 0..2 {
                    let (inside, born) = (group.clone(), born.clone());
                    group.spawn(async move {
                        add_one(&born);
                        sleep(MS).await;
                        if depth > 0 {
                            tree(&inside, depth - 1, &born);
                        }
                    });
                }
            }
            let born = counter();
            task::group(async |group| tree(&group.handle(), 5, &born))
                .await
                .unwrap();
            assert_eq!(born.get(), 126);
            assert_eq!(counters().tasks, 1);
        });
    });
}

#[test]
fn a_handle_that_outlives_its_group_spawns_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let kept = Rc::new(RefCell::new(None));
            task::group(async |group| {
                kept.replace(Some(group.handle()));
            })
            .await
            .unwrap();
            let handle = kept.take().unwrap();
            let drops = counter();
            let held = CountDrop(drops.clone());
            let late = handle.spawn(async move {
                let _held = held;
                unreachable!("never polled");
            });
            assert_eq!((drops.get(), counters().tasks), (1, 1));
            assert!(late.await.unwrap_err().is_cancelled());
            handle.cancel();
            assert!(handle.is_empty());
        });
    });
}

#[test]
fn cancelling_a_group_is_not_a_failure() {
    on_every_driver(|case| {
        case.run(async {
            let group = TaskGroup::new();
            let child = group.spawn(stuck_read(counter()));
            until_receives_in_flight(1).await;
            group.cancel();
            group.join().await.unwrap();
            assert!(child.await.unwrap_err().is_cancelled());
            assert_eq!(counters().in_flight, 0);

            let error = task::group(async |group| {
                let inside = group.handle();
                group.spawn(async move {
                    yield_now().await;
                    inside.cancel();
                });
                pending::<()>().await;
            });
            let error = error.await.unwrap_err();
            assert!(error.is_cancelled() && error.failures().is_empty());
            assert_eq!(error.to_string(), "the group was cancelled");

            // Cancelling one child does not fail the group.
            task::group(async |group| {
                let child = group.spawn(sleep(HOUR));
                group.spawn(sleep(2 * MS));
                yield_now().await;
                child.cancel();
            })
            .await
            .unwrap();
            assert_eq!(counters().tasks, 1);
        });
    });
}

#[test]
fn a_panic_of_the_body_resumes_after_the_children_have_ended() {
    on_every_driver(|case| {
        let (ended, kept) = (counter(), counter());
        let (payload, exceptions) = run_and_collect_exceptions(&case.event_loop(), {
            let (ended, kept) = (ended.clone(), kept.clone());
            async move {
                let task = spawn(async move {
                    let result = task::group(async |group| {
                        group.spawn(stuck_read(ended.clone()));
                        until_receives_in_flight(1).await;
                        let _kept = CountDrop(kept.clone());
                        panic!("body down");
                    });
                    let _ = result.await;
                });
                task.await.unwrap_err().try_into_panic().unwrap()
            }
        });
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"body down"));
        assert_eq!((ended.get(), kept.get()), (1, 1));
        assert!(exceptions.is_empty(), "{exceptions:?}");
    });
}

#[test]
fn a_destructor_panic_beside_a_body_panic_is_reported() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async {
                let result = task::group(async |group| {
                    group.spawn(async {
                        let _late = PanicOnDrop("a destructor of a cancelled child");
                        pending::<()>().await;
                    });
                    turns(2).await;
                    panic!("body down");
                });
                let _ = result.await;
            });
            assert!(task.await.unwrap_err().is_panic());
        });
        assert_one_exception(&exceptions, &["a destructor of a cancelled child"]);
    });
}

#[test]
fn panics_of_children_are_failures() {
    on_every_driver(|case| {
        let (error, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            task::group(async |group| {
                group.spawn(sleep(HOUR));
                group.spawn(async {
                    yield_now().await;
                    panic!("child down");
                });
            })
            .await
            .unwrap_err()
        });
        assert!(error.failures()[0].is_panic() && error.failures()[0].error().is_none());
        assert!(error.to_string().contains("panicked: child down"), "{error}");
        assert!(exceptions.is_empty(), "the group returned the panic: {exceptions:?}");
    });
}

#[test]
fn failures_of_an_unjoined_group_are_reported() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let group = TaskGroup::new();
            Builder::new()
                .name("lonely")
                .spawn_in(&group, async { Err::<(), _>("not observed") });
            turns(3).await;
            drop(group);
        });
        assert_one_exception(&exceptions, &["not observed", "'lonely'", "group"]);

        // A child that fails in the poll in which it drops its own group. No task waits for itself.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let group = Rc::new(TaskGroup::new());
            let mine = group.clone();
            let child = group.spawn(async move {
                yield_now().await;
                drop(mine);
                Err::<(), _>("too late")
            });
            drop(group);
            assert!(child.await.unwrap_err().is_failed());
        });
        assert_one_exception(&exceptions, &["too late"]);
    });
}

#[test]
fn a_child_that_drops_its_own_group_does_not_wait_for_itself() {
    on_every_driver(|case| {
        case.run(async {
            let group = Rc::new(TaskGroup::new());
            let (mine, ended) = (group.clone(), counter());
            group.spawn(stuck_read(ended.clone()));
            let child = group.spawn(async move {
                sleep(2 * MS).await;
                drop(mine);
                5
            });
            drop(group);
            assert_eq!(timeout(HOUR, child).await.unwrap().unwrap(), 5);
            quiet().await;
            turns(3).await;
            assert_eq!((ended.get(), counters().tasks), (1, 1));

            // Through a nested group: the grandchild drops the outer group.
            let outer = Rc::new(TaskGroup::new());
            let mine = outer.clone();
            let child = outer.spawn(async move {
                let inner = TaskGroup::new();
                inner.spawn(async move {
                    yield_now().await;
                    drop(mine);
                });
                turns(1).await;
                drop(inner);
            });
            drop(outer);
            timeout(HOUR, child).await.unwrap().unwrap();
            turns(3).await;
            assert_eq!(counters().tasks, 1);
        });
    });
}

#[test]
fn panicking_destructors_do_not_affect_siblings() {
    on_every_driver(|case| {
        let (error, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            task::group(async |group| {
                for _ in 0..2 {
                    group.spawn(async {
                        let _held = PanicOnDrop("destructor down");
                        pending::<()>().await;
                    });
                }
                group.spawn(stuck_read(counter()));
                until_receives_in_flight(1).await;
                group.spawn(async { Err::<(), _>("down") });
                let _held = PanicOnDrop("the body's destructor");
                pending::<()>().await;
            })
            .await
            .unwrap_err()
        });
        assert_eq!(error.failures().len(), 1);
        let count = |part: &str| exceptions.iter().filter(|line| line.contains(part)).count();
        assert_eq!(
            (count("destructor down"), count("the body's destructor")),
            (2, 1),
            "{exceptions:?}"
        );
    });
}

#[test]
fn a_group_may_be_moved_and_polled_with_another_waker() {
    on_every_driver(|case| {
        case.run(async {
            let mut joining = pin!(task::group(async |group| {
                group.spawn(sleep(2 * MS));
                sleep(MS).await;
                "value"
            }));
            // First polled with one waker, completed with another.
            assert!(poll_with(Waker::noop(), joining.as_mut()).is_pending());
            assert_eq!(joining.await.unwrap(), "value");
            let group = TaskGroup::new();
            group.spawn(sleep(MS));
            spawn(group.join()).await.unwrap().unwrap();
        });
    });
}

#[test]
fn closing_the_loop_ends_groups() {
    on_every_driver(|case| {
        let ended = counter();
        let kept = Rc::new(RefCell::new(None));
        let event_loop = case.event_loop();
        event_loop
            .run_until_complete({
                let (ended, kept) = (ended.clone(), kept.clone());
                async move {
                    let group = TaskGroup::new();
                    group.spawn(stuck_read(ended.clone()));
                    kept.replace(Some(group));
                    drop(spawn(async move {
                        let _ = task::group(async |group| {
                            group.spawn(stuck_read(ended));
                        })
                        .await;
                    }));
                    until_receives_in_flight(2).await;
                }
            })
            .unwrap();
        drop(event_loop);
        assert_eq!(ended.get(), 2);
        let group = kept.take().unwrap();
        assert!(group.is_empty());
        drop(group);
    });
}

#[test]
fn ten_thousand_children_are_polled_only_when_woken() {
    on_every_driver(|case| {
        case.run(async {
            let count = if cfg!(miri) { 50 } else { 10_000 };
            let polls = counter();
            task::group(async |group| {
                for _ in 0..count {
                    let polls = polls.clone();
                    group.spawn(async move {
                        add_one(&polls);
                        yield_now().await;
                        add_one(&polls);
                    });
                }
            })
            .await
            .unwrap();
            assert_eq!(polls.get(), 2 * count);
        });
    });
}

#[test]
fn spawning_needs_a_loop() {
    let group = TaskGroup::new();
    let refused = std::panic::catch_unwind(AssertUnwindSafe(|| drop(group.spawn(async {}))));
    assert!(refused.is_err());
    drop(group);
}
