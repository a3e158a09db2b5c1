//! The calls of the loop: each is passed on to the inner driver, with a quirk if the seed says so.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use super::{QuirkyDriver, State};
use crate::driver::{
    BufferPool, Completion, Control, Description, Driver, DriverCounters, Fd, FdSpace, Job, MessageEntry, Notify, Op,
    OpId, OpResult, OsResult, Reply, SCRATCH_LEN, Scratch, SignalSource, Start, Wait,
};
use crate::sim::quirks::kind::Kind;
use crate::sys::{Instant, errno};

/// An attempt that was cancelled is polled for this often. A driver with a virtual clock completes it in the first.
const MOST_POLLS: usize = 1000;

// SAFETY: the memory of an operation stays in place until its completion is reported, and it is reported only after the
// inner driver has completed it, or if the inner driver never got it.
unsafe impl Driver for QuirkyDriver {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn has_virtual_clock(&self) -> bool {
        self.inner.has_virtual_clock()
    }

    fn submits_in_batches(&self) -> bool {
        self.quirks
            .submits_in_batches
            .unwrap_or_else(|| self.inner.submits_in_batches())
    }

    fn tries_first(&self) -> bool {
        self.quirks.tries_first.unwrap_or_else(|| self.inner.tries_first())
    }

    fn offload(&mut self, job: Job) -> Result<(), Job> {
        self.inner.offload(job)
    }

    fn wall_clock(&self) -> SystemTime {
        self.inner.wall_clock()
    }

    fn entropy(&mut self, bytes: &mut [u8]) {
        self.inner.entropy(bytes);
    }

    fn signals(&self) -> SignalSource {
        self.inner.signals()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        self.ledger.calling(&call);
        if let Control::Socket { .. } | Control::Pair { .. } | Control::Pipe = call
            && let Some(code) = self.exhausted()
        {
            return Err(io::Error::from_raw_os_error(code));
        }
        let reply = self.inner.control(call)?;
        self.ledger.called(&call, &reply);
        Ok(reply)
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        let is_in_flight = self.by_index.get(id.index()).copied().flatten().is_some();
        self.ledger.starting(id, op, is_in_flight);
        let at = self.insert(Some(id), op, scratch);
        if let Some(code) = self.injected(op) {
            self.finish(at, OpResult::new(Err(code)));
            return Start::Pending;
        }
        // SAFETY: the caller's promise: the operation owns its memory.
        unsafe { self.adapt(at, op) };
        if self.may_wait(op) {
            let polls = self.delay(Kind::LateStart, self.quirks.late_starts, |rngs| &mut rngs.starts);
            let has_space = self.has_space();
            if !has_space {
                self.occurred(Kind::ParkedStart);
            }
            if !has_space || polls > 0 {
                self.queue(at, polls.saturating_sub(1), false);
                return Start::Pending;
            }
        }
        match self.start_inner(at) {
            Start::Blocking => {
                self.remove(at);
                return Start::Blocking;
            }
            Start::Done(result) => self.inner_done(at, result),
            Start::Pending => {}
        }
        if matches!(op, Op::Readiness { .. }) || !self.rngs.starts.chance(self.quirks.done_at_once) {
            return Start::Pending;
        }
        // An error of this poll comes again in the next one.
        let _ = self.poll_inner(Wait::Poll);
        match self.take_result(at) {
            Some(result) => {
                self.occurred(Kind::DoneAtOnce);
                Start::Done(self.report(at, result))
            }
            None => Start::Pending,
        }
    }

