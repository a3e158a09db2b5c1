//! Runs each example as a user would, on every driver.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

mod crawler;
mod files;
#[cfg(feature = "hyper")]
mod http;
mod resp;
mod servers;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "compat-futures")]
mod websocket;

/// An example as a command, with its driver. Cargo has built it before it runs this test.
fn example(name: &str, driver: &str) -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let build: PathBuf = test.ancestors().nth(2).expect("target/debug/deps/test").to_owned();
    let mut command = Command::new(build.join("examples").join(name));
    command.env("WINDLASS_DRIVER", driver).stdin(Stdio::null());
    command
}

/// The drivers of this build.
fn drivers() -> impl Iterator<Item = &'static str> {
    let built = [
        (cfg!(all(feature = "proactor", target_os = "linux")), "proactor"),
        (cfg!(feature = "reactor"), "reactor"),
    ];
    built
        .into_iter()
        .filter(|(is_built, _)| *is_built)
        .map(|(_, name)| name)
}

/// The output of an example that runs to its end.
fn printed(command: &mut Command) -> String {
    let output = command
        .output()
        .expect("the example is built: `cargo build --examples`");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn hello() {
    for driver in drivers() {
        assert!(printed(&mut example("hello", driver)).contains("world"), "on {driver}");
    }
}

/// An example that runs until it is signalled.
struct Running {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        use std::io::BufRead;
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example is built: `cargo build --examples`");
        let stdout = child.stdout.take().expect("it is piped");
        let lines = std::io::BufReader::new(stdout).lines();
        Running { child, lines }
    }

    /// Reads until a line contains `part`, and returns that line.
    #[track_caller]
    fn until(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.expect("it prints text");
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
        panic!("'{part}' was never printed: {seen:?}");
    }

    fn send(&self, signal: i32) {
        // SAFETY: kill(2) takes two integers, and the child has not been reaped.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    #[track_caller]
    fn ends_well(mut self) {
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}");
    }
}

/// Asserts that the peak memory of a server is less than `bound` KiB. AddressSanitizer uses several times as much, so the
/// bound does not hold under it.
#[cfg(all(target_os = "linux", any(feature = "compat-futures", feature = "hyper")))]
fn assert_peak_memory_below(bound: usize, process: u32, driver: &str) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let peak = kib.expect("the kernel reports it");
    println!("-- {peak} KiB on {driver}");
    assert!(
        peak < bound || std::env::var_os("ASAN_OPTIONS").is_some(),
        "{peak} KiB on {driver}"
    );
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn supervise() {
    for driver in drivers() {
        // It exits by itself and is restarted; its last output, without a newline, is forwarded too.
        let mut again = Running::start(example("supervise", driver).args(["sh", "-c", "echo one; printf two; exit 3"]));
        for _ in 0..3 {
            again.until("[started");
            assert_eq!(again.until("|"), "| one", "on {driver}");
            assert_eq!(again.until("|"), "| two", "on {driver}");
            assert!(again.until("[ended").contains("exit status: 3"), "on {driver}");
        }
        again.send(libc::SIGTERM);
        again.until("[stopped");
        again.ends_well();

        let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let mut polite = Running::start(example("supervise", driver).args(["sh", "-c", script]));
        polite.until("up");
        polite.send(libc::SIGINT);
        polite.until("[stopped: exit status: 0]");
        polite.ends_well();

        let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
        let mut stubborn = Running::start(example("supervise", driver).args(["--grace", "0.2", "sh", "-c", script]));
        stubborn.until("up");
        stubborn.send(libc::SIGTERM);
        stubborn.until("[killed after 200ms]");
        stubborn.ends_well();

        let output = example("supervise", driver)
            .arg("no-such-program")
            .output()
            .expect("it runs");
        assert!(!output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("no-such-program"),
            "on {driver}"
        );
    }
}

#[test]
fn graceful() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    for driver in drivers() {
        let mut server = Running::start(example("graceful", driver).args(["127.0.0.1:0", "60"]));
        let line = server.until("listening on ");
        let addr = line.rsplit(' ').next().expect("an address").to_owned();
        let talk = |stream: &mut TcpStream| {
            let mut answer = [0; 4];
            stream.write_all(b"ping")?;
            stream.read_exact(&mut answer)?;
            assert_eq!(&answer, b"ping");
            Ok::<(), std::io::Error>(())
        };
        let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&addr).expect("it listens")).collect();
        for client in &mut clients {
            talk(client).expect("it answers");
        }
        drop(clients.pop());
        server.send(libc::SIGINT);
        server.until("stopped accepting; ");
        let refused = TcpStream::connect(&addr).expect_err("it stopped accepting");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "on {driver}");
        for client in &mut clients {
            talk(client).expect("it is still served");
        }
        drop(clients);
        server.until("all finished");
        server.ends_well();

        // A connection that does not finish is closed.
        let mut server = Running::start(example("graceful", driver).args(["127.0.0.1:0", "0.2"]));
        let line = server.until("listening on ");
        let mut client = TcpStream::connect(line.rsplit(' ').next().expect("an address")).expect("it listens");
        talk(&mut client).expect("it answers");
        server.send(libc::SIGINT);
        server.until("1 connections are cut");
        server.ends_well();
        let mut rest = Vec::new();
        assert_eq!(client.read_to_end(&mut rest).unwrap_or(0), 0, "on {driver}");
    }
}

