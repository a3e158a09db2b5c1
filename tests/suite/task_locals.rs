//! Task-locals: inherited at spawn, and changed only for the task itself.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::task::{self, TaskLocal, on_cancel, yield_now};
use windlass::time::sleep;
use windlass::{call_later, call_soon, promise, spawn};

use crate::panics::{assert_one_exception, run_and_collect_exceptions};
use crate::support::{CountDrop, PanicOnDrop, on_every_driver, poll_once, turns};
use crate::tasks::counter;

const MS: Duration = Duration::from_millis(1);

static NUMBER: TaskLocal<u32> = TaskLocal::new();
static TEXT: TaskLocal<String> = TaskLocal::with_default(|| "default".to_owned());
static SHARED: TaskLocal<Rc<Cell<usize>>> = TaskLocal::new();

#[test]
fn children_inherit_values_and_change_only_their_own() {
    on_every_driver(|case| {
        case.run(async {
            assert_eq!((NUMBER.try_get(), TEXT.get().as_str()), (None, "default"));
            NUMBER.set(1);
            TEXT.set("parent".to_owned());
            let child = spawn(async {
                assert_eq!((NUMBER.get(), TEXT.get().as_str()), (1, "parent"));
                NUMBER.set(2);
                yield_now().await;
                let grandchild = spawn(async { NUMBER.get() });
                NUMBER.set(3);
                assert_eq!(grandchild.await.unwrap(), 2, "the value at spawn");
                TEXT.unset();
                assert_eq!(TEXT.get(), "default");
                NUMBER.get()
            });
            // Set after the spawn: the child does not see it, although it has not started yet.
            NUMBER.set(10);
            assert_eq!(child.await.unwrap(), 3);
            assert_eq!((NUMBER.get(), TEXT.get().as_str()), (10, "parent"));
            TEXT.with(|text| assert_eq!(text, "parent"));
            NUMBER.try_with(|number| assert_eq!(number, Some(&10)));
        });
        assert_eq!(NUMBER.try_get(), None, "the thread's own context is unchanged");
    });
}

#[test]
fn tasks_inherit_values_set_outside_of_the_loop() {
    on_every_driver(|case| {
        NUMBER.set(5);
        let event_loop = case.event_loop();
        let task = event_loop.spawn(async { NUMBER.get() });
        NUMBER.set(6);
        event_loop
            .run_until_complete(async {
                assert_eq!(NUMBER.get(), 6);
                NUMBER.set(7);
                assert_eq!(task.await.unwrap(), 5);
            })
            .unwrap();
        assert_eq!(NUMBER.get(), 6);
        NUMBER.unset();
    });
}

#[test]
fn callbacks_run_in_the_context_in_which_they_were_scheduled() {
    on_every_driver(|case| {
        case.run(async {
            let seen: Rc<RefCell<Vec<Option<u32>>>> = Rc::default();
            let record = || {
                let seen = seen.clone();
                move || seen.borrow_mut().push(NUMBER.try_get())
            };
            call_soon(record());
            NUMBER.set(1);
            call_soon(record());
            call_later(MS, record());
            // A callback's change stays with it and with the work that it schedules.
            call_soon({
                let inner = record();
                move || {
                    NUMBER.set(2);
                    call_soon(inner);
                    spawn(async { assert_eq!(NUMBER.get(), 2) });
                }
            });
            let (promise, placeholder) = promise::<()>();
            let done = record();
            NUMBER.set(3);
            placeholder.add_done_callback(move |_| done());
            NUMBER.set(4);
            spawn(async move {
                NUMBER.set(5);
                promise.resolve(()).unwrap();
            });
            placeholder.await.unwrap();
            sleep(3 * MS).await;
            let mut seen = seen.take();
            seen.sort();
            assert_eq!(seen, [None, Some(1), Some(1), Some(2), Some(3)]);
            assert_eq!(NUMBER.get(), 4);
        });
    });
}

