//! The operations that wait for one direction of a descriptor, in FIFO order.
//!
//! There is nearly always at most one, which is stored in place. Several are in a deque that is allocated on first need.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::driver::OpId;
use crate::driver::op::Op;

/// An operation that waits for readiness.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: OpId,
    op: NonNull<Op>,
}

impl Waiting {
    pub(super) fn new(id: OpId, op: &Op) -> Waiting {
        Waiting { id, op: op.into() }
    }

    /// The operation.
    ///
    /// # Safety
    ///
    /// It has not completed: the loop keeps an op in place until then.
    pub(super) unsafe fn op<'a>(self) -> &'a Op {
        // SAFETY: the caller's promise.
        unsafe { self.op.as_ref() }
    }
}

/// Two words: there is a list for each direction of each descriptor.
pub(super) enum WaitList {
    One(Waiting),
    /// `None` if nothing waits; a queue from the first time that several operations have waited.
    #[allow(clippy::box_collection, reason = "one word until the first need")]
    Many(Option<Box<VecDeque<Waiting>>>),
}

const _: () = assert!(size_of::<WaitList>() == size_of::<Waiting>());

impl WaitList {
    pub(super) const EMPTY: WaitList = WaitList::Many(None);

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match self {
            WaitList::One(_) => false,
            WaitList::Many(None) => true,
            WaitList::Many(Some(queue)) => queue.is_empty(),
        }
    }

    /// The operation that has waited longest.
    #[inline]
    pub(super) fn first(&self) -> Option<Waiting> {
        match self {
            WaitList::One(waiting) => Some(*waiting),
            WaitList::Many(queue) => queue.as_ref()?.front().copied(),
        }
    }

    /// The waiting operation, if there is only one.
    #[inline]
    pub(super) fn only(&self) -> Option<Waiting> {
        match self {
            WaitList::One(waiting) => Some(*waiting),
            WaitList::Many(_) => None,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, waiting: Waiting) {
        match self {
            WaitList::Many(None) => *self = WaitList::One(waiting),
            _ => self.queue().push_back(waiting),
        }
    }

    /// The queue of a list that is not empty or has one already.
    #[cold]
    fn queue(&mut self) -> &mut VecDeque<Waiting> {
        if let WaitList::One(first) = *self {
            *self = WaitList::Many(Some(Box::new(VecDeque::from([first]))));
        }
        match self {
            WaitList::Many(queue) => queue.get_or_insert_default(),
            WaitList::One(_) => unreachable!("it has just got a queue"),
        }
    }

    /// Removes the operation that has waited longest.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        match self {
            WaitList::One(waiting) => {
                let waiting = *waiting;
                *self = WaitList::EMPTY;
                Some(waiting)
            }
            WaitList::Many(queue) => queue.as_mut()?.pop_front(),
        }
    }

    /// Removes an operation from anywhere in the list. False if it is not there.
    pub(super) fn remove(&mut self, id: OpId) -> bool {
        match self {
            WaitList::One(waiting) if waiting.id == id => {
                *self = WaitList::EMPTY;
                true
            }
            WaitList::One(_) | WaitList::Many(None) => false,
            WaitList::Many(Some(queue)) => {
                let before = queue.len();
                queue.retain(|waiting| waiting.id != id);
                queue.len() < before
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &Op = &Op::Accept { fd: 3 };

    fn id(index: u32) -> OpId {
        OpId::new(index, 7)
    }

    fn list_of(indices: &[u32]) -> WaitList {
        let mut list = WaitList::EMPTY;
        for &index in indices {
            list.push(Waiting::new(id(index), OP));
        }
        list
    }

    fn drain(mut list: WaitList) -> Vec<usize> {
        let drained = std::iter::from_fn(|| list.pop())
            .map(|waiting| waiting.id.index())
            .collect();
        assert!(list.is_empty());
        drained
    }

    #[test]
    fn first_come_first_served() {
        assert_eq!(drain(list_of(&[5, 0, 9])), [5, 0, 9]);
    }

    #[test]
    fn any_operation_can_be_removed() {
        for (gone, left) in [(5, [0, 9]), (0, [5, 9]), (9, [5, 0])] {
            let mut list = list_of(&[5, 0, 9]);
            assert!(list.remove(id(gone)));
            assert!(!list.remove(id(gone)), "it is gone");
            assert_eq!(drain(list), left);
        }
    }

    #[test]
    fn a_stale_id_is_not_found() {
        let mut list = list_of(&[5]);
        assert!(!list.remove(OpId::new(5, 6)));
        assert_eq!(drain(list), [5]);
    }
}
