//! The clock, the timer heap, and sleeps, timeouts and intervals.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use windlass::task::yield_now;
use windlass::time::{Instant, MissedTicks, interval, interval_at, sleep, sleep_until, timeout, timeout_at};
use windlass::{call_at, call_later, call_soon, counters, spawn};

use crate::support::{
    Random, is_interrupted, on_every_driver, on_every_kernel_driver, poll_with, rounds, turns, waker_calling,
};

const MS: Duration = Duration::from_millis(1);

// Durations that no clock can represent.

/// Starts every kind of timer with a deadline that never comes. Each sets `fired` if it fires.
fn start_infinite_timers(fired: &Rc<Cell<bool>>) {
    let set = || {
        let fired = fired.clone();
        move || fired.set(true)
    };
    for huge in [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_nanos(u64::MAX),
    ] {
        let fire = set();
        spawn(async move {
            sleep(huge).await;
            fire();
        });
        let fire = set();
        spawn(async move {
            let _ = timeout(huge, pending::<()>()).await;
            fire();
        });
        let fire = set();
        spawn(async move {
            let mut interval = interval(huge);
            interval.tick().await;
            interval.tick().await;
            fire();
        });
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let fire = set();
            spawn(async move {
                let mut interval = interval_at(Instant::now() + huge, huge).missed_ticks(missed);
                interval.tick().await;
                fire();
            });
        }
        call_later(huge, set());
        call_at(Instant::now() + huge, set());
    }
    let fire = set();
    spawn(async move {
        sleep_until(Instant::NEVER).await;
        fire();
    });
    let fire = set();
    spawn(async move {
        let _ = timeout_at(Instant::NEVER, pending::<()>()).await;
        fire();
    });
    call_at(Instant::NEVER, set());
}

#[test]
fn an_infinite_deadline_never_fires() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let fired = Rc::new(Cell::new(false));
        event_loop
            .run_until_complete({
                let fired = fired.clone();
                async move {
                    start_infinite_timers(&fired);
                    sleep(20 * MS).await;
                    let timers = counters().timers;
                    assert!(timers >= 20, "timers are missing: {timers}");
                    assert_eq!(timeout(Duration::MAX, async { 5 }).await, Ok(5));
                }
            })
            .unwrap();
        assert!(!fired.get());
        // Nothing else is scheduled now: the loop sleeps until another thread wakes it.
        let turns = event_loop.counters().turns;
        let handle = event_loop.handle();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(30 * MS);
            handle.stop().unwrap();
        });
        event_loop.run_forever().unwrap();
        thread.join().unwrap();
        assert!(!fired.get());
        let turns = event_loop.counters().turns - turns;
        assert!(turns < 100, "the loop was busy: {turns} turns");
    });
}

#[test]
fn a_far_deadline_does_not_make_the_loop_spin() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let handle = event_loop.handle();
        // A signed 64-bit count of nanoseconds ends after 292 years.
        for ns in [u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 62] {
            event_loop.call_at(Instant::from_origin(Duration::from_nanos(ns)), || unreachable!());
        }
        let thread = std::thread::spawn(move || {
            std::thread::sleep(30 * MS);
            handle.stop().unwrap();
        });
        event_loop.run_forever().unwrap();
        thread.join().unwrap();
        assert!(event_loop.counters().turns < 100);
        assert_eq!(event_loop.counters().timers, 4);
    });
}

#[test]
fn an_expired_timeout_still_returns_a_ready_result() {
    on_every_driver(|case| {
        case.run(async {
            assert_eq!(timeout(Duration::ZERO, async { 1 }).await, Ok(1));
            let past = Instant::from_origin(Duration::ZERO);
            assert_eq!(timeout_at(past, async { 2 }).await, Ok(2));
            assert!(timeout_at(past, pending::<()>()).await.is_err());
            assert!(timeout(Duration::ZERO, pending::<()>()).await.is_err());
        });
    });
}

// The heap.

