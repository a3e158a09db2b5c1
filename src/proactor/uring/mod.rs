//! The io_uring driver.
//!
//! The kernel shares two rings with the process: the driver queues submissions in one, the kernel posts completions in
//! the other. Kernel facts that shape this driver:
//!
//! - With `DEFER_TASKRUN` the kernel posts completions only while this thread is in `io_uring_enter` with `GETEVENTS`,
//!   so it never interrupts a running task. `TASKRUN_FLAG` sets a bit in shared memory when completions are deferred. A
//!   poll that must not block therefore reads three shared words and usually makes no system call.
//! - One `io_uring_enter` submits, waits and times out. A poll makes at most one, unless a ring was full.
//! - The submission ring can be full. The driver then submits it at once, provided that the completion ring has room
//!   for operations that complete immediately. Otherwise later submissions, cancels included, queue in `backlog`.
//! - The completion ring can overflow. The kernel keeps the excess completions in its own memory and sets a flag; an
//!   `enter` with `GETEVENTS` flushes them once there is room.
//! - A cancel is an operation with a completion of its own, which only says whether the cancel came too late.
//! - Closing a ring is not a barrier: the kernel may write to a buffer after `close` has returned. So the loop waits
//!   until every operation has completed before it drops the driver.

mod buffers;
mod deadline;
mod notify;
mod rings;
mod setup;
mod submit;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, squeue, types};

use self::buffers::BufferRing;
use self::deadline::DeadlineTimer;
use self::notify::{EventFd, Notifier};
use self::rings::{Cqe, Rings};
use crate::driver::op::{Direction, FileOp, Medium, Op};
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, MessageEntry, Notify, OpId,
    OpResult, OsResult, Reply, Scratch, Settings, Start, Wait,
};
use crate::sys::{self, Fd, Instant};

/// The longest single wait; the loop then waits again.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The index of the driver's own operations, which the loop never uses.
const DRIVER_INDEX: u32 = OpId::MAX_INDEX;
/// The read of the eventfd: it completes when another thread notifies the loop.
const NOTIFY_READ: OpId = OpId::new(DRIVER_INDEX, 0);
/// A cancel request; not the operation that it cancels.
const CANCEL: OpId = OpId::new(DRIVER_INDEX, 1);
/// The timeout that signals the outer loop at the next deadline.
const DEADLINE: OpId = OpId::new(DRIVER_INDEX, 2);
/// A change of that timeout.
const DEADLINE_UPDATE: OpId = OpId::new(DRIVER_INDEX, 3);

pub(crate) struct Uring {
    /// Before `ring`: a mapping keeps the ring open.
    rings: Rings,
    ring: IoUring,
    /// Submissions that did not fit into the submission ring.
    backlog: VecDeque<squeue::Entry>,
    buffers: Option<BufferRing>,
    notifier: Arc<Notifier>,
    /// The kernel writes the eventfd's count here. Boxed: it must not move.
    eventfd_count: Box<u64>,
    own: OwnOps,
    /// Whether a `Readiness` operation was ever started.
    watches_foreign: bool,
    features: setup::Features,
    reason: String,
    counters: DriverCounters,
}

/// The state of the driver's own operations, and what completions say to the driver itself.
#[derive(Default)]
struct OwnOps {
    /// Whether the read of the eventfd is in flight.
    eventfd_armed: bool,
    deadline: DeadlineTimer,
    late_cancels: u64,
    /// Receives that found the buffer ring empty, in one reaping.
    no_buffer: u64,
}

impl OwnOps {
    #[cold]
    fn completed(&mut self, id: OpId, result: OpResult) {
        match id {
            NOTIFY_READ => self.eventfd_armed = false,
            DEADLINE => self.deadline.fired(),
            // A change that came too late: the timeout has fired.
            DEADLINE_UPDATE => {}
            _ => {
                let is_late = matches!(result.res(), Err(libc::ENOENT | libc::EALREADY));
                self.late_cancels += u64::from(is_late);
            }
        }
    }

    #[cold]
    fn failed(&mut self, result: OpResult) {
        self.no_buffer += u64::from(result.res() == Err(libc::ENOBUFS));
    }
}

impl Uring {
    pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Uring> {
        let (ring, features) = setup::open(settings)?;
        Ok(Uring {
            rings: Rings::map(&ring)?,
            ring,
            backlog: VecDeque::new(),
            buffers: None,
            notifier: Arc::new(Notifier::new()?),
            eventfd_count: Box::new(0),
            own: OwnOps::default(),
            watches_foreign: false,
            features,
            reason: reason.to_owned(),
            counters: DriverCounters::default(),
        })
    }

