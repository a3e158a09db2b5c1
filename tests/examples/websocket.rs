//! The WebSocket server example, under load and against clients that violate the protocol.

use std::io::{BufRead, BufReader, Write};

use crate::{Running, drivers, example, printed};

/// Starts the WebSocket server example and returns its address.
fn websocket_server(driver: &str) -> (Running, String) {
    websocket_server_with(driver, &[])
}

fn websocket_server_with(driver: &str, args: &[&str]) -> (Running, String) {
    let mut server = Running::start(
        example("websocket", driver)
            .args(["serve", "--listen", "127.0.0.1:0", "--driver", driver])
            .args(["--max-message", "1000"])
            .args(args),
    );
    let addr = server.until("listening on").replace("listening on ", "");
    (server, addr)
}

#[test]
fn websocket_drops_no_connection_under_load() {
    let wrong = example("websocket", "reactor")
        .arg("--nonsense")
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel fills the local structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let limit_left = usize::try_from(limit.rlim_max)
        .unwrap_or(usize::MAX)
        .saturating_sub(200);
    let count = limit_left.min(5_000);
    if count < 5_000 {
        println!("-- ONLY {count} connections: limits of this machine");
    }
    for driver in drivers() {
        let (mut server, addr) = websocket_server(driver);
        let mut load = example("websocket", driver);
        load.args(["load", "--connect", &addr, "--driver", driver, "--messages", "3"]);
        let report = printed(load.args(["--connections", &count.to_string()]));
        let expected =
            format!("{count} completed and closed with 1000, 0 closed early, 0 not opened, 0 dropped silently");
        assert!(report.contains(&expected), "{report} on {driver}");
        server.send(libc::SIGINT);
        let ledger = server.until("messages; closed:");
        assert_eq!(
            ledger,
            format!(
                "{count} connections, {} messages; closed: {count} with 1000, 0 refused, 0 left without a close frame, \
                 0 did not read, 0 cut at the deadline",
                count * 3
            ),
            "on {driver}"
        );
        server.ends_well();
    }
}

/// A client that sends raw frames.
struct RawSocket(BufReader<std::net::TcpStream>);

impl RawSocket {
    fn open(addr: &str) -> RawSocket {
        let mut stream = std::net::TcpStream::connect(addr).expect("it listens");
        let timeout = Some(std::time::Duration::from_secs(30));
        stream.set_read_timeout(timeout).expect("a timeout");
        let request = format!(
            "GET / HTTP/1.1\r\nhost: {addr}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut socket = RawSocket(BufReader::new(stream));
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            socket.0.read_line(&mut line).expect("an answer");
            if line == "\r\n" {
                break;
            }
            lines.push(line.trim().to_ascii_lowercase());
        }
        assert!(lines[0].contains("101"), "{lines:?}");
        // The accept key of the example in RFC 6455.
        let accept = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=".to_owned();
        assert!(lines.contains(&accept), "{lines:?}");
        socket
    }

    /// Sends a frame with these first two bytes, masked with zeros if they say so.
    fn send(&mut self, head: [u8; 2], rest: &[u8]) {
        let mut frame = head.to_vec();
        frame.extend(rest);
        self.0.get_mut().write_all(&frame).expect("it reads");
    }

    /// The next frame: its first byte and its payload. `None` at EOF.
    fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        use std::io::Read;
        let mut head = [0; 2];
        match self.0.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            result => result.expect("a frame or the end"),
        }
        assert!(head[1] < 126, "a short frame, unmasked");
        let mut payload = vec![0; head[1].into()];
        self.0.read_exact(&mut payload).expect("all of it");
        Some((head[0], payload))
    }

    /// Expects a close frame with this code.
    #[track_caller]
    fn expect_close(&mut self, code: u16) {
        let (first, payload) = self.receive().expect("a close frame before the end");
        assert_eq!((first, &payload[..2]), (0x88, &code.to_be_bytes()[..]), "{payload:?}");
    }

    #[track_caller]
    fn expect_eof(mut self) {
        assert_eq!(self.receive(), None, "the connection ends");
    }
}

