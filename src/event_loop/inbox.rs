//! The inject queue: the only part of a loop that other threads touch.
//!
//! The state word says what the loop does, and holds up to one item itself:
//!
//! - `AWAKE`: the loop is running and has collected everything sent so far. It checks the state again before it sleeps.
//! - `ASLEEP`: the loop is blocked in the driver, or about to block. The sender must notify the driver.
//! - An item, as an address: sent while the loop was awake. Moving it takes two cache lines, this word and the item's memory;
//!   through the queue it would also take the lock and the queue's memory, there and back.
//! - `QUEUED`, alone or as a bit next to an item: items are in the queue. They were sent after the one in the word.
//! - `CLOSED`: the loop has ended.
//!
//! A burst of sends costs one system call, and sends to a running loop cost none. No wake-up is lost: the loop sleeps
//! only after a compare-and-swap from `AWAKE` to `ASLEEP`, which fails if an item was sent. Items of one sender keep their
//! order: `QUEUED` is set and cleared under the queue's lock together with the change of the queue, so while the queue is not
//! empty, the word is not `AWAKE`, and no later item can get into it. Loom checks this.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::{self, Thread};

use crate::driver::Notify;
use crate::sync::loom_shim::{AtomicPtr, Mutex, MutexGuard};
use crate::sys;

const AWAKE: usize = 0;
const ASLEEP: usize = 1;
const CLOSED: usize = 2;
const QUEUED: usize = 4;

/// What an inbox holds.
pub(crate) trait Item: Sized {
    /// The address that owns the item now, if it fits into one: at least 8, with the bits of `CLOSED` and `QUEUED` clear.
    fn into_word(self) -> Result<*mut (), Self>;

    /// # Safety
    ///
    /// The word is from [`into_word`](Item::into_word), and is used once.
    unsafe fn from_word(word: *mut ()) -> Self;

    /// Asks the processor to load the item's memory, which another one has written.
    fn prefetch(&self) {}
}

