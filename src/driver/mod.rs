//! The seam between the loop and the kernel.
//!
//! Everything above this trait sees completions only: it starts an operation under a flight's id and some later
//! [`poll`](Driver::poll) lands the outcome. Whether the driver asked the kernel to do the work (a proactor), waited for
//! readiness and did it itself (a reactor), or made it all up in memory (the null driver) cannot be told from above.
//!
//! The trait is object-safe, so the loop holds one `Box<dyn Driver>` and is compiled once. It is unsafe to implement: a
//! completion told too early frees memory that the kernel still writes to.

pub(crate) mod op;
#[cfg(any(feature = "reactor", windows))]
pub(crate) mod poll_throttle;
pub(crate) mod pool;

use std::fmt;
use std::io::{self, SeekFrom};
use std::net::Shutdown;
use std::sync::Arc;

pub use crate::driver::op::{CURRENT, Direction, MAX_LEN, MAX_SLICES, Medium, Op};
pub use crate::driver::pool::{BufferPool, PoolBuffer};
use crate::sys::Instant;
pub use crate::sys::{Credentials, SocketKind, SocketOption};
pub use crate::sys::{Fd, IoVec, Message, Name, OsResult, PathChar, Stat};

/// A source of completions: what the event loop turns on.
///
/// # Safety
///
/// For every flight started with [`Start::Pending`] an implementation lands exactly one completion. From `start` until that
/// completion is pushed onto `landed` the driver and the kernel may use the memory that the operation and the scratch point
/// to; after it neither may. A completion that is told while the kernel can still write is undefined behaviour.
pub unsafe trait Driver {
    /// Tells which driver this is, what it uses of the kernel, and why it was chosen.
    fn describe(&self) -> Description;

    /// Reads the loop's clock. A driver may bring a virtual one.
    fn now(&self) -> Instant;

    /// Whether the clock is the driver's own, and jumps to the next deadline when nothing can run.
    ///
    /// Threads work in real time. So while a thread works for the loop, the loop does not pass a deadline to
    /// [`poll`](Driver::poll) but [`Wait::Forever`], and virtual time stands still. What counts as work for the loop:
    ///
    /// - operations that the driver left to a thread ([`Start::Blocking`]), such as file work;
    /// - jobs whose handle exists: of [`spawn_blocking`](crate::spawn_blocking), of a [`Pool`](crate::blocking::Pool) if they
    ///   were spawned or polled on this loop, and name lookups. A job that waits in the queue, or whose handle was polled and
    ///   waits for room there, counts too.
    ///
    /// A job whose handle was dropped no longer counts, since it reports nothing to the loop. A job that itself waits for
    /// something that the loop does only after a timer has fired never ends: it stops the clock that it waits for.
    ///
    /// On a virtual clock the loop does not busy-poll and does not wake early.
    fn has_virtual_clock(&self) -> bool {
        false
    }

    /// Whether operations that are started together reach the kernel with one system call. Then a listener starts several
    /// accepts at once during a burst of connections; see `TcpListener::set_accept_ahead`.
    fn submits_in_batches(&self) -> bool {
        false
    }

