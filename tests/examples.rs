//! The examples do what they say, each run as a user would run it, on every driver.

use std::path::PathBuf;
use std::process::{Command, Stdio};

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

/// The demonstration, and a server and a client of their own, one asked by the other.
#[test]
fn udp_echo() {
    use std::io::{BufRead, BufReader};
    for driver in drivers() {
        let text = printed(&mut example("udp_echo", driver));
        assert!(text.contains("100 datagrams there and back"), "on {driver}: {text}");
        let mut server = example("udp_echo", driver)
            .args(["serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example is built: `cargo build --examples`");
        let mut line = String::new();
        let mut lines = BufReader::new(server.stdout.take().expect("it is piped"));
        lines.read_line(&mut line).expect("it prints text");
        let addr = line.trim().strip_prefix("listening on ").expect("it says where");
        let answer = printed(example("udp_echo", driver).args(["send", addr, "some words"]));
        server.kill().expect("it runs until then");
        server.wait().expect("it ends");
        assert_eq!(answer.trim(), "some words", "on {driver}");
        let refused = example("udp_echo", driver).arg("sing").output().expect("it runs");
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("usage"));
    }
}
