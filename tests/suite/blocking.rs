//! Blocking pools: results, panics, thread limits, the bounded queue, cancellation and shutdown.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use windlass::JoinError;
use windlass::blocking::{BlockingHandle, Pool, PoolFull, Shutdown};
use windlass::spawn_blocking;

use crate::support::{PanicOnDrop, exceptions_of, on_every_driver, poll_once, poll_with, rounds, turns};

/// A wait longer than this fails the test.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 60 });

/// Holds jobs until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    begun: usize,
    open: bool,
}

impl Gate {
    /// Counts the job as begun, and blocks until the gate is open.
    pub(crate) fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().expect("no panic");
        state.begun += 1;
        changed.notify_all();
        while !state.open {
            let waited = changed.wait_timeout(state, PATIENCE).expect("no panic");
            assert!(!waited.1.timed_out(), "the gate was never opened");
            state = waited.0;
        }
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().expect("no panic").open = true;
        self.0.1.notify_all();
    }

    pub(crate) fn begun(&self) -> usize {
        self.0.0.lock().expect("no panic").begun
    }

    /// Blocks this thread until `begun` jobs have begun.
    pub(crate) fn wait_for(&self, begun: usize) {
        eventually("the jobs begin", || self.begun() >= begun);
    }
}

/// Opens a gate when it is dropped.
struct OpenOnDrop(Gate);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Blocks this thread until the condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a future without an event loop.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let begin = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(begin.elapsed() < PATIENCE, "the future was never woken");
        thread::park_timeout(PATIENCE);
    }
}

/// Counts its wakes, from any thread.
#[derive(Default)]
struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Counts its drops, on any thread.
#[derive(Clone)]
struct CountDrops(Arc<AtomicUsize>);

impl Drop for CountDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A pool with one thread, which is blocked by a job at the gate.
fn held_up(queue: usize) -> (Pool, Gate, BlockingHandle<()>) {
    let pool = Pool::builder().threads(1).queue(queue).build();
    let gate = Gate::default();
    let job = pool.spawn({
        let gate = gate.clone();
        move || gate.pass()
    });
    gate.wait_for(1);
    (pool, gate, job)
}

fn is_cancelled<T>(result: Result<T, JoinError>) -> bool {
    matches!(result, Err(error) if error.is_cancelled())
}

// Results.

#[test]
fn a_result_is_returned() {
    on_every_driver(|case| {
        let here = thread::current().id();
        case.run(async {
            let there = spawn_blocking(|| thread::current().id()).await.expect("no panic");
            assert_ne!(there, here);
            let name = spawn_blocking(|| thread::current().name().map(str::to_owned)).await;
            assert!(
                name.expect("no panic")
                    .is_some_and(|name| name.starts_with("blocking-"))
            );
            let mut handle = spawn_blocking(|| vec![1, 2, 3]);
            let vec = (&mut handle).await.expect("no panic");
            assert_eq!(vec, [1, 2, 3]);
            assert!(handle.is_finished());
        });
    });
}

#[test]
fn a_result_may_be_awaited_on_another_loop() {
    on_every_driver(|case| {
        let gate = Gate::default();
        let (send, receive) = mpsc::channel();
        let elsewhere = thread::spawn(move || {
            let handle: BlockingHandle<i32> = receive.recv().expect("a handle");
            case.run(handle)
        });
        let event_loop = case.event_loop();
        let sent = event_loop.run_until_complete(async {
            let job_gate = gate.clone();
            send.send(spawn_blocking(move || {
                job_gate.pass();
                7
            }))
        });
        sent.expect("the loop runs").expect("the receiver exists");
        gate.wait_for(1);
        // The other loop is asleep by now, or about to be.
        thread::sleep(Duration::from_millis(5));
        gate.open();
        assert_eq!(elsewhere.join().expect("no panic").expect("no panic"), 7);
    });
}

