//! Misbehaving clients: each gets a response or is disconnected, and the server keeps running.

use std::time::Duration;

use windlass::net::TcpStream;
use windlass::time::sleep;

use crate::raw::{read_all, read_until, send};
use crate::server::{Client, connect, start, until};
use crate::support::{on_every_driver, on_every_kernel_driver, reset_on_close};

const GET: &str = "GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let stream = connect(addr).await;
            let requests: String = (0..50)
                .map(|number| format!("GET /hello{number} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
                .collect();
            send(&stream, requests).await;
            let answers = read_until(&stream, "hello49").await;
            let bodies: Vec<_> = answers.split("\r\n\r\n").skip(1).collect();
            for (number, body) in bodies.iter().enumerate() {
                assert!(body.starts_with(&format!("hello{number}")), "{number}: {body}");
            }
            assert_eq!(
                (bodies.len(), stats.requests.get(), stats.connections.get()),
                (50, 50, 1)
            );
            // And one in pieces.
            for piece in GET.as_bytes().chunks(7) {
                send(&stream, piece).await;
                sleep(Duration::from_millis(1)).await;
            }
            assert!(read_until(&stream, "hello").await.contains("200 OK"));
        });
    });
}

#[test]
fn malformed_requests_are_refused() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let long = "x".repeat(200_000);
            let cases = [
                ("no request at all\r\n\r\n".to_owned(), "400"),
                ("GET / HTTP/1.1\r\nhost localhost\r\n\r\n".to_owned(), "400"),
                ("GET / HTTP/9.1\r\nhost: localhost\r\n\r\n".to_owned(), "400"),
                ("POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n".to_owned(), "400"),
                ("\0\x01\x02\x03\r\n\r\n".to_owned(), "400"),
                (format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {long}\r\n\r\n"), "431"),
                (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200)), "431"),
            ];
            for (number, (request, status)) in cases.into_iter().enumerate() {
                let stream = connect(addr).await;
                // The server may close before it has read everything.
                let _ = stream.write_all(request.into_bytes()).await.0;
                let answer = read_all(&stream).await;
                // If the client was still sending, the reset may destroy the response.
                let has_status = answer.starts_with(&format!("HTTP/1.1 {status}"));
                assert!(
                    has_status || (answer.is_empty() && status == "431"),
                    "{number}: {answer:?}"
                );
                until("the connection ends", || stats.ended.get() == number + 1).await;
            }
            assert_eq!(stats.requests.get(), 0);
            assert_eq!(Client::one(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn garbage_after_the_http2_preface_is_refused() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let stream = connect(addr).await;
            send(&stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
            send(&stream, [0xff; 64]).await;
            read_all(&stream).await;
            until("the connection ends", || stats.ended.get() == 1).await;
            assert_eq!(stats.failed.get(), 1);
            assert_eq!(Client::two(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn a_truncated_upload_is_an_error() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            for round in 0..10 {
                let stream = connect(addr).await;
                send(
                    &stream,
                    "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\npartial",
                )
                .await;
                until("the request arrives", || stats.requests.get() == round + 1).await;
                if round % 2 == 0 {
                    reset_on_close(&stream);
                }
                drop(stream);
                until("the connection ends", || stats.ended.get() == round + 1).await;
            }
            assert_eq!(stats.truncated_uploads.get(), 10);
            assert_eq!(Client::one(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn a_half_closed_client_is_answered() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let stream = connect(addr).await;
            send(&stream, "GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            stream.shutdown(std::net::Shutdown::Write).await.expect("shutdown");
            assert!(read_all(&stream).await.ends_with("done"));
            until("the connection ends", || stats.ended.get() == 1).await;
        });
    });
}

/// A response body is produced on demand: the server holds no more than the buffers between it and its client.
#[test]
fn a_client_that_does_not_read_uses_little_memory() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let slow = connect(addr).await;
            send(&slow, "GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut produced = usize::MAX;
            while produced != stats.produced.get() || produced == 0 {
                produced = stats.produced.get();
                sleep(Duration::from_millis(200)).await;
            }
            // The kernel's buffers take some megabytes on each side.
            assert!(produced < 32 << 20, "{produced} bytes were produced without a reader");
            // Other clients are served meanwhile, and the body continues when the client reads.
            assert_eq!(Client::two(addr).await.fetch("/hello", "").await, "hello");
            let mut taken = 0;
            while taken < produced + (1 << 20) {
                taken += slow.read_managed().await.expect("read").len();
            }
            assert!(stats.produced.get() > produced);
            drop(slow);
            until("the connection ends", || stats.ended.get() >= 1).await;
        });
    });
}

#[test]
fn many_disconnecting_clients_leak_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let says: [&[u8]; 5] = [
                b"",
                b"G",
                GET.as_bytes(),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\r\n\r\n",
            ];
            for round in 0..100 {
                let stream: TcpStream = connect(addr).await;
                let _ = stream.write_all(says[round % says.len()].to_vec()).await.0;
                if round % 3 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                if round % 2 == 0 {
                    reset_on_close(&stream);
                }
            }
            until("all connections end", || {
                stats.connections.get() == 100 && stats.ended.get() == 100
            })
            .await;
            // Only the server's accept is in flight.
            until("no operation is left", || windlass::counters().ops <= 1).await;
        });
    });
}
