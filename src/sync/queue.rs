//! Queues between tasks: FIFO, LIFO and by priority.
//!
//! A queue has two semaphores: one permit per item and one per free slot. `get` acquires an item permit and then
//! removes an item; `put` acquires a slot permit and then inserts the item. So an item is in the queue until the `get`
//! that returns it completes, and not in the queue until its `put` completes. A future dropped while it waits, even
//! after its grant, loses only its position in the queue. The order of waiters does not depend on the order of items,
//! so the three queues differ only in their store.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use super::error::{Closed, SendError, TryRecvError, TrySendError};
use super::order::{Fifo, Lifo, Order, SmallestFirst};
use super::permits::{Denied, LocalPermits, Permits, ReleaseOnDrop, acquire};
use super::wait::{StateCell, Until, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// A FIFO queue: asyncio's `Queue`. Its methods are on [`OrderedQueue`].
///
/// ```
/// use windlass::sync::Queue;
/// windlass::run(async {
///     let jobs = Queue::bounded(2);
///     let worker = windlass::spawn({
///         let jobs = jobs.clone();
///         async move {
///             let mut sum = 0;
///             while let Ok(job) = jobs.get().await {
///                 sum += job;
///                 jobs.task_done();
///             }
///             sum
///         }
///     });
///     for job in 1..=10 {
///         jobs.put(job).await.unwrap(); // waits while two are queued
///     }
///     jobs.join().await; // until every item is marked done
///     jobs.close();
///     assert_eq!(worker.await.unwrap(), 55);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Queue<T> = OrderedQueue<T, Fifo>;

/// A LIFO queue: asyncio's `LifoQueue`. Its methods are on [`OrderedQueue`].
///
/// ```
/// use windlass::sync::LifoQueue;
/// windlass::run(async {
///     let stack = LifoQueue::unbounded();
///     stack.put("first").await.unwrap();
///     stack.put("last").await.unwrap();
///     assert_eq!(stack.get().await, Ok("last"));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type LifoQueue<T> = OrderedQueue<T, Lifo>;

/// A queue that returns the smallest item first, and equal items in FIFO order: asyncio's `PriorityQueue`. Its methods
/// are on [`OrderedQueue`]. For the largest first, use [`std::cmp::Reverse`].
///
/// ```
/// use windlass::sync::PriorityQueue;
/// windlass::run(async {
///     let queue = PriorityQueue::unbounded();
///     queue.put((2, "later")).await.unwrap();
///     queue.put((1, "soon")).await.unwrap();
///     assert_eq!(queue.get().await, Ok((1, "soon")));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type PriorityQueue<T> = OrderedQueue<T, SmallestFirst>;

/// The generic form of [`Queue`], [`LifoQueue`] and [`PriorityQueue`].
///
/// It is a handle: clones share one queue, so no `Rc` is needed.
///
/// Waiters on either side are served in FIFO order. An item put while a getter waits is reserved for that getter: it
/// does not count in [`len`](OrderedQueue::len), and [`try_get`](OrderedQueue::try_get) does not take it.
///
/// ```
/// use windlass::sync::{Order, OrderedQueue, PriorityQueue, Queue};
/// fn fill<O: Order<u32>>(queue: &OrderedQueue<u32, O>) {
///     for item in [3, 1, 2] {
///         queue.try_put(item).unwrap();
///     }
/// }
/// let (by_age, by_size) = (Queue::unbounded(), PriorityQueue::bounded(3));
/// fill(&by_age);
/// fill(&by_size);
/// assert_eq!((by_age.try_get(), by_size.try_get()), (Ok(3), Ok(1)));
/// ```
pub struct OrderedQueue<T, O: Order<T>> {
    pub(super) shared: Rc<Shared<T, O>>,
}

pub(super) struct Shared<T, O: Order<T>> {
    capacity: usize,
    /// One permit per item that is not reserved.
    pub(super) items: LocalPermits,
    /// One permit per free slot that is not reserved. Closed with the queue.
    pub(super) free_slots: LocalPermits,
    work: RefCell<JoinState>,
    store: RefCell<O::Store>,
}

/// The number of items without a `task_done`, and the tasks that wait in `join`.
struct JoinState {
    unfinished: usize,
    wait_queue: WaitQueue<()>,
}

impl<T, O: Order<T>> OrderedQueue<T, O> {
    /// Creates a queue for at most `capacity` items: `put` waits while it is full.
    ///
    /// # Panics
    ///
    /// If the capacity is zero. (In asyncio, zero means unbounded: see [`unbounded`](OrderedQueue::unbounded).)
    #[track_caller]
    pub fn bounded(capacity: usize) -> OrderedQueue<T, O> {
        assert!(
            capacity > 0,
            "the capacity of a queue must be at least 1: use `unbounded()` for no limit"
        );
        OrderedQueue::with_capacity(capacity)
    }

    /// Creates a queue without a limit: `put` never waits. If producers outpace consumers, memory use grows unbounded.
    pub fn unbounded() -> OrderedQueue<T, O> {
        OrderedQueue::with_capacity(usize::MAX)
    }

    fn with_capacity(capacity: usize) -> OrderedQueue<T, O> {
        OrderedQueue {
            shared: Rc::new(Shared {
                capacity,
                items: RefCell::new(Permits::new(0)),
                free_slots: RefCell::new(Permits::new(capacity)),
                work: RefCell::new(JoinState {
                    unfinished: 0,
                    wait_queue: WaitQueue::new(),
                }),
                store: RefCell::default(),
            }),
        }
    }

    /// Puts an item, waiting for room behind earlier putters. Returns the item if the queue is closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the item was not put and is dropped too. To keep the item, put a
    /// clone, or use [`try_put`](OrderedQueue::try_put), which returns it.
    pub async fn put(&self, item: T) -> Result<(), SendError<T>> {
        match acquire(&self.shared.free_slots, 1, &"room in a queue").await {
            // The queue may have been closed since the grant.
            Ok(()) if !self.is_closed() => {
                self.shared.insert(item);
                Ok(())
            }
            _ => Err(SendError(item)),
        }
    }

    /// Puts an item if there is room and no other putter waits.
    pub fn try_put(&self, item: T) -> Result<(), TrySendError<T>> {
        match self.shared.free_slots.with(|free| free.try_take(1)) {
            Ok(()) => {
                self.shared.insert(item);
                Ok(())
            }
            Err(Denied::Busy) => Err(TrySendError::Full(item)),
            Err(Denied::Closed) => Err(TrySendError::Closed(item)),
        }
    }

    /// Gets an item, waiting behind earlier getters. Fails when the queue is closed and empty.
    ///
    /// The name and the error are those of asyncio's `Queue.get`: `while let Ok(item) = queue.get().await` ends with the
    /// queue. For the `Option` that tokio's `recv` returns, append `.ok()`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, no item was taken; one reserved for it goes to the next getter.
    pub async fn get(&self) -> Result<T, Closed> {
        acquire(&self.shared.items, 1, &"a queue").await?;
        // The store is empty if `close_now` was called since the grant.
        self.shared.remove().ok_or(Closed)
    }

    /// Gets an item if there is one that is not reserved.
    pub fn try_get(&self) -> Result<T, TryRecvError> {
        match self.shared.items.update(|items| items.try_take(1)) {
            Ok(()) => self.shared.remove().ok_or(TryRecvError::Closed),
            Err(Denied::Busy) => Err(TryRecvError::Empty),
            Err(Denied::Closed) => Err(TryRecvError::Closed),
        }
    }

    /// Marks the work on one item returned by [`get`](OrderedQueue::get) as done.
    ///
    /// # Panics
    ///
    /// If it is called more often than items were put: asyncio's `ValueError`.
    #[track_caller]
    pub fn task_done(&self) {
        let unfinished = self.shared.work.with(|work| work.unfinished);
        assert!(
            unfinished > 0,
            "task_done was called more often than items were put: call it once for each item"
        );
        self.shared.mark_done(1);
    }

    /// Waits until [`task_done`](OrderedQueue::task_done) was called for every item. Dropping the future has no effect.
    pub async fn join(&self) {
        let all_done = Until {
            queue: |work: &mut JoinState| &mut work.wait_queue,
            condition: |work, ()| work.unfinished == 0,
            arg: (),
        };
        WaitFuture::new(&self.shared.work, &"a queue's join", all_done).await;
    }

    /// The number of items without a [`task_done`](OrderedQueue::task_done).
    pub fn unfinished(&self) -> usize {
        self.shared.work.with(|work| work.unfinished)
    }

    /// Closes the queue for putting: current and future puts return their items. Remaining items can still be got;
    /// after the last one, `get` fails. asyncio's `shutdown()`.
    pub fn close(&self) {
        self.shared.free_slots.update(Permits::close);
        self.shared.items.update(Permits::drain);
    }

    /// Closes the queue and drops its items, which count as done. Returns their number. asyncio's
    /// `shutdown(immediate=True)`.
    pub fn close_now(&self) -> usize {
        self.shared.free_slots.update(Permits::close);
        // Moved out of the cell first, because the items' destructors may use the queue.
        let store = std::mem::take(&mut *self.shared.store());
        let count = O::len(&store);
        self.shared.items.update(|items| {
            items.remove(usize::MAX);
            items.close();
        });
        self.shared.mark_done(count);
        drop(store);
        count
    }

    /// Whether the queue is closed. It may still contain items.
    pub fn is_closed(&self) -> bool {
        self.shared.free_slots.with(|free| free.is_closed())
    }

    /// The number of items, without those reserved for waiting getters.
    pub fn len(&self) -> usize {
        self.shared.items.with(|items| items.available())
    }

    /// Whether there is no item that is not reserved.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no free slot. Slots reserved for waiting putters count as used.
    pub fn is_full(&self) -> bool {
        self.shared.free_slots.with(|free| free.available() == 0)
    }

    /// The maximum number of items; `None` if there is no limit.
    pub fn capacity(&self) -> Option<usize> {
        (self.shared.capacity != usize::MAX).then_some(self.shared.capacity)
    }

    /// Whether both handles belong to the same queue.
    pub fn same_queue(&self, other: &OrderedQueue<T, O>) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T, O: Order<T>> Shared<T, O> {
    #[track_caller]
    fn store(&self) -> std::cell::RefMut<'_, O::Store> {
        let store = self.store.try_borrow_mut();
        store.unwrap_or_else(|_| panic!("comparing items used the queue that contains them"))
    }

    /// Requires a slot permit.
    pub(super) fn insert(&self, item: T) {
        let mut release = ReleaseOnDrop(&self.free_slots);
        let mut store = self.store();
        // From here on the item is in, even if comparing items panics. Its permit is released after the store.
        release.0 = &self.items;
        self.work.with(|work| work.unfinished += 1);
        O::push(&mut store, item);
    }

    /// Requires an item permit.
    pub(super) fn remove(&self) -> Option<T> {
        let mut release = ReleaseOnDrop(&self.items);
        let mut store = self.store();
        // From here on the item is out, even if comparing items panics.
        release.0 = &self.free_slots;
        O::pop(&mut store)
    }

    fn mark_done(&self, count: usize) {
        self.work.update(|work| {
            // `task_done` may be called before the item is got.
            work.unfinished = work.unfinished.saturating_sub(count);
            if work.unfinished == 0 {
                work.wait_queue.grant_all(|| ());
            }
        });
    }
}

impl WaitState for JoinState {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

impl<T, O: Order<T>> Clone for OrderedQueue<T, O> {
    fn clone(&self) -> OrderedQueue<T, O> {
        OrderedQueue {
            shared: self.shared.clone(),
        }
    }
}

impl<T, O: Order<T>> fmt::Debug for OrderedQueue<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = |permits: &LocalPermits| permits.with(|permits| permits.waiting());
        f.debug_struct("OrderedQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("getters", &waiting(&self.shared.items))
            .field("putters", &waiting(&self.shared.free_slots))
            .field("unfinished", &self.unfinished())
            .field("closed", &self.is_closed())
            .finish()
    }
}
