//! `Queue`, `PriorityQueue` and `LifoQueue`.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::{Rc, Weak};

use windlass::sync::{Closed, LifoQueue, PriorityQueue, Queue, SendError, TryRecvError, TrySendError};

use super::{ByHand, now, panic_of};
use crate::support::{CountDrop, PanicOnDrop, on_every_driver, poll_with, turns, waker_calling, waker_with};

#[test]
fn queues_are_fifo_lifo_or_by_priority() {
    let (fifo, lifo, priority) = (Queue::unbounded(), LifoQueue::unbounded(), PriorityQueue::unbounded());
    for item in [(2, 'a'), (1, 'b'), (3, 'c'), (1, 'a')] {
        now(fifo.put(item)).unwrap();
        now(lifo.put(item)).unwrap();
        now(priority.put(item)).unwrap();
    }
    let chars = |get: &dyn Fn() -> Result<(i32, char), TryRecvError>| -> String {
        std::iter::from_fn(|| get().ok()).map(|item| item.1).collect()
    };
    assert_eq!(chars(&|| fifo.try_get()), "abca");
    assert_eq!(chars(&|| lifo.try_get()), "acba");
    assert_eq!(chars(&|| priority.try_get()), "abac");
}

/// Ordered by its first field only.
#[derive(Debug)]
struct Keyed(u32, u32);