    unsafe fn attempt(&mut self, op: &Op, alone: bool) -> Option<OsResult> {
        self.ledger.attempting(op);
        // SAFETY: the caller's promise.
        let attempt = |inner: &mut dyn Driver| unsafe { inner.attempt(op, alone) };
        match self.quirks.attempts_served {
            None => return attempt(&mut *self.inner),
            Some(rate) if !self.rngs.attempts.chance(rate) => {
                self.occurred(Kind::AttemptRefused);
                return None;
            }
            Some(_) => {
                if let Some(res) = attempt(&mut *self.inner) {
                    return Some(res);
                }
            }
        }
        // Other drivers complete a cancelled operation when the kernel does: too late for an attempt.
        if !self.has_virtual_clock() || op.waits_for().is_none() {
            return None;
        }
        let mut scratch = Scratch([std::mem::MaybeUninit::uninit(); SCRATCH_LEN]);
        let at = self.insert(None, op, &mut scratch);
        // SAFETY: the caller's promise.
        unsafe { self.adapt(at, op) };
        match self.start_inner(at) {
            Start::Blocking => {
                self.remove(at);
                return None;
            }
            Start::Done(result) => self.inner_done(at, result),
            Start::Pending => {}
        }
        for poll in 0..MOST_POLLS {
            let _ = self.poll_inner(Wait::Poll);
            if let Some(result) = self.take_result(at) {
                self.remove(at);
                let res = Some(result.res()).filter(|res| *res != Err(errno::CANCELED));
                self.occurred(match res {
                    Some(_) => Kind::AttemptServed,
                    None => Kind::AttemptRefused,
                });
                return res;
            }
            if poll == 0 {
                self.cancel_inner(at);
            }
        }
        // Returning would free memory that the inner driver still uses, and so would unwinding.
        eprintln!("windlass: the inner driver does not complete a cancelled {}", op.name());
        std::process::abort();
    }

    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        let Some(count) = self.batch_len(fd, "recv_batch", entries.len()) else {
            return 0;
        };
        // SAFETY: the caller's promise.
        unsafe { self.inner.recv_batch(fd, &mut entries[..count]) }
    }

    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        let Some(count) = self.batch_len(fd, "send_batch", entries.len()) else {
            return 0;
        };
        // SAFETY: the caller's promise.
        unsafe { self.inner.send_batch(fd, &mut entries[..count]) }
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        let Some(at) = self.find(id) else {
            return self.ledger.cancelling(id, op);
        };
        let entry = &mut self.entries[at as usize];
        entry.is_cancelled = true;
        let (state, sent) = (entry.state, entry.sent);
        match state {
            State::Done => self.counters.late_cancels += 1,
            State::Queued if sent > 0 => self.inner_done(at, OpResult::new(Err(errno::CANCELED))),
            State::Queued if self.occurs(Kind::CancelLost, self.quirks.lost_cancels, |rngs| &mut rngs.cancels) => {
                self.queue(at, 0, true);
            }
            State::Queued => {
                self.occurred(Kind::CancelWon);
                self.inner_done(at, OpResult::new(Err(errno::CANCELED)));
            }
            State::Inner => {
                let polls = self.delay(Kind::LateCancel, self.quirks.late_cancels, |rngs| &mut rngs.cancels);
                let has_space = self.has_space();
                if !has_space {
                    self.occurred(Kind::ParkedCancel);
                }
                match has_space && polls == 0 {
                    true => self.cancel_inner(at),
                    false => self.queue(at, polls.saturating_sub(1), true),
                }
            }
            State::Free => unreachable!("the entry was found by its id"),
        }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.inner.provide_buffers(pool)
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        self.was_empty = self.occurs(Kind::EmptyPoll, self.quirks.empty_polls, |rngs| &mut rngs.polls);
        if self.was_empty {
            return Ok(());
        }
        if self.occurs(Kind::FailedPoll, self.quirks.short_of_memory, |rngs| &mut rngs.polls) {
            self.was_empty = true;
            let codes = [errno::NO_MEMORY, errno::NO_BUFFERS, errno::AGAIN];
            return Err(io::Error::from_raw_os_error(codes[self.rngs.polls.below(3) as usize]));
        }
        self.submit();
        let wait = match wait {
            Wait::Until(_) | Wait::Between(..) | Wait::Forever if self.is_holding() => Wait::Poll,
            wait => wait,
        };
        let result = self.poll_inner(wait);
        self.report_due(completed);
        result
    }

    fn flush(&mut self) -> io::Result<()> {
        self.submit();
        if self.is_holding() || self.was_empty {
            // The outer loop must turn this one: a poll makes progress.
            self.inner.notifier().notify();
        }
        self.inner.flush()
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        self.inner.descriptor()
    }

    fn arm_deadline(&mut self, deadline: Option<Instant>) -> bool {
        self.inner.arm_deadline(deadline)
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.inner.notifier()
    }

    fn counters(&self) -> DriverCounters {
        let (mut counters, own) = (self.inner.counters(), &self.counters);
        counters.sq_full += own.sq_full;
        counters.late_cancels += own.late_cancels;
        counters.pool_empty += own.pool_empty;
        counters
    }

    fn fd_space(&self) -> FdSpace {
        self.inner.fd_space()
    }
}
