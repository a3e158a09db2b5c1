//! io_uring.
//!
//! The kernel shares two rings with us: we put submissions into one, it puts completions into the other. Facts that
//! shape this room:
//!
//! - With `DEFER_TASKRUN` a completion is not even written to the ring before we `enter` the kernel with `GETEVENTS`. So
//!   nothing interrupts a running task, and `TASKRUN_FLAG` tells by a bit in shared memory that there is something to
//!   enter for. A poll that may not sleep therefore looks at three words and usually makes no system call.
//! - One `enter` submits, waits and times out at once. There is at most one per poll, unless more was started than the
//!   submission ring holds.
//! - A full submission ring is not an error: it is handed over, if what completes at once has room; else what does not fit
//!   waits in `backlog`, in order, and so do cancels.
//! - A full completion ring is not an error either: the kernel keeps the overflow in memory of its own and sets a flag;
//!   an `enter` with `GETEVENTS` flushes it once there is room.
//! - A cancel is an operation like any other. It has a completion of its own, which only says whether it came too late.
//! - Closing a ring is not a barrier: the kernel may write to a buffer after `close` has returned. So the loop lands every
//!   flight before it drops the driver.

mod buffers;
mod emptied;
mod notify;
mod setup;
mod submit;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, squeue, types};

use self::buffers::BufferRing;
use self::emptied::Emptied;
use self::notify::{EventFd, Notifier};
use crate::driver::op::{FileOp, Medium, Op};
use crate::driver::{
    self, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, OpId, OpResult, OsResult, Reply,
    Scratch, Settings, Start, Wait,
};
use crate::sys::{self, Fd, Instant};

/// A sleep ends by then at the latest, and the loop sleeps again.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Completions with this index are the driver's own.
const OWN: u32 = OpId::MAX_INDEX;
/// The eventfd was written to.
const NOTIFIED: OpId = OpId {
    index: OWN,
    generation: 0,
};
/// A cancel was carried out, or came too late.
const CANCELLED: OpId = OpId {
    index: OWN,
    generation: 1,
};

pub(crate) struct Uring {
    ring: IoUring,
    /// What did not fit into the submission ring.
    backlog: VecDeque<squeue::Entry>,
    buffers: Option<BufferRing>,
    emptied: Emptied,
    notifier: Arc<Notifier>,
    /// The kernel writes the eventfd's count here. Boxed: it must not move.
    eventfd_count: Box<u64>,
    /// Whether the read on the eventfd is in the air.
    eventfd_armed: bool,
    /// Whether a foreign descriptor was ever waited for.
    watches: bool,
    abilities: setup::Abilities,
    settings: Settings,
    reason: String,
    counters: DriverCounters,
}

impl Uring {
    pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Uring> {
        let (ring, abilities) = setup::open(settings)?;
        Ok(Uring {
            ring,
            backlog: VecDeque::new(),
            buffers: None,
            emptied: Emptied::default(),
            notifier: Arc::new(Notifier::new()?),
            eventfd_count: Box::new(0),
            eventfd_armed: false,
            watches: false,
            abilities,
            settings: *settings,
            reason: reason.to_owned(),
            counters: DriverCounters::default(),
        })
    }

