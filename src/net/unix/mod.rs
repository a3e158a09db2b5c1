//! Sockets within the machine: at a path, or, on Linux, under an abstract name.
//!
//! Where a path is taken, one that begins with NUL is an abstract name, as elsewhere; std's addresses have both. A
//! socket's path stays when the socket goes: remove it first if a new one is to be bound there, as with std.

mod datagram;
mod listener;
mod retry;
mod socket;
mod stream;
mod traits;

pub(crate) use std::os::unix::net::SocketAddr as UnixAddr;

pub use self::datagram::UnixDatagram;
pub use self::listener::UnixListener;
pub use self::stream::{Received, UnixStream};
