//! The byte stream under a transport or a reader/writer pair: TCP, Unix or pipe.

use std::io;
use std::net::{Shutdown, SocketAddr};

use crate::inflight::stream::ByteStream;
use crate::io::pipe::Sender;
use crate::io::{BufResult, IoBuf, ManagedBuf};
use crate::net::TcpStream;
use crate::net::unix::{UnixAddr, UnixStream};

pub(crate) enum AnyStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Write direction only.
    Pipe(Sender),
}

/// The addresses of both ends, cached so that they outlive the connection.
#[derive(Debug, Clone)]
pub(crate) enum StreamAddrs {
    Inet {
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    },
    #[cfg_attr(not(unix), allow(dead_code, reason = "Unix sockets only"))]
    Unix {
        local: Option<UnixAddr>,
        peer: Option<UnixAddr>,
    },
    None,
}

impl AnyStream {
    /// Sets `TCP_NODELAY`, as asyncio does: the write buffer has already coalesced small writes.
    pub(crate) fn tcp(stream: TcpStream) -> AnyStream {
        // This fails on a connection that has just been reset; the next read reports the reset.
        let _ = stream.set_nodelay(true);
        AnyStream::Tcp(stream)
    }

    fn bytes(&self) -> &ByteStream {
        match self {
            AnyStream::Tcp(stream) => stream.bytes(),
            AnyStream::Unix(stream) => stream.bytes(),
            AnyStream::Pipe(pipe) => pipe.bytes(),
        }
    }

    pub(crate) fn addrs(&self) -> StreamAddrs {
        match self {
            AnyStream::Tcp(stream) => StreamAddrs::Inet {
                local: stream.local_addr().ok(),
                peer: stream.peer_addr().ok(),
            },
            AnyStream::Unix(stream) => StreamAddrs::Unix {
                local: stream.local_addr().ok(),
                peer: stream.peer_addr().ok(),
            },
            AnyStream::Pipe(_) => StreamAddrs::None,
        }
    }

    /// An empty buffer is EOF. Cancel-safe.
    pub(crate) async fn receive(&self) -> io::Result<ManagedBuf> {
        self.bytes().read_managed().await
    }

    pub(crate) async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.bytes().write(buf).await
    }

    pub(crate) async fn send_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.bytes().write_vectored(bufs).await
    }

    /// Shuts down the write direction. A pipe has none to shut down: its caller closes it.
    pub(crate) async fn shutdown_write(&self) -> io::Result<()> {
        match self {
            AnyStream::Tcp(_) | AnyStream::Unix(_) => self.bytes().shutdown(Shutdown::Write).await,
            AnyStream::Pipe(_) => Ok(()),
        }
    }

    /// Makes the later close send a reset.
    pub(crate) fn reset_on_close(&self) {
        self.bytes().owned.descriptor.ends_with_reset.set(true);
    }
}

impl StreamAddrs {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            StreamAddrs::Inet { local, .. } => local.ok_or_else(gone),
            StreamAddrs::Unix { .. } | StreamAddrs::None => Err(other_family()),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            StreamAddrs::Inet { peer, .. } => peer.ok_or_else(gone),
            StreamAddrs::Unix { .. } | StreamAddrs::None => Err(other_family()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        match self {
            StreamAddrs::Unix { local, .. } => local.clone().ok_or_else(gone),
            StreamAddrs::Inet { .. } | StreamAddrs::None => Err(other_family()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
        match self {
            StreamAddrs::Unix { peer, .. } => peer.clone().ok_or_else(gone),
            StreamAddrs::Inet { .. } | StreamAddrs::None => Err(other_family()),
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
