//! The Windows part of the reactor: sockets through AFD, the driver below Winsock.
//!
//! An AFD poll is level-triggered and one-shot: it completes once, with the state at that moment. mio makes it look
//! edge-triggered by polling a direction again only after one of mio's own operations would have blocked. Operations
//! here do not go through mio, so this module keeps that record: a direction is armed when an operation starts to wait
//! for it, and again when its attempt would block. AFD reports state, not changes, so no readiness is lost in between.
//!
//! Only directions that operations wait for are armed: an idle socket is writable, and would end a poll at once.
//!
//! Pipes have no readiness on Windows: see `pipes`.

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

/// How many low bits of a handle's number are always zero.
pub(super) const SPARE_BITS: u32 = 2;

/// Whether a short receive or send means that the next one would block. Not here: urgent data also ends a receive, and
/// mio does not report it.
pub(super) const SHORT_MEANS_DRAINED: bool = false;

/// The driver's name, and the kernel features that it uses.
pub(super) fn describe() -> (&'static str, Vec<&'static str>) {
    ("afd", vec!["through mio", "one shot", "overlapped calls for pipes"])
}

/// The handle for an outer loop. There is none: mio does not expose its completion port.
pub(super) fn descriptor(_: &Poll) -> io::Result<Fd> {
    let why = "the reactor has no handle that an outer loop could watch on Windows";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// A registration. The socket stays its owner's: dropping this only deregisters it.
pub(super) struct Source {
    /// mio only registers owning types. It uses only the number, so this one stands for every kind of socket.
    socket: ManuallyDrop<TcpStream>,
    read_armed: bool,
    write_armed: bool,
}

impl Source {
    /// Whether a direction must be armed before an operation waits for it.
    pub(super) const NEEDS_ARMING: bool = true;

    pub(super) fn new(fd: Fd) -> Source {
        // SAFETY: the stream is only registered, and `drop` releases the socket without closing it.
        let socket = unsafe { TcpStream::from_raw_socket(sys::socket(fd) as RawSocket) };
        Source {
            socket: ManuallyDrop::new(socket),
            read_armed: false,
            write_armed: false,
        }
    }

    /// Registers a socket, with one direction armed.
    pub(super) fn register(
        &mut self,
        registry: &Registry,
        _fd: Fd,
        token: Token,
        direction: Direction,
    ) -> io::Result<()> {
        *self.armed(direction) = true;
        let interests = self.interests();
        self.socket.register(registry, token, interests)
    }

    /// Registers again, with the same directions armed, while operations wait: the number may have a new socket.
    pub(super) fn renew(&mut self, registry: &Registry, fd: Fd, token: Token) -> io::Result<()> {
        let armed = (self.read_armed, self.write_armed);
        *self = Source::new(fd);
        (self.read_armed, self.write_armed) = armed;
        let interests = self.interests();
        self.socket.register(registry, token, interests)
    }

    /// Deregisters the socket, by dropping this. mio keeps the memory of a poll that is still in flight until it ends.
    pub(super) fn deregister(self, _registry: &Registry, _fd: Fd) {}

    /// An operation is about to wait for this direction.
    pub(super) fn arm(&mut self, registry: &Registry, token: Token, direction: Direction) -> io::Result<()> {
        if std::mem::replace(self.armed(direction), true) {
            return Ok(());
        }
        let interests = self.interests();
        let result = self.socket.reregister(registry, token, interests);
        *self.armed(direction) = result.is_ok();
        result
    }

    /// The kernel has reported this direction, and does not report it again until it is armed.
    pub(super) fn disarm(&mut self, direction: Direction) {
        *self.armed(direction) = false;
    }

    fn armed(&mut self, direction: Direction) -> &mut bool {
        match direction {
            Direction::Read => &mut self.read_armed,
            Direction::Write => &mut self.write_armed,
        }
    }

    /// The armed directions. mio has no empty interest, so it is `READABLE` if there are none.
    fn interests(&self) -> Interest {
        match (self.read_armed, self.write_armed) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::WRITABLE,
            (_, false) => Interest::READABLE,
        }
    }
}

impl Drop for Source {
    /// Deregisters the socket, and leaves it to its owner.
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        let _ = socket.into_raw_socket();
    }
}
