//! The table of operations in flight, and of completed ones whose result has not been taken.

use std::rc::Rc;
use std::task::Waker;

use super::storage::{OpStorage, payload_ptr};
use crate::blocking::JobId;
use crate::driver::op::{FileOp, Op};
use crate::driver::{Completion, Control, OpId, OpResult, OsResult};
use crate::event_loop::exception::guard;
use crate::sys::Fd;
use crate::task::Owner;

/// What happens to an operation when its future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOrphan {
    /// It stays in its queue: the next read returns its result.
    Keep,
    /// Its payload is dropped as soon as it completes.
    Discard,
}

pub(super) enum Phase {
    Free,
    /// Passed to the driver or the pool; not completed.
    InFlight,
    /// Completed; the payload has not been taken.
    Done(OpResult),
}

/// What performs an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    Driver,
    /// A pool thread, as this job.
    Pool(JobId),
    /// Nothing yet: the pool's queue was full.
    Unassigned,
}

/// Called when an operation completes, instead of waking a task: once, with nothing borrowed.
pub(crate) trait Listener {
    fn completed(self: Rc<Self>);
}

pub(super) struct Entry {
    pub(super) generation: u64,
    pub(super) phase: Phase,
    pub(super) waker: Option<Waker>,
    pub(super) listener: Option<Rc<dyn Listener>>,
    /// Set when the future was dropped.
    pub(super) orphan: Option<OnOrphan>,
    /// The task whose join waits until this orphan has completed.
    pub(super) owner: Option<Owner>,
    pub(super) op: Op,
    /// Bytes in front of the op's buffer that earlier operations received for the same call.
    pub(super) prefix: usize,
    pub(super) cancel_requested: bool,
    pub(super) executor: Executor,
    pub(super) drop_payload: Option<unsafe fn(*mut u8)>,
    /// Owned by this entry and never moved. While the phase is `InFlight`, the kernel uses it.
    pub(super) storage: *mut OpStorage,
}

/// What the loop must do after a completion, once the table is no longer borrowed.
#[derive(Default)]
pub(crate) struct CompletionEffects {
    pub(crate) waker: Option<Waker>,
    pub(crate) listener: Option<Rc<dyn Listener>>,
    pub(crate) owner: Option<Owner>,
    /// The result is unwanted: drop the payload of this operation.
    pub(crate) discard: Option<OpId>,
    /// Closes the connection or file that a discarded operation has opened.
    pub(crate) cleanup: Option<Control<'static>>,
    pub(crate) stale: bool,
}

#[derive(Default)]
pub(crate) struct OpTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    in_flight: usize,
    /// The operations in flight that the driver does not perform.
    off_driver: usize,
}

impl OpTable {
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether pool threads perform some of the operations in flight, or will.
    pub(crate) fn uses_threads(&self) -> bool {
        self.off_driver > 0
    }

    /// Sets what performs an operation that the driver could not start without blocking.
    pub(super) fn set_executor(&mut self, id: OpId, executor: Executor) {
        let Some(entry) = self.entry(id) else { return };
        let before = std::mem::replace(&mut entry.executor, executor);
        self.off_driver += usize::from(before == Executor::Driver);
    }

    /// How many slots are in use: in flight, or completed and not taken.
    pub(crate) fn taken(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    pub(super) fn entry(&mut self, id: OpId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation && !matches!(entry.phase, Phase::Free)).then_some(entry)
    }

