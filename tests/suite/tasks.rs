//! Tasks: waking and polling, joining, cancelling, dropping.

#![expect(
    clippy::waker_clone_wake,
    reason = "waking by value is an entry of the vtable of its own"
)]

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use windlass::net::TcpListener;
use windlass::task::{Builder, current_id, yield_now};
use windlass::time::sleep;
use windlass::{JoinHandle, call_soon, counters, promise, spawn};

use crate::support::{CountDrop, on_every_driver, pair, poll_with, rounds, turns, waker_calling};

const MS: Duration = Duration::from_millis(1);

pub(crate) fn counter() -> Rc<Cell<usize>> {
    Rc::new(Cell::new(0))
}

pub(crate) fn add_one(count: &Cell<usize>) {
    count.set(count.get() + 1);
}

// Waking and polling.

/// A task that counts its polls, exposes its waker, and ends when `over` is set.
fn counting_task(polls: &Rc<Cell<usize>>, over: &Rc<Cell<bool>>) -> (JoinHandle<()>, Rc<RefCell<Option<Waker>>>) {
    let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
    let (polls, over, shown) = (polls.clone(), over.clone(), waker.clone());
    let task = spawn(poll_fn(move |cx| {
        add_one(&polls);
        shown.replace(Some(cx.waker().clone()));
        match over.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }));
    (task, waker)
}

#[test]
fn any_number_of_wakes_before_a_poll_is_one_poll() {
    on_every_driver(|case| {
        case.run(async {
            let (polls, over) = (counter(), Rc::new(Cell::new(false)));
            let (task, waker) = counting_task(&polls, &over);
            turns(3).await;
            assert_eq!(polls.get(), 1, "polled without a wake");
            for round in 2..20 {
                let waker = waker.borrow().clone().unwrap();
                for _ in 0..round {
                    waker.wake_by_ref();
                    waker.clone().wake();
                }
                turns(5).await;
                assert_eq!(polls.get(), round);
            }
            over.set(true);
            waker.borrow().as_ref().unwrap().wake_by_ref();
            task.await.unwrap();
        });
    });
}

