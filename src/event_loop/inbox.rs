//! The inject queue: the only part of a loop that other threads touch.
//!
//! A sender pushes its item and then swaps the state to `NOTIFIED`. The previous state tells whether to wake the loop:
//!
//! - `AWAKE`: the loop is running and has collected everything sent so far. It checks the state again before it sleeps.
//! - `ASLEEP`: the loop is blocked in the driver, or about to block. The sender must notify the driver.
//! - `NOTIFIED`: an item was sent since the loop last collected; its sender has notified the driver if necessary.
//!
//! So a burst of sends costs one system call, and sends to a running loop cost none. No wake-up is lost: the loop
//! sleeps only after a compare-and-swap from `AWAKE` to `ASLEEP`, which fails if an item was sent; and it sets `AWAKE`
//! *before* it empties the queue, so an item is either collected now or sets `NOTIFIED` again. Loom checks this.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::{self, Thread};

use crate::driver::Notify;
use crate::sync::loom_shim::{AtomicU8, Mutex, MutexGuard};
use crate::sys;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

/// The inject queue of one loop, for items of type `T`.
pub(crate) struct Inbox<T> {
    state: CacheAligned,
    /// The items not yet collected; `None` once the inbox is closed.
    pending: Mutex<Option<Vec<T>>>,
    /// Holds a descriptor of the driver, so closing the loop takes it out: wakers and handles on other threads may live
    /// much longer. Locked during a notification, so that the descriptor is closed when `close` returns.
    notifier: Mutex<Option<Arc<dyn Notify>>>,
    /// Identifies the process that made it: see `sys::forks`.
    forks: u32,
    /// The loop's thread.
    thread: Thread,
    /// Called for every item, on the sender's thread. A simulation finds threads of the program's own with it, also those
    /// that send while the loop is running.
    #[cfg(feature = "sim")]
    on_send: std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// On its own cache line, to avoid false sharing with senders: a busy-polling loop reads the state all the time.
#[repr(align(128))]
struct CacheAligned(AtomicU8);

impl<T> Inbox<T> {
    pub(crate) fn new(notifier: Arc<dyn Notify>) -> Inbox<T> {
        Inbox {
            state: CacheAligned(AtomicU8::new(AWAKE)),
            pending: Mutex::new(Some(Vec::new())),
            notifier: Mutex::new(Some(notifier)),
            forks: sys::count_forks(),
            thread: thread::current(),
            #[cfg(feature = "sim")]
            on_send: std::sync::OnceLock::new(),
        }
    }

    /// Calls `on_send` for every item that is sent from now on. Once per inbox.
    #[cfg(feature = "sim")]
    pub(crate) fn watch(&self, on_send: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_send.set(Box::new(on_send));
    }

    /// Whether the loop is part of a simulation, where several loops share a thread.
    #[cfg(feature = "sim")]
    pub(crate) fn is_simulated(&self) -> bool {
        self.on_send.get().is_some()
    }

    #[cfg(not(feature = "sim"))]
    #[inline(always)]
    pub(crate) fn is_simulated(&self) -> bool {
        false
    }

    /// The loop's thread.
    pub(crate) fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Whether this process is a fork of the loop's process. Then nothing here may be used: the loop's thread may not
    /// exist, and another thread may have held a lock at the time of the fork.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    /// Sends from any thread. Returns the item if the loop has closed or belongs to the parent process.
    pub(crate) fn send(&self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        self.push(|pending| pending.extend(item.take()));
        item.map_or(Ok(()), Err)
    }

    /// Sends all items with one lock. If the loop has closed, they stay in `items`. Returns whether it woke the loop.
    pub(crate) fn send_all(&self, items: &mut Vec<T>) -> bool {
        self.push(|pending| pending.append(items))
    }

    /// Calls `push`, unless the loop has closed. Returns whether it woke the loop.
    fn push(&self, push: impl FnOnce(&mut Vec<T>)) -> bool {
        if self.is_forked() {
            return false;
        }
        match &mut *lock(&self.pending) {
            Some(pending) => push(pending),
            None => return false,
        }
        #[cfg(feature = "sim")]
        if let Some(on_send) = self.on_send.get() {
            on_send();
        }
        let must_wake = self.state.0.swap(NOTIFIED, SeqCst) == ASLEEP;
        if must_wake && let Some(notifier) = &*lock(&self.notifier) {
            notifier.notify();
        }
        must_wake
    }

    /// Whether the loop is blocked in the driver, so that its answer to anything takes a wake-up.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.0.load(Relaxed) == ASLEEP
    }

    /// Whether the loop has closed or belongs to the parent process.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_forked() || lock(&self.pending).is_none()
    }

    /// Called before the loop sleeps. False if an item was sent since the last `collect`: then it must not sleep.
    #[must_use]
    pub(crate) fn fall_asleep(&self) -> bool {
        // `flush` may have set `ASLEEP` already, on behalf of an embedding loop.
        let before = self.state.0.compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst);
        matches!(before, Ok(_) | Err(ASLEEP))
    }

    /// Called after a sleep. If an item was sent meanwhile, the state stays `NOTIFIED`.
    pub(crate) fn wake_up(&self) {
        let _ = self.state.0.compare_exchange(ASLEEP, AWAKE, SeqCst, SeqCst);
    }

    /// Whether an item was sent since the last `collect`. Costs one load.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.state.0.load(SeqCst) == NOTIFIED
    }

    /// Swaps the sent items with `items`, which must be empty.
    pub(crate) fn collect(&self, items: &mut Vec<T>) {
        debug_assert!(items.is_empty());
        self.state.0.swap(AWAKE, SeqCst);
        if let Some(pending) = &mut *lock(&self.pending) {
            std::mem::swap(pending, items);
        }
    }

    /// Closes the inbox: later sends fail, and the driver's notifier is dropped. Returns the items not yet collected.
    pub(crate) fn close(&self) -> Vec<T> {
        let items = lock(&self.pending).take();
        let notifier = lock(&self.notifier).take();
        drop(notifier);
        items.unwrap_or_default()
    }
}

