//! Tasks that are started inside of the task that spawns them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use windlass::task::{Builder, TaskLocal, current_id, spawn_eager, yield_now};
use windlass::time::sleep;
use windlass::{TaskState, call_soon, counters, promise, spawn};

use crate::support::{CountDrop, on_every_driver, pair, turns};
use crate::tasks::{add_one, counter};

#[test]
fn it_runs_before_the_next_line_and_needs_no_turn() {
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
fn one_that_waits_goes_on_as_any_other() {
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
                    promised.await.expect("it is kept")
                }
            });
            assert_eq!(
                (polls.get(), task.name(), task.is_finished()),
                (1, Some("eager"), false)
            );
            while polls.get() < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            resolver.resolve("kept").expect("nobody else does");
            assert_eq!(task.await.expect("no panic"), "kept");
        });
    });
}

#[test]
fn bytes_that_it_reads_and_writes_at_once_are_right() {
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
fn it_is_a_task_of_its_own() {
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
            assert_eq!(NUMBER.get(), 1, "the caller's own is untouched");
            assert_eq!(current_id(), ours, "the caller is the current task again");
            assert_eq!(task.await.expect("no panic"), Some(its));
            assert_ne!(Some(its), ours);
        });
    });
}

#[test]
fn both_are_running_meanwhile() {
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
fn its_panic_is_its_own() {
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
            // One that fails after its first poll.
            let task = spawn_eager(async {
                yield_now().await;
                panic!("later");
            });
            assert!(task.await.expect_err("it panicked").is_panic());
        });
    });
}

#[test]
fn cancelled_and_detached_ones_leave_nothing() {
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
            drop(spawn_eager(async { "a result that nobody takes" }));
            // And who started one is cancelled as any other.
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

/// One starts the next, before it has done anything else.
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
fn however_many_start_each_other_the_stack_has_an_end() {
    on_every_driver(|case| {
        case.run(async {
            let deepest = counter();
            let length = if cfg!(miri) { 200 } else { 20_000 };
            spawn_eager(chain(length, deepest.clone())).await.expect("no panic");
            assert!(
                (16..=17).contains(&deepest.get()),
                "{} inside each other",
                deepest.get()
            );
        });
    });
}

#[test]
fn who_starts_one_after_the_other_starves_nobody() {
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
                assert!(started < 10_000, "the other task never gets its turn");
            }
            assert!(started > 100, "only {started}: most of them took a turn each");
        });
    });
}

#[test]
fn outside_of_tasks_it_waits_for_its_turn() {
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