/// An example that serves until it is dropped, and the address at the start or end of its first line.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> (Server, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the example is built");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).expect("its first line");
        // Its later output is discarded, so that it never blocks.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let addr = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        (Server(child), addr.expect("an address").to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a line to a server with each foreign client that is installed (nc, socat), and returns the first line that
/// each receives.
fn replies_to_other_clients(addr: &str, message: &str) -> Vec<String> {
    let (host, port) = addr.rsplit_once(':').expect("host:port");
    let socat = format!("TCP:{addr}");
    let programs = [("nc", vec![host, port]), ("socat", vec!["-", socat.as_str()])];
    let mut lines = Vec::new();
    for (program, arguments) in programs {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            println!("-- SKIPPED: {program} is not installed");
            continue;
        };
        let mut child = Server(child);
        let mut stdin = child.0.stdin.take().expect("it is piped");
        stdin.write_all(message.as_bytes()).expect("it listens");
        let mut line = String::new();
        let stdout = child.0.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it receives");
        lines.push(line);
    }
    lines
}

#[test]
fn proxy() {
    for driver in drivers() {
        let printed = printed(example("proxy", driver).arg("--demo"));
        assert!(
            printed.contains("are you there? -> ARE YOU THERE?"),
            "on {driver}: {printed}"
        );
        assert!(printed.contains(": 5 bytes sent, 5 received"), "on {driver}: {printed}");
        assert_eq!(
            example("proxy", driver).output().expect("it runs").status.code(),
            Some(2),
            "it needs addresses"
        );
        let (_echo, target) = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
            let addr = listener.local_addr().expect("an address").to_string();
            let echo = std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let stream = stream.expect("accept");
                    std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
                }
            });
            (echo, addr)
        };
        let (_proxy, addr) = Server::start(example("proxy", driver).args(["127.0.0.1:0", &target]));
        let mut stream = std::net::TcpStream::connect(&addr).expect("connect");
        stream.write_all(b"through\n").expect("write");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("read");
        assert_eq!(line, "through\n", "on {driver}");
        for line in replies_to_other_clients(&addr, "to and fro\n") {
            assert_eq!(line, "to and fro\n", "on {driver}");
        }
    }
}

#[test]
fn echo_protocol() {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    for driver in drivers() {
        let demo = printed(example("echo_protocol", driver).arg("--demo"));
        for line in [
            "received: hello",
            "received: and goodbye",
            "disconnected after 11 bytes",
        ] {
            assert!(demo.contains(line), "on {driver}: {demo}");
        }
        // As `nc` would.
        let mut server = Running::start(example("echo_protocol", driver).args(["--addr", "127.0.0.1:0"]));
        let line = server.until("listening on ");
        let mut client = TcpStream::connect(line.rsplit(' ').next().expect("an address")).expect("it listens");
        client.write_all(b"from nc\n").expect("it reads");
        client.shutdown(Shutdown::Write).expect("half a close");
        let mut echo = String::new();
        client.read_to_string(&mut echo).expect("it answers");
        assert_eq!(echo, "from nc\n", "on {driver}");
        server.until("disconnected after 8 bytes");
        server.send(libc::SIGKILL);
        server.child.wait().expect("it was started");
    }
}

#[test]
fn replicated_log() {
    for driver in drivers() {
        let printed = printed(example("replicated_log", driver).arg("--demo"));
        assert!(printed.contains("the demo succeeded"), "on {driver}: {printed}");
    }
}

#[test]
fn line_chat() {
    for driver in drivers() {
        let printed = printed(example("line_chat", driver).arg("--demo"));
        assert!(printed.contains("the demo succeeded"), "on {driver}: {printed}");
        assert!(printed.contains("limit of 1000 bytes"), "on {driver}: {printed}");
        let (_chat, addr) = Server::start(example("line_chat", driver).arg("127.0.0.1:0"));
        for line in replies_to_other_clients(&addr, "nobody\nhello\n") {
            assert_eq!(line, "your name?\n", "on {driver}");
        }
    }
}

#[test]
fn http_get() {
    for driver in drivers() {
        // A busy machine may delay one run, not all of them, by as much as a sequential run takes.
        let mut seen = Vec::new();
        let is_concurrent = (0..3).any(|_| {
            let table = printed(example("http_get", driver).args(["--fetches", "20", "--delay-ms", "50"]));
            let seconds = |name: &str| -> f64 {
                let row = table.lines().find(|line| line.starts_with(name)).expect(name);
                let time = row[name.len()..].split_whitespace().next().expect("a time");
                time.parse().expect("a number")
            };
            let (sequential, concurrent) = (seconds("sequential"), seconds("windlass, one loop"));
            assert!(sequential >= 1.0 && concurrent >= 0.05, "on {driver}: {table}");
            seen.push((sequential, concurrent));
            concurrent < sequential / 2.0
        });
        assert!(is_concurrent, "on {driver}: {seen:?}");
    }
}

