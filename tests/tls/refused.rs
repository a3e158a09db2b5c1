//! What is refused, and how clearly.

use std::io::{self, ErrorKind};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::time::{sleep, timeout};
use windlass::tls::rustls::{AlertDescription, CertificateError, Error};
use windlass::tls::{TlsAcceptor, TlsConnector, TlsError};

use super::{Authority, Identity, client_config, ends, server_config_of, tls_pair, try_shake};
use crate::support::{Random, on_every_driver, pair, rounds};

/// What rustls said.
fn rustls_error(error: &io::Error) -> Error {
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
    inner.expect("an error of TLS").rustls_error().clone()
}

/// What becomes of a server with this certificate: the client's error and the alert that the server gets.
async fn refuse(identity: Identity) -> (io::Error, AlertDescription) {
    let ends = (
        TlsConnector::new(client_config()),
        TlsAcceptor::new(server_config_of(identity)),
    );
    let (client, server) = try_shake(&ends, pair().await).await;
    let error = client.expect_err("the client must not believe it");
    // In TLS 1.3 the server learns of it within the handshake: the client's last words are missing.
    match rustls_error(&server.expect_err("it was refused")) {
        Error::AlertReceived(alert) => (error, alert),
        other => panic!("{other}"),
    }
}

#[test]
fn certificates_that_prove_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let (error, alert) = refuse(Authority::new("somebody").issue("localhost", |_| {})).await;
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
fn names_that_are_none() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, _) = ends();
            for name in ["", "local host", "localhost:443", "https://localhost"] {
                let (client, _server) = pair().await;
                let error = connector.connect(name, client).await.expect_err("no name");
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
                assert!(error.to_string().contains("without a port"), "{error}");
            }
        });
    });
}

#[test]
fn who_speaks_no_tls_is_told_and_the_server_lives() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, acceptor) = ends();
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
            // A fatal alert (21, 2), and the end.
            let (result, answer) = plain.read_exact(vec![0; 7]).await;
            result.expect("an alert");
            assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
            assert!(plain.read_managed().await.expect("the end").is_empty());

            let stream = TcpStream::connect(addr).await.expect("connect");
            let stream = connector.connect("localhost", stream).await.expect("it lives");
            assert_eq!(&*stream.read_managed().await.expect("read"), b"welcome");
            let errors = serving.await.expect("no panic");
            assert_eq!(errors.len(), 1);
            rustls_error(&errors[0]);
            assert!(errors[0].to_string().contains("not TLS"), "{}", errors[0]);
        });
    });
}

/// Who has sent more than anybody reads is told all the same: unread bytes make a reset of a close, which can overtake the
/// alert.
#[test]
fn who_sends_more_than_is_read_is_told() {
    on_every_driver(|case| {
        case.run(async {
            let (_, acceptor) = ends();
            let (plain, server) = pair().await;
            let serving = windlass::spawn(async move { acceptor.accept(server).await.map(drop) });
            let body = vec![b'x'; 300_000];
            plain.write_all(body).await.0.expect("all of it is taken");
            // As one that looks late.
            sleep(Duration::from_millis(50)).await;
            let (result, answer) = plain.read_exact(vec![0; 7]).await;
            result.expect("an alert");
            assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
            assert!(plain.read_managed().await.expect("the end").is_empty());
            drop(plain);
            rustls_error(&serving.await.expect("no panic").expect_err("that is no TLS"));
        });
    });
}

#[test]
fn random_bytes_are_an_error_at_either_end_and_never_a_hang() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, acceptor) = ends();
            let mut random = Random::new(7);
            for round in 0..rounds() / 10 {
                let (client, server) = pair().await;
                let mut bytes: Vec<u8> = (0..1 + random.below(300)).map(|_| random.next() as u8).collect();
                if round % 2 == 0 {
                    // What looks like a record of the handshake gets further.
                    let len = (bytes.len() as u16).to_be_bytes();
                    bytes.splice(..0, [22, 3, 3, len[0], len[1]]);
                }
                let error = match round % 4 < 2 {
                    true => shake_with(client, bytes, acceptor.accept(server)).await,
                    false => shake_with(server, bytes, connector.connect("localhost", client)).await,
                };
                let kinds = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
                assert!(kinds.contains(&error.kind()), "{error:?}");
            }
        });
    });
}

/// Sends garbage to somebody who shakes hands, and gives the error that comes of it.
async fn shake_with<T>(garbage: TcpStream, bytes: Vec<u8>, shaking: impl Future<Output = io::Result<T>>) -> io::Error {
    garbage.write_all(bytes).await.0.expect("write");
    garbage.shutdown(std::net::Shutdown::Write).await.expect("shutdown");
    let shaken = timeout(Duration::from_secs(60), shaking).await.expect("it hangs");
    shaken.map(drop).expect_err("garbage")
}

#[test]
fn records_that_were_tampered_with_end_the_stream() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            client.write_all("true").await.0.expect("write");
            // A record of the right form, with somebody else's bytes in it.
            let mut forged = vec![23, 3, 3, 0, 64];
            forged.extend([0x5a; 64]);
            client.get_ref().write_all(forged).await.0.expect("write");
            assert_eq!(&*server.read_managed().await.expect("what came before"), b"true");
            for _ in 0..2 {
                let error = server.read_managed().await.expect_err("forged");
                assert_eq!(rustls_error(&error), Error::DecryptError);
            }
            let error = server.write_all("anything").await.0.expect_err("it has ended");
            assert_eq!(rustls_error(&error), Error::DecryptError);
            // The other end hears why.
            let error = client.read_managed().await.expect_err("an alert");
            assert_eq!(
                rustls_error(&error),
                Error::AlertReceived(AlertDescription::BadRecordMac)
            );
        });
    });
}
