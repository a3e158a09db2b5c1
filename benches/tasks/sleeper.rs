//! A loop on a thread of its own, with tasks that wait to be woken from here.

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

/// How long a woken task may take.
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

/// What one task waits for.
#[derive(Default)]
struct Bell {
    waker: AtomicWaker,
    rung: AtomicBool,
    /// When the task was polled after it was woken, in nanoseconds since the beginning; 0 until then.
    heard: AtomicU64,
}

impl Sleeper {
    /// Starts a loop with so many tasks that wait; a busy one has another, which yields all the time.
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
            Err(_) => Err(io::Error::other("the loop did not start on a thread of its own")),
        }
    }

    /// Wakes every task, and says how long that took us.
    pub(crate) fn burst(&self) -> Duration {
        let begin = Instant::now();
        for bell in &self.shared.bells {
            bell.rung.store(true, Ordering::Release);
            bell.waker.wake();
        }
        begin.elapsed()
    }

    /// Wakes the first task; what it gives is how long that task took to be polled, once it was.
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
        // By now every task has been polled once, and waits.
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
                // On a machine of one core the loop could not run if this one kept it.
                0 => std::thread::yield_now(),
                heard => return Ok(heard),
            }
        }
    }
}
