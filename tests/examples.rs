//! The examples do what they say, each run as a user would run it, on every driver.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

#[cfg(feature = "hyper")]
#[path = "http/examples.rs"]
mod http;

/// An example as a command, told which driver to use. Cargo has built it before it runs this.
fn example(name: &str, driver: &str) -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let build: PathBuf = test.ancestors().nth(2).expect("target/debug/deps/test").to_owned();
    let mut command = Command::new(build.join("examples").join(name));
    command.env("WINDLASS_DRIVER", driver).stdin(Stdio::null());
    command
}

/// The drivers that this build has.
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

/// What an example prints when it runs to its end.
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

/// An example that runs until it is told to end.
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

    /// Reads on until a line has this in it, and gives that line.
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
        panic!("it never said '{part}': {seen:?}");
    }

    fn send(&self, signal: i32) {
        // SAFETY: kill(2) takes two numbers, and the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    #[track_caller]
    fn ends_well(mut self) {
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}");
    }
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
        // It ends by itself and is started again; what it wrote last, without a line's end, is forwarded too.
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

        // One that does not finish is cut.
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

/// An example that serves until it is dropped, and the address that its first line ends or begins with.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> (Server, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the example is built");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line).expect("its first line");
        // What it says later goes nowhere, and does not stop it.
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

/// The first line that somebody else's program hears from a server after it has said something, for each program that is
/// installed here.
fn heard_by_others(addr: &str, said: &str) -> Vec<String> {
    let (host, port) = addr.rsplit_once(':').expect("host:port");
    let socat = format!("TCP:{addr}");
    let programs = [("nc", vec![host, port]), ("socat", vec!["-", socat.as_str()])];
    let mut heard = Vec::new();
    for (program, arguments) in programs {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            println!("-- SKIPPED: {program} is not installed");
            continue;
        };
        let mut child = Server(child);
        let mut stdin = child.0.stdin.take().expect("it is piped");
        stdin.write_all(said.as_bytes()).expect("it listens");
        let mut line = String::new();
        let stdout = child.0.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it hears");
        heard.push(line);
    }
    heard
}

