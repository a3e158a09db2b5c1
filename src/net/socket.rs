//! What is asked of a socket between reads and writes: names, options, ends.

use std::io;
use std::net::{Shutdown, SocketAddr};

use crate::descriptor::OwnedDescriptor;
use crate::driver::{Control, Reply};

impl OwnedDescriptor {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.addr(Control::LocalAddr { fd: self.fd() })
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.addr(Control::PeerAddr { fd: self.fd() })
    }

    fn addr(&self, call: Control) -> io::Result<SocketAddr> {
        match self.core().control(call)? {
            Reply::Addr(addr) => Ok(addr),
            other => unreachable!("{call:?} answered {other:?}"),
        }
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        let call = Control::Nodelay { fd: self.fd() };
        match self.core().control(call)? {
            Reply::Flag(on) => Ok(on),
            other => unreachable!("{call:?} answered {other:?}"),
        }
    }

    pub(crate) fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.core().control(Control::SetNodelay { fd: self.fd(), on })?;
        Ok(())
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core().control(Control::Shutdown { fd: self.fd(), how })?;
        Ok(())
    }
}
