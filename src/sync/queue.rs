//! Queues between tasks.
//!
//! A queue has a permit for each item and one for each free place. `get` waits for an item's permit and then takes the
//! item out; `put` waits for a place's permit and then puts the item in. So an item is in the queue until the very
//! moment when a `get` returns it, and outside of it until a `put` returns: whoever is dropped while it waits, even
//! after it was called, loses nothing but its place in the line. What waits in which order does not depend on the order
//! of the items, so the three queues differ only in their store.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use super::error::{Closed, SendError, TryRecvError, TrySendError};
use super::order::{Fifo, Lifo, Order, SmallestFirst};
use super::permits::{Denied, LocalPermits, Permits, acquire};
use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// A queue that gives items in the order in which they were put: asyncio's `Queue`. Its methods are at
/// [`OrderedQueue`].
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
///     jobs.join().await; // until all are done
///     jobs.close();
///     assert_eq!(worker.await.unwrap(), 55);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type Queue<T> = OrderedQueue<T, Fifo>;

/// A queue that gives the item that was put last: asyncio's `LifoQueue`. Its methods are at [`OrderedQueue`].
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

/// A queue that gives the smallest item, and of equal ones the oldest: asyncio's `PriorityQueue`. Its methods are at
/// [`OrderedQueue`]. For the largest first, put [`std::cmp::Reverse`].
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

/// What [`Queue`], [`LifoQueue`] and [`PriorityQueue`] have in common.
///
/// It is a handle: clones are the same queue. A queue is always shared by tasks that live apart, and none of its
/// methods gives out a borrow, so it spares its users the `Rc`.
///
/// Whoever waits, on either side, is served in the order of coming. An item that is put while somebody waits is that
/// one's from then on: it does not count in [`len`](OrderedQueue::len), and [`try_get`](OrderedQueue::try_get) does not
/// snatch it.
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
    shared: Rc<Shared<T, O>>,
}

struct Shared<T, O: Order<T>> {
    capacity: usize,
    /// Its permits: items that nobody was promised.
    items: LocalPermits,
    /// Its permits: places that nobody was promised.
    room: LocalPermits,
    work: RefCell<Work>,
    store: RefCell<O::Store>,
    is_closed: Cell<bool>,
}

/// Items that were put and not yet told done, and who waits for there to be none.
struct Work {
    unfinished: usize,
    wait_queue: WaitQueue<(), ()>,
}

impl<T, O: Order<T>> OrderedQueue<T, O> {
    /// Makes a queue with room for so many items: `put` waits when it is full.
    ///
    /// # Panics
    ///
    /// If the capacity is zero. (asyncio takes that for no limit: see [`unbounded`](OrderedQueue::unbounded).)
    #[track_caller]
    pub fn bounded(capacity: usize) -> OrderedQueue<T, O> {
        assert!(
            capacity > 0,
            "a queue without room could hold nothing: use `unbounded()`, or a capacity of 1"
        );
        OrderedQueue::with_room(capacity)
    }

    /// Makes a queue without a limit: `put` never waits. Whoever fills it faster than it is emptied fills the memory.
    pub fn unbounded() -> OrderedQueue<T, O> {
        OrderedQueue::with_room(usize::MAX)
    }

    fn with_room(capacity: usize) -> OrderedQueue<T, O> {
        OrderedQueue {
            shared: Rc::new(Shared {
                capacity,
                items: RefCell::new(Permits::new(0)),
                room: RefCell::new(Permits::new(capacity)),
                work: RefCell::new(Work {
                    unfinished: 0,
                    wait_queue: WaitQueue::new(),
                }),
                store: RefCell::default(),
                is_closed: Cell::new(false),
            }),
        }
    }

    /// Puts an item in, once there is room and everybody who asked before has had it. Gives the item back if the queue
    /// is closed.
    ///
    /// If the future is dropped before it has returned, the item was not put, and is dropped with it. To keep it, put a
    /// clone, or [`try_put`](OrderedQueue::try_put), which gives it back.
    pub async fn put(&self, item: T) -> Result<(), SendError<T>> {
        match acquire(&self.shared.room, 1, "room in a queue").await {
            // It may have been closed between the call and now.
            Ok(()) if !self.is_closed() => {
                self.shared.insert(item);
                Ok(())
            }
            _ => Err(SendError(item)),
        }
    }

    /// Puts an item in if there is room that nobody waits for.
    pub fn try_put(&self, item: T) -> Result<(), TrySendError<T>> {
        if self.is_closed() {
            return Err(TrySendError::Closed(item));
        }
        match self.shared.room.with(|room| room.try_take(1)) {
            Ok(()) => {
                self.shared.insert(item);
                Ok(())
            }
            Err(_) => Err(TrySendError::Full(item)),
        }
    }

    /// Takes an item out, once there is one that nobody waited for longer. Fails when the queue is closed and empty.
    ///
    /// If the future is dropped before it has returned, no item was taken; one that was meant for it goes to the next.
    pub async fn get(&self) -> Result<T, Closed> {
        acquire(&self.shared.items, 1, "a queue").await.map_err(|_| Closed)?;
        // There is none if the queue was closed at once after the call.
        self.shared.remove().ok_or(Closed)
    }

