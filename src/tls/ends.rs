//! Who begins, and who is called: the two ways into a stream.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::error::told;
use super::stream::TlsStream;
use super::transport::TlsTransport;

/// Makes TLS connections to servers.
///
/// The configuration is rustls' own, so what it can do can be done: roots, client certificates, ALPN, resumption. Connections
/// of one connector share its store of sessions; a second one to the same server is resumed if the server has it.
///
/// ```no_run
/// use windlass::net::TcpStream;
/// use windlass::tls::TlsConnector;
/// use windlass::tls::rustls::{ClientConfig, RootCertStore, pki_types::{CertificateDer, pem::PemObject}};
///
/// # windlass::run(async {
/// let mut roots = RootCertStore::empty();
/// for certificate in CertificateDer::pem_file_iter("/etc/ssl/certs/ca-certificates.crt")? {
///     roots.add(certificate?)?;
/// }
/// let connector = TlsConnector::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
/// let stream = connector.connect("example.org", TcpStream::connect("example.org:443").await?).await?;
/// # drop(stream);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?.unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct TlsConnector {
    config: Arc<ClientConfig>,
}

impl TlsConnector {
    /// With a configuration, or with a share of one.
    pub fn new(config: impl Into<Arc<ClientConfig>>) -> TlsConnector {
        TlsConnector { config: config.into() }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Shakes hands over a stream with a server that must have a certificate for `name`: a host name or an address.
    ///
    /// A server that cannot prove who it is, is an `InvalidData` error that says why: see [`TlsError`](super::TlsError).
    ///
    /// Cancel: the stream is dropped, and with it the connection. To bound the time, put it into a
    /// [`timeout`](crate::time::timeout).
    pub async fn connect<'n, N, S>(&self, name: N, stream: S) -> io::Result<TlsStream<S>>
    where
        N: TryInto<ServerName<'n>, Error: fmt::Display>,
        S: TlsTransport,
    {
        let name = name.try_into().map_err(|error| {
            let message = format!("the server's name: {error}; give a host name without port, or an address");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        let session = ClientConnection::new(self.config.clone(), name.to_owned()).map_err(told)?;
        TlsStream::shake_hands(stream, Connection::Client(session)).await
    }
}

impl From<Arc<ClientConfig>> for TlsConnector {
    fn from(config: Arc<ClientConfig>) -> TlsConnector {
        TlsConnector { config }
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").finish_non_exhaustive()
    }
}

/// Makes TLS connections of what a listener accepts.
///
/// ```no_run
/// use std::time::Duration;
/// use windlass::net::TcpListener;
/// use windlass::time::timeout;
/// use windlass::tls::TlsAcceptor;
/// use windlass::tls::rustls::{ServerConfig, pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject}};
///
/// # windlass::run(async {
/// let chain = CertificateDer::pem_file_iter("server.pem")?.collect::<Result<Vec<_>, _>>()?;
/// let key = PrivateKeyDer::from_pem_file("server.key")?;
/// let acceptor = TlsAcceptor::new(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?);
/// let listener = TcpListener::bind("[::]:443").await?;
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     let acceptor = acceptor.clone();
///     windlass::spawn(async move {
///         // In a task of its own, and not for ever: a client that says nothing must not hold up the others.
///         match timeout(Duration::from_secs(10), acceptor.accept(stream)).await {
///             Ok(Ok(stream)) => stream.write_all("hello\n").await.0?,
///             Ok(Err(error)) => eprintln!("{peer}: {error}"),
///             Err(_) => eprintln!("{peer} has not shaken hands"),
///         }
///         Ok::<(), std::io::Error>(())
///     });
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?.unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
}

impl TlsAcceptor {
    /// With a configuration, or with a share of one.
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> TlsAcceptor {
        TlsAcceptor { config: config.into() }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Shakes hands over a stream with a client. One that speaks no TLS, or none that the configuration allows, is told so
    /// with an alert, and is an `InvalidData` error here: see [`TlsError`](super::TlsError). It has a second to take the alert
    /// and to hang up, before the error is given.
    ///
    /// Cancel: the stream is dropped, and with it the connection. To bound the time, put it into a
    /// [`timeout`](crate::time::timeout).
    pub async fn accept<S: TlsTransport>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let session = ServerConnection::new(self.config.clone()).map_err(told)?;
        TlsStream::shake_hands(stream, Connection::Server(session)).await
    }
}

impl From<Arc<ServerConfig>> for TlsAcceptor {
    fn from(config: Arc<ServerConfig>) -> TlsAcceptor {
        TlsAcceptor { config }
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}
