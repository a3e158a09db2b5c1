//! The interface between the event loop and the kernel, for authors of drivers. **Not yet stable.**
//!
//! A [`Driver`] starts operations ([`Op`]) and reports their completions. The loop sees completions only. Above
//! this trait it makes no difference whether the kernel does the work (a proactor), the driver waits for readiness and
//! makes the system call itself (a reactor), or there is no kernel at all (the null driver).
//!
//! The trait is object-safe: the loop holds one `Box<dyn Driver>` and is compiled once. [`Builder::with_driver`] runs a
//! loop on a driver of your own, and [`Builder::wrap_driver`] wraps a built-in driver in one, for example for fault
//! injection.
//!
//! ```
//! // The names and features of the drivers that this build can use here.
//! for driver in [windlass::DriverChoice::Proactor, windlass::DriverChoice::Reactor, windlass::DriverChoice::Null] {
//!     match windlass::Builder::new().driver(driver).build() {
//!         Ok(event_loop) => println!("{}", event_loop.describe()),
//!         Err(error) => println!("{driver:?}: {error}"),
//!     }
//! }
//! ```
//!
//! A complete driver is in `tests/foreign_driver.rs`.
//!
//! [`Builder::with_driver`]: crate::Builder::with_driver
//! [`Builder::wrap_driver`]: crate::Builder::wrap_driver

mod closed;
mod completion;
mod control;
#[cfg(windows)]
pub(crate) mod file_call;
mod message;
pub(crate) mod op;
pub(crate) mod perform;
#[cfg(any(feature = "reactor", windows))]
pub(crate) mod poll_throttle;
pub(crate) mod pool;
pub(crate) mod select;
mod settings;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use self::closed::Closed;
pub use self::completion::{Completion, OpId, OpResult};
pub(crate) use self::control::control;
pub use self::control::{Control, Reply};
pub use self::message::MessageBuf;
pub use self::op::{CURRENT, Direction, FileOp, MAX_LEN, MAX_SLICES, Medium, Op};
#[cfg(any(feature = "reactor", windows))]
pub(crate) use self::perform::perform_managed;
pub(crate) use self::perform::{perform, perform_batch};
pub use self::pool::BufferPool;
pub use self::select::{Description, DriverChoice, NullFiles};
pub(crate) use self::settings::Settings;
use crate::sys::{self, Instant};
pub use crate::sys::{
    CopyResult, Credentials, DirItem, DirList, Fd, IoVec, LookUp, LookUpResult, Message, MessageEntry, Name, OsResult,
    PathChar, SocketKind, SocketOption, Stat,
};