    /// Makes a call that never blocks: sockets, names, options, closing.
    fn control(&mut self, call: Control<'_>) -> io::Result<Reply>;

    /// Starts an operation.
    ///
    /// # Safety
    ///
    /// `id` names a flight that owns everything `op` points to and the `scratch`. All of it stays alive and in place,
    /// untouched by anyone else, until the completion for `id` has landed or `Start::Done` was returned.
    unsafe fn start(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start;

    /// Carries an operation out here and now, without a flight, if that need not wait: a send; a read of what is in the page
    /// cache. `None`, and nothing has happened, if it must be [started](Driver::start).
    ///
    /// `alone` says that there is little else to hand over: a driver that hands many operations over with one system call
    /// spares nothing then, and one of its own is quicker.
    ///
    /// # Safety
    ///
    /// What `op` points to is there until this returns, and its alone if it is written to.
    unsafe fn attempt(&mut self, op: Op, alone: bool) -> Option<OsResult> {
        let _ = (op, alone);
        None
    }

    /// Asks for a flight to end early. It is a request: the flight still lands, with whatever became of it.
    fn cancel(&mut self, id: OpId);

    /// Hands over what is queued, waits as told, and lands what has completed. The only place where the thread sleeps.
    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()>;

    /// Hands queued submissions to the kernel without waiting, because somebody else is about to wait for the
    /// [`descriptor`](Driver::descriptor): what has completed already must show there.
    fn flush(&mut self) -> io::Result<()>;

    /// A descriptor that is readable when a [`poll`](Driver::poll) would land something, for an outer loop to watch. It
    /// belongs to the driver.
    fn descriptor(&mut self) -> io::Result<Fd> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this driver has no descriptor that an outer loop could watch",
        ))
    }

    /// Something that ends a sleeping [`poll`](Driver::poll) from any thread.
    fn notifier(&self) -> Arc<dyn Notify>;

    /// What the driver has counted so far.
    fn counters(&self) -> DriverCounters;

    /// Which numbers this driver uses as descriptors. It gives the same answer as long as it lives.
    ///
    /// An [`Fd`] is a number that this driver gave out, as a [`Reply`] or as the outcome of an accept or open, or that the
    /// program gave to it with [`Control::Adopt`] or [`Control::Watch`]. Only the driver knows what it stands for. The loop
    /// makes no system call of its own on a number unless the answer here says that it is the kernel's.
    ///
    /// Every number that a driver gave out or adopted comes back to it once, as [`Control::Close`], [`Control::Reset`] or
    /// [`Control::Forget`]. A driver whose numbers are not all the kernel's lives until then, even if a stream outlives its
    /// loop: it is dropped after the last close.
    fn fd_space(&self) -> FdSpace {
        FdSpace::Own
    }
}

/// Which numbers a driver uses as descriptors: see [`Driver::fd_space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdSpace {
    /// The kernel's. A descriptor that outlives the loop is closed with a system call, and can be turned into one of std's.
    Kernel,
    /// The driver's own numbers, whatever their values: none is a descriptor of the kernel's. The loop refuses to adopt
    /// descriptors of the kernel's on such a driver, and leaves no operation on a descriptor to a thread: if the driver
    /// answers [`Start::Blocking`] to one, or to [`Op::Open`], the operation fails with `EOPNOTSUPP`.
    Own,
    /// Negative numbers are the driver's own, and the others the kernel's, as with the null driver. Threads may open files
    /// for such a driver; it closes them with a system call.
    Split,
}

impl FdSpace {
    /// Whether this number is a descriptor of the kernel's.
    pub fn is_kernel(self, fd: Fd) -> bool {
        self != FdSpace::Own && fd >= 0
    }
}

/// Ends a sleeping [`Driver::poll`] from any thread. The loop calls it only while it sleeps, once per sleep, and drops it
/// when it closes.
pub trait Notify: Send + Sync {
    /// Makes the driver's current or next sleep end at once. It runs under a lock of the loop's, so it must not use the loop.
    fn notify(&self);
}

/// A flight's name: its place in the table and how often that place was used before, so that a late completion for an
/// earlier tenant is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Less than 2^24.
    pub(crate) index: u32,
    /// Less than 2^40: at a million operations a second on one place it comes round after twelve days.
    pub(crate) generation: u64,
}

impl OpId {
    /// This index is never given out: drivers use such ids for themselves.
    pub(crate) const MAX_INDEX: u32 = (1 << 24) - 1;

    /// The id as one number, as a kernel carries it. Numbers whose lower 24 bits are all set are never given out: drivers
    /// may use them for themselves.
    pub fn to_u64(self) -> u64 {
        (self.generation << 24) | u64::from(self.index)
    }

    /// The reverse of [`to_u64`](OpId::to_u64).
    pub fn from_u64(number: u64) -> OpId {
        OpId {
            index: number as u32 & OpId::MAX_INDEX,
            generation: number >> 24,
        }
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}v{}", self.index, self.generation)
    }
}

/// Memory at a fixed address that belongs to one flight and that its driver lays out as it likes: a socket address, a
/// message header, an OVERLAPPED.
#[repr(C, align(16))]
pub struct Scratch(pub [std::mem::MaybeUninit<u8>; SCRATCH_LEN]);

