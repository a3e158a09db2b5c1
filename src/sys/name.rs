//! Socket addresses in the kernel's format. Paths and abstract names, which only Unix has, are in `unix/name.rs`.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use socket2::{SockAddr, SockAddrStorage};

use super::{RawSockAddr, SockLen, unix_name};

/// A socket's address in the kernel's format.
///
/// Create it from a [`SocketAddr`] with `Name::from`, or from a `sockaddr` with [`from_bytes`](Name::from_bytes).
#[derive(Clone)]
pub struct Name(pub(super) SockAddr);

impl Name {
    /// The address, if it is an internet address.
    pub fn as_socket(&self) -> Option<SocketAddr> {
        self.0.as_socket()
    }

    /// The address as the OS's `sockaddr`, for a driver that passes it to a system call.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the address is borrowed and has this many bytes, all of them initialized.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() as usize) }
    }

    /// The reverse of [`as_bytes`](Name::as_bytes). `None` if there are more bytes than an address can have.
    pub fn from_bytes(bytes: &[u8]) -> Option<Name> {
        if bytes.len() > size_of::<SockAddrStorage>() {
            return None;
        }
        let copy = |storage: *mut SockAddrStorage, len: *mut SockLen| {
            // SAFETY: the bytes fit into the storage, as checked above, and both pointers are valid for writes.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), storage.cast::<u8>(), bytes.len());
                len.write(bytes.len() as SockLen);
            }
            io::Result::Ok(())
        };
        // SAFETY: `copy` sets the length to the number of bytes that it wrote; the others are zero.
        unsafe { SockAddr::try_init(copy) }.ok().map(|((), addr)| Name(addr))
    }

    pub(crate) fn as_ptr(&self) -> *const RawSockAddr {
        self.0.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> SockLen {
        self.0.len()
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
        match (self.as_socket(), unix_name(&self.0)) {
            (Some(addr), _) => addr.fmt(f),
            (None, Some(name)) => f.pad(&name),
            (None, None) => f.write_str("(unnamed)"),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}