/// Starts operations for the loop and reports their completions.
///
/// # Not yet stable
///
/// Operations, control calls and methods will be added and changed in minor versions. A driver should match on [`Op`]
/// with a last arm that answers [`Start::Blocking`], and on [`Control`] with one that fails with `EOPNOTSUPP`.
/// `Blocking` is safe for every operation: a thread carries it out with system calls, and the loop refuses the
/// operation if these would take the driver's descriptors for the kernel's (see [`FdSpace::Own`]).
///
/// # Operations
///
/// The loop calls [`start`](Driver::start) with an id, an [`Op`] and a [`Scratch`]. Each operation completes exactly
/// once, in one of three ways:
///
/// - `start` returns [`Start::Done`] with the result.
/// - `start` returns [`Start::Pending`]. A later [`poll`](Driver::poll) pushes one [`Completion`] with the id. The loop
///   ignores a completion with an id that is not in flight, and counts it.
/// - `start` returns [`Start::Blocking`]. A pool thread of the loop makes the system call; the driver keeps no
///   record of the operation.
///
/// [`Op::Readiness`] is never done at once: its completion comes from the next poll at the earliest. After an
/// operation has completed, the index of its id is reused with a new generation.
///
/// # Memory
///
/// The loop owns the memory behind every pointer of an operation, and the scratch. From `start` until the completion is
/// pushed (or `Done` or `Blocking` is returned) this memory stays in place, and only the driver and the kernel use it.
/// Afterwards neither may. This holds also if the program has dropped the future: the loop keeps the memory until the
/// completion. So the driver must not complete an operation, cancelled or not, while the kernel can still write.
///
/// The [`Op`] itself is part of that memory: it stays in place, unchanged, until the operation has completed. A driver
/// may keep a pointer to it instead of a copy.
///
/// Managed receives ([`Op::RecvManaged`]) use buffers of the loop's [`BufferPool`], which it hands over with
/// [`provide_buffers`](Driver::provide_buffers). The driver takes a buffer with [`BufferPool::take`], fills it and
/// names it in the result ([`OpResult::with_buffer`]); the loop returns it to the pool. A buffer that the driver takes
/// and does not report it returns itself.
///
/// # Descriptors
///
/// An [`Fd`] is a number that this driver gave out, as a [`Reply`] or as the result of an accept or open, or that the
/// program gave to it with [`Control::Adopt`] or [`Control::Watch`]. Only the driver knows what it refers to;
/// [`fd_space`](Driver::fd_space) says which numbers are the kernel's. Every number that a driver gave out or adopted
/// comes back to it once, as [`Control::Close`], [`Control::Reset`] or [`Control::Forget`]. A descriptor is closed only
/// when no operation on it is in flight.
///
/// # Threads
///
/// The loop calls a driver from one thread, and never reentrantly. Only [`Notify`] is used from other threads.
///
/// # Safety
///
/// An implementation keeps the rules for operations and memory above. Completing an operation while the kernel can
/// still write to its memory is undefined behaviour, because the loop then frees or reuses that memory.
pub unsafe trait Driver {
    /// The driver's name, the kernel features it uses, and why it was chosen.
    fn describe(&self) -> Description;

    /// Reads the loop's clock, which never goes back. A driver may have a virtual one.
    fn now(&self) -> Instant;

    /// Whether [`now`](Driver::now) reads the system's monotonic clock. The loop then reads it without asking the driver. False by
    /// default, which is always right.
    fn has_system_clock(&self) -> bool {
        false
    }

    /// Whether the clock is virtual: the driver's own, which jumps to the next deadline when nothing can run.
    ///
    /// Threads run in real time. While a thread works for the loop, the loop passes [`Wait::Forever`] to
    /// [`poll`](Driver::poll) instead of a deadline, and virtual time stands still. Work for the loop is:
    ///
    /// - an operation that the driver left to a thread ([`Start::Blocking`]), such as file work;
    /// - a job whose handle exists: of [`spawn_blocking`](crate::spawn_blocking), of a [`Pool`](crate::blocking::Pool)
    ///   if it was spawned or polled on this loop, or a name lookup. A job that waits in the queue, or whose handle was
    ///   polled and waits for space there, counts too.
    ///
    /// A job whose handle was dropped no longer counts, since it reports nothing to the loop. A job that waits for
    /// something that the loop does only after a timer has fired never ends: it stops the clock that it waits for.
    ///
    /// On a virtual clock the loop neither busy-polls nor wakes up early.
    fn has_virtual_clock(&self) -> bool {
        false
    }

    /// Whether operations that are started together reach the kernel with one system call. If so, a listener starts
    /// several accepts at once during a burst of connections; see `TcpListener::set_accept_ahead`.
    fn submits_in_batches(&self) -> bool {
        false
    }

    /// Whether [`attempt`](Driver::attempt) may succeed also when other operations are about to be started.
    fn tries_first(&self) -> bool {
        false
    }

