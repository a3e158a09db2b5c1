//! A virtual clock stops while a thread works for its loop, and continues afterwards.

#[path = "suite/support.rs"]
mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use windlass::blocking::Pool;
use windlass::net::lookup_host;
use windlass::time::{Instant, sleep, timeout};
use windlass::{Builder, DriverChoice, NullFiles, spawn, spawn_blocking};

const HOUR: Duration = Duration::from_secs(3600);
/// Real work that is long for a loop that does not wait for it.
const WORK: Duration = Duration::from_millis(5);

/// Runs a future on a loop with a virtual clock; fails the test if it hangs.
fn on_null<F: Future<Output = ()> + 'static>(body: impl FnOnce() -> F + Send + 'static) {
    on_null_with(|builder| builder, body);
}

fn on_null_with<F: Future<Output = ()> + 'static>(
    set: impl FnOnce(Builder) -> Builder + Send + 'static,
    body: impl FnOnce() -> F + Send + 'static,
) {
    let (done, finished) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done;
        let builder = set(Builder::new().driver(DriverChoice::Null).null_files(NullFiles::Real));
        let event_loop = builder.build().expect("a loop");
        event_loop.run_until_complete(body()).expect("the loop runs");
    });
    if finished.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("hangs");
    }
    if let Err(payload) = thread.join() {
        std::panic::resume_unwind(payload);
    }
}

fn work() -> u32 {
    std::thread::sleep(WORK);
    7
}

#[test]
fn the_clock_stops_during_blocking_work_and_continues_after_it() {
    on_null(|| async {
        let begin = Instant::now();
        let value = timeout(HOUR, spawn_blocking(work)).await.expect("in time");
        assert_eq!(value.expect("no panic"), 7);
        assert_eq!(begin.elapsed(), Duration::ZERO);
        sleep(HOUR).await;
        assert_eq!(begin.elapsed(), HOUR);
    });
}

#[test]
fn the_clock_stops_during_a_name_lookup() {
    on_null(|| async {
        let begin = Instant::now();
        let found = timeout(HOUR, lookup_host("localhost:80")).await.expect("in time");
        assert!(!found.expect("localhost has an address").is_empty());
        assert_eq!(begin.elapsed(), Duration::ZERO);
        sleep(HOUR).await;
        assert_eq!(begin.elapsed(), HOUR);
    });
}

#[test]
fn the_clock_stops_for_a_user_defined_pool() {
    let pool = Pool::builder().threads(1).build();
    on_null(move || async move {
        let begin = Instant::now();
        let value = timeout(HOUR, pool.spawn(work)).await.expect("in time");
        assert_eq!(value.expect("no panic"), 7);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    });
}

/// The job was started outside of the loop, which counts it from the first poll on.
#[test]
fn the_clock_stops_for_a_job_started_outside_the_loop() {
    let pool = Pool::builder().threads(1).build();
    let job = pool.spawn(work);
    on_null(move || async move {
        let begin = Instant::now();
        let value = timeout(HOUR, job).await.expect("in time");
        assert_eq!(value.expect("no panic"), 7);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    });
    drop(pool);
}

/// Also while a job waits for a thread, and while its handle waits for space in the queue.
#[test]
fn the_clock_stops_for_queued_jobs() {
    let set = |builder: Builder| builder.max_blocking_threads(1).max_blocking_queue(1);
    on_null_with(set, || async {
        let begin = Instant::now();
        let jobs: Vec<_> = (0..6)
            .map(|_| spawn(async { timeout(HOUR, spawn_blocking(work)).await }))
            .collect();
        for job in jobs {
            let value = job.await.expect("no panic").expect("in time");
            assert_eq!(value.expect("no panic"), 7);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
    });
}

/// The timers of other tasks stop too: there is one clock.
#[test]
fn the_clock_stops_for_every_task() {
    on_null(|| async {
        let fired = Rc::new(Cell::new(false));
        let timer = spawn({
            let fired = fired.clone();
            async move {
                sleep(HOUR).await;
                fired.set(true);
            }
        });
        spawn_blocking(work).await.expect("no panic");
        assert!(!fired.get(), "the clock advanced during the work");
        timer.await.expect("no panic");
        assert!(fired.get());
    });
}

/// A job that panics, one that is cancelled in the queue, and one that could not be started let the clock continue.
#[test]
fn the_clock_continues_after_jobs_without_a_result() {
    on_null_with(
        |builder| builder.max_blocking_threads(1),
        || async {
            let begin = Instant::now();
            assert!(spawn_blocking(|| panic!("on purpose")).await.is_err());
            let (open, gate) = mpsc::channel::<()>();
            let first = spawn_blocking(move || gate.recv().is_err());
            let mut second = spawn_blocking(work);
            second.cancel();
            assert!(second.await.is_err());
            drop(open);
            assert!(first.await.expect("no panic"));
            let pool = Pool::new();
            pool.shutdown(windlass::blocking::Shutdown::Wait);
            assert!(pool.spawn(work).await.is_err());
            sleep(HOUR).await;
            assert_eq!(begin.elapsed(), HOUR);
        },
    );
}

/// A job whose handle was dropped reports nothing to the loop, so the clock does not wait for it.
#[test]
fn the_clock_continues_during_a_detached_job() {
    on_null(|| async {
        let begin = Instant::now();
        let (open, gate) = mpsc::channel::<()>();
        drop(spawn_blocking(move || gate.recv()));
        sleep(HOUR).await;
        assert_eq!(begin.elapsed(), HOUR);
        drop(open);
    });
}

/// A handle that is kept but not polled for space in a full queue must not stop the clock forever.
#[test]
fn the_clock_continues_while_a_job_is_not_queued() {
    let set = |builder: Builder| builder.max_blocking_threads(1).max_blocking_queue(0);
    on_null_with(set, || async {
        let begin = Instant::now();
        let first = spawn_blocking(work);
        let second = spawn_blocking(work);
        assert_eq!(first.await.expect("no panic"), 7);
        sleep(HOUR).await;
        assert_eq!(begin.elapsed(), HOUR);
        assert_eq!(second.await.expect("no panic"), 7);
    });
}
