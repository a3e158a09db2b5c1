//! A loop on a separate thread, with tasks that wait to be woken from this thread.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

use crate::kit::drivers::Driver;

/// The time limit for a woken task to be polled.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Sleeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct Shared {
    begin: Instant,
    bells: Vec<Bell>,
    over: AtomicBool,
}

/// The signal that one task waits for.
#[derive(Default)]
struct Bell {
    waker: AtomicWaker,
    rung: AtomicBool,
    /// When the task was polled after its wake, in nanoseconds since the start; 0 until then.
    heard: AtomicU64,
}

impl Sleeper {
    /// Starts a loop with `tasks` waiting tasks; a busy one has another task that yields all the time.
    pub(crate) fn start(driver: Driver, tasks: usize, is_busy: bool) -> io::Result<Sleeper> {
        let shared = Arc::new(Shared {
            begin: Instant::now(),
            bells: (0..tasks).map(|_| Bell::default()).collect(),
            over: AtomicBool::new(false),
        });
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || driver.open()?.run_until_complete(shared.wait(ready, is_busy))
        });
        let sleeper = Sleeper {
            shared,
            thread: Some(thread),
        };
        match is_ready.recv() {
            Ok(()) => Ok(sleeper),
            Err(_) => Err(io::Error::other("the loop did not start on its thread")),
        }
    }

    /// Wakes every task, and returns the time that this took.
    pub(crate) fn burst(&self) -> Duration {
        let begin = Instant::now();
        for bell in &self.shared.bells {
            bell.rung.store(true, Ordering::Release);
            bell.waker.wake();
        }
        begin.elapsed()
    }

    /// Wakes the first task, and returns the time until it was polled.
    pub(crate) fn ring(&self) -> io::Result<Duration> {
        let bell = &self.shared.bells[0];
        let rung = self.shared.begin.elapsed().as_nanos() as u64;
        bell.rung.store(true, Ordering::Release);
        bell.waker.wake();
        let heard = bell.wait_heard()?;
        Ok(Duration::from_nanos(heard.saturating_sub(rung)))
    }

    /// Waits until every task has been polled after a burst.
    pub(crate) fn wait_all(&self) -> io::Result<()> {
        self.shared
            .bells
            .iter()
            .try_for_each(|bell| bell.wait_heard().map(drop))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.burst();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    async fn wait(self: Arc<Shared>, ready: mpsc::Sender<()>, is_busy: bool) {
        let mut tasks = Vec::new();
        for at in 0..self.bells.len() {
            let shared = self.clone();
            tasks.push(windlass::spawn(async move { shared.hear(at).await }));
        }
        if is_busy {
            let shared = self.clone();
            tasks.push(windlass::spawn(async move {
                while !shared.over.load(Ordering::Acquire) {
                    windlass::task::yield_now().await;
                }
            }));
        }
        // Every task has been polled once by now.
        windlass::task::yield_now().await;
        let _ = ready.send(());
        for task in tasks {
            let _ = task.await;
        }
    }

    async fn hear(&self, at: usize) {
        let bell = &self.bells[at];
        while !self.over.load(Ordering::Acquire) {
            poll_fn(|cx| {
                bell.waker.register(cx.waker());
                match bell.rung.swap(false, Ordering::AcqRel) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            let heard = self.begin.elapsed().as_nanos() as u64;
            bell.heard.store(heard, Ordering::Release);
        }
    }
}

impl Bell {
    fn wait_heard(&self) -> io::Result<u64> {
        let begin = Instant::now();
        loop {
            match self.heard.swap(0, Ordering::AcqRel) {
                0 if begin.elapsed() > PATIENCE => return Err(io::Error::other("a task was woken and not polled")),
                // Yields: on a machine with one core the loop could not run otherwise.
                0 => std::thread::yield_now(),
                heard => return Ok(heard),
            }
        }
    }
}