/// The size of [`Scratch`] in bytes. Windows' operations need more of it.
pub const SCRATCH_LEN: usize = if cfg!(windows) { 192 } else { 64 };

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// What came of starting an operation.
#[derive(Debug)]
pub enum Start {
    /// It completed at once; no completion will land for it.
    Done(OpResult),
    /// It is under way; its completion lands in a later poll.
    Pending,
    /// The driver has no way to do it without blocking: the loop has a thread do it. No completion will land for it.
    Blocking,
}

/// What one completion brings.
#[derive(Debug)]
pub struct OpResult {
    /// The count or the error.
    pub res: OsResult,
    /// The pool's buffer that a managed receive filled.
    pub buffer: Option<PoolBuffer>,
}

impl OpResult {
    /// A flight's only landing.
    pub fn last(res: OsResult) -> OpResult {
        OpResult { res, buffer: None }
    }

    /// A managed receive's only landing. An empty buffer says nothing that the count does not say: it goes back to its
    /// pool here.
    pub(crate) fn with_buffer(res: OsResult, buffer: PoolBuffer) -> OpResult {
        OpResult {
            res,
            buffer: Some(buffer).filter(|buffer| !buffer.filled().is_empty()),
        }
    }
}

/// A message with the memory of its header, for whoever calls [`Driver::start`] without a loop: a driver's own tests, or a
/// driver that passes operations on to another.
///
/// ```
/// use windlass::driver::{MessageBuf, Name};
/// let mut buf = MessageBuf::new();
/// let name = Name::from(std::net::SocketAddr::from(([127, 0, 0, 1], 53)));
/// let message = buf.to_send(b"query", Some(&name));
/// // SAFETY: the buffer and the bytes are there, and nothing else uses them.
/// let (bytes, to) = unsafe { ((*message).bytes(), (*message).name()) };
/// assert_eq!(bytes.len, 5);
/// assert_eq!(to.and_then(|name| name.as_socket()), name.as_socket());
/// ```
pub struct MessageBuf(Box<crate::sys::MsgHdrBuf>);

impl MessageBuf {
    /// An empty message.
    pub fn new() -> MessageBuf {
        MessageBuf(crate::sys::MsgHdrBuf::new())
    }

    /// Makes it one to send: these bytes, to this address, or to the peer that the socket is connected to. The pointer is for
    /// [`Op::SendMessage`], and valid as long as the bytes and this are in place and not used otherwise.
    pub fn to_send(&mut self, bytes: &[u8], to: Option<&Name>) -> *const Message {
        self.0.enclose(Vec::new());
        self.0.address(to);
        self.0.ready_to_send(bytes.as_ptr(), bytes.len())
    }

    /// Makes it one to receive into these bytes. The pointer is for [`Op::RecvMessage`], and valid as long as the bytes and
    /// this are in place and not used otherwise.
    pub fn to_receive(&mut self, bytes: &mut [u8]) -> *mut Message {
        self.0.make_room(0);
        self.0.ready_to_receive(bytes.as_mut_ptr(), bytes.len())
    }

    /// The sender of what was received, if it has a name, and whether bytes were lost for lack of room.
    pub fn received(&mut self) -> (Option<Name>, bool) {
        let meta = self.0.open();
        (meta.sender, meta.is_truncated)
    }
}

impl Default for MessageBuf {
    fn default() -> MessageBuf {
        MessageBuf::new()
    }
}

impl fmt::Debug for MessageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageBuf")
    }
}

/// A landing and the flight it is for.
#[derive(Debug)]
pub struct Completion {
    /// The id given to [`Driver::start`].
    pub id: OpId,
    /// What came of it.
    pub op_result: OpResult,
}

/// How long a [`Driver::poll`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all, since there is something to run: a driver may leave out even looking, though not for long.
    No,
    /// Not at all, but what has completed lands. A loop that looks out asks so again and again: where it can be seen without
    /// a system call that there is nothing, there is none.
    Look,
    /// Until something lands or the loop's clock shows this. It may have passed.
    Until(Instant),
    /// Until something lands.
    Forever,
}

