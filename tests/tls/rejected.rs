//! Rejected peers and the errors they cause.

use std::io::{self, ErrorKind};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::time::{sleep, timeout};
use windlass::tls::rustls::{AlertDescription, CertificateError, Error};
use windlass::tls::{TlsAcceptor, TlsConnector, TlsError};

use super::{Authority, Identity, client_config, connector_and_acceptor, server_config_of, tls_pair, try_handshake};
use crate::support::{Random, on_every_driver, pair, rounds};

/// The error of rustls inside an `io::Error`.
fn rustls_error(error: &io::Error) -> Error {
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.expect("an error of TLS").rustls_error().clone()
}

/// Connects to a server with this certificate: returns the client's error and the alert that the server received.
async fn refuse(identity: Identity) -> (io::Error, AlertDescription) {
    let ends = (
        TlsConnector::new(client_config()),
        TlsAcceptor::new(server_config_of(identity)),
    );
    let (client, server) = try_handshake(&ends, pair().await).await;
    let error = client.expect_err("the client rejects the certificate");
    // In TLS 1.3 the server learns of it during the handshake, because the client's Finished message is missing.
    match rustls_error(&server.expect_err("the handshake failed")) {
        Error::AlertReceived(alert) => (error, alert),
        other => panic!("{other}"),
    }
}

#[test]
fn untrusted_certificates_are_rejected() {
    on_every_driver(|case| {
        case.run(async {
            let (error, alert) = refuse(Authority::new("another authority").issue("localhost", |_| {})).await;
            assert!(matches!(
                rustls_error(&error),
                Error::InvalidCertificate(CertificateError::UnknownIssuer)
            ));
            assert!(error.to_string().contains("add the authority's certificate"), "{error}");
            assert_eq!(alert, AlertDescription::UnknownCA);

            let expired = Authority::trusted().issue("localhost", |params| {
                params.not_before = rcgen::date_time_ymd(2001, 1, 1);
                params.not_after = rcgen::date_time_ymd(2002, 1, 1);
            });
            let (error, alert) = refuse(expired).await;
            assert!(error.to_string().contains("certificate expired"), "{error}");
            assert!(error.to_string().contains("days ago: renew it"), "{error}");
            assert_eq!(alert, AlertDescription::CertificateExpired);

            let early = Authority::trusted().issue("localhost", |params| {
                params.not_before = rcgen::date_time_ymd(4001, 1, 1);
                params.not_after = rcgen::date_time_ymd(4002, 1, 1);
            });
            let (error, _) = refuse(early).await;
            assert!(error.to_string().contains("not valid yet"), "{error}");

            let (error, alert) = refuse(Authority::trusted().issue("example.org", |_| {})).await;
            assert!(
                error.to_string().contains(r#"not valid for "localhost" but for"#),
                "{error}"
            );
            assert!(error.to_string().contains("example.org"), "{error}");
            assert_eq!(alert, AlertDescription::BadCertificate);
        });
    });
}

#[test]
fn invalid_server_names_are_errors() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, _) = connector_and_acceptor();
            for name in ["", "local host", "localhost:443", "https://localhost"] {
                let (client, _server) = pair().await;
                let error = connector.connect(name, client).await.expect_err("an invalid name");
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
                assert!(error.to_string().contains("without a port"), "{error}");
            }
        });
    });
}

