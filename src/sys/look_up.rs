//! Name lookup with the system's resolver.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// The host's name, without a port. Never a literal address: those need no lookup.
    pub host: String,
    /// The port of the returned addresses.
    pub port: u16,
}

/// The outcome of a lookup: the addresses in the order in which to try them, or the resolver's error, which has no error
/// code on most systems.
pub type LookUpResult = io::Result<Vec<SocketAddr>>;

/// Looks a name up, and blocks until the resolver has answered.
pub(crate) fn look_up(query: &LookUp) -> LookUpResult {
    Ok((query.host.as_str(), query.port).to_socket_addrs()?.collect())
}
