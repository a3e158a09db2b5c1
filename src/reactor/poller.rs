//! The driver itself: try, park, wait, try again.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use mio::event::Event;
use mio::{Events, Poll, Token, Waker};

use super::fd_table::FdTable;
use super::os::{self, Pipes, SHORT_IS_EMPTY, Source};
use super::parked::ParkingLot;
use super::sleep;
#[cfg(target_os = "linux")]
use crate::driver::op::FileOp;
use crate::driver::op::{Direction, MAX_LEN, Medium, Op};
use crate::driver::poll_throttle::PollThrottle;
use crate::driver::pool::PoolBuffer;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, OpId, OpResult,
    OsResult, Reply, Scratch, Settings, Start, Wait,
};
use crate::sys::{self, Fd, Instant, IoVec, errno};

/// How many descriptors one look can tell of; more are told at the next. Few, so that a connection is still in the cache when
/// what it received is answered: with 1,024, hyper under `wrk` with 256 connections took a tenth more processor time.
const EVENTS: usize = 32;

/// Another thread wants the loop. No descriptor has this token: their numbers stop short of it.
const NOTIFIED: Token = Token(usize::MAX);

pub(crate) struct Reactor {
    events: Events,
    notifier: Arc<Notifier>,
    throttle: PollThrottle,
    /// The last look may have left something for the next.
    is_more: bool,
    works: Works,
    reason: String,
}

/// All but the events, so that these can be read while this is changed.
struct Works {
    poll: Poll,
    fds: FdTable,
    lot: ParkingLot,
    pipes: Pipes,
    /// What has completed outside of a poll: cancels, and descriptors that were ready at once.
    done: Vec<Completion>,
    pool: Option<Rc<BufferPool>>,
    settings: Settings,
    counters: DriverCounters,
}

impl Reactor {
    pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Reactor> {
        let poll = Poll::new().map_err(explain)?;
        let waker = Waker::new(poll.registry(), NOTIFIED).map_err(explain)?;
        let notifier = Arc::new(Notifier(waker));
        Ok(Reactor {
            events: Events::with_capacity(EVENTS),
            throttle: PollThrottle::new(),
            is_more: false,
            works: Works {
                poll,
                fds: FdTable::default(),
                lot: ParkingLot::default(),
                pipes: Pipes::new(&notifier),
                done: Vec::new(),
                pool: None,
                settings: *settings,
                counters: DriverCounters::default(),
            },
            notifier,
            reason: reason.to_owned(),
        })
    }
}

/// Says why the kernel refused.
fn explain(error: io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(errno::PROCESS_FILES | errno::SYSTEM_FILES) => "no descriptor is left for a reactor",
        _ => "the reactor could not be opened",
    };
    crate::sys::context(why, error)
}

fn code_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(errno::INVALID)
}

impl Works {
    /// Carries an operation out, if it need not wait, and notes what that says about its descriptor.
    ///
    /// # Safety
    ///
    /// What `op` points to belongs to a flight that has not landed.
    unsafe fn attempt(&mut self, op: Op, begun: bool) -> Option<OpResult> {
        let op_result = match op {
            Op::RecvManaged { fd, medium } => {
                // SAFETY: the bytes go to a buffer that was just taken from the pool, so nobody else has it.
                self.recv_managed(|ptr, len| unsafe { driver::perform(Op::Recv { fd, medium, ptr, len }) })
            }
            Op::RecvMessageManaged { fd, message } => self.recv_managed(|base, len| {
                // SAFETY: the caller's promise: the message is the flight's.
                let message = unsafe { &mut *message };
                // SAFETY: as above; the bytes go to a buffer that was just taken from the pool.
                message.divert(&mut IoVec { base, len }, |message| unsafe {
                    driver::perform(Op::RecvMessage { fd, message })
                })
            }),
            Op::Connect { fd, .. } if begun => sys::connected(fd).map(OpResult::last),
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Recv { .. }
            | Op::RecvVectored { .. }
            | Op::Send { .. }
            | Op::SendVectored { .. }
            | Op::RecvMessage { .. }
            | Op::SendMessage { .. }
            | Op::Readiness { .. }
            // SAFETY: the caller's promise.
            | Op::File(_) => unsafe { driver::perform(op) }.map(OpResult::last),
        };
        let res = op_result.as_ref().map(|op_result| op_result.res);
        if let (Op::Accept { .. }, Some(Ok(fd))) = (op, res) {
            self.fd_opened(fd as Fd);
        }
        let empty = match res {
            None => true,
            // SAFETY: the caller's promise.
            Some(Ok(count)) => SHORT_IS_EMPTY && count > 0 && unsafe { self.wanted(op) } > count as usize,
            Some(Err(_)) => false,
        };
        if empty && let Some((fd, direction)) = op.waits_for() {
            self.fds.get(fd).side(direction).used_up();
        }
        op_result
    }

