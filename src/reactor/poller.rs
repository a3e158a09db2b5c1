//! The reactor: attempts an operation, parks it if it would block, and attempts it again when its descriptor is ready.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use mio::{Poll, Token, Waker};

use super::deadline::DeadlineTimer;
use super::events::{Event, Events};
use super::fd_table::{FdTable, Side};
use super::os::{self, Pipes, Source};
use super::sleep;
use super::wait_list::{WaitList, Waiting};
#[cfg(target_os = "linux")]
use crate::driver::op::FileOp;
use crate::driver::op::{Direction, MAX_LEN, Medium, Op};
use crate::driver::poll_throttle::PollThrottle;
use crate::driver::pool::ProvidedPool;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, MessageEntry, Notify, OpId,
    OpResult, OsResult, Reply, Scratch, Start, Wait,
};
use crate::sys::{self, Fd, Instant, code_of, errno};

/// The most events that one poll returns; the next poll returns the rest. Few, so that a connection is still in the
/// cache when its task answers: with 1,024, hyper under `wrk` with 256 connections took 10 % more CPU time.
const MAX_EVENTS: usize = 32;

/// The token of the notifier. No descriptor has it: their numbers are smaller.
const NOTIFIED: Token = Token(usize::MAX);

/// The token of the deadline's timer; likewise.
const DEADLINE: Token = Token(usize::MAX - 1);

pub(crate) struct Reactor {
    poll: Poll,
    /// Empty while they are handled.
    events: Events,
    notifier: Arc<Notifier>,
    deadline_timer: DeadlineTimer,
    /// What the timer is set to, until it fires.
    armed_deadline: Option<Instant>,
    throttle: PollThrottle,
    /// The last poll returned as many events as fit: there may be more.
    may_have_more: bool,
    reason: String,
    fds: FdTable,
    pipes: Pipes,
    /// Completions from outside of a poll: cancels, and foreign descriptors that were ready at once.
    done: Vec<Completion>,
    pool: ProvidedPool,
    counters: DriverCounters,
    /// Operations that [`Driver::attempt`] has performed: submissions and completions that `counters` does not contain.
    done_at_once: u64,
}

impl Reactor {
    pub(crate) fn open(reason: &str) -> io::Result<Reactor> {
        let poll = Poll::new().map_err(explain)?;
        let waker = Waker::new(poll.registry(), NOTIFIED).map_err(explain)?;
        let notifier = Arc::new(Notifier(waker));
        Ok(Reactor {
            poll,
            events: Events::with_capacity(MAX_EVENTS),
            deadline_timer: DeadlineTimer::default(),
            armed_deadline: None,
            throttle: PollThrottle::new(),
            may_have_more: false,
            reason: reason.to_owned(),
            fds: FdTable::default(),
            pipes: Pipes::new(&notifier),
            done: Vec::new(),
            pool: ProvidedPool::default(),
            counters: DriverCounters::default(),
            done_at_once: 0,
            notifier,
        })
    }
}

/// Adds the likely cause to the kernel's error.
fn explain(error: io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(errno::PROCESS_FILES | errno::SYSTEM_FILES) => "no descriptor is left for a reactor",
        _ => "cannot open the reactor",
    };
    crate::sys::context(why, error)
}

/// Whether an operation is attempted also if its descriptor was not ready. Other code uses a foreign descriptor too, so
/// its recorded readiness may be wrong. Only the attempt starts a connect; and a datagram socket may connect while its
/// send buffer is full.
#[inline]
fn must_attempt(op: &Op) -> bool {
    matches!(
        op,
        Op::Readiness { .. } | Op::Connect { .. } | Op::SendMessage { at_once: true, .. }
    )
}

/// Performs an operation unless it would block, and notes if the next attempt would. `is_retry` says that an earlier
/// attempt was made: a connect is then in progress.
///
/// # Safety
///
/// The memory that `op` points to belongs to an operation that has not completed.
#[inline(always)]
unsafe fn attempt(
    op: &Op,
    is_retry: bool,
    side: &mut Side,
    pool: &ProvidedPool,
    counters: &mut DriverCounters,
) -> Option<OpResult> {
    // SAFETY: the caller's promise, for every call.
    let (result, medium, len) = unsafe {
        match *op {
            Op::Recv {
                fd, medium, ptr, len, ..
            } => (sys::recv(fd, medium, ptr, len).map(OpResult::new), medium, len),
            Op::Send { fd, medium, ptr, len } => (sys::send(fd, medium, ptr, len).map(OpResult::new), medium, len),
            Op::RecvManaged { medium, .. } => {
                let result = driver::perform_managed(op, pool, counters);
                (result, medium, pool.buffer_len())
            }
            _ => attempt_other(op, is_retry, pool, counters),
        }
    };
    side.note(result, medium, len);
    result
}