#[test]
fn a_job_may_spawn_jobs_and_run_a_loop() {
    on_every_driver(|case| {
        let pool = Pool::builder().threads(2).build();
        case.run(async {
            let inner = pool.clone();
            let handle = pool.spawn(move || inner.spawn(|| 6 * 7)).await.expect("no panic");
            assert_eq!(handle.await.expect("no panic"), 42);
            // A whole event loop inside a job, with jobs of its own.
            let nested = spawn_blocking(move || case.run(async { spawn_blocking(|| 6 * 7).await }));
            assert_eq!(nested.await.expect("no panic").expect("no panic"), 42);
        });
    });
}

#[test]
fn a_panic_is_returned_with_its_payload() {
    on_every_driver(|case| {
        case.run(async {
            let error = spawn_blocking(|| std::panic::panic_any(42_u32))
                .await
                .expect_err("it panics");
            assert!(error.is_panic());
            let payload = error.try_into_panic().expect("a panic");
            assert_eq!(payload.downcast_ref::<u32>(), Some(&42));
            let error = spawn_blocking(|| panic!("one {}", "two")).await.expect_err("it panics");
            assert!(error.to_string().contains("one two"), "{error}");
            // The pool's thread still works.
            assert_eq!(spawn_blocking(|| 1).await.expect("no panic"), 1);
        });
    });
}

/// A panic whose handle was dropped is reported exactly once.
#[test]
fn a_panic_whose_handle_was_dropped_is_reported_once() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let reported = exceptions_of(&event_loop);
        let gate = Gate::default();
        let result = event_loop.run_until_complete(async {
            // Dropped before the panic.
            let job_gate = gate.clone();
            drop(spawn_blocking(move || {
                job_gate.pass();
                panic!("early")
            }));
            gate.open();
            while reported.borrow().is_empty() {
                turns(1).await;
            }
            // Dropped after the panic.
            let handle = spawn_blocking(|| panic!("late"));
            eventually("the job ends", || handle.is_finished());
            drop(handle);
            while reported.borrow().len() < 2 {
                turns(1).await;
            }
            turns(10).await;
        });
        result.expect("the loop runs");
        let reported = reported.borrow();
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(
            reported[0].contains("early") && reported[1].contains("late"),
            "{reported:?}"
        );
    });
}

/// The loop makes no turn between the panic and its close.
#[test]
fn a_closing_loop_reports_a_panic() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let reported = exceptions_of(&event_loop);
        let kept = RefCell::new(None);
        let result = event_loop.run_until_complete(async {
            kept.replace(Some(spawn_blocking(|| panic!("at the end"))));
        });
        result.expect("the loop runs");
        let handle = kept.take().expect("a handle");
        eventually("the job ends", || handle.is_finished());
        drop(handle);
        drop(event_loop);
        assert_eq!(reported.borrow().len(), 1, "{:?}", reported.borrow());
    });
}

#[test]
fn destructors_of_jobs_and_results_may_panic() {
    on_every_driver(|case| {
        let event_loop = case.builder().max_blocking_threads(1).build().expect("a loop");
        let reported = exceptions_of(&event_loop);
        let gate = Gate::default();
        let result = event_loop.run_until_complete(async {
            // Values captured by a job are dropped as part of the job.
            let held = PanicOnDrop("held by a job");
            let error = spawn_blocking(move || drop(held)).await.expect_err("it panics");
            assert!(error.to_string().contains("held by a job"), "{error}");
            // The result of a job whose handle was dropped.
            let dropped = Gate::default();
            let job_gate = dropped.clone();
            drop(spawn_blocking(move || {
                job_gate.pass();
                PanicOnDrop("a result")
            }));
            dropped.open();
            assert_eq!(spawn_blocking(|| 2).await.expect("no panic"), 2, "the thread survived");
            // A job that never runs because the loop closes.
            let job_gate = gate.clone();
            drop(spawn_blocking(move || job_gate.pass()));
            let held = PanicOnDrop("held in the queue");
            drop(spawn_blocking(move || drop(held)));
            // The close drops the queued jobs, and the last of them lets the running job end.
            let opener = OpenOnDrop(gate.clone());
            drop(spawn_blocking(move || drop(opener)));
            gate.wait_for(1);
        });
        result.expect("the loop runs");
        drop(event_loop);
        assert_eq!(reported.borrow().len(), 1, "{:?}", reported.borrow());
        assert!(
            reported.borrow()[0].contains("held in the queue"),
            "{:?}",
            reported.borrow()
        );
    });
}

