//! User code that calls back into the loop from polls, destructors and wakers.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use windlass::time::sleep;
use windlass::{JoinHandle, call_later, call_soon, counters, promise, spawn};

use crate::panics::run_and_collect_exceptions;
use crate::support::{
    exceptions_of, on_every_driver, pair, poll_with, quiet, turns, waker_calling, waker_cloning, waker_with,
};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);

/// Returns a closure that uses everything the loop offers: it spawns, schedules, cancels, and drops streams, one of
/// them with a read in flight.
async fn reentrant_calls() -> impl Fn() + 'static {
    let (client, server) = pair().await;
    let server = Rc::new(server);
    let reading = spawn({
        let server = server.clone();
        async move { server.read(vec![0; 10]).await.0 }
    });
    let (other_client, other_server) = pair().await;
    let mut read = Box::pin(async move { other_server.read(vec![0; 10]).await.0 });
    assert!(poll_with(Waker::noop(), read.as_mut()).is_pending());
    let waiting = spawn(sleep(Duration::from_secs(3600)));
    let timer = call_later(Duration::from_secs(3600), || unreachable!());
    turns(2).await;
    let once = RefCell::new(Some((client, server, reading, other_client, read, waiting, timer)));
    move || {
        let Some((client, server, reading, other_client, read, waiting, timer)) = once.take() else {
            return;
        };
        drop(spawn(async {}));
        call_soon(|| {});
        call_later(Duration::ZERO, || {});
        drop(spawn(sleep(MS)));
        waiting.cancel();
        drop(waiting);
        timer.cancel();
        drop(read);
        drop(other_client);
        reading.cancel();
        drop(reading);
        drop(server);
        drop(client);
        let _ = counters();
    }
}

#[track_caller]
fn assert_no_exceptions(exceptions: &[String]) {
    assert!(exceptions.is_empty(), "{exceptions:?}");
}

#[test]
fn a_poll_and_a_destructor_may_use_the_loop() {
    struct OnDrop<F: Fn()>(F);
    impl<F: Fn()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), exceptions) = run_and_collect_exceptions(&event_loop, async {
            let reenter = reentrant_calls().await;
            spawn(async move { reenter() }).await.unwrap();
            // In the destructor of a cancelled future, and of a finished one.
            for cancelled in [true, false] {
                let reenter = OnDrop(reentrant_calls().await);
                let task = spawn(async move {
                    let _meddle = reenter;
                    // Long enough to be cancelled first on a loaded machine.
                    sleep(50 * MS).await;
                });
                turns(2).await;
                if cancelled {
                    task.cancel();
                }
                assert_eq!(task.await.is_err(), cancelled);
            }
            // In the destructor of an output, and of a callback.
            let reenter = OnDrop(reentrant_calls().await);
            drop(spawn(async move { reenter }));
            turns(3).await;
            let reenter = OnDrop(reentrant_calls().await);
            let callback = call_soon(move || drop(reenter));
            callback.cancel();
            let reenter = OnDrop(reentrant_calls().await);
            call_soon(move || drop(reenter));
            sleep(5 * MS).await;
            quiet().await;
        });
        assert_no_exceptions(&exceptions);
        // While the loop closes.
        let exceptions = exceptions_of(&event_loop);
        for _ in 0..2 {
            let reenter = event_loop.run_until_complete(reentrant_calls()).unwrap();
            let reenter = OnDrop(reenter);
            event_loop.spawn(async move {
                let _meddle = reenter;
                pending::<()>().await;
            });
        }
        drop(event_loop);
        assert_no_exceptions(&exceptions.borrow());
    });
}

