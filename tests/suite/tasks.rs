//! Tasks: wakes and polls, joining and cancelling, drops, panics, and code that calls back into the loop.

#![expect(
    clippy::waker_clone_wake,
    reason = "waking by value is an entry of the vtable of its own"
)]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use windlass::io::{IoBuf, IoBufMut};
use windlass::net::TcpListener;
use windlass::task::{Builder, current_id, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{EventLoop, JoinHandle, call_later, call_soon, counters, promise, spawn};

use crate::support::{
    CountDrop, PanicOnDrop, exceptions_of, on_every_driver, pair, poll_with, rounds, waker_calling, waker_with,
};

const MS: Duration = Duration::from_millis(1);

async fn turns(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

fn counter() -> Rc<Cell<usize>> {
    Rc::new(Cell::new(0))
}

fn add_one(count: &Cell<usize>) {
    count.set(count.get() + 1);
}

// Wakes and polls.

/// A task that counts its polls, shows its waker, and ends when it is told to.
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
            assert_eq!(polls.get(), 1, "nobody woke it");
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
fn a_wake_during_a_poll_schedules_exactly_one_more() {
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

                // The same for one that was cancelled, and whose handle is gone.
                let (task, waker) = counting_task(&polls, &over);
                task.cancel();
                drop(task);
                turns(2).await;
                assert!(waker.borrow().is_none(), "cancelled before its first poll");
                last
            }
        });
        // And when the loop is gone.
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(polls.get(), 2);
    });
}

#[test]
fn wakers_of_one_task_know_each_other() {
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
fn a_join_handle_gives_the_result_whenever_it_is_asked() {
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
            let (stale, fresh) = (counter(), counter());
            for count in [&stale, &fresh] {
                let count = count.clone();
                let waker = waker_calling(move || add_one(&count));
                assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            }
            turns(5).await;
            assert_eq!((stale.get(), fresh.get()), (0, 1));
            task.await.unwrap();
        });
    });
}

#[test]
fn a_handle_gives_its_result_once() {
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
fn tasks_have_numbers_and_names() {
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
            assert_eq!(placeholder.await.unwrap(), None, "a callback is no task");
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
            sleep(5 * MS).await;
            assert_eq!(drops.get(), 1, "its result is dropped");
            assert_eq!(counters().tasks, 1);
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
                        assert!(!cancelled, "it ends at its next suspension point");
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
            assert_eq!(task.await.unwrap(), 8, "it had finished");
        });
    });
}

/// How many flights there are when the listener of a pair has gone too.
async fn in_air_at_rest() -> usize {
    sleep(5 * MS).await;
    counters().in_air
}

#[test]
fn a_cancelled_read_is_joined_when_it_has_landed() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let before = in_air_at_rest().await;
            for _ in 0..rounds().min(200) {
                let task = spawn({
                    let server = server.clone();
                    async move { server.read(vec![0; 100]).await.0 }
                });
                turns(2).await;
                assert_eq!(counters().in_air, before + 1);
                task.cancel();
                assert!(!task.is_finished());
                assert!(task.await.unwrap_err().is_cancelled());
                assert_eq!(counters().in_air, before, "the kernel has let go of the buffer");
            }
            client.write_all("still alive").await.0.unwrap();
            let (result, buf) = server.read(vec![0; 100]).await;
            assert_eq!((result.unwrap(), &buf[..]), (11, &b"still alive"[..]));
        });
    });
}

#[test]
fn a_task_that_ends_with_a_dropped_read_in_the_air_is_joined_when_it_has_landed() {
    on_every_driver(|case| {
        case.run(async {
            let (_client, server) = pair().await;
            let before = in_air_at_rest().await;
            let task = spawn(async move {
                {
                    let mut read = pin!(server.read(vec![0; 100]));
                    assert!(poll_with(Waker::noop(), read.as_mut()).is_pending());
                }
                server
            });
            let server = task.await.unwrap();
            assert_eq!(counters().in_air, before);
            drop(server);
        });
    });
}