    /// Takes over a job that would otherwise run on a thread: of [`spawn_blocking`](crate::spawn_blocking), of a
    /// [`Pool`](crate::blocking::Pool) that this loop uses, or an operation that the driver answered with
    /// [`Start::Blocking`]. A driver that simulates time runs jobs itself, after a delay of its choice. The default
    /// returns the job, and a thread runs it.
    ///
    /// - A driver takes every job or none: after a refusal the loop does not ask again.
    /// - It runs a job once, on the loop's thread and outside of every call of the loop into the driver: the job takes
    ///   locks and wakes tasks. [`poll`](Driver::poll) is such a call. No event loop may be entered meanwhile.
    /// - A job does not unwind. Dropping one cancels its work.
    /// - The clock is not held for a job that was taken, so virtual time passes until the driver runs it.
    /// - A pool gives out at most as many jobs at a time as it may have threads, and queues the others. A job that the
    ///   program cancels meanwhile stays with the driver, and does nothing.
    fn offload(&mut self, job: Job) -> Result<(), Job> {
        Err(job)
    }

    /// Reads the wall clock, for [`time::wall_now`](crate::time::wall_now). It can be set, and so go back. A driver with
    /// a virtual clock may have a virtual wall clock, too.
    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Fills `bytes` with random numbers. The default asks the OS; a simulation derives them from its seed.
    fn entropy(&mut self, bytes: &mut [u8]) {
        sys::entropy(bytes);
    }

    /// Where the loop's signals come from. The answer never changes. By default a driver with a virtual clock has none.
    fn signals(&self) -> SignalSource {
        match self.has_virtual_clock() {
            true => SignalSource::None,
            false => SignalSource::Process,
        }
    }

    /// Makes a call that never blocks: creates, binds, configures or closes descriptors.
    fn control(&mut self, call: Control<'_>) -> io::Result<Reply>;

    /// Starts an operation. It need not reach the kernel before the next [`poll`](Driver::poll) or
    /// [`flush`](Driver::flush).
    ///
    /// # Safety
    ///
    /// The operation `id` owns everything that `op` points to, and the `scratch`. All of it stays allocated and in
    /// place, and nothing else accesses it, until the driver has pushed the completion of `id` or this call has
    /// returned anything other than [`Start::Pending`]. The same holds for `op`, which is not changed either.
    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start;

    /// Carries an operation out right away if it would not block: a send, or a read from the page cache. It has no id
    /// and no completion. Returns `None`, without any effect, if the operation must be [started](Driver::start).
    ///
    /// `alone` says that few other operations are about to be started. A driver that submits in batches saves no system
    /// call then, and carrying the operation out here is faster.
    ///
    /// # Safety
    ///
    /// The memory that `op` points to is valid until this returns, and nothing else accesses it if the operation writes
    /// there.
    unsafe fn attempt(&mut self, op: &Op, alone: bool) -> Option<OsResult> {
        let _ = (op, alone);
        None
    }

    /// Receives datagrams that are waiting, into the entries in order, without blocking. Returns how many entries have a
    /// result; 0, without any effect, if no datagram is waiting or the driver has no such call. The loop then starts
    /// [`Op::RecvMessage`] for one datagram, so the default is correct. No operation of this direction is in flight on
    /// the descriptor.
    ///
    /// A failed entry is the last one: the loop reports its error after the datagrams before it.
    ///
    /// # Safety
    ///
    /// The messages and the memory that they point to are valid until this returns, and nothing else accesses them.
    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        let _ = (fd, entries);
        0
    }