#[test]
fn a_waker_may_use_the_loop_when_woken() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), exceptions) = run_and_collect_exceptions(&event_loop, async {
            let woken = counter();
            let reentrant_waker = async || {
                let (reenter, woken) = (reentrant_calls().await, woken.clone());
                waker_calling(move || {
                    add_one(&woken);
                    reenter();
                })
            };
            let until = async |count| {
                while woken.get() < count {
                    sleep(MS).await;
                }
                assert_eq!(woken.get(), count);
            };
            // By a timer.
            let mut waiting = pin!(sleep(MS));
            assert!(poll_with(&reentrant_waker().await, waiting.as_mut()).is_pending());
            until(1).await;
            // By the completion of an operation.
            let (client, server) = pair().await;
            let mut read = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&reentrant_waker().await, read.as_mut()).is_pending());
            client.write_all("x").await.0.unwrap();
            until(2).await;
            assert_eq!(read.await.0.unwrap(), 1);
            // By the next read of an I/O queue.
            let mut first = Box::pin(server.read(vec![0; 10]));
            assert!(poll_with(Waker::noop(), first.as_mut()).is_pending());
            let mut second = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&reentrant_waker().await, second.as_mut()).is_pending());
            drop(first);
            assert_eq!(woken.get(), 3);
            // By a promise, and by a task that ends.
            let (promise, mut placeholder) = promise();
            assert!(poll_with(&reentrant_waker().await, Pin::new(&mut placeholder)).is_pending());
            promise.resolve(()).unwrap();
            turns(3).await;
            assert_eq!(woken.get(), 4);
            let waker = reentrant_waker().await;
            let mut task = spawn(sleep(MS));
            assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            until(5).await;
            // By the completion of an orphaned operation that a join handle waits for.
            let (_client, server) = pair().await;
            let mut task = spawn(async move { server.read(vec![0; 10]).await.0 });
            let waker = reentrant_waker().await;
            task.cancel();
            assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            until(6).await;
        });
        assert_no_exceptions(&exceptions);
    });
}

#[test]
fn a_waker_may_use_the_loop_when_dropped() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), exceptions) = run_and_collect_exceptions(&event_loop, async {
            let dropped = counter();
            let reentrant_waker = async || {
                let (reenter, dropped) = (reentrant_calls().await, dropped.clone());
                waker_with(
                    || {},
                    move || {
                        add_one(&dropped);
                        reenter();
                    },
                )
            };
            // Replaced in an in-flight operation, then dropped with it.
            let (_client, server) = pair().await;
            {
                let mut read = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(&reentrant_waker().await, read.as_mut()).is_pending());
                assert_eq!(dropped.get(), 0);
                assert!(poll_with(&reentrant_waker().await, read.as_mut()).is_pending());
                assert_eq!(dropped.get(), 1);
            }
            assert_eq!(dropped.get(), 2);
            // In a timer.
            {
                let mut waiting = Box::pin(sleep(Duration::from_secs(3600)));
                assert!(poll_with(&reentrant_waker().await, waiting.as_mut()).is_pending());
                assert!(poll_with(&reentrant_waker().await, waiting.as_mut()).is_pending());
                assert_eq!(dropped.get(), 3);
            }
            assert_eq!(dropped.get(), 4);
            // In an I/O queue.
            {
                let mut first = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(Waker::noop(), first.as_mut()).is_pending());
                let mut second = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(&reentrant_waker().await, second.as_mut()).is_pending());
                assert!(poll_with(&reentrant_waker().await, second.as_mut()).is_pending());
                assert_eq!(dropped.get(), 5);
            }
            assert_eq!(dropped.get(), 6);
            // In a promise and a join handle.
            {
                let (_promise, mut placeholder) = promise::<()>();
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut placeholder)).is_pending());
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut placeholder)).is_pending());
                assert_eq!(dropped.get(), 7);
            }
            turns(3).await;
            assert_eq!(dropped.get(), 8);
            {
                let mut task = spawn(pending::<()>());
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut task)).is_pending());
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut task)).is_pending());
                assert_eq!(dropped.get(), 9);
                task.cancel();
            }
            assert_eq!(dropped.get(), 10);
            sleep(5 * MS).await;
        });
        assert_no_exceptions(&exceptions);
    });
}

