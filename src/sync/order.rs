//! The orders in which a queue returns its items.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An order of items: [`Fifo`], [`Lifo`] or [`SmallestFirst`].
pub trait Order<T>: sealed::Order<T> {}

impl<T, O: sealed::Order<T>> Order<T> for O {}

mod sealed {
    pub trait Order<T> {
        type Store: Default;

        fn push(store: &mut Self::Store, item: T);

        fn pop(store: &mut Self::Store) -> Option<T>;

        fn len(store: &Self::Store) -> usize;
    }
}

/// First in, first out.
#[derive(Clone, Copy, Debug)]
pub enum Fifo {}

impl<T> sealed::Order<T> for Fifo {
    type Store = VecDeque<T>;

    fn push(store: &mut VecDeque<T>, item: T) {
        store.push_back(item);
    }

    fn pop(store: &mut VecDeque<T>) -> Option<T> {
        store.pop_front()
    }

    fn len(store: &VecDeque<T>) -> usize {
        store.len()
    }
}

/// Last in, first out.
#[derive(Clone, Copy, Debug)]
pub enum Lifo {}

impl<T> sealed::Order<T> for Lifo {
    type Store = Vec<T>;

    fn push(store: &mut Vec<T>, item: T) {
        store.push(item);
    }

    fn pop(store: &mut Vec<T>) -> Option<T> {
        store.pop()
    }

    fn len(store: &Vec<T>) -> usize {
        store.len()
    }
}

/// Smallest first; equal items in FIFO order.
#[derive(Clone, Copy, Debug)]
pub enum SmallestFirst {}

/// A heap of items with sequence numbers. Reversed, because `BinaryHeap` is a max-heap.
#[derive(Debug)]
pub struct Heap<T> {
    items: BinaryHeap<Reverse<(T, u64)>>,
    next: u64,
}

impl<T: Ord> Default for Heap<T> {
    fn default() -> Heap<T> {
        Heap {
            items: BinaryHeap::new(),
            next: 0,
        }
    }
}

impl<T: Ord> sealed::Order<T> for SmallestFirst {
    type Store = Heap<T>;

    fn push(store: &mut Heap<T>, item: T) {
        store.items.push(Reverse((item, store.next)));
        store.next += 1;
    }

    fn pop(store: &mut Heap<T>) -> Option<T> {
        store.items.pop().map(|Reverse((item, _))| item)
    }

    fn len(store: &Heap<T>) -> usize {
        store.items.len()
    }
}