/// Sends pings without reading the pongs, until this many bytes were sent, the server has closed the connection, or it
/// accepts nothing for a while. True if it was closed.
#[cfg(target_os = "linux")]
fn flood(socket: &mut RawSocket, bytes: usize) -> bool {
    let mut ping = vec![0x89, 0x80 | 125, 0, 0, 0, 0];
    ping.resize(ping.len() + 125, b'p');
    let pings = ping.repeat(500);
    let stream = socket.0.get_mut();
    let timeout = Some(std::time::Duration::from_secs(2));
    stream.set_write_timeout(timeout).expect("a timeout");
    for _ in 0..bytes / pings.len() {
        match stream.write_all(&pings) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    false
}

/// The write buffer for a client that never reads is bounded, even with a long write timeout.
#[cfg(target_os = "linux")]
#[test]
fn websocket_memory_is_bounded_under_a_ping_flood() {
    for driver in drivers() {
        let (mut server, addr) = websocket_server_with(driver, &["--write-timeout", "3600"]);
        let mut socket = RawSocket::open(&addr);
        assert!(
            !flood(&mut socket, 64 << 20),
            "the client was disconnected too early on {driver}"
        );
        // A pong to another client shows that everything sent before was processed.
        let mut other = RawSocket::open(&addr);
        other.send([0x89, 0x81], &[&[0; 4][..], b"?"].concat());
        assert_eq!(other.receive(), Some((0x8a, b"?".to_vec())), "on {driver}");
        crate::assert_peak_memory_below(32 << 10, server.child.id(), driver);
        drop((socket, other));
        server.send(libc::SIGTERM);
        server.until("messages; closed:");
        server.ends_well();
    }
}

/// A client that never reads is disconnected and counted.
#[cfg(target_os = "linux")]
#[test]
fn websocket_disconnects_a_client_that_does_not_read() {
    for driver in drivers() {
        let (mut server, addr) = websocket_server_with(driver, &["--write-timeout", "0.2"]);
        let mut socket = RawSocket::open(&addr);
        assert!(
            flood(&mut socket, 1 << 30),
            "the client was not disconnected on {driver}"
        );
        server.send(libc::SIGTERM);
        let ledger = server.until("messages; closed:");
        assert!(ledger.contains("1 did not read"), "{ledger} on {driver}");
        server.ends_well();
    }
}

#[test]
fn websocket_closes_with_the_right_codes() {
    use std::io::Read;
    for driver in drivers() {
        let (mut server, addr) = websocket_server(driver);
        let mask = [0; 4];

        // An echo, a ping, and a close that is answered with the same code.
        let mut polite = RawSocket::open(&addr);
        polite.send([0x81, 0x82], &[&mask[..], b"hi"].concat());
        assert_eq!(polite.receive(), Some((0x81, b"hi".to_vec())), "on {driver}");
        polite.send([0x89, 0x81], &[&mask[..], b"?"].concat());
        assert_eq!(polite.receive(), Some((0x8a, b"?".to_vec())), "on {driver}");
        polite.send([0x88, 0x82], &[&mask[..], &1000_u16.to_be_bytes()].concat());
        polite.expect_close(1000);
        polite.expect_eof();

        // Too long, according to its header; most of it is still in transit when the answer comes.
        let mut long = RawSocket::open(&addr);
        long.send(
            [0x82, 0xfe],
            &[&60_000_u16.to_be_bytes()[..], &mask, &[7; 20_000]].concat(),
        );
        long.expect_close(1009);
        long.expect_eof();

        // A frame without a mask; an unknown opcode; invalid UTF-8.
        let mut unmasked = RawSocket::open(&addr);
        unmasked.send([0x81, 0x02], b"hi");
        unmasked.expect_close(1002);
        unmasked.expect_eof();
        let mut strange = RawSocket::open(&addr);
        strange.send([0x83, 0x80], &mask);
        strange.expect_close(1002);
        strange.expect_eof();
        let mut no_text = RawSocket::open(&addr);
        no_text.send([0x81, 0x82], &[&mask[..], &[0xff, 0xfe]].concat());
        no_text.expect_close(1007);
        no_text.expect_eof();

        // A client that disconnects without a close frame is counted.
        drop(RawSocket::open(&addr));

        // A request without an upgrade is refused.
        let mut browser = std::net::TcpStream::connect(&addr).expect("it listens");
        browser
            .write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            .expect("it reads");
        let mut answer = String::new();
        browser.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?} on {driver}");
        drop(browser);

        // At shutdown every open connection gets a close frame, in the middle of a message too.
        let mut waiting = RawSocket::open(&addr);
        let mut talking = RawSocket::open(&addr);
        talking.send([0x81, 0x85], &[&mask[..], b"he"].concat());
        waiting.send([0x81, 0x82], &[&mask[..], b"hi"].concat());
        assert_eq!(waiting.receive(), Some((0x81, b"hi".to_vec())), "on {driver}");
        server.send(if driver == "reactor" {
            libc::SIGINT
        } else {
            libc::SIGTERM
        });
        server.until("closing 2 connections");
        waiting.expect_close(1001);
        talking.expect_close(1001);
        talking.0.get_mut().write_all(b"llo").expect("it reads");
        for mut socket in [waiting, talking] {
            socket.send([0x88, 0x82], &[&mask[..], &1001_u16.to_be_bytes()].concat());
            socket.expect_eof();
        }
        let ledger = server.until("messages; closed:");
        let expected = "closed: 1 with 1000, 2 with 1001, 2 with 1002, 1 with 1007, 1 with 1009, 1 refused, \
                        1 left without a close frame, 0 did not read, 0 cut at the deadline";
        assert!(ledger.ends_with(expected), "{ledger} on {driver}");
        server.ends_well();
    }
}
