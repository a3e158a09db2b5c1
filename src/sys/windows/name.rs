//! Where a socket is: an internet address.

use std::fmt;
use std::net::SocketAddr;

use socket2::SockAddr;
use windows_sys::Win32::Networking::WinSock::SOCKADDR;
#[cfg(feature = "proactor")]
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};

/// A socket's address, as the kernel wants it.
///
/// Made from a [`SocketAddr`] with `Name::from`, or from the OS's own form with [`from_bytes`](Name::from_bytes).
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

    /// The address as the OS lays it out (a `sockaddr`), for a driver that hands it to a system call.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the address is borrowed, and has this many bytes, all initialised.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() as usize) }
    }

    /// The reverse of [`as_bytes`](Name::as_bytes). `None` if there are more bytes than any address has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Name> {
        let copy = |storage: *mut socket2::SockAddrStorage, len: *mut i32| {
            if bytes.len() > size_of::<socket2::SockAddrStorage>() {
                return Err(std::io::ErrorKind::InvalidInput.into());
            }
            // SAFETY: the storage has room for the bytes, as just asked, and both places are ours to write.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), storage.cast::<u8>(), bytes.len());
                len.write(bytes.len() as i32);
            }
            Ok(())
        };
        // SAFETY: `copy` has filled as many bytes as it says; the others are zero.
        let made: std::io::Result<((), SockAddr)> = unsafe { SockAddr::try_init(copy) };
        made.ok().map(|((), addr)| Name(addr))
    }

    pub(crate) fn as_ptr(&self) -> *const SOCKADDR {
        self.0.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> i32 {
        self.0.len()
    }

    pub(in crate::sys) fn inner(&self) -> &SockAddr {
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
