//! openraft's conformance tests for runtimes, on every driver.
//!
//! `cargo test -p openraft-rt-windlass` tests the `Send` runtime, and with `--features single-threaded` the other one.

use std::process::Command;

use openraft_rt::testing::Suite;
use openraft_rt_windlass::WindlassRuntime;
use windlass::{Builder, DriverChoice, EventLoop};

fn event_loop(choice: DriverChoice) -> Option<EventLoop> {
    match Builder::new().driver(choice).build() {
        Ok(event_loop) => Some(event_loop),
        Err(error) => {
            println!("skipped: {choice:?} is not available: {error}");
            None
        }
    }
}

/// The whole suite, in a process of its own: it makes loops with [`EventLoop::new`], for which the environment chooses the
/// driver.
fn passes(choice: DriverChoice, name: &str) {
    if event_loop(choice).is_none() {
        return;
    }
    let mut test = Command::new(std::env::current_exe().expect("the path of this test"));
    let test = test.args(["--ignored", "--exact", "whole_suite"]);
    let output = test.env("WINDLASS_DRIVER", name).output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "started by the other tests, once for each driver"]
fn whole_suite() {
    Suite::<WindlassRuntime>::test_all();
}

#[test]
fn proactor() {
    passes(DriverChoice::Proactor, "proactor");
}

#[test]
fn reactor() {
    passes(DriverChoice::Reactor, "reactor");
}

#[test]
fn null() {
    passes(DriverChoice::Null, "null");
}

/// A runtime with a loop of the caller's.
#[test]
fn own_loop() {
    let event_loop = event_loop(DriverChoice::Null).expect("it is always available");
    Suite::test_all_on(&mut WindlassRuntime::from_loop(event_loop));
}