#[test]
fn the_port_of_a_cancelled_server_is_free_once_it_is_joined() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            // A listener with no accept under way closes at once; the others when their flights have landed.
            for round in 0..rounds().min(50) {
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

// Drops.

#[test]
fn futures_and_outputs_are_dropped_once() {
    /// A future that holds one thing and gives another.
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
                    "the future goes before its output is given"
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
                assert_eq!((held.get(), output.get()), (4, 3), "the output waits for its handle");
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
                // For the end of the loop: one finished, one unpolled, each with its handle outside.
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
            "an output outlives its loop with its handle"
        );
        drop(handles);
        expect(8);
    });
}

// Panics: the loop lives, the others finish, and somebody is told.

/// Runs the body, lets others finish beside it, and gives what the exception handler was told.
fn told_of<F: Future>(event_loop: &EventLoop, body: F) -> (F::Output, Vec<String>) {
    let told = exceptions_of(event_loop);
    let other = event_loop.spawn(async {
        sleep(10 * MS).await;
        let (client, server) = pair().await;
        client.write_all("others finish").await.0.unwrap();
        server.read_exact(vec![0; 13]).await.0.unwrap();
    });
    let output = event_loop.run_until_complete(async {
        let output = body.await;
        other.await.expect("the others finish");
        output
    });
    (output.expect("the loop lives"), told.take())
}

#[track_caller]
fn assert_told(told: &[String], parts: &[&str]) {
    assert_eq!(told.len(), 1, "{told:?}");
    for part in parts {
        assert!(told[0].contains(part), "{told:?}");
    }
}

#[test]
fn a_panicking_task_gives_its_payload_to_its_handle() {
    on_every_driver(|case| {
        let (error, told) = told_of(&case.event_loop(), async {
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
        assert!(told.is_empty(), "who joined it knows: {told:?}");
    });
}

#[test]
fn the_panic_of_a_task_that_nobody_joins_is_told() {
    on_every_driver(|case| {
        // Detached before it panics.
        let ((), told) = told_of(&case.event_loop(), async {
            drop(Builder::new().name("doomed").spawn(async { panic!("detached") }));
            turns(3).await;
        });
        assert_told(&told, &["detached", "'doomed'", "tasks.rs"]);
        // Detached afterwards.
        let ((), told) = told_of(&case.event_loop(), async {
            let task = spawn(async { panic!("dropped handle") });
            turns(3).await;
            assert!(task.is_finished());
            drop(task);
        });
        assert_told(&told, &["dropped handle", "tasks.rs"]);
    });
}

#[test]
fn a_panicking_callback_is_told_with_its_place() {
    on_every_driver(|case| {
        let ((), told) = told_of(&case.event_loop(), async {
            call_soon(|| panic!("soon"));
            turns(2).await;
        });
        assert_told(&told, &["soon", "tasks.rs"]);
        let ((), told) = told_of(&case.event_loop(), async {
            call_later(MS, || panic!("later"));
            sleep(5 * MS).await;
        });
        assert_told(&told, &["later", "tasks.rs"]);
        let ((), told) = told_of(&case.event_loop(), async {
            let handle = windlass::LoopHandle::current().unwrap();
            handle.call_soon_threadsafe(|| panic!("from elsewhere")).unwrap();
            turns(3).await;
        });
        assert_told(&told, &["from elsewhere"]);
    });
}

#[test]
fn a_panicking_waker_is_told() {
    on_every_driver(|case| {
        let panics = || waker_calling(|| panic!("waker down"));
        // Of a sleep.
        let ((), told) = told_of(&case.event_loop(), async {
            let mut waiting = pin!(sleep(MS));
            assert!(poll_with(&panics(), waiting.as_mut()).is_pending());
            sleep(5 * MS).await;
            assert!(poll_with(Waker::noop(), waiting.as_mut()).is_ready());
        });
        assert_told(&told, &["waker down"]);
        // Of a join handle.
        let ((), told) = told_of(&case.event_loop(), async {
            let mut task = spawn(yield_now());
            assert!(poll_with(&panics(), Pin::new(&mut task)).is_pending());
            turns(4).await;
            task.await.unwrap();
        });
        assert_told(&told, &["waker down"]);
        // Of a promise.
        let ((), told) = told_of(&case.event_loop(), async {
            let (promise, mut placeholder) = promise();
            assert!(poll_with(&panics(), Pin::new(&mut placeholder)).is_pending());
            promise.resolve(1).unwrap();
            turns(4).await;
            assert_eq!(placeholder.await, Ok(1));
        });
        assert_told(&told, &["waker down"]);
        // Of a read.
        let ((), told) = told_of(&case.event_loop(), async {
            let (client, server) = pair().await;
            let mut read = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&panics(), read.as_mut()).is_pending());
            client.write_all("x").await.0.unwrap();
            sleep(5 * MS).await;
            assert_eq!(read.await.0.unwrap(), 1);
        });
        assert_told(&told, &["waker down"]);
        // Of a handle that waits for an orphan.
        let ((), told) = told_of(&case.event_loop(), async {
            let (_client, server) = pair().await;
            let mut task = spawn(async move { server.read(vec![0; 10]).await.0 });
            turns(2).await;
            task.cancel();
            assert!(poll_with(&panics(), Pin::new(&mut task)).is_pending());
            sleep(5 * MS).await;
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_told(&told, &["waker down"]);
    });
}

#[test]
fn a_panicking_waker_in_a_lane_does_not_hurt_who_held_it() {
    on_every_driver(|case| {
        let ((), told) = told_of(&case.event_loop(), async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let first = spawn({
                let server = server.clone();
                async move { server.read(vec![0; 1]).await.0.unwrap() }
            });
            turns(2).await;
            let mut second = pin!(server.read(vec![0; 1]));
            let panics = waker_calling(|| panic!("waker down"));
            assert!(poll_with(&panics, second.as_mut()).is_pending());
            client.write_all("xy").await.0.unwrap();
            assert_eq!(first.await.expect("it did not panic"), 1);
            assert_eq!(second.await.0.unwrap(), 1);
        });
        assert_told(&told, &["waker down"]);
    });
}

/// A buffer whose destructor panics.
struct PanickingBuf {
    bytes: Vec<u8>,
    _bomb: PanicOnDrop,
}

// SAFETY: as for the vector inside.
unsafe impl IoBuf for PanickingBuf {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as for the vector inside.
unsafe impl IoBufMut for PanickingBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.set_len(len) }
    }
}