#[test]
fn cancelled_timers_do_not_accumulate() {
    on_every_driver(|case| {
        // Every driver uses the same heap, so kernel drivers run fewer rounds, except in long runs.
        let count = match case.is_kernel() {
            _ if cfg!(miri) => 300,
            true if rounds() < 10_000 => 100_000,
            _ => 1_000_000,
        };
        case.run(async move {
            let bounded = || {
                let counters = counters();
                let (heap, live) = (counters.timer_heap, counters.timers);
                assert!(heap <= 2 * live + 100, "{heap} entries for {live} timers");
            };
            let kept: Vec<_> = (0..50)
                .map(|i| call_later((3600 + i) * 1000 * MS, || unreachable!()))
                .collect();
            let mut random = Random::new(1);
            for round in 0..count {
                let delay = Duration::from_secs(60 + random.below(7200));
                match round % 3 {
                    0 => call_later(delay, || unreachable!()).cancel(),
                    // The usual case in a server: a timeout around an operation that ends quickly.
                    1 => {
                        let mut late = pin!(timeout(delay, pending::<()>()));
                        assert!(poll_with(Waker::noop(), late.as_mut()).is_pending());
                    }
                    _ => assert!(poll_with(Waker::noop(), pin!(sleep(delay))).is_pending()),
                }
                if round % 64 == 0 {
                    bounded();
                }
            }
            bounded();
            // Many at once, cancelled in random order.
            let mut many: Vec<_> = (0..count / 10)
                .map(|_| call_later(Duration::from_secs(60 + random.below(7200)), || unreachable!()))
                .collect();
            while !many.is_empty() {
                many.swap_remove(random.below(many.len() as u64) as usize).cancel();
            }
            bounded();
            assert_eq!(counters().timers, kept.len());
        });
    });
}

#[test]
fn equal_deadlines_fire_in_call_order() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let fired: Rc<RefCell<Vec<usize>>> = Rc::default();
        let first = event_loop.time() + 5 * MS;
        let count = rounds().min(2_000);
        for i in 0..count {
            let fired = fired.clone();
            // Three groups of equal deadlines, set alternately.
            let when = first + (i % 3) as u32 * MS;
            let timer = event_loop.call_at(when, move || fired.borrow_mut().push(i));
            assert_eq!(timer.when(), when);
        }
        event_loop.run_until_complete(sleep_until(first + 3 * MS)).unwrap();
        let expected: Vec<_> = (0..3).flat_map(|group| (group..count).step_by(3)).collect();
        assert_eq!(*fired.borrow(), expected);
    });
}

#[test]
fn timers_fire_in_deadline_order() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let fired: Rc<RefCell<Vec<Instant>>> = Rc::default();
        let start = event_loop.time();
        let mut random = Random::new(7);
        for i in 0..rounds() {
            let when = start + Duration::from_micros(random.below(20_000));
            let fired = fired.clone();
            let timer = event_loop.call_at(when, move || fired.borrow_mut().push(when));
            if i % 4 == 0 {
                timer.cancel();
            }
        }
        event_loop.run_until_complete(sleep_until(start + 21 * MS)).unwrap();
        assert_eq!(fired.borrow().len(), rounds() - rounds().div_ceil(4));
        assert!(fired.borrow().is_sorted());
        assert_eq!(event_loop.counters().timers, 0);
    });
}

/// Long timers have slack and short ones do not. Both are due when the loop runs again.
#[test]
fn timers_of_different_lengths_fire_in_deadline_order() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let fired: Rc<RefCell<Vec<(Instant, usize)>>> = Rc::default();
        let first = event_loop.time() + 40 * MS;
        let set = |round: usize| {
            for group in [2, 0, 1] {
                let (when, fired) = (first + group * MS, fired.clone());
                event_loop.call_at(when, move || fired.borrow_mut().push((when, round)));
            }
        };
        set(0);
        std::thread::sleep(35 * MS);
        set(1);
        std::thread::sleep(10 * MS);
        set(2);
        event_loop.run_until_complete(sleep_until(first + 3 * MS)).unwrap();
        let expected = (0..3).flat_map(|group| (0..3).map(move |round| (first + group * MS, round)));
        assert_eq!(*fired.borrow(), expected.collect::<Vec<_>>());
    });
}

/// Each wake-up is a slack of 1.05 ms after a deadline, less the 150 us by which a sleep may end early. On a slow machine there are
/// fewer wake-ups.
#[test]
fn neighbouring_deadlines_share_a_wake_up() {
    on_every_kernel_driver(|case| {
        if is_interrupted() {
            return;
        }
        let event_loop = case.event_loop();
        let (first, fired) = (event_loop.time() + 1_100 * MS, Rc::new(Cell::new(0)));
        for i in 0..200 {
            let (when, fired) = (first + i * Duration::from_micros(100), fired.clone());
            event_loop.call_at(when, move || {
                assert!(Instant::now() >= when, "it fired early");
                fired.set(fired.get() + 1);
            });
        }
        let before = event_loop.counters().turns;
        event_loop.run_until_complete(sleep_until(first + 20 * MS)).unwrap();
        assert_eq!(fired.get(), 200);
        let turns = event_loop.counters().turns - before;
        assert!(turns < 40, "{turns} turns for timers within 20 ms");
    });
}

