//! The operations that wait for one direction of a descriptor, in FIFO order.
//!
//! There is nearly always at most one, which is stored in place. Others are in a deque that is allocated on first need.

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

pub(super) struct WaitList {
    first: Option<Waiting>,
    #[allow(clippy::box_collection, reason = "one word until the first need")]
    rest: Option<Box<VecDeque<Waiting>>>,
}

impl WaitList {
    pub(super) const EMPTY: WaitList = WaitList {
        first: None,
        rest: None,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The operation that has waited longest.
    pub(super) fn first(&self) -> Option<Waiting> {
        self.first
    }

    #[inline]
    pub(super) fn push(&mut self, waiting: Waiting) {
        match &self.first {
            None => self.first = Some(waiting),
            Some(_) => self.rest.get_or_insert_default().push_back(waiting),
        }
    }

    /// Removes the operation that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let next = self.rest.as_deref_mut().and_then(VecDeque::pop_front);
        std::mem::replace(&mut self.first, next)
    }

    /// Removes an operation from anywhere in the list. False if it is not there.
    pub(super) fn remove(&mut self, id: OpId) -> bool {
        if self.first.is_some_and(|first| first.id == id) {
            self.pop();
            return true;
        }
        let Some(rest) = self.rest.as_deref_mut() else {
            return false;
        };
        let before = rest.len();
        rest.retain(|waiting| waiting.id != id);
        rest.len() < before
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
