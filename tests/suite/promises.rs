//! Promises, placeholders and done-callbacks.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use windlass::task::yield_now;
use windlass::{Abandoned, Placeholder, call_soon, promise, spawn};

use crate::support::{exceptions_of, on_every_driver, poll_with, rounds, turns, waker_calling};

type Log = Rc<RefCell<Vec<String>>>;

fn write(log: &Log, line: impl Into<String>) {
    log.borrow_mut().push(line.into());
}

#[test]
fn the_first_to_resolve_wins() {
    on_every_driver(|case| {
        case.run(async {
            let (promise, placeholder) = promise();
            let clone = promise.clone();
            assert!(!promise.is_resolved() && !placeholder.is_done());
            assert_eq!(clone.resolve(1), Ok(()));
            assert!(promise.is_resolved() && placeholder.is_done());
            assert_eq!(promise.resolve(2), Err(2), "the value is returned");
            drop((promise, clone));
            assert_eq!(placeholder.await, Ok(1));
        });
    });
}

#[test]
fn a_placeholder_waits_until_its_promise_is_resolved() {
    on_every_driver(|case| {
        case.run(async {
            for _ in 0..rounds().min(100) {
                let (promise, placeholder) = promise();
                windlass::call_later(Duration::from_micros(100), move || promise.resolve("late").unwrap());
                assert_eq!(placeholder.await, Ok("late"));
            }
        });
    });
}

#[test]
fn dropping_the_last_promise_abandons_the_placeholder() {
    on_every_driver(|case| {
        case.run(async {
            let (promise, placeholder) = promise::<u32>();
            let clone = promise.clone();
            drop(promise);
            yield_now().await;
            assert!(!placeholder.is_done(), "a clone still exists");
            let result = Rc::new(RefCell::new(None));
            placeholder.add_done_callback({
                let result = result.clone();
                move |value| result.replace(Some(value.copied())).unwrap_or(Ok(0)).map_or((), |_| ())
            });
            drop(clone);
            assert_eq!(placeholder.await, Err(Abandoned));
            assert_eq!(*result.borrow(), Some(Err(Abandoned)));
        });
    });
}

#[test]
fn done_callbacks_run_in_order_in_a_later_turn_before_the_awaiter() {
    on_every_driver(|case| {
        case.run(async {
            let log = Log::default();
            let (promise, placeholder) = promise::<u32>();
            for name in ["first", "second", "third"] {
                let log = log.clone();
                placeholder.add_done_callback(move |value| write(&log, format!("{name} {}", value.unwrap())));
            }
            let awaiter = spawn({
                let log = log.clone();
                async move { write(&log, format!("awaiter {}", placeholder.await.unwrap())) }
            });
            yield_now().await;
            promise.resolve(5).unwrap();
            assert!(log.borrow().is_empty(), "`resolve` runs no callback itself");
            awaiter.await.unwrap();
            assert_eq!(*log.borrow(), ["first 5", "second 5", "third 5", "awaiter 5"]);

            // An awaiter that polls before the callbacks ran waits for them.
            log.take();
            let (promise, placeholder) = windlass::promise::<u32>();
            placeholder.add_done_callback({
                let log = log.clone();
                move |value| write(&log, format!("callback {}", value.unwrap()))
            });
            promise.resolve(6).unwrap();
            let value = placeholder.await.unwrap();
            write(&log, format!("awaiter {value}"));
            assert_eq!(*log.borrow(), ["callback 6", "awaiter 6"]);
        });
    });
}

#[test]
fn a_late_callback_runs_in_the_next_turn() {
    on_every_driver(|case| {
        case.run(async {
            let log = Log::default();
            let (promise, placeholder) = promise::<u32>();
            promise.resolve(1).unwrap();
            yield_now().await;
            yield_now().await;
            placeholder.add_done_callback({
                let log = log.clone();
                move |value| write(&log, format!("late {}", value.unwrap()))
            });
            assert!(log.borrow().is_empty());
            yield_now().await;
            assert_eq!(*log.borrow(), ["late 1"]);
            assert_eq!(placeholder.await, Ok(1));
        });
    });
}

#[test]
fn a_late_callback_runs_before_the_awaiter_takes_the_value() {
    on_every_driver(|case| {
        case.run(async {
            let log = Log::default();
            let (promise, placeholder) = promise::<u32>();
            let shared = Rc::new(RefCell::new(placeholder));
            let awaiter = spawn({
                let (log, shared) = (log.clone(), shared.clone());
                async move {
                    let value = std::future::poll_fn(|cx| {
                        let mut shared = shared.borrow_mut();
                        std::pin::Pin::new(&mut *shared).poll(cx)
                    });
                    write(&log, format!("awaiter {}", value.await.unwrap()));
                }
            });
            yield_now().await;
            // In the turn that wakes the awaiter, but before the awaiter runs.
            promise.resolve(3).unwrap();
            call_soon({
                let (log, shared) = (log.clone(), shared.clone());
                move || {
                    let callback =
                        move |value: Result<&u32, Abandoned>| write(&log, format!("late {}", value.unwrap()));
                    shared.borrow().add_done_callback(callback);
                }
            });
            awaiter.await.unwrap();
            assert_eq!(*log.borrow(), ["late 3", "awaiter 3"]);
        });
    });
}

