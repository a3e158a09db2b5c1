//! The HTTP server and client examples, against each other and against curl.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Running, drivers, example, printed};

const FILE: &str = "Cargo.lock";

/// Starts a server and returns its address.
fn serve(driver: &str, grace: &str) -> (Running, String) {
    serve_with(driver, &["--listen", "127.0.0.1:0", "--grace", grace])
}

fn serve_with(driver: &str, args: &[&str]) -> (Running, String) {
    let mut server = Running::start(
        example("http_server", driver)
            .args(["--driver", driver, "--file", FILE])
            .args(args),
    );
    let line = server.until("listening on ");
    let addr = line.rsplit(' ').next().expect("an address").to_owned();
    (server, addr)
}

#[test]
fn the_client_fetches_from_the_server() {
    let file = std::fs::read_to_string(FILE).expect("it is there");
    for driver in drivers() {
        let (mut server, addr) = serve(driver, "10");
        let (page, whole) = (format!("http://{addr}/"), format!("http://{addr}/file"));
        for (option, version) in [(None, "HTTP/1.1"), (Some("--http2"), "HTTP/2.0")] {
            let mut client = example("http_client", driver);
            let text = printed(
                client
                    .args(["--driver", driver])
                    .args(option)
                    .args([&page, &whole, &page]),
            );
            assert_eq!(
                text.matches(&format!("{version} 200 OK")).count(),
                3,
                "on {driver}: {text}"
            );
            assert!(text.contains(&file), "on {driver}: the file is not the same");
            assert!(text.contains("content-type: text/plain"), "on {driver}: {text}");
        }
        server.send(libc::SIGINT);
        server.until("all finished");
        server.until("6 requests were served");
        server.ends_well();
    }
}

/// All shards share the port. Each stops accepting, lets its requests finish and cuts the rest.
#[test]
fn shards_serve_and_stop_together() {
    const SHARDS: usize = 3;
    const PAGES: usize = 60;
    for driver in drivers() {
        let args = ["--listen", "127.0.0.1:0", "--grace", "2", "--shards", "3"];
        let (mut server, addr) = serve_with(driver, &args);
        for _ in 0..PAGES {
            fetch(&addr);
        }
        let (mut busy, mut stuck) = (begin_upload(&addr), begin_upload(&addr));
        server.send(libc::SIGTERM);
        // Each upload is in the count of one shard.
        let mut left = 0;
        let mut shards = Vec::new();
        while shards.len() < SHARDS {
            let line = server.until("stopping: ");
            let (shard, rest) = line.split_once(": stopping: ").expect("a shard");
            let count = rest.split(' ').next().and_then(|count| count.parse::<usize>().ok());
            left += count.expect("a number");
            shards.push(shard.to_owned());
        }
        shards.sort();
        assert_eq!(shards, ["shard 0", "shard 1", "shard 2"], "on {driver}");
        // A shard may not have noticed yet that a page's connection has ended.
        assert!(left >= 2, "on {driver}: {left}");
        busy.write_all(b"def").expect("write");
        let mut answer = String::new();
        busy.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("6 bytes, sum 597\n"), "on {driver}: {answer}");
        server.until("grace period over");
        server.until(&format!("{} requests were served", PAGES + 2));
        server.ends_well();
        assert_eq!(stuck.read(&mut [0; 16]).unwrap_or(0), 0, "on {driver}");
        assert!(
            TcpStream::connect(&addr).is_err(),
            "on {driver}: a socket is still open"
        );
    }
}

#[test]
fn wrong_options_are_refused() {
    for driver in drivers().take(1) {
        for (name, args) in [
            ("http_server", &["--port", "80"][..]),
            ("http_server", &["--grace", "soon"]),
            ("http_server", &["--shards", "many"]),
            ("http_client", &[]),
            ("http_client", &["ftp://localhost/"]),
            ("http_client", &["--http3", "http://localhost/"]),
        ] {
            let output = example(name, driver).args(args).output().expect("the example is built");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{name} {args:?}: {text}");
            assert!(text.contains("usage: "), "{name} {args:?}: {text}");
        }
        // No server listens on this port.
        let output = example("http_client", driver).arg("http://127.0.0.1:1/").output();
        let output = output.expect("the example is built");
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("refused"));
    }
}