    /// Sends datagrams in order, without blocking. Returns how many entries have a result; 0, without any effect, if the
    /// first would block or the driver has no such call. The loop then starts [`Op::SendMessage`] for one datagram, so
    /// the default is correct. No operation of this direction is in flight on the descriptor.
    ///
    /// A failed entry is the last one: it and the entries after it were not sent.
    ///
    /// # Safety
    ///
    /// The messages and the memory that they point to are valid until this returns, and nothing changes them.
    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        let _ = (fd, entries);
        0
    }

    /// Requests that an operation end early. It still completes exactly once: with `ECANCELED`
    /// (`ERROR_OPERATION_ABORTED` on Windows) if it had no effect, else with its result. A driver must not report a
    /// cancel for an operation that has received or sent bytes, accepted a connection or opened a file: these would be
    /// lost. The completion comes from a later poll. `op` is what was started; an `id` whose completion this driver has
    /// reported already is ignored.
    fn cancel(&mut self, id: OpId, op: &Op);

    /// Gives the driver the pool for managed receives. The loop calls this once, before the first of them. A driver
    /// that returns false gets no managed receives: the loop reads into memory that it allocates.
    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        let _ = pool;
        false
    }

    /// Submits queued operations, blocks as `wait` says, and pushes the available completions. No other call may block.
    /// It returns when it has pushed a completion, when the deadline has passed, or after a notification; it may also
    /// return earlier, without completions.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOBUFS` and `EAGAIN` mean that the kernel is short of memory: the loop polls again after a pause.
    /// The loop returns any other error to its caller.
    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()>;

    /// Whether a poll with [`Wait::No`] would do anything. The loop asks in most turns that have tasks to run, and skips the poll
    /// if it would not.
    fn must_poll(&mut self) -> bool {
        true
    }

    /// Submits queued operations, without blocking or reporting completions. An outer loop is about to wait for the
    /// [`descriptor`](Driver::descriptor), which must be readable afterwards if a completion is available. The loop
    /// handles an error as one of [`poll`](Driver::poll).
    fn flush(&mut self) -> io::Result<()>;

    /// A descriptor for an outer loop to watch. It is readable while a [`poll`](Driver::poll) would report a
    /// completion, and after a notification. The driver owns it.
    fn descriptor(&mut self) -> io::Result<Fd> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this driver has no descriptor that an outer loop could watch",
        ))
    }

    /// Makes the [`descriptor`](Driver::descriptor) readable when the loop's clock reaches `deadline`, so that an outer loop
    /// needs no timer of its own. The loop calls this before a [`flush`](Driver::flush), with its next deadline or `None`.
    ///
    /// It may become readable earlier, so a driver need not change a deadline that is armed and not later than this one. Then it
    /// makes no system call. Returns false, without any effect, if the driver cannot do this, as the default does: the outer
    /// loop then waits no longer than until [`EventLoop::next_deadline`](crate::EventLoop::next_deadline).
    fn arm_deadline(&mut self, deadline: Option<Instant>) -> bool {
        let _ = deadline;
        false
    }

    /// A handle that ends a blocking [`poll`](Driver::poll) from any thread.
    fn notifier(&self) -> Arc<dyn Notify>;

    /// The driver's counters.
    fn counters(&self) -> DriverCounters;

    /// Which numbers this driver uses as descriptors. The answer never changes.
    ///
    /// The loop makes system calls of its own only on numbers that are the kernel's by this answer. A driver that does
    /// not answer [`FdSpace::Kernel`] lives until its last descriptor is closed, even if a stream outlives its loop.
    fn fd_space(&self) -> FdSpace {
        FdSpace::Own
    }
}

/// A job that a driver may run instead of a thread: see [`Driver::offload`].
pub type Job = Box<dyn FnOnce() + Send>;

/// Where the signals of a loop come from: see [`Driver::signals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignalSource {
    /// The process: the loop installs signal handlers, and the driver waits for the readiness of a kernel descriptor.
    Process,
    /// The driver: the loop installs no handlers, and the process's signals do not reach it.
    Driver,
    /// There are none: listening to a signal is an error.
    None,
}

/// Which numbers a driver uses as descriptors: see [`Driver::fd_space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdSpace {
    /// The kernel's. A descriptor that outlives the loop is closed with a system call, and can be converted to a
    /// type of std.
    Kernel,
    /// The driver's own numbers: no value is a kernel descriptor. The loop refuses to adopt kernel descriptors on such
    /// a driver, and gives no operation on a descriptor to a thread: if the driver answers [`Start::Blocking`] to one,
    /// or to an open, the operation fails with `EOPNOTSUPP`. Lookups and operations on paths may run on threads.
    Own,
    /// Numbers from [`FIRST_OWN`](FdSpace::FIRST_OWN) on are the driver's own and the others the kernel's, as with the
    /// null driver. Threads may open files for such a driver; it closes them with a system call.
    Split,
}

