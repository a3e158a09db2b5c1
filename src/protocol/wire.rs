//! The byte stream under a transport or a pair of reader and writer, of whatever family.

use std::io;
use std::net::{Shutdown, SocketAddr};

use crate::io::{BufResult, IoBuf, ManagedBuf};
use crate::net::TcpStream;

pub(crate) enum Wire {
    Tcp(TcpStream),
}

/// The addresses of a connection's two ends, known for as long as anybody asks.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
}

impl Wire {
    /// As asyncio does, small writes leave at once: what can be joined has been joined already.
    pub(crate) fn tcp(stream: TcpStream) -> Wire {
        // A connection that was reset meanwhile refuses, and tells so when it is read.
        let _ = stream.set_nodelay(true);
        Wire::Tcp(stream)
    }

    pub(crate) fn ends(&self) -> Ends {
        match self {
            Wire::Tcp(stream) => Ends {
                local: stream.local_addr().ok(),
                peer: stream.peer_addr().ok(),
            },
        }
    }

    /// An empty buffer is the end. Dropping the future loses nothing.
    pub(crate) async fn receive(&self) -> io::Result<ManagedBuf> {
        match self {
            Wire::Tcp(stream) => stream.read_managed().await,
        }
    }

    pub(crate) async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        match self {
            Wire::Tcp(stream) => stream.write(buf).await,
        }
    }

    pub(crate) async fn send_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        match self {
            Wire::Tcp(stream) => stream.write_vectored(bufs).await,
        }
    }

    /// The peer sees the end; receiving goes on.
    pub(crate) async fn end(&self) -> io::Result<()> {
        match self {
            Wire::Tcp(stream) => stream.shutdown(Shutdown::Write).await,
        }
    }

    /// When it closes, the peer is told that something was lost.
    pub(crate) fn end_with_reset(&self) {
        match self {
            Wire::Tcp(stream) => stream.socket().descriptor.ends_with_reset.set(true),
        }
    }
}

impl Ends {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local.ok_or_else(no_address)
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.peer.ok_or_else(no_address)
    }
}

fn no_address() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the connection was gone before its address could be asked for",
    )
}