/// A call that never blocks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Control<'a> {
    /// Makes a socket. Gives [`Reply::Fd`].
    Socket {
        /// What for.
        kind: SocketKind,
    },
    /// Makes two sockets that are connected to each other. Gives [`Reply::Pair`].
    Pair {
        /// What for.
        kind: SocketKind,
    },
    /// Gives a socket an address.
    Bind {
        /// The socket.
        fd: Fd,
        /// The address.
        name: &'a Name,
    },
    /// Lets a bound socket take connections.
    Listen {
        /// The socket.
        fd: Fd,
        /// How many connections the kernel may hold that nobody accepted yet.
        backlog: i32,
    },
    /// Takes over a socket of the kernel's that was made elsewhere. On an error the caller still owns it. Never asked of a
    /// driver whose numbers are its own ([`FdSpace::Own`]).
    Adopt {
        /// The socket.
        fd: Fd,
    },
    /// Asks for the address that a socket is bound to. Gives [`Reply::Name`].
    LocalName {
        /// The socket.
        fd: Fd,
    },
    /// Asks for the address of a socket's peer. Gives [`Reply::Name`].
    PeerName {
        /// The socket.
        fd: Fd,
    },
    /// Asks who is at the other end of a Unix connection. Gives [`Reply::Credentials`].
    PeerCredentials {
        /// The socket.
        fd: Fd,
    },
    /// Sets an option of a socket.
    SetOption {
        /// The socket.
        fd: Fd,
        /// The option, with its new value.
        option: SocketOption,
    },
    /// Asks for an option of a socket. Gives [`Reply::Option`].
    Option {
        /// The socket.
        fd: Fd,
        /// An option of the same kind; its value means nothing.
        like: SocketOption,
    },
    /// Shuts down one or both directions of a connection.
    Shutdown {
        /// The socket.
        fd: Fd,
        /// Which direction.
        how: Shutdown,
    },
    /// Readies the driver for [`Op::Readiness`] on a descriptor that it did not make. An error if that cannot be waited
    /// for.
    Watch {
        /// The descriptor; it stays its owner's.
        fd: Fd,
    },
    /// Gives up a descriptor that stays open: nobody here will use it any more, unless it is adopted or watched again.
    Forget {
        /// The descriptor.
        fd: Fd,
    },
    /// Moves a file's position, and gives it: [`Reply::Position`].
    Seek {
        /// The file.
        fd: Fd,
        /// Where to.
        to: SeekFrom,
    },
    /// Closes a descriptor.
    Close {
        /// The descriptor; nobody may use its number afterwards.
        fd: Fd,
    },
    /// Closes a connection that nobody will serve, so that its peer learns of it at once (a reset).
    Reset {
        /// The socket; nobody may use its number afterwards.
        fd: Fd,
    },
}

/// What a [`Control`] call answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// It is done.
    Done,
    /// A new descriptor, owned by the caller.
    Fd(Fd),
    /// Two new descriptors, owned by the caller.
    Pair(Fd, Fd),
    /// An address.
    Name(Name),
    /// Who somebody is.
    Credentials(Credentials),
    /// An option's value.
    Option(SocketOption),
    /// A place in a file.
    Position(u64),
}

/// Which driver a loop turns on, with which parts of the kernel, and why.
///
/// ```
/// let event_loop = windlass::EventLoop::new()?;
/// println!("{}", event_loop.describe());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The driver's name: `io_uring`, `epoll`, `kqueue`, `afd`, `null`.
    pub name: &'static str,
    /// What it uses of the kernel, or does without.
    pub features: Vec<&'static str>,
    /// Why this driver and not another.
    pub reason: String,
}

