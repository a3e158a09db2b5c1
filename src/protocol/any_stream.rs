//! The byte stream under a transport or a reader/writer pair: TCP, Unix or pipe.

use std::io;
use std::net::{Shutdown, SocketAddr};

use crate::inflight::stream::ByteStream;
use crate::io::payload::Piece;
use crate::io::pipe::Sender;
use crate::io::write_buffer::SendTarget;
use crate::io::{BufResult, ManagedBuf};
#[cfg(unix)]
use crate::net::unix::UnixAddr;
use crate::net::unix::UnixStream;
use crate::net::{Connection, TcpStream, inet};
use crate::sys::{Medium, Name};

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

/// An address.
pub(crate) struct StreamAddr {
    medium: Medium,
    /// `None` if the connection was already closed when the address was queried.
    name: Option<Name>,
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
        let (socket, medium) = (&self.bytes().owned, self.bytes().medium());
        let addr = |name: io::Result<Name>| StreamAddr {
            medium,
            name: name.ok(),
        };
        StreamAddrs {
            local: addr(socket.local_name()),
            peer: addr(socket.peer_name()),
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
        inet(self.of(Medium::Tcp)?)
    }

    #[cfg(unix)]
    pub(super) fn unix(&self) -> io::Result<UnixAddr> {
        Ok(self.of(Medium::Unix)?.to_unix())
    }

    /// The address of a connection of this kind.
    fn of(&self, medium: Medium) -> io::Result<&Name> {
        if self.medium != medium {
            let message = "the connection has no address of this family";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        self.name.as_ref().ok_or_else(|| {
            let message = "the connection was closed before its address was queried";
            io::Error::new(io::ErrorKind::NotConnected, message)
        })
    }
}
