//! The end of a stream: clean, in one direction only, or truncated.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use windlass::io::{AsyncRead, AsyncWrite, duplex, split};
use windlass::time::timeout;

use super::{connector_and_acceptor, handshake, tls_pair};
use crate::support::{on_every_driver, on_every_kernel_driver, reset_on_close};

#[test]
fn after_close_notify_every_read_returns_eof() {
    on_every_driver(|case| {
        case.run(async {
            for closing_end in 0..2 {
                let (client, server) = tls_pair().await;
                let (one, other) = if closing_end == 0 {
                    (&client, &server)
                } else {
                    (&server, &client)
                };
                one.write_all("last words").await.0.expect("write");
                one.shutdown().await.expect("shutdown");
                one.shutdown().await.expect("a second shutdown succeeds");
                assert_eq!(&*other.read_managed().await.expect("read"), b"last words");
                for _ in 0..3 {
                    assert_eq!(other.read(vec![0; 16]).await.0.expect("a clean end"), 0);
                    assert!(other.read_managed().await.expect("a clean end").is_empty());
                }
                let error = one.write_all("too late").await.0.expect_err("it was shut down");
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                // An empty vector means EOF here too.
                assert!(other.read(b"stale".to_vec()).await.1.is_empty());
            }
        });
    });
}

#[test]
fn one_direction_can_be_closed_alone() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            client.write_all("request").await.0.expect("write");
            client.shutdown().await.expect("shutdown");
            let mut request = Vec::new();
            AsyncRead::read_to_end(&mut &server, &mut request, 1024)
                .await
                .expect("all of it");
            assert_eq!(request, b"request");
            for _ in 0..10 {
                server.write_all("answer").await.0.expect("it is still open");
            }
            server.shutdown().await.expect("shutdown");
            let mut answer = Vec::new();
            (&client).read_to_end(&mut answer, 1024).await.expect("all of it");
            assert_eq!(answer, b"answer".repeat(10));
        });
    });
}

#[test]
fn an_end_without_close_notify_is_an_error() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            client.write_all("half a mess").await.0.expect("write");
            client.get_ref().shutdown(Shutdown::Write).await.expect("shutdown");
            // The received bytes are returned first, then the truncation error.
            assert_eq!(&*server.read_managed().await.expect("read"), b"half a mess");
            for _ in 0..2 {
                let error = server.read_managed().await.expect_err("truncated");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert!(error.to_string().contains("close_notify"), "{error}");
            }
            let (result, _) = server.read_exact(vec![0; 4]).await;
            assert_eq!(result.expect_err("truncated").kind(), ErrorKind::UnexpectedEof);

            // A dropped stream sends no close_notify either.
            let (client, server) = tls_pair().await;
            server.write_all("hello").await.0.expect("write");
            assert_eq!(&*client.read_managed().await.expect("read"), b"hello");
            drop(client);
            let error = server.read_managed().await.expect_err("truncated");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);

            // The same in the middle of a record.
            let (client, server) = tls_pair().await;
            client
                .get_ref()
                .write_all(b"\x17\x03\x03\x01\x00only some of it")
                .await
                .0
                .expect("write");
            client.get_ref().shutdown(Shutdown::Write).await.expect("shutdown");
            let error = server.read_managed().await.expect_err("truncated");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn a_reset_is_an_error_on_both_sides_of_a_stream() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            reset_on_close(client.get_ref());
            drop(client);
            let error = server.read_managed().await.expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            let writing = async {
                loop {
                    if let Err(error) = server.write_all(vec![0; 1024]).await.0 {
                        return error;
                    }
                }
            };
            let error = timeout(Duration::from_secs(60), writing).await.expect("an error");
            let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(kinds.contains(&error.kind()), "{error}");
            // The lost records cannot be recovered: the stream stays broken.
            let again = server.flush().await.expect_err("broken");
            assert_eq!(again.kind(), error.kind());
        });
    });
}

#[test]
fn a_handshake_that_the_peer_closes_is_an_error() {
    on_every_driver(|case| {
        case.run(async {
            let (connector, acceptor) = connector_and_acceptor();
            let (client, server) = duplex(1024);
            drop(client);
            let error = acceptor.accept(server).await.expect_err("the peer has closed");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("handshake"), "{error}");
            let (client, server) = duplex(1 << 16);
            (&server).shutdown().await.expect("shutdown");
            let error = connector
                .connect("localhost", client)
                .await
                .expect_err("the peer has closed");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn halves_work_in_two_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(512)).await;
            let (mut reader, mut writer) = split(client);
            let echoing = windlass::spawn(async move {
                loop {
                    let bytes = server.read_managed().await.expect("read");
                    if bytes.is_empty() {
                        return server.shutdown().await.expect("shutdown");
                    }
                    server.write_all(bytes).await.0.expect("write");
                }
            });
            let writing = windlass::spawn(async move {
                for number in 0..200_u32 {
                    writer
                        .write_all(number.to_be_bytes().repeat(16))
                        .await
                        .0
                        .expect("write");
                }
                writer.shutdown().await.expect("shutdown");
            });
            for number in 0..200_u32 {
                let (result, bytes) = reader.read_exact(vec![0; 64]).await;
                result.expect("an echo");
                assert_eq!(bytes, number.to_be_bytes().repeat(16));
            }
            assert!(reader.read_managed().await.expect("the end").is_empty());
            writing.await.expect("no panic");
            echoing.await.expect("no panic");
        });
    });
}