/// A client that has sent half of its upload, which the server has begun to read.
fn begin_upload(addr: &str) -> TcpStream {
    let mut client = TcpStream::connect(addr).expect("connect");
    client
        .write_all(b"POST /upload HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 6\r\n\r\n")
        .expect("write");
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let mut piece = [0; 1];
        assert_eq!(client.read(&mut piece).expect("read"), 1, "the server hung up");
        response.extend_from_slice(&piece);
    }
    assert!(
        response.starts_with(b"HTTP/1.1 100 "),
        "{}",
        String::from_utf8_lossy(&response)
    );
    client.write_all(b"abc").expect("write");
    client
}

/// A request in progress is finished; connections that are still open when the grace period ends are closed.
#[test]
fn shutdown_waits_for_requests_in_progress() {
    for driver in drivers() {
        let (mut server, addr) = serve(driver, "0.5");
        let mut idle = TcpStream::connect(&addr).expect("connect");
        idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .expect("write");
        let mut response = Vec::new();
        while !response.ends_with(b"hello\n") {
            let mut piece = [0; 256];
            let count = idle.read(&mut piece).expect("read");
            assert!(count > 0, "on {driver}: the server closed the connection");
            response.extend_from_slice(&piece[..count]);
        }
        let (mut busy, mut stuck) = (begin_upload(&addr), begin_upload(&addr));
        server.send(libc::SIGTERM);
        server.until("stopping: ");
        // The idle connection is closed at once.
        assert_eq!(idle.read(&mut [0; 16]).unwrap_or(0), 0, "on {driver}");
        busy.write_all(b"def").expect("write");
        let mut answer = String::new();
        busy.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("6 bytes, sum 597\n"), "on {driver}: {answer}");
        server.until("grace period over");
        server.ends_well();
        assert_eq!(stuck.read(&mut [0; 16]).unwrap_or(0), 0, "on {driver}");
    }
}

/// A client that stops sending is disconnected after a timeout.
#[test]
fn silent_clients_are_disconnected() {
    for driver in drivers() {
        let (server, addr) = serve_with(driver, &["--listen", "127.0.0.1:0", "--patience", "0.3"]);
        let response_to = |request: &str| {
            let mut client = TcpStream::connect(&addr).expect("connect");
            client.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            client.write_all(request.as_bytes()).expect("write");
            let mut response = String::new();
            match client.read_to_string(&mut response) {
                Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                    panic!("on {driver}: {request:?} does not time out: {error}")
                }
                _ => response,
            }
        };
        for request in ["", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nhost: loc"] {
            assert!(!response_to(request).contains("200 OK"), "on {driver}: {request:?}");
        }
        let response = response_to("POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\nabc");
        assert!(response.starts_with("HTTP/1.1 408 "), "on {driver}: {response}");
        server.send(libc::SIGINT);
        server.ends_well();
    }
}

/// A trickling upload is refused, although it is never silent for long; one at a fair rate is accepted.
#[test]
fn an_upload_has_a_minimum_rate() {
    for driver in drivers() {
        let args = [
            "--listen",
            "127.0.0.1:0",
            "--patience",
            "0.5",
            "--upload-rate",
            "1000000",
        ];
        let (server, addr) = serve_with(driver, &args);
        let mut client = TcpStream::connect(&addr).expect("connect");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        client
            .write_all(b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
            .expect("write");
        // Pieces come far more often than the timeout, for as long as they are accepted.
        let begin = Instant::now();
        while client.write_all(b"x").is_ok() {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "on {driver}: the upload is never refused"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut client = TcpStream::connect(&addr).expect("connect");
        client
            .write_all(b"POST /upload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc")
            .expect("write");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("3 bytes, sum 294\n"), "on {driver}: {answer}");
        server.send(libc::SIGTERM);
        server.ends_well();
    }
}

/// The number of open descriptors of a process.
#[cfg(target_os = "linux")]
fn descriptors(process: u32) -> usize {
    let folder = std::fs::read_dir(format!("/proc/{process}/fd"));
    folder.expect("it runs").count()
}

/// Fetches a page as a well-behaved client does, and returns how long it took.
fn fetch(addr: &str) -> Duration {
    let begin = Instant::now();
    let mut client = TcpStream::connect(addr).expect("connect");
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("write");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("hello\n"), "{answer}");
    begin.elapsed()
}

