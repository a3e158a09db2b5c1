//! What TLS runs over.

use std::future::Future;
use std::io;

use crate::io::{AsyncRead, AsyncWrite, BufResult, ManagedBuf};

/// A stream that TLS can run over: any that can be read from and written to through a shared reference, as
/// [`TcpStream`](crate::net::TcpStream), [`UnixStream`](crate::net::UnixStream), [`DuplexStream`](crate::io::DuplexStream)
/// and a [`TlsStream`](super::TlsStream) itself can. It is implemented for all of them; there is nothing to write.
///
/// ```
/// use windlass::tls::Carrier;
/// fn can_carry_tls<S: Carrier>() {}
/// can_carry_tls::<windlass::net::TcpStream>();
/// can_carry_tls::<windlass::io::DuplexStream>();
/// ```
pub trait TlsTransport: 'static {
    /// Receives into a buffer of the runtime's; an empty one is the end. Dropped, it loses nothing.
    #[doc(hidden)]
    fn receive(&self) -> impl Future<Output = io::Result<ManagedBuf>>;

    /// Sends all of it.
    #[doc(hidden)]
    fn send(&self, bytes: Vec<u8>) -> impl Future<Output = BufResult<(), Vec<u8>>>;

    /// Says that nothing more will be sent.
    #[doc(hidden)]
    fn end(&self) -> impl Future<Output = io::Result<()>>;
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

    async fn end(&self) -> io::Result<()> {
        AsyncWrite::shutdown(&mut &*self).await
    }
}
