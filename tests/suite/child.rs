//! Tests that change what a whole process shares (limits, signals, the environment) run again in a process of their own.

#![allow(dead_code, reason = "not every build of the suite uses every helper")]

use std::io::Read;
use std::process::{Command, Stdio};

/// What a process was started for: one test, or a part of the suite, whose tests may want processes of their own again.
const ROLE: &str = "WINDLASS_TEST_CHILD";
const ONE_TEST: &str = "test";
const A_PART: &str = "suite";

fn has_own_process() -> bool {
    std::env::var_os(ROLE).is_some_and(|role| role == ONE_TEST)
}

/// A signal ends a sleep, which is a system call more; here they are counted.
pub(crate) const UNDISTURBED: [(&str, &str); 1] = [("WINDLASS_TEST_ITIMER", "0")];

/// Runs `body` in a new process: calls the test named `test` (its full path) there again. With this one process for one
/// test, what `body` does to the process harms no other test.
pub(crate) fn in_own_process(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if has_own_process() {
        return body();
    }
    if cfg!(miri) {
        return println!("-- SKIPPED: Miri has no processes");
    }
    let mut command = again(&["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, ONE_TEST).envs(settings.iter().copied());
    let output = run(command);
    assert!(output.contains("1 passed"), "no test is called {test}:\n{output}");
}

/// Runs the tests that `filters` select in a new process, with these variables set. Does nothing in such a process.
pub(crate) fn suite_with(filters: &[&str], settings: &[(&str, &str)]) {
    if std::env::var_os(ROLE).is_some() || cfg!(miri) {
        return;
    }
    let mut command = again(filters);
    command.env(ROLE, A_PART).envs(settings.iter().copied());
    let output = run(command);
    assert!(output.contains("test result: ok"), "{output}");
    assert!(
        !output.contains("running 0 tests"),
        "{filters:?} select nothing:\n{output}"
    );
}

/// As [`in_own_process`], and gives what the new process wrote to its standard error. Gives nothing in that process.
pub(crate) fn heard_from_own_process(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if has_own_process() {
        body();
        return None;
    }
    if cfg!(miri) {
        println!("-- SKIPPED: Miri has no processes");
        return None;
    }
    let mut command = again(&["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, ONE_TEST).envs(settings.iter().copied());
    let output = command.stderr(Stdio::piped()).output().expect("a process");
    let heard = String::from_utf8(output.stderr).expect("its errors are text");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}:\n{said}\n{heard}", output.status);
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    Some(heard)
}

fn again(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

fn run(mut command: Command) -> String {
    let mut child = command.spawn().expect("a process");
    let mut output = String::new();
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_to_string(&mut output).expect("its output is text");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "the process ended with {status}:\n{output}");
    output
}