#[test]
fn a_dropped_sleep_removes_its_timer() {
    on_every_driver(|case| {
        case.run(async {
            {
                let mut waiting = pin!(sleep(Duration::from_secs(3600)));
                assert!(poll_with(Waker::noop(), waiting.as_mut()).is_pending());
                assert_eq!(counters().timers, 1);
            }
            assert_eq!(counters().timers, 0);
            assert!(timeout(Duration::from_secs(3600), yield_now()).await.is_ok());
            assert_eq!(counters().timers, 0);
        });
    });
}

// On other threads and loops.

const fn is_send_and_sync<T: Send + Sync>() {}
const _: () = is_send_and_sync::<windlass::time::Sleep>();
const _: () = is_send_and_sync::<windlass::time::Interval>();
const _: () = is_send_and_sync::<windlass::time::Timeout<std::future::Ready<()>>>();
const _: () = is_send_and_sync::<windlass::time::DelayQueue<String>>();
const _: () = is_send_and_sync::<windlass::time::delay_queue::Key>();

/// A sleep that has set a timer in the current loop.
fn started(duration: Duration) -> windlass::time::Sleep {
    let mut sleep = sleep(duration);
    assert!(poll_with(Waker::noop(), pin!(&mut sleep)).is_pending());
    sleep
}

#[test]
fn a_sleep_dropped_on_another_thread_removes_its_timer() {
    on_every_driver(|case| {
        case.run(async {
            let sleeps = [Duration::MAX, Duration::from_secs(3600)].map(started);
            assert_eq!(counters().timers, 2);
            std::thread::spawn(move || drop(sleeps)).join().expect("no panic");
            turns(2).await;
            assert_eq!(counters().timers, 0);
        });
    });
}

#[test]
fn a_sleep_polled_on_another_loop_begins_again_there() {
    on_every_driver(|case| {
        case.run(async {
            let mut sleep = started(Duration::from_secs(3600));
            let deadline = sleep.deadline().expect("it has not ended");
            let other = std::thread::spawn(move || {
                windlass::run(async move {
                    assert!(poll_with(Waker::noop(), pin!(&mut sleep)).is_pending());
                    assert_eq!((counters().timers, sleep.deadline()), (1, Some(deadline)));
                    sleep.reset(Instant::now() + MS);
                    assert_eq!(counters().timers, 1);
                    (&mut sleep).await;
                    assert_eq!(counters().timers, 0);
                })
            });
            other.join().expect("no panic").expect("a loop");
            turns(2).await;
            assert_eq!(counters().timers, 0, "the first timer is cancelled");
        });
    });
}

#[test]
fn a_sleep_reset_on_another_thread_can_be_awaited_again() {
    on_every_driver(|case| {
        case.run(async {
            let mut sleep = started(Duration::MAX);
            let deadline = Instant::now() + MS;
            let reset = std::thread::spawn(move || {
                sleep.reset(deadline);
                sleep
            });
            let sleep = reset.join().expect("no panic");
            turns(2).await;
            assert_eq!((counters().timers, sleep.deadline()), (0, Some(deadline)));
            sleep.await;
            assert!(Instant::now() >= deadline);
        });
    });
}

#[test]
fn a_sleep_dropped_after_its_loop_does_nothing() {
    on_every_driver(|case| {
        let first = case.event_loop();
        let (sleep,) = first
            .run_until_complete(async { (started(Duration::MAX),) })
            .expect("the loop runs");
        drop(first);
        let second = case.event_loop();
        let timers = second.run_until_complete(async move {
            let own = started(Duration::MAX);
            drop(sleep);
            let timers = counters().timers;
            drop(own);
            timers
        });
        assert_eq!(
            timers.expect("the loop runs"),
            1,
            "the timer of another loop has another id"
        );
    });
}

#[test]
fn a_sleep_can_be_reset_and_dropped_while_its_loop_does_not_run() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (mut sleep,) = event_loop
            .run_until_complete(async { (started(Duration::MAX),) })
            .expect("the loop runs");
        sleep.reset(Instant::now() + Duration::from_secs(3600));
        assert_eq!(event_loop.counters().timers, 1);
        drop(sleep);
        assert_eq!(event_loop.counters().timers, 0);
    });
}

// Sleeping.

#[test]
fn no_sleep_ends_early() {
    on_every_driver(|case| {
        case.run(async move {
            let mut random = Random::new(3);
            let sleepers: Vec<_> = (0..rounds())
                .map(|_| {
                    let wanted = Duration::from_nanos(random.below(50_000_000));
                    spawn(async move {
                        let (start, real) = (Instant::now(), std::time::Instant::now());
                        sleep(wanted).await;
                        let elapsed = start.elapsed();
                        assert!(elapsed >= wanted, "{elapsed:?} instead of {wanted:?}");
                        assert!(!case.is_kernel() || real.elapsed() >= wanted);
                    })
                })
                .collect();
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
        });
    });
}

