//! TLS on every driver: negotiation, rejected peers, closing, dropped futures, and leaks.

#![cfg(target_os = "linux")]

mod bridge;
#[path = "../suite/child.rs"]
mod child;
mod closing;
mod dropped;
#[cfg(feature = "hyper")]
mod https;
mod idle;
mod negotiation;
mod rejected;
#[path = "../suite/support.rs"]
mod support;
mod transfer;

use std::io;
use std::sync::{Arc, OnceLock};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use windlass::net::TcpStream;
use windlass::task::join;
use windlass::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass::tls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use windlass::tls::{TlsAcceptor, TlsConnector, TlsStream, TlsTransport};

use crate::support::pair;

/// A certificate authority and the certificates that it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// The trusted authority.
    fn trusted() -> &'static Authority {
        static TRUSTED: OnceLock<Authority> = OnceLock::new();
        TRUSTED.get_or_init(|| Authority::new("windlass test authority"))
    }

    /// Issues a certificate for a name, after `change` has modified its parameters.
    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        roots
    }
}

/// A client configuration that trusts the trusted authority.
fn client_config() -> ClientConfig {
    ClientConfig::builder()
        .with_root_certificates(Authority::trusted().roots())
        .with_no_client_auth()
}

/// A server configuration with this identity.
fn server_config_of(identity: Identity) -> ServerConfig {
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate], identity.key)
        .expect("the key fits")
}

fn server_config() -> ServerConfig {
    server_config_of(Authority::trusted().issue("localhost", |_| {}))
}

/// Both configurations for one version of TLS.
fn configs_of(version: &'static rustls::SupportedProtocolVersion) -> (ClientConfig, ServerConfig) {
    let identity = Authority::trusted().issue("localhost", |_| {});
    let client = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(Authority::trusted().roots())
        .with_no_client_auth();
    let server = ServerConfig::builder_with_protocol_versions(&[version])
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate], identity.key)
        .expect("the key fits");
    (client, server)
}

/// The connector and acceptor that most tests use.
fn connector_and_acceptor() -> (TlsConnector, TlsAcceptor) {
    static CONFIGS: OnceLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = OnceLock::new();
    let (client, server) = CONFIGS.get_or_init(|| (client_config().into(), server_config().into()));
    (client.clone().into(), server.clone().into())
}

/// Performs a handshake over two connected streams and returns the result of each end.
async fn try_handshake<S: TlsTransport>(
    (connector, acceptor): &(TlsConnector, TlsAcceptor),
    (client, server): (S, S),
) -> (io::Result<TlsStream<S>>, io::Result<TlsStream<S>>) {
    join((connector.connect("localhost", client), acceptor.accept(server))).await
}

/// A handshake that must succeed.
async fn handshake<S: TlsTransport>(
    ends: &(TlsConnector, TlsAcceptor),
    streams: (S, S),
) -> (TlsStream<S>, TlsStream<S>) {
    let (client, server) = try_handshake(ends, streams).await;
    (client.expect("the client"), server.expect("the server"))
}

/// Client and server over TCP.
async fn tls_pair() -> (TlsStream<TcpStream>, TlsStream<TcpStream>) {
    handshake(&connector_and_acceptor(), pair().await).await
}
