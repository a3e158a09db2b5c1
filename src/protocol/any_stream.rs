//! The byte stream under a transport or a reader/writer pair: TCP, Unix or pipe.

use std::io;
use std::net::{Shutdown, SocketAddr};

use crate::inflight::stream::ByteStream;
use crate::io::payload::Piece;
use crate::io::pipe::Sender;
use crate::io::write_buffer::SendTarget;
use crate::io::{BufResult, ManagedBuf};
use crate::net::TcpStream;
use crate::net::unix::{UnixAddr, UnixStream};

pub(crate) enum AnyStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Write direction only.
    Pipe(Sender),
}

/// The addresses of both ends, cached so that they outlive the connection.
pub(crate) struct StreamAddrs {
    pub(super) local: StreamAddr,
    pub(super) peer: StreamAddr,
}

/// An address. The inner `None` means that the connection was already closed when the address was queried.
pub(crate) enum StreamAddr {
    Inet(Option<SocketAddr>),
    #[cfg_attr(not(unix), allow(dead_code, reason = "Unix sockets only"))]
    Unix(Option<UnixAddr>),
    None,
}

impl From<TcpStream> for AnyStream {
    /// Sets `TCP_NODELAY`, as asyncio does: the write buffer has already coalesced small writes.
    fn from(stream: TcpStream) -> AnyStream {
        // This fails on a connection that has just been reset; the next read reports the reset.
        let _ = stream.set_nodelay(true);
        AnyStream::Tcp(stream)
    }
}

impl From<UnixStream> for AnyStream {
    fn from(stream: UnixStream) -> AnyStream {
        AnyStream::Unix(stream)
    }
}

impl AnyStream {
    fn bytes(&self) -> &ByteStream {
        match self {
            AnyStream::Tcp(stream) => stream.bytes(),
            AnyStream::Unix(stream) => stream.bytes(),
            AnyStream::Pipe(pipe) => pipe.bytes(),
        }
    }

    pub(crate) fn addrs(&self) -> StreamAddrs {
        match self {
            AnyStream::Tcp(stream) => StreamAddrs {
                local: StreamAddr::Inet(stream.local_addr().ok()),
                peer: StreamAddr::Inet(stream.peer_addr().ok()),
            },
            AnyStream::Unix(stream) => StreamAddrs {
                local: StreamAddr::Unix(stream.local_addr().ok()),
                peer: StreamAddr::Unix(stream.peer_addr().ok()),
            },
            AnyStream::Pipe(_) => StreamAddrs {
                local: StreamAddr::None,
                peer: StreamAddr::None,
            },
        }
    }

    /// An empty buffer means EOF. Cancel-safe.
    pub(crate) async fn receive(&self) -> io::Result<ManagedBuf> {
        self.bytes().read_managed().await
    }

    /// Makes closing the stream send a RST.
    pub(crate) fn reset_on_close(&self) {
        self.bytes().owned.descriptor.ends_with_reset.set(true);
    }
}

impl SendTarget for AnyStream {
    async fn send(&self, piece: Piece) -> BufResult<usize, Piece> {
        self.bytes().write(piece).await
    }

    async fn send_vectored(&self, pieces: Vec<Piece>) -> BufResult<usize, Vec<Piece>> {
        self.bytes().write_vectored(pieces).await
    }

    /// Shuts down the write side of a socket. For a pipe this does nothing: its owner closes it.
    async fn send_eof(&self) -> io::Result<()> {
        match self {
            AnyStream::Tcp(_) | AnyStream::Unix(_) => self.bytes().shutdown(Shutdown::Write).await,
            AnyStream::Pipe(_) => Ok(()),
        }
    }
}

impl StreamAddr {
    pub(super) fn inet(&self) -> io::Result<SocketAddr> {
        match self {
            StreamAddr::Inet(addr) => addr.ok_or_else(gone),
            StreamAddr::Unix(_) | StreamAddr::None => Err(other_family()),
        }
    }

    #[cfg(unix)]
    pub(super) fn unix(&self) -> io::Result<UnixAddr> {
        match self {
            StreamAddr::Unix(addr) => addr.clone().ok_or_else(gone),
            StreamAddr::Inet(_) | StreamAddr::None => Err(other_family()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the connection was closed before its address was queried",
    )
}

fn other_family() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the connection has no address of this family",
    )
}
