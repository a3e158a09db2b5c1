//! The segments in flight towards one end of a connection: a queue whose first entry needs no allocation.
//!
//! Most connections have at most one segment in flight: a request or its answer.

use std::collections::VecDeque;

/// A part of a byte stream in flight.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) kind: SegmentKind,
    pub(super) len: usize,
    /// When it was sent first, when it arrives, and how often it was sent again.
    pub(super) sent_at: u64,
    pub(super) at: u64,
    pub(super) tries: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentKind {
    /// The client's acknowledgement of the connection: the server can accept it.
    Established,
    Data,
    Fin,
}

/// Segments in the order in which they arrive.
#[derive(Default)]
pub(super) struct Segments {
    first: Option<Segment>,
    /// Empty if there is no first one.
    rest: VecDeque<Segment>,
}

impl Segments {
    #[inline]
    pub(super) fn front(&self) -> Option<&Segment> {
        self.first.as_ref()
    }

    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut Segment> {
        self.first.as_mut()
    }

    /// The only segment, if there is one and no other.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<&Segment> {
        self.first.as_ref().filter(|_| self.rest.is_empty())
    }

    #[inline]
    pub(super) fn back(&self) -> Option<&Segment> {
        match self.rest.is_empty() {
            true => self.first.as_ref(),
            false => self.rest.back(),
        }
    }

    #[inline]
    pub(super) fn push_back(&mut self, segment: Segment) {
        match self.first {
            None => self.first = Some(segment),
            Some(_) => self.rest.push_back(segment),
        }
    }

    pub(super) fn push_front(&mut self, segment: Segment) {
        if let Some(second) = self.first.replace(segment) {
            self.rest.push_front(second);
        }
    }

    #[inline]
    pub(super) fn pop_front(&mut self) {
        // Not one assignment for both cases, which would copy a whole segment.
        if self.rest.is_empty() {
            self.first = None;
        } else {
            self.first = self.rest.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len: usize) -> Segment {
        Segment {
            kind: SegmentKind::Data,
            len,
            sent_at: 0,
            at: 0,
            tries: 0,
        }
    }

    /// In step with std's queue.
    #[test]
    fn segments_keep_their_order() {
        let (mut segments, mut expected) = (Segments::default(), VecDeque::new());
        let mut rng = crate::rand::Rng::from_seed(2);
        for len in 0..500 {
            match rng.below(7) {
                0 => {
                    segments.push_front(segment(len));
                    expected.push_front(len);
                }
                1..=3 => {
                    segments.push_back(segment(len));
                    expected.push_back(len);
                }
                4..=5 => {
                    segments.pop_front();
                    expected.pop_front();
                }
                _ if rng.chance(0.1) => {
                    segments.clear();
                    expected.clear();
                }
                _ => {}
            }
            let len = |segment: Option<&Segment>| segment.map(|segment| segment.len);
            assert_eq!(len(segments.front()), expected.front().copied());
            assert_eq!(len(segments.back()), expected.back().copied());
            assert_eq!(segments.only().is_some(), expected.len() == 1);
        }
    }
}
