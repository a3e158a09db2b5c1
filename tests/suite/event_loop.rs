//! asyncio's contract: the order of a turn, callbacks and their handles, running and stopping; and that nobody starves.

#![expect(
    clippy::waker_clone_wake,
    reason = "waking by value is an entry of the vtable of its own"
)]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};
use windlass::{EventLoop, call_soon, counters, spawn};

use crate::support::{Case, CountDrop, exceptions_of, on_every_driver, on_every_kernel_driver, pair, rounds};

type Log = Rc<RefCell<Vec<u32>>>;

fn log() -> Log {
    Log::default()
}

fn writes(log: &Log, entry: u32) -> impl FnOnce() + use<> {
    let log = log.clone();
    move || log.borrow_mut().push(entry)
}

// The order of a turn.

#[test]
fn a_turn_runs_what_was_ready_in_order_and_leaves_what_it_schedules_for_the_next() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let log = log();
        event_loop.call_soon({
            let (first, fourth) = (writes(&log, 1), writes(&log, 4));
            move || {
                first();
                call_soon(fourth);
            }
        });
        event_loop.call_soon(writes(&log, 2));
        event_loop.call_soon(writes(&log, 3));
        event_loop.turn().unwrap();
        assert_eq!(*log.borrow(), [1, 2, 3]);
        event_loop.turn().unwrap();
        assert_eq!(*log.borrow(), [1, 2, 3, 4]);
    });
}

#[test]
fn tasks_and_callbacks_share_one_order() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let log = log();
        for entry in 0..rounds() as u32 {
            let write = writes(&log, entry);
            match entry % 3 {
                0 => drop(event_loop.call_soon(write)),
                1 => drop(event_loop.spawn(async move { write() })),
                _ => drop(event_loop.call_soon(write)),
            }
        }
        event_loop.turn().unwrap();
        assert!(log.borrow().iter().copied().eq(0..rounds() as u32));
    });
}

#[test]
fn a_callback_that_schedules_itself_runs_once_per_turn() {
    fn again(count: Rc<Cell<u32>>) {
        count.set(count.get() + 1);
        if count.get() < 10_000 {
            call_soon(move || again(count));
        }
    }
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let count = Rc::new(Cell::new(0));
        event_loop.call_soon({
            let count = count.clone();
            move || again(count)
        });
        for turns in 1..=10 {
            event_loop.turn().unwrap();
            assert_eq!(count.get(), turns);
        }
    });
}

#[test]
fn the_counters_tell_what_is_scheduled() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        event_loop.call_soon(|| {});
        drop(event_loop.spawn(async {}));
        event_loop.call_later(Duration::from_secs(3600), || {});
        let counters = event_loop.counters();
        assert_eq!((counters.ready, counters.tasks, counters.timers), (2, 1, 1));
        event_loop.turn().unwrap();
        let counters = event_loop.counters();
        assert_eq!((counters.ready, counters.tasks, counters.timers), (0, 0, 1));
        assert_eq!((counters.turns, counters.ran), (1, 2));
    });
}

// Handles.

#[test]
fn a_cancelled_callback_drops_its_captures_at_once_and_does_not_run() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let drops = Rc::new(Cell::new(0));
        let ran = Rc::new(Cell::new(false));
        let callback = || {
            let (held, ran) = (CountDrop(drops.clone()), ran.clone());
            move || {
                let _held = held;
                ran.set(true);
            }
        };
        let soon = event_loop.call_soon(callback());
        let later = event_loop.call_later(Duration::ZERO, callback());
        let at = event_loop.call_at(event_loop.time(), callback());
        assert!(!soon.cancelled() && !later.cancelled() && !at.cancelled());
        soon.cancel();
        assert_eq!(drops.get(), 1, "dropped by the cancel, not by a turn");
        later.cancel();
        at.cancel();
        assert_eq!(drops.get(), 3);
        assert!(soon.cancelled() && later.cancelled() && at.cancelled());
        assert_eq!(event_loop.counters().timers, 0);
        soon.cancel();
        later.cancel();
        event_loop.call_soon(|| {});
        event_loop.turn().unwrap();
        assert!(!ran.get());
        assert_eq!(drops.get(), 3);
    });
}

