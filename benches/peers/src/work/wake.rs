//! Wakes from another thread through the runtime's `Waker`, without a channel.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::kit::histogram::Histogram;
use crate::kit::machine;

/// The pause before a wake, so that the loop is asleep.
pub(crate) const REST: Duration = Duration::from_millis(2);

/// A signal set by one thread and awaited by one task.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    waker: Mutex<Option<Waker>>,
    /// How often the task has received the signal.
    passed: AtomicU64,
    /// No more wakes will come.
    is_over: AtomicBool,
}

impl Gate {
    /// Waits for the signal and resets it.
    async fn pass(&self) {
        poll_fn(|context| {
            if self.is_open.swap(false, Ordering::SeqCst) {
                return Poll::Ready(());
            }
            *self.lock() = Some(context.waker().clone());
            // It may have been set before the waker was registered.
            match self.is_open.swap(false, Ordering::SeqCst) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
        let waker = self.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

pub(crate) async fn measure(core: Option<usize>, count: usize, length: Duration) -> Vec<f64> {
    let asleep = asleep(core, count).await;
    let round_trip = hot(core, length).await;
    figures(asleep.nanos(0.5), round_trip)
}

/// The columns of the table.
pub(crate) fn figures(asleep: f64, round_trip: f64) -> Vec<f64> {
    vec![asleep, round_trip, 1e9 / round_trip]
}

/// The time from the wake to the task's poll, after a pause of 2 ms each.
async fn asleep(core: Option<usize>, count: usize) -> Histogram {
    let gate = Arc::new(Gate::default());
    let origin = Instant::now();
    let woken_at = Arc::new(AtomicU64::new(0));
    let thread = {
        let (gate, woken_at) = (Arc::clone(&gate), Arc::clone(&woken_at));
        thread::spawn(move || {
            pin(core);
            for turn in 0..count as u64 {
                wait_until(core, || gate.passed.load(Ordering::Acquire) == turn);
                thread::sleep(REST);
                woken_at.store(origin.elapsed().as_nanos() as u64, Ordering::Release);
                gate.open();
            }
        })
    };
    let mut latency = Histogram::default();
    for turn in 1..=count as u64 {
        gate.pass().await;
        let now = origin.elapsed().as_nanos() as u64;
        latency.add_nanos(now - woken_at.load(Ordering::Acquire));
        gate.passed.store(turn, Ordering::Release);
    }
    thread.join().expect("the waking thread does not panic");
    latency
}

/// The time of a round trip: the thread wakes the task, sees that it ran, and wakes it again at once.
async fn hot(core: Option<usize>, length: Duration) -> f64 {
    let gate = Arc::new(Gate::default());
    let thread = {
        let gate = Arc::clone(&gate);
        thread::spawn(move || {
            pin(core);
            let begin = Instant::now();
            let mut turn = 0;
            while begin.elapsed() < length {
                gate.open();
                turn += 1;
                wait_until(core, || gate.passed.load(Ordering::Acquire) == turn);
            }
            let nanos = begin.elapsed().as_nanos() as f64 / turn as f64;
            gate.is_over.store(true, Ordering::SeqCst);
            gate.open();
            nanos
        })
    };
    let mut turn = 0;
    loop {
        gate.pass().await;
        if gate.is_over.load(Ordering::SeqCst) {
            return thread.join().expect("the waking thread does not panic");
        }
        turn += 1;
        gate.passed.store(turn, Ordering::Release);
    }
}

pub(crate) fn pin(core: Option<usize>) {
    if let Some(core) = core {
        // A failure only makes the figures noisier.
        let _ = machine::pin(core);
    }
}

/// Spins, unless the other side needs this core too.
pub(crate) fn wait_until(core: Option<usize>, is_so: impl Fn() -> bool) {
    while !is_so() {
        match core {
            Some(_) => std::hint::spin_loop(),
            None => thread::yield_now(),
        }
    }
}
