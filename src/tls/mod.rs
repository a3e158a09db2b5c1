//! TLS over any stream, by rustls.
//!
//! rustls is the protocol and has no opinion on sockets: bytes go in, bytes come out. What is to be got right here is that
//! calls with owned buffers can be dropped at any point, and a TLS stream is one long chain of records: a byte of it that is
//! lost, sent twice or out of order ends the connection.
//!
//! - **Reading** stands on the promise of every stream below: a dropped `read_managed` loses nothing. Ciphertext goes from the
//!   managed buffer into the session in one step, and plaintext stays in the session until somebody takes it. While a
//!   connection waits, it holds no buffer of the pool.
//! - **Writing** cannot stand on the same: a dropped write may have sent any part of its bytes, and nobody can know which. So
//!   ciphertext is never sent by the future of a user's call. It goes to an *outbox*, and the future that empties it belongs
//!   to the stream (`write_buffer.rs`). Whoever writes, flushes or reads polls that future; who is dropped leaves it, with its
//!   operation in the kernel, to the next. No second task is needed.
//! - **Back-pressure.** A write gives the session at most 64 KiB at a time, and waits until all of it has been sent. What a
//!   stream holds that is not sent is bounded by that.
//! - **The end.** `shutdown` sends close_notify and then ends the stream below. A clean end reads as 0, and one without
//!   close_notify is `UnexpectedEof`: somebody may have cut it off.
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

mod ends;
mod error;
mod polled;
mod session;
mod stream;
mod traits;
mod transport;
mod write_buffer;

pub use ends::{TlsAcceptor, TlsConnector};
pub use error::TlsError;
pub use stream::TlsStream;
pub use transport::TlsTransport;

/// The version of rustls that this is built on, for its configurations.
pub use rustls;
