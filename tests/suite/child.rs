//! Tests that change process-wide state (limits, signals, the environment) run again in a process of their own.

#![allow(dead_code, reason = "not every build of the suite uses every helper")]

use std::io::Read;
use std::process::{Command, Stdio};

/// Why this process was started: for one test, or for a part of the suite whose tests may start processes again.
const ROLE: &str = "WINDLASS_TEST_CHILD";
const ONE_TEST: &str = "test";
const A_PART: &str = "suite";

fn has_own_process() -> bool {
    std::env::var_os(ROLE).is_some_and(|role| role == ONE_TEST)
}

/// Disables the interval timer: its signal ends a sleep early, and some tests count system calls.
pub(crate) const UNDISTURBED: [(&str, &str); 1] = [("WINDLASS_TEST_ITIMER", "0")];

/// Runs `body` in a new process, by running the test named `test` (its full path) there. That process runs no other
/// test, so `body` may change process-wide state.
pub(crate) fn in_own_process(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if has_own_process() {
        return body();
    }
    if cfg!(miri) {
        return println!("-- SKIPPED: Miri has no processes");
    }
    let mut command = test_command(&["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, ONE_TEST).envs(settings.iter().copied());
    let output = run(command);
    assert!(output.contains("1 passed"), "no test is called {test}:\n{output}");
}

/// Runs the tests that `filters` select in a new process with these variables set. Does nothing inside such a process.
pub(crate) fn suite_with(filters: &[&str], settings: &[(&str, &str)]) {
    if std::env::var_os(ROLE).is_some() || cfg!(miri) {
        return;
    }
    let mut command = test_command(filters);
    command.env(ROLE, A_PART).envs(settings.iter().copied());
    let output = run(command);
    assert!(output.contains("test result: ok"), "{output}");
    assert!(
        !output.contains("running 0 tests"),
        "{filters:?} select nothing:\n{output}"
    );
}

/// As [`in_own_process`], and returns what the new process wrote to standard error; `None` inside that process.
pub(crate) fn stderr_of_own_process(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if has_own_process() {
        body();
        return None;
    }
    if cfg!(miri) {
        println!("-- SKIPPED: Miri has no processes");
        return None;
    }
    let mut command = test_command(&["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, ONE_TEST).envs(settings.iter().copied());
    let output = command.stderr(Stdio::piped()).output().expect("a process");
    let error_output = String::from_utf8(output.stderr).expect("its errors are text");
    let test_output = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}:\n{test_output}\n{error_output}",
        output.status
    );
    assert!(
        test_output.contains("1 passed"),
        "no test is called {test}:\n{test_output}"
    );
    Some(error_output)
}

fn test_command(arguments: &[&str]) -> Command {
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
    let status = child.wait().expect("the process ends");
    assert!(status.success(), "the process ended with {status}:\n{output}");
    output
}
