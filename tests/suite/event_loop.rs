//! asyncio's contract: the order of a turn, callbacks and handles, running and stopping; and fairness.

#![expect(clippy::waker_clone_wake, reason = "waking by value is a vtable entry of its own")]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};
use windlass::{EventLoop, call_soon, counters, spawn};

use crate::support::{
    Case, CountDrop, exceptions_of, on_every_driver, on_every_kernel_driver, pair, poll_once, rounds,
};

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
fn a_turn_runs_ready_callbacks_in_order_and_defers_new_ones() {
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
fn tasks_and_callbacks_share_one_fifo_queue() {
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
fn counters_report_scheduled_work() {
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
        // Both are due in one turn; when the first runs, the second is already in the ready queue.
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
fn cancelling_a_finished_callback_does_nothing() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let log = log();
        let soon = event_loop.call_soon(writes(&log, 1));
        let later = event_loop.call_later(Duration::ZERO, writes(&log, 2));
        event_loop.turn().unwrap();
        // The slot of the first timer may be reused by now.
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
        assert_eq!(*log.borrow(), [0], "the rest of the turn ran, the next turn did not");
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
        assert_eq!(drops.get(), 1, "the future is dropped");
        assert_eq!(event_loop.counters().tasks, 0);

        // That stop is consumed: it does not end a later run.
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
fn stop_before_run_until_complete_runs_one_turn() {
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
fn a_stop_in_the_completing_turn_is_consumed() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let output = event_loop.run_until_complete(async {
            event_loop.stop();
            7
        });
        assert_eq!(output.unwrap(), 7);
        // The stop does not end the next run.
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
        let reported = exceptions_of(&event_loop);
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
        assert!(
            reported.borrow().is_empty(),
            "the caller got the panic, so it is not reported"
        );
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
            // The outer loop is still the current one, also after the inner loop is closed.
            drop(inner);
            spawn(async { 3 }).await.unwrap()
        });
        assert_eq!(result.unwrap(), 3);
    });
}

#[test]
fn closing_the_loop_drops_tasks_and_callbacks() {
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
fn work_scheduled_while_the_loop_closes_is_dropped() {
    /// Schedules on the loop that is closing.
    struct ScheduleOnDrop(Rc<Cell<usize>>);
    impl Drop for ScheduleOnDrop {
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
        let schedule_on_drop = ScheduleOnDrop(drops.clone());
        event_loop.spawn(async move {
            let _schedule_on_drop = schedule_on_drop;
            std::future::pending::<()>().await;
        });
        let schedule_on_drop = ScheduleOnDrop(drops.clone());
        event_loop.call_soon(move || drop(schedule_on_drop));
        let schedule_on_drop = ScheduleOnDrop(drops.clone());
        event_loop.call_later(Duration::from_secs(1), move || drop(schedule_on_drop));
        drop(event_loop);
        assert_eq!(drops.get(), 9);
    });
}

#[test]
fn calls_outside_of_a_loop_panic_with_a_clear_message() {
    let caught = catch_unwind(|| drop(spawn(async {})));
    let payload = caught.unwrap_err();
    let message = payload.downcast_ref::<String>().unwrap();
    assert!(message.contains("outside of an event loop"), "{message}");
}

// Starvation.

/// A task that is always ready beside a timer.
struct Busy {
    /// The timer has fired.
    is_over: Cell<bool>,
    due: Instant,
    /// How often the task ran after the timer was due.
    late_runs: Cell<usize>,
}

impl Busy {
    /// Runs after which a timer is starved: the loop looks for due timers in every turn, however busy the machine is.
    const MOST: usize = 1_000;

    /// Whether the task goes on. A starved loop fails instead of hanging.
    fn keeps_running(&self) -> bool {
        if Instant::now() >= self.due {
            self.late_runs.set(self.late_runs.get() + 1);
        }
        !self.is_over.get() && self.late_runs.get() < Busy::MOST
    }
}

/// Asserts that a timer beside a busy task fires soon after it is due.
fn assert_timer_on_time_beside(case: Case, busy: impl AsyncFn(Rc<Busy>) + 'static) {
    let late_runs = case.run(async move {
        let time = Duration::from_millis(10);
        let mut timer = pin!(sleep(time));
        assert!(poll_once(timer.as_mut()).await.is_pending());
        let shared = Rc::new(Busy {
            is_over: Cell::new(false),
            due: Instant::now() + time,
            late_runs: Cell::new(0),
        });
        let task = spawn({
            let shared = shared.clone();
            async move { busy(shared).await }
        });
        timer.await;
        shared.is_over.set(true);
        task.await.unwrap();
        shared.late_runs.get()
    });
    assert!(late_runs < Busy::MOST, "the timer did not fire");
}

#[test]
fn an_always_ready_task_does_not_starve_timers() {
    on_every_kernel_driver(|case| {
        assert_timer_on_time_beside(case, async |busy| {
            while busy.keeps_running() {
                yield_now().await;
            }
        });
        // Without `yield_now`: the future wakes itself several times per poll.
        assert_timer_on_time_beside(case, async |busy| {
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                cx.waker().clone().wake();
                match busy.keeps_running() {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
        });
        assert_timer_on_time_beside(case, async |busy| {
            fn again(busy: Rc<Busy>) {
                if busy.keeps_running() {
                    call_soon(move || again(busy));
                }
            }
            again(busy);
        });
    });
}

#[test]
fn an_interval_that_is_always_late_does_not_starve_timers() {
    on_every_kernel_driver(|case| {
        assert_timer_on_time_beside(case, async |busy| {
            let mut interval = windlass::time::interval(Duration::from_nanos(1));
            while busy.keeps_running() {
                interval.tick().await;
            }
        });
    });
}

#[test]
fn a_busy_task_is_polled_once_per_turn() {
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

/// The most iterations of a task between two runs of another task that is always ready.
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
fn immediate_reads_are_limited_by_the_budget() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let total = if cfg!(miri) { 150 } else { 1_000 };
            client.write_all(vec![7; total]).await.0.unwrap();
            // A dropped `read_exact` leaves its bytes to the next reads.
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
fn immediate_writes_are_limited_by_the_budget() {
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
fn immediate_accepts_are_limited_by_the_budget() {
    on_every_driver(|case| {
        // The null driver completes one accept at a time, so more would add nothing under Miri.
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
fn a_turn_without_submissions_makes_no_system_call() {
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
            // An empty completion ring is visible in shared memory. epoll must be polled every 64 turns or every 50 us.
            let expected_polls = if case.has_rings() {
                0
            } else {
                turns / 64 + elapsed.as_micros() as u64 / 50
            };
            let enters = after.driver.enters - before.driver.enters;
            assert!(
                enters < 10 + expected_polls,
                "{enters} system calls in {turns} turns and {elapsed:?}"
            );
        });
    });
}

#[test]
fn handles_of_a_closed_loop_are_harmless() {
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