#[test]
fn a_timer_can_be_cancelled_between_coming_due_and_running() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (ran, drops) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let when = event_loop.time() + Duration::from_millis(1);
        let victim = Rc::new(RefCell::new(None));
        // Both come due in one turn; the first runs when the second is on the ready deque already.
        event_loop.call_at(when, {
            let (victim, drops) = (victim.clone(), drops.clone());
            move || {
                let handle: windlass::TimerHandle = victim.take().unwrap();
                handle.cancel();
                assert_eq!(drops.get(), 1, "cancelled at once");
            }
        });
        let handle = event_loop.call_at(when, {
            let (ran, held) = (ran.clone(), CountDrop(drops.clone()));
            move || {
                let _held = held;
                ran.set(true);
            }
        });
        assert_eq!(handle.when(), when);
        victim.replace(Some(handle));
        event_loop.run_until_complete(sleep(Duration::from_millis(5))).unwrap();
        assert!(!ran.get());
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn cancelling_what_has_run_does_nothing() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let log = log();
        let soon = event_loop.call_soon(writes(&log, 1));
        let later = event_loop.call_later(Duration::ZERO, writes(&log, 2));
        event_loop.turn().unwrap();
        // The slot of the first timer may have a new tenant by now.
        event_loop.call_later(Duration::ZERO, writes(&log, 3));
        soon.cancel();
        later.cancel();
        event_loop.turn().unwrap();
        assert_eq!(*log.borrow(), [1, 2, 3]);
    });
}

#[test]
fn a_callback_can_cancel_itself() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let own: Rc<RefCell<Option<windlass::Handle>>> = Rc::default();
        let ran = Rc::new(Cell::new(0));
        let handle = event_loop.call_soon({
            let (own, ran) = (own.clone(), ran.clone());
            move || {
                own.borrow().as_ref().unwrap().cancel();
                ran.set(ran.get() + 1);
            }
        });
        own.replace(Some(handle));
        event_loop.turn().unwrap();
        assert_eq!(ran.get(), 1);
    });
}

// Running and stopping.

#[test]
fn stop_before_run_forever_runs_one_turn() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let log = log();
        event_loop.call_soon({
            let (first, second) = (writes(&log, 1), writes(&log, 2));
            move || {
                first();
                call_soon(second);
            }
        });
        event_loop.stop();
        event_loop.run_forever().unwrap();
        assert_eq!(*log.borrow(), [1]);
        event_loop.stop();
        event_loop.run_forever().unwrap();
        assert_eq!(*log.borrow(), [1, 2]);
    });
}

#[test]
fn stop_inside_ends_after_the_current_turn() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let log = log();
        event_loop.call_soon({
            let (event_loop, write) = (event_loop.clone(), writes(&log, 1));
            move || {
                event_loop.stop();
                call_soon(write);
            }
        });
        event_loop.call_soon(writes(&log, 0));
        event_loop.run_forever().unwrap();
        assert_eq!(*log.borrow(), [0], "the rest of the turn ran, the next did not");
        event_loop.turn().unwrap();
        assert_eq!(*log.borrow(), [0, 1]);
    });
}

#[test]
fn run_until_complete_takes_borrows_and_leaves_other_tasks_for_later() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let mut text = String::from("one");
        let other = event_loop.spawn(async {
            for _ in 0..10 {
                yield_now().await;
            }
            "other"
        });
        let length = event_loop.run_until_complete(async {
            yield_now().await;
            text.push_str(" two");
            &text
        });
        assert_eq!(length.unwrap(), "one two");
        assert!(!other.is_finished());
        assert_eq!(event_loop.run_until_complete(other).unwrap().unwrap(), "other");
    });
}

#[test]
fn stop_ends_run_until_complete_with_an_error_and_the_loop_runs_again() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let drops = Rc::new(Cell::new(0));
        let held = CountDrop(drops.clone());
        event_loop.call_soon({
            let event_loop = event_loop.clone();
            move || event_loop.stop()
        });
        let result = event_loop.run_until_complete(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert!(result.unwrap_err().to_string().contains("stopped"));
        assert_eq!(drops.get(), 1, "the future is gone");
        assert_eq!(event_loop.counters().tasks, 0);

        // That stop is spent: it ends no later run.
        let log = log();
        event_loop.call_soon({
            let (event_loop, write) = (event_loop.clone(), writes(&log, 1));
            move || {
                call_soon(move || {
                    write();
                    event_loop.stop();
                });
            }
        });
        event_loop.run_forever().unwrap();
        assert_eq!(*log.borrow(), [1]);
        assert_eq!(event_loop.run_until_complete(async { 5 }).unwrap(), 5);
    });
}