/// [`attempt`] at an operation other than a plain receive or send. Returns also the medium and how many bytes were
/// requested.
/// Safety: as for [`attempt`].
#[cold]
unsafe fn attempt_other(
    op: &Op,
    is_retry: bool,
    pool: &ProvidedPool,
    counters: &mut DriverCounters,
) -> (Option<OpResult>, Medium, usize) {
    // SAFETY: the caller's promise, for every call.
    let result = unsafe {
        match *op {
            Op::RecvVectored {
                medium, slices, count, ..
            }
            | Op::SendVectored {
                medium, slices, count, ..
            } => {
                let slices = std::slice::from_raw_parts(slices, count);
                let len = slices.iter().map(|slice| slice.len).sum::<usize>();
                // No more than the kernel's limit for one call.
                return (driver::perform(op).map(OpResult::new), medium, len.min(MAX_LEN));
            }
            Op::RecvMessageManaged { .. } => driver::perform_managed(op, pool, counters),
            Op::Connect { fd, .. } if is_retry => sys::connected(fd).map(OpResult::new),
            _ => driver::perform(op).map(OpResult::new),
        }
    };
    // The result says nothing about the remaining readiness.
    (result, Medium::Unix, 0)
}

/// Attempts a plain receive from a socket, if no other operation waits with it: the most frequent case of
/// [`retry_waiting`](Reactor::retry_waiting), in a third of the instructions. False in other cases: nothing was attempted.
#[inline(always)]
fn retry_receive(
    side: &mut Side,
    pool: &ProvidedPool,
    counters: &mut DriverCounters,
    completed: &mut Vec<Completion>,
) -> bool {
    let Some(waiting) = side.waiting.only() else {
        return false;
    };
    // SAFETY: a waiting operation has not completed, so its op and the memory that it points to are in place.
    let op = unsafe { waiting.op() };
    let (result, medium, len) = match *op {
        Op::RecvManaged { medium, fd, .. } if medium != Medium::Pipe => {
            // SAFETY: a receive initialises as many bytes as it returns.
            let result = unsafe { pool.receive(counters, |ptr, len| sys::recv(fd, medium, ptr, len)) };
            (result, medium, pool.buffer_len())
        }
        Op::Recv {
            medium, fd, ptr, len, ..
        } if medium != Medium::Pipe => {
            // SAFETY: as above.
            let res = unsafe { sys::recv(fd, medium, ptr, len) };
            (res.map(OpResult::new), medium, len)
        }
        _ => return false,
    };
    side.note(result, medium, len);
    if let Some(result) = result {
        side.waiting = WaitList::EMPTY;
        let id = waiting.id;
        completed.push(Completion { id, result });
    }
    true
}

impl Reactor {
    /// Makes an operation wait until its descriptor is ready.
    #[inline]
    fn park(&mut self, id: OpId, op: &Op, (fd, direction): (Fd, Direction)) -> Result<(), i32> {
        match self.fds.get(fd).source {
            None => self.register(fd, direction)?,
            Some(_) => self.arm(fd, direction)?,
        }
        self.fds.get(fd).side(direction).waiting.push(Waiting::new(id, op));
        Ok(())
    }

    #[cold]
    fn register(&mut self, fd: Fd, direction: Direction) -> Result<(), i32> {
        let token = self.fds.token(fd);
        let mut source = Source::new(fd);
        let result = source.register(self.poll.registry(), fd, token, direction);
        result.map_err(|error| code_of(&error))?;
        self.fds.get(fd).source = Some(source);
        Ok(())
    }

    /// Makes sure that the kernel reports a registered descriptor's next readiness.
    #[inline(always)]
    fn arm(&mut self, fd: Fd, direction: Direction) -> Result<(), i32> {
        if !Source::NEEDS_ARMING {
            return Ok(());
        }
        let token = self.fds.token(fd);
        let Some(source) = &mut self.fds.get(fd).source else {
            return Ok(());
        };
        let result = source.arm(self.poll.registry(), token, direction);
        result.map_err(|error| code_of(&error))
    }

