//! `EventLoop::enter`, and the outer loop's waker.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::time::sleep;
use windlass::{EventLoop, LoopHandle};

use crate::support::{exceptions_of, on_every_driver, pair, poll_with, settle, turns, waker_calling, waker_with};

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Count {
    /// The count since the last call.
    fn take(&self) -> usize {
        self.0.swap(0, SeqCst)
    }
}

fn host_of(event_loop: &EventLoop) -> Arc<Count> {
    let count = Arc::new(Count::default());
    event_loop.set_host_waker(Waker::from(count.clone()));
    count
}

/// The message of a panic inside `call`.
fn panic_of(call: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(call)).expect_err("it panics");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast::<&str>().expect("a message").to_string(),
    }
}

fn is_entered() -> bool {
    LoopHandle::current().is_some()
}

#[test]
fn tasks_timers_and_streams_can_be_used_outside_of_turns() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        assert!(!is_entered());
        let entered = event_loop.enter();
        assert!(is_entered());
        assert!(format!("{entered:?}").contains("Entered"));
        let begun = event_loop.time();
        let called = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let called = called.clone();
            windlass::call_soon(move || called.set(called.get() + 1));
        }
        let nap = windlass::spawn(sleep(Duration::from_millis(2)));
        // A future that the outer loop polls itself, with its own waker.
        let mut connecting = pin!(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let addr = listener.local_addr()?;
            let connecting = windlass::spawn(TcpStream::connect(addr));
            let (server, _) = listener.accept().await?;
            let client = connecting.await.expect("no panic")?;
            client.write_all(b"ahoy".to_vec()).await.0?;
            let (read, bytes) = server.read_exact(vec![0; 4]).await;
            read?;
            sleep(Duration::from_millis(1)).await;
            std::io::Result::Ok((client, server, bytes))
        });
        let (client, server, bytes) = loop {
            match poll_with(Waker::noop(), connecting.as_mut()) {
                Poll::Ready(result) => break result.expect("a connection"),
                Poll::Pending => event_loop.turn().expect("a turn under `enter`"),
            }
        };
        assert_eq!(bytes, b"ahoy");
        event_loop
            .run_until_complete(nap)
            .expect("a run under `enter`")
            .expect("no panic");
        assert!(event_loop.time() >= begun + Duration::from_millis(2));
        assert_eq!(called.get(), 2);

        // A read in flight ends when its stream is dropped here, and the peer sees the end.
        let mut reading = Box::pin(async move {
            let read = server.read(vec![0; 8]).await.0;
            (read, server)
        });
        assert!(poll_with(Waker::noop(), reading.as_mut()).is_pending());
        drop(reading);
        drop(entered);
        assert!(!is_entered());
        let end = event_loop.run_until_complete(client.read(vec![0; 8])).expect("a run").0;
        assert_eq!(end.expect("the peer has closed"), 0);
        let outside = panic_of(|| drop(windlass::spawn(async {})));
        assert!(outside.contains("EventLoop::enter"), "{outside}");
    });
}

#[test]
fn loops_can_be_entered_inside_of_one_another() {
    on_every_driver(|case| {
        let (first, second) = (case.event_loop(), case.event_loop());
        let order = Rc::new(RefCell::new(Vec::new()));
        let spawn = |name: &'static str| {
            let order = order.clone();
            windlass::spawn(async move { order.borrow_mut().push(name) })
        };
        let outer = first.enter();
        let one = spawn("first");
        {
            let _inner = second.enter();
            let _again = second.enter();
            spawn("second");
            // An outer loop runs although it is not the innermost one.
            first.run_until_complete(one).expect("a run").expect("no panic");
            second.turn_nowait().expect("a turn");
        }
        let one = spawn("first again");
        second.turn_nowait().expect("a turn");
        assert!(!one.is_finished());
        drop(outer);
        first.turn_nowait().expect("a turn");
        assert_eq!(*order.borrow(), ["first", "second", "first again"]);
    });
}

#[test]
fn a_loop_can_be_entered_inside_of_its_own_turn() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let inner = event_loop.clone();
        event_loop
            .run_until_complete(async move {
                let entered = inner.enter();
                windlass::spawn(async {}).await.expect("no panic");
                let error = inner.turn_nowait().expect_err("the loop is running");
                assert!(error.to_string().contains("already running"), "{error}");
                drop(entered);
                // Still running.
                windlass::spawn(async {}).await.expect("no panic");
                assert!(inner.turn().is_err());
            })
            .expect("a run");
        assert!(!is_entered());
    });
}