/// Locks the queue or the notifier. Nothing that can panic runs under the queue's lock; and neither taking nor calling
/// the notifier leaves it half-changed, even if the call panics. So what a poisoned mutex holds is intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Notify for Count {
        fn notify(&self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_burst_to_a_sleeping_loop_notifies_once_and_to_a_running_one_never() {
        let count = Arc::new(Count::default());
        let inbox = Inbox::new(count.clone());
        inbox.send(0).unwrap();
        assert_eq!(count.0.load(SeqCst), 0);
        assert!(!inbox.fall_asleep(), "an item was sent");
        let mut items = Vec::new();
        inbox.collect(&mut items);
        assert!(inbox.fall_asleep());
        for i in 1..=100 {
            inbox.send(i).unwrap();
        }
        assert_eq!(count.0.load(SeqCst), 1);
        inbox.wake_up();
        assert!(inbox.has_events());
        items.clear();
        inbox.collect(&mut items);
        assert_eq!(items, (1..=100).collect::<Vec<_>>());
        assert!(!inbox.has_events());
    }

    #[test]
    fn a_batch_notifies_once_and_stays_with_the_sender_of_a_closed_inbox() {
        let count = Arc::new(Count::default());
        let inbox = Inbox::new(count.clone());
        assert!(inbox.fall_asleep() && inbox.is_asleep());
        let mut batch = vec![1, 2, 3];
        assert!(inbox.send_all(&mut batch));
        assert_eq!((batch.len(), count.0.load(SeqCst), inbox.is_asleep()), (0, 1, false));
        assert_eq!(inbox.close(), [1, 2, 3]);
        batch.push(4);
        assert!(!inbox.send_all(&mut batch));
        assert_eq!(batch, [4]);
    }

    #[test]
    fn a_closed_inbox_releases_the_notifier() {
        let count = Arc::new(Count::default());
        let inbox: Inbox<u32> = Inbox::new(count.clone());
        assert_eq!(Arc::strong_count(&count), 2);
        inbox.close();
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn a_closed_inbox_returns_items() {
        let inbox = Inbox::new(Arc::new(Count::default()));
        inbox.send(1).unwrap();
        assert_eq!(inbox.close(), [1]);
        assert_eq!(inbox.send(2), Err(2));
        assert!(inbox.is_closed());
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release --lib loom_` tries every interleaving.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Condvar, Mutex};

    /// The driver's sleep: a flag and a condition variable.
    #[derive(Default)]
    struct Sleep {
        notified: Mutex<bool>,
        condvar: Condvar,
    }

    impl Sleep {
        /// Hangs, which loom reports as a deadlock, if no notification comes.
        fn sleep(&self) {
            let mut notified = self.notified.lock().unwrap();
            while !*notified {
                notified = self.condvar.wait(notified).unwrap();
            }
            *notified = false;
        }
    }

    impl Notify for Sleep {
        fn notify(&self) {
            *self.notified.lock().unwrap() = true;
            self.condvar.notify_one();
        }
    }

    /// A loop that sleeps until it has received `expected` items.
    fn run_loop(inbox: &Inbox<u32>, sleep: &Sleep, expected: usize) {
        let mut received = 0;
        let mut items = Vec::new();
        while received < expected {
            if inbox.fall_asleep() {
                sleep.sleep();
                inbox.wake_up();
            }
            if inbox.has_events() {
                inbox.collect(&mut items);
                received += items.drain(..).count();
            }
        }
    }

    #[test]
    fn loom_no_wake_is_lost() {
        loom::model(|| {
            let sleep = Arc::new(Sleep::default());
            let inbox = Arc::new(Inbox::new(sleep.clone()));
            let senders: Vec<_> = (0..2)
                .map(|i| {
                    let inbox = inbox.clone();
                    loom::thread::spawn(move || inbox.send(i).unwrap())
                })
                .collect();
            run_loop(&inbox, &sleep, 2);
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_a_batch_is_received_whole_or_stays_with_its_sender() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new(Arc::new(Sleep::default())));
            let sender = {
                let inbox = inbox.clone();
                loom::thread::spawn(move || {
                    let mut batch = vec![1, 2];
                    inbox.send_all(&mut batch);
                    batch
                })
            };
            let received = inbox.close();
            let kept = sender.join().unwrap();
            assert_eq!([received, kept].concat(), [1, 2]);
        });
    }

    #[test]
    fn loom_no_wake_of_batches_is_lost() {
        loom::model(|| {
            let sleep = Arc::new(Sleep::default());
            let inbox = Arc::new(Inbox::new(sleep.clone()));
            let senders: Vec<_> = (0..2)
                .map(|i| {
                    let inbox = inbox.clone();
                    loom::thread::spawn(move || inbox.send_all(&mut vec![i, i]))
                })
                .collect();
            run_loop(&inbox, &sleep, 4);
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_an_item_is_received_or_given_back() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new(Arc::new(Sleep::default())));
            let sender = {
                let inbox = inbox.clone();
                loom::thread::spawn(move || inbox.send(7).is_ok())
            };
            let received = inbox.close();
            assert_eq!(sender.join().unwrap(), received == [7]);
        });
    }
}
