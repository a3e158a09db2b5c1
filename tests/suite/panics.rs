//! Panics in tasks, callbacks, wakers and destructors: the loop keeps running, and each panic is reported once.

use std::cell::Cell;
use std::future::{Future, pending};
use std::panic::panic_any;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use windlass::io::{IoBuf, IoBufMut};
use windlass::task::{Builder, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{EventLoop, call_later, call_soon, promise, spawn};

use crate::support::{PanicOnDrop, exceptions_of, on_every_driver, pair, poll_with, turns, waker_calling};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);

/// Runs the body, checks that other tasks still finish, and returns the exceptions that the handler received.
pub(crate) fn run_and_collect_exceptions<F: Future>(event_loop: &EventLoop, body: F) -> (F::Output, Vec<String>) {
    let exceptions = exceptions_of(event_loop);
    let other = event_loop.spawn(async {
        sleep(10 * MS).await;
        let (client, server) = pair().await;
        client.write_all("other tasks finish").await.0.unwrap();
        server.read_exact(vec![0; 13]).await.0.unwrap();
    });
    let output = event_loop.run_until_complete(async {
        let output = body.await;
        other.await.expect("other tasks finish");
        output
    });
    (output.expect("the loop runs"), exceptions.take())
}

#[track_caller]
pub(crate) fn assert_one_exception(exceptions: &[String], parts: &[&str]) {
    assert_eq!(exceptions.len(), 1, "{exceptions:?}");
    for part in parts {
        assert!(exceptions[0].contains(part), "{exceptions:?}");
    }
}

#[test]
fn a_join_handle_returns_the_panic_payload() {
    on_every_driver(|case| {
        let (error, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async {
                yield_now().await;
                panic_any(42u32);
            });
            let _: () = match task.await {
                Ok(()) => unreachable!(),
                Err(error) => return error,
            };
        });
        assert!(error.is_panic() && !error.is_cancelled());
        assert_eq!(error.try_into_panic().unwrap().downcast_ref::<u32>(), Some(&42));
        assert!(exceptions.is_empty(), "a joined panic is not reported: {exceptions:?}");
    });
}

#[test]
fn the_panic_of_a_detached_task_is_reported() {
    on_every_driver(|case| {
        // Detached before it panics.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            drop(Builder::new().name("doomed").spawn(async { panic!("detached") }));
            turns(3).await;
        });
        assert_one_exception(&exceptions, &["detached", "'doomed'", "panics.rs"]);
        // Detached afterwards.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async { panic!("dropped handle") });
            turns(3).await;
            assert!(task.is_finished());
            drop(task);
        });
        assert_one_exception(&exceptions, &["dropped handle", "panics.rs"]);
    });
}

#[test]
fn a_callback_panic_is_reported_with_its_location() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            call_soon(|| panic!("soon"));
            turns(2).await;
        });
        assert_one_exception(&exceptions, &["soon", "panics.rs"]);
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            call_later(MS, || panic!("later"));
            sleep(5 * MS).await;
        });
        assert_one_exception(&exceptions, &["later", "panics.rs"]);
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let handle = windlass::LoopHandle::current().unwrap();
            handle.call_soon_threadsafe(|| panic!("from another thread")).unwrap();
            turns(3).await;
        });
        assert_one_exception(&exceptions, &["from another thread"]);
    });
}

#[test]
fn a_panicking_waker_is_reported() {
    on_every_driver(|case| {
        let panics = || waker_calling(|| panic!("waker panics"));
        // The waker of a sleep.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let mut waiting = pin!(sleep(MS));
            assert!(poll_with(&panics(), waiting.as_mut()).is_pending());
            sleep(5 * MS).await;
            assert!(poll_with(Waker::noop(), waiting.as_mut()).is_ready());
        });
        assert_one_exception(&exceptions, &["waker panics"]);
        // The waker of a join handle.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let mut task = spawn(yield_now());
            assert!(poll_with(&panics(), Pin::new(&mut task)).is_pending());
            turns(4).await;
            task.await.unwrap();
        });
        assert_one_exception(&exceptions, &["waker panics"]);
        // The waker of a promise.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let (promise, mut placeholder) = promise();
            assert!(poll_with(&panics(), Pin::new(&mut placeholder)).is_pending());
            promise.resolve(1).unwrap();
            turns(4).await;
            assert_eq!(placeholder.await, Ok(1));
        });
        assert_one_exception(&exceptions, &["waker panics"]);
        // The waker of a read.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let (client, server) = pair().await;
            let mut read = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&panics(), read.as_mut()).is_pending());
            client.write_all("x").await.0.unwrap();
            sleep(5 * MS).await;
            assert_eq!(read.await.0.unwrap(), 1);
        });
        assert_one_exception(&exceptions, &["waker panics"]);
        // The waker of a join handle that waits for an orphaned operation.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let (_client, server) = pair().await;
            let mut task = spawn(async move { server.read(vec![0; 10]).await.0 });
            turns(2).await;
            task.cancel();
            assert!(poll_with(&panics(), Pin::new(&mut task)).is_pending());
            sleep(5 * MS).await;
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_one_exception(&exceptions, &["waker panics"]);
    });
}

