//! What mio's reactor is made of on Windows: sockets, through the driver under Winsock, which is called AFD.
//!
//! AFD is asked to tell when a socket is ready, and answers once, with what holds then: level-triggered and one shot. mio
//! makes it look edge-triggered by not asking again for what was told, until an operation would have blocked. Operations are
//! not mio's here, so we keep that account: a direction is asked for when somebody starts to wait for it, and again when
//! he has tried in vain. Since the answer is the state, nothing falls in between, whenever it is asked for.
//!
//! Asking for both directions whoever waits would be answered at once by every socket that has room to send.
//!
//! Pipes have no readiness here. They are `pipes`' matter.

mod pipes;

use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::io::{FromRawSocket, IntoRawSocket, RawSocket};

use mio::event::Source as _;
use mio::net::TcpStream;
use mio::{Interest, Poll, Registry, Token};

pub(super) use self::pipes::Pipes;
use crate::driver::op::Direction;
use crate::sys::{self, Fd};

/// How many of a number's lowest bits say nothing.
pub(super) const SPARE_BITS: u32 = 2;

/// Whether a receive that did not fill its buffer has emptied the socket. Nothing here tells of urgent bytes.
pub(super) const SHORT_IS_EMPTY: bool = false;

/// The driver's name, and what it uses of the kernel.
pub(super) fn describe() -> (&'static str, Vec<&'static str>) {
    ("afd", vec!["through mio", "one shot", "overlapped calls for pipes"])
}

/// What an outer loop can watch: mio keeps its completion port to itself.
pub(super) fn descriptor(_: &Poll) -> io::Result<Fd> {
    let why = "the reactor has no handle that an outer loop could watch on Windows";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// A socket that is registered. It stays its owner's: dropping this only takes the registration back.
pub(super) struct Source {
    /// mio registers what it thinks to own. It only asks for its number, so this stands for sockets of any kind.
    socket: ManuallyDrop<TcpStream>,
    read: bool,
    write: bool,
}

impl Source {
    /// Whether to ask again whenever somebody waits.
    pub(super) const HAS_TO_ASK: bool = true;

    pub(super) fn new(fd: Fd) -> Source {
        // SAFETY: nothing is done with it but registering, and `drop` gives the number back unclosed.
        let socket = unsafe { TcpStream::from_raw_socket(sys::socket(fd) as RawSocket) };
        Source {
            socket: ManuallyDrop::new(socket),
            read: false,
            write: false,
        }
    }

    /// Asks the kernel to tell of a socket once.
    pub(super) fn register(
        &mut self,
        registry: &Registry,
        _fd: Fd,
        token: Token,
        direction: Direction,
    ) -> io::Result<()> {
        *self.asked(direction) = true;
        let interests = self.interests();
        self.socket.register(registry, token, interests)
    }

    /// Asks again for one that is waited for already. Its number may be another socket's by now, so that is asked from
    /// scratch, for whatever was asked.
    pub(super) fn renew(&mut self, registry: &Registry, fd: Fd, token: Token) -> io::Result<()> {
        let (read, write) = (self.read, self.write);
        *self = Source::new(fd);
        (self.read, self.write) = (read, write);
        let interests = self.interests();
        self.socket.register(registry, token, interests)
    }

    /// Takes it back, which dropping it does. What the kernel still has is mio's to keep until it is over.
    pub(super) fn deregister(self, _registry: &Registry, _fd: Fd) {}

    /// Somebody waits.
    pub(super) fn arm(&mut self, registry: &Registry, token: Token, direction: Direction) -> io::Result<()> {
        if std::mem::replace(self.asked(direction), true) {
            return Ok(());
        }
        let interests = self.interests();
        let asked = self.socket.reregister(registry, token, interests);
        *self.asked(direction) = asked.is_ok();
        asked
    }

    /// The kernel has told, and will not tell again.
    pub(super) fn told(&mut self, direction: Direction) {
        *self.asked(direction) = false;
    }

    fn asked(&mut self, direction: Direction) -> &mut bool {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }

    /// What is asked for now. mio knows no interest in nothing.
    fn interests(&self) -> Interest {
        match (self.read, self.write) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::WRITABLE,
            (_, false) => Interest::READABLE,
        }
    }
}

impl Drop for Source {
    /// Takes the registration back, and leaves the socket to its owner.
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        let _ = socket.into_raw_socket();
    }
}
