//! What the two ends negotiate: versions, ALPN, resumption, client certificates, key updates.

use windlass::io::duplex;
use windlass::net::UnixStream;
use windlass::task::join;
use windlass::tls::rustls::ProtocolVersion;
use windlass::tls::rustls::version::{TLS12, TLS13};
use windlass::tls::{TlsAcceptor, TlsConnector, TlsStream, TlsTransport};

use super::{Authority, client_config, configs_of, connector_and_acceptor, handshake, server_config, try_handshake};
use crate::support::{on_every_driver, on_every_kernel_driver, pair};

/// One message in each direction.
async fn talk<S: TlsTransport>(client: &TlsStream<S>, server: &TlsStream<S>) {
    let asking = async {
        client.write_all("ping").await.0.expect("write");
        let (result, bytes) = client.read(Vec::with_capacity(16)).await;
        assert_eq!((result.expect("read"), &bytes[..]), (4, &b"pong"[..]));
    };
    let answering = async {
        assert_eq!(&*server.read_managed().await.expect("read"), b"ping");
        server.write_all("pong").await.0.expect("write");
    };
    join((asking, answering)).await;
}

#[test]
fn both_ends_report_the_negotiated_parameters() {
    on_every_driver(|case| {
        case.run(async {
            for (version, expected) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
                let (client, server) = configs_of(version);
                let (client, server) =
                    handshake(&(TlsConnector::new(client), TlsAcceptor::new(server)), pair().await).await;
                for end in [&client, &server] {
                    assert_eq!(end.protocol_version(), Some(expected));
                    assert!(!end.is_resumed());
                    assert_eq!(end.alpn_protocol(), None);
                }
                assert_eq!(
                    client.cipher_suite().map(|suite| suite.suite()),
                    server.cipher_suite().map(|suite| suite.suite())
                );
                assert_eq!(server.server_name().as_deref(), Some("localhost"));
                assert_eq!(client.server_name(), None);
                assert_eq!(client.peer_certificates().map(|chain| chain.len()), Some(1));
                assert_eq!(server.peer_certificates(), None);
                let secret = |end: &TlsStream<_>| end.export_keying_material([0; 32], b"test", None).expect("a secret");
                assert_eq!(secret(&client), secret(&server));
                assert_ne!(secret(&client), [0; 32]);
                talk(&client, &server).await;
            }
        });
    });
}

#[test]
fn tls_runs_over_any_stream() {
    on_every_driver(|case| {
        case.run(async {
            for capacity in [1, 100, 1000, 1 << 20] {
                let (client, server) = handshake(&connector_and_acceptor(), duplex(capacity)).await;
                talk(&client, &server).await;
            }
            // TLS in TLS, as through a proxy.
            let outer = handshake(&connector_and_acceptor(), duplex(4096)).await;
            let (client, server) = handshake(&connector_and_acceptor(), outer).await;
            talk(&client, &server).await;
        });
    });
    on_every_kernel_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), UnixStream::pair().expect("a pair")).await;
            talk(&client, &server).await;
        });
    });
}

#[test]
fn the_application_protocol_is_negotiated() {
    on_every_driver(|case| {
        case.run(async {
            let with = |ours: &[&str], theirs: &[&str]| {
                let (mut client, mut server) = (client_config(), server_config());
                client.alpn_protocols = ours.iter().map(|name| name.as_bytes().to_vec()).collect();
                server.alpn_protocols = theirs.iter().map(|name| name.as_bytes().to_vec()).collect();
                (TlsConnector::new(client), TlsAcceptor::new(server))
            };
            let (client, server) = handshake(&with(&["http/1.1", "h2"], &["h2", "http/1.1"]), pair().await).await;
            // The server chooses.
            assert_eq!(client.alpn_protocol().as_deref(), Some(&b"h2"[..]));
            assert_eq!(server.alpn_protocol().as_deref(), Some(&b"h2"[..]));

            let (client, server) = try_handshake(&with(&["h3"], &["h2"]), pair().await).await;
            let error = client.expect_err("nothing in common").to_string();
            assert!(error.contains("ALPN"), "{error}");
            assert!(server.is_err());
        });
    });
}

#[test]
fn a_second_connection_is_resumed() {
    on_every_driver(|case| {
        case.run(async {
            for version in [&TLS12, &TLS13] {
                let (client, server) = configs_of(version);
                let ends = (TlsConnector::new(client), TlsAcceptor::new(server));
                let mut resumed = Vec::new();
                for _ in 0..3 {
                    let (client, server) = handshake(&ends, pair().await).await;
                    assert_eq!(client.is_resumed(), server.is_resumed());
                    resumed.push(client.is_resumed());
                    // TLS 1.3 session tickets come after the handshake, with the first bytes.
                    talk(&client, &server).await;
                    assert!(
                        client.peer_certificates().is_some(),
                        "a resumed session keeps the certificates"
                    );
                }
                assert_eq!(resumed, [false, true, true], "{version:?}");
            }
        });
    });
}

#[test]
fn a_client_can_present_a_certificate() {
    use std::sync::Arc;
    use windlass::tls::rustls::server::WebPkiClientVerifier;
    use windlass::tls::rustls::{ClientConfig, ServerConfig};
    on_every_driver(|case| {
        case.run(async {
            let identity = Authority::trusted().issue("localhost", |_| {});
            let verifier = WebPkiClientVerifier::builder(Arc::new(Authority::trusted().roots()))
                .build()
                .expect("a verifier");
            let server = ServerConfig::builder()
                .with_client_cert_verifier(verifier)
                .with_single_cert(vec![identity.certificate], identity.key)
                .expect("the key fits");
            let acceptor = TlsAcceptor::new(server);

            let ours = Authority::trusted().issue("client", |_| {});
            let shown = ours.certificate.clone();
            let client = ClientConfig::builder()
                .with_root_certificates(Authority::trusted().roots())
                .with_client_auth_cert(vec![ours.certificate], ours.key)
                .expect("the key fits");
            let (client, server) = handshake(&(TlsConnector::new(client), acceptor.clone()), pair().await).await;
            assert_eq!(server.peer_certificates(), Some(vec![shown]));
            talk(&client, &server).await;

            // Without one, the client considers the handshake complete until it reads (TLS 1.3).
            let (client, server) = try_handshake(&(TlsConnector::new(client_config()), acceptor), pair().await).await;
            let error = server.expect_err("no certificate").to_string();
            assert!(error.contains("presented no certificate"), "{error}");
            let error = client
                .expect("the client's handshake completes")
                .read_managed()
                .await
                .expect_err("refused");
            assert!(error.to_string().contains("requires a client certificate"), "{error}");
        });
    });
}

#[test]
fn traffic_keys_can_be_refreshed() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), pair().await).await;
            for _ in 0..10 {
                client.refresh_traffic_keys().expect("TLS 1.3");
                talk(&client, &server).await;
                server.refresh_traffic_keys().expect("TLS 1.3");
                talk(&client, &server).await;
            }
        });
    });
}