#[test]
fn a_panicking_destructor_is_told() {
    /// A future that is done at once.
    struct Done(#[expect(dead_code, reason = "its drop matters")] PanicOnDrop);
    impl Future for Done {
        type Output = u32;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
            Poll::Ready(6)
        }
    }
    on_every_driver(|case| {
        // Of a finished task's future.
        let ((), told) = told_of(&case.event_loop(), async {
            assert_eq!(spawn(Done(PanicOnDrop("future down"))).await.unwrap(), 6);
        });
        assert_told(&told, &["future down"]);
        // Of a cancelled task's future.
        let ((), told) = told_of(&case.event_loop(), async {
            let bomb = PanicOnDrop("cancelled down");
            let task = spawn(async move {
                let _bomb = bomb;
                pending::<()>().await;
            });
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_told(&told, &["cancelled down"]);
        // Of an output that nobody takes: handle dropped before, and after.
        let ((), told) = told_of(&case.event_loop(), async {
            drop(spawn(async { PanicOnDrop("output down") }));
            turns(3).await;
        });
        assert_told(&told, &["output down"]);
        let ((), told) = told_of(&case.event_loop(), async {
            let task = spawn(async { PanicOnDrop("output down") });
            turns(3).await;
            drop(task);
        });
        assert_told(&told, &["output down"]);
        // Of a buffer that a dropped read leaves behind.
        let ((), told) = told_of(&case.event_loop(), async {
            let (_client, server) = pair().await;
            let buf = PanickingBuf {
                bytes: Vec::with_capacity(10),
                _bomb: PanicOnDrop("buffer down"),
            };
            assert!(timeout(MS, server.read(buf)).await.is_err());
            drop(server);
            sleep(5 * MS).await;
        });
        assert_told(&told, &["buffer down"]);
        // Of what a closing loop drops.
        let event_loop = case.event_loop();
        let told = exceptions_of(&event_loop);
        let bombs = ["task down", "soon down", "later down", "mail down"].map(PanicOnDrop);
        let [task, soon, later, mail] = bombs;
        event_loop.spawn(async move { drop(task) });
        event_loop.call_soon(move || drop(soon));
        event_loop.call_later(MS, move || drop(later));
        event_loop.handle().call_soon_threadsafe(move || drop(mail)).unwrap();
        drop(event_loop);
        assert_eq!(told.borrow().len(), 4, "{told:?}");
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
                panic!("the handler too");
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
        let ((), told) = told_of(&case.event_loop(), async {
            drop(spawn(async { panic_any(PanicOnDrop("payload down")) }));
            call_soon(|| panic_any(PanicOnDrop("payload down")));
            turns(3).await;
        });
        assert_eq!(told.len(), 2, "{told:?}");
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
        event_loop.call_soon(|| panic!("told"));
        event_loop.call_soon(|| panic!("told to the next handler"));
        event_loop.run_until_complete(turns(3)).unwrap();
        assert!(done.get());
    });
}

// Foreign code that calls back into the loop.

/// Does everything that the loop offers to code inside of it. Streams go, a read under way among them.
async fn meddling() -> impl Fn() + 'static {
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
fn assert_meddling_was_harmless(told: &[String]) {
    assert!(told.is_empty(), "{told:?}");
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
        let ((), told) = told_of(&event_loop, async {
            let meddle = meddling().await;
            spawn(async move { meddle() }).await.unwrap();
            // In the destructor of a future that is cancelled, and of one that is done.
            for cancelled in [true, false] {
                let meddle = OnDrop(meddling().await);
                let task = spawn(async move {
                    let _meddle = meddle;
                    sleep(MS).await;
                });
                turns(2).await;
                if cancelled {
                    task.cancel();
                }
                assert_eq!(task.await.is_err(), cancelled);
            }
            // Of an output, and of a callback.
            let meddle = OnDrop(meddling().await);
            drop(spawn(async move { meddle }));
            turns(3).await;
            let meddle = OnDrop(meddling().await);
            let callback = call_soon(move || drop(meddle));
            callback.cancel();
            let meddle = OnDrop(meddling().await);
            call_soon(move || drop(meddle));
            sleep(5 * MS).await;
            assert_eq!(counters().in_air, 0);
        });
        assert_meddling_was_harmless(&told);
        // While the loop closes.
        let told = exceptions_of(&event_loop);
        for _ in 0..2 {
            let meddle = event_loop.run_until_complete(meddling()).unwrap();
            let meddle = OnDrop(meddle);
            event_loop.spawn(async move {
                let _meddle = meddle;
                pending::<()>().await;
            });
        }
        drop(event_loop);
        assert_meddling_was_harmless(&told.borrow());
    });
}