#[test]
fn stop_before_run_until_complete_gives_it_one_turn() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        event_loop.stop();
        assert_eq!(event_loop.run_until_complete(async { 1 }).unwrap(), 1);
        event_loop.stop();
        assert!(event_loop.run_until_complete(yield_now()).is_err());
        assert!(event_loop.run_until_complete(yield_now()).is_ok());
    });
}

#[test]
fn a_stop_in_the_turn_that_completes_the_future_is_spent_too() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let output = event_loop.run_until_complete(async {
            event_loop.stop();
            7
        });
        assert_eq!(output.unwrap(), 7);
        // The next run is not ended by it.
        let finished = event_loop.run_until_complete(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        finished.unwrap();
        let log = log();
        event_loop.run_until_complete(async { event_loop.stop() }).unwrap();
        event_loop.call_soon({
            let (event_loop, write) = (event_loop.clone(), writes(&log, 1));
            move || {
                call_soon(move || {
                    write();
                    event_loop.stop();
                });
            }
        });
        event_loop.run_forever().unwrap();
        assert_eq!(*log.borrow(), [1]);
    });
}

#[test]
fn a_panic_of_the_main_future_reaches_the_caller_and_the_loop_runs_again() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let told = exceptions_of(&event_loop);
        let other = event_loop.spawn(async {
            sleep(Duration::from_millis(5)).await;
            "other"
        });
        let caught = catch_unwind(AssertUnwindSafe(|| {
            event_loop.run_until_complete(async {
                yield_now().await;
                panic!("main went down");
            })
        }));
        let payload = caught.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"main went down"));
        assert!(told.borrow().is_empty(), "the caller got it, so nobody else does");
        assert_eq!(event_loop.run_until_complete(other).unwrap().unwrap(), "other");
    });
}

#[test]
fn a_loop_inside_a_loop_is_refused() {
    on_every_driver(|case| {
        let outer = Rc::new(case.event_loop());
        let inner = case.event_loop();
        let again = outer.clone();
        let result = outer.run_until_complete(async move {
            for refused in [
                inner.run_until_complete(async {}),
                inner.run_forever(),
                inner.turn(),
                again.run_until_complete(async {}),
                again.run_forever(),
                again.turn(),
            ] {
                assert!(refused.unwrap_err().to_string().contains("already running"));
            }
            // The outer one is still the current one, also after the inner one is closed.
            drop(inner);
            spawn(async { 3 }).await.unwrap()
        });
        assert_eq!(result.unwrap(), 3);
    });
}

#[test]
fn the_end_of_a_loop_cancels_what_is_left() {
    on_every_driver(|case| {
        let drops = Rc::new(Cell::new(0));
        case.run({
            let drops = drops.clone();
            async move {
                for waits in [true, false] {
                    let held = CountDrop(drops.clone());
                    spawn(async move {
                        let _held = held;
                        if waits {
                            sleep(Duration::from_secs(3600)).await;
                        }
                        std::future::pending::<()>().await;
                    });
                }
                yield_now().await;
                let held = CountDrop(drops.clone());
                call_soon(move || drop(held));
                let held = CountDrop(drops.clone());
                windlass::call_later(Duration::from_secs(3600), move || drop(held));
                let held = CountDrop(drops.clone());
                spawn(async move { drop(held) });
            }
        });
        assert_eq!(drops.get(), 5);
    });
}