// Threads.

/// Starts more jobs than the pool may have threads.
fn fill_threads(builder: windlass::Builder, most: usize) {
    let event_loop = builder.build().expect("a loop");
    let gate = Gate::default();
    let result = event_loop.run_until_complete(async {
        assert_eq!(
            windlass::counters().blocking.started,
            0,
            "no thread is started before it is needed"
        );
        let job = || {
            let gate = gate.clone();
            spawn_blocking(move || gate.pass())
        };
        let jobs: Vec<_> = (0..most + 5).map(|_| job()).collect();
        gate.wait_for(most);
        thread::sleep(Duration::from_millis(10));
        assert_eq!(gate.begun(), most, "more concurrent jobs than threads allowed");
        let counters = windlass::counters().blocking;
        assert_eq!((counters.threads, counters.started), (most, most as u64));
        assert_eq!((counters.queued, counters.idle, counters.done), (5, 0, 0));
        gate.open();
        for job in jobs {
            job.await.expect("no panic");
        }
        let done = || windlass::counters().blocking.done;
        eventually("all are counted", || done() == most as u64 + 5);
        eventually("all threads are idle", || windlass::counters().blocking.idle == most);
        let counters = windlass::counters();
        assert_eq!((counters.blocking.queued, counters.blocking.threads), (0, most));
        assert_eq!(counters.files, Default::default(), "files have threads of their own");
    });
    result.expect("the loop runs");
}

#[test]
fn the_default_thread_limit_is_asyncios() {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    on_every_driver(move |case| fill_threads(case.builder(), (processors + 4).min(32)));
}

#[test]
fn the_thread_limit_is_configurable() {
    on_every_driver(|case| {
        for most in [1, 3] {
            fill_threads(case.builder().max_blocking_threads(most), most);
        }
    });
}

#[test]
fn threads_end_when_idle_and_start_again() {
    on_every_driver(|case| {
        let idle = Duration::from_millis(10);
        let event_loop = case.builder().blocking_idle_exit(idle).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            for started in 1..=3 {
                spawn_blocking(|| {}).await.expect("no panic");
                assert_eq!(windlass::counters().blocking.started, started);
                eventually("the thread ends", || windlass::counters().blocking.threads == 0);
                assert_eq!(windlass::counters().blocking.idle, 0);
            }
        });
        result.expect("the loop runs");
    });
}

