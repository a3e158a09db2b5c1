//! Socket calls for Unix sockets only.

use std::io;

use super::UnixAddr;
use crate::driver::{Control, Reply};
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{Credentials, SocketKind};

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