#[test]
fn what_is_scheduled_while_the_loop_closes_is_dropped() {
    /// Schedules on the loop that is closing.
    struct Clinging(Rc<Cell<usize>>);
    impl Drop for Clinging {
        fn drop(&mut self) {
            let held = CountDrop(self.0.clone());
            drop(spawn(async move { drop(held) }));
            let held = CountDrop(self.0.clone());
            call_soon(move || drop(held));
            let held = CountDrop(self.0.clone());
            windlass::call_later(Duration::ZERO, move || drop(held));
        }
    }
    on_every_driver(|case| {
        let drops = Rc::new(Cell::new(0));
        let event_loop = case.event_loop();
        let clinging = Clinging(drops.clone());
        event_loop.spawn(async move {
            let _clinging = clinging;
            std::future::pending::<()>().await;
        });
        let clinging = Clinging(drops.clone());
        event_loop.call_soon(move || drop(clinging));
        let clinging = Clinging(drops.clone());
        event_loop.call_later(Duration::from_secs(1), move || drop(clinging));
        drop(event_loop);
        assert_eq!(drops.get(), 9);
    });
}

#[test]
fn calls_outside_of_a_loop_say_so() {
    let caught = catch_unwind(|| drop(spawn(async {})));
    let payload = caught.unwrap_err();
    let message = payload.downcast_ref::<String>().unwrap();
    assert!(message.contains("outside of an event loop"), "{message}");
}

// Starvation.

/// Whether a 10 ms timer of a loop with a busy task comes less than 100 ms late. A machine with other work gets a few
/// tries; a loop that starves its timers fails them all.
fn a_timer_is_on_time_beside(case: Case, busy: impl AsyncFn(&Cell<bool>) + 'static) {
    let busy = Rc::new(busy);
    let mut late = Vec::new();
    for _ in 0..20 {
        let busy = busy.clone();
        let lateness = case.run(async move {
            let over = Rc::new(Cell::new(false));
            let task = spawn({
                let over = over.clone();
                async move { busy(&over).await }
            });
            let start = Instant::now();
            sleep(Duration::from_millis(10)).await;
            let lateness = start.elapsed() - Duration::from_millis(10);
            over.set(true);
            task.await.unwrap();
            lateness
        });
        if lateness < Duration::from_millis(100) {
            return;
        }
        late.push(lateness);
    }
    panic!("a 10 ms timer was late by {late:?}");
}

/// How long a busy task goes on: until it is told to end, or for a second, so that a starved loop fails and does not hang.
fn goes_on(over: &Cell<bool>, start: Instant) -> bool {
    !over.get() && start.elapsed() < Duration::from_secs(1)
}

#[test]
fn an_always_ready_task_starves_no_timer() {
    on_every_kernel_driver(|case| {
        a_timer_is_on_time_beside(case, async |over| {
            let start = Instant::now();
            while goes_on(over, start) {
                yield_now().await;
            }
        });
        // The same without yield_now: it wakes itself, several times, in each poll.
        a_timer_is_on_time_beside(case, async |over| {
            let start = Instant::now();
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                cx.waker().clone().wake();
                match goes_on(over, start) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
        });
        a_timer_is_on_time_beside(case, async |over| {
            fn again(over: &Rc<Cell<bool>>, start: Instant) {
                if goes_on(over, start) {
                    let over = over.clone();
                    call_soon(move || again(&over, start));
                }
            }
            let flag = Rc::new(Cell::new(false));
            again(&flag, Instant::now());
            while !over.get() {
                sleep(Duration::from_millis(1)).await;
            }
            flag.set(true);
        });
    });
}

#[test]
fn an_interval_that_is_always_behind_starves_no_timer() {
    on_every_kernel_driver(|case| {
        a_timer_is_on_time_beside(case, async |over| {
            let start = Instant::now();
            let mut interval = windlass::time::interval(Duration::from_nanos(1));
            while goes_on(over, start) {
                interval.tick().await;
            }
        });
    });
}

#[test]
fn a_busy_task_lets_a_task_of_the_same_turn_run_each_time() {
    on_every_driver(|case| {
        case.run(async {
            let busy_polls = Rc::new(Cell::new(0));
            let busy = spawn({
                let busy_polls = busy_polls.clone();
                poll_fn(move |cx| {
                    busy_polls.set(busy_polls.get() + 1);
                    cx.waker().wake_by_ref();
                    Poll::<()>::Pending
                })
            });
            for turn in 1..=rounds() {
                yield_now().await;
                assert_eq!(busy_polls.get(), turn);
            }
            busy.cancel();
            assert!(busy.await.unwrap_err().is_cancelled());
        });
    });
}