    /// Takes an item out if there is one that nobody waits for.
    pub fn try_get(&self) -> Result<T, TryRecvError> {
        match self.shared.items.act(|items| items.try_take(1)) {
            Ok(()) => self.shared.remove().ok_or(TryRecvError::Closed),
            Err(Denied::Busy) => Err(TryRecvError::Empty),
            Err(Denied::Closed) => Err(TryRecvError::Closed),
        }
    }

    /// Tells that the work on an item, which [`get`](OrderedQueue::get) gave, is done.
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
        self.shared.done(1);
    }

    /// Waits until [`task_done`](OrderedQueue::task_done) was called for every item that was put. Dropping the future
    /// changes nothing.
    pub async fn join(&self) {
        Waiting::new(&self.shared.work, AllDone).await;
    }

    /// How many items were put and are not told done.
    pub fn unfinished(&self) -> usize {
        self.shared.work.with(|work| work.unfinished)
    }

    /// Closes the queue for putting: whoever puts, or waits to put, gets the item back. The items that are in it can
    /// still be had; when there are no more, `get` fails. asyncio's `shutdown()`.
    pub fn close(&self) {
        self.shared.is_closed.set(true);
        self.shared.items.act(Permits::drain);
        self.shared.room.act(Permits::close);
    }

    /// Closes the queue and drops what is in it, which counts as done: asyncio's `shutdown(immediate=True)`. Gives how
    /// many items that were.
    pub fn close_now(&self) -> usize {
        self.shared.is_closed.set(true);
        // Out of the cell before anything else runs.
        let store = std::mem::take(&mut *self.shared.store());
        let count = O::len(&store);
        self.shared.items.act(|items| {
            items.remove(usize::MAX);
            items.close();
        });
        self.shared.room.act(Permits::close);
        self.shared.done(count);
        drop(store);
        count
    }

    /// Whether it was closed. There may be items in it still.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed.get()
    }

    /// How many items are in it, without those that somebody who waited is about to get.
    pub fn len(&self) -> usize {
        self.shared.items.with(|items| items.available())
    }

    /// Whether [`try_get`](OrderedQueue::try_get) would find nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`try_put`](OrderedQueue::try_put) would find no room. Room that somebody who waited is about to use
    /// counts as used.
    pub fn is_full(&self) -> bool {
        self.shared.room.with(|room| room.available() == 0)
    }

    /// How many items it has room for; `None` if there is no limit.
    pub fn capacity(&self) -> Option<usize> {
        (self.shared.capacity != usize::MAX).then_some(self.shared.capacity)
    }

    /// Whether this is a handle of the same queue.
    pub fn same_queue(&self, other: &OrderedQueue<T, O>) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T, O: Order<T>> Shared<T, O> {
    #[track_caller]
    fn store(&self) -> std::cell::RefMut<'_, O::Store> {
        let store = self.store.try_borrow_mut();
        store.unwrap_or_else(|_| panic!("an item's comparison used the queue that the item is in"))
    }

    /// To be called with a permit for the room.
    fn insert(&self, item: T) {
        let mut announce = PutOne(&self.room);
        let mut store = self.store();
        // From here on the item is in, also if a comparison of items panics. Its waiter is called when the store is
        // free.
        announce.0 = &self.items;
        self.work.with(|work| work.unfinished += 1);
        O::push(&mut store, item);
    }

    /// To be called with a permit for an item.
    fn remove(&self) -> Option<T> {
        let mut announce = PutOne(&self.items);
        let mut store = self.store();
        // From here on the item is out, also if a comparison of items panics.
        announce.0 = &self.room;
        O::pop(&mut store)
    }

    fn done(&self, count: usize) {
        self.work.act(|work| {
            // Items may be told done before they were got.
            work.unfinished = work.unfinished.saturating_sub(count);
            AllDone::settle(work);
        });
    }
}

/// Puts a permit in when dropped.
struct PutOne<'a>(&'a LocalPermits);

impl Drop for PutOne<'_> {
    fn drop(&mut self) {
        self.0.act(|permits| permits.put(1));
    }
}

impl Calls for Work {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// That nothing be unfinished.
struct AllDone;

impl Request<Work> for AllDone {
    type Want = ();
    type Grant = ();
    type Output = ();

    fn wait_queue(work: &mut Work) -> &mut WaitQueue<(), ()> {
        &mut work.wait_queue
    }

    fn name(&self) -> &'static str {
        "a queue's join"
    }

    fn want(&self) {}

    fn try_now(&mut self, work: &mut Work) -> Option<()> {
        (work.unfinished == 0).then_some(())
    }

    fn settle(work: &mut Work) {
        if work.unfinished == 0 {
            work.wait_queue.call_all(|| ());
        }
    }

    fn take(&mut self, _work: &mut Work, (): ()) {}

    fn give_back(&mut self, _work: &mut Work, (): ()) {}
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
            .field("putters", &waiting(&self.shared.room))
            .field("unfinished", &self.unfinished())
            .field("closed", &self.is_closed())
            .finish()
    }
}
