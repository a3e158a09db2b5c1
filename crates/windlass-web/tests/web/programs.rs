//! The example servers as processes of their own, under curl, wrk and h2load, until SIGTERM. A missing program is skipped.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is killed if the test fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// Sends SIGTERM.
    fn terminate(&self) {
        let killed = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(killed.unwrap().success());
    }
}

/// A running example server, and its output.
struct Server {
    program: Program,
    addr: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(example: &Path, args: &[&str]) -> Server {
        let mut command = Command::new(example);
        let mut child = command
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let addr = line
            .trim()
            .strip_prefix("listening on ")
            .expect("the server's first line")
            .to_owned();
        let program = Program(child);
        Server { program, addr, output }
    }

    /// Sends SIGTERM, and expects an orderly end.
    fn stop(mut self) {
        self.program.terminate();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "stopped\n");
        assert!(self.program.0.wait().unwrap().success());
    }
}

/// Builds an example as this test was built.
fn example(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let profile = deps.parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "windlass-web",
        "--all-features",
        "--example",
        name,
    ]);
    cargo
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
    profile.join("examples").join(name)
}

/// The output of a program that must succeed; `None` if it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program}: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(text)
}

/// `requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout`
fn check_h2load(output: &str, requests: u32) {
    let line = output
        .lines()
        .find(|line| line.starts_with("requests:"))
        .expect("a summary");
    assert!(
        line.contains(&format!(" {requests} succeeded, 0 failed, 0 errored, 0 timeout")),
        "{line}"
    );
}

fn exercise(server: &Server, curl_args: &[&str], scheme: &str) {
    let uri = |path: &str| format!("{scheme}://{}{path}", server.addr);
    let curl = |args: &[&str]| {
        let all: Vec<&str> = ["--silent", "--show-error", "--fail"]
            .iter()
            .chain(curl_args)
            .chain(args)
            .copied()
            .collect();
        run("curl", &all)
    };
    for version in [
        "--http1.1",
        if scheme == "https" {
            "--http2"
        } else {
            "--http2-prior-knowledge"
        },
    ] {
        let Some(hello) = curl(&[version, &uri("/")]) else {
            break;
        };
        assert_eq!(hello, "hello\n");
        let json = ["-H", "content-type: application/json", "-d", r#"{"numbers": [40, 2]}"#];
        let sum = curl(&[&[version, &uri("/sum")][..], &json].concat()).unwrap();
        assert_eq!(sum, r#"{"numbers":[40,2],"sum":42}"#);
        assert_eq!(
            curl(&[version, "-r", "0-8", &uri("/files/Cargo.toml")]).unwrap(),
            "[package]"
        );
        assert!(curl(&[version, &uri("/whoami")]).unwrap().starts_with("127.0.0.1:"));
        let many: Vec<String> = (0..20).map(|_| uri("/slow")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let slow = curl(&[&[version, "--parallel", "--parallel-immediate"][..], &many].concat()).unwrap();
        assert_eq!(slow, "slow\n".repeat(20));
    }
    // wrk reports socket errors and other statuses in lines of their own. It does not check certificates.
    for path in ["/", "/slow", "/files/Cargo.toml"] {
        if let Some(output) = run("wrk", &["-t1", "-c50", "-d1s", &uri(path)]) {
            assert!(
                !output.contains("Socket errors") && !output.contains("Non-2xx"),
                "{path}: {output}"
            );
            assert!(output.contains("requests in"), "{output}");
        }
    }
    for (path, options) in [
        ("/", &["-n2000", "-c10", "-m20"][..]),
        ("/slow", &["-n200", "-c2", "-m50"]),
    ] {
        if let Some(output) = run("h2load", &[options, &[&uri(path)]].concat()) {
            check_h2load(&output, options[0][2..].parse().unwrap());
        }
        if let Some(output) = run("h2load", &[options, &["-m1", "--h1", &uri(path)]].concat()) {
            check_h2load(&output, options[0][2..].parse().unwrap());
        }
    }
}

/// The names of the drivers that this machine supports.
fn available_drivers() -> Vec<&'static str> {
    let is_available = |name: &&str| {
        let driver = windlass::Builder::new().driver(name.parse().unwrap());
        driver
            .build()
            .inspect_err(|error| println!("skipped: {name}: {error}"))
            .is_ok()
    };
    ["proactor", "reactor"].into_iter().filter(is_available).collect()
}

#[cfg(unix)]
#[test]
fn the_example_under_load() {
    let example = example("server");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let dir = std::env::temp_dir().join(format!("windlass-web-programs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let files = env!("CARGO_MANIFEST_DIR");
    for driver in available_drivers() {
        let server = Server::start(&example, &["--driver", driver, "--files", files]);
        exercise(&server, &[], "http");
        server.stop();
        let server = Server::start(
            &example,
            &["--driver", driver, "--files", files, "--cert", cert, "--key", key],
        );
        exercise(&server, &["--cacert", cert], "https");
        server.stop();
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// `serve_shards` on all cores, until SIGTERM.
#[cfg(unix)]
#[test]
fn the_example_on_shards() {
    let example = example("shards");
    let cpus = std::thread::available_parallelism().unwrap().get();
    for driver in available_drivers() {
        let (mut program, addr) = start_on_free_port(&example, driver);
        let shards: BTreeSet<usize> = (0..64).map(|_| shard_of_answer(&addr)).collect();
        assert!(shards.iter().all(|&shard| shard < cpus), "{shards:?}");
        assert_eq!(shards.len() > 1, cpus > 1, "64 connections, {cpus} shards: {shards:?}");
        program.terminate();
        assert!(program.0.wait().unwrap().success(), "an orderly end");
    }
}

/// Starts the example, and waits until it answers. Another process may take the port first: then it ends, and another port is tried.
fn start_on_free_port(example: &Path, driver: &str) -> (Program, String) {
    for _ in 0..10 {
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addr = addr.to_string();
        let mut child = Command::new(example)
            .arg(&addr)
            .env("WINDLASS_DRIVER", driver)
            .spawn()
            .unwrap();
        while child.try_wait().unwrap().is_none() {
            if TcpStream::connect(&addr).is_ok() {
                return (Program(child), addr);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("the example does not start");
}

/// The shard that serves a new connection.
fn shard_of_answer(addr: &str) -> usize {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let shard = answer
        .split_once("\r\n\r\nhello from shard ")
        .map(|(_, shard)| shard.trim());
    shard
        .and_then(|shard| shard.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}