/// The demonstration; then a separate server and client.
#[test]
fn udp_echo() {
    for driver in drivers() {
        let text = printed(&mut example("udp_echo", driver));
        assert!(text.contains("100 datagrams echoed"), "on {driver}: {text}");
        let mut server = Running::start(example("udp_echo", driver).args(["serve", "127.0.0.1:0"]));
        let line = server.until("listening on ");
        let addr = line.strip_prefix("listening on ").expect("it says where");
        let answer = printed(example("udp_echo", driver).args(["send", addr, "some words"]));
        assert_eq!(answer.trim(), "some words", "on {driver}");
        let refused = example("udp_echo", driver).arg("sing").output().expect("it runs");
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("usage"));
    }
}

/// A page fetched by curl, through the proxy.
#[test]
fn proxy_for_curl() {
    if Command::new("curl").arg("--version").output().is_err() {
        return println!("-- SKIPPED: curl is not installed");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let target = listener.local_addr().expect("an address").to_string();
    let page = "a page of some length\n".repeat(20_000);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let mut head = BufReader::new(stream.try_clone().expect("a second handle")).lines();
            while head.next().is_some_and(|line| !line.expect("a line").is_empty()) {}
            // A client that has read enough may be gone.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    for driver in drivers() {
        let (_proxy, addr) = Server::start(example("proxy", driver).args(["127.0.0.1:0", &target]));
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--fail",
            "--max-time",
            "30",
            "--noproxy",
            "*",
            &format!("http://{addr}/"),
        ]);
        assert!(printed(&mut curl) == page, "curl got something else on {driver}");
    }
}

/// Blocking the loop is visible, and work on a thread is not. A machine that stalls by itself proves nothing, so it
/// gets several attempts.
#[test]
fn stall() {
    for driver in drivers() {
        // A busy machine delays every tick, so the two ways are compared with each other, and more than once.
        let mut seen = Vec::new();
        let is_cured = (0..5).any(|_| {
            let table = printed(&mut example("stall", driver));
            let worst = |name: &str| -> f64 {
                let row = table.lines().find(|line| line.starts_with(name)).expect(name);
                let times: Vec<&str> = row[name.len()..].split(" ms").collect();
                times[2].trim().parse().expect("a number")
            };
            let in_task = worst("150 ms of CPU inside a task");
            assert!(in_task > 100.0, "on {driver}: {table}");
            let on_thread = worst("the same through spawn_blocking");
            seen.push((in_task, on_thread));
            on_thread < in_task / 2.0
        });
        assert!(
            is_cured,
            "on {driver}: the worst in a task and on a thread were {seen:?} ms"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn compare() {
    for wrong in [&["--nonsense"][..], &["--only", "nothing"], &["--out"]] {
        let output = example("compare", "auto").args(wrong).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {text}");
        assert!(text.contains("usage: compare"), "{wrong:?}: {text}");
    }
    let folder = std::env::temp_dir().join(format!("windlass-compare-{}", std::process::id()));
    let text = printed(
        example("compare", "auto")
            .args(["--quick", "--only", "timers", "--out"])
            .arg(&folder),
    );
    assert!(text.contains("lateness of a sleep"), "{text}");
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.ends_with("</html>\n"));
    // The page has no external resources.
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
    let raw = std::fs::read_to_string(folder.join("report.json")).expect("raw figures");
    let rest = skip_json(raw.trim_end());
    assert_eq!(rest, Some(""), "{raw}");
    assert!(raw.contains("\"late_ns_by_round\""), "{raw}");
    std::fs::remove_dir_all(&folder).expect("it was ours");
}

/// The rest of the text after one JSON value, or nothing if it is invalid.
#[cfg(target_os = "linux")]
fn skip_json(text: &str) -> Option<&str> {
    let end = match text.as_bytes().first()? {
        open @ (b'{' | b'[') => {
            let close = if *open == b'{' { '}' } else { ']' };
            let mut rest = &text[1..];
            if let Some(after) = rest.strip_prefix(close) {
                return Some(after);
            }
            loop {
                if close == '}' {
                    rest = skip_json(rest.strip_prefix('"').map(|_| rest)?)?.strip_prefix(':')?;
                }
                rest = skip_json(rest)?;
                match rest.strip_prefix(',') {
                    Some(after) => rest = after,
                    None => return rest.strip_prefix(close),
                }
            }
        }
        b'"' => {
            let mut is_escaped = false;
            let is_end = |char: char| {
                let ends = char == '"' && !is_escaped;
                is_escaped = char == '\\' && !is_escaped;
                ends
            };
            1 + text[1..].find(is_end)? + 1
        }
        _ => {
            let end = text.find([',', ']', '}']).unwrap_or(text.len());
            let word = &text[..end];
            if !["true", "false", "null"].contains(&word) {
                word.parse::<f64>().ok()?;
            }
            end
        }
    };
    Some(&text[end..])
}
