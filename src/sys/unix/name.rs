//! The names of Unix sockets: paths and abstract names.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::path::Path;

use socket2::SockAddr;

use crate::sys::Name;

impl Name {
    /// The address of a Unix socket at a path. On Linux, a path that starts with NUL is an abstract name.
    pub fn from_path(path: &Path) -> io::Result<Name> {
        let bytes = path.as_os_str().as_bytes();
        let bare = bytes.strip_prefix(b"\0").filter(|_| HAS_ABSTRACT).unwrap_or(bytes);
        // An abstract name may contain any byte.
        let has_nul = bare.len() == bytes.len() && bytes.contains(&0);
        if bytes.is_empty() || has_nul {
            let why = "a socket path must not be empty or contain a NUL byte";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let longest = size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path) - 1;
        SockAddr::unix(path).map(Name).map_err(|_| {
            let why = format!("a socket path of {} bytes exceeds the limit of {longest}", bytes.len());
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })
    }

    /// Converts std's address of a Unix socket. An error if it is unnamed.
    pub fn from_unix(addr: &UnixAddr) -> io::Result<Name> {
        match (addr.as_pathname(), abstract_name(addr)) {
            (Some(path), _) => Name::from_path(path),
            (None, Some(name)) => Name::from_path(Path::new(OsStr::from_bytes(&[b"\0", name].concat()))),
            (None, None) => Err(io::Error::new(io::ErrorKind::InvalidInput, "the address is unnamed")),
        }
    }

    /// Converts to std's address of a Unix socket: an unnamed one if this has no name or is an internet address.
    pub fn to_unix(&self) -> UnixAddr {
        let unnamed = || UnixAddr::from_pathname("").expect("an empty path is no name");
        if let Some(path) = self.0.as_pathname() {
            return UnixAddr::from_pathname(path).unwrap_or_else(|_| unnamed());
        }
        match self.0.as_abstract_namespace() {
            Some(name) => from_abstract(name).unwrap_or_else(unnamed),
            None => unnamed(),
        }
    }
}

/// A Unix socket's path, or its abstract name with a leading `@`.
pub(crate) fn unix_name(addr: &SockAddr) -> Option<String> {
    match (addr.as_pathname(), addr.as_abstract_namespace()) {
        (Some(path), _) => Some(path.display().to_string()),
        (None, Some(name)) => Some(format!("@{}", String::from_utf8_lossy(name))),
        (None, None) => None,
    }
}

/// Only Linux has abstract names: names outside of the file system.
const HAS_ABSTRACT: bool = cfg!(any(target_os = "linux", target_os = "android"));

#[cfg(target_os = "linux")]
fn abstract_name(addr: &UnixAddr) -> Option<&[u8]> {
    std::os::linux::net::SocketAddrExt::as_abstract_name(addr)
}

#[cfg(target_os = "linux")]
fn from_abstract(name: &[u8]) -> Option<UnixAddr> {
    <UnixAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name).ok()
}

#[cfg(not(target_os = "linux"))]
fn abstract_name(_addr: &UnixAddr) -> Option<&[u8]> {
    None
}

#[cfg(not(target_os = "linux"))]
fn from_abstract(_name: &[u8]) -> Option<UnixAddr> {
    None
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn names_come_back_as_they_were() {
        let path = Name::from_path(Path::new("/run/some.sock")).unwrap();
        assert_eq!(path.to_unix().as_pathname(), Some(Path::new("/run/some.sock")));
        assert_eq!(path.to_string(), "/run/some.sock");
        let inet = SocketAddr::from(([127, 0, 0, 1], 80));
        assert_eq!(Name::from(inet).as_socket(), Some(inet));
        assert_eq!(path.as_socket(), None);
        if HAS_ABSTRACT {
            let name = Name::from_path(Path::new("\0somewhere")).unwrap();
            assert_eq!(name.to_string(), "@somewhere");
            assert_eq!(Name::from_unix(&name.to_unix()).unwrap().to_string(), "@somewhere");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in ["", "a\0b", &"x".repeat(200)] {
            let error = Name::from_path(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }
}
