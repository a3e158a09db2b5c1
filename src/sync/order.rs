//! The orders in which a queue returns its items.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// The order in which a queue returns its items: [`Fifo`], [`Lifo`] or [`SmallestFirst`].
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

/// An item with its sequence number. Compares in reverse, because `BinaryHeap` is a max-heap, and with `Ord` only: the
/// item's `PartialOrd`, which a tuple would use, may differ.
#[derive(Debug)]
pub struct Numbered<T> {
    item: T,
    number: u64,
}

impl<T: Ord> Ord for Numbered<T> {
    fn cmp(&self, other: &Numbered<T>) -> Ordering {
        let items = other.item.cmp(&self.item);
        items.then_with(|| other.number.cmp(&self.number))
    }
}

impl<T: Ord> PartialOrd for Numbered<T> {
    fn partial_cmp(&self, other: &Numbered<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> PartialEq for Numbered<T> {
    fn eq(&self, other: &Numbered<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: Ord> Eq for Numbered<T> {}

impl<T: Ord> sealed::Order<T> for SmallestFirst {
    /// A heap, and the next sequence number.
    type Store = (BinaryHeap<Numbered<T>>, u64);

    fn push((items, next): &mut Self::Store, item: T) {
        let number = *next;
        *next += 1;
        items.push(Numbered { item, number });
    }

    fn pop((items, _): &mut Self::Store) -> Option<T> {
        items.pop().map(|numbered| numbered.item)
    }

    fn len((items, _): &Self::Store) -> usize {
        items.len()
    }
}