#[test]
fn a_sleep_counts_from_the_call_or_outside_a_loop_from_the_first_poll() {
    on_every_driver(|case| {
        let outside = sleep(20 * MS);
        case.run(async move {
            let start = Instant::now();
            let inside = sleep(20 * MS);
            sleep(10 * MS).await;
            let before_outside = Instant::now();
            inside.await;
            assert!(start.elapsed() >= 20 * MS);
            assert!(case.is_kernel() || start.elapsed() == 20 * MS);
            outside.await;
            assert!(before_outside.elapsed() >= 20 * MS);
        });
    });
}

#[test]
fn a_sleep_of_zero_yields() {
    on_every_driver(|case| {
        case.run(async {
            let others = Rc::new(Cell::new(0));
            for round in 0..rounds().min(100) {
                let others_too = others.clone();
                call_soon(move || others_too.set(others_too.get() + 1));
                let turns = counters().turns;
                sleep(Duration::ZERO).await;
                assert!(counters().turns > turns);
                assert_eq!(others.get(), round + 1);
            }
        });
    });
}

#[test]
fn a_sleep_wakes_the_last_waker() {
    on_every_driver(|case| {
        case.run(async {
            let mut waiting = Box::pin(sleep(5 * MS));
            let old_wakes = Rc::new(Cell::new(0));
            let first = waker_calling({
                let old_wakes = old_wakes.clone();
                move || old_wakes.set(old_wakes.get() + 1)
            });
            assert!(poll_with(&first, waiting.as_mut()).is_pending());
            assert!(poll_with(&first, waiting.as_mut()).is_pending());
            // Another task polls it.
            spawn(waiting).await.unwrap();
            assert_eq!(old_wakes.get(), 0);
            assert_eq!(counters().timers, 0);
        });
    });
}

#[test]
fn a_finished_sleep_stays_ready() {
    on_every_driver(|case| {
        case.run(async {
            let mut over = Box::pin(sleep(MS));
            over.as_mut().await;
            assert!(poll_with(Waker::noop(), over.as_mut()).is_ready());
        });
    });
}

// Timeouts.

#[test]
fn a_timeout_does_not_lose_a_ready_result() {
    on_every_driver(|case| {
        case.run(async {
            for _ in 0..rounds().min(50) {
                // The result and the deadline come in the same turn; the deadline was set first.
                let (promise, placeholder) = windlass::promise::<u32>();
                let deadline = Instant::now() + MS;
                let mut limited = Box::pin(timeout_at(deadline, placeholder));
                assert!(poll_with(Waker::noop(), limited.as_mut()).is_pending());
                call_at(deadline, move || promise.resolve(9).unwrap());
                sleep_until(deadline).await;
                // A resolved promise wakes its awaiter in the next turn.
                yield_now().await;
                yield_now().await;
                assert_eq!(limited.await, Ok(Ok(9)));
            }
            // Two equal deadlines: the inner future is polled first.
            let deadline = Instant::now() + MS;
            assert!(timeout_at(deadline, sleep_until(deadline)).await.is_ok());
        });
    });
}

#[test]
fn a_timeout_ends_in_time_and_drops_the_future() {
    on_every_driver(|case| {
        case.run(async move {
            let dropped = Rc::new(Cell::new(0));
            let held = crate::support::CountDrop(dropped.clone());
            let start = Instant::now();
            let cut = timeout(10 * MS, async move {
                let _held = held;
                pending::<()>().await;
            });
            assert!(cut.await.is_err());
            assert_eq!(dropped.get(), 1);
            assert!(start.elapsed() >= 10 * MS);
            assert!(case.is_kernel() || start.elapsed() == 10 * MS);
            let error = std::io::Error::from(timeout(MS, pending::<()>()).await.unwrap_err());
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        });
    });
}

// Intervals.

/// The times of the ticks for a caller that is busy for 35 ms after the first: exact to the nanosecond on a virtual
/// clock.
async fn ticks_after_a_pause(missed: MissedTicks) -> Vec<u128> {
    let start = Instant::now();
    let mut interval = interval(10 * MS).missed_ticks(missed);
    assert_eq!(interval.tick().await, start, "the first comes at once");
    sleep(35 * MS).await;
    let mut times = Vec::new();
    for _ in 0..5 {
        interval.tick().await;
        times.push(start.elapsed().as_millis());
    }
    times
}