#[test]
fn a_waker_may_use_the_loop_when_it_is_woken() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), told) = told_of(&event_loop, async {
            let woken = counter();
            let meddling_waker = async || {
                let (meddle, woken) = (meddling().await, woken.clone());
                waker_calling(move || {
                    add_one(&woken);
                    meddle();
                })
            };
            // By a timer.
            let mut waiting = pin!(sleep(MS));
            assert!(poll_with(&meddling_waker().await, waiting.as_mut()).is_pending());
            sleep(5 * MS).await;
            assert_eq!(woken.get(), 1);
            // By a landing.
            let (client, server) = pair().await;
            let mut read = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&meddling_waker().await, read.as_mut()).is_pending());
            client.write_all("x").await.0.unwrap();
            sleep(5 * MS).await;
            assert_eq!(woken.get(), 2);
            assert_eq!(read.await.0.unwrap(), 1);
            // By a lane that is handed over.
            let mut first = Box::pin(server.read(vec![0; 10]));
            assert!(poll_with(Waker::noop(), first.as_mut()).is_pending());
            let mut second = pin!(server.read(vec![0; 10]));
            assert!(poll_with(&meddling_waker().await, second.as_mut()).is_pending());
            drop(first);
            assert_eq!(woken.get(), 3);
            // By a promise, and by a task that ends.
            let (promise, mut placeholder) = promise();
            assert!(poll_with(&meddling_waker().await, Pin::new(&mut placeholder)).is_pending());
            promise.resolve(()).unwrap();
            turns(3).await;
            assert_eq!(woken.get(), 4);
            let waker = meddling_waker().await;
            let mut task = spawn(sleep(MS));
            assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            sleep(5 * MS).await;
            assert_eq!(woken.get(), 5);
            // By the landing of an orphan that a task waits for.
            let (_client, server) = pair().await;
            let mut task = spawn(async move { server.read(vec![0; 10]).await.0 });
            let waker = meddling_waker().await;
            task.cancel();
            assert!(poll_with(&waker, Pin::new(&mut task)).is_pending());
            sleep(5 * MS).await;
            assert_eq!(woken.get(), 6);
        });
        assert_meddling_was_harmless(&told);
    });
}