impl Ord for Keyed {
    fn cmp(&self, other: &Keyed) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Keyed {
    fn partial_cmp(&self, other: &Keyed) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Keyed {
    fn eq(&self, other: &Keyed) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Keyed {}

#[test]
fn items_of_equal_priority_come_in_put_order() {
    let queue = PriorityQueue::unbounded();
    for i in 0..100 {
        queue.try_put(Keyed(i % 3, i)).unwrap();
    }
    let items: Vec<Keyed> = std::iter::from_fn(|| queue.try_get().ok()).collect();
    assert!(items.is_sorted_by_key(|item| (item.0, item.1)), "{items:?}");
}

#[test]
fn getters_are_served_in_fifo_order_without_barging() {
    let queue = Queue::unbounded();
    let mut getters: Vec<_> = (0..3).map(|_| ByHand::waiting(queue.get())).collect();
    queue.try_put('a').unwrap();
    assert!(getters[0].is_woken() && !getters[1].is_woken());
    // The item is reserved for the first getter.
    assert_eq!((queue.len(), queue.try_get()), (0, Err(TryRecvError::Empty)));
    queue.try_put('b').unwrap();
    let mut late = ByHand::waiting(queue.get());
    assert_eq!(getters[2].poll(), None);
    assert_eq!(getters[0].poll(), Some(Ok('a')));
    // Dropped after it was woken: the third has waited longest.
    assert!(getters[1].is_woken());
    drop(getters.remove(1));
    assert!(getters[1].is_woken() && !late.is_woken());
    assert_eq!(getters[1].poll(), Some(Ok('b')));
    assert_eq!(late.poll(), None);
}

#[test]
fn putters_are_served_in_fifo_order_without_barging() {
    let queue = Queue::bounded(1);
    queue.try_put(0).unwrap();
    assert!(queue.is_full());
    let mut putters: Vec<_> = (1..4).map(|item| ByHand::waiting(queue.put(item))).collect();
    assert_eq!(queue.try_get(), Ok(0));
    assert!(queue.is_full(), "the free slot is reserved for the first putter");
    assert_eq!(queue.try_put(9), Err(TrySendError::Full(9)));
    assert!(putters[0].is_woken() && !putters[1].is_woken());
    drop(putters.remove(0));
    assert!(putters[0].is_woken());
    assert_eq!(putters[0].poll(), Some(Ok(())));
    assert_eq!(queue.try_get(), Ok(2));
    assert_eq!(putters[1].poll(), Some(Ok(())));
    assert_eq!(queue.try_get(), Ok(3));
    assert!(!queue.is_full() && queue.is_empty());
    assert_eq!(queue.capacity(), Some(1));
}

#[test]
fn an_item_is_dropped_with_its_pending_put() {
    let drops = Rc::new(Cell::new(0));
    let queue = Queue::bounded(1);
    queue.try_put(CountDrop(drops.clone())).unwrap();
    let putter = ByHand::waiting(queue.put(CountDrop(drops.clone())));
    drop(putter);
    assert_eq!((drops.get(), queue.len()), (1, 1));
}

#[test]
fn a_closed_queue_drains_and_returns_unput_items() {
    let queue = Queue::bounded(1);
    queue.try_put(1).unwrap();
    let mut putter = ByHand::waiting(queue.put(2));
    queue.close();
    assert!(putter.is_woken());
    assert_eq!(putter.poll(), Some(Err(SendError(2))));
    assert_eq!(now(queue.put(3)), Err(SendError(3)));
    assert_eq!(queue.try_put(4), Err(TrySendError::Closed(4)));
    assert_eq!(now(queue.get()), Ok(1));
    assert_eq!(now(queue.get()), Err(Closed));
    assert_eq!(queue.try_get(), Err(TryRecvError::Closed));
    queue.close();
    assert!(queue.is_closed());
}

#[test]
fn a_getter_of_a_closed_queue_gets_the_item_of_a_dropped_getter() {
    let queue = Queue::unbounded();
    let called = ByHand::waiting(queue.get());
    let (mut second, mut third) = (ByHand::waiting(queue.get()), ByHand::waiting(queue.get()));
    queue.try_put(1).unwrap();
    queue.close();
    assert!(!second.is_woken(), "the item may still return to the queue");
    assert_eq!(queue.try_get(), Err(TryRecvError::Empty));
    drop(called);
    assert!(second.is_woken() && !third.is_woken());
    assert_eq!(second.poll(), Some(Ok(1)));
    assert!(third.is_woken());
    assert_eq!(third.poll(), Some(Err(Closed)));
}

#[test]
fn a_reserved_slot_is_void_once_the_queue_is_closed() {
    let queue = Queue::bounded(1);
    queue.try_put(1).unwrap();
    let mut putter = ByHand::waiting(queue.put(2));
    assert_eq!(queue.try_get(), Ok(1));
    assert!(putter.is_woken());
    queue.close();
    assert_eq!(putter.poll(), Some(Err(SendError(2))));
    assert_eq!(now(queue.get()), Err(Closed));
}

#[test]
fn close_now_drops_the_items_and_counts_them_as_done() {
    let drops = Rc::new(Cell::new(0));
    let queue = Queue::unbounded();
    let mut called = ByHand::waiting(queue.get());
    for _ in 0..3 {
        queue.try_put(CountDrop(drops.clone())).unwrap();
    }
    let mut joining = ByHand::waiting(queue.join());
    assert_eq!(queue.close_now(), 3);
    assert_eq!((drops.get(), queue.unfinished(), queue.len()), (3, 0, 0));
    assert!(joining.is_woken());
    assert_eq!(joining.poll(), Some(()));
    assert!(
        matches!(called.poll(), Some(Err(Closed))),
        "the reserved item was dropped too"
    );
    assert!(matches!(queue.try_get(), Err(TryRecvError::Closed)));
    assert_eq!(queue.close_now(), 0);
}

#[test]
fn join_waits_for_every_task_done() {
    let queue = Queue::unbounded();
    now(queue.join());
    queue.try_put('a').unwrap();
    queue.try_put('b').unwrap();
    let mut joining = [ByHand::waiting(queue.join()), ByHand::waiting(queue.join())];
    for _ in 0..2 {
        assert!(joining[0].poll().is_none());
        queue.try_get().unwrap();
        queue.task_done();
    }
    for joining in &mut joining {
        assert!(joining.is_woken());
        assert_eq!(joining.poll(), Some(()));
    }
    let message = panic_of(|| queue.task_done());
    assert!(message.contains("more often than items were put"), "{message}");
    assert_eq!(queue.unfinished(), 0);
}

#[test]
fn a_capacity_of_zero_is_refused_and_a_huge_one_allocates_nothing() {
    let message = panic_of(|| Queue::<u8>::bounded(0));
    assert!(message.contains("unbounded()"), "{message}");
    let huge = Queue::bounded(usize::MAX - 1);
    huge.try_put(1).unwrap();
    assert_eq!((huge.capacity(), huge.len()), (Some(usize::MAX - 1), 1));
    assert_eq!(Queue::<u8>::unbounded().capacity(), None);
}

/// Equal to all others by `Ord`, which may panic once; its `PartialOrd` says otherwise, and is not what a queue uses.
struct Equal(char, Rc<Cell<bool>>);

impl Ord for Equal {
    fn cmp(&self, _: &Equal) -> Ordering {
        assert!(!self.1.take(), "a comparison");
        Ordering::Equal
    }
}

#[allow(
    clippy::non_canonical_partial_ord_impl,
    reason = "the queue must use `Ord` even if the two differ"
)]
impl PartialOrd for Equal {
    fn partial_cmp(&self, other: &Equal) -> Option<Ordering> {
        Some(other.0.cmp(&self.0))
    }
}

impl PartialEq for Equal {
    fn eq(&self, other: &Equal) -> bool {
        self.0 == other.0
    }
}

impl Eq for Equal {}

#[test]
fn equal_items_stay_in_order_when_a_comparison_panics() {
    for panics_at in 'b'..='h' {
        let (queue, panics) = (PriorityQueue::unbounded(), Rc::new(Cell::new(false)));
        for name in 'a'..='h' {
            panics.set(name == panics_at);
            let item = Equal(name, panics.clone());
            match name == panics_at {
                true => assert_eq!(panic_of(|| queue.try_put(item).is_ok()), "a comparison"),
                false => queue.try_put(item).map_err(|_| "closed").unwrap(),
            }
        }
        let order: String = std::iter::from_fn(|| queue.try_get().ok()).map(|item| item.0).collect();
        assert_eq!(order, "abcdefgh", "a panic at {panics_at}");
    }
}

/// Puts an item into its queue when dropped.
struct PutOnDrop(Weak<RefCell<Option<Queue<PutOnDrop>>>>);

impl Drop for PutOnDrop {
    fn drop(&mut self) {
        if let Some(queue) = self.0.upgrade().and_then(|shared| shared.borrow().clone()) {
            assert!(!queue.is_full());
            let refused = queue.try_put(PutOnDrop(Weak::new()));
            assert_eq!(refused.is_err(), queue.is_closed());
        }
    }
}

#[test]
fn an_items_destructor_may_use_its_queue() {
    let shared = Rc::new(RefCell::new(Some(Queue::bounded(10))));
    let queue = shared.borrow().clone().unwrap();
    for _ in 0..3 {
        queue.try_put(PutOnDrop(Rc::downgrade(&shared))).unwrap();
    }
    drop(queue.try_get());
    assert_eq!(queue.len(), 3);
    assert_eq!(queue.close_now(), 3);
    assert_eq!((queue.len(), queue.unfinished()), (0, 1));
    // Items are dropped with their queue.
    let queue = Queue::unbounded();
    let drops = Rc::new(Cell::new(0));
    queue.try_put(CountDrop(drops.clone())).unwrap();
    drop(queue);
    assert_eq!(drops.get(), 1);
}

#[test]
fn an_item_whose_destructor_panics_does_not_stop_close_now() {
    let queue = Queue::unbounded();
    queue.try_put(PanicOnDrop("an item")).unwrap();
    let mut joining = ByHand::waiting(queue.join());
    assert_eq!(panic_of(|| queue.close_now()), "an item");
    assert!(queue.is_closed());
    assert_eq!(joining.poll(), Some(()));
}

#[test]
fn a_waker_may_use_the_queue_and_may_panic() {
    let queue = Queue::unbounded();
    let waker = waker_calling({
        let queue = queue.clone();
        move || {
            queue.try_put(2).unwrap();
            panic!("a waker");
        }
    });
    let mut bad = Box::pin(queue.get());
    assert!(poll_with(&waker, bad.as_mut()).is_pending());
    let mut good = ByHand::waiting(queue.get());
    queue.try_put(1).unwrap();
    assert!(good.is_woken());
    assert_eq!(good.poll(), Some(Ok(1)));
    drop(bad);
    assert_eq!(queue.try_get(), Ok(2));
}

#[test]
fn a_wakers_destructor_may_use_the_queue() {
    let queue = Queue::<u8>::unbounded();
    let waker = waker_with(|| {}, {
        let queue = queue.clone();
        move || queue.try_put(1).unwrap()
    });
    let mut getter = Box::pin(queue.get());
    assert!(poll_with(&waker, getter.as_mut()).is_pending());
    drop(waker);
    let mut other = ByHand::waiting(queue.get());
    drop(getter);
    assert_eq!(other.poll(), Some(Ok(1)));
}

/// Panics, or uses its queue, when compared.
struct Bad(u8, Option<Weak<RefCell<Option<PriorityQueue<Bad>>>>>);

impl Ord for Bad {
    fn cmp(&self, other: &Bad) -> Ordering {
        for queue in [&self.1, &other.1].into_iter().flatten() {
            match queue.upgrade().and_then(|queue| queue.borrow().clone()) {
                Some(queue) => drop(queue.try_get()),
                None => panic!("compared"),
            }
        }
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Bad {
    fn partial_cmp(&self, other: &Bad) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bad {
    fn eq(&self, other: &Bad) -> bool {
        self.0 == other.0
    }
}

impl Eq for Bad {}

#[test]
fn a_comparison_that_panics_or_uses_the_queue_leaves_it_consistent() {
    let queue = PriorityQueue::bounded(3);
    queue.try_put(Bad(1, None)).unwrap_or_else(|_| panic!());
    assert_eq!(panic_of(|| queue.try_put(Bad(2, Some(Weak::new())))), "compared");
    assert_eq!((queue.len(), queue.unfinished()), (2, 2), "the item was not put");
    assert_eq!(queue.try_get().map(|item| item.0), Ok(1));
    assert_eq!(queue.try_get().map(|item| item.0), Ok(2));

    let shared = Rc::new(RefCell::new(None));
    let queue = PriorityQueue::bounded(3);
    shared.replace(Some(queue.clone()));
    queue.try_put(Bad(1, None)).unwrap_or_else(|_| panic!());
    let message = panic_of(|| queue.try_put(Bad(2, Some(Rc::downgrade(&shared)))));
    assert!(message.contains("comparing items used the queue"), "{message}");
    assert_eq!(queue.len(), 2);
    shared.take();
}

#[test]
fn a_queue_that_is_never_empty_yields_to_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let queue = Queue::bounded(1);
            let count = Rc::new(Cell::new(0));
            let greedy = windlass::spawn({
                let (queue, count) = (queue.clone(), count.clone());
                async move {
                    for _ in 0..100_000 {
                        queue.put(()).await.unwrap();
                        queue.get().await.unwrap();
                        count.set(count.get() + 1);
                    }
                }
            });
            turns(2).await;
            let count = count.get();
            assert!(count > 0 && count < 200, "{count} in a turn or two");
            greedy.cancel();
            assert!(greedy.await.unwrap_err().is_cancelled());
            assert!(queue.len() <= 1);
        });
    });
}

#[test]
fn ten_thousand_getters_are_woken_in_order() {
    let many = if cfg!(miri) { 100 } else { 10_000 };
    let queue = Queue::unbounded();
    let mut getters: Vec<_> = (0..many).map(|_| ByHand::waiting(queue.get())).collect();
    // Every other getter is dropped.
    let mut at = 0;
    getters.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    for item in 0..getters.len() {
        queue.try_put(item).unwrap();
    }
    for (item, getter) in getters.iter_mut().enumerate() {
        assert!(getter.is_woken());
        assert_eq!(getter.poll(), Some(Ok(item)));
    }
}

#[test]
fn a_queue_reports_its_state() {
    let queue = Queue::bounded(2);
    queue.try_put(1).unwrap();
    let shown = format!("{queue:?}");
    assert!(
        shown.contains("len: 1") && shown.contains("capacity: Some(2)"),
        "{shown}"
    );
    assert!(queue.same_queue(&queue.clone()) && !queue.same_queue(&Queue::bounded(2)));
    let error = queue.try_put(2).and_then(|()| queue.try_put(3)).unwrap_err();
    assert!(
        error.is_full() && error.to_string().contains("wait for room"),
        "{error}"
    );
    assert_eq!(error.into_inner(), 3);
}
