//! The streams that TLS runs over.

use std::future::Future;
use std::io;

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
pub trait TlsTransport: sealed::Sealed + 'static {
    /// Receives into a managed buffer; empty at EOF. Cancel-safe.
    #[doc(hidden)]
    fn receive(&self) -> impl Future<Output = io::Result<ManagedBuf>>;

    /// Sends all bytes.
    #[doc(hidden)]
    fn send(&self, bytes: Vec<u8>) -> impl Future<Output = BufResult<(), Vec<u8>>>;

    /// Shuts down the write direction.
    #[doc(hidden)]
    fn shutdown_write(&self) -> impl Future<Output = io::Result<()>>;
}

mod sealed {
    pub trait Sealed {}
    impl<S> Sealed for S where for<'a> &'a S: crate::io::AsyncRead + crate::io::AsyncWrite {}
}

impl<S: 'static> TlsTransport for S
where
    for<'a> &'a S: AsyncRead + AsyncWrite,
{
    async fn receive(&self) -> io::Result<ManagedBuf> {
        AsyncRead::read_managed(&mut &*self).await
    }

    async fn send(&self, bytes: Vec<u8>) -> BufResult<(), Vec<u8>> {
        AsyncWrite::write_all(&mut &*self, bytes).await
    }

    async fn shutdown_write(&self) -> io::Result<()> {
        AsyncWrite::shutdown(&mut &*self).await
    }
}
