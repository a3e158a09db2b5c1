//! TLS clients and servers: the two ways to create a stream.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::error::tls_error;
use super::stream::TlsStream;
use super::transport::TlsTransport;

/// Creates TLS client connections.
///
/// The configuration is rustls' own: roots, client certificates, ALPN, resumption. Connections of one connector share
/// its session store, so a second connection to the same server is resumed if the server supports it.
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
    /// Creates a connector from a configuration or an `Arc` of one.
    pub fn new(config: impl Into<Arc<ClientConfig>>) -> TlsConnector {
        TlsConnector { config: config.into() }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Performs the handshake with a server that must present a certificate for `name`: a host name or an IP address.
    /// Wrap it in a [`timeout`](crate::time::timeout) to bound the time. Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// `InvalidData` with a [`TlsError`](super::TlsError) if the certificate or the handshake is rejected,
    /// `InvalidInput` if `name` is not valid, `UnexpectedEof` if the server closes the connection.
    pub async fn connect<'n, N, S>(&self, name: N, stream: S) -> io::Result<TlsStream<S>>
    where
        N: TryInto<ServerName<'n>, Error: fmt::Display>,
        S: TlsTransport,
    {
        let name = name.try_into().map_err(|error| {
            let message = format!("invalid server name: {error}; pass a host name without a port, or an IP address");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        let session = ClientConnection::new(self.config.clone(), name.to_owned()).map_err(tls_error)?;
        TlsStream::handshake(stream, Connection::Client(session)).await
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

/// Creates TLS server connections on accepted streams.
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
///     let (stream, peer) = match listener.accept().await {
///         Ok(accepted) => accepted,
///         Err(error) => {
///             eprintln!("accept: {error}");
///             windlass::time::sleep(Duration::from_millis(100)).await;
///             continue;
///         }
///     };
///     let acceptor = acceptor.clone();
///     windlass::spawn(async move {
///         // In its own task and with a timeout: a silent client must not block the others.
///         match timeout(Duration::from_secs(10), acceptor.accept(stream)).await {
///             Ok(Ok(stream)) => stream.write_all("hello\n").await.0?,
///             Ok(Err(error)) => eprintln!("{peer}: {error}"),
///             Err(_) => eprintln!("{peer}: TLS handshake timed out"),
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
    /// Creates an acceptor from a configuration or an `Arc` of one.
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> TlsAcceptor {
        TlsAcceptor { config: config.into() }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Performs the handshake with a client. Wrap it in a [`timeout`](crate::time::timeout) to bound the time. Dropping
    /// the future closes the connection.
    ///
    /// # Errors
    ///
    /// `InvalidData` with a [`TlsError`](super::TlsError) if the client does not speak TLS or shares no allowed option;
    /// this sends an alert and waits up to one second for the client to close. `UnexpectedEof` if the client closes.
    pub async fn accept<S: TlsTransport>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let session = ServerConnection::new(self.config.clone()).map_err(tls_error)?;
        TlsStream::handshake(stream, Connection::Server(session)).await
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
