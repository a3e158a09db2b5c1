//! Where a server's connections come from.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use windlass::compat::{PollRead, PollWrite};
use windlass::net::{TcpListener, TcpStream};
use windlass::shards;

/// A stream that a [`Server`](crate::Server) can serve: all streams of windlass.
#[cfg(not(feature = "tls"))]
pub trait Stream: PollRead + PollWrite + Unpin + 'static {}
#[cfg(not(feature = "tls"))]
impl<S: PollRead + PollWrite + Unpin + 'static> Stream for S {}

/// A stream that a [`Server`](crate::Server) can serve: all streams of windlass.
#[cfg(feature = "tls")]
pub trait Stream: PollRead + PollWrite + windlass::tls::TlsTransport + Unpin + 'static {}
#[cfg(feature = "tls")]
impl<S: PollRead + PollWrite + windlass::tls::TlsTransport + Unpin + 'static> Stream for S {}

/// A source of connections for a [`Server`](crate::Server): TCP, Unix sockets, a listener of a pool of shards, or your own.
pub trait Listener {
    /// Its streams.
    type Stream: Stream;

    /// The next connection, and the address of its peer if there is one. `None` stops the server gracefully.
    ///
    /// An error does not stop the server: it calls `accept` again after a pause.
    fn accept(&mut self) -> impl Future<Output = Option<io::Result<(Self::Stream, Option<SocketAddr>)>>>;
}

/// Sends small responses at once.
fn prepare((stream, peer): (TcpStream, SocketAddr)) -> (TcpStream, Option<SocketAddr>) {
    let _ = stream.set_nodelay(true); // fails only for a connection that is gone
    (stream, Some(peer))
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> Option<io::Result<(TcpStream, Option<SocketAddr>)>> {
        Some(TcpListener::accept(self).await.map(prepare))
    }
}

/// Ends when its pool stops.
impl Listener for shards::Listener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> Option<io::Result<(TcpStream, Option<SocketAddr>)>> {
        let accepted = shards::Listener::accept(self).await.transpose()?;
        Some(accepted.map(prepare))
    }
}

#[cfg(unix)]
impl Listener for windlass::net::UnixListener {
    type Stream = windlass::net::UnixStream;

    async fn accept(&mut self) -> Option<io::Result<(windlass::net::UnixStream, Option<SocketAddr>)>> {
        Some(
            windlass::net::UnixListener::accept(self)
                .await
                .map(|accepted| (accepted.0, None)),
        )
    }
}
