//! Child processes.
//!
//! ```no_run
//! use windlass::process::Command;
//! windlass::run(async {
//!     let status = Command::new("make").arg("all").status().await?;
//!     println!("make: {status}");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Design
//!
//! An exited child stays a zombie until its parent has called `waitpid`, which blocks, and `SIGCHLD` does not say which
//! child has exited. So each child has a pidfd (`pidfd_open`, Linux 5.3), which becomes readable when the child exits.
//! Without pidfds, each waiter checks its own child after a `SIGCHLD` (see [`signal`](crate::signal)). The runtime
//! never waits for "any child": it must not reap the children of other libraries.
//!
//! - A `Child` that is awaited: `readable(pidfd)`, then `try_wait` reaps the child and returns its exit status.
//! - A dropped `Child`: a task of the loop does the same.
//! - A loop that closes before that: one thread polls the pidfds of the remaining children, until the last has exited.
//!
//! Windows has no zombies: a process object is freed with its last handle. The system's thread pool waits for the exit
//! (`registered.rs`), and a dropped child needs no reaping.

mod child;
mod command;
#[cfg(unix)]
#[path = "unix.rs"]
mod extras;
#[cfg(windows)]
#[path = "windows.rs"]
mod extras;
#[cfg(unix)]
mod orphan_reaper;
#[cfg(windows)]
#[path = "registered.rs"]
mod running;
#[cfg(unix)]
mod running;
mod streams;

pub use std::process::{ExitStatus, Output, Stdio};

pub use self::child::Child;
pub use self::command::Command;
pub use self::streams::{ChildStderr, ChildStdin, ChildStdout};