#[test]
fn missed_ticks_follow_the_configured_policy() {
    on_every_driver(|case| {
        // A real clock is not precise enough for a table of milliseconds.
        if case.is_kernel() {
            return;
        }
        case.run(async {
            assert_eq!(ticks_after_a_pause(MissedTicks::Burst).await, [35, 35, 35, 40, 50]);
            assert_eq!(ticks_after_a_pause(MissedTicks::Delay).await, [35, 45, 55, 65, 75]);
            assert_eq!(ticks_after_a_pause(MissedTicks::Skip).await, [35, 40, 50, 60, 70]);
        });
    });
}

#[test]
fn ticks_awaited_in_time_keep_their_period() {
    on_every_driver(|case| {
        case.run(async {
            let mut interval = interval(2 * MS);
            let start = interval.tick().await;
            for tick in 1..10 {
                let due = interval.tick().await;
                assert_eq!(due - start, tick * 2 * MS);
                assert!(Instant::now() >= due);
            }
            assert_eq!(interval.period(), 2 * MS);
        });
    });
}

#[test]
fn a_dropped_wait_loses_no_tick() {
    on_every_driver(|case| {
        case.run(async {
            for _ in 0..50 {
                let mut interval = interval(200 * MS);
                let start = interval.tick().await;
                for _ in 0..5 {
                    let _ = timeout(MS, interval.tick()).await;
                }
                // On a loaded machine the tick may have come during the wait.
                if start.elapsed() < 200 * MS {
                    assert_eq!(interval.tick().await - start, 200 * MS);
                    return;
                }
            }
            panic!("five waits of a millisecond never fit into 200");
        });
    });
}

#[test]
fn an_interval_of_zero_is_refused() {
    assert!(std::panic::catch_unwind(|| interval(Duration::ZERO)).is_err());
}

#[test]
fn timer_callbacks_can_set_and_cancel_timers() {
    on_every_driver(|case| {
        case.run(async {
            let fired = Rc::new(Cell::new(0));
            let (first, second) = (fired.clone(), fired.clone());
            let victim = call_later(5 * MS, || unreachable!());
            call_later(MS, move || {
                first.set(first.get() + 1);
                victim.cancel();
                // Due at once: runs in a later turn, not in this one.
                call_later(Duration::ZERO, move || second.set(second.get() + 1));
            });
            sleep(10 * MS).await;
            // On a loaded machine all came due at once, and the last one needs another turn.
            turns(2).await;
            assert_eq!(fired.get(), 2);
            assert_eq!(counters().timers, 0);
            assert!(matches!(poll_with(Waker::noop(), pin!(pending::<()>())), Poll::Pending));
        });
    });
}

#[test]
fn an_interval_can_be_reset() {
    let event_loop = windlass::Builder::new()
        .driver(windlass::DriverChoice::Null)
        .build()
        .expect("a loop");
    // On a virtual clock, each tick is due at an exact time.
    let ticked = event_loop.run_until_complete(async {
        let start = windlass::time::Instant::now();
        let ms = std::time::Duration::from_millis;
        let mut interval = windlass::time::interval(ms(10));
        let mut ticks = Vec::new();
        ticks.push(interval.tick().await - start);
        windlass::time::sleep(ms(4)).await;
        interval.reset();
        ticks.push(interval.tick().await - start);
        interval.reset_after(ms(3));
        ticks.push(interval.tick().await - start);
        ticks.push(interval.tick().await - start);
        interval.reset_immediately();
        ticks.push(interval.tick().await - start);
        interval.reset_at(start + ms(100));
        ticks.push(interval.tick().await - start);
        ticks.push(interval.tick().await - start);
        ticks
    });
    let expected = [0, 14, 17, 27, 27, 100, 110].map(std::time::Duration::from_millis);
    assert_eq!(ticked.expect("the loop runs"), expected);
}

/// A cancelled timer leaves its heap entry, which the next one takes over. Once the entry was removed, because it came due, the next
/// timer needs one of its own.
#[test]
fn a_cancelled_timer_that_came_due_can_be_set_again() {
    on_every_driver(|case| {
        case.run(async {
            for _ in 0..5 {
                // The sleep takes over the entry of the timer that was cancelled last. The other one comes due meanwhile.
                let cancelled: Vec<_> = (0..3).map(|_| started(MS)).collect();
                drop(cancelled);
                sleep(3 * MS).await;
                let (first, second, third) = (started(MS), started(MS), started(MS));
                assert_eq!(counters().timers, 3);
                first.await;
                second.await;
                third.await;
                assert_eq!(counters().timers, 0);
            }
        });
    });
}
