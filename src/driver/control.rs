//! Control calls: the calls on descriptors that never block, and their implementation with plain system calls.

use std::io::{self, SeekFrom};
use std::net::Shutdown;

use crate::sys::{self, Credentials, Fd, Name, SocketKind, SocketOption};

/// A call that never blocks. `fd` is the descriptor that it is for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the enum's documentation describes `fd`, a variant's its other fields"
)]
pub enum Control<'a> {
    /// Creates a socket of this kind. Returns [`Reply::Fd`].
    Socket { kind: SocketKind },
    /// Creates two sockets of this kind that are connected to each other. Returns [`Reply::Pair`].
    Pair { kind: SocketKind },
    /// Creates a pipe. Returns [`Reply::Pair`]: the end to read from, then the end to write to.
    Pipe,
    /// Binds a socket to the address `name`.
    Bind { fd: Fd, name: &'a Name },
    /// Makes a bound socket accept connections.
    Listen {
        fd: Fd,
        /// How many connections the kernel queues before they are accepted.
        backlog: i32,
    },
    /// Takes over a kernel socket or pipe that was created elsewhere. On an error the caller still owns it. The loop
    /// never makes this call on a driver with [`FdSpace::Own`](super::FdSpace::Own).
    Adopt { fd: Fd },
    /// Reads the address that a socket is bound to. Returns [`Reply::Name`].
    LocalName { fd: Fd },
    /// Reads the address of a socket's peer. Returns [`Reply::Name`].
    PeerName { fd: Fd },
    /// Reads the credentials of a Unix connection's peer. Returns [`Reply::Credentials`].
    PeerCredentials { fd: Fd },
    /// Sets a socket option to the value that `option` has.
    SetOption { fd: Fd, option: SocketOption },
    /// Reads a socket option. Returns [`Reply::Option`].
    Option {
        fd: Fd,
        /// An option of the same kind; its value is ignored.
        like: SocketOption,
    },
    /// Shuts down one or both directions of a connection.
    Shutdown { fd: Fd, how: Shutdown },
    /// Prepares the driver for [`Op::Readiness`](super::Op::Readiness) on a descriptor that it did not make and whose
    /// owner keeps it. An error if readiness of that descriptor cannot be waited for.
    Watch { fd: Fd },
    /// Releases a descriptor that stays open: the loop does not use it again unless it is adopted or watched once more.
    Forget { fd: Fd },
    /// Moves a file's position to `to`. Returns the new one as [`Reply::Position`].
    Seek { fd: Fd, to: SeekFrom },
    /// Closes a descriptor, whose number is not used afterwards.
    Close { fd: Fd },
    /// Closes a connection with an RST, so that its peer learns at once that it will not be served. The socket's number
    /// is not used afterwards.
    Reset { fd: Fd },
}

/// The answer to a [`Control`] call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// The call succeeded.
    Done,
    /// A new descriptor, owned by the caller.
    Fd(Fd),
    /// Two new descriptors, owned by the caller.
    Pair(Fd, Fd),
    /// An address.
    Name(Name),
    /// The peer's credentials.
    Credentials(Credentials),
    /// An option's value.
    Option(SocketOption),
    /// A position in a file.
    Position(u64),
}

/// Carries out a control call with plain system calls.
pub(crate) fn control(call: Control<'_>) -> io::Result<Reply> {
    match call {
        Control::Socket { kind } => return sys::new_socket(kind).map(Reply::Fd),
        Control::Pair { kind } => return sys::new_pair(kind).map(|(one, other)| Reply::Pair(one, other)),
        Control::Pipe => {
            return sys::pipe().map(|(reader, writer)| Reply::Pair(sys::from_std(reader), sys::from_std(writer)));
        }
        Control::LocalName { fd } => return sys::local_name(fd).map(Reply::Name),
        Control::PeerName { fd } => return sys::peer_name(fd).map(Reply::Name),
        Control::PeerCredentials { fd } => return sys::credentials(fd).map(Reply::Credentials),
        Control::Option { fd, like } => return sys::get_option(fd, like).map(Reply::Option),
        Control::Seek { fd, to } => return sys::files::seek(fd, to).map(Reply::Position),
        Control::Bind { fd, name } => sys::bind(fd, name)?,
        Control::Listen { fd, backlog } => sys::listen(fd, backlog)?,
        Control::Adopt { fd } => sys::adopt(fd)?,
        Control::SetOption { fd, option } => sys::set_option(fd, option)?,
        Control::Shutdown { fd, how } => sys::shutdown(fd, how)?,
        Control::Watch { fd } => sys::check_watchable(fd)?,
        Control::Forget { .. } => {}
        Control::Close { fd } => sys::close(fd),
        Control::Reset { fd } => sys::reset(fd),
    }
    Ok(Reply::Done)
}