#[test]
fn a_callback_can_add_callbacks_and_poll_and_drop_the_placeholder() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let output = event_loop.run_until_complete(async {
            let log = Log::default();
            let (promise, placeholder) = promise::<u32>();
            let shared: Rc<RefCell<Option<Placeholder<u32>>>> = Rc::default();
            placeholder.add_done_callback({
                let (log, shared, promise) = (log.clone(), shared.clone(), promise.clone());
                move |_| {
                    assert!(promise.is_resolved());
                    assert_eq!(promise.resolve(9), Err(9));
                    let mut placeholder = shared.borrow_mut().take().unwrap();
                    assert!(placeholder.is_done());
                    let poll = poll_with(Waker::noop(), std::pin::Pin::new(&mut placeholder));
                    assert_eq!(poll, Poll::Pending, "callbacks are still pending");
                    let (log, again) = (log.clone(), shared.clone());
                    placeholder.add_done_callback(move |value| {
                        write(&log, format!("nested {}", value.unwrap()));
                        drop(again.borrow_mut().take());
                    });
                    shared.replace(Some(placeholder));
                }
            });
            shared.replace(Some(placeholder));
            promise.resolve(4).unwrap();
            for _ in 0..5 {
                yield_now().await;
            }
            assert!(shared.borrow().is_none());
            log.take()
        });
        assert_eq!(output.unwrap(), ["nested 4"]);
        assert!(exceptions.borrow().is_empty(), "{exceptions:?}");
    });
}

#[test]
fn a_panicking_callback_stops_neither_other_callbacks_nor_the_awaiter() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let output = event_loop.run_until_complete(async {
            let log = Log::default();
            let (promise, placeholder) = promise::<u32>();
            placeholder.add_done_callback(|_| panic!("callback panics"));
            placeholder.add_done_callback({
                let log = log.clone();
                move |_| write(&log, "second")
            });
            promise.resolve(8).unwrap();
            (placeholder.await, log.take())
        });
        assert_eq!(output.unwrap(), (Ok(8), vec!["second".to_owned()]));
        assert_eq!(exceptions.borrow().len(), 1);
        assert!(exceptions.borrow()[0].contains("callback panics"));
    });
}

#[test]
fn a_panicking_waker_does_not_affect_other_callbacks() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        event_loop
            .run_until_complete(async {
                let log = Log::default();
                let (promise, mut placeholder) = promise::<u32>();
                let shared: Rc<RefCell<Option<Placeholder<u32>>>> = Rc::default();
                let panics = waker_calling(|| panic!("waker panics"));
                assert!(poll_with(&panics, std::pin::Pin::new(&mut placeholder)).is_pending());
                placeholder.add_done_callback({
                    let (log, shared) = (log.clone(), shared.clone());
                    move |_| {
                        // Added while the other callbacks run.
                        let callback = move |_: Result<&u32, Abandoned>| write(&log, "late");
                        shared.borrow().as_ref().unwrap().add_done_callback(callback);
                    }
                });
                shared.replace(Some(placeholder));
                promise.resolve(1).unwrap();
                turns(10).await;
                assert_eq!(*log.borrow(), ["late"]);
                let placeholder = shared.take().unwrap();
                assert_eq!(placeholder.await, Ok(1));
            })
            .unwrap();
        assert_eq!(exceptions.borrow().len(), 1);
        assert!(exceptions.borrow()[0].contains("waker panics"));
    });
}

#[test]
fn a_placeholder_returns_its_value_once() {
    on_every_driver(|case| {
        case.run(async {
            let (promise, mut placeholder) = promise();
            promise.resolve(1).unwrap();
            assert_eq!((&mut placeholder).await, Ok(1));
            let again = catch_unwind(AssertUnwindSafe(|| {
                let _ = poll_with(Waker::noop(), std::pin::Pin::new(&mut placeholder));
            }));
            assert!(again.is_err());
        });
    });
}

#[test]
fn promises_outlive_their_loop() {
    on_every_driver(|case| {
        let (promise, placeholder) = case.run(async { promise::<String>() });
        let (other, other_placeholder) = case.run(async { windlass::promise::<String>() });
        let values = Rc::new(RefCell::new(Vec::new()));
        placeholder.add_done_callback({
            let values = values.clone();
            move |value| write(&values, value.unwrap())
        });
        assert_eq!(promise.resolve("late".into()), Ok(()));
        assert_eq!(*values.borrow(), ["late"], "without a loop the callback runs at once");
        drop(other);
        let outcome = case.run(async { (placeholder.await, other_placeholder.await) });
        assert_eq!(outcome, (Ok("late".into()), Err(Abandoned)), "awaited on another loop");
    });
}