/// Clients that request a large file and read nothing: others are served, memory is bounded, and they are disconnected.
#[cfg(target_os = "linux")]
#[test]
fn clients_that_do_not_read_are_disconnected() {
    const READERS: usize = 400;
    let large = std::env::temp_dir().join(format!("windlass-large-{}", std::process::id()));
    let file = std::fs::File::create(&large).expect("a file");
    file.set_len(64 << 20).expect("its length");
    for driver in drivers() {
        // First with a timeout so long that all of them are connected at once.
        for timeout in ["60", "0.3"] {
            let mut server = Running::start(
                example("http_server", driver)
                    .args(["--driver", driver, "--listen", "127.0.0.1:0", "--grace", "0.1"])
                    .args(["--write-timeout", timeout, "--file"])
                    .arg(&large),
            );
            let line = server.until("listening on ");
            let addr = line.rsplit(' ').next().expect("an address").to_owned();
            let process = server.child.id();
            let before = descriptors(process);
            let mut readers: Vec<TcpStream> = (0..READERS)
                .map(|_| {
                    let mut reader = TcpStream::connect(&addr).expect("connect");
                    reader
                        .write_all(b"GET /file HTTP/1.1\r\nhost: localhost\r\n\r\n")
                        .expect("write");
                    reader
                })
                .collect();
            // Each has received the beginning of its response.
            for reader in &mut readers {
                reader.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
                reader.read_exact(&mut [0; 12]).expect("the beginning");
            }
            fetch(&addr);
            if timeout == "60" {
                // One connection and one file each.
                assert!(descriptors(process) >= before + 2 * READERS, "on {driver}");
                crate::assert_peak_memory_below((16 << 10) + READERS * 192, process, driver);
            } else {
                let begin = Instant::now();
                while descriptors(process) >= before + READERS / 2 {
                    assert!(
                        begin.elapsed() < Duration::from_secs(20),
                        "on {driver}: they stay connected"
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            fetch(&addr);
            server.send(libc::SIGTERM);
            server.until("requests were served");
            server.ends_well();
            drop(readers);
        }
    }
    std::fs::remove_file(&large).expect("it was ours");
}

/// slowhttptest's four attacks. Each runs while the test fetches pages beside it.
#[cfg(target_os = "linux")]
#[test]
fn a_server_under_slowhttptest_serves_others() {
    if Command::new("slowhttptest").arg("-h").output().is_err() {
        return println!("-- SKIPPED: slowhttptest is not installed");
    }
    // Many connections, opened quickly, for longer than the test runs.
    let common = ["-c", "300", "-r", "300", "-l", "30", "-p", "3"];
    let attacks: [(&str, &str, &[&str]); 4] = [
        ("slow headers", "/", &["-H", "-i", "1"]),
        ("slow body", "/upload", &["-B", "-i", "1", "-s", "8192"]),
        ("ranges", "/file", &["-R", "-a", "5", "-b", "3000"]),
        (
            "slow read",
            "/file",
            &["-X", "-w", "1", "-y", "1024", "-n", "1", "-z", "32", "-k", "3"],
        ),
    ];
    for driver in drivers() {
        for (what, path, args) in attacks {
            let attack_and_fetch = || {
                let args_of_ours = [
                    "--listen",
                    "127.0.0.1:0",
                    "--patience",
                    "1",
                    "--write-timeout",
                    "1",
                    "--grace",
                    "0.1",
                ];
                let (mut server, addr) = serve_with(driver, &args_of_ours);
                let before = descriptors(server.child.id());
                let attack = Command::new("slowhttptest")
                    .args(common)
                    .args(args)
                    .args(["-u", &format!("http://{addr}{path}")])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn();
                let mut attack = crate::Server(attack.expect("it is installed"));
                // The attack has begun when many of its connections are open at once; a connection that is answered in full
                // closes before that.
                let begin = Instant::now();
                let mut most = 0;
                while most < before + 100 && attack.0.try_wait().expect("it was started").is_none() {
                    most = most.max(descriptors(server.child.id()));
                    assert!(
                        begin.elapsed() < Duration::from_secs(20),
                        "{what} on {driver}: the attack did not start"
                    );
                    std::thread::sleep(Duration::from_millis(2));
                }
                let mut took: Vec<Duration> = (0..5).map(|_| fetch(&addr)).collect();
                took.sort();
                println!("-- {what} on {driver}: {most} descriptors, a page took {took:?}");
                drop(attack);
                server.send(libc::SIGTERM);
                server.until("requests were served");
                server.ends_well();
                took[2]
            };
            // A busy machine may delay the pages of one attack, a server that is held up those of all of them.
            let is_quick = (0..10).any(|_| attack_and_fetch() < Duration::from_secs(1));
            assert!(
                is_quick,
                "{what} on {driver}: the median of five pages took longer than a second"
            );
        }
    }
}

/// An IPv6 address in brackets, and an output pipe that is closed early.
#[test]
fn the_client_handles_ipv6_and_closed_pipes() {
    for driver in drivers() {
        if std::net::TcpListener::bind("[::1]:0").is_ok() {
            let (_server, addr) = serve_with(driver, &["--listen", "[::1]:0"]);
            let text = printed(example("http_client", driver).arg(format!("http://{addr}/")));
            assert!(text.ends_with("hello\n"), "on {driver}: {text}");
        } else {
            println!("-- SKIPPED: there is no IPv6 here");
        }
        let (_server, addr) = serve(driver, "10");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut client = example("http_client", driver);
        let output = client.arg(format!("http://{addr}/file")).stdout(writer);
        let output = output.stderr(Stdio::piped()).spawn().expect("the example is built");
        let output = output.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && stderr.is_empty(),
            "on {driver}: {:?}, {stderr}",
            output.status
        );
    }
}

#[test]
fn curl_gets_what_it_asks_for() {
    let Ok(version) = Command::new("curl").arg("--version").output() else {
        return println!("-- SKIPPED: curl is not installed");
    };
    let has_http2 = String::from_utf8_lossy(&version.stdout).contains("HTTP2");
    let file = std::fs::read(FILE).expect("it is there");
    let len = file.len();
    for driver in drivers() {
        let (server, addr) = serve(driver, "10");
        for option in [None, Some("--http2-prior-knowledge")] {
            if option.is_some() && !has_http2 {
                println!("-- SKIPPED: this curl has no HTTP/2");
                continue;
            }
            let curl = |path: &str, args: &[&str]| {
                let mut curl = Command::new("curl");
                curl.args(["--silent", "--max-time", "30", "--noproxy", "*"]);
                curl.args(option).args(args).arg(format!("http://{addr}{path}"));
                printed(&mut curl)
            };
            assert_eq!(curl("/", &[]), "hello\n");
            assert!(curl("/file", &[]).as_bytes() == file);
            assert!(curl("/file", &["-r", "10-109"]).as_bytes() == &file[10..110]);
            assert!(curl("/file", &["-r", "-100"]).as_bytes() == &file[len - 100..]);
            assert!(curl("/file", &["-r", "100-"]).as_bytes() == &file[100..]);
            let head = curl("/file", &["-r", "5-9", "-D", "-", "-o", "/dev/null"]).to_lowercase();
            assert!(
                head.contains(&format!("content-range: bytes 5-9/{len}")),
                "on {driver}: {head}"
            );
            let status = |path, args: &[&str]| {
                let args = [args, &["-o", "/dev/null", "-w", "%{http_code}"]].concat();
                curl(path, &args)
            };
            assert_eq!(status("/file", &["-r", "99999999-"]), "416");
            assert_eq!(status("/nowhere", &[]), "404");
            assert_eq!(status("/", &["-X", "DELETE"]), "405");
            for (path, expected) in [("/", 6), ("/file", len)] {
                let head = curl(path, &["-I", "-r", "5-9"]).to_lowercase();
                assert!(head.contains(" 200"), "{path} on {driver}: {head}");
                assert!(
                    head.contains(&format!("content-length: {expected}\r\n")),
                    "{path} on {driver}: {head}"
                );
            }
            for (path, allowed) in [("/", "get, head"), ("/file", "get, head"), ("/upload", "put, post")] {
                let head = curl(path, &["-X", "DELETE", "-D", "-", "-o", "/dev/null"]).to_lowercase();
                assert!(
                    head.contains(&format!("allow: {allowed}\r\n")),
                    "{path} on {driver}: {head}"
                );
            }
            let sum: u64 = file.iter().map(|&byte| u64::from(byte)).sum();
            assert_eq!(curl("/upload", &["-T", FILE]), format!("{len} bytes, sum {sum}\n"));
        }
        drop(server);
    }
}
