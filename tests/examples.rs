//! The examples do what they say, each run as a user would run it, on every driver.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

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
