//! Clients that do not behave: each gets its answer or its end, and the server lives.

use std::time::Duration;

use windlass::net::TcpStream;
use windlass::time::sleep;

use crate::raw::{hear_all, hear_until, say};
use crate::server::{Client, connect, start, until};
use crate::support::{on_every_driver, on_every_kernel_driver, reset_on_close};

const GET: &str = "GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let stream = connect(addr).await;
            let requests: String = (0..50)
                .map(|number| format!("GET /hello{number} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
                .collect();
            say(&stream, requests).await;
            let answers = hear_until(&stream, "hello49").await;
            let bodies: Vec<_> = answers.split("\r\n\r\n").skip(1).collect();
            for (number, body) in bodies.iter().enumerate() {
                assert!(body.starts_with(&format!("hello{number}")), "{number}: {body}");
            }
            assert_eq!((bodies.len(), seen.requests.get(), seen.connections.get()), (50, 50, 1));
            // And one in pieces.
            for piece in GET.as_bytes().chunks(7) {
                say(&stream, piece).await;
                sleep(Duration::from_millis(1)).await;
            }
            assert!(hear_until(&stream, "hello").await.contains("200 OK"));
        });
    });
}

#[test]
fn malformed_requests_are_refused() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
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
                // The server may close before it has heard everything.
                let _ = stream.write_all(request.into_bytes()).await.0;
                let answer = hear_all(&stream).await;
                // If it was still being written to, the answer may be lost to the reset that follows.
                let is_told = answer.starts_with(&format!("HTTP/1.1 {status}"));
                assert!(
                    is_told || (answer.is_empty() && status == "431"),
                    "{number}: {answer:?}"
                );
                until("it ends", || seen.ended.get() == number + 1).await;
            }
            assert_eq!(seen.requests.get(), 0);
            assert_eq!(Client::one(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn nonsense_after_the_preface_of_http2_is_refused() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let stream = connect(addr).await;
            say(&stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
            say(&stream, [0xff; 64]).await;
            hear_all(&stream).await;
            until("it ends", || seen.ended.get() == 1).await;
            assert_eq!(seen.failed.get(), 1);
            assert_eq!(Client::two(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn an_upload_that_breaks_off_is_told() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            for round in 0..10 {
                let stream = connect(addr).await;
                say(
                    &stream,
                    "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\nand so on",
                )
                .await;
                until("the request is there", || seen.requests.get() == round + 1).await;
                if round % 2 == 0 {
                    reset_on_close(&stream);
                }
                drop(stream);
                until("it ends", || seen.ended.get() == round + 1).await;
            }
            assert_eq!(seen.broken.get(), 10);
            assert_eq!(Client::one(addr).await.fetch("/hello", "").await, "hello");
        });
    });
}

#[test]
fn a_client_that_has_said_everything_is_answered() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let stream = connect(addr).await;
            say(&stream, "GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            stream.shutdown(std::net::Shutdown::Write).await.expect("shutdown");
            assert!(hear_all(&stream).await.ends_with("at last"));
            until("it ends", || seen.ended.get() == 1).await;
        });
    });
}

/// What nobody takes is not made: the server holds no more than the buffers between it and its client.
#[test]
fn a_client_that_does_not_read_costs_little() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let slow = connect(addr).await;
            say(&slow, "GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut made = usize::MAX;
            while made != seen.made.get() || made == 0 {
                made = seen.made.get();
                sleep(Duration::from_millis(200)).await;
            }
            // The kernel's buffers take some megabytes on either side.
            assert!(made < 32 << 20, "{made} bytes were made for nobody");
            // Others are served meanwhile, and it goes on when somebody reads.
            assert_eq!(Client::two(addr).await.fetch("/hello", "").await, "hello");
            let mut taken = 0;
            while taken < made + (1 << 20) {
                taken += slow.read_managed().await.expect("read").len();
            }
            assert!(seen.made.get() > made);
            drop(slow);
            until("it ends", || seen.ended.get() >= 1).await;
        });
    });
}

#[test]
fn a_crowd_that_hangs_up_leaves_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
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
            until("all end", || seen.connections.get() == 100 && seen.ended.get() == 100).await;
            // The accept of the server is all that is under way.
            until("nothing is left", || windlass::counters().ops <= 1).await;
        });
    });
}