/// The most that a task did between two runs of another task that is always ready.
async fn longest_run(task: impl Future<Output = ()> + 'static, done: &Rc<Cell<usize>>) -> usize {
    let task = spawn(task);
    let (mut longest, mut last) = (0, 0);
    while !task.is_finished() {
        yield_now().await;
        longest = longest.max(done.get() - last);
        last = done.get();
    }
    task.await.unwrap();
    longest
}

#[test]
fn reads_that_are_served_at_once_are_broken_up_by_the_budget() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let total = if cfg!(miri) { 150 } else { 1_000 };
            client.write_all(vec![7; total]).await.0.unwrap();
            // A dropped read_exact leaves what it received to the next reads.
            let dropped = timeout(Duration::from_millis(20), server.read_exact(vec![0; total + 1])).await;
            assert!(dropped.is_err());
            let reads = Rc::new(Cell::new(0));
            let reading = {
                let reads = reads.clone();
                async move {
                    for _ in 0..total {
                        let (result, buf) = server.read(vec![0; 1]).await;
                        assert_eq!((result.unwrap(), buf[0]), (1, 7));
                        reads.set(reads.get() + 1);
                    }
                }
            };
            let longest = longest_run(reading, &reads).await;
            assert_eq!(longest, 64, "the budget of one poll");
        });
    });
}

#[test]
fn writes_that_the_kernel_takes_at_once_are_broken_up_by_the_budget() {
    on_every_driver(|case| {
        case.run(async {
            let (client, _server) = pair().await;
            let written = Rc::new(Cell::new(0));
            let writing = {
                let written = written.clone();
                async move {
                    for _ in 0..if cfg!(miri) { 150 } else { 1_000 } {
                        client.write_all([7u8]).await.0.unwrap();
                        written.set(written.get() + 1);
                    }
                }
            };
            let longest = longest_run(writing, &written).await;
            assert!(longest <= 64, "{longest} writes in one poll");
        });
    });
}

#[test]
fn accepts_that_are_served_at_once_are_broken_up_by_the_budget() {
    on_every_driver(|case| {
        // The null driver lands one accept at a time, so Miri learns nothing from more.
        let clients = if cfg!(miri) { 5 } else { 100 };
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let connecting: Vec<_> = (0..clients).map(|_| spawn(TcpStream::connect(addr))).collect();
            let mut connected = Vec::new();
            for connection in connecting {
                connected.push(connection.await.unwrap().unwrap());
            }
            let accepted = Rc::new(Cell::new(0));
            let accepting = {
                let accepted = accepted.clone();
                async move {
                    for _ in 0..clients {
                        listener.accept().await.unwrap();
                        accepted.set(accepted.get() + 1);
                    }
                }
            };
            let longest = longest_run(accepting, &accepted).await;
            assert!(longest <= 64, "{longest} accepts in one poll");
        });
    });
}

#[test]
fn a_turn_with_nothing_to_hand_over_makes_no_system_call() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            yield_now().await;
            let (before, begin) = (counters(), std::time::Instant::now());
            for _ in 0..1_000 {
                yield_now().await;
            }
            let (after, elapsed) = (counters(), begin.elapsed());
            let turns = after.turns - before.turns;
            assert!(turns >= 1_000);
            // A ring shows in shared memory that there is nothing to do. An epoll must be asked now and then: every 64
            // turns, or every 50 us.
            let looks = if case.has_rings() {
                0
            } else {
                turns / 64 + elapsed.as_micros() as u64 / 50
            };
            let enters = after.driver.enters - before.driver.enters;
            assert!(
                enters < 10 + looks,
                "{enters} system calls in {turns} turns and {elapsed:?}"
            );
        });
    });
}

#[test]
fn a_closed_loop_is_gone_but_handles_stay_harmless() {
    on_every_driver(|case| {
        let event_loop: EventLoop = case.event_loop();
        let soon = event_loop.call_soon(|| unreachable!());
        let later = event_loop.call_later(Duration::ZERO, || unreachable!());
        let task = event_loop.spawn(std::future::pending::<()>());
        let handle = event_loop.handle();
        event_loop.close();
        assert!(handle.is_closed());
        soon.cancel();
        later.cancel();
        task.cancel();
        assert!(task.is_finished());
    });
}