    /// Starts an operation that `frequent_entry` does not build, or for which the ring is full.
    /// Safety: as for [`Driver::start`].
    #[inline(never)]
    unsafe fn start_other(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        if let Some(entry) = submit::word_entry(op, id, &self.features) {
            self.push(entry);
            return Start::Pending;
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_slowly(id, op, scratch) }
    }

    /// Starts an operation that `word_entry` does not build.
    /// Safety: as for [`Driver::start`].
    #[cold]
    unsafe fn start_slowly(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        if let Op::Connect { name, .. } = *op {
            // SAFETY: the operation owns the name.
            let is_unix = unsafe { &*name }.as_socket().is_none();
            // A Unix connect ends at once, with EAGAIN if the backlog is full. io_uring would block a worker instead.
            // SAFETY: the operation owns the memory that `op` points to, and the kernel does not use it yet.
            if is_unix && let Some(res) = unsafe { driver::perform(op) } {
                return Start::Done(OpResult::new(res));
            }
        }
        self.watches_foreign |= matches!(op, Op::Readiness { .. });
        // SAFETY: the caller's promise: the scratch is the operation's until it completes.
        let Some(entry) = (unsafe { submit::entry(op, id, scratch, &self.features) }) else {
            return Start::Blocking;
        };
        self.push(entry);
        Start::Pending
    }

    /// Queues a submission. It reaches the kernel with the next `enter`, or when the ring is full.
    fn push(&mut self, entry: squeue::Entry) {
        self.counters.submissions += 1;
        if self.backlog.is_empty() && !self.rings.is_full() {
            // SAFETY: the entry's memory belongs to its operation, or to this driver, until it completes.
            return unsafe { self.rings.push(entry) };
        }
        self.push_to_full_ring(entry);
    }

    #[cold]
    fn push_to_full_ring(&mut self, entry: squeue::Entry) {
        self.counters.sq_full += 1;
        let may_submit = self.backlog.is_empty();
        self.backlog.push_back(entry);
        if may_submit && self.submit_full_ring() {
            self.drain_backlog();
        }
    }

    /// Submits a full submission ring early, while it is in the cache. Returns false if the completion ring might not
    /// hold the operations that complete immediately: the next poll submits, since it also reaps.
    #[cold]
    fn submit_full_ring(&mut self) -> bool {
        if self.rings.queued() > self.rings.room() / 2 {
            return false;
        }
        if let Some(buffers) = &mut self.buffers {
            buffers.give_to_kernel();
        }
        self.counters.enters += 1;
        self.ring.submitter().submit().is_ok()
    }

    /// Moves as much of the backlog into the submission ring as fits.
    fn drain_backlog(&mut self) {
        while !self.backlog.is_empty() && !self.rings.is_full() {
            let entry = self.backlog.pop_front().expect("checked");
            // SAFETY: as in `push`.
            unsafe { self.rings.push(entry) };
        }
    }

