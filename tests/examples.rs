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
