//! The byte stream under a transport or a pair of reader and writer, of whatever family.

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
    /// One direction only.
    Pipe(Sender),
}

/// The addresses of a connection's two ends, known for as long as anybody asks.
#[derive(Debug, Clone)]
pub(crate) enum Ends {
    Inet {
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    },
    #[cfg_attr(not(unix), allow(dead_code, reason = "nobody has one"))]
    Unix {
        local: Option<UnixAddr>,
        peer: Option<UnixAddr>,
    },
    None,
}

impl AnyStream {
    /// As asyncio does, small writes leave at once: what can be joined has been joined already.
    pub(crate) fn tcp(stream: TcpStream) -> AnyStream {
        // A connection that was reset meanwhile refuses, and tells so when it is read.
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

    pub(crate) fn ends(&self) -> Ends {
        match self {
            AnyStream::Tcp(stream) => Ends::Inet {
                local: stream.local_addr().ok(),
                peer: stream.peer_addr().ok(),
            },
            AnyStream::Unix(stream) => Ends::Unix {
                local: stream.local_addr().ok(),
                peer: stream.peer_addr().ok(),
            },
            AnyStream::Pipe(_) => Ends::None,
        }
    }

    /// An empty buffer is the end. Dropping the future loses nothing.
    pub(crate) async fn receive(&self) -> io::Result<ManagedBuf> {
        self.bytes().read_managed().await
    }

    pub(crate) async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.bytes().write(buf).await
    }

    pub(crate) async fn send_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.bytes().write_vectored(bufs).await
    }

    /// The peer sees the end; receiving goes on. A pipe has to be closed for that.
    pub(crate) async fn end(&self) -> io::Result<()> {
        match self {
            AnyStream::Tcp(_) | AnyStream::Unix(_) => self.bytes().shutdown(Shutdown::Write).await,
            AnyStream::Pipe(_) => Ok(()),
        }
    }

    /// When it closes, the peer is told that something was lost.
    pub(crate) fn end_with_reset(&self) {
        self.bytes().owned.descriptor.ends_with_reset.set(true);
    }
}

impl Ends {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Ends::Inet { local, .. } => local.ok_or_else(gone),
            Ends::Unix { .. } | Ends::None => Err(other_family()),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Ends::Inet { peer, .. } => peer.ok_or_else(gone),
            Ends::Unix { .. } | Ends::None => Err(other_family()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        match self {
            Ends::Unix { local, .. } => local.clone().ok_or_else(gone),
            Ends::Inet { .. } | Ends::None => Err(other_family()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
        match self {
            Ends::Unix { peer, .. } => peer.clone().ok_or_else(gone),
            Ends::Inet { .. } | Ends::None => Err(other_family()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the connection was gone before its address could be asked for",
    )
}

fn other_family() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the connection has no address of this family",
    )
}