#[test]
fn guards_dropped_in_the_wrong_order_are_reported() {
    on_every_driver(|case| {
        let (first, second) = (case.event_loop(), case.event_loop());
        for other in [&first, &second] {
            let (outer, inner) = (first.enter(), other.enter());
            let message = panic_of(|| drop(outer));
            assert!(message.contains("reverse order"), "{message}");
            assert!(!is_entered(), "both loops are left");
            // The other guard is harmless now, also if a loop was entered meanwhile.
            let third = first.enter();
            let message = panic_of(|| drop(inner));
            assert!(message.contains("reverse order"), "{message}");
            drop(third);
            assert!(!is_entered());
        }
        first.run_until_complete(turns(2)).expect("the loop still runs");
        // While a panic unwinds, a second one would abort the process.
        let message = panic_of(|| {
            let guards = RefCell::new(vec![first.enter(), second.enter()]);
            let _outer = guards.borrow_mut().remove(0);
            panic!("{}", 1 + guards.borrow().len());
        });
        assert_eq!(message, "2");
        assert!(!is_entered());
    });
}

#[test]
fn a_guard_cannot_leave_a_running_loop_or_enter_another() {
    on_every_driver(|case| {
        let (event_loop, other) = (case.event_loop(), case.event_loop());
        let entered = event_loop.enter();
        event_loop
            .run_until_complete(async {
                let message = panic_of(|| drop(entered));
                assert!(message.contains("reverse order"), "{message}");
                let message = panic_of(|| drop(other.enter()));
                assert!(message.contains("another one is running"), "{message}");
                windlass::spawn(async {}).await.expect("the loop is still current");
            })
            .expect("a run");
    });
}

#[test]
fn a_guard_that_outlives_a_run_or_is_leaked_does_no_harm() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let kept = RefCell::new(None);
        event_loop
            .run_until_complete(async { *kept.borrow_mut() = Some(event_loop.enter()) })
            .expect("a run");
        assert!(!is_entered());
        drop(kept);
        event_loop.run_until_complete(turns(2)).expect("a run");
        std::mem::forget(event_loop.enter());
        drop(event_loop);
        // The closed loop is still current.
        assert!(is_entered());
        let task = windlass::spawn(async {});
        assert!(task.is_finished());
        let next = case.event_loop();
        next.run_until_complete(turns(2)).expect("a run");
        let _entered = next.enter();
        windlass::spawn(async {});
        next.turn_nowait().expect("a turn");
    });
}

/// A thread-local that is destroyed after the loops that its thread has entered.
#[test]
fn a_leaked_guard_leaves_its_loop_when_the_thread_exits() {
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    struct Late {
        seen: Sender<bool>,
        _sleep: windlass::time::Sleep,
    }
    impl Drop for Late {
        fn drop(&mut self) {
            let _ = self.seen.send(is_entered());
            drop(sleep(Duration::from_secs(1)));
        }
    }
    on_every_driver(|case| {
        let (seen, late) = channel();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // Thread-locals are destroyed in the reverse order of their first use.
                LATE.with_borrow(|late| assert!(late.is_none()));
                let event_loop = case.event_loop();
                std::mem::forget(event_loop.enter());
                let mut nap = sleep(Duration::from_secs(3600));
                assert!(poll_with(Waker::noop(), pin!(&mut nap)).is_pending());
                LATE.set(Some(Late { seen, _sleep: nap }));
                drop(event_loop);
                assert!(is_entered(), "the closed loop is still current");
            });
        });
        assert_eq!(late.recv(), Ok(false));
    });
}

/// A waker's clone, which is user code, leaves the loop and closes it while a future of the loop is polled.
#[test]
fn user_code_may_leave_and_close_the_loop_inside_of_a_call() {
    on_every_driver(|case| {
        let address = Box::into_raw(Box::new(case.event_loop()));
        // SAFETY: the box was just made, and is freed after the last use of this reference, the guard's.
        let event_loop: &'static EventLoop = unsafe { &*address };
        let entered = Rc::new(RefCell::new(Some(event_loop.enter())));
        let woken = Rc::new(Cell::new(0));
        let waker = crate::support::waker_cloning(&woken, {
            let entered = entered.clone();
            move || {
                drop(entered.take());
                // SAFETY: the address is that of the box, which is freed once, and the only borrow of it was the guard's.
                drop(unsafe { Box::from_raw(address) });
            }
        });
        let mut nap = pin!(sleep(Duration::from_millis(1)));
        assert!(poll_with(&waker, nap.as_mut()).is_pending());
        assert!(!is_entered());
    });
}

