//! hickory's runtime interface: TCP connections, timers, tasks. [`udp`](super::udp) has the sockets.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_io::{AsyncRead, AsyncWrite};
use hickory_resolver::net::runtime::{DnsTcpStream, RuntimeProvider, Spawn, Time};
use windlass::compat::{Bridge, ThreadBound};
use windlass::net::TcpStream;

use crate::udp::UdpSocket;

/// How long a TCP connection to a name server may take, unless hickory sets a limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

type BoxFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// hickory's [`RuntimeProvider`] for the current loop: a plain value, for everything in hickory that is generic over it.
///
/// ```
/// use windlass_hickory::Provider;
/// use windlass_hickory::hickory_resolver::{Resolver, config::{GOOGLE, ResolverConfig}};
///
/// windlass::run(async {
///     let resolver = Resolver::builder_with_config(ResolverConfig::udp_and_tcp(&GOOGLE), Provider).build();
///     assert!(resolver.is_ok());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// What hickory starts with it panics outside of a loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Provider;

impl RuntimeProvider for Provider {
    type Handle = Spawner;
    type Timer = Timer;
    type Udp = UdpSocket;
    type Tcp = TcpConnection;

    fn create_handle(&self) -> Spawner {
        Spawner
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> BoxFuture<TcpConnection> {
        Box::pin(async move {
            let mut builder = TcpStream::builder().nodelay(true);
            if let Some(local) = local {
                builder = builder.local(local);
            }
            let connecting = ThreadBound::future(builder.connect(server));
            let connected = Timer::within(limit.unwrap_or(CONNECT_TIMEOUT), connecting).await;
            let stream = connected.unwrap_or_else(|| {
                let message = format!("connect to the name server {server}: timed out");
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            })?;
            Ok(TcpConnection(Bridge::new(stream).into_send()))
        })
    }

    fn bind_udp(&self, local: SocketAddr, _server: SocketAddr) -> BoxFuture<UdpSocket> {
        Box::pin(async move { ThreadBound::future(UdpSocket::bind(local)).await })
    }
}

/// Spawns hickory's background tasks, one for each TCP connection to a name server, on the current loop. They end when hickory
/// drops the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spawner;

impl Spawn for Spawner {
    fn spawn_bg(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        windlass::spawn(future).detach();
    }
}

/// Delays and timeouts by the current loop's timers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl Timer {
    /// The future's output, or `None` after `limit`.
    async fn within<F: Future + Send>(limit: Duration, future: F) -> Option<F::Output> {
        windlass::time::timeout(limit, future).await.ok()
    }
}

#[async_trait]
impl Time for Timer {
    async fn delay_for(duration: Duration) {
        windlass::time::sleep(duration).await;
    }

    async fn timeout<F: Future + Send + 'static>(duration: Duration, future: F) -> io::Result<F::Output> {
        let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "future timed out");
        Timer::within(duration, future).await.ok_or_else(timed_out)
    }
}

/// A TCP connection to a name server.
pub struct TcpConnection(ThreadBound<Bridge<TcpStream>>);

impl DnsTcpStream for TcpConnection {
    type Time = Timer;
}

impl AsyncRead for TcpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TcpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}

impl fmt::Debug for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpConnection").finish_non_exhaustive()
    }
}
