//! Endpoints on the current loop.

use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig};

use crate::runtime::Runtime;

/// An endpoint that accepts connections at an address, on the current loop. Port 0 lets the system choose one. It can also
/// connect, once it has a [client configuration](Endpoint::set_default_client_config).
///
/// An address is expected: a name would be looked up on the loop's thread.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn server(addr: impl ToSocketAddrs, config: ServerConfig) -> io::Result<Endpoint> {
    endpoint(EndpointConfig::default(), Some(config), UdpSocket::bind(addr)?)
}

/// An endpoint that connects from an address, usually `"0.0.0.0:0"` or `"[::]:0"`, on the current loop.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn client(addr: impl ToSocketAddrs, config: ClientConfig) -> io::Result<Endpoint> {
    let mut endpoint = endpoint(EndpointConfig::default(), None, UdpSocket::bind(addr)?)?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

#[track_caller]
pub(crate) fn endpoint(
    config: EndpointConfig,
    server: Option<ServerConfig>,
    socket: UdpSocket,
) -> io::Result<Endpoint> {
    Endpoint::new(config, server, socket, Arc::new(Runtime::new()))
}
