//! An echo over TLS, and the clients that load it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, SignatureScheme, StreamOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CLIENTS: usize = 32;
const REQUEST_LEN: usize = 1024;

fn server_config() -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they belong together")
}

pub fn on_windlass() -> impl FnMut(windlass::net::TcpStream) -> BoxedLocal {
    let acceptor = std::rc::Rc::new(windlass::tls::TlsAcceptor::new(server_config()));
    move |stream| {
        let acceptor = acceptor.clone();
        Box::pin(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            while let Ok(bytes) = stream.read_managed().await {
                if bytes.is_empty() || stream.write_all(bytes).await.0.is_err() {
                    return;
                }
            }
        })
    }
}

type BoxedLocal = std::pin::Pin<Box<dyn Future<Output = ()>>>;

pub fn on_tokio() -> impl FnMut(tokio::net::TcpStream) -> BoxedSend {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server_config()));
    move |stream| {
        let acceptor = acceptor.clone();
        Box::pin(async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            let mut buf = vec![0; 8 * 1024];
            while let Ok(count) = stream.read(&mut buf).await {
                // A TLS stream of tokio-rustls keeps what it has encrypted until it is flushed.
                if count == 0 || stream.write_all(&buf[..count]).await.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
        })
    }
}

type BoxedSend = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends requests on all connections for a time, one after the other on each. Prints the amount, the rate and the errors.
pub fn load(port: u16, seconds: u64) {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(ring::default_provider())))
        .with_no_client_auth();
    let config = Arc::new(config);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let client = || -> std::io::Result<usize> {
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
        let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
        stream.set_nodelay(true)?;
        let mut stream = StreamOwned::new(connection, stream);
        let (mut buf, mut count) = ([7; REQUEST_LEN], 0);
        while Instant::now() < end {
            stream.write_all(&buf)?;
            stream.read_exact(&mut buf)?;
            count += 1;
        }
        Ok(count)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect()
    });
    let errors = results.iter().filter(|result| result.is_err()).count();
    let count: usize = results.into_iter().flatten().sum();
    println!("{count} {} {errors}", count as f64 / begin.elapsed().as_secs_f64());
}

/// The certificate is made by the server for this run.
#[derive(Debug)]
struct AnyCertificate(CryptoProvider);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