/// The inject queue of one loop, for items of type `T`.
pub(crate) struct Inbox<T: Item> {
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
struct CacheAligned(AtomicPtr<()>);

/// A state without an item.
fn plain(state: usize) -> *mut () {
    ptr::without_provenance_mut(state)
}

/// The item in a state word.
fn item_of<T: Item>(state: *mut ()) -> Option<T> {
    let word = state.map_addr(|address| address & !QUEUED);
    // SAFETY: an address above `CLOSED` is an item's. The caller has taken the state out of the inbox, so it is used once.
    (word.addr() > CLOSED).then(|| unsafe { T::from_word(word) })
}

impl<T: Item> Inbox<T> {
    pub(crate) fn new(notifier: Arc<dyn Notify>) -> Inbox<T> {
        Inbox {
            state: CacheAligned(AtomicPtr::new(plain(AWAKE))),
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

    #[cfg(feature = "sim")]
    fn note_send(&self) {
        if let Some(on_send) = self.on_send.get() {
            on_send();
        }
    }

    #[cfg(not(feature = "sim"))]
    #[inline(always)]
    fn note_send(&self) {}

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
        let mut item = match self.put(item) {
            Ok(()) => return Ok(()),
            Err(item) => Some(item),
        };
        self.push(|pending| pending.extend(item.take()));
        item.map_or(Ok(()), Err)
    }

    /// Sends all items with one lock. If the loop has closed, they stay in `items`. Returns whether it woke the loop.
    pub(crate) fn send_all(&self, items: &mut Vec<T>) -> bool {
        if items.len() == 1
            && let Some(item) = items.pop()
        {
            match self.put(item) {
                Ok(()) => return false,
                Err(item) => items.push(item),
            }
        }
        self.push(|pending| pending.append(items))
    }

    /// Puts an item into the state word of a loop that is awake and has nothing to collect. Otherwise returns it.
    #[inline]
    fn put(&self, item: T) -> Result<(), T> {
        if self.is_forked() {
            return Err(item);
        }
        let word = item.into_word()?;
        match self.state.0.compare_exchange(plain(AWAKE), word, SeqCst, Relaxed) {
            Ok(_) => {
                self.note_send();
                Ok(())
            }
            // SAFETY: the word did not get into the state, so it is used once.
            Err(_) => Err(unsafe { T::from_word(word) }),
        }
    }

    /// Calls `push`, unless the loop has closed. Returns whether it woke the loop.
    fn push(&self, push: impl FnOnce(&mut Vec<T>)) -> bool {
        if self.is_forked() {
            return false;
        }
        let must_wake = {
            let mut pending = lock(&self.pending);
            match &mut *pending {
                Some(pending) => push(pending),
                None => return false,
            }
            self.announce()
        };
        self.note_send();
        if must_wake && let Some(notifier) = &*lock(&self.notifier) {
            notifier.notify();
        }
        must_wake
    }

    /// Sets `QUEUED`, under the lock of the queue. Returns whether the loop was asleep.
    fn announce(&self) -> bool {
        let mut state = self.state.0.load(SeqCst);
        while state.addr() & QUEUED == 0 {
            let next = match state.addr() {
                ASLEEP => plain(QUEUED),
                _ => state.map_addr(|address| address | QUEUED),
            };
            match self.state.0.compare_exchange(state, next, SeqCst, SeqCst) {
                Ok(before) => return before.addr() == ASLEEP,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Whether the loop is blocked in the driver, so that its answer to anything takes a wake-up.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.0.load(Relaxed).addr() == ASLEEP
    }

    /// Whether the loop has closed or belongs to the parent process.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_forked() || self.state.0.load(SeqCst).addr() == CLOSED
    }

    /// Called before the loop sleeps. False if an item was sent since the last `collect`: then it must not sleep.
    #[must_use]
    pub(crate) fn fall_asleep(&self) -> bool {
        let before = self
            .state
            .0
            .compare_exchange(plain(AWAKE), plain(ASLEEP), SeqCst, SeqCst);
        // `flush` may have set `ASLEEP` already, on behalf of an embedding loop.
        before.map_or_else(|state| matches!(state.addr(), ASLEEP | CLOSED), |_| true)
    }

    /// Called after a sleep. If an item was sent meanwhile, the state stays as it is.
    pub(crate) fn wake_up(&self) {
        let _ = self
            .state
            .0
            .compare_exchange(plain(ASLEEP), plain(AWAKE), SeqCst, SeqCst);
    }

    /// Whether an item was sent since the last `collect`. Costs one load.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.state.0.load(SeqCst).addr() > CLOSED
    }

    /// Moves the sent items to `items`, which must be empty.
    pub(crate) fn collect(&self, items: &mut Vec<T>) {
        debug_assert!(items.is_empty());
        let state = self.state.0.load(SeqCst);
        sys::prefetch(state);
        // Without `QUEUED` the queue is empty.
        if state.addr() & QUEUED == 0
            && state.addr() > CLOSED
            && self
                .state
                .0
                .compare_exchange(state, plain(AWAKE), SeqCst, SeqCst)
                .is_ok()
        {
            items.extend(item_of::<T>(state));
            return;
        }
        let mut pending = lock(&self.pending);
        let Some(pending) = &mut *pending else { return };
        match item_of::<T>(self.state.0.swap(plain(AWAKE), SeqCst)) {
            None => std::mem::swap(pending, items),
            Some(first) => {
                items.push(first);
                items.append(pending);
            }
        }
        for item in items {
            item.prefetch();
        }
    }

    /// Closes the inbox: later sends fail, and the driver's notifier is dropped. Returns the items not yet collected.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut pending = lock(&self.pending);
        let queued = pending.take();
        let state = self.state.0.swap(plain(CLOSED), SeqCst);
        drop(pending);
        let notifier = lock(&self.notifier).take();
        drop(notifier);
        item_of::<T>(state)
            .into_iter()
            .chain(queued.unwrap_or_default())
            .collect()
    }
}

impl<T: Item> Drop for Inbox<T> {
    fn drop(&mut self) {
        drop(item_of::<T>(self.state.0.swap(plain(CLOSED), SeqCst)));
    }
}

/// Locks the queue or the notifier. Nothing that can panic runs under the queue's lock; and neither taking nor calling
/// the notifier leaves it half-changed, even if the call panics. So what a poisoned mutex holds is intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
impl Item for u32 {
    fn into_word(self) -> Result<*mut (), u32> {
        Ok(Box::into_raw(Box::new(u64::from(self))).cast())
    }