impl FdSpace {
    /// The first of the driver's own numbers with [`FdSpace::Split`]. No kernel gives out that many descriptors.
    pub const FIRST_OWN: Fd = 1 << 30;

    /// Whether this number is a kernel descriptor.
    pub fn is_kernel(self, fd: Fd) -> bool {
        match self {
            FdSpace::Kernel => fd >= 0,
            FdSpace::Split => (0..FdSpace::FIRST_OWN).contains(&fd),
            FdSpace::Own => false,
        }
    }
}

/// Ends a blocking [`Driver::poll`] from any thread. The loop drops its handle when it closes.
pub trait Notify: Send + Sync {
    /// Makes the current or next blocking poll return at once, and [`Driver::descriptor`] readable. The caller may hold
    /// a lock of the loop, so this must not call into the loop.
    fn notify(&self);
}

/// Memory at a fixed address that belongs to one operation. The driver lays it out as it likes: a socket address, a
/// message header, an `OVERLAPPED`.
#[repr(C, align(16))]
pub struct Scratch(pub [std::mem::MaybeUninit<u8>; SCRATCH_LEN]);

/// The size of [`Scratch`] in bytes. Windows needs more for `OVERLAPPED` and the addresses of an accept.
pub const SCRATCH_LEN: usize = if cfg!(windows) { 192 } else { 64 };

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// The answer of [`Driver::start`].
#[derive(Debug)]
pub enum Start {
    /// The operation is done, and no completion follows.
    Done(OpResult),
    /// The operation is in flight. A later poll reports its completion.
    Pending,
    /// The driver cannot carry the operation out without blocking: a pool thread of the loop does. The driver
    /// reports no completion.
    Blocking,
}

/// How long a [`Driver::poll`] may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: tasks are ready. A driver may skip looking for completions where that is a system call, but not for
    /// long: the built-in reactor looks every 64 turns or 50 us.
    No,
    /// Not at all, but completions that are available are reported. A busy-polling loop polls with this repeatedly, so
    /// a driver that can see without a system call that nothing is available makes none.
    Poll,
    /// Until there is a completion or the loop's clock reaches this time, which may have passed.
    Until(Instant),
    /// Until there is a completion or some time between these two: the next timers have slack. A driver for which the precise
    /// end of a wait is expensive chooses a cheap one. Treating this as `Until` the second time is always right.
    Between(Instant, Instant),
    /// Until there is a completion.
    Forever,
}

impl Wait {
    /// This wait, except that a driver with completions to report must not block.
    #[cfg(any(feature = "reactor", windows))]
    pub(crate) fn unless_done(self, done: &[Completion]) -> Wait {
        match done.is_empty() || self == Wait::Poll {
            true => self,
            false => Wait::No,
        }
    }
}

/// A driver's counters, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverCounters {
    /// System calls that submitted, waited or both.
    pub enters: u64,
    /// Non-blocking polls that made no system call and reported nothing.
    pub spins: u64,
    /// Submissions to the kernel, cancels included.
    pub submissions: u64,
    /// Completions from the kernel, those of cancels included.
    pub completions: u64,
    /// Operations that found the submission queue full: the driver submitted it, or kept them for later.
    pub sq_full: u64,
    /// Overflows of the completion queue.
    pub overflows: u64,
    /// Cancels that came too late: the operation had completed.
    pub late_cancels: u64,
    /// Managed receives that found the buffer pool empty.
    pub pool_empty: u64,
    /// Readiness events for descriptors that were closed; only a reactor gets these.
    pub stale_events: u64,
}