#[test]
fn proxy() {
    for driver in drivers() {
        let printed = printed(example("proxy", driver).arg("--demo"));
        assert!(
            printed.contains("is anybody there? -> IS ANYBODY THERE?"),
            "on {driver}: {printed}"
        );
        assert!(printed.contains(": 5 bytes there, 5 back"), "on {driver}: {printed}");
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
        for line in heard_by_others(&addr, "to and fro\n") {
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
        for line in ["heard: hello", "heard: and goodbye", "has left after 11 bytes"] {
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
        server.until("has left after 8 bytes");
        server.send(libc::SIGKILL);
        server.child.wait().expect("it was started");
    }
}

#[test]
fn line_chat() {
    for driver in drivers() {
        let printed = printed(example("line_chat", driver).arg("--demo"));
        assert!(printed.contains("the chat went as it should"), "on {driver}: {printed}");
        assert!(printed.contains("limit of 1000 bytes"), "on {driver}: {printed}");
        let (_chat, addr) = Server::start(example("line_chat", driver).arg("127.0.0.1:0"));
        for line in heard_by_others(&addr, "nobody\nhello\n") {
            assert_eq!(line, "your name?\n", "on {driver}");
        }
    }
}

#[test]
fn http_get() {
    for driver in drivers() {
        let table = printed(example("http_get", driver).args(["--fetches", "20", "--delay-ms", "50"]));
        let seconds = |name: &str| -> f64 {
            let row = table.lines().find(|line| line.starts_with(name)).expect(name);
            let time = row[name.len()..].split_whitespace().next().expect("a time");
            time.parse().expect("a number")
        };
        assert!(seconds("one after the other") >= 1.0, "on {driver}: {table}");
        // All at once: far from twenty times 50 ms, whatever the machine.
        assert!(seconds("windlass, one loop") < 0.8, "on {driver}: {table}");
        assert!(seconds("windlass, one loop") >= 0.05, "on {driver}: {table}");
    }
}

/// The demonstration; and a server and a client of their own, one asked by the other.
#[test]
fn udp_echo() {
    for driver in drivers() {
        let text = printed(&mut example("udp_echo", driver));
        assert!(text.contains("100 datagrams there and back"), "on {driver}: {text}");
        let mut server = Running::start(example("udp_echo", driver).args(["serve", "127.0.0.1:0"]));
        let line = server.until("listening on ");
        let addr = line.strip_prefix("listening on ").expect("it says where");
        let answer = printed(example("udp_echo", driver).args(["send", addr, "some words"]));
        assert_eq!(answer.trim(), "some words", "on {driver}");
        let refused = example("udp_echo", driver).arg("sing").output().expect("it runs");
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("usage"));
    }
}

/// A page fetched by somebody else's client, through the proxy.
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
            // A client that has heard enough may be gone.
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

/// Blocking the loop shows, and work on a thread does not. A machine that stalls by itself shows nothing: it gets a few
/// chances to be quiet.
#[test]
fn stall() {
    for driver in drivers() {
        let mut seen = Vec::new();
        let mut was_quiet = false;
        let is_well = (0..5).any(|_| {
            let table = printed(&mut example("stall", driver));
            let worst = |name: &str| -> f64 {
                let row = table.lines().find(|line| line.starts_with(name)).expect(name);
                let times: Vec<&str> = row[name.len()..].split(" ms").collect();
                times[2].trim().parse().expect("a number")
            };
            assert!(worst("150 ms of CPU inside a task") > 100.0, "on {driver}: {table}");
            let (idle, off_loop) = (worst("loop idle"), worst("the same through spawn_blocking"));
            was_quiet |= idle < 5.0;
            seen.push((idle, off_loop));
            off_loop < 10.0
        });
        if !is_well && !was_quiet {
            println!("-- NOT SHOWN on {driver}: the machine stalls by itself, by {seen:?} ms");
            continue;
        }
        assert!(
            is_well,
            "on {driver}: idle and with a thread, the worst were {seen:?} ms"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn compare() {
    for wrong in [&["--nonsense"][..], &["--only", "nothing"], &["--out"]] {
        let output = example("compare", "auto").args(wrong).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(said.contains("usage: compare"), "{wrong:?}: {said}");
    }
    let folder = std::env::temp_dir().join(format!("windlass-compare-{}", std::process::id()));
    let said = printed(
        example("compare", "auto")
            .args(["--quick", "--only", "timers", "--out"])
            .arg(&folder),
    );
    assert!(said.contains("how late a sleep ends"), "{said}");
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.ends_with("</html>\n"));
    // It needs nothing from elsewhere.
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
    let raw = std::fs::read_to_string(folder.join("report.json")).expect("raw figures");
    let rest = skip_json(raw.trim_end());
    assert_eq!(rest, Some(""), "{raw}");
    assert!(raw.contains("\"late_ns_by_round\""), "{raw}");
    std::fs::remove_dir_all(&folder).expect("it was ours");
}

/// What follows one JSON value, or nothing if it is none.
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

/// Whether a program is installed; says so if it is not.
#[cfg(feature = "tls")]
fn is_installed(program: &str, ask: &str) -> bool {
    let found = Command::new(program).arg(ask).output().is_ok();
    if !found {
        println!("-- SKIPPED: {program} is not installed");
    }
    found
}

#[cfg(feature = "tls")]
#[test]
fn tls_echo_for_openssl() {
    let wrong = example("tls_echo", "reactor")
        .arg("--nonsense")
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("usage: tls_echo"));
    if !is_installed("openssl", "version") {
        return;
    }
    for driver in drivers() {
        let ca = std::env::temp_dir().join(format!("windlass-tls-echo-{}-{driver}.pem", std::process::id()));
        let mut server = Running::start(
            example("tls_echo", driver)
                .args(["--listen", "127.0.0.1:0", "--driver", driver, "--write-ca"])
                .arg(&ca),
        );
        let addr = server.until("listening on").replace("listening on ", "");
        let ask = |options: &[&str]| {
            let mut client = Command::new("openssl");
            client.args(["s_client", "-connect", &addr, "-servername", "localhost", "-CAfile"]);
            client.arg(&ca).args(["-verify_return_error", "-brief"]).args(options);
            let mut client = client
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it is installed");
            let mut stdin = client.stdin.take().expect("it is piped");
            let mut stdout = BufReader::new(client.stdout.take().expect("it is piped"));
            stdin.write_all(b"hello, openssl\n").expect("it listens");
            let mut line = String::new();
            stdout.read_line(&mut line).expect("an echo");
            // Q at the start of a line ends it, with close_notify.
            stdin.write_all(b"Q\n").expect("it listens");
            let output = client.wait_with_output().expect("it ends");
            (
                line,
                String::from_utf8_lossy(&output.stderr).into_owned(),
                output.status,
            )
        };
        for version in ["-tls1_2", "-tls1_3"] {
            let (line, said, status) = ask(&[version, "-alpn", "echo"]);
            assert_eq!(line, "hello, openssl\n", "{version} on {driver}: {said}");
            assert!(said.contains("Verification: OK"), "{version} on {driver}: {said}");
            assert!(status.success(), "{version} on {driver}: {said}");
        }
        // An end that the server begins is one that openssl understands.
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &addr,
                "-servername",
                "localhost",
                "-quiet",
                "-CAfile",
            ])
            .arg(&ca)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let mut stdin = client.stdin.take().expect("it is piped");
        let mut stdout = BufReader::new(client.stdout.take().expect("it is piped"));
        stdin.write_all(b"still here\n").expect("it listens");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("an echo");
        assert_eq!(line, "still here\n", "on {driver}");
        server.send(libc::SIGINT);
        server.until("everybody was told");
        server.ends_well();
        line.clear();
        assert_eq!(stdout.read_line(&mut line).expect("a clean end"), 0, "on {driver}");
        drop(stdin);
        assert!(client.wait().expect("it ends").success(), "on {driver}");

        // Who does not read what it gets back is not waited for either.
        let mut server = Running::start(example("tls_echo", driver).args([
            "--listen",
            "127.0.0.1:0",
            "--driver",
            driver,
            "--grace",
            "0.3",
        ]));
        let addr = server.until("listening on").replace("listening on ", "");
        let mut client = Command::new("openssl")
            .args(["s_client", "-connect", &addr, "-quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let mut stdin = client.stdin.take().expect("it is piped");
        let (filled, is_filled) = std::sync::mpsc::channel();
        // More than all the buffers on the way and back have room for.
        let filling = std::thread::spawn(move || {
            for _ in 0..64 << 10 {
                if stdin.write_all(&[b'x'; 1024]).is_err() {
                    return;
                }
                let _ = filled.send(());
            }
        });
        while is_filled.recv_timeout(std::time::Duration::from_secs(2)).is_ok() {}
        server.send(libc::SIGINT);
        server.until("the time is up, connections cut: 1");
        server.ends_well();
        let _ = client.kill();
        let _ = client.wait();
        filling.join().expect("no panic");
        let _ = std::fs::remove_file(&ca);
    }
}

#[cfg(feature = "tls")]
#[test]
fn https_get_from_openssl() {
    let wrong = example("https_get", "reactor")
        .arg("ftp://here")
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    if !is_installed("openssl", "version") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("windlass-https-get-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_str().expect("a path of text").to_owned();
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(path("cert.pem"), identity.cert.pem()).expect("a file");
    std::fs::write(path("key.pem"), identity.signing_key.serialize_pem()).expect("a file");
    std::fs::write(path("page.html"), "it is here\n").expect("a file");
    // Which port is free only a listener knows, and it is given up again at once.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("a free port").port().to_string();
    let mut server = Command::new("openssl")
        .args([
            "s_server", "-accept", &port, "-cert", "cert.pem", "-key", "key.pem", "-WWW", "-quiet",
        ])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it is installed");
    for _ in 0..500 {
        match std::net::TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(_) => break,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
    let connect = format!("127.0.0.1:{port}");
    for driver in drivers() {
        let mut get = example("https_get", driver);
        get.args(["--driver", driver, "--connect", &connect, "--ca", &path("cert.pem")]);
        let page = printed(get.arg(format!("https://localhost:{port}/page.html")));
        assert!(page.ends_with("it is here\n"), "{page:?} on {driver}");

        // Somebody else's name, and nobody's authority.
        for (url, trusted, expected) in [
            ("https://example.org/page.html", Some("cert.pem"), "is not for"),
            ("https://localhost/page.html", None, "signed by nobody who is trusted"),
        ] {
            let mut get = example("https_get", driver);
            get.args(["--driver", driver, "--connect", &connect, url]);
            match trusted {
                Some(file) => get.args(["--ca", &path(file)]),
                None => {
                    let mut other = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
                    other
                        .distinguished_name
                        .push(rcgen::DnType::CommonName, "somebody else");
                    let key = rcgen::KeyPair::generate().expect("a key");
                    let other = other.self_signed(&key).expect("a certificate");
                    std::fs::write(path("other.pem"), other.pem()).expect("a file");
                    get.args(["--ca", &path("other.pem")])
                }
            };
            let output = get.output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && said.contains(expected),
                "{said} on {driver}"
            );
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    let _ = std::fs::remove_dir_all(&folder);
}

/// A WebSocket server of the example, and where it listens.
#[cfg(feature = "compat-futures")]
fn websocket_server(driver: &str) -> (Running, String) {
    let mut server = Running::start(example("websocket", driver).args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--driver",
        driver,
        "--max-message",
        "1000",
    ]));
    let addr = server.until("listening on").replace("listening on ", "");
    (server, addr)
}

#[cfg(feature = "compat-futures")]
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
            format!("{count} whole and closed with 1000, 0 told otherwise, 0 not opened, 0 dropped silently");
        assert!(said.contains(&expected), "{said} on {driver}");
        server.send(libc::SIGINT);
        let ledger = server.until("messages; closed:");
        assert_eq!(
            ledger,
            format!(
                "{count} connections, {} messages; closed: {count} with 1000, 0 refused, 0 left without a word, \
                 0 cut at the deadline",
                count * 3
            ),
            "on {driver}"
        );
        server.ends_well();
    }
}

/// A client that says what it likes.
#[cfg(feature = "compat-futures")]
struct RawSocket(BufReader<std::net::TcpStream>);

#[cfg(feature = "compat-futures")]
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

#[cfg(feature = "compat-futures")]
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
        server.send(libc::SIGINT);
        server.until("telling 2 connections");
        waiting.hear_close(1001);
        talking.hear_close(1001);
        talking.0.get_mut().write_all(b"llo").expect("it reads");
        for mut socket in [waiting, talking] {
            socket.say([0x88, 0x82], &[&mask[..], &1001_u16.to_be_bytes()].concat());
            socket.hear_end();
        }
        let ledger = server.until("messages; closed:");
        let expected = "closed: 1 with 1000, 2 with 1001, 2 with 1002, 1 with 1007, 1 with 1009, 1 refused, \
                        1 left without a word, 0 cut at the deadline";
        assert!(ledger.ends_with(expected), "{ledger} on {driver}");
        server.ends_well();
    }
}