    /// Queues a submission; it reaches the kernel with the next `enter`, or when the ring is full.
    fn push(&mut self, entry: squeue::Entry) {
        self.counters.submissions += 1;
        if self.backlog.is_empty() {
            // SAFETY: the entry's memory belongs to a flight, or to this driver, until its completion has landed.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.counters.sq_full += 1;
        if self.backlog.is_empty() && self.hand_over() {
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Hands a full submission ring over while it is in the cache. Not if what completes at once might not fit the completion
    /// ring: then it waits for the poll, which reaps.
    #[cold]
    fn hand_over(&mut self) -> bool {
        let (submitter, submission, completion) = self.ring.split();
        let room = completion.capacity() - completion.len();
        if submission.len() > room / 2 {
            return false;
        }
        drop((submission, completion));
        if let Some(buffers) = &mut self.buffers {
            buffers.give_to_kernel();
        }
        self.counters.enters += 1;
        submitter.submit().is_ok()
    }

    /// Moves what was parked into the submission ring, as far as it fits.
    fn unpark(&mut self) {
        if self.backlog.is_empty() {
            return;
        }
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// The one system call: submits everything that is in the ring, runs deferred completions, and sleeps as told.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.counters.enters += 1;
        let (to_submit, overflowed) = {
            let submission = self.ring.submission();
            (submission.len() as u32, submission.cq_overflow())
        };
        if overflowed {
            self.counters.overflows += 1;
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let sleeps = matches!(wait, Wait::Until(_) | Wait::Forever);
        let mut time = types::Timespec::new();
        if let Wait::Until(deadline) = wait {
            // The kernel's own clock ends after 292 years.
            let deadline = deadline.min(Instant::from_origin(LONGEST_WAIT));
            let until = if self.abilities.absolute_timeout {
                flags |= EnterFlags::ABS_TIMER;
                deadline.since_origin()
            } else {
                deadline - sys::monotonic()
            };
            time = types::Timespec::from(until);
        }
        if sleeps && self.abilities.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let args = match wait {
            Wait::Until(_) => types::SubmitArgs::new().timespec(&time),
            Wait::No | Wait::Look | Wait::Forever => types::SubmitArgs::new(),
        };
        // SAFETY: `EXT_ARG` says that the argument is a `SubmitArgs`, which outlives the call, as does its timespec.
        let entered = unsafe {
            self.ring
                .submitter()
                .enter(to_submit, u32::from(sleeps), flags.bits(), Some(&args))
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The time was up; a signal came; the completion ring must be reaped before more can be submitted. In
                // each case what was submitted stays submitted, and the loop comes again. EAGAIN, as ENOMEM, says that there
                // is no memory for a request: those are errors, and the loop pauses before it comes again.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Whether there is nothing to hand over and nothing to reap.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        let (_, submission, completion) = self.ring.split();
        completion.is_empty()
            && submission.is_empty()
            && !submission.taskrun()
            && !submission.cq_overflow()
            && self.backlog.is_empty()
    }

    /// Takes everything out of the completion ring. Gives whether the kernel holds more back for want of room.
    fn reap(&mut self, completed: &mut Vec<Completion>) -> bool {
        let (_, submission, completion) = self.ring.split();
        for entry in completion {
            self.counters.completions += 1;
            match OpId::from_u64(entry.user_data()) {
                NOTIFIED => self.eventfd_armed = false,
                CANCELLED => {
                    if entry.result() == -libc::ENOENT || entry.result() == -libc::EALREADY {
                        self.counters.late_cancels += 1;
                    }
                }
                id => {
                    self.emptied.completed(id, &entry);
                    let op_result = op_result(&entry, self.buffers.as_ref());
                    self.counters.pool_empty += u64::from(op_result.res == Err(libc::ENOBUFS));
                    completed.push(Completion { id, result: op_result });
                }
            }
        }
        submission.cq_overflow()
    }

    /// Signals the outer loop if there is something left to do: its signal may have been taken back with others'.
    fn notify_outer_loop(&mut self) {
        if self.notifier.outer.get().is_some()
            && !self.is_quiet()
            && let Some(outer) = self.notifier.outer.get()
        {
            outer.signal();
        }
    }

    /// Makes sure that the outer loop is told of the next completion. If what completed was woken by a write to some eventfd
    /// (somebody else's, watched here; or what another library's epoll holds), the kernel puts the signal off, and on Linux
    /// 6.18 does so only once per registration: every later one is lost. So it is registered anew before each wait.
    fn renew_outer(&mut self) -> io::Result<()> {
        let Some(outer) = self.notifier.outer.get() else {
            return Ok(());
        };
        // Kernels without these deferred completions lose none, and before 5.18 would wait here for every operation.
        if !self.watches || !self.abilities.defer_taskrun {
            return Ok(());
        }
        let submitter = self.ring.submitter();
        // An error says that an earlier call got no further than this.
        let _ = submitter.unregister_eventfd();
        submitter.register_eventfd(outer.number())
    }

    /// Keeps a read on the eventfd in the air, so that a notification ends a sleep.
    fn arm_eventfd(&mut self) {
        if self.eventfd_armed {
            return;
        }
        self.eventfd_armed = true;
        let entry = self.notifier.eventfd.read_into(&mut self.eventfd_count);
        self.push(entry.user_data(NOTIFIED.to_u64()));
    }
}

/// What a completion says.
fn op_result(entry: &cqueue::Entry, buffers: Option<&BufferRing>) -> OpResult {
    let res = match entry.result() {
        error if error < 0 => Err(-error),
        count => Ok(count as u32),
    };
    let buffer = match (cqueue::buffer_select(entry.flags()), buffers) {
        (Some(index), Some(buffers)) => Some(buffers.filled(index, res.unwrap_or(0) as usize)),
        _ => None,
    };
    OpResult {
        res,
        // An empty buffer says nothing that the count does not say; it goes back to the pool here.
        buffer: buffer.filter(|_| res.is_ok_and(|count| count > 0)),
    }
}

impl Drop for Uring {
    /// The read on the eventfd is the one operation that no flight owns: it is made to complete before the memory that it
    /// writes to goes. Closing the ring would not wait for it.
    fn drop(&mut self) {
        let mut stale = Vec::new();
        for _ in 0..100 {
            if !self.eventfd_armed {
                return;
            }
            self.notifier.notify();
            self.unpark();
            let soon = sys::monotonic() + Duration::from_millis(10);
            if self.enter(Wait::Until(soon)).is_err() {
                break;
            }
            self.reap(&mut stale);
        }
        if self.eventfd_armed {
            std::mem::forget(std::mem::take(&mut self.eventfd_count));
        }
    }
}

// SAFETY: a flight's completion is pushed onto `landed` only when the kernel has posted the completion for its id. No operation
// is multishot, so the kernel posts one, when it has stopped using the operation's memory. The eventfd's count and
// the buffer ring belong to this driver, which the loop drops only when everything has landed, or leaks.
unsafe impl Driver for Uring {
    fn describe(&self) -> Description {
        Description::new("io_uring", self.abilities.names(), self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn submits_in_batches(&self) -> bool {
        true
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        if let Control::Close { fd } | Control::Reset { fd } | Control::Forget { fd } = call {
            self.emptied.forget(fd);
        }
        driver::control(call)
    }

    unsafe fn start(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start {
        if let Op::RecvManaged { .. } | Op::RecvMessageManaged { .. } = op {
            // Without a buffer ring (before 5.19) the pool counts as empty, and the read goes to the heap.
            if !self.ready_buffers() {
                return Start::Done(OpResult::last(Err(libc::ENOBUFS)));
            }
        }
        if let Op::Connect { name, .. } = op {
            // SAFETY: the flight owns the name.
            let is_unix = unsafe { &*name }.as_socket().is_none();
            // Within the machine it is over at once or refused for want of room, and then the kernel would let a worker
            // thread wait in it.
            // SAFETY: the flight owns what the op points to, and nothing of it is with the kernel yet.
            if is_unix && let Some(res) = unsafe { driver::perform(op) } {
                return Start::Done(OpResult::last(res));
            }
        }
        self.watches |= matches!(op, Op::Readiness { .. });
        let poll_first = match op {
            // Other sockets do not tell on every kernel whether they are empty.
            Op::Recv { fd, medium, .. } | Op::RecvManaged { fd, medium } if medium == Medium::Tcp => {
                self.abilities.poll_first && self.emptied.receives(id, fd)
            }
            _ => false,
        };
        // SAFETY: the caller's promise is the same: the scratch is the flight's until it has landed.
        let Some(entry) = (unsafe { submit::entry(op, scratch, &self.abilities, poll_first) }) else {
            return Start::Blocking;
        };
        self.push(entry.user_data(id.to_u64()));
        Start::Pending
    }

    unsafe fn attempt(&mut self, op: Op, alone: bool) -> Option<OsResult> {
        match op {
            // SAFETY: the caller's promise.
            Op::File(FileOp::ReadAt { fd, ptr, len, offset }) => unsafe { sys::read_cached(fd, ptr, len, offset) },
            Op::Send { medium, .. } | Op::SendVectored { medium, .. }
                if alone && medium != Medium::Pipe && self.ring.submission().len() < 2 =>
            {
                // SAFETY: the caller's promise: it is there until this returns, and the call is over then.
                let res = unsafe { driver::perform(op) }?;
                self.counters.submissions += 1;
                self.counters.completions += 1;
                Some(res)
            }
            _ => None,
        }
    }

    fn cancel(&mut self, id: OpId) {
        let entry = io_uring::opcode::AsyncCancel::new(id.to_u64()).build();
        self.push(entry.user_data(CANCELLED.to_u64()));
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        // A signal to an outer loop is taken back even if it was for nothing.
        let may_leave_out = wait == Wait::No || (wait == Wait::Look && self.notifier.outer.get().is_none());
        if may_leave_out && self.is_quiet() {
            self.counters.spins += 1;
            return Ok(());
        }
        self.arm_eventfd();
        self.unpark();
        if let Some(buffers) = &mut self.buffers {
            buffers.give_to_kernel();
        }
        let has_completed = !self.ring.completion().is_empty();
        let must_enter = {
            let submission = self.ring.submission();
            !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
        };
        // What is here already is served before anybody sleeps, and what is still parked must not wait for a wake.
        let sleeps = !has_completed && self.backlog.is_empty() && matches!(wait, Wait::Until(_) | Wait::Forever);
        let wait = if sleeps { wait } else { Wait::No };
        let mut entered = match must_enter || sleeps {
            true => self.enter(wait),
            false => Ok(()),
        };
        // What completes from here on signals the outer loop again; what has completed is reaped now.
        if let Some(outer) = self.notifier.outer.get() {
            outer.clear();
        }
        let mut held_back = self.reap(completed);
        // More was started than the ring holds, or more completed than it holds: go on until neither is so, or until the
        // kernel, short of memory, takes nothing; then the loop comes again.
        while entered.is_ok() && (held_back || !self.backlog.is_empty()) {
            let before = (self.backlog.len(), self.counters.completions);
            self.unpark();
            entered = self.enter(Wait::No);
            held_back = self.reap(completed);
            if before == (self.backlog.len(), self.counters.completions) {
                break;
            }
        }
        self.notify_outer_loop();
        // What has completed was reaped in any case.
        entered
    }

    fn flush(&mut self) -> io::Result<()> {
        self.arm_eventfd();
        loop {
            self.unpark();
            let queued = self.ring.submission().len();
            if queued == 0 {
                break;
            }
            self.enter(Wait::No)?;
            // The kernel takes nothing before its completions are reaped: the next poll does that.
            if self.ring.submission().len() == queued {
                break;
            }
        }
        self.renew_outer()?;
        self.notify_outer_loop();
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        if let Some(outer) = self.notifier.outer.get() {
            return Ok(outer.number());
        }
        let outer = EventFd::for_outer_loop()?;
        self.ring
            .submitter()
            .register_eventfd(outer.number())
            .map_err(|error| crate::sys::context("io_uring did not take an eventfd", error))?;
        let number = self.notifier.outer.get_or_init(|| outer).number();
        self.notify_outer_loop();
        Ok(number)
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.notifier.clone()
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Kernel
    }
}
