//! A heap with four branches at each fork.
//!
//! An entry is sixteen bytes, so the four that are compared on the way down lie within 64 bytes, and the way is half as long as
//! in a heap with two branches. With some hundred thousand timers, where each step is a cache miss, that is what counts.

/// An entry: the smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// In nanoseconds.
    pub(super) when: u64,
    pub(super) key: u64,
}

impl Entry {
    /// Both as one number: comparing it takes no branch.
    #[inline]
    fn rank(self) -> u128 {
        u128::from(self.when) << 64 | u128::from(self.key)
    }
}

#[derive(Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
}

const BRANCHES: usize = 4;

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
        let mut place = self.entries.len() - 1;
        while place > 0 {
            let parent = (place - 1) / BRANCHES;
            let above = self.entries[parent];
            if above.rank() <= entry.rank() {
                break;
            }
            self.entries[place] = above;
            place = parent;
        }
        self.entries[place] = entry;
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        let first = self.first()?;
        self.entries.swap_remove(0);
        if !self.entries.is_empty() {
            self.sink(0);
        }
        Some(first)
    }

    /// Keeps those that `keep` says, and drops the rest.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) {
        self.entries.retain(|entry| keep(*entry));
        let forks = self.entries.len().saturating_sub(1).div_ceil(BRANCHES);
        for place in (0..forks).rev() {
            self.sink(place);
        }
    }

    /// Lets an entry down to where nothing below it comes before it.
    fn sink(&mut self, mut place: usize) {
        let entries = &mut self.entries[..];
        let sinking = entries[place];
        loop {
            let below = place * BRANCHES + 1;
            let Some(children) = entries.get(below..(below + BRANCHES).min(entries.len())) else {
                break;
            };
            let mut least = match children.first() {
                Some(first) => (first.rank(), below),
                None => break,
            };
            for (offset, child) in children.iter().enumerate().skip(1) {
                let other = (child.rank(), below + offset);
                least = if other.0 < least.0 { other } else { least };
            }
            if sinking.rank() <= least.0 {
                break;
            }
            entries[place] = entries[least.1];
            place = least.1;
        }
        entries[place] = sinking;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in no order, the same each time.
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
    fn pushes_and_pops_may_alternate() {
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