#[test]
fn a_waker_may_use_the_loop_when_it_is_dropped() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let ((), told) = told_of(&event_loop, async {
            let dropped = counter();
            let meddling_waker = async || {
                let (meddle, dropped) = (meddling().await, dropped.clone());
                waker_with(
                    || {},
                    move || {
                        add_one(&dropped);
                        meddle();
                    },
                )
            };
            // Replaced in a flight, then dropped with it.
            let (_client, server) = pair().await;
            {
                let mut read = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(&meddling_waker().await, read.as_mut()).is_pending());
                assert_eq!(dropped.get(), 0);
                assert!(poll_with(&meddling_waker().await, read.as_mut()).is_pending());
                assert_eq!(dropped.get(), 1);
            }
            assert_eq!(dropped.get(), 2);
            // In a timer.
            {
                let mut waiting = Box::pin(sleep(Duration::from_secs(3600)));
                assert!(poll_with(&meddling_waker().await, waiting.as_mut()).is_pending());
                assert!(poll_with(&meddling_waker().await, waiting.as_mut()).is_pending());
                assert_eq!(dropped.get(), 3);
            }
            assert_eq!(dropped.get(), 4);
            // In a lane's queue.
            {
                let mut first = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(Waker::noop(), first.as_mut()).is_pending());
                let mut second = Box::pin(server.read(vec![0; 10]));
                assert!(poll_with(&meddling_waker().await, second.as_mut()).is_pending());
                assert!(poll_with(&meddling_waker().await, second.as_mut()).is_pending());
                assert_eq!(dropped.get(), 5);
            }
            assert_eq!(dropped.get(), 6);
            // In a promise and a join handle.
            {
                let (_promise, mut placeholder) = promise::<()>();
                assert!(poll_with(&meddling_waker().await, Pin::new(&mut placeholder)).is_pending());
                assert!(poll_with(&meddling_waker().await, Pin::new(&mut placeholder)).is_pending());
                assert_eq!(dropped.get(), 7);
            }
            turns(3).await;
            assert_eq!(dropped.get(), 8);
            {
                let mut task = spawn(pending::<()>());
                assert!(poll_with(&meddling_waker().await, Pin::new(&mut task)).is_pending());
                assert!(poll_with(&meddling_waker().await, Pin::new(&mut task)).is_pending());
                assert_eq!(dropped.get(), 9);
                task.cancel();
            }
            assert_eq!(dropped.get(), 10);
            sleep(5 * MS).await;
        });
        assert_meddling_was_harmless(&told);
    });
}

#[test]
fn tasks_may_end_each_other_while_they_are_dropped() {
    /// Ends the next task of a chain, from a destructor.
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

#[test]
fn the_loop_forgets_tasks_that_are_done() {
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
            assert_eq!((counters.tasks, counters.timers, counters.flights), (1, 0, 0));
        });
    });
}