#[test]
fn a_waker_may_use_the_loop_when_cloned() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), exceptions) = run_and_collect_exceptions(&event_loop, async {
            let (cloned, woken) = (counter(), counter());
            let reentrant_waker = async || {
                let (reenter, cloned) = (reentrant_calls().await, cloned.clone());
                waker_cloning(&woken, move || {
                    add_one(&cloned);
                    reenter();
                })
            };
            let (client, server) = pair().await;
            let mut read = Box::pin(server.read(vec![0; 10]));
            assert!(poll_with(&reentrant_waker().await, read.as_mut()).is_pending());
            let mut second = Box::pin(server.read(vec![0; 10]));
            for _ in 0..2 {
                assert!(poll_with(&reentrant_waker().await, second.as_mut()).is_pending());
            }
            let mut waiting = Box::pin(sleep(Duration::from_secs(3600)));
            let (_promise, mut placeholder) = promise::<()>();
            let mut task = spawn(pending::<()>());
            for _ in 0..2 {
                assert!(poll_with(&reentrant_waker().await, waiting.as_mut()).is_pending());
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut placeholder)).is_pending());
                assert!(poll_with(&reentrant_waker().await, Pin::new(&mut task)).is_pending());
            }
            assert_eq!(cloned.get(), 9);
            client.write_all("x").await.0.unwrap();
            while woken.get() == 0 {
                turns(1).await;
            }
            assert_eq!(read.await.0.unwrap(), 1);
            task.cancel();
        });
        assert_no_exceptions(&exceptions);
    });
}

/// The awaited event happens inside `Waker::clone`, before the waker is registered: the poll must notice that there is
/// nothing left to wait for. Everything is polled while the loop does not run, so that the clone can run it.
#[test]
fn an_event_during_waker_clone_is_not_lost() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let woken = counter();
        // Runs the loop at the first clone.
        let waker_running = |work: Box<dyn FnOnce() + 'static>| {
            let work = Cell::new(Some(work));
            waker_cloning(&woken, move || {
                if let Some(work) = work.take() {
                    work();
                }
            })
        };
        let turn_until_idle = |event_loop: &Rc<windlass::EventLoop>| {
            while event_loop.counters().in_flight > 0 {
                event_loop.turn().unwrap();
            }
        };
        // An operation completes.
        let (client, server) = event_loop.run_until_complete(pair()).unwrap();
        let mut read = Box::pin(server.read(vec![0; 10]));
        let waker = waker_running(Box::new({
            let event_loop = event_loop.clone();
            move || {
                event_loop.run_until_complete(client.write_all("x")).unwrap().0.unwrap();
                turn_until_idle(&event_loop);
            }
        }));
        match poll_with(&waker, read.as_mut()) {
            Poll::Ready((result, _)) => assert_eq!(result.unwrap(), 1),
            Poll::Pending => panic!("the completion of a read is lost"),
        }
        drop(read);
        // A task ends.
        let mut task = event_loop.spawn(async { 7 });
        let waker = waker_running(Box::new({
            let event_loop = event_loop.clone();
            move || event_loop.turn().unwrap()
        }));
        match poll_with(&waker, Pin::new(&mut task)) {
            Poll::Ready(result) => assert_eq!(result.unwrap(), 7),
            Poll::Pending => panic!("the end of a task is lost"),
        }
        // A timer fires while its waker is being replaced.
        let mut waiting = Box::pin(sleep(MS));
        let poll = async { assert!(poll_with(Waker::noop(), waiting.as_mut()).is_pending()) };
        event_loop.run_until_complete(poll).unwrap();
        let waker = waker_running(Box::new({
            let event_loop = event_loop.clone();
            move || {
                while event_loop.counters().timers > 0 {
                    event_loop.turn().unwrap();
                }
            }
        }));
        assert!(poll_with(&waker, waiting.as_mut()).is_ready(), "a timer is lost");
        // A token is cancelled, before and after its first waker is registered.
        for polled_before in [false, true] {
            let token = windlass::task::CancelToken::new();
            let mut cancelled = token.cancelled();
            if polled_before {
                assert!(poll_with(Waker::noop(), Pin::new(&mut cancelled)).is_pending());
            }
            let waker = waker_running(Box::new(move || token.cancel()));
            assert!(
                poll_with(&waker, Pin::new(&mut cancelled)).is_ready(),
                "a cancel is lost"
            );
        }
        // Bytes are written to an in-memory stream.
        let (one, other) = windlass::io::duplex(16);
        let mut reader = &one;
        let mut read = Box::pin(windlass::io::AsyncRead::read(&mut reader, vec![0; 10]));
        let waker = waker_running(Box::new(move || {
            let mut writer = &other;
            let mut write = pin!(windlass::io::AsyncWrite::write_all(&mut writer, "x"));
            assert!(poll_with(Waker::noop(), write.as_mut()).is_ready());
        }));
        assert!(poll_with(&waker, read.as_mut()).is_ready(), "bytes in memory are lost");
    });
}

