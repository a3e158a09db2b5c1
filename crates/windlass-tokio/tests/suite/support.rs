//! Helpers shared by the tests.

use std::future::Future;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use windlass::{Builder, DriverChoice, EventLoop};

/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(300);

/// Runs a test with a loop of each driver that this machine has.
pub(crate) fn on_every_driver(test: impl Fn(EventLoop) + Clone + Send + 'static) {
    for driver in [DriverChoice::Proactor, DriverChoice::Reactor] {
        let build = move || Builder::new().driver(driver).build();
        if let Err(error) = build() {
            println!("-- SKIPPED on {driver:?}: {error}");
            continue;
        }
        println!("-- on {driver:?}");
        let test = test.clone();
        within(HANG, move || test(build().expect("it was built before")));
    }
}

/// Fails if `call` does not return in time.
fn within(limit: Duration, call: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        call();
        let _ = done.send(());
    });
    match is_done.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        // It has returned or panicked.
        _ => thread
            .join()
            .unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
    }
}

/// How a test runs its program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Beside,
    #[cfg(unix)]
    Guest,
}

/// Runs a program on each driver, in each mode.
pub(crate) fn in_every_mode<F: Future<Output = ()>>(program: impl Fn(Mode) -> F + Clone + Send + 'static) {
    on_every_driver({
        let program = program.clone();
        move |event_loop| {
            use windlass_tokio::WithTokio;
            let program = program(Mode::Beside).with_tokio();
            event_loop.run_until_complete(program).expect("the loop runs");
        }
    });
    #[cfg(unix)]
    on_every_driver(move |event_loop| {
        let guest = windlass_tokio::Guest::new(event_loop).expect("a guest");
        guest.block_on(program(Mode::Guest)).expect("the loop runs");
    });
}
