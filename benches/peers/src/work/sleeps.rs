//! Hundreds of thousands of timers: those that fire, and those that are cancelled first.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::Numbers;
use crate::kit::process::own_cpu_time;
use crate::runtime::Runtime;

/// Spawns `count` tasks, each of which sleeps for a random time, and joins them in the order of spawning.
pub(crate) async fn fire<R: Runtime>(count: usize, shortest: Duration, longest: Duration) -> io::Result<Vec<f64>> {
    let range = (longest - shortest).as_micros() as u64 + 1;
    let mut numbers = Numbers::new(1);
    let clock = Clock::start()?;
    let mut tasks = Vec::with_capacity(count);
    for _ in 0..count {
        let length = shortest + Duration::from_micros(numbers.below(range));
        tasks.push(R::spawn(async move { R::sleep(length).await }));
    }
    for task in tasks {
        task.await;
    }
    clock.figures()
}

/// Cancelled sleeps per task: glommio's tasks can have at most 32,767 wakers.
const SHARE: usize = 10_000;

/// Starts `count` sleeps of 10 to 100 s, each a boxed future that is polled once by one of `count` / 10,000 tasks. When
/// all have been started, each task drops its own in the same order, and yields once more: so a deferred cancellation
/// is measured too, if the next turn of the loop performs it.
pub(crate) async fn cancel<R: Runtime>(count: usize) -> io::Result<Vec<f64>> {
    let clock = Clock::start()?;
    let shares = (0..count / SHARE).map(|seed| R::spawn(begin_and_drop::<R>(seed as u64)));
    let tasks: Vec<_> = shares.collect();
    for task in tasks {
        task.await;
    }
    clock.figures()
}

async fn begin_and_drop<R: Runtime>(seed: u64) {
    let mut numbers = Numbers::new(seed + 2);
    let mut sleeps = Vec::with_capacity(SHARE);
    for _ in 0..SHARE {
        let mut sleep = Box::pin(R::sleep(Duration::from_millis(10_000 + numbers.below(90_000))));
        poll_once(sleep.as_mut()).await;
        sleeps.push(sleep);
    }
    // When a task is polled again, all others have started theirs: tasks run in the order of their wakes.
    R::yield_now().await;
    drop(sleeps);
    R::yield_now().await;
}

async fn poll_once(mut future: Pin<&mut impl Future<Output = ()>>) {
    poll_fn(|context| {
        let is_over = future.as_mut().poll(context).is_ready();
        assert!(!is_over, "a sleep of many seconds is not over at once");
        Poll::Ready(())
    })
    .await;
}

/// CPU time and wall time since the start.
struct Clock {
    cpu: Duration,
    begin: Instant,
}

impl Clock {
    fn start() -> io::Result<Clock> {
        Ok(Clock {
            cpu: own_cpu_time()?,
            begin: Instant::now(),
        })
    }

    fn figures(&self) -> io::Result<Vec<f64>> {
        let cpu = own_cpu_time()?.saturating_sub(self.cpu);
        Ok(vec![cpu.as_nanos() as f64, self.begin.elapsed().as_nanos() as f64])
    }
}
