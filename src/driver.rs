//! The seam between the loop and the kernel.
//!
//! Everything above this trait sees completions only: it starts an operation under a flight's id and some later
//! [`poll`](Driver::poll) lands the outcome. Whether the driver asked the kernel to do the work (a proactor), waited for
//! readiness and did it itself (a reactor), or made it all up in memory (the null driver) cannot be told from above.
//!
//! The trait is object-safe, so the loop holds one `Box<dyn Driver>` and is compiled once. It is unsafe to implement: a
//! completion told too early frees memory that the kernel still writes to.

use std::fmt;
use std::io::{self, SeekFrom};
use std::net::Shutdown;
use std::sync::Arc;

pub use crate::io::pool::{BufferPool, PoolBuffer};
pub use crate::net::options::{Credentials, SocketKind, SocketOption};
pub use crate::op::{CURRENT, Direction, MAX_LEN, MAX_SLICES, Medium, Op};
pub use crate::sys::{Fd, IoVec, Message, Name, PathChar, Stat};
use crate::time::Instant;

/// A source of completions: what the event loop turns on.
///
/// # Safety
///
/// For every flight started with [`Start::Pending`] an implementation lands exactly one completion without
/// [`more`](Landing::more), and nothing after it. From `start` until that last completion is pushed onto `landed` the
/// driver and the kernel may use the memory that the operation and the scratch point to; after it neither may. A
/// completion that is told while the kernel can still write is undefined behaviour.
pub unsafe trait Driver {
    /// Tells which driver this is, what it uses of the kernel, and why it was chosen.
    fn describe(&self) -> Description;

    /// Reads the loop's clock. A driver may bring a virtual one.
    fn now(&self) -> Instant;

    /// Whether the clock is the driver's own, and jumps. The loop lets it stand still while threads do file work, which
    /// takes real time, and neither looks out nor wakes early.
    fn has_virtual_clock(&self) -> bool {
        false
    }

    /// Makes a call that never blocks: sockets, names, options, closing.
    fn control(&mut self, call: Control<'_>) -> io::Result<Reply>;

    /// Starts an operation.
    ///
    /// # Safety
    ///
    /// `id` names a flight that owns everything `op` points to and the `scratch`. All of it stays alive and in place,
    /// untouched by anyone else, until the last completion for `id` has landed or `Start::Done` was returned.
    unsafe fn start(&mut self, id: FlightId, op: Op, scratch: *mut Scratch) -> Start;

    /// Carries an operation out here and now, without a flight, if that need not wait: a send; a read of what is in the page
    /// cache. `None`, and nothing has happened, if it must be [started](Driver::start).
    ///
    /// `alone` says that there is little else to hand over: a driver that hands many operations over with one system call
    /// spares nothing then, and one of its own is quicker.
    ///
    /// # Safety
    ///
    /// What `op` points to is there until this returns, and its alone if it is written to.
    unsafe fn attempt(&mut self, op: Op, alone: bool) -> Option<Outcome> {
        let _ = (op, alone);
        None
    }

    /// Asks for a flight to end early. It is a request: the flight still lands, with whatever became of it.
    fn cancel(&mut self, id: FlightId);

    /// Hands over what is queued, waits as told, and lands what has completed. The only place where the thread sleeps.
    fn poll(&mut self, landed: &mut Vec<Completion>, wait: Wait) -> io::Result<()>;

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
pub struct FlightId {
    /// Less than 2^24.
    pub(crate) index: u32,
    /// Less than 2^40: at a million operations a second on one place it comes round after twelve days.
    pub(crate) generation: u64,
}

impl FlightId {
    /// This index is never given out: drivers use such ids for themselves.
    pub(crate) const MAX_INDEX: u32 = (1 << 24) - 1;

    /// The id as one number, as a kernel carries it. Numbers whose lower 24 bits are all set are never given out: drivers
    /// may use them for themselves.
    pub fn to_u64(self) -> u64 {
        (self.generation << 24) | u64::from(self.index)
    }

    /// The reverse of [`to_u64`](FlightId::to_u64).
    pub fn from_u64(number: u64) -> FlightId {
        FlightId {
            index: number as u32 & FlightId::MAX_INDEX,
            generation: number >> 24,
        }
    }
}

impl fmt::Debug for FlightId {
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
    Done(Landing),
    /// It is under way; its completion lands in a later poll.
    Pending,
    /// The driver has no way to do it without blocking: the loop has a thread do it. No completion will land for it.
    Blocking,
}

/// How an operation went: its count (bytes, or a descriptor's number), or the OS's error code.
pub type Outcome = Result<u32, i32>;

/// What one completion brings.
#[derive(Debug)]
pub struct Landing {
    /// The count or the error.
    pub outcome: Outcome,
    /// Whether this flight will land again.
    pub more: bool,
    /// The pool's buffer that a managed receive filled.
    pub buffer: Option<PoolBuffer>,
}

impl Landing {
    /// A flight's only landing.
    pub fn last(outcome: Outcome) -> Landing {
        Landing {
            outcome,
            more: false,
            buffer: None,
        }
    }

    /// A managed receive's only landing. An empty buffer says nothing that the count does not say: it goes back to its
    /// pool here.
    pub(crate) fn with_buffer(outcome: Outcome, buffer: PoolBuffer) -> Landing {
        Landing {
            outcome,
            more: false,
            buffer: Some(buffer).filter(|buffer| !buffer.filled().is_empty()),
        }
    }
}

/// A landing and the flight it is for.
#[derive(Debug)]
pub struct Completion {
    /// The id given to [`Driver::start`].
    pub id: FlightId,
    /// What came of it.
    pub landing: Landing,
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
    /// Takes over a socket that was made elsewhere. On an error the caller still owns it.
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

/// What remains of a driver when its loop has closed: descriptors that outlive the loop can still be closed, and
/// everything else says why it cannot be done.
pub(crate) struct Closed {
    pub(crate) counters: DriverCounters,
    pub(crate) description: Description,
    pub(crate) now: Instant,
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
        match call {
            Control::Close { .. } | Control::Reset { .. } => crate::sys::control(call),
            _ => Err(closed_error()),
        }
    }

    unsafe fn start(&mut self, _id: FlightId, _op: Op, _scratch: *mut Scratch) -> Start {
        Start::Done(Landing::last(Err(crate::sys::errno::CANCELED)))
    }

    fn cancel(&mut self, _id: FlightId) {}

    fn poll(&mut self, _landed: &mut Vec<Completion>, _wait: Wait) -> io::Result<()> {
        Err(closed_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
    io::Error::new(io::ErrorKind::NotConnected, crate::remote::LoopClosed)
}
