//! An HTTP client with a connection pool: hyper-util's, on windlass's streams and timers.
//!
//! ```no_run
//! use http_body_util::BodyExt;
//!
//! # #[cfg(feature = "webpki-roots")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! windlass::run(async {
//!     let client = windlass_web::client::new(); // keep it: it has the pool
//!     let response = client.get("https://example.org/".parse()?).await?;
//!     println!("{} {:?}", response.status(), response.into_body().collect().await?.to_bytes());
//!     Ok(())
//! })?
//! # }
//! # #[cfg(not(feature = "webpki-roots"))]
//! # fn main() {}
//! ```
//!
//! HTTP/2 is used if an `https` server offers it, and HTTP/1.1 otherwise. For a time limit, use
//! [`windlass::time::timeout`], or [`TimeoutLayer`](crate::timeout::TimeoutLayer): a client is a tower service.
//!
//! A client is `Send`, so that axum's handlers can own one, and cheap to clone. Use it on one loop: its connections belong to
//! the loop that opened them, and a request that waits for one must stay there.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection as HyperConnection};
use tower_service::Service;
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};
use windlass::net::TcpStream;
use windlass::time::timeout;
#[cfg(feature = "tls")]
use windlass::tls::{TlsConnector, TlsStream, rustls::ClientConfig};

use windlass::compat::ThreadBound;

/// hyper-util's client: `get`, `request`, and a tower service. `B` is the body of the requests.
pub type Client<B = Full<Bytes>> = legacy::Client<Connector, B>;

/// A client for `http` and `https` with Mozilla's root certificates.
#[cfg(feature = "webpki-roots")]
pub fn new() -> Client {
    builder().build(Connector::with_webpki_roots())
}

/// A client for `http` and `https` with a configuration of rustls. If it has no ALPN protocols, HTTP/2 and HTTP/1.1 are
/// offered.
#[cfg(feature = "tls")]
pub fn with_tls(config: ClientConfig) -> Client {
    builder().build(Connector::with_tls(config))
}

/// A client for `http` alone.
pub fn plain() -> Client {
    builder().build(Connector::plain())
}

/// hyper-util's builder with windlass's executor and timers, for all other settings and bodies:
///
/// ```
/// use std::time::Duration;
/// use windlass_web::client::{self, Client, Connector};
///
/// let client: Client<String> = client::builder()
///     .pool_idle_timeout(Duration::from_secs(10))
///     .build(Connector::plain().connect_timeout(Duration::from_secs(3)));
/// ```
pub fn builder() -> legacy::Builder {
    let mut builder = legacy::Client::builder(Executor);
    builder.timer(Timer).pool_timer(Timer);
    builder
}

/// Opens connections for a [`Client`], or for any other library that connects through a tower service of `Uri`s.
#[derive(Clone)]
pub struct Connector {
    #[cfg(feature = "tls")]
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
}

impl Connector {
    /// For `http` alone.
    pub fn plain() -> Connector {
        Connector {
            #[cfg(feature = "tls")]
            tls: None,
            connect_timeout: Duration::from_secs(10),
        }
    }

    /// For `http` and `https` with a configuration of rustls. If it has no ALPN protocols, HTTP/2 and HTTP/1.1 are offered.
    #[cfg(feature = "tls")]
    pub fn with_tls(mut config: ClientConfig) -> Connector {
        if config.alpn_protocols.is_empty() {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        Connector::plain().replace_tls(config)
    }

    #[cfg(feature = "tls")]
    pub(crate) fn replace_tls(mut self, config: ClientConfig) -> Connector {
        self.tls = Some(TlsConnector::new(config));
        self
    }

    /// For `http` and `https` with Mozilla's root certificates.
    #[cfg(feature = "webpki-roots")]
    pub fn with_webpki_roots() -> Connector {
        Connector::with_tls(webpki_config())
    }

    /// The time limit for lookup, connection and TLS handshake together. The default is 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Connector {
        self.connect_timeout = limit;
        self
    }

    async fn connect(self, uri: Uri) -> io::Result<Connection> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") | None => false,
            Some(other) => return Err(invalid(format!("the scheme of {uri} is {other}, not http or https"))),
        };
        let host = uri.host().ok_or_else(|| invalid(format!("{uri} has no host")))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        #[cfg(not(feature = "tls"))]
        if is_tls {
            return Err(invalid(format!("{uri} needs the feature `tls` of windlass-web")));
        }
        #[cfg(feature = "tls")]
        let tls = match (is_tls, &self.tls) {
            (true, None) => return Err(invalid(format!("{uri} needs a connector with TLS"))),
            (true, tls) => tls.as_ref(),
            (false, _) => None,
        };
        let connect = async {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            #[cfg(feature = "tls")]
            if let Some(tls) = tls {
                let stream = tls.connect(host, stream).await?;
                let is_h2 = stream.alpn_protocol().is_some_and(|protocol| protocol == b"h2");
                return Ok(Connection {
                    transport: Transport::Tls(Bridge::new(stream).into_send()),
                    is_h2,
                });
            }
            Ok(Connection {
                transport: Transport::Tcp(Bridge::new(stream).into_send()),
                is_h2: false,
            })
        };
        match timeout(self.connect_timeout, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection to {host}:{port} within {:?}", self.connect_timeout),
            )),
        }
    }
}

#[cfg(feature = "webpki-roots")]
pub(crate) fn webpki_config() -> ClientConfig {
    use windlass::tls::rustls::{RootCertStore, crypto::ring};
    // By name: a process in which another crate turns on a second provider of rustls has no default.
    ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS")
        .with_root_certificates(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        })
        .with_no_client_auth()
}

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = io::Error;
    type Future = ThreadBound<Pin<Box<dyn Future<Output = io::Result<Connection>>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        ThreadBound::new(Box::pin(self.clone().connect(uri)))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// A connection of a [`Connector`].
pub struct Connection {
    transport: Transport,
    is_h2: bool,
}

enum Transport {
    Tcp(ThreadBound<Bridge<TcpStream>>),
    #[cfg(feature = "tls")]
    Tls(ThreadBound<Bridge<TlsStream<TcpStream>>>),
}

/// Calls a method of the transport.
macro_rules! forward {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut $self.get_mut().transport {
            Transport::Tcp($stream) => $call,
            #[cfg(feature = "tls")]
            Transport::Tls($stream) => $call,
        }
    };
}

impl HyperConnection for Connection {
    fn connected(&self) -> Connected {
        match self.is_h2 {
            true => Connected::new().negotiated_h2(),
            false => Connected::new(),
        }
    }
}

impl Read for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl Write for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true // as every bridge
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("is_h2", &self.is_h2)
            .finish_non_exhaustive()
    }
}
