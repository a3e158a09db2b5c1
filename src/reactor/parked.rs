//! Operations that wait for their descriptor to be ready.
//!
//! One slot per operation, at the operation's index, so that parking allocates nothing after warm-up. Operations that
//! wait for the same direction form a FIFO list, nearly always of one element.

use crate::driver::OpId;
use crate::driver::op::Op;

/// The head of the list for one direction of a descriptor: an operation's index, or `NONE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queue(u32);

/// No operation has this index.
const NONE: u32 = OpId::MAX_INDEX;

impl Queue {
    pub(super) const EMPTY: Queue = Queue(NONE);

    pub(super) fn is_empty(self) -> bool {
        self == Queue::EMPTY
    }
}

#[derive(Clone, Copy)]
struct Parked {
    /// With the slot's index, the operation's id.
    generation: u64,
    op: Op,
    next: Queue,
}

#[derive(Default)]
pub(super) struct ParkingLot {
    fds: Vec<Option<Parked>>,
}

impl ParkingLot {
    /// Parks an operation at the end of the list.
    pub(super) fn park(&mut self, queue: &mut Queue, id: OpId, op: Op) {
        let index = id.index as usize;
        if index >= self.fds.len() {
            self.fds.resize(index + 1, None);
        }
        let parked = Parked {
            generation: id.generation,
            op,
            next: Queue::EMPTY,
        };
        self.fds[index] = Some(parked);
        *self.end_of(queue) = Queue(id.index);
    }

    fn end_of<'a>(&'a mut self, queue: &'a mut Queue) -> &'a mut Queue {
        let mut last = queue.0;
        if last == NONE {
            return queue;
        }
        while let Some(Parked { next: Queue(next), .. }) = self.at(last)
            && *next != NONE
        {
            last = *next;
        }
        &mut self.at(last).expect("a queue leads to parked operations").next
    }

    fn at(&mut self, index: u32) -> Option<&mut Parked> {
        self.fds.get_mut(index as usize)?.as_mut()
    }

    /// The operation that has waited longest.
    pub(super) fn first(&mut self, queue: Queue) -> Option<(OpId, Op)> {
        let index = queue.0;
        self.at(index).map(|parked| {
            let generation = parked.generation;
            (OpId { index, generation }, parked.op)
        })
    }

    /// Removes the operation that has waited longest.
    pub(super) fn pop(&mut self, queue: &mut Queue) -> Option<OpId> {
        let index = queue.0;
        let Parked { generation, next, .. } = self.fds.get_mut(index as usize)?.take()?;
        *queue = next;
        Some(OpId { index, generation })
    }

    /// The op with this id, if it is parked.
    pub(super) fn op_of(&mut self, id: OpId) -> Option<Op> {
        let parked = self.at(id.index).filter(|parked| parked.generation == id.generation)?;
        Some(parked.op)
    }

    /// Removes an operation from anywhere in its list.
    pub(super) fn remove(&mut self, queue: &mut Queue, id: OpId) {
        let mut link = *queue;
        if link.0 == id.index {
            self.pop(queue);
            return;
        }
        while let Some(parked) = self.at(link.0) {
            let next = parked.next;
            if next.0 == id.index {
                let mut rest = next;
                self.pop(&mut rest);
                if let Some(parked) = self.at(link.0) {
                    parked.next = rest;
                }
                return;
            }
            link = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::op::Direction;

    fn id(index: u32) -> OpId {
        OpId { index, generation: 7 }
    }

    fn queue_of(indices: &[u32]) -> (ParkingLot, Queue) {
        let mut lot = ParkingLot::default();
        let mut queue = Queue::EMPTY;
        for &index in indices {
            let direction = Direction::Read;
            lot.park(&mut queue, id(index), Op::Readiness { fd: 3, direction });
        }
        (lot, queue)
    }

    fn drain(mut lot: ParkingLot, mut queue: Queue) -> Vec<u32> {
        std::iter::from_fn(|| lot.pop(&mut queue)).map(|id| id.index).collect()
    }

    #[test]
    fn first_come_first_served() {
        let (lot, queue) = queue_of(&[5, 0, 9]);
        assert_eq!(drain(lot, queue), [5, 0, 9]);
    }

    #[test]
    fn any_operation_can_be_removed() {
        for (gone, left) in [(5, [0, 9]), (0, [5, 9]), (9, [5, 0])] {
            let (mut lot, mut queue) = queue_of(&[5, 0, 9]);
            lot.remove(&mut queue, id(gone));
            assert!(lot.op_of(id(gone)).is_none());
            assert_eq!(drain(lot, queue), left);
        }
    }

    #[test]
    fn a_stale_id_is_not_found() {
        let (mut lot, _) = queue_of(&[5]);
        let earlier = OpId {
            generation: 6,
            index: 5,
        };
        assert!(lot.op_of(earlier).is_none());
        assert!(lot.op_of(id(5)).is_some());
    }
}