    #[inline]
    pub(super) fn reserve(&mut self) -> (OpId, *mut OpStorage) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let entry = &self.entries[index as usize];
        let generation = entry.generation;
        (OpId { index, generation }, entry.storage)
    }

    /// Frees a reserved slot whose operation was not started. The payload must be gone already.
    #[cold]
    pub(super) fn unreserve(&mut self, id: OpId) {
        self.free.push(id.index);
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.entries.push(Entry {
            generation: 0,
            phase: Phase::Free,
            waker: None,
            listener: None,
            orphan: None,
            owner: None,
            op: Op::Accept { fd: -1 },
            prefix: 0,
            cancel_requested: false,
            executor: Executor::Driver,
            drop_payload: None,
            storage: OpStorage::new(),
        });
        let index = (self.entries.len() - 1) as u32;
        assert!(index < OpId::MAX_INDEX, "more than 16 million operations at once");
        index
    }

    /// Called right before the reserved operation is passed to the driver.
    #[inline]
    pub(super) fn mark_in_flight(&mut self, id: OpId, op: Op, prefix: usize, drop_payload: unsafe fn(*mut u8)) {
        self.in_flight += 1;
        let entry = &mut self.entries[id.index as usize];
        entry.phase = Phase::InFlight;
        entry.op = op;
        entry.prefix = prefix;
        entry.drop_payload = Some(drop_payload);
    }

    /// Frees the slot of a completed operation, whose payload must be gone already.
    #[inline]
    pub(super) fn release(&mut self, id: OpId) {
        let Some(entry) = self.entry(id) else { return };
        assert!(
            matches!(entry.phase, Phase::Done(_)),
            "an operation in flight is never released"
        );
        entry.phase = Phase::Free;
        entry.generation = (entry.generation + 1) & ((1 << 40) - 1);
        entry.orphan = None;
        entry.drop_payload = None;
        entry.prefix = 0;
        entry.cancel_requested = false;
        self.free.push(id.index);
    }

    /// The fast path of `complete`: returns the waker of an operation that has nothing else, and other completions
    /// unchanged.
    #[inline]
    pub(crate) fn complete_plain(&mut self, completion: Completion) -> Result<Option<Waker>, Completion> {
        let Some(entry) = self.entries.get_mut(completion.id.index as usize) else {
            return Err(completion);
        };
        let is_plain = entry.generation == completion.id.generation
            && matches!(entry.phase, Phase::InFlight)
            && entry.orphan.is_none()
            && entry.listener.is_none()
            && entry.owner.is_none()
            && entry.executor == Executor::Driver;
        if !is_plain {
            return Err(completion);
        }
        entry.phase = Phase::Done(completion.result);
        self.in_flight -= 1;
        Ok(entry.waker.take())
    }

    /// Stores the result of an operation.
    pub(crate) fn complete(&mut self, completion: Completion) -> CompletionEffects {
        let Completion { id, result: op_result } = completion;
        let mut effects = CompletionEffects::default();
        let Some(entry) = self.entry(id) else {
            effects.stale = true;
            return effects;
        };
        if !matches!(entry.phase, Phase::InFlight) {
            effects.stale = true;
            return effects;
        }
        effects.waker = entry.waker.take();
        effects.listener = entry.listener.take();
        effects.owner = entry.owner.take();
        if entry.orphan == Some(OnOrphan::Discard) {
            effects.discard = Some(id);
            effects.cleanup = orphan_cleanup(&entry.op, op_result.res);
        }
        entry.phase = Phase::Done(op_result);
        let executor = std::mem::replace(&mut entry.executor, Executor::Driver);
        self.in_flight -= 1;
        self.off_driver -= usize::from(executor != Executor::Driver);
        effects
    }

    /// How many connections were accepted and not yet returned to the program.
    pub(crate) fn accepted_waiting(&self) -> usize {
        let is_connection = |entry: &&Entry| {
            matches!(&entry.phase, Phase::Done(op_result) if op_result.res.is_ok())
                && matches!(entry.op, Op::Accept { .. })
        };
        self.entries.iter().filter(is_connection).count()
    }

    pub(crate) fn ops_in_flight(&self) -> Vec<(&'static str, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for (entry, _) in self.waiting() {
            *counts.entry(entry.name()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// The operations in flight, and their wakers.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&Op, Option<&Waker>)> {
        let in_flight = |entry: &&Entry| matches!(entry.phase, Phase::InFlight);
        self.entries
            .iter()
            .filter(in_flight)
            .map(|entry| (&entry.op, entry.waker.as_ref()))
    }

    pub(crate) fn ids_in_flight(&self) -> Vec<OpId> {
        let in_flight = |(_, entry): &(usize, &Entry)| matches!(entry.phase, Phase::InFlight);
        self.entries
            .iter()
            .enumerate()
            .filter(in_flight)
            .map(|(index, entry)| OpId {
                index: index as u32,
                generation: entry.generation,
            })
            .collect()
    }
}

/// How to close the connection or file that an operation has opened after its future was dropped.
pub(super) fn orphan_cleanup(op: &Op, res: OsResult) -> Option<Control<'static>> {
    let fd = res.ok()? as Fd;
    match op {
        Op::Accept { .. } => Some(Control::Reset { fd }),
        Op::File(FileOp::Open { .. }) => Some(Control::Close { fd }),
        _ => None,
    }
}

impl Drop for OpTable {
    fn drop(&mut self) {
        for entry in &mut self.entries {
            if matches!(entry.phase, Phase::InFlight) {
                continue;
            }
            if let Some(drop_payload) = entry.drop_payload {
                // SAFETY: the operation has completed, so the kernel is done with the payload, and it was not taken.
                guard("a buffer's destructor", || unsafe {
                    drop_payload(payload_ptr(entry.storage))
                });
            }
            // SAFETY: `grow` made this box, this entry owns it, and the kernel does not use it.
            drop(unsafe { Box::from_raw(entry.storage) });
        }
    }
}
