//! `spawn_eager`: tasks whose first poll happens inside of the task that spawns them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use windlass::task::{Builder, TaskLocal, current_id, spawn_eager, yield_now};
use windlass::time::sleep;
use windlass::{TaskState, call_soon, counters, promise, spawn};

use crate::support::{CountDrop, on_every_driver, pair, turns};
use crate::tasks::{add_one, counter};

#[test]
fn an_eager_task_runs_before_spawn_returns() {
    on_every_driver(|case| {
        case.run(async {
            let before = counters();
            let log = Rc::new(RefCell::new(Vec::new()));
            spawn({
                let log = log.clone();
                async move { log.borrow_mut().push("scheduled before") }
            });
            let task = spawn_eager({
                let log = log.clone();
                async move {
                    log.borrow_mut().push("at once");
                    7
                }
            });
            log.borrow_mut().push("the next line");
            assert!(task.is_finished());
            assert_eq!(task.await.expect("no panic"), 7);
            assert_eq!(*log.borrow(), ["at once", "the next line"]);
            assert_eq!(counters().turns, before.turns, "joining it took a turn");
            turns(2).await;
            assert_eq!(*log.borrow(), ["at once", "the next line", "scheduled before"]);
            assert_eq!(counters().tasks, before.tasks);
        });
    });
}

#[test]
fn an_eager_task_that_waits_continues_as_a_normal_task() {
    on_every_driver(|case| {
        case.run(async {
            let polls = counter();
            let (resolver, promised) = promise();
            let task = Builder::new().name("eager").spawn_eager({
                let polls = polls.clone();
                async move {
                    add_one(&polls);
                    sleep(Duration::from_millis(1)).await;
                    yield_now().await;
                    add_one(&polls);
                    promised.await.expect("resolved")
                }
            });
            assert_eq!(
                (polls.get(), task.name(), task.is_finished()),
                (1, Some("eager"), false)
            );
            while polls.get() < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            resolver.resolve("resolved").expect("not resolved yet");
            assert_eq!(task.await.expect("no panic"), "resolved");
        });
    });
}

#[test]
fn eager_reads_and_writes_deliver_the_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = pair().await;
            let writing = spawn_eager(async move { one.write_all(b"hello".to_vec()).await.0 });
            let reading = spawn_eager(async move { other.read_exact(vec![0; 5]).await });
            writing.await.expect("no panic").expect("write");
            let (result, bytes) = reading.await.expect("no panic");
            result.expect("read");
            assert_eq!(bytes, b"hello");
        });
    });
}

static NUMBER: TaskLocal<u32> = TaskLocal::new();

#[test]
fn an_eager_task_has_its_own_id_and_locals() {
    on_every_driver(|case| {
        case.run(async {
            let ours = current_id();
            NUMBER.set(1);
            let task = spawn_eager(async {
                assert_eq!(NUMBER.get(), 1);
                NUMBER.set(2);
                current_id()
            });
            let its = task.id();
            assert_eq!(NUMBER.get(), 1, "the caller's value is unchanged");
            assert_eq!(current_id(), ours, "the caller is the current task again");
            assert_eq!(task.await.expect("no panic"), Some(its));
            assert_ne!(Some(its), ours);
        });
    });
}

#[test]
fn both_tasks_are_running_during_an_eager_poll() {
    on_every_driver(|case| {
        case.run(async {
            let states = || {
                let tasks = windlass::dump().tasks;
                tasks.into_iter().map(|task| task.state).collect::<Vec<_>>()
            };
            let inside = spawn_eager(async move { states() }).await.expect("no panic");
            assert_eq!(inside, [TaskState::Running, TaskState::Running]);
            assert_eq!(states(), [TaskState::Running]);
        });
    });
}

#[test]
fn a_panic_stays_in_the_eager_task() {
    on_every_driver(|case| {
        case.run(async {
            let drops = counter();
            let task = spawn_eager({
                let dropped = CountDrop(drops.clone());
                async move {
                    let _dropped = dropped;
                    panic!("eagerly");
                }
            });
            assert_eq!(drops.get(), 1);
            assert!(task.await.expect_err("it panicked").is_panic());
            // A panic after the first poll.
            let task = spawn_eager(async {
                yield_now().await;
                panic!("later");
            });
            assert!(task.await.expect_err("it panicked").is_panic());
        });
    });
}

#[test]
fn cancelled_and_detached_eager_tasks_leave_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let before = counters().tasks;
            let drops = counter();
            let waiting = |drops: &Rc<Cell<usize>>| {
                let dropped = CountDrop(drops.clone());
                async move {
                    let _dropped = dropped;
                    std::future::pending::<()>().await;
                }
            };
            let task = spawn_eager(waiting(&drops));
            task.cancel();
            assert!(task.await.expect_err("it was cancelled").is_cancelled());
            assert_eq!(drops.get(), 1);
            drop(spawn_eager(async { "a result that is dropped" }));
            // The spawning task can be cancelled as usual.
            let outer = spawn(async {
                yield_now().await;
                spawn_eager(async {});
                std::future::pending::<()>().await;
            });
            turns(3).await;
            outer.cancel();
            assert!(outer.await.expect_err("it was cancelled").is_cancelled());
            assert_eq!(counters().tasks, before);
        });
    });
}

/// Each task spawns the next one before it does anything else.
fn chain(left: usize, deepest: Rc<Cell<usize>>) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        thread_local! {
            static DEPTH: Cell<usize> = const { Cell::new(0) };
        }
        DEPTH.set(DEPTH.get() + 1);
        deepest.set(deepest.get().max(DEPTH.get()));
        let next = (left > 0).then(|| spawn_eager(chain(left - 1, deepest.clone())));
        DEPTH.set(DEPTH.get() - 1);
        if let Some(next) = next {
            next.await.expect("no panic");
        }
    })
}

#[test]
fn nested_eager_spawns_do_not_overflow_the_stack() {
    on_every_driver(|case| {
        case.run(async {
            let deepest = counter();
            let length = if cfg!(miri) { 200 } else { 20_000 };
            spawn_eager(chain(length, deepest.clone())).await.expect("no panic");
            assert!((16..=17).contains(&deepest.get()), "{} nested polls", deepest.get());
        });
    });
}

#[test]
fn consecutive_eager_spawns_do_not_starve_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let is_over = Rc::new(Cell::new(false));
            spawn({
                let is_over = is_over.clone();
                async move {
                    turns(3).await;
                    is_over.set(true);
                }
            });
            let mut started = 0;
            while !is_over.get() {
                spawn_eager(async {}).await.expect("no panic");
                started += 1;
                assert!(started < 10_000, "the other task never ran");
            }
            assert!(started > 100, "only {started} started: most took a turn each");
        });
    });
}

#[test]
fn spawn_eager_in_a_callback_schedules_the_task() {
    on_every_driver(|case| {
        case.run(async {
            let ran = counter();
            call_soon({
                let ran = ran.clone();
                move || {
                    let task = spawn_eager({
                        let ran = ran.clone();
                        async move { add_one(&ran) }
                    });
                    assert!(!task.is_finished());
                }
            });
            turns(3).await;
            assert_eq!(ran.get(), 1);
        });
    });
}