    /// How many bytes an operation could have moved, where having moved fewer means that there are no more for now. That
    /// is so of TCP alone: a Unix socket stops where descriptors were passed, a terminal at the end of a line.
    ///
    /// # Safety
    ///
    /// What `op` points to belongs to a flight that has not landed.
    unsafe fn wanted(&self, op: Op) -> usize {
        match op {
            Op::Recv {
                medium: Medium::Tcp,
                len,
                ..
            }
            | Op::Send {
                medium: Medium::Tcp,
                len,
                ..
            } => len,
            Op::RecvManaged {
                medium: Medium::Tcp, ..
            } => self.settings.managed_len,
            Op::RecvVectored {
                medium: Medium::Tcp,
                slices,
                count,
                ..
            }
            | Op::SendVectored {
                medium: Medium::Tcp,
                slices,
                count,
                ..
            } => {
                // SAFETY: the caller's promise.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let len = slices.iter().map(|slice| slice.len).sum::<usize>();
                // The kernel moves no more at once, however many there are.
                len.min(MAX_LEN)
            }
            // Whatever came of these says nothing about what is left; and file work is not done here.
            _ => 0,
        }
    }

    /// A buffer of the pool.
    #[inline]
    fn take_buffer(&mut self) -> Result<PoolBuffer, OpResult> {
        if self.pool.is_none() {
            let count = self.settings.managed_count.next_power_of_two();
            self.pool = BufferPool::new(count, self.settings.managed_len);
        }
        self.pool.as_ref().and_then(BufferPool::take).ok_or_else(|| {
            self.counters.pool_empty += 1;
            OpResult::last(Err(errno::NO_BUFFERS))
        })
    }

    /// Receives through `perform` into a buffer of the pool.
    fn recv_managed(&mut self, perform: impl FnOnce(*mut u8, usize) -> Option<OsResult>) -> Option<OpResult> {
        let mut buffer = match self.take_buffer() {
            Ok(buffer) => buffer,
            Err(none) => return Some(none),
        };
        let (ptr, len) = buffer.memory();
        let res = perform(ptr, len)?;
        // SAFETY: the kernel has just written this many bytes.
        unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
        Some(OpResult::with_buffer(res, buffer))
    }