    /// The one system call: submits the whole ring, runs deferred completions, and blocks as `wait` says.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.counters.enters += 1;
        let to_submit = self.rings.queued();
        self.counters.overflows += u64::from(self.rings.has_overflowed());
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let sleeps = !matches!(wait, Wait::No | Wait::Poll);
        let time;
        let mut args = types::SubmitArgs::new();
        if let Wait::Until(deadline) | Wait::Between(_, deadline) = wait {
            // The kernel's clock is a signed 64-bit count of nanoseconds: 292 years.
            let deadline = deadline.min(Instant::from_origin(MAX_WAIT));
            let until = if self.features.absolute_timeout {
                flags |= EnterFlags::ABS_TIMER;
                deadline.since_origin()
            } else {
                deadline - sys::monotonic()
            };
            time = types::Timespec::from(until);
            args = args.timespec(&time);
        }
        if sleeps && self.features.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        // SAFETY: `EXT_ARG` says that the argument is a `SubmitArgs`, which outlives the call, as does its timespec.
        let entered = unsafe {
            self.ring
                .submitter()
                .enter(to_submit, u32::from(sleeps), flags.bits(), Some(&args))
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // ETIME: the timeout expired. EINTR: a signal. EBUSY: the completion ring must be reaped before more
                // can be submitted. Submitted operations stay submitted, and the loop polls again. EAGAIN and ENOMEM
                // mean no memory for a request: these are errors, and the loop pauses before it polls again.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY) => Ok(()),
                Some(libc::EAGAIN | libc::ENOMEM) if to_submit > 0 => {
                    // The kernel stopped at the submission and ran no deferred completions, which free requests.
                    let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
                    let args = types::SubmitArgs::new();
                    // SAFETY: as above, without a timespec.
                    let _ = unsafe { self.ring.submitter().enter(0, 0, flags.bits(), Some(&args)) };
                    Err(error)
                }
                _ => Err(error),
            },
        }
    }

    /// Whether there is nothing to submit and nothing to reap.
    #[inline]
    fn is_idle(&self) -> bool {
        self.rings.completed() == 0 && self.rings.queued() == 0 && !self.rings.has_deferred() && self.backlog.is_empty()
    }

    /// Empties the completion ring. Returns whether the kernel holds back more completions because the ring was full.
    fn reap(&mut self, completed: &mut Vec<Completion>) -> bool {
        let (count, before) = (self.rings.completed(), completed.len());
        self.counters.completions += u64::from(count);
        completed.reserve(count as usize);
        // SAFETY: the end of its contents is within the vector's memory. Not by way of its slice, behind which nothing may be
        // written.
        let start = unsafe { completed.as_mut_ptr().add(before) };
        let mut next = start;
        let Uring { rings, own, .. } = self;
        rings.reap(count, |Cqe { user_data, result }| {
            let (id, result) = (OpId::from_u64(user_data), OpResult::from_kernel(result));
            if id.is_reserved() {
                return own.completed(id, result);
            }
            if result.is_error() {
                own.failed(result);
            }
            // SAFETY: there is room for `count` completions, and this is called as often.
            unsafe {
                next.write(Completion { id, result });
                next = next.add(1);
            }
        });
        // SAFETY: `next` is behind the completions that were written, in the same allocation.
        unsafe {
            let written = next.offset_from(start) as usize;
            completed.set_len(before + written);
        }
        let no_buffer = std::mem::take(&mut self.own.no_buffer);
        if no_buffer > 0 && !self.buffers.as_mut().is_some_and(BufferRing::raise_limit) {
            self.counters.pool_empty += no_buffer;
        }
        self.rings.has_overflowed()
    }

    /// Signals the outer loop if work is left: `poll` may have cleared the signal for it together with earlier ones.
    fn notify_outer_loop(&mut self) {
        if self.notifier.outer.get().is_some() && !self.is_idle() {
            self.notifier.signal_outer();
        }
    }

    /// Registers the outer loop's eventfd again, so that the next completion signals it.
    ///
    /// When a write to another eventfd causes a completion (a foreign eventfd watched here, or one in another library's
    /// epoll), the kernel defers the signal. Linux 6.18 does so only once per registration and loses every later
    /// signal. So the eventfd is registered again before each wait.
    fn reregister_outer(&mut self) -> io::Result<()> {
        // Without DEFER_TASKRUN no signal is lost, and kernels before 5.18 would block here for every operation.
        let may_be_lost = self.watches_foreign && self.features.defer_taskrun;
        let Some(outer) = self.notifier.outer.get().filter(|_| may_be_lost) else {
            return Ok(());
        };
        let submitter = self.ring.submitter();
        // It fails if an earlier call unregistered the eventfd and then failed to register it.
        let _ = submitter.unregister_eventfd();
        submitter.register_eventfd(outer.number())
    }

    /// Keeps a read of the eventfd in flight, so that a notification ends a blocking `enter`.
    fn arm_eventfd(&mut self) {
        if !std::mem::replace(&mut self.own.eventfd_armed, true) {
            let entry = self.notifier.eventfd.read_into(&mut self.eventfd_count);
            self.push(entry.user_data(NOTIFY_READ.to_u64()));
        }
    }
}

impl Drop for Uring {
    /// Completes the read of the eventfd before its memory is freed; closing the ring would not wait for it. It is the
    /// only operation that the loop does not know and wait for.
    fn drop(&mut self) {
        let mut stale = Vec::new();
        for _ in 0..100 {
            if !self.own.eventfd_armed {
                return;
            }
            self.notifier.notify();
            self.drain_backlog();
            let soon = sys::monotonic() + Duration::from_millis(10);
            if self.enter(Wait::Until(soon)).is_err() {
                break;
            }
            self.reap(&mut stale);
        }
        if self.own.eventfd_armed {
            std::mem::forget(std::mem::take(&mut self.eventfd_count));
        }
    }
}

