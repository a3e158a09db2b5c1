//! Shared by the examples: printing, and the tasks of a server's connections. Copy it with an example that uses it.

#![allow(dead_code, unused_macros, unused_imports, reason = "no example uses all of it")]

use std::future::Future;
use std::io;
use std::time::Duration;

use windlass::JoinHandle;
use windlass::time::{sleep, timeout};

/// `println!` that ignores errors: `println!` panics when standard output is a closed pipe, as in `example | head -1`.
macro_rules! outln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
pub(crate) use outln;

/// How long open connections may continue after Ctrl-C or SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Logs an error of `accept` and pauses, so that a repeated error does not use a whole core. The listener is still
/// usable: most errors concern one connection, or pass when another connection closes.
pub(crate) async fn accept_failed(error: io::Error) {
    eprintln!("accept: {error}");
    sleep(Duration::from_millis(50)).await;
}

/// The tasks that serve a server's connections.
#[derive(Default)]
pub(crate) struct Connections {
    tasks: Vec<JoinHandle<()>>,
}

impl Connections {
    pub(crate) fn spawn(&mut self, serving: impl Future<Output = ()> + 'static) {
        // Only when the vector would grow: it then holds at most twice the open connections, at an amortized constant
        // cost.
        if self.tasks.len() == self.tasks.capacity() {
            self.tasks.retain(|task| !task.is_finished());
        }
        self.tasks.push(windlass::spawn(serving));
    }

    /// Waits until the open connections end. After `grace`, the remaining ones are cancelled.
    pub(crate) async fn drain(mut self, grace: Duration) {
        self.tasks.retain(|task| !task.is_finished());
        outln!("stopped accepting; {} connections are left", self.tasks.len());
        let ended = timeout(grace, async {
            for task in &mut self.tasks {
                let _ = task.await;
            }
        });
        if ended.await.is_ok() {
            return outln!("all finished");
        }
        self.tasks.retain(|task| !task.is_finished());
        outln!("{} connections are cut", self.tasks.len());
        for task in self.tasks {
            task.cancel();
            let _ = task.await;
        }
    }
}
