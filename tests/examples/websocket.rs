//! The WebSocket server, under load and against clients that break the rules.

use std::io::{BufRead, BufReader, Write};

use crate::{Running, drivers, example, printed};

/// A WebSocket server of the example, and where it listens.
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
fn websocket_drops_nobody_under_load() {
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
    let room = usize::try_from(limit.rlim_max)
        .unwrap_or(usize::MAX)
        .saturating_sub(200);
    let count = room.min(5_000);
    if count < 5_000 {
        println!("-- ONLY {count} connections: limits of this machine");
    }
    for driver in drivers() {
        let (mut server, addr) = websocket_server(driver);
        let mut load = example("websocket", driver);
        load.args(["load", "--connect", &addr, "--driver", driver, "--messages", "3"]);
        let said = printed(load.args(["--connections", &count.to_string()]));
        let expected =
            format!("{count} completed and closed with 1000, 0 closed early, 0 not opened, 0 dropped silently");
        assert!(said.contains(&expected), "{said} on {driver}");
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

/// A client that says what it likes.
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
        // The key's answer that the standard gives as its example.
        let accept = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=".to_owned();
        assert!(lines.contains(&accept), "{lines:?}");
        socket
    }

    /// A frame with these first two bytes, masked with zeros if it says so.
    fn say(&mut self, head: [u8; 2], rest: &[u8]) {
        let mut frame = head.to_vec();
        frame.extend(rest);
        self.0.get_mut().write_all(&frame).expect("it reads");
    }

    /// The next frame: its first byte and its payload. None at the end.
    fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
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

    /// A close frame, and then the end.
    #[track_caller]
    fn hear_close(&mut self, code: u16) {
        let (first, payload) = self.hear().expect("a close frame before the end");
        assert_eq!((first, &payload[..2]), (0x88, &code.to_be_bytes()[..]), "{payload:?}");
    }

    #[track_caller]
    fn hear_end(mut self) {
        assert_eq!(self.hear(), None, "the connection ends");
    }
}

/// Sends pings without reading the answers, until so many bytes were sent, the server has closed the connection, or it takes
/// nothing for a while. True if it was closed.
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

/// What waits for a client that never reads is bounded, also where it may go on for long.
#[cfg(target_os = "linux")]
#[test]
fn websocket_memory_is_bounded_under_a_ping_flood() {
    for driver in drivers() {
        let (mut server, addr) = websocket_server_with(driver, &["--write-timeout", "60"]);
        let mut socket = RawSocket::open(&addr);
        assert!(!flood(&mut socket, 64 << 20), "it was cut off too early on {driver}");
        // Another one's answer shows that all that had come before was taken in.
        let mut other = RawSocket::open(&addr);
        other.say([0x89, 0x81], &[&[0; 4][..], b"?"].concat());
        assert_eq!(other.hear(), Some((0x8a, b"?".to_vec())), "on {driver}");
        let peak = crate::peak_memory(server.child.id());
        println!("-- {peak} KiB on {driver}");
        assert!(peak < 32 << 10, "{peak} KiB on {driver}");
        drop((socket, other));
        server.send(libc::SIGTERM);
        server.until("messages; closed:");
        server.ends_well();
    }
}

/// A client that never reads is cut off, and counted.
#[cfg(target_os = "linux")]
#[test]
fn websocket_cuts_off_who_does_not_read() {
    for driver in drivers() {
        let (mut server, addr) = websocket_server_with(driver, &["--write-timeout", "0.2"]);
        let mut socket = RawSocket::open(&addr);
        assert!(flood(&mut socket, 1 << 30), "it was not cut off on {driver}");
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

        // An echo, a ping, and a goodbye that is answered with its own code.
        let mut polite = RawSocket::open(&addr);
        polite.say([0x81, 0x82], &[&mask[..], b"hi"].concat());
        assert_eq!(polite.hear(), Some((0x81, b"hi".to_vec())), "on {driver}");
        polite.say([0x89, 0x81], &[&mask[..], b"?"].concat());
        assert_eq!(polite.hear(), Some((0x8a, b"?".to_vec())), "on {driver}");
        polite.say([0x88, 0x82], &[&mask[..], &1000_u16.to_be_bytes()].concat());
        polite.hear_close(1000);
        polite.hear_end();

        // Too long, by what its head says; most of it is still under way when the answer comes.
        let mut long = RawSocket::open(&addr);
        long.say(
            [0x82, 0xfe],
            &[&60_000_u16.to_be_bytes()[..], &mask, &[7; 20_000]].concat(),
        );
        long.hear_close(1009);
        long.hear_end();

        // A client's frame without a mask; an operation that there is not; text that is none.
        let mut unmasked = RawSocket::open(&addr);
        unmasked.say([0x81, 0x02], b"hi");
        unmasked.hear_close(1002);
        unmasked.hear_end();
        let mut strange = RawSocket::open(&addr);
        strange.say([0x83, 0x80], &mask);
        strange.hear_close(1002);
        strange.hear_end();
        let mut no_text = RawSocket::open(&addr);
        no_text.say([0x81, 0x82], &[&mask[..], &[0xff, 0xfe]].concat());
        no_text.hear_close(1007);
        no_text.hear_end();

        // Who goes without a word is counted.
        drop(RawSocket::open(&addr));

        // Who wants something else is told.
        let mut browser = std::net::TcpStream::connect(&addr).expect("it listens");
        browser
            .write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            .expect("it reads");
        let mut answer = String::new();
        browser.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?} on {driver}");
        drop(browser);

        // Everybody who is there at the end hears of it, in the middle of a message too.
        let mut waiting = RawSocket::open(&addr);
        let mut talking = RawSocket::open(&addr);
        talking.say([0x81, 0x85], &[&mask[..], b"he"].concat());
        waiting.say([0x81, 0x82], &[&mask[..], b"hi"].concat());
        assert_eq!(waiting.hear(), Some((0x81, b"hi".to_vec())), "on {driver}");
        server.send(if driver == "reactor" {
            libc::SIGINT
        } else {
            libc::SIGTERM
        });
        server.until("closing 2 connections");
        waiting.hear_close(1001);
        talking.hear_close(1001);
        talking.0.get_mut().write_all(b"llo").expect("it reads");
        for mut socket in [waiting, talking] {
            socket.say([0x88, 0x82], &[&mask[..], &1001_u16.to_be_bytes()].concat());
            socket.hear_end();
        }
        let ledger = server.until("messages; closed:");
        let expected = "closed: 1 with 1000, 2 with 1001, 2 with 1002, 1 with 1007, 1 with 1009, 1 refused, \
                        1 left without a close frame, 0 did not read, 0 cut at the deadline";
        assert!(ledger.ends_with(expected), "{ledger} on {driver}");
        server.ends_well();
    }
}
