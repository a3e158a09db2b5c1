//! The loop's letterbox: the only part of it that other threads touch.
//!
//! A sender puts its item into the inbox and then makes sure that the loop will look. Three states tell whether that
//! needs a system call:
//!
//! - `AWAKE`: the loop is running and has seen everything sent so far. It looks at the state again before it sleeps.
//! - `ASLEEP`: the loop is in, or on its way into, the driver's sleep. Only a notification ends it.
//! - `NOTIFIED`: somebody has sent something since the loop last looked, and has already notified it if need be.
//!
//! A sender swaps in `NOTIFIED` *after* its item is in the inbox, and notifies the driver only if it found `ASLEEP`: so
//! a burst of sends costs one system call, and sends to a running loop cost none. The loop goes to sleep only through a
//! compare-and-swap from `AWAKE` to `ASLEEP`, which fails if anything came in the meantime; and it sets `AWAKE` *before*
//! it empties the inbox, so an item is either taken now or announced by a new `NOTIFIED`. `tests` below put the real
//! code through loom.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::driver::Notify;
use crate::sync::loom_shim::{AtomicU8, Mutex, MutexGuard};
use crate::sys;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

/// The letterbox of one loop, for items of type `T`.
pub(crate) struct Inbox<T> {
    state: Apart,
    pending: Mutex<Pending<T>>,
    /// Owns a descriptor of the driver's, so closing the loop takes it out: tasks' wakers and handles on other threads may
    /// live much longer. Locked during a notification, so that the descriptor is closed when `close` returns.
    notifier: Mutex<Option<Arc<dyn Notify>>>,
    /// The process that made it: see `sys::forks`.
    forks: u32,
}

/// In a cache line of its own: a loop that looks out reads it all the time, and would take the inbox away from who is writing
/// there.
#[repr(align(128))]
struct Apart(AtomicU8);

struct Pending<T> {
    items: Vec<T>,
    closed: bool,
}

impl<T> Inbox<T> {
    pub(crate) fn new(notifier: Arc<dyn Notify>) -> Inbox<T> {
        Inbox {
            state: Apart(AtomicU8::new(AWAKE)),
            pending: Mutex::new(Pending {
                items: Vec::new(),
                closed: false,
            }),
            notifier: Mutex::new(Some(notifier)),
            forks: sys::count_forks(),
        }
    }

    /// Whether this process is a fork of the one that has the loop. The loop's thread may not exist here, and another may have
    /// held the lock when the process forked, so nothing of this may be used.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    /// Sends from any thread. Gives the item back when the loop is gone, or is another process's.
    pub(crate) fn send(&self, item: T) -> Result<(), T> {
        if self.is_forked() {
            return Err(item);
        }
        {
            let mut pending = self.lock();
            if pending.closed {
                return Err(item);
            }
            pending.items.push(item);
        }
        if self.state.0.swap(NOTIFIED, SeqCst) == ASLEEP
            && let Some(notifier) = &*self.notifier()
        {
            notifier.notify();
        }
        Ok(())
    }

    /// Whether the loop is gone, or is another process's.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_forked() || self.lock().closed
    }

    /// The loop is about to sleep. False if something was sent since it last looked: then it must not.
    #[must_use]
    pub(crate) fn fall_asleep(&self) -> bool {
        // It may be asleep already: before, for an outer loop.
        let before = self.state.0.compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst);
        matches!(before, Ok(_) | Err(ASLEEP))
    }

    /// The loop came back from its sleep. What was sent meanwhile stays announced.
    pub(crate) fn wake_up(&self) {
        let _ = self.state.0.compare_exchange(ASLEEP, AWAKE, SeqCst, SeqCst);
    }

    /// Whether something was sent since the loop last looked. Costs one load.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.state.0.load(SeqCst) == NOTIFIED
    }

    /// Swaps what was sent with `items`, which the loop has emptied.
    pub(crate) fn collect(&self, items: &mut Vec<T>) {
        debug_assert!(items.is_empty());
        self.state.0.swap(AWAKE, SeqCst);
        std::mem::swap(&mut self.lock().items, items);
    }

    /// Closes the box: later sends fail, and the driver's notifier is released. Gives what was sent and not collected.
    pub(crate) fn close(&self) -> Vec<T> {
        let items = {
            let mut pending = self.lock();
            pending.closed = true;
            std::mem::take(&mut pending.items)
        };
        let notifier = self.notifier().take();
        drop(notifier);
        items
    }

    fn notifier(&self) -> MutexGuard<'_, Option<Arc<dyn Notify>>> {
        // Taking and calling it leave it whole, also if the call panics.
        self.notifier.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        // Nothing that can panic runs under this lock, so a poisoned one still holds a whole inbox.
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
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
        assert!(!inbox.fall_asleep(), "there is mail");
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
    fn a_closed_box_releases_the_notifier() {
        let count = Arc::new(Count::default());
        let inbox: Inbox<u32> = Inbox::new(count.clone());
        assert_eq!(Arc::strong_count(&count), 2);
        inbox.close();
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn a_closed_box_gives_items_back() {
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

    /// A driver's sleep: a flag and a condition variable.
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