#[test]
fn a_wake_during_a_poll_schedules_exactly_one_more_poll() {
    on_every_driver(|case| {
        case.run(async {
            let polls = counter();
            let task = spawn({
                let polls = polls.clone();
                poll_fn(move |cx| {
                    add_one(&polls);
                    if polls.get() == 1 {
                        for _ in 0..10 {
                            cx.waker().wake_by_ref();
                        }
                    }
                    Poll::<()>::Pending
                })
            });
            turns(5).await;
            assert_eq!(polls.get(), 2);
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn a_wake_after_the_end_is_harmless() {
    on_every_driver(|case| {
        let (polls, over) = (counter(), Rc::new(Cell::new(false)));
        let waker = case.run({
            let (polls, over) = (polls.clone(), over.clone());
            async move {
                let (task, waker) = counting_task(&polls, &over);
                turns(2).await;
                over.set(true);
                waker.borrow().as_ref().unwrap().wake_by_ref();
                task.await.unwrap();
                let last = waker.take().unwrap();
                last.wake_by_ref();
                last.clone().wake();
                turns(2).await;
                assert_eq!(polls.get(), 2);

                // The same for a cancelled task whose handle was dropped.
                let (task, waker) = counting_task(&polls, &over);
                task.cancel();
                drop(task);
                turns(2).await;
                assert!(waker.borrow().is_none(), "cancelled before its first poll");
                last
            }
        });
        // And after the loop was dropped.
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(polls.get(), 2);
    });
}

#[test]
fn wakers_of_one_task_are_equal() {
    on_every_driver(|case| {
        case.run(poll_fn(|cx| {
            let waker = cx.waker().clone();
            assert!(waker.will_wake(cx.waker()));
            assert!(!waker.will_wake(Waker::noop()));
            Poll::Ready(())
        }));
    });
}

// Joining.

#[test]
fn a_join_handle_returns_the_result_before_and_after_the_end() {
    on_every_driver(|case| {
        case.run(async {
            let early = spawn(async { String::from("early") });
            assert!(!early.is_finished());
            turns(2).await;
            assert!(early.is_finished());
            assert_eq!(early.await.unwrap(), "early");
            let late = spawn(async {
                sleep(MS).await;
                String::from("late")
            });
            assert_eq!(late.await.unwrap(), "late");
        });
    });
}

#[test]
fn the_last_waker_to_poll_a_handle_is_woken() {
    on_every_driver(|case| {
        case.run(async {
            let mut task = spawn(turns(3));
            let (old, new) = (counter(), counter());
            for count in [&old, &new] {
                let count = count.clone();
                let waker = waker_calling(move || add_one(&count));
                assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            }
            turns(5).await;
            assert_eq!((old.get(), new.get()), (0, 1));
            task.await.unwrap();
        });
    });
}

#[test]
fn a_handle_returns_its_result_once() {
    on_every_driver(|case| {
        case.run(async {
            let mut task = spawn(async { 1 });
            assert_eq!((&mut task).await.unwrap(), 1);
            let again = catch_unwind(AssertUnwindSafe(|| {
                poll_with(Waker::noop(), Pin::new(&mut task)).is_ready()
            }));
            assert!(again.is_err());
        });
    });
}

#[test]
fn tasks_have_ids_and_names() {
    on_every_driver(|case| {
        case.run(async {
            assert!(current_id().is_some());
            let task = Builder::new().name("counter").spawn(async { current_id() });
            let other = spawn(async { current_id() });
            assert_ne!(task.id(), other.id());
            assert_eq!((task.name(), other.name()), (Some("counter"), None));
            assert!(format!("{task:?}").contains("counter"));
            let (id, other_id) = (task.id(), other.id());
            assert_eq!(task.await.unwrap(), Some(id));
            assert_eq!(other.await.unwrap(), Some(other_id));
            let (promise, placeholder) = promise();
            call_soon(move || promise.resolve(current_id()).unwrap());
            assert_eq!(placeholder.await.unwrap(), None, "a callback is not a task");
        });
        assert_eq!(current_id(), None);
    });
}

#[test]
fn a_detached_task_runs_on() {
    on_every_driver(|case| {
        case.run(async {
            let drops = counter();
            let held = CountDrop(drops.clone());
            drop(spawn(async move {
                sleep(MS).await;
                held
            }));
            assert_eq!(counters().tasks, 2);
            while drops.get() == 0 {
                sleep(MS).await;
            }
            assert_eq!((drops.get(), counters().tasks), (1, 1));
        });
    });
}

#[test]
fn a_task_may_own_its_own_handle() {
    on_every_driver(|case| {
        case.run(async {
            for cancelled in [false, true] {
                let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
                let drops = counter();
                let held = CountDrop(drops.clone());
                let task = spawn({
                    let own = own.clone();
                    async move {
                        let _held = held;
                        yield_now().await;
                        let own = own.take().unwrap();
                        if cancelled {
                            own.cancel();
                        }
                        yield_now().await;
                        assert!(!cancelled, "the task ran past its suspension point");
                    }
                });
                own.replace(Some(task));
                turns(6).await;
                assert_eq!(drops.get(), 1);
            }
            assert_eq!(counters().tasks, 1);
        });
    });
}

// Cancelling.

#[test]
fn a_cancel_before_the_first_poll_drops_the_future_unpolled() {
    on_every_driver(|case| {
        case.run(async {
            let (drops, polls) = (counter(), counter());
            let held = CountDrop(drops.clone());
            let task = spawn({
                let polls = polls.clone();
                async move {
                    let _held = held;
                    add_one(&polls);
                }
            });
            task.cancel();
            task.cancel();
            let error = task.await.unwrap_err();
            assert!(error.is_cancelled() && !error.is_panic());
            assert!(error.try_into_panic().is_err());
            assert_eq!((drops.get(), polls.get()), (1, 0));
        });
    });
}

#[test]
fn a_cancel_while_waiting_ends_the_task_in_the_next_turn() {
    on_every_driver(|case| {
        case.run(async {
            let drops = counter();
            let held = CountDrop(drops.clone());
            let task = spawn(async move {
                let _held = held;
                sleep(Duration::from_secs(3600)).await;
            });
            turns(2).await;
            assert_eq!(counters().timers, 1);
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!((drops.get(), counters().timers), (1, 0));
        });
    });
}

#[test]
fn a_task_that_finishes_in_the_poll_of_its_cancel_keeps_its_result() {
    on_every_driver(|case| {
        case.run(async {
            let own: Rc<RefCell<Option<JoinHandle<u32>>>> = Rc::default();
            let task = spawn({
                let own = own.clone();
                async move {
                    own.borrow().as_ref().unwrap().cancel();
                    7
                }
            });
            own.replace(Some(task));
            turns(2).await;
            assert_eq!(own.take().unwrap().await.unwrap(), 7);

            let task = spawn(async { 8 });
            turns(2).await;
            task.cancel();
            turns(2).await;
            assert_eq!(task.await.unwrap(), 8, "the result was lost");
        });
    });
}

/// The number of operations in flight once the listener of a pair is closed too.
async fn in_flight_at_rest() -> usize {
    sleep(5 * MS).await;
    counters().in_flight
}

#[test]
fn a_cancelled_read_is_joined_after_its_completion() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let before = in_flight_at_rest().await;
            for _ in 0..rounds().div_ceil(5).min(200) {
                let task = spawn({
                    let server = server.clone();
                    async move { server.read(vec![0; 100]).await.0 }
                });
                turns(2).await;
                assert_eq!(counters().in_flight, before + 1);
                task.cancel();
                assert!(!task.is_finished());
                // In the turn of the cancel the future is dropped already, but the driver has not been asked to cancel
                // yet.
                let (promise, placeholder) = promise();
                let task = Rc::new(task);
                call_soon({
                    let task = task.clone();
                    move || promise.resolve((task.is_finished(), counters().in_flight)).unwrap()
                });
                assert_eq!(placeholder.await, Ok((false, before + 1)));
                let task = Rc::into_inner(task).unwrap();
                assert!(task.await.unwrap_err().is_cancelled());
                assert_eq!(counters().in_flight, before, "the kernel still uses the buffer");
            }
            client.write_all("still alive").await.0.unwrap();
            let (result, buf) = server.read_exact(vec![0; 11]).await;
            assert_eq!((result.unwrap(), &buf[..]), ((), &b"still alive"[..]));
        });
    });
}

