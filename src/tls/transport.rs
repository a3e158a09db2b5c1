//! The streams that TLS runs over.

use std::future::Future;
use std::io;

use crate::io::payload::Piece;
use crate::io::write_buffer::SendTarget;
use crate::io::{AsyncRead, AsyncWrite, BufResult, ManagedBuf};

/// A stream that TLS can run over: any that implements [`AsyncRead`] and [`AsyncWrite`] for a shared reference, such as
/// [`TcpStream`](crate::net::TcpStream), [`UnixStream`](crate::net::UnixStream),
/// [`DuplexStream`](crate::io::DuplexStream) and [`TlsStream`](super::TlsStream) itself. The implementation is
/// automatic.
///
/// ```
/// use windlass::tls::TlsTransport;
/// fn can_carry_tls<S: TlsTransport>() {}
/// can_carry_tls::<windlass::net::TcpStream>();
/// can_carry_tls::<windlass::io::DuplexStream>();
/// ```
#[allow(private_bounds, reason = "sealed: the blanket implementation is the only one")]
pub trait TlsTransport: SendTarget + 'static {
    /// Receives into a managed buffer; empty at EOF. Cancel-safe.
    #[doc(hidden)]
    fn receive(&self) -> impl Future<Output = io::Result<ManagedBuf>>;
}

impl<S: 'static> TlsTransport for S
where
    for<'a> &'a S: AsyncRead + AsyncWrite,
{
    async fn receive(&self) -> io::Result<ManagedBuf> {
        AsyncRead::read_managed(&mut &*self).await
    }
}

impl<S> SendTarget for S
where
    for<'a> &'a S: AsyncRead + AsyncWrite,
{
    async fn send(&self, piece: Piece) -> BufResult<usize, Piece> {
        let len = piece.left();
        let (result, piece) = AsyncWrite::write_all(&mut &*self, piece).await;
        (result.map(|()| len), piece)
    }

    async fn send_vectored(&self, pieces: Vec<Piece>) -> BufResult<usize, Vec<Piece>> {
        let len = pieces.iter().map(Piece::left).sum();
        let (result, pieces) = AsyncWrite::write_all_vectored(&mut &*self, pieces).await;
        (result.map(|()| len), pieces)
    }

    async fn send_eof(&self) -> io::Result<()> {
        AsyncWrite::shutdown(&mut &*self).await
    }
}
