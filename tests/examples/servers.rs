//! Requirements for every example server: it drains on SIGTERM, survives errors of `accept`, and does not panic when
//! its output is closed.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Running, drivers, example};

/// Turns a hang into a failure; nothing takes nearly as long.
const LONG: Duration = Duration::from_secs(30);

/// An echo server for the proxy. It ends with the test.
fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("accept");
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    addr
}

/// The echo servers, and one that answers, to be started on a given port.
fn echoing(driver: &str, addr: &str, target: &str) -> Vec<(&'static str, Command)> {
    let command = |name: &'static str, args: &[&str]| {
        let mut command = example(name, driver);
        command.args(args);
        (name, command)
    };
    vec![
        command("echo", &["--addr", addr, "--driver", driver]),
        command("echo_protocol", &["--addr", addr]),
        command("graceful", &[addr, "60"]),
        command("proxy", &[addr, target]),
        command("resp_server", &[addr]),
    ]
}

fn talk(name: &str, client: &mut TcpStream) {
    let (request, expected) = match name {
        "resp_server" => ("PING\r\n", "+PONG\r\n"),
        _ => ("ping", "ping"),
    };
    client.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut answer = vec![0; expected.len()];
    client.write_all(request.as_bytes()).expect("it reads");
    client.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, expected.as_bytes());
}

/// Waits until connecting is refused: the kernel may keep the listening socket for a moment.
fn wait_until_refused(addr: &str) {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(addr) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            _ => assert!(begin.elapsed() < LONG, "the server still accepts"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The address in a line such as "listening on 127.0.0.1:1234".
fn address_in(line: &str) -> String {
    let addr = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
    addr.expect("an address").to_owned()
}

#[test]
fn a_server_drains_on_sigterm_and_on_ctrl_c() {
    let target = echo_server();
    for driver in drivers() {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            for (name, mut command) in echoing(driver, "127.0.0.1:0", &target) {
                println!("-- {name} on {driver}");
                let mut server = Running::start(&mut command);
                let addr = address_in(&server.until("127.0.0.1:"));
                let mut client = TcpStream::connect(&addr).expect("it listens");
                talk(name, &mut client);
                server.send(signal);
                server.until("stopped accepting; 1 connections are left");
                wait_until_refused(&addr);
                talk(name, &mut client);
                drop(client);
                server.ends_well();
            }
        }
    }
}

#[test]
fn a_chat_drains_on_sigterm() {
    for driver in drivers() {
        let mut server = Running::start(example("line_chat", driver).arg("127.0.0.1:0"));
        let addr = address_in(&server.until("listening on "));
        let join = |name: &str| {
            let stream = TcpStream::connect(&addr).expect("it listens");
            stream.set_read_timeout(Some(LONG)).expect("a timeout");
            let mut member = BufReader::new(stream);
            expect_line(&mut member, "your name?");
            member
                .get_mut()
                .write_all(format!("{name}\n").as_bytes())
                .expect("it reads");
            member
        };
        let mut ann = join("ann");
        server.until("* ann is here");
        let mut bob = join("bob");
        expect_line(&mut ann, "* bob is here");
        server.send(libc::SIGTERM);
        server.until("stopped accepting; 2 connections are left");
        bob.get_mut().write_all(b"still here\n").expect("it reads");
        expect_line(&mut ann, "bob: still here");
        drop((ann, bob));
        server.until("all finished");
        server.ends_well();
    }
}

fn expect_line(member: &mut BufReader<TcpStream>, expected: &str) {
    let mut line = String::new();
    member.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), expected);
}

#[test]
fn a_udp_server_ends_on_sigterm() {
    for driver in drivers() {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let mut server = Running::start(example("udp_echo", driver).args(["serve", "127.0.0.1:0"]));
            let addr = address_in(&server.until("listening on "));
            let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
            client.set_read_timeout(Some(LONG)).expect("a timeout");
            client.send_to(b"ping", &addr).expect("send");
            let mut answer = [0; 16];
            assert_eq!(client.recv_from(&mut answer).expect("an answer").0, 4, "on {driver}");
            server.send(signal);
            server.until("stopped");
            server.ends_well();
        }
    }
}

/// The pipe that an example prints to has no reader: `example | head -1`, a moment later.
fn with_closed_output(command: &mut Command) -> std::process::Child {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let command = command.stdout(writer).stderr(Stdio::piped());
    command.spawn().expect("the example is built")
}

fn assert_ended_quietly(name: &str, driver: &str, child: std::process::Child) {
    let output = child.wait_with_output().expect("it was started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !stderr.contains("panicked"),
        "{name} on {driver}: {}, {stderr}",
        output.status
    );
}

