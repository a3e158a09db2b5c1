//! A queue of bytes that lie in one piece.

/// Bytes in order. A stream is mostly empty or short, so they are moved only if more than half of the memory is unused.
#[derive(Default)]
pub(crate) struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of them were taken.
    taken: usize,
}

impl ByteQueue {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    #[inline(always)]
    pub(super) fn push(&mut self, more: &[u8]) {
        if more.len() > self.bytes.capacity() - self.bytes.len() {
            self.make_room();
        }
        self.bytes.extend_from_slice(more);
    }

    #[cold]
    fn make_room(&mut self) {
        if self.taken >= self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }

    /// Moves up to `most` bytes to a place with `len` bytes, and returns how many.
    ///
    /// # Safety
    ///
    /// `len` bytes from `ptr` on may be written, and are not part of this queue.
    #[inline(always)]
    pub(crate) unsafe fn take(&mut self, most: usize, ptr: *mut u8, len: usize) -> u32 {
        let queued = &self.bytes[self.taken..];
        let count = most.min(len).min(queued.len());
        // SAFETY: the caller's promise for the target; `count` is at most the length of `queued`, which the queue owns.
        unsafe { std::ptr::copy_nonoverlapping(queued.as_ptr(), ptr, count) };
        self.taken += count;
        if self.taken == self.bytes.len() {
            self.clear();
        }
        count as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::rand::Rng;

    /// In step with std's queue, through growth, moves and empty states.
    #[test]
    fn bytes_come_out_in_the_order_in_which_they_went_in() {
        let (mut queue, mut expected) = (ByteQueue::default(), VecDeque::new());
        let mut rng = Rng::from_seed(3);
        for round in 0..if cfg!(miri) { 100 } else { 5_000 } {
            let more: Vec<u8> = (0..rng.below(90)).map(|number| (number + round) as u8).collect();
            queue.push(&more);
            expected.extend(&more);
            let (most, mut place) = (rng.below(100) as usize, [0; 70]);
            // SAFETY: the place is a local array.
            let count = unsafe { queue.take(most, place.as_mut_ptr(), place.len()) } as usize;
            let taken: Vec<u8> = expected.drain(..most.min(70).min(expected.len())).collect();
            assert_eq!(place[..count], taken);
            assert_eq!(queue.len(), expected.len());
            if rng.chance(0.01) {
                queue.clear();
                expected.clear();
            }
        }
    }
}