impl Description {
    /// Describes a driver.
    pub fn new(name: &'static str, features: Vec<&'static str>, reason: impl Into<String>) -> Description {
        Description {
            name,
            features,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.features.is_empty() {
            write!(f, " [{}]", self.features.join(", "))?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// What a driver counts. All start at zero with the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverCounters {
    /// System calls that submitted, waited or both.
    pub enters: u64,
    /// Polls that saw nothing to do and made no system call.
    pub spins: u64,
    /// Operations handed to the kernel, cancels among them.
    pub submissions: u64,
    /// Completions taken from the kernel, those of cancels among them.
    pub completions: u64,
    /// Operations that found the submission queue full: it was handed over, or they were parked.
    pub sq_full: u64,
    /// Times the completion queue had overflowed and was drained.
    pub overflows: u64,
    /// Cancels that came too late: the operation had already completed.
    pub late_cancels: u64,
    /// Managed receives that found the buffer pool empty.
    pub pool_empty: u64,
    /// Readiness told for a descriptor that is gone; only a reactor hears such.
    pub stale_events: u64,
}

/// Which driver a [`Builder`](crate::Builder) makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// The best that this machine lets the process use.
    #[default]
    Auto,
    /// Completion-based: io_uring on Linux, completion ports on Windows.
    Proactor,
    /// Readiness-based: epoll on Linux, kqueue on macOS and the BSDs, AFD on Windows.
    Reactor,
    /// No kernel at all: in-memory sockets and a virtual clock. For tests.
    ///
    /// The clock stands still while something can run, and jumps to the next deadline when nothing can. It also stands still
    /// while a thread works for the loop, in a file, a name lookup or a blocking job whose handle was not dropped: see
    /// [`Driver::has_virtual_clock`].
    Null,
}

impl std::str::FromStr for DriverChoice {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<DriverChoice> {
        match name {
            "auto" => Ok(DriverChoice::Auto),
            "proactor" => Ok(DriverChoice::Proactor),
            "reactor" => Ok(DriverChoice::Reactor),
            "null" => Ok(DriverChoice::Null),
            other => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no driver is called '{other}': choose auto, proactor, reactor or null"),
            )),
        }
    }
}

/// Takes a driver's place when its loop has closed or is another process's: descriptors that outlive the loop can still be
/// closed, and everything else is an error.
pub(crate) struct Closed {
    counters: DriverCounters,
    description: Description,
    now: Instant,
    space: FdSpace,
    is_forked: bool,
    /// A driver with descriptors of its own lives until the last of them is closed, which is when the loop's memory is freed.
    driver: Option<Box<dyn Driver>>,
    /// Operations did not end: their memory, and what the driver holds, is never freed.
    leaks: bool,
}

impl Closed {
    /// What remains of `driver`. The caller puts it in the driver's place and hands that to
    /// [`keep`](Closed::keep) or drops it.
    pub(crate) fn after(driver: &dyn Driver, is_forked: bool) -> Closed {
        Closed {
            counters: driver.counters(),
            description: driver.describe(),
            now: driver.now(),
            space: driver.fd_space(),
            is_forked,
            driver: None,
            leaks: false,
        }
    }

    /// Keeps the driver for the closes to come if its descriptors are its own, and else drops it. With `leaks`, nothing of it
    /// is ever freed.
    pub(crate) fn keep(&mut self, driver: Box<dyn Driver>, leaks: bool) {
        match (self.space, leaks) {
            (FdSpace::Kernel, false) => drop(driver),
            (FdSpace::Kernel, true) => std::mem::forget(driver),
            (FdSpace::Own | FdSpace::Split, _) => {
                self.driver = Some(driver);
                self.leaks = leaks;
            }
        }
    }

    fn error(&self) -> io::Error {
        match self.is_forked {
            true => crate::error::forked_error(),
            false => closed_error(),
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if self.leaks {
            std::mem::forget(self.driver.take());
        }
    }
}

// SAFETY: nothing is ever pending here: `start` lands at once and touches no memory.
unsafe impl Driver for Closed {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        let (Control::Close { fd } | Control::Reset { fd }) = call else {
            return Err(self.error());
        };
        match (&mut self.driver, self.space.is_kernel(fd)) {
            (Some(driver), _) => driver.control(call),
            // In a forked child only this process's copy is closed. A reset would change the socket, which is shared.
            (None, true) if self.is_forked => crate::sys::control(Control::Close { fd }),
            (None, true) => crate::sys::control(call),
            // The number of a driver that is gone names nothing.
            (None, false) => Ok(Reply::Done),
        }
    }

    unsafe fn start(&mut self, _id: OpId, _op: Op, _scratch: *mut Scratch) -> Start {
        Start::Done(OpResult::last(Err(crate::sys::errno::CANCELED)))
    }

    fn cancel(&mut self, _id: OpId) {}

    fn poll(&mut self, _landed: &mut Vec<Completion>, _wait: Wait) -> io::Result<()> {
        Err(self.error())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.is_forked {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        Err(self.error())
    }

    fn fd_space(&self) -> FdSpace {
        self.space
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        struct Nobody;
        impl Notify for Nobody {
            fn notify(&self) {}
        }
        Arc::new(Nobody)
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, crate::error::LoopClosed)
}