    unsafe fn from_word(word: *mut ()) -> u32 {
        // SAFETY: the caller's promise: the address is of a box.
        *unsafe { Box::from_raw(word.cast::<u64>()) } as u32
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
    fn the_item_in_the_state_word_comes_before_the_queue() {
        let count = Arc::new(Count::default());
        let inbox = Inbox::new(count.clone());
        let mut items = Vec::new();
        inbox.send(1).unwrap();
        assert!(
            lock(&inbox.pending).as_ref().is_some_and(Vec::is_empty),
            "it is in the state word"
        );
        inbox.collect(&mut items);
        assert_eq!(items, [1]);
        assert!(!inbox.has_events());
        items.clear();
        inbox.send(2).unwrap();
        inbox.send_all(&mut vec![3]);
        inbox.send_all(&mut vec![4, 5]);
        assert!(inbox.has_events() && !inbox.fall_asleep());
        inbox.collect(&mut items);
        assert_eq!(items, [2, 3, 4, 5]);
        assert!(inbox.fall_asleep());
        inbox.send(6).unwrap();
        assert_eq!(count.0.load(SeqCst), 1);
        inbox.send(7).unwrap();
        assert_eq!(inbox.close(), [6, 7]);
    }

    #[test]
    fn an_inbox_drops_the_item_in_its_state_word() {
        struct Dropped(#[allow(dead_code, reason = "only its drop counts")] Arc<()>);
        impl Item for Dropped {
            fn into_word(self) -> Result<*mut (), Dropped> {
                Ok(Box::into_raw(Box::new(self)).cast())
            }

            unsafe fn from_word(word: *mut ()) -> Dropped {
                // SAFETY: the caller's promise: the address is of a box.
                *unsafe { Box::from_raw(word.cast()) }
            }
        }
        let item = Arc::new(());
        let inbox = Inbox::new(Arc::new(Count::default()));
        assert!(inbox.send(Dropped(item.clone())).is_ok());
        assert_eq!(Arc::strong_count(&item), 2);
        drop(inbox);
        assert_eq!(Arc::strong_count(&item), 1);
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

    /// A loop that sleeps until it has received `expected` items, which it returns.
    fn run_loop(inbox: &Inbox<u32>, sleep: &Sleep, expected: usize) -> Vec<u32> {
        let mut received = Vec::new();
        let mut items = Vec::new();
        while received.len() < expected {
            if inbox.fall_asleep() {
                sleep.sleep();
                inbox.wake_up();
            }
            if inbox.has_events() {
                inbox.collect(&mut items);
                received.append(&mut items);
            }
        }
        received
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
    fn loom_items_of_one_sender_keep_their_order() {
        loom::model(|| {
            let sleep = Arc::new(Sleep::default());
            let inbox = Arc::new(Inbox::new(sleep.clone()));
            let sender = {
                let inbox = inbox.clone();
                loom::thread::spawn(move || {
                    inbox.send(1).unwrap();
                    inbox.send_all(&mut vec![2, 3]);
                    inbox.send(4).unwrap();
                })
            };
            assert_eq!(run_loop(&inbox, &sleep, 4), [1, 2, 3, 4]);
            sender.join().unwrap();
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