    /// Has a pipe do what it does without readiness.
    ///
    /// # Safety
    ///
    /// As for [`Driver::start`].
    unsafe fn start_pipe(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start {
        let buffer = match op {
            Op::RecvManaged { .. } => match self.take_buffer() {
                Ok(buffer) => Some(buffer),
                Err(none) => return Start::Done(none),
            },
            _ => None,
        };
        // SAFETY: the caller's promise.
        let start = unsafe { self.pipes.start(id, op, buffer, scratch) };
        self.counters.completions += u64::from(matches!(start, Start::Done(_)));
        start
    }

    /// Lets an operation wait until its descriptor is ready.
    fn park(&mut self, id: OpId, op: Op, (fd, direction): (Fd, Direction)) -> Result<(), i32> {
        match self.fds.get(fd).source {
            None => self.register(fd, direction)?,
            Some(_) => self.arm(fd, direction)?,
        }
        let queue = &mut self.fds.get(fd).side(direction).queue;
        self.lot.park(queue, id, op);
        Ok(())
    }

    fn register(&mut self, fd: Fd, direction: Direction) -> Result<(), i32> {
        let token = self.fds.token(fd);
        let mut source = Source::new(fd);
        let result = source.register(self.poll.registry(), fd, token, direction);
        result.map_err(|error| code_of(&error))?;
        self.fds.get(fd).source = Some(source);
        Ok(())
    }

    /// Sees to it that the kernel tells when a registered descriptor is ready.
    #[inline(always)]
    fn arm(&mut self, fd: Fd, direction: Direction) -> Result<(), i32> {
        if !Source::HAS_TO_ASK {
            return Ok(());
        }
        let token = self.fds.token(fd);
        let Some(source) = &mut self.fds.get(fd).source else {
            return Ok(());
        };
        let result = source.arm(self.poll.registry(), token, direction);
        result.map_err(|error| code_of(&error))
    }

    /// Somebody will wait for a foreign descriptor. Its number may have gone from one file to another behind our back.
    fn watch(&mut self, fd: Fd) -> Result<(), i32> {
        if self.fds.get(fd).nobody_waits() {
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
            // Those who wait do so for the earlier file.
            self.fd_opened(fd);
        }
        match self.register(fd, Direction::Read) {
            // A device that is always ready, as /dev/null is: epoll does not wait for such, and nobody has to.
            Err(errno::NOT_PERMITTED) => Ok(()),
            result => result,
        }
    }

    /// A descriptor comes under this number. Whoever still waits for an earlier one was left behind by somebody who
    /// closed it without a word to us.
    fn fd_opened(&mut self, fd: Fd) {
        for direction in [Direction::Read, Direction::Write] {
            while let Some(id) = self.lot.pop(&mut self.fds.get(fd).side(direction).queue) {
                self.finish(id, Err(errno::BAD_FD));
            }
        }
        self.fds.renew(fd);
    }

    /// A descriptor leaves. The kernel is told even if it will be closed: a duplicate would keep the registration alive,
    /// and wake us for nobody.
    fn fd_closed(&mut self, fd: Fd) {
        if fd < 0 || !self.fds.get(fd).nobody_waits() {
            return;
        }
        if let Some(source) = self.fds.get(fd).source.take() {
            source.deregister(self.poll.registry(), fd);
        }
        self.fds.renew(fd);
    }

    fn finish(&mut self, id: OpId, res: OsResult) {
        self.done.push(Completion {
            id,
            result: OpResult::last(res),
        });
    }

    /// A descriptor is said to be ready: those who wait for it try again.
    fn on_event(&mut self, event: &Event, completed: &mut Vec<Completion>) {
        if event.token() == NOTIFIED {
            self.counters.completions += 1;
            return;
        }
        let Some(fd) = self.fds.fd_of(event.token()) else {
            self.counters.stale_events += 1;
            return;
        };
        let is_over = event.is_error() || (event.is_read_closed() && event.is_write_closed());
        if event.is_readable() || event.is_read_closed() || is_over {
            let side = self.fds.get(fd).news(Direction::Read);
            side.may_be_ready = true;
            side.always_try |= event.is_read_closed() || event.is_priority() || is_over;
            self.try_again(fd, Direction::Read, completed);
        }
        if event.is_writable() || event.is_write_closed() || is_over {
            let side = self.fds.get(fd).news(Direction::Write);
            side.may_be_ready = true;
            side.always_try |= event.is_write_closed() || is_over;
            self.try_again(fd, Direction::Write, completed);
        }
    }

    /// Tries what is parked, in order, until one would have to wait again.
    fn try_again(&mut self, fd: Fd, direction: Direction, completed: &mut Vec<Completion>) {
        loop {
            let queue = self.fds.get(fd).side(direction).queue;
            let Some((id, op)) = self.lot.first(queue) else { return };
            // SAFETY: the flight is parked, so it has not landed and owns what its operation points to.
            let op_result = match unsafe { self.attempt(op, true) } {
                Some(op_result) => op_result,
                None => match self.arm(fd, direction) {
                    Ok(()) => return,
                    Err(code) => OpResult::last(Err(code)),
                },
            };
            self.lot.pop(&mut self.fds.get(fd).side(direction).queue);
            completed.push(Completion { id, result: op_result });
        }
    }
}

// SAFETY: an operation's memory is touched only in `attempt`, by a system call that has returned when its landing is told.
// A flight that is parked lands once: it leaves the lot with its landing, or with its cancel.
unsafe impl Driver for Reactor {
    fn describe(&self) -> Description {
        let (name, features) = os::describe();
        Description::new(name, features, self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Close { fd } | Control::Reset { fd } | Control::Forget { fd } => self.works.fd_closed(fd),
            _ => {}
        }
        let reply = driver::control(call)?;
        match (call, &reply) {
            (_, &Reply::Fd(fd)) | (Control::Adopt { fd }, _) => self.works.fd_opened(fd),
            (_, &Reply::Pair(one, other)) => {
                self.works.fd_opened(one);
                self.works.fd_opened(other);
            }
            (Control::Watch { fd }, _) => self.works.watch(fd).map_err(io::Error::from_raw_os_error)?,
            _ => {}
        }
        Ok(reply)
    }