#[test]
fn a_panicking_waker_in_an_io_queue_does_not_affect_the_running_read() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let first = spawn({
                let server = server.clone();
                async move { server.read(vec![0; 1]).await.0.unwrap() }
            });
            turns(2).await;
            let mut second = pin!(server.read(vec![0; 1]));
            let panics = waker_calling(|| panic!("waker panics"));
            assert!(poll_with(&panics, second.as_mut()).is_pending());
            client.write_all("xy").await.0.unwrap();
            assert_eq!(first.await.expect("it did not panic"), 1);
            assert_eq!(second.await.0.unwrap(), 1);
        });
        assert_one_exception(&exceptions, &["waker panics"]);
    });
}

/// A buffer whose destructor panics.
struct PanickingBuf {
    bytes: Vec<u8>,
    _bomb: PanicOnDrop,
}

// SAFETY: forwards to the vector, which upholds the contract.
unsafe impl IoBuf for PanickingBuf {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: forwards to the vector, which upholds the contract.
unsafe impl IoBufMut for PanickingBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: the caller guarantees that `len` bytes are initialised.
        unsafe { self.bytes.set_len(len) }
    }
}

#[test]
fn a_panicking_destructor_is_reported() {
    /// A future that is ready at once.
    struct Done(#[expect(dead_code, reason = "its drop matters")] PanicOnDrop);
    impl Future for Done {
        type Output = u32;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
            Poll::Ready(6)
        }
    }
    on_every_driver(|case| {
        // The future of a finished task.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            assert_eq!(spawn(Done(PanicOnDrop("future panics"))).await.unwrap(), 6);
        });
        assert_one_exception(&exceptions, &["future panics"]);
        // The future of a cancelled task.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let bomb = PanicOnDrop("cancelled panics");
            let task = spawn(async move {
                let _bomb = bomb;
                pending::<()>().await;
            });
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_one_exception(&exceptions, &["cancelled panics"]);
        // An output that is never taken: the handle is dropped before the task ends, and after.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            drop(spawn(async { PanicOnDrop("output panics") }));
            turns(3).await;
        });
        assert_one_exception(&exceptions, &["output panics"]);
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async { PanicOnDrop("output panics") });
            turns(3).await;
            drop(task);
        });
        assert_one_exception(&exceptions, &["output panics"]);
        // The buffer of a dropped read.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let (_client, server) = pair().await;
            let buf = PanickingBuf {
                bytes: Vec::with_capacity(10),
                _bomb: PanicOnDrop("buffer panics"),
            };
            assert!(timeout(MS, server.read(buf)).await.is_err());
            drop(server);
            sleep(5 * MS).await;
        });
        assert_one_exception(&exceptions, &["buffer panics"]);
        // Everything that a closing loop drops.
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let bombs = [
            "task panics",
            "call_soon panics",
            "call_later panics",
            "call_soon_threadsafe panics",
        ]
        .map(PanicOnDrop);
        let [task, soon, later, remote] = bombs;
        event_loop.spawn(async move { drop(task) });
        event_loop.call_soon(move || drop(soon));
        event_loop.call_later(MS, move || drop(later));
        event_loop.handle().call_soon_threadsafe(move || drop(remote)).unwrap();
        drop(event_loop);
        assert_eq!(exceptions.borrow().len(), 4, "{exceptions:?}");
    });
}

#[test]
fn a_panicking_exception_handler_does_not_stop_the_loop() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let calls = counter();
        event_loop.set_exception_handler({
            let calls = calls.clone();
            move |_| {
                add_one(&calls);
                panic!("the handler panics too");
            }
        });
        event_loop.call_soon(|| panic!("first"));
        event_loop.call_soon(|| panic!("second"));
        drop(event_loop.spawn(async { panic!("third") }));
        event_loop.run_until_complete(turns(3)).unwrap();
        assert_eq!(calls.get(), 3);
    });
}

#[test]
fn a_payload_whose_destructor_panics_does_not_stop_the_loop() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            drop(spawn(async { panic_any(PanicOnDrop("payload panics")) }));
            call_soon(|| panic_any(PanicOnDrop("payload panics")));
            turns(3).await;
        });
        assert_eq!(exceptions.len(), 2, "{exceptions:?}");
    });
}

#[test]
fn an_exception_handler_can_use_the_loop() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let done = Rc::new(Cell::new(false));
        event_loop.set_exception_handler({
            let (done, weak) = (done.clone(), Rc::downgrade(&event_loop));
            move |exception| {
                assert!(exception.panic_payload().is_some() && exception.io_error().is_none());
                weak.upgrade().unwrap().set_exception_handler(|_| {});
                let done = done.clone();
                spawn(async move { done.set(true) });
            }
        });
        event_loop.call_soon(|| panic!("first panic"));
        event_loop.call_soon(|| panic!("second panic"));
        event_loop.run_until_complete(turns(3)).unwrap();
        assert!(done.get());
    });
}
