//! What is asked of Unix sockets alone.

use std::io;

use super::UnixAddr;
use crate::descriptor::OwnedDescriptor;
use crate::driver::{Control, Reply};
use crate::loop_core::LoopCore;
use crate::net::options::{Credentials, SocketKind};

impl OwnedDescriptor {
    /// Makes two that are connected to each other, on the current loop.
    #[track_caller]
    pub(crate) fn pair(kind: SocketKind) -> io::Result<(OwnedDescriptor, OwnedDescriptor)> {
        let core = LoopCore::current("pair").rc();
        match core.control(Control::Pair { kind })? {
            Reply::Pair(one, other) => Ok((
                OwnedDescriptor::new(core.clone(), one),
                OwnedDescriptor::new(core, other),
            )),
            other => unreachable!("a pair is {other:?}"),
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
            other => unreachable!("credentials are {other:?}"),
        }
    }
}