#[test]
fn a_closed_output_does_not_panic() {
    let programs = [
        ("callbacks", &[][..]),
        ("embed", &[]),
        ("hello", &[]),
        ("http_get", &["--fetches", "2", "--delay-ms", "1"]),
        ("watch", &[]),
        ("echo_protocol", &["--demo"]),
        ("line_chat", &["--demo"]),
        ("replicated_log", &["--demo"]),
        ("proxy", &["--demo"]),
        ("udp_echo", &["--demo"]),
        ("echo", &["--help"]),
        ("cat", &["--help"]),
        ("lateness", &["--help"]),
        ("proxy", &["--help"]),
        ("cat", &["Cargo.lock"]),
    ];
    for driver in drivers() {
        for (name, args) in programs {
            assert_ended_quietly(name, driver, with_closed_output(example(name, driver).args(args)));
        }
    }
}

#[test]
fn a_server_with_closed_output_keeps_serving() {
    let target = echo_server();
    for driver in drivers() {
        // The server cannot print its port, so the test chooses one. If another process takes it meanwhile, the test
        // chooses again.
        for number in 0..echoing(driver, "", "").len() {
            let begin = Instant::now();
            let (name, server) = 'started: loop {
                let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
                let addr = listener.local_addr().expect("an address").to_string();
                drop(listener);
                let (name, mut command) = echoing(driver, &addr, &target).swap_remove(number);
                let mut server = with_closed_output(&mut command);
                while server.try_wait().expect("it was started").is_none() {
                    if let Ok(mut client) = TcpStream::connect(&addr) {
                        talk(name, &mut client);
                        break 'started (name, server);
                    }
                    assert!(begin.elapsed() < LONG, "{name} never listens on {driver}");
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            // SAFETY: kill(2) takes two integers, and the child has not been reaped.
            assert_eq!(unsafe { libc::kill(server.id() as i32, libc::SIGTERM) }, 0);
            assert_ended_quietly(name, driver, server);
        }
    }
}

/// The test duplicates the server's listening socket and shuts it down, so that every `accept` fails; then it makes the
/// socket listen again. The server logs the errors at a limited rate and keeps serving.
#[cfg(target_os = "linux")]
#[test]
fn an_accept_error_does_not_end_a_server() {
    let target = echo_server();
    for driver in drivers() {
        for (name, mut command) in echoing(driver, "127.0.0.1:0", &target) {
            // That accept loop belongs to the library: `protocol::Server` ends with an error.
            if name == "echo_protocol" {
                continue;
            }
            let mut server = Running::start(command.stderr(Stdio::piped()));
            let addr = address_in(&server.until("127.0.0.1:"));
            talk(name, &mut TcpStream::connect(&addr).expect("it listens"));
            let listener = listening_socket(server.child.id());
            let mut stderr = BufReader::new(server.child.stderr.take().expect("it is piped"));
            // SAFETY: shutdown(2) takes two integers; the descriptor is ours.
            assert_eq!(unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) }, 0);
            let mut line = String::new();
            stderr.read_line(&mut line).expect("a line");
            assert!(line.starts_with("accept: "), "{name} on {driver}: {line:?}");
            // SAFETY: listen(2) takes two integers; the descriptor is ours.
            assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 16) }, 0);
            // The kernel has chosen another port.
            let addr = std::net::TcpListener::from(listener).local_addr().expect("an address");
            talk(name, &mut TcpStream::connect(addr).expect("it listens again"));
            server.send(libc::SIGTERM);
            server.ends_well();
        }
    }
}

#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A duplicate of the listening socket of another process.
#[cfg(target_os = "linux")]
fn listening_socket(process: u32) -> OwnedFd {
    // SAFETY: pidfd_open(2) takes integers and returns a new descriptor.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    assert!(pidfd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
    for entry in std::fs::read_dir(format!("/proc/{process}/fd")).expect("a child of ours") {
        let name = entry.expect("an entry").file_name();
        let number: i32 = name.to_str().and_then(|name| name.parse().ok()).expect("a number");
        // SAFETY: pidfd_getfd(2) takes integers and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
        if fd < 0 {
            continue;
        }
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let (mut is_listening, mut len) = (0i32, 4);
        // SAFETY: the kernel writes to the two local variables, at most `len` bytes.
        let asked = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ACCEPTCONN,
                (&raw mut is_listening).cast(),
                &mut len,
            )
        };
        if asked == 0 && is_listening == 1 {
            return fd;
        }
    }
    panic!("the process has no listening socket");
}
