//! Shared by the programs: the counterpart of `examples/support`.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// `println!` that ignores errors.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// How long open connections may continue after Ctrl-C or SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// Ctrl-C and SIGTERM.
pub struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
}

impl Shutdown {
    pub fn new() -> io::Result<Shutdown> {
        Ok(Shutdown {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Logs an error of `accept` and pauses.
pub async fn accept_failed(error: io::Error) {
    eprintln!("accept: {error}");
    sleep(Duration::from_millis(50)).await;
}

/// Takes the results of connections that have ended.
pub fn reap(connections: &mut JoinSet<()>) {
    while connections.try_join_next().is_some() {}
}

/// Waits until the open connections end. After `grace`, the remaining ones are cancelled.
pub async fn drain(mut connections: JoinSet<()>, grace: Duration) {
    reap(&mut connections);
    outln!("stopped accepting; {} connections are left", connections.len());
    let ended = timeout(grace, async { while connections.join_next().await.is_some() {} });
    if ended.await.is_ok() {
        return outln!("all finished");
    }
    outln!("{} connections are cut", connections.len());
    connections.shutdown().await;
}