#[test]
fn a_task_with_an_orphaned_read_is_joined_after_its_completion() {
    on_every_driver(|case| {
        case.run(async {
            let (_client, server) = pair().await;
            let before = in_flight_at_rest().await;
            let task = spawn(async move {
                {
                    let mut read = pin!(server.read(vec![0; 100]));
                    assert!(poll_with(Waker::noop(), read.as_mut()).is_pending());
                }
                server
            });
            let server = task.await.unwrap();
            assert_eq!(counters().in_flight, before);
            drop(server);
        });
    });
}

/// In its own process: a child that another test spawns shares the listener between fork and exec.
#[test]
fn the_port_of_a_cancelled_server_is_free_once_it_is_joined() {
    let test = "tasks::the_port_of_a_cancelled_server_is_free_once_it_is_joined";
    match cfg!(miri) {
        true => free_ports(),
        false => crate::child::in_own_process(test, &[], free_ports),
    }
}

fn free_ports() {
    on_every_driver(|case| {
        case.run(async {
            // A separate address: on the common one another test might get the port in between.
            let [_, _, high, low] = std::process::id().to_be_bytes();
            let listener = TcpListener::bind((std::net::Ipv4Addr::new(127, 77, high, low), 0))
                .await
                .unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            // A listener without a pending accept closes at once; the others close after their operations complete.
            for round in 0..rounds().div_ceil(5).min(50) {
                let listener = TcpListener::bind(addr).await.expect("the port is free again");
                let server = spawn(async move {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        spawn(async move {
                            let _ = stream.read_managed().await;
                        });
                    }
                });
                let client = match round % 2 {
                    0 => Some(windlass::net::TcpStream::connect(addr).await.unwrap()),
                    _ => None,
                };
                turns(3).await;
                server.cancel();
                assert!(server.await.unwrap_err().is_cancelled());
                drop(client);
            }
        });
    });
}

// Dropping.

#[test]
fn futures_and_outputs_are_dropped_once() {
    /// A future that owns one counter and returns another.
    struct Giving {
        _held: CountDrop,
        output: Option<CountDrop>,
        polls_left: usize,
    }
    impl Future for Giving {
        type Output = CountDrop;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CountDrop> {
            if self.polls_left == 0 {
                return Poll::Ready(self.output.take().unwrap());
            }
            self.polls_left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    on_every_driver(|case| {
        let (held, output) = (counter(), counter());
        let giving = || Giving {
            _held: CountDrop(held.clone()),
            output: Some(CountDrop(output.clone())),
            polls_left: 1,
        };
        let expect = |drops: usize| assert_eq!((held.get(), output.get()), (drops, drops));
        let event_loop = case.event_loop();
        let handles = event_loop
            .run_until_complete(async {
                let kept = spawn(giving()).await.unwrap();
                assert_eq!(
                    (held.get(), output.get()),
                    (1, 0),
                    "the future is dropped before its output is returned"
                );
                drop(kept);
                expect(1);
                // Dropped handles: before the first poll, between polls, after the end.
                drop(spawn(giving()));
                turns(4).await;
                expect(2);
                let task = spawn(giving());
                turns(1).await;
                drop(task);
                turns(4).await;
                expect(3);
                let task = spawn(giving());
                turns(4).await;
                assert_eq!((held.get(), output.get()), (4, 3), "the handle owns the output");
                drop(task);
                expect(4);
                // Cancelled: before the first poll, between polls; handle kept, handle dropped.
                let task = spawn(giving());
                task.cancel();
                turns(2).await;
                expect(5);
                assert!(task.await.is_err());
                let task = spawn(giving());
                turns(1).await;
                task.cancel();
                drop(task);
                turns(2).await;
                expect(6);
                // Left for the end of the loop: one finished, one never polled, each with its handle outside.
                let finished = spawn(giving());
                turns(4).await;
                (finished, spawn(giving()))
            })
            .unwrap();
        assert_eq!((held.get(), output.get()), (7, 6));
        drop(event_loop);
        assert_eq!(
            (held.get(), output.get()),
            (8, 7),
            "a handle keeps its output after the loop closed"
        );
        drop(handles);
        expect(8);
    });
}

#[test]
fn the_loop_frees_finished_tasks() {
    on_every_driver(|case| {
        case.run(async {
            for round in 0..rounds() {
                let task = spawn(yield_now());
                if round % 3 == 0 {
                    task.cancel();
                }
                let _ = task.await;
            }
            let counters = counters();
            assert_eq!((counters.tasks, counters.timers, counters.ops), (1, 0, 0));
        });
    });
}