    unsafe fn start(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start {
        let works = &mut self.works;
        let Some((fd, direction)) = op.waits_for() else {
            return Start::Blocking;
        };
        works.counters.submissions += 1;
        if fd < 0 {
            return Start::Done(OpResult::last(Err(errno::BAD_FD)));
        }
        if Pipes::serves(&op) {
            // SAFETY: the caller's promise.
            return unsafe { works.start_pipe(id, op, scratch) };
        }
        // Whoever uses a foreign descriptor tells us nothing, so there is nothing to go by.
        let is_foreign = matches!(op, Op::Readiness { .. });
        // Connecting is begun by trying; and a socket for datagrams may connect while it has no room to send.
        let must_try = is_foreign || matches!(op, Op::Connect { .. } | Op::SendMessage { at_once: true, .. });
        let side = works.fds.get(fd).side(direction);
        if side.may_be_ready || must_try {
            // SAFETY: the caller's promise: the flight owns what `op` points to, and has not landed.
            match unsafe { works.attempt(op, false) } {
                Some(op_result) if is_foreign => {
                    works.finish(id, op_result.res);
                    return Start::Pending;
                }
                Some(op_result) => {
                    works.counters.completions += 1;
                    return Start::Done(op_result);
                }
                None => {}
            }
        }
        match works.park(id, op, (fd, direction)) {
            Ok(()) => Start::Pending,
            Err(code) => Start::Done(OpResult::last(Err(code))),
        }
    }

    unsafe fn attempt(&mut self, op: Op, _: bool) -> Option<OsResult> {
        #[cfg(target_os = "linux")]
        if let Op::File(FileOp::ReadAt { fd, ptr, len, offset }) = op {
            // SAFETY: the caller's promise.
            return unsafe { sys::read_cached(fd, ptr, len, offset) };
        }
        if Pipes::serves(&op) {
            return None;
        }
        let works = &mut self.works;
        let (fd, direction) = op.waits_for().filter(|(fd, _)| *fd >= 0)?;
        let side = works.fds.get(fd).side(direction);
        // Who is parked comes first.
        if !side.may_be_ready || !side.queue.is_empty() {
            return None;
        }
        // SAFETY: the caller's promise: it is there until this call, which is over when it returns, is over.
        let op_result = unsafe { works.attempt(op, false) }?;
        works.counters.submissions += 1;
        works.counters.completions += 1;
        Some(op_result.res)
    }

    fn cancel(&mut self, id: OpId) {
        let works = &mut self.works;
        if let Some(in_time) = works.pipes.cancel(id) {
            works.counters.late_cancels += u64::from(!in_time);
            return;
        }
        // One that is not parked has completed.
        let Some((fd, direction)) = works.lot.op_of(id).and_then(|op| op.waits_for()) else {
            works.counters.late_cancels += 1;
            return;
        };
        let queue = &mut works.fds.get(fd).side(direction).queue;
        works.lot.remove(queue, id);
        works.finish(id, Err(errno::CANCELED));
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let works = &mut self.works;
        let before = completed.len();
        // What is here already is served before anybody sleeps.
        works.pipes.complete(&mut works.done);
        let wait = if works.done.is_empty() || wait == Wait::Look {
            wait
        } else {
            Wait::No
        };
        completed.append(&mut works.done);
        if wait == Wait::No && !self.throttle.is_due() {
            works.counters.completions += (completed.len() - before) as u64;
            works.counters.spins += u64::from(completed.len() == before);
            return Ok(());
        }
        works.counters.enters += sleep::wait(&mut works.poll, &mut self.events, wait)?;
        self.throttle.asked();
        let mut told = 0;
        for event in &self.events {
            works.on_event(event, completed);
            told += 1;
        }
        works.pipes.complete(completed);
        self.is_more = told == EVENTS;
        works.counters.completions += (completed.len() - before) as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // What is left in the epoll is no news to an outer loop that watches edge-triggered.
        if !self.works.done.is_empty() || self.is_more {
            self.notifier.notify();
        }
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        os::descriptor(&self.works.poll)
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.notifier.clone()
    }

    fn counters(&self) -> DriverCounters {
        self.works.counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Kernel
    }
}

/// Ends a sleep from another thread.
pub(super) struct Notifier(Waker);

impl Notify for Notifier {
    fn notify(&self) {
        // The only error is a full counter, which wakes too.
        let _ = self.0.wake();
    }
}