    /// Prepares to wait for a foreign descriptor. Its owner may have reused the number since.
    fn watch(&mut self, fd: Fd) -> Result<(), i32> {
        if self.fds.get(fd).has_no_waiters() {
            self.fd_closed(fd);
        } else {
            let token = self.fds.token(fd);
            let again = match &mut self.fds.get(fd).source {
                Some(source) => source.renew(self.poll.registry(), fd, token),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            if again.is_ok() {
                return Ok(());
            }
            // The number has a new file: operations still wait for the earlier one.
            self.fd_opened(fd);
        }
        match self.register(fd, Direction::Read) {
            // epoll refuses files that are always ready, such as /dev/null. Operations on them never have to wait.
            Err(errno::NOT_PERMITTED) => Ok(()),
            result => result,
        }
    }

    /// A number has a new descriptor. Operations that wait for an earlier one fail: its owner closed it unnoticed.
    fn fd_opened(&mut self, fd: Fd) {
        for direction in [Direction::Read, Direction::Write] {
            while let Some(waiting) = self.fds.get(fd).side(direction).waiting.pop() {
                self.finish(waiting.id, Err(errno::BAD_FD));
            }
        }
        self.fds.reset(fd);
    }

    /// A descriptor is about to be closed or given up. It is deregistered even before a close: a duplicate would keep
    /// the registration alive, and its events would wake the loop.
    fn fd_closed(&mut self, fd: Fd) {
        if fd < 0 || !self.fds.get(fd).has_no_waiters() {
            return;
        }
        if let Some(source) = self.fds.get(fd).source.take() {
            source.deregister(self.poll.registry(), fd);
        }
        self.fds.reset(fd);
    }

    fn finish(&mut self, id: OpId, res: OsResult) {
        self.done.push(Completion {
            id,
            result: OpResult::new(res),
        });
    }

    /// Handles an event: attempts the operations that wait for the descriptor.
    #[inline(always)]
    fn on_event(&mut self, event: &Event, completed: &mut Vec<Completion>) {
        let Some((fd, state)) = self.fds.current(event.token()) else {
            return self.on_other_event(event.token());
        };
        let is_special = event.is_error() || event.is_read_closed() || event.is_write_closed() || event.is_priority();
        if is_special || Source::NEEDS_ARMING {
            return self.on_special_event(fd, event, completed);
        }
        if event.is_writable() {
            state.write.may_be_ready = true;
        }
        let has_writers = event.is_writable() && !state.write.waiting.is_empty();
        if event.is_readable() {
            state.read.may_be_ready = true;
            if !retry_receive(&mut state.read, &self.pool, &mut self.counters, completed) {
                self.retry_waiting(fd, Direction::Read, completed);
            }
        }
        if has_writers {
            self.retry_waiting(fd, Direction::Write, completed);
        }
    }

    /// Handles an event that is for no descriptor.
    #[cold]
    fn on_other_event(&mut self, token: Token) {
        match token {
            NOTIFIED => self.counters.completions += 1,
            DEADLINE => self.armed_deadline = None,
            _ => self.counters.stale_events += 1,
        }
    }

    /// Handles an event that reports a hang-up, an error or urgent data, or that disarms the descriptor.
    #[cold]
    fn on_special_event(&mut self, fd: Fd, event: &Event, completed: &mut Vec<Completion>) {
        let state = self.fds.get(fd);
        let is_hung_up = event.is_error() || (event.is_read_closed() && event.is_write_closed());
        let is_readable = event.is_readable() || event.is_read_closed() || is_hung_up;
        let is_writable = event.is_writable() || event.is_write_closed() || is_hung_up;
        if is_writable {
            let side = state.reported(Direction::Write);
            side.may_be_ready = true;
            side.always_try |= event.is_write_closed() || is_hung_up;
        }
        if is_readable {
            let side = state.reported(Direction::Read);
            side.may_be_ready = true;
            side.always_try |= event.is_read_closed() || event.is_priority() || is_hung_up;
            self.retry_waiting(fd, Direction::Read, completed);
        }
        if is_writable {
            self.retry_waiting(fd, Direction::Write, completed);
        }
    }

    /// Attempts the waiting operations in order, until one would block again.
    #[inline(never)]
    fn retry_waiting(&mut self, fd: Fd, direction: Direction, completed: &mut Vec<Completion>) {
        loop {
            let side = self.fds.get(fd).side(direction);
            let Some(waiting) = side.waiting.first() else { return };
            // SAFETY: a waiting operation has not completed, so its op and the memory that it points to are in place.
            let op = unsafe { waiting.op() };
            // SAFETY: as above.
            let result = unsafe { attempt(op, true, side, &self.pool, &mut self.counters) };
            let id = waiting.id;
            let Some(result) = result else {
                let Err(code) = self.arm(fd, direction) else { return };
                // The operation cannot wait again.
                self.fds.get(fd).side(direction).waiting.pop();
                let result = OpResult::new(Err(code));
                completed.push(Completion { id, result });
                continue;
            };
            side.waiting.pop();
            let was_last = side.waiting.is_empty();
            completed.push(Completion { id, result });
            self.note_opened(op, result);
            if was_last {
                return;
            }
        }
    }

    /// [`Driver::start`] in all other cases.
    /// Safety: as for [`Driver::start`].
    #[inline(never)]
    unsafe fn start_slowly(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        let Some((fd, direction)) = op.waits_for() else {
            return Start::Blocking;
        };
        self.counters.submissions += 1;
        if fd < 0 {
            return Start::Done(OpResult::new(Err(errno::BAD_FD)));
        }
        if Pipes::serves(op) {
            // SAFETY: the caller's promise.
            let start = unsafe { self.pipes.start(id, op, scratch, &self.pool, &mut self.counters) };
            self.counters.completions += u64::from(matches!(start, Start::Done(_)));
            return start;
        }
        let side = self.fds.get(fd).side(direction);
        if side.may_be_ready || must_attempt(op) {
            // SAFETY: the caller's promise: the operation owns the memory that `op` points to.
            let result = unsafe { attempt(op, false, side, &self.pool, &mut self.counters) };
            if let Some(result) = result {
                if let Op::Readiness { .. } = op {
                    self.finish(id, result.res());
                    return Start::Pending;
                }
                self.note_opened(op, result);
                self.counters.completions += 1;
                return Start::Done(result);
            }
        }
        match self.park(id, op, (fd, direction)) {
            Ok(()) => Start::Pending,
            Err(code) => Start::Done(OpResult::new(Err(code))),
        }
    }

    /// [`Driver::attempt`] in all other cases.
    /// Safety: as for [`Driver::attempt`].
    #[inline(never)]
    unsafe fn attempt_slowly(&mut self, op: &Op) -> Option<OsResult> {
        #[cfg(target_os = "linux")]
        if let Op::File(FileOp::ReadAt { fd, ptr, len, offset }) = *op {
            // SAFETY: the caller's promise.
            return unsafe { sys::read_cached(fd, ptr, len, offset) };
        }
        if Pipes::serves(op) {
            return None;
        }
        let (fd, direction) = op.waits_for().filter(|(fd, _)| *fd >= 0)?;
        let side = self.fds.get(fd).side(direction);
        // Waiting operations come first.
        if !side.may_be_ready || !side.waiting.is_empty() {
            return None;
        }
        // SAFETY: the caller's promise: the memory is valid until this returns, and the call has ended by then.
        let result = unsafe { attempt(op, false, side, &self.pool, &mut self.counters) }?;
        self.done_at_once += 1;
        self.note_opened(op, result);
        Some(result.res())
    }

    /// Receives or sends a batch of messages, unless the descriptor is known not to be ready.
    /// Safety: as for [`Driver::recv_batch`] and [`Driver::send_batch`].
    unsafe fn batch(&mut self, fd: Fd, direction: Direction, entries: &mut [MessageEntry]) -> usize {
        if fd < 0 {
            return 0;
        }
        let side = self.fds.get(fd).side(direction);
        // Waiting operations come first.
        if !side.may_be_ready || !side.waiting.is_empty() {
            return 0;
        }
        // SAFETY: the caller's promise.
        let count = unsafe { driver::perform_batch(fd, direction, entries, &mut self.counters) };
        if count == 0 {
            side.note(None, Medium::Unix, 0);
        }
        count
    }

    /// Notes the descriptor that an accept has opened.
    #[inline]
    fn note_opened(&mut self, op: &Op, result: OpResult) {
        if let (Op::Accept { .. }, Ok(fd)) = (op, result.res()) {
            self.fd_opened(fd as Fd);
        }
    }
}

// SAFETY: `attempt` uses an operation's memory only during a system call, which has returned when the completion is
// reported; `Pipes` reports a call after its end. Completion or cancel removes an operation from its list or from
// `Pipes`: it completes once.
unsafe impl Driver for Reactor {
    fn describe(&self) -> Description {
        let (name, features) = os::describe();
        Description::new(name, features, self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn has_system_clock(&self) -> bool {
        true
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Close { fd } | Control::Reset { fd } | Control::Forget { fd } => self.fd_closed(fd),
            _ => {}
        }
        let reply = driver::control(call)?;
        match (call, &reply) {
            (_, &Reply::Fd(fd)) | (Control::Adopt { fd }, _) => self.fd_opened(fd),
            (_, &Reply::Pair(one, other)) => {
                self.fd_opened(one);
                self.fd_opened(other);
            }
            (Control::Watch { fd }, _) => self.watch(fd).map_err(io::Error::from_raw_os_error)?,
            _ => {}
        }
        Ok(reply)
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        // A receive that has to wait is the common case, and takes the short path.
        if let Op::Recv { fd, .. } | Op::RecvManaged { fd, .. } = *op
            && !Source::NEEDS_ARMING
            && let Some(state) = self.fds.registered(fd)
            && !state.read.may_be_ready
        {
            self.counters.submissions += 1;
            state.read.waiting.push(Waiting::new(id, op));
            return Start::Pending;
        }
        // SAFETY: the caller's promise.
        unsafe { self.start_slowly(id, op, scratch) }
    }

    fn tries_first(&self) -> bool {
        true
    }

    unsafe fn attempt(&mut self, op: &Op, _: bool) -> Option<OsResult> {
        // As above, a send that nothing waits in front of.
        if let Op::Send { medium, fd, ptr, len } = *op
            && medium != Medium::Pipe
            && let Some(side) = self.fds.known(fd).map(|state| &mut state.write)
            && side.may_be_ready
            && side.waiting.is_empty()
        {
            // SAFETY: the caller's promise: the memory is valid until this returns, and the call has ended by then.
            let res = unsafe { sys::send(fd, medium, ptr, len) };
            side.note(res.map(OpResult::new), medium, len);
            self.done_at_once += u64::from(res.is_some());
            return res;
        }
        // SAFETY: as above.
        unsafe { self.attempt_slowly(op) }
    }

    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.batch(fd, Direction::Read, entries) }
    }

    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.batch(fd, Direction::Write, entries) }
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        if let Some(in_time) = self.pipes.cancel(id) {
            self.counters.late_cancels += u64::from(!in_time);
            return;
        }
        let fds = &mut self.fds;
        let is_waiting = |(fd, direction)| fds.get(fd).side(direction).waiting.remove(id);
        match op.waits_for().filter(|(fd, _)| *fd >= 0).is_some_and(is_waiting) {
            true => self.finish(id, Err(errno::CANCELED)),
            // It has completed.
            false => self.counters.late_cancels += 1,
        }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.pool.0 = Some(pool.clone());
        true
    }

    fn must_poll(&mut self) -> bool {
        self.pipes.complete(&mut self.done);
        let must_poll = !self.done.is_empty() || self.throttle.is_due();
        self.counters.spins += u64::from(!must_poll);
        must_poll
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let before = completed.len();
        // Completions that are already here are handled before blocking.
        self.pipes.complete(&mut self.done);
        let wait = wait.unless_done(&self.done);
        completed.append(&mut self.done);
        if wait == Wait::No && !self.throttle.is_due() {
            self.counters.completions += (completed.len() - before) as u64;
            self.counters.spins += u64::from(completed.len() == before);
            return Ok(());
        }
        self.counters.enters += sleep::wait(&mut self.poll, &mut self.events, wait)?;
        self.throttle.polled();
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let mut event_count = 0;
        for event in events.iter() {
            self.on_event(event, completed);
            event_count += 1;
        }
        self.events = events;
        self.pipes.complete(completed);
        self.may_have_more = event_count == MAX_EVENTS;
        self.counters.completions += (completed.len() - before) as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // An outer loop that watches the epoll edge-triggered is not signalled again for events that are left in it.
        if !self.done.is_empty() || self.may_have_more {
            self.notifier.notify();
        }
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        self.deadline_timer.open(&self.poll, DEADLINE)?;
        os::descriptor(&self.poll)
    }

    fn arm_deadline(&mut self, deadline: Option<Instant>) -> bool {
        let Some(deadline) = deadline else {
            return self.deadline_timer.is_open();
        };
        if self.armed_deadline.is_some_and(|armed| armed <= deadline) {
            return true;
        }
        let is_set = self.deadline_timer.set(&self.poll, DEADLINE, deadline);
        self.armed_deadline = is_set.then_some(deadline);
        is_set
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.notifier.clone()
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters {
            submissions: self.counters.submissions + self.done_at_once,
            completions: self.counters.completions + self.done_at_once,
            ..self.counters
        }
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Kernel
    }
}

/// Wakes the loop from another thread.
pub(super) struct Notifier(Waker);

impl Notify for Notifier {
    fn notify(&self) {
        // The only error is a full counter, which also wakes.
        let _ = self.0.wake();
    }
}
