//! Shared by the examples: printing, and draining a server's connections. Copy it with an example that uses it.

#![allow(dead_code, unused_macros, unused_imports, reason = "no example uses all of it")]

use std::io;
use std::time::Duration;

use windlass::task::JoinSet;
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

/// Takes the results of connections that have ended, so that the set does not keep them.
pub(crate) fn reap(connections: &mut JoinSet<()>) {
    while connections.try_join_next().is_some() {}
}

/// Waits until the open connections end. After `grace`, the remaining ones are cancelled.
pub(crate) async fn drain(mut connections: JoinSet<()>, grace: Duration) {
    reap(&mut connections);
    outln!("stopped accepting; {} connections are left", connections.len());
    let ended = timeout(grace, async { while connections.join_next().await.is_some() {} });
    if ended.await.is_ok() {
        return outln!("all finished");
    }
    outln!("{} connections are cut", connections.len());
    connections.shutdown().await;
}