#[test]
fn the_host_is_woken_for_whatever_is_queued_between_turns() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (client, server) = event_loop.run_until_complete(pair()).expect("a run");
        event_loop.run_until_complete(settle()).expect("a run");
        let host = host_of(&event_loop);
        let next = || {
            event_loop.turn_nowait().expect("a turn");
            host.take();
            event_loop.flush().expect("flush");
        };
        let _entered = event_loop.enter();
        assert_eq!(host.take(), 0);

        let task = windlass::spawn(std::future::pending::<()>());
        assert_eq!(host.take(), 1, "a spawn");
        windlass::spawn(std::future::pending::<()>());
        assert_eq!(host.take(), 0, "it was woken and has not turned");
        event_loop.flush().expect("flush");
        windlass::call_soon(|| {});
        assert_eq!(host.take(), 1, "a callback after a flush");
        next();
        task.cancel();
        assert_eq!(host.take(), 1, "a cancelled task");
        next();
        let (sender, receiver) = windlass::sync::oneshot::channel();
        let receiving = windlass::spawn(receiver);
        next();
        sender.send(7).expect("it is received");
        assert_eq!(host.take(), 1, "a task that becomes ready");
        next();
        assert!(receiving.is_finished());

        let hour = Duration::from_secs(3600);
        let first = windlass::call_later(hour, || {});
        assert_eq!(host.take(), 1, "the first timer");
        event_loop.flush().expect("flush");
        let later = windlass::call_later(2 * hour, || {});
        assert_eq!(host.take(), 0, "a later timer");
        let earlier = windlass::call_later(hour / 2, || {});
        assert_eq!(host.take(), 1, "an earlier timer");
        drop((first, later, earlier));
        next();

        let mut reading = Box::pin(server.read(vec![0; 8]));
        assert!(poll_with(Waker::noop(), reading.as_mut()).is_pending());
        assert_eq!(host.take(), 1, "an operation");
        next();
        drop(reading);
        assert_eq!(host.take(), 1, "its cancel");
        next();

        // Another loop's uses do not concern this one's host.
        let other = case.event_loop();
        other.call_soon(|| {});
        other.run_until_complete(turns(2)).expect("a run");
        assert_eq!(host.take(), 0);
        drop(client);
    });
}

#[test]
fn the_host_is_not_woken_inside_of_turns_but_after_a_run() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let host = host_of(&event_loop);
        let _entered = event_loop.enter();
        let is_kernel = case.is_kernel();
        let task = windlass::spawn(async move {
            let (client, server) = pair().await;
            client.write_all(b"x".to_vec()).await.0.expect("a write");
            server.read(vec![0; 8]).await.0.expect("a read");
            windlass::spawn(turns(3)).await.expect("no panic");
            // A virtual clock does not advance in turns without a wait.
            sleep(Duration::from_micros(if is_kernel { 10 } else { 0 })).await;
        });
        assert_eq!(host.take(), 1);
        while !task.is_finished() {
            event_loop.turn_nowait().expect("a turn");
            assert_eq!(host.take(), 0);
        }
        event_loop.run_until_complete(turns(3)).expect("a run");
        assert_eq!(host.take(), 1, "the host has not seen what the run has left");
        event_loop.set_host_waker(Waker::noop().clone());
        windlass::spawn(async {});
        assert_eq!((host.take(), Arc::strong_count(&host)), (0, 1));
    });
}

#[test]
fn the_hosts_waker_is_called_without_a_borrow() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let errors = exceptions_of(&event_loop);
        let dropped = Rc::new(Cell::new(false));
        let woken = Rc::new(Cell::new(0));
        let waker = waker_with(
            {
                let (event_loop, woken) = (Rc::downgrade(&event_loop), woken.clone());
                move || {
                    woken.set(woken.get() + 1);
                    let event_loop = event_loop.upgrade().expect("it is woken by the loop");
                    // Everything is allowed here, even a turn and another waker.
                    event_loop.call_later(Duration::from_secs(1), || {}).cancel();
                    event_loop.call_soon(|| {});
                    event_loop.flush().expect("flush");
                    event_loop.turn_nowait().expect("a turn");
                    event_loop.set_host_waker(waker_calling(|| panic!("a waker's fault")));
                }
            },
            {
                let dropped = dropped.clone();
                move || dropped.set(true)
            },
        );
        event_loop.set_host_waker(waker);
        let entered = event_loop.enter();
        let task = windlass::spawn(async {});
        assert!(task.is_finished() && dropped.get());
        assert_eq!(woken.get(), 1);
        windlass::call_soon(|| {});
        event_loop.turn_nowait().expect("a turn");
        drop(entered);
        let errors = errors.borrow();
        assert!(errors.len() == 1 && errors[0].contains("the outer loop"), "{errors:?}");
    });
}

/// The waker holds the outer loop's task, which may hold this loop.
#[test]
fn closing_the_loop_drops_the_hosts_waker() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let host = host_of(&event_loop);
        assert_eq!(Arc::strong_count(&host), 2);
        drop(event_loop);
        assert_eq!(Arc::strong_count(&host), 1);
    });
}
