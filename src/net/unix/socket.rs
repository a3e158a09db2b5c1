//! Socket calls for Unix sockets only.

use std::io;
use std::path::Path;

use super::UnixAddr;
use crate::driver::{Control, Reply};
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{Credentials, Name, SocketKind, context};

/// Adds an action and the address that it concerns to an error.
pub(super) fn at<'a>(action: &'a str, name: &'a Name) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| context(format_args!("{action} {name}"), error)
}

/// The name of the socket at a path. `action` and the path are the context of an error.
pub(super) fn name_of_path(action: &str, path: &Path) -> io::Result<Name> {
    Name::from_path(path).map_err(|error| {
        // The name of an abstract address begins with NUL, and is written with an `@`.
        let shown = path.to_string_lossy().replace('\0', "@");
        context(format_args!("{action} {shown}"), error)
    })
}

/// The name of a std address. `action` and the address are the context of an error.
pub(super) fn name_of_addr(action: &str, addr: &UnixAddr) -> io::Result<Name> {
    Name::from_unix(addr).map_err(|error| context(format_args!("{action} {addr:?}"), error))
}

impl OwnedDescriptor {
    /// Creates two connected sockets on the current loop.
    #[track_caller]
    pub(crate) fn pair(kind: SocketKind) -> io::Result<(OwnedDescriptor, OwnedDescriptor)> {
        let core = LoopCore::current("pair").rc();
        match core.control(Control::Pair { kind })? {
            Reply::Pair(one, other) => Ok((
                OwnedDescriptor::new(core.clone(), one),
                OwnedDescriptor::new(core, other),
            )),
            other => unreachable!("unexpected reply to a socketpair call: {other:?}"),
        }
    }

    pub(crate) fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        Ok(self.local_name()?.to_unix())
    }

    pub(crate) fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
        Ok(self.peer_name()?.to_unix())
    }

    pub(crate) fn peer_credentials(&self) -> io::Result<Credentials> {
        match self.core().control(Control::PeerCredentials { fd: self.fd() })? {
            Reply::Credentials(credentials) => Ok(credentials),
            other => unreachable!("unexpected reply for the peer credentials: {other:?}"),
        }
    }
}