// SAFETY: `reap` reports an operation only when the kernel has posted the completion with its id. No operation is
// multishot, so the kernel posts exactly one, after its last access to the operation's memory. The eventfd's count and
// the buffer ring belong to this driver, which the loop drops only after every operation has completed.
unsafe impl Driver for Uring {
    fn describe(&self) -> Description {
        Description::new("io_uring", self.features.names(), self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn has_system_clock(&self) -> bool {
        true
    }

    fn submits_in_batches(&self) -> bool {
        true
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        driver::control(call)
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        if self.backlog.is_empty()
            && !self.rings.is_full()
            && let Some(entry) = submit::frequent_entry(op, id, &self.features)
        {
            // SAFETY: the entry's memory belongs to its operation until that completes.
            unsafe { self.rings.push(entry) };
            self.counters.submissions += 1;
            return Start::Pending;
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_other(id, op, scratch) }
    }

    unsafe fn attempt(&mut self, op: &Op, alone: bool) -> Option<OsResult> {
        match *op {
            // SAFETY: the caller's promise.
            Op::File(FileOp::ReadAt { fd, ptr, len, offset }) => unsafe { sys::read_cached(fd, ptr, len, offset) },
            Op::Send { medium, .. } | Op::SendVectored { medium, .. }
                if alone && medium != Medium::Pipe && self.rings.queued() < 2 =>
            {
                // SAFETY: the caller's promise: the memory is valid until this returns, and the call has ended by then.
                let res = unsafe { driver::perform(op) }?;
                self.counters.submissions += 1;
                self.counters.completions += 1;
                Some(res)
            }
            _ => None,
        }
    }

    /// A system call of its own: io_uring has no operation for several datagrams, and one call for many of them costs less
    /// than the submissions would.
    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { driver::perform_batch(fd, Direction::Read, entries, &mut self.counters) }
    }

    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { driver::perform_batch(fd, Direction::Write, entries, &mut self.counters) }
    }

    fn cancel(&mut self, id: OpId, _: &Op) {
        let entry = io_uring::opcode::AsyncCancel::new(id.to_u64()).build();
        self.push(entry.user_data(CANCEL.to_u64()));
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        // The buffer ring came with Linux 5.19.
        if self.features.buffer_ring {
            self.buffers = self.make_buffers(pool).ok();
        }
        self.buffers.is_some()
    }

    fn must_poll(&mut self) -> bool {
        let is_idle = self.is_idle();
        self.counters.spins += u64::from(is_idle);
        !is_idle
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        // With an outer loop, a poll must clear its eventfd even if nothing completed.
        let may_skip = wait == Wait::No || (wait == Wait::Poll && self.notifier.outer.get().is_none());
        if may_skip && self.is_idle() {
            self.counters.spins += 1;
            return Ok(());
        }
        self.arm_eventfd();
        self.drain_backlog();
        if let Some(buffers) = &mut self.buffers {
            buffers.give_to_kernel();
        }
        let has_completed = self.rings.completed() > 0;
        let must_enter = self.rings.queued() > 0 || self.rings.has_deferred();
        // Completions that are already here are handled before blocking, and the backlog must not wait for a wake-up.
        let sleeps = !has_completed && self.backlog.is_empty() && !matches!(wait, Wait::No | Wait::Poll);
        let wait = if sleeps { wait } else { Wait::No };
        let mut entered = match must_enter || sleeps {
            true => self.enter(wait),
            false => Ok(()),
        };
        // Clear first, then reap: a completion after this line signals the outer loop again.
        if let Some(outer) = self.notifier.outer.get() {
            outer.clear();
        }
        let mut overflowed = self.reap(completed);
        // More operations were started, or completed, than the ring holds: repeat until neither is the case, or until
        // the kernel, short of memory, makes no progress; then the loop polls again.
        while entered.is_ok() && (overflowed || !self.backlog.is_empty()) {
            let before = (self.backlog.len(), self.counters.completions);
            self.drain_backlog();
            entered = self.enter(Wait::No);
            overflowed = self.reap(completed);
            if before == (self.backlog.len(), self.counters.completions) {
                break;
            }
        }
        self.notify_outer_loop();
        // Completions were reaped even if the last `enter` failed.
        entered
    }

    fn flush(&mut self) -> io::Result<()> {
        self.arm_eventfd();
        loop {
            self.drain_backlog();
            let queued = self.rings.queued();
            if queued == 0 {
                break;
            }
            self.enter(Wait::No)?;
            // The kernel accepts no more until completions are reaped, which the next poll does.
            if self.rings.queued() == queued {
                break;
            }
        }
        self.reregister_outer()?;
        self.notify_outer_loop();
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        if let Some(outer) = self.notifier.outer.get() {
            return Ok(outer.number());
        }
        let outer = EventFd::new(libc::EFD_NONBLOCK)?;
        self.ring
            .submitter()
            .register_eventfd(outer.number())
            .map_err(|error| crate::sys::context("io_uring refused to register an eventfd", error))?;
        let number = self.notifier.outer.get_or_init(|| outer).number();
        self.notify_outer_loop();
        Ok(number)
    }

    fn arm_deadline(&mut self, deadline: Option<Instant>) -> bool {
        // Without an outer loop there is nothing to signal.
        if self.notifier.outer.get().is_none() {
            return false;
        }
        if let Some(entry) = deadline.and_then(|deadline| self.own.deadline.set(deadline, self.features.skip_success)) {
            self.push(entry);
        }
        true
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.notifier.clone()
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters {
            late_cancels: self.own.late_cancels,
            ..self.counters
        }
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Kernel
    }
}