#[test]
fn a_client_without_tls_gets_an_alert_and_the_server_keeps_running() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, acceptor) = connector_and_acceptor();
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let serving = windlass::spawn(async move {
                let mut errors = Vec::new();
                loop {
                    let (stream, _) = listener.accept().await.expect("accept");
                    match acceptor.accept(stream).await {
                        Ok(stream) => {
                            stream.write_all("welcome").await.0.expect("write");
                            stream.shutdown().await.expect("shutdown");
                            return errors;
                        }
                        Err(error) => errors.push(error),
                    }
                }
            });

            let plain = TcpStream::connect(addr).await.expect("connect");
            plain
                .write_all("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                .await
                .0
                .expect("write");
            // A fatal alert (21, 2), and EOF.
            let (result, answer) = plain.read_exact(vec![0; 7]).await;
            result.expect("an alert");
            assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
            assert!(plain.read_managed().await.expect("the end").is_empty());

            let stream = TcpStream::connect(addr).await.expect("connect");
            let stream = connector
                .connect("localhost", stream)
                .await
                .expect("the server responds");
            assert_eq!(&*stream.read_managed().await.expect("read"), b"welcome");
            let errors = serving.await.expect("no panic");
            assert_eq!(errors.len(), 1);
            rustls_error(&errors[0]);
            assert!(errors[0].to_string().contains("not TLS"), "{}", errors[0]);
        });
    });
}

/// A client that has sent more than the server reads gets the alert all the same: closing with unread bytes causes a
/// reset, which could overtake the alert.
#[test]
fn an_alert_reaches_a_client_with_unread_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (_, acceptor) = connector_and_acceptor();
            let (plain, server) = pair().await;
            let serving = windlass::spawn(async move { acceptor.accept(server).await.map(drop) });
            let body = vec![b'x'; 300_000];
            plain.write_all(body).await.0.expect("all of it is taken");
            // Read late.
            sleep(Duration::from_millis(50)).await;
            let (result, answer) = plain.read_exact(vec![0; 7]).await;
            result.expect("an alert");
            assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
            assert!(plain.read_managed().await.expect("the end").is_empty());
            drop(plain);
            rustls_error(&serving.await.expect("no panic").expect_err("the bytes are not TLS"));
        });
    });
}

#[test]
fn random_bytes_are_an_error_at_either_end() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, acceptor) = connector_and_acceptor();
            let mut random = Random::new(7);
            for round in 0..rounds() / 10 {
                let (client, server) = pair().await;
                let mut bytes: Vec<u8> = (0..1 + random.below(300)).map(|_| random.next() as u8).collect();
                if round % 2 == 0 {
                    // Bytes that look like a handshake record get further.
                    let len = (bytes.len() as u16).to_be_bytes();
                    bytes.splice(..0, [22, 3, 3, len[0], len[1]]);
                }
                let error = match round % 4 < 2 {
                    true => handshake_with_garbage(client, bytes, acceptor.accept(server)).await,
                    false => handshake_with_garbage(server, bytes, connector.connect("localhost", client)).await,
                };
                let kinds = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
                assert!(kinds.contains(&error.kind()), "{error:?}");
            }
        });
    });
}

/// Sends garbage to an end during its handshake, and returns the resulting error.
async fn handshake_with_garbage<T>(
    garbage: TcpStream,
    bytes: Vec<u8>,
    handshake: impl Future<Output = io::Result<T>>,
) -> io::Error {
    garbage.write_all(bytes).await.0.expect("write");
    garbage.shutdown(std::net::Shutdown::Write).await.expect("shutdown");
    let result = timeout(Duration::from_secs(60), handshake)
        .await
        .expect("the handshake ends");
    result.map(drop).expect_err("garbage")
}

#[test]
fn tampered_records_end_the_stream() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            client.write_all("true").await.0.expect("write");
            // A well-formed record with wrong bytes in it.
            let mut forged = vec![23, 3, 3, 0, 64];
            forged.extend([0x5a; 64]);
            client.get_ref().write_all(forged).await.0.expect("write");
            assert_eq!(&*server.read_managed().await.expect("what came before"), b"true");
            for _ in 0..2 {
                let error = server.read_managed().await.expect_err("forged");
                assert_eq!(rustls_error(&error), Error::DecryptError);
            }
            let error = server.write_all("anything").await.0.expect_err("the stream has ended");
            assert_eq!(rustls_error(&error), Error::DecryptError);
            // The other end gets the alert.
            let error = client.read_managed().await.expect_err("an alert");
            assert_eq!(
                rustls_error(&error),
                Error::AlertReceived(AlertDescription::BadRecordMac)
            );
        });
    });
}