/// The read at the head of a stream's queue is dropped while the next read's waker is cloned.
#[test]
fn an_io_queue_advanced_during_waker_clone_wakes_the_next_read() {
    on_every_driver(|case| {
        for polled_before in [false, true] {
            case.run(async {
                let woken = counter();
                let (client, server) = pair().await;
                let server = Rc::new(server);
                let read = || {
                    let server = server.clone();
                    Box::pin(async move { server.read(vec![0; 10]).await })
                };
                let (mut first, mut second) = (read(), read());
                assert!(poll_with(Waker::noop(), first.as_mut()).is_pending());
                if polled_before {
                    assert!(poll_with(Waker::noop(), second.as_mut()).is_pending());
                }
                let first = Cell::new(Some(first));
                let waker = waker_cloning(&woken, move || drop(first.take()));
                assert!(poll_with(&waker, second.as_mut()).is_pending());
                client.write_all("x").await.0.unwrap();
                // A bounded number of turns: a read that is not woken by then never will be.
                for _ in 0..10_000 {
                    if woken.get() > 0 {
                        break;
                    }
                    turns(1).await;
                }
                assert!(woken.get() > 0, "the wakeup is lost");
                assert_eq!(second.await.0.unwrap(), 1);
            });
        }
    });
}

/// The last owner of a loop may be the output of one of its tasks.
#[test]
fn a_task_output_may_close_the_loop() {
    struct Closes(Rc<RefCell<Option<windlass::EventLoop>>>);
    impl Drop for Closes {
        fn drop(&mut self) {
            drop(self.0.take());
        }
    }
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let owned = Rc::new(RefCell::new(None));
        let closes = Closes(owned.clone());
        let task = event_loop.spawn(async move { closes });
        let waiting = event_loop.spawn(pending::<()>());
        event_loop.run_until_complete(turns(3)).unwrap();
        owned.replace(Some(event_loop));
        drop(task);
        assert!(owned.borrow().is_none() && waiting.is_finished());
    });
}

#[test]
fn tasks_may_cancel_each_other_while_dropped() {
    /// Cancels the next task of a chain from its destructor.
    struct Chain(Rc<RefCell<Vec<JoinHandle<()>>>>, Rc<Cell<usize>>);
    impl Drop for Chain {
        fn drop(&mut self) {
            add_one(&self.1);
            if let Some(next) = { self.0.borrow_mut().pop() } {
                next.cancel();
            }
        }
    }
    on_every_driver(|case| {
        for explicit in [true, false] {
            let (chain, drops) = (Rc::default(), counter());
            let event_loop = case.event_loop();
            for _ in 0..50 {
                let link = Chain(Rc::clone(&chain), drops.clone());
                let task = event_loop.spawn(async move {
                    let _link = link;
                    pending::<()>().await;
                });
                chain.borrow_mut().push(task);
            }
            event_loop.run_until_complete(turns(2)).unwrap();
            if explicit {
                let last = chain.borrow_mut().pop().unwrap();
                last.cancel();
                event_loop.run_until_complete(turns(60)).unwrap();
                assert_eq!(drops.get(), 50);
            }
            drop(event_loop);
            assert_eq!(drops.get(), 50);
        }
    });
}
