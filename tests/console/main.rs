//! The console, over HTTP as a client sees it: snapshots, stalls, metrics, and clients that must get nothing.
//!
//! The tests of one process run at the same time, and every console shows all loops. So each test names the thread of its
//! loop, and looks for that name.

mod client;
mod hostile;
mod metrics;
mod snapshots;
mod stalls;
#[path = "../suite/support.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;

use windlass::LoopHandle;
use windlass::console::{self, Console};

use crate::support::Case;

/// A console on a free port.
fn serve() -> Console {
    console::serve("127.0.0.1:0").expect("a console")
}

/// A name that no other loop of the process has.
fn unique(name: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{name}-{}", COUNT.fetch_add(1, SeqCst))
}

/// A loop on a thread with a unique name.
struct Program {
    name: String,
    driver: &'static str,
    handle: LoopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Program {
    fn start(case: Case) -> Program {
        let name = unique("program");
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let event_loop = case.event_loop();
            sender
                .send((event_loop.handle(), event_loop.describe().name))
                .expect("the test waits");
            event_loop.run_forever().expect("the loop runs");
        });
        let (handle, driver) = receiver.recv().expect("a loop");
        Program {
            name,
            driver,
            handle,
            thread: Some(thread.expect("a thread")),
        }
    }

    /// Runs a call on the loop's thread and returns its result.
    fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let result = self.handle.spawn_with(move || async move { call() });
        result.expect("the loop is open").wait().expect("no panic")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking());
        }
    }
}

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn block(&self) {
        let is_open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// Opens its gate when it is dropped, so that a failed test ends.
struct OpenOnDrop(Gate);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}
