//! TLS over any stream, with rustls.
//!
//! ```
//! # use windlass::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
//! # fn identity() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
//! #     let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
//! #     (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap())
//! # }
//! use windlass::net::{TcpListener, TcpStream};
//! use windlass::tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
//! use windlass::tls::{TlsAcceptor, TlsConnector};
//!
//! # windlass::run(async {
//! let (certificate, key) = identity();
//! let mut roots = RootCertStore::empty();
//! roots.add(certificate.clone())?;
//! let connector = TlsConnector::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
//! let acceptor = TlsAcceptor::new(
//!     ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?,
//! );
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let addr = listener.local_addr()?;
//! let serving = windlass::spawn(async move {
//!     let (stream, _) = listener.accept().await?;
//!     let stream = acceptor.accept(stream).await?;
//!     stream.write_all(stream.read_managed().await?).await.0?;
//!     stream.shutdown().await
//! });
//! let stream = connector.connect("localhost", TcpStream::connect(addr).await?).await?;
//! stream.write_all("ping").await.0?;
//! let (result, pong) = stream.read_exact(vec![0; 4]).await;
//! result?;
//! assert_eq!(pong, b"ping");
//! assert!(stream.read_managed().await?.is_empty());
//! # serving.await??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?.unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Design
//!
//! rustls implements the protocol and does no I/O. A TLS stream is one chain of records: a byte that is lost, sent
//! twice or reordered ends the connection. Yet the future of any call may be dropped at any point.
//!
//! - **Reading** relies on the transport's `read_managed` being cancel-safe. Ciphertext moves from the managed buffer
//!   into the session in one step, and plaintext stays in the session until a read takes it. A waiting connection holds
//!   no pool buffer.
//! - **Writing**: a cancelled write may have sent any prefix, and the caller cannot know which. So no user call sends
//!   ciphertext itself. Records go to a write buffer, and the stream owns the future that sends them. Calls that write,
//!   flush or read poll that future; a dropped call leaves it, with its operation in flight, to the next. No extra task
//!   is needed.
//! - **Backpressure**: a write encrypts at most 64 KiB at a time and waits until it is sent, which bounds the unsent
//!   data.
//! - **End of stream**: `shutdown` sends close_notify and then shuts down the transport. A clean end reads as 0 bytes.
//!   An end without close_notify is `UnexpectedEof`, since the data may be truncated.

mod endpoints;
mod error;
mod polled;
mod sender;
mod session;
mod stream;
mod traits;
mod transport;

pub use endpoints::{TlsAcceptor, TlsConnector};
pub use error::TlsError;
pub use stream::TlsStream;
pub use transport::TlsTransport;

/// The rustls version in use, for its configuration types.
pub use rustls;
