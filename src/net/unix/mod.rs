//! Unix sockets, bound to a path or, on Linux, to an abstract name.
//!
//! A path that starts with NUL is an abstract name; std's addresses support both. Closing a socket does not remove its
//! path: remove it before binding there again, as with std.

mod datagram;
mod listener;
mod retry;
mod socket;
mod stream;

pub(crate) use std::os::unix::net::SocketAddr as UnixAddr;

pub use self::datagram::UnixDatagram;
pub use self::listener::UnixListener;
pub use self::stream::{Received, UnixStream};
