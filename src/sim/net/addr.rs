//! Addresses of sockets: internet addresses and names of Unix sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use crate::sys::Name;

/// A socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Addr {
    Inet(SocketAddr),
    /// A Unix socket's name, in the kernel's format; `None` if it has none.
    Unix(Option<Rc<[u8]>>),
}

impl Addr {
    pub(super) fn to_name(&self) -> Name {
        match self {
            Addr::Inet(addr) => Name::from(*addr),
            Addr::Unix(name) => {
                let bytes = name.as_deref().unwrap_or_default();
                Name::from_bytes(bytes).expect("it was a name before")
            }
        }
    }

    pub(super) fn inet(&self) -> Option<SocketAddr> {
        match self {
            Addr::Inet(addr) => Some(*addr),
            Addr::Unix(_) => None,
        }
    }
}

/// The loopback address of this address's family.
pub(super) fn loopback_like(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// An IPv4 address in an IPv6 socket's notation, where `socket` is an IPv6 address.
pub(super) fn as_seen_by(socket: SocketAddr, addr: SocketAddr) -> SocketAddr {
    match (socket, addr) {
        (SocketAddr::V6(_), SocketAddr::V4(v4)) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        _ => addr,
    }
}

/// The IPv4 address that an IPv4-mapped IPv6 address stands for; any other address unchanged.
pub(super) fn unmapped(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