#[test]
fn a_scope_applies_only_inside() {
    on_every_driver(|case| {
        case.run(async {
            NUMBER.set(1);
            let mut inside = pin!(NUMBER.scope(2, async {
                assert_eq!(NUMBER.get(), 2);
                yield_now().await;
                assert_eq!(NUMBER.get(), 2, "not the value set outside meanwhile");
                NUMBER.set(3);
                TEXT.set("stays".to_owned());
                yield_now().await;
                assert_eq!(NUMBER.get(), 3);
                Some(spawn(async {
                    turns(5).await;
                    NUMBER.get()
                }))
            }));
            assert!(poll_once(inside.as_mut()).await.is_pending());
            assert_eq!(NUMBER.get(), 1);
            NUMBER.set(9);
            assert!(poll_once(inside.as_mut()).await.is_pending());
            assert_eq!((NUMBER.get(), TEXT.get().as_str()), (9, "stays"));
            let task = inside.await.unwrap();
            assert_eq!(NUMBER.get(), 9);
            assert_eq!(task.await.unwrap(), 3);

            // Nested scopes, one of which is dropped: destructors see the scope's value.
            let seen = Rc::new(Cell::new(0));
            struct RecordOnDrop(Rc<Cell<u32>>);
            impl Drop for RecordOnDrop {
                fn drop(&mut self) {
                    self.0.set(NUMBER.get());
                }
            }
            {
                let record = RecordOnDrop(seen.clone());
                let mut cut = pin!(NUMBER.scope(
                    4,
                    NUMBER.scope(5, async move {
                        let _record = record;
                        pending::<()>().await;
                    })
                ));
                assert!(poll_once(cut.as_mut()).await.is_pending());
            }
            assert_eq!((seen.get(), NUMBER.get()), (5, 9));
            assert_eq!(NUMBER.sync_scope(6, || NUMBER.get()), 6);
            let unwound = catch_unwind(|| NUMBER.sync_scope(7, || panic!("inside")));
            assert!(unwound.is_err());
            assert_eq!(NUMBER.get(), 9);
        });
    });
}

#[test]
fn groups_cleanups_and_shields_inherit_values() {
    on_every_driver(|case| {
        case.run(async {
            NUMBER.set(1);
            let in_group = task::group(async |group| {
                NUMBER.set(2);
                let child = group.spawn(async { NUMBER.get() });
                child.await.unwrap()
            });
            assert_eq!(in_group.await.unwrap(), 2);
            let seen = Rc::new(Cell::new(0));
            let task = spawn({
                let seen = seen.clone();
                async move {
                    NUMBER.set(3);
                    let _armed = on_cancel(MS, async move { seen.set(NUMBER.get()) });
                    pending::<()>().await;
                }
            });
            turns(2).await;
            task.cancel();
            assert!(task.await.is_err());
            assert_eq!(seen.get(), 3);
            assert_eq!(task::shield(async { NUMBER.get() }).await.unwrap(), 2);
        });
    });
}

#[test]
fn values_are_dropped_when_no_task_can_access_them() {
    on_every_driver(|case| {
        static HELD: TaskLocal<CountDrop> = TaskLocal::new();
        let drops = counter();
        case.run({
            let drops = drops.clone();
            async move {
                let parent = spawn({
                    let drops = drops.clone();
                    async move {
                        HELD.set(CountDrop(drops));
                        drop(spawn(turns(3)));
                        let handle = call_later(Duration::from_secs(3600), || {});
                        turns(1).await;
                        handle
                    }
                });
                let handle = parent.await.unwrap();
                assert_eq!(drops.get(), 0, "the child holds the value");
                turns(5).await;
                assert_eq!(drops.get(), 0, "the callback holds the value");
                handle.cancel();
                assert_eq!(drops.get(), 1);
            }
        });
        // A task that outlives its loop through a waker holds no values any more.
        let waker = Rc::new(RefCell::new(None));
        case.run({
            let (drops, waker) = (drops.clone(), waker.clone());
            async move {
                drop(spawn(std::future::poll_fn(move |cx| {
                    HELD.set(CountDrop(drops.clone()));
                    waker.replace(Some(cx.waker().clone()));
                    std::task::Poll::<()>::Pending
                })));
                turns(2).await;
            }
        });
        assert_eq!(drops.get(), 2);
        std::thread::spawn({
            let waker = waker.take().unwrap();
            move || drop(waker)
        })
        .join()
        .unwrap();
    });
}

#[test]
fn destructors_of_values_may_panic_and_access_task_locals() {
    on_every_driver(|case| {
        static HELD: TaskLocal<Rc<PanicOnDrop>> = TaskLocal::new();
        static ACCESSES: TaskLocal<Rc<AccessOnDrop>> = TaskLocal::new();
        struct AccessOnDrop;
        impl Drop for AccessOnDrop {
            fn drop(&mut self) {
                // During the destructor of a value, a context exists and can be changed.
                let _ = NUMBER.try_get();
                NUMBER.set(1);
                NUMBER.unset();
            }
        }
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async {
                HELD.set(Rc::new(PanicOnDrop("value down")));
                ACCESSES.set(Rc::new(AccessOnDrop));
                ACCESSES.set(Rc::new(AccessOnDrop));
            });
            task.await.unwrap();
        });
        assert_one_exception(&exceptions, &["value down"]);
    });
}

#[test]
fn reading_an_unset_value_panics() {
    on_every_driver(|case| {
        case.run(async {
            let missing = catch_unwind(AssertUnwindSafe(|| SHARED.get()));
            assert!(missing.is_err());
            assert!(SHARED.try_get().is_none());
            SHARED.try_with(|shared| assert!(shared.is_none()));
            assert!(catch_unwind(AssertUnwindSafe(|| SHARED.with(|_| ()))).is_err());
            assert!(format!("{NUMBER:?}").contains("u32"));
        });
    });
}
