//! Where a socket is: an internet address.

use std::fmt;
use std::net::SocketAddr;

use socket2::SockAddr;
use windows_sys::Win32::Networking::WinSock::SOCKADDR;
#[cfg(feature = "proactor")]
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};

/// A socket's address, as the kernel wants it.
#[derive(Clone)]
pub struct Name(SockAddr);

impl Name {
    /// The internet address, if it is one.
    pub fn as_socket(&self) -> Option<SocketAddr> {
        self.0.as_socket()
    }

    /// The address that stands for any, of the same family.
    #[cfg(feature = "proactor")]
    pub(crate) fn anywhere_like(&self) -> Option<Name> {
        match self.0.family() {
            AF_INET => Some(SocketAddr::from(([0, 0, 0, 0], 0)).into()),
            AF_INET6 => Some(SocketAddr::from(([0u16; 8], 0)).into()),
            _ => None,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const SOCKADDR {
        self.0.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> i32 {
        self.0.len()
    }

    pub(super) fn inner(&self) -> &SockAddr {
        &self.0
    }
}

impl From<SocketAddr> for Name {
    fn from(addr: SocketAddr) -> Name {
        Name(addr.into())
    }
}

impl From<SockAddr> for Name {
    fn from(addr: SockAddr) -> Name {
        Name(addr)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_socket() {
            Some(addr) => addr.fmt(f),
            None => f.write_str("(unnamed)"),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}