/// A thread whose idle timeout expires just as a job is queued must run that job.
#[test]
fn no_job_is_lost_when_an_idle_thread_exits() {
    // The pause varies, so that the next job arrives at every moment around the idle timeout.
    let pool = Pool::builder().threads(1).idle_exit(Duration::from_micros(20)).build();
    for round in 0..rounds() * 5 {
        let job = pool.spawn(|| ());
        let begin = Instant::now();
        while !job.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "the job of round {round} was lost");
            std::hint::spin_loop();
        }
        let done = Instant::now();
        let pause = Duration::from_nanos(50_000 * (round as u64 % 1_000) / 1_000 + 40_000);
        while done.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn thousands_of_jobs_complete() {
    on_every_driver(|case| {
        let event_loop = case
            .builder()
            .max_blocking_threads(3)
            .max_blocking_queue(4)
            .build()
            .expect("a loop");
        let each = rounds() / 16 + 1;
        let result = event_loop.run_until_complete(async {
            let tasks: Vec<_> = (0..16)
                .map(|task| {
                    windlass::spawn(async move {
                        let mut sum = 0;
                        for job in 0..each {
                            sum += spawn_blocking(move || task * each + job).await.expect("no panic");
                        }
                        sum
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.expect("no panic");
            }
            sum
        });
        let count = 16 * each;
        assert_eq!(result.expect("the loop runs"), count * (count - 1) / 2);
        assert!(event_loop.counters().blocking.started <= 3);
    });
}

// The queue.

#[test]
fn jobs_run_in_fifo_order() {
    on_every_driver(|case| {
        let (pool, gate, first) = held_up(1_000);
        let order = Arc::new(Mutex::new(Vec::new()));
        case.run(async {
            let jobs: Vec<_> = (0..100)
                .map(|number| {
                    let order = order.clone();
                    pool.spawn(move || order.lock().expect("no panic").push(number))
                })
                .collect();
            gate.open();
            first.await.expect("no panic");
            for job in jobs.into_iter().rev() {
                job.await.expect("no panic");
            }
        });
        assert_eq!(*order.lock().expect("no panic"), (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn a_full_queue_makes_spawn_wait() {
    on_every_driver(|case| {
        let (pool, gate, first) = held_up(2);
        case.run(async {
            let second = pool.spawn(|| 2);
            let third = pool.spawn(|| 3);
            let mut fourth = pool.spawn(|| 4);
            assert_eq!(pool.counters().queued, 2);
            assert!(poll_once(Pin::new(&mut fourth)).await.is_pending());
            assert_eq!(pool.counters().queued, 2, "the queue stays within its limit");
            // `try_spawn` does not wait: it returns the closure.
            let mark = CountDrops(Arc::default());
            let held = mark.clone();
            let PoolFull(work) = pool.try_spawn(move || Arc::as_ptr(&held.0) as usize).expect_err("full");
            assert_eq!(work(), Arc::as_ptr(&mark.0) as usize);
            gate.open();
            assert_eq!(fourth.await.expect("no panic"), 4);
            assert_eq!(second.await.expect("no panic"), 2);
            assert_eq!(third.await.expect("no panic"), 3);
            first.await.expect("no panic");
            assert_eq!(
                pool.try_spawn(|| 5)
                    .expect("the queue has room")
                    .await
                    .expect("no panic"),
                5
            );
        });
    });
}

/// Without a queue, `spawn` needs an idle thread or one that may still be started.
#[test]
fn a_pool_without_a_queue_needs_a_free_thread() {
    on_every_driver(|case| {
        let pool = Pool::builder().threads(2).queue(0).build();
        let gate = Gate::default();
        let job = || {
            let gate = gate.clone();
            move || gate.pass()
        };
        case.run(async {
            let first = pool.try_spawn(job()).expect("a thread could be started");
            let second = pool.try_spawn(job()).expect("another could be started");
            gate.wait_for(2);
            assert!(pool.try_spawn(job()).is_err(), "both threads are busy");
            let mut third = pool.spawn(|| 3);
            assert!(poll_once(Pin::new(&mut third)).await.is_pending());
            assert_eq!(pool.counters().queued, 0);
            gate.open();
            assert_eq!(third.await.expect("no panic"), 3);
            first.await.expect("no panic");
            second.await.expect("no panic");
        });
    });
}

/// A handle that is polled repeatedly registers one waker only.
#[test]
fn a_handle_waiting_for_room_keeps_one_waker() {
    let (pool, gate, first) = held_up(0);
    let count = Arc::new(CountWakes::default());
    let waker = Waker::from(count.clone());
    let mut waiting = pool.spawn(|| 1);
    let kept = || Arc::strong_count(&count) - 2;
    for _ in 0..100 {
        assert!(poll_with(&waker, Pin::new(&mut waiting)).is_pending());
    }
    assert!(kept() <= 1, "{} wakers kept for one handle", kept());
    // A cancelled handle keeps no waker.
    waiting.cancel();
    assert_eq!(kept(), 0);
    gate.open();
    assert!(is_cancelled(block_on(waiting)));
    block_on(first).expect("no panic");
}

/// Two handles wait for room; the first one is woken but never polled again.
#[test]
fn a_stalled_waiter_does_not_block_the_next_one() {
    let (pool, gate, _first) = held_up(1);
    let second_gate = Gate::default();
    let at_second = second_gate.clone();
    let _second = pool.spawn(move || at_second.pass());
    let (idle, eager) = (Arc::new(CountWakes::default()), Arc::new(CountWakes::default()));
    let mut not_polled_again = pool.spawn(|| ());
    let mut still_polled = pool.spawn(|| 7);
    assert!(poll_with(&idle.into(), Pin::new(&mut not_polled_again)).is_pending());
    assert!(poll_with(&eager.clone().into(), Pin::new(&mut still_polled)).is_pending());
    gate.open();
    second_gate.wait_for(1);
    eventually("the second waiter is woken", || eager.0.load(SeqCst) > 0);
    assert!(poll_with(Waker::noop(), Pin::new(&mut still_polled)).is_pending());
    assert_eq!(pool.counters().queued, 1, "the second waiter's job is queued");
    second_gate.open();
    assert_eq!(block_on(still_polled).expect("no panic"), 7);
    drop(not_polled_again);
}

// Dropped and cancelled handles.

#[test]
fn a_job_runs_after_its_handle_is_dropped() {
    on_every_driver(|case| {
        let (pool, gate, first) = held_up(1);
        let ran = Arc::new(AtomicUsize::new(0));
        let job = || {
            let ran = ran.clone();
            move || {
                ran.fetch_add(1, SeqCst);
            }
        };
        case.run(async {
            // One job is in the queue; two were never queued: one dropped at once, the other after it had waited for
            // room.
            drop(pool.spawn(job()));
            drop(pool.spawn(job()));
            let mut waiting = pool.spawn(job());
            assert!(poll_once(Pin::new(&mut waiting)).await.is_pending());
            drop(waiting);
            drop(first);
        });
        gate.open();
        eventually("all jobs run", || ran.load(SeqCst) == 3);
    });
}

#[test]
fn a_job_can_be_cancelled_before_it_begins() {
    on_every_driver(|case| {
        let (pool, gate, mut first) = held_up(1);
        let drops = Arc::new(AtomicUsize::new(0));
        let ran = Arc::new(AtomicBool::new(false));
        let job = || {
            let (ran, mark) = (ran.clone(), CountDrops(drops.clone()));
            move || {
                ran.store(true, SeqCst);
                drop(mark);
            }
        };
        case.run(async {
            let mut queued = pool.spawn(job());
            let mut unqueued = pool.spawn(job());
            queued.cancel();
            assert_eq!(drops.load(SeqCst), 1, "its captured values are dropped");
            assert!(queued.is_finished());
            queued.cancel();
            unqueued.cancel();
            unqueued.cancel();
            assert_eq!(drops.load(SeqCst), 2);
            assert_eq!(pool.counters().queued, 0);
            assert!(is_cancelled(queued.await) && is_cancelled(unqueued.await));
            // Too late: the job has begun and returns its result.
            first.cancel();
            first.cancel();
            assert!(!first.is_finished());
            gate.open();
            first.await.expect("it ran to its end");
        });
        assert!(!ran.load(SeqCst));
    });
}

/// A second cancel must not cancel another handle's job.
#[test]
fn cancelling_twice_cancels_no_other_job() {
    for _ in 0..rounds().min(200) {
        let pool = Pool::builder().threads(1).queue(0).build();
        let first = pool.spawn(|| 1);
        let mut second = pool.spawn(|| 2);
        second.cancel();
        second.cancel();
        assert_eq!(block_on(first).expect("it was not cancelled"), 1);
    }
}

#[test]
fn cancelling_a_queued_job_makes_room() {
    let (pool, gate, first) = held_up(1);
    let mut queued = pool.spawn(|| 1);
    let mut waiting = pool.spawn(|| 2);
    let wakes = Arc::new(CountWakes::default());
    assert!(poll_with(&wakes.clone().into(), Pin::new(&mut waiting)).is_pending());
    queued.cancel();
    assert_eq!(wakes.0.load(SeqCst), 1);
    gate.open();
    assert_eq!(block_on(waiting).expect("no panic"), 2);
    block_on(first).expect("no panic");
}

// User-created pools.

#[test]
fn a_pool_serves_two_loops_and_a_plain_thread() {
    on_every_driver(|case| {
        let pool = Pool::builder().threads(2).queue(1).name("shared").build();
        let each = rounds() / 10 + 1;
        let run_jobs = move |pool: Pool| async move {
            for number in 0..each {
                assert_eq!(pool.spawn(move || number).await.expect("no panic"), number);
            }
            let name = pool.spawn(|| thread::current().name().map(str::to_owned)).await;
            assert!(name.expect("no panic").is_some_and(|name| name.starts_with("shared-")));
        };
        let elsewhere = thread::spawn({
            let pool = pool.clone();
            move || case.run(run_jobs(pool))
        });
        let nowhere = thread::spawn({
            let pool = pool.clone();
            move || block_on(run_jobs(pool))
        });
        case.run(run_jobs(pool.clone()));
        elsewhere.join().expect("no panic");
        nowhere.join().expect("no panic");
        pool.shutdown(Shutdown::Wait);
        let counters = pool.counters();
        assert_eq!((counters.threads, counters.idle, counters.queued), (0, 0, 0));
        assert_eq!(counters.done, 3 * (each as u64 + 1));
    });
}

#[test]
fn shutdown_waits_as_requested() {
    on_every_driver(|case| {
        let (pool, gate, first) = held_up(1);
        let queued = pool.spawn(|| 1);
        let mut unqueued = pool.spawn(|| 2);
        case.run(async {
            assert!(poll_once(Pin::new(&mut unqueued)).await.is_pending());
            pool.shutdown(Shutdown::Detach);
            assert!(is_cancelled(queued.await) && is_cancelled(unqueued.await));
            assert!(is_cancelled(pool.spawn(|| 3).await), "the pool is closed");
        });
        let begin = Instant::now();
        pool.shutdown(Shutdown::Within(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert_eq!(pool.counters().threads, 1);
        let opener = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        pool.shutdown(Shutdown::Wait);
        assert_eq!(pool.counters().threads, 0);
        assert!(first.is_finished(), "shutdown waited for the job");
        opener.join().expect("no panic");
        pool.shutdown(Shutdown::Within(Duration::MAX));
    });
}

/// Dropping the last clone wakes and cancels a handle that waits for room.
#[test]
fn dropping_the_last_clone_closes_a_pool() {
    let (pool, gate, first) = held_up(0);
    let mut waiting = pool.spawn(|| 1);
    let wakes = Arc::new(CountWakes::default());
    assert!(poll_with(&wakes.clone().into(), Pin::new(&mut waiting)).is_pending());
    let clone = pool.clone();
    drop(pool);
    assert_eq!(wakes.0.load(SeqCst), 0);
    drop(clone);
    assert_eq!(wakes.0.load(SeqCst), 1);
    assert!(is_cancelled(block_on(waiting)));
    gate.open();
    block_on(first).expect("a job that has begun completes");
}

#[test]
fn a_job_may_drop_or_shut_down_its_own_pool() {
    on_every_driver(|case| {
        // By dropping the last clone.
        let pool = Pool::builder().threads(1).build();
        let gate = Gate::default();
        let job = pool.spawn({
            let (pool, gate) = (pool.clone(), gate.clone());
            move || {
                gate.pass();
                drop(pool);
            }
        });
        drop(pool);
        gate.open();
        case.run(job).expect("no panic");
        // By calling `shutdown(Wait)` from two jobs at once, while a third job runs.
        let pool = Pool::builder().threads(3).build();
        let (begin, third_gate) = (Gate::default(), Gate::default());
        let third = pool.spawn({
            let third_gate = third_gate.clone();
            move || third_gate.pass()
        });
        third_gate.wait_for(1);
        let ended: Vec<_> = (0..2)
            .map(|_| {
                let (pool, begin, third_gate) = (pool.clone(), begin.clone(), third_gate.clone());
                pool.clone().spawn(move || {
                    begin.pass();
                    third_gate.open();
                    pool.shutdown(Shutdown::Wait);
                    pool.counters().threads
                })
            })
            .collect();
        begin.wait_for(2);
        begin.open();
        case.run(async {
            for job in ended {
                let threads = job.await.expect("no panic");
                assert!(
                    (1..=2).contains(&threads),
                    "{threads} threads left, not counting the third"
                );
            }
            third.await.expect("no panic");
        });
        pool.shutdown(Shutdown::Wait);
    });
}
