//! A 4-ary min-heap.
//!
//! An entry is 16 bytes, so the four children compared at each level fit in 64 bytes, and the heap has half as many
//! levels as a binary one. This matters with some 100,000 timers, when each level is a cache miss.

/// Ordered by time, then by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// In nanoseconds.
    pub(super) when: u64,
    pub(super) key: u64,
}

impl Entry {
    /// Both fields as one number, compared without a branch.
    #[inline]
    fn rank(self) -> u128 {
        u128::from(self.when) << 64 | u128::from(self.key)
    }
}

#[derive(Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
}

const ARITY: usize = 4;

impl Heap {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Entry> {
        self.entries.first().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().copied()
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        let mut index = self.entries.len() - 1;
        while index > 0 {
            let parent_index = (index - 1) / ARITY;
            let parent = self.entries[parent_index];
            if parent.rank() <= entry.rank() {
                break;
            }
            self.entries[index] = parent;
            index = parent_index;
        }
        self.entries[index] = entry;
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        let first = self.first()?;
        self.entries.swap_remove(0);
        if !self.entries.is_empty() {
            self.sift_down(0);
        }
        Some(first)
    }

    /// Keeps the entries for which `keep` returns true.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) {
        self.entries.retain(|entry| keep(*entry));
        let parents = self.entries.len().saturating_sub(1).div_ceil(ARITY);
        for index in (0..parents).rev() {
            self.sift_down(index);
        }
    }

    fn sift_down(&mut self, mut index: usize) {
        let entries = &mut self.entries[..];
        let sinking = entries[index];
        loop {
            let first_child = index * ARITY + 1;
            let Some(children) = entries.get(first_child..(first_child + ARITY).min(entries.len())) else {
                break;
            };
            let mut least = match children.first() {
                Some(first) => (first.rank(), first_child),
                None => break,
            };
            for (offset, child) in children.iter().enumerate().skip(1) {
                let other = (child.rank(), first_child + offset);
                least = if other.0 < least.0 { other } else { least };
            }
            if sinking.rank() <= least.0 {
                break;
            }
            entries[index] = entries[least.1];
            index = least.1;
        }
        entries[index] = sinking;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in a fixed pseudo-random order.
    fn shuffled(count: u64) -> impl Iterator<Item = Entry> {
        (0..count).map(|key| {
            let when = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
            Entry { when, key }
        })
    }

    #[test]
    fn entries_come_in_order() {
        let count = if cfg!(miri) { 200 } else { 5_000 };
        for keeps_each in [1, 2, 7] {
            let mut heap = Heap::default();
            shuffled(count).for_each(|entry| heap.push(entry));
            heap.retain(|entry| entry.key % keeps_each == 0);
            let mut expected: Vec<_> = shuffled(count).filter(|entry| entry.key % keeps_each == 0).collect();
            expected.sort();
            let popped: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
            assert_eq!(popped, expected);
        }
    }

    #[test]
    fn pushes_and_pops_can_alternate() {
        let mut heap = Heap::default();
        let mut model = std::collections::BTreeSet::new();
        for (at, entry) in shuffled(if cfg!(miri) { 200 } else { 5_000 }).enumerate() {
            heap.push(entry);
            model.insert(entry);
            if at % 3 == 0 {
                assert_eq!(heap.pop(), model.pop_first());
            }
        }
        while let Some(entry) = heap.pop() {
            assert_eq!(Some(entry), model.pop_first());
        }
        assert!(model.is_empty());
    }
}
