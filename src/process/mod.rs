//! Children: other programs, started, awaited and ended.
//!
//! A child that has ended stays in the kernel's table, a zombie, until its parent has asked how it ended. Asking blocks
//! (`waitpid`), and the news that it would not block any more is a signal that says "some child, perhaps several". So who
//! wants no thread per child has to look through all of them at each signal, and who drops a handle leaves a zombie.
//!
//! Our answer is a descriptor per child (`pidfd_open`, Linux 5.3), which becomes readable when the child ends: one more
//! descriptor to wait for, on every driver. Where the kernel has none, `SIGCHLD` comes through the room of
//! [`signal`](crate::signal), and everybody who waits looks for their own child. Nobody asks for "any child": those of other
//! libraries are not ours to reap.
//!
//! ```text
//!   Child awaited            readable(pidfd) -> try_wait: the exit status, and the zombie is gone
//!   Child dropped            a task of the loop inherits it, and does the same
//!   loop closed before that  a thread inherits all that are left: poll(2) on their pidfds; ends with the last of them
//! ```
//!
//! On Windows there are no zombies: a process goes with its last handle. Its end is heard by a wait that the system's thread
//! pool makes for us (`registered.rs`), so no thread of ours waits, and a child that is dropped needs nobody.
//!
//! Starting is std's own `posix_spawn` (or `fork` and `exec`, or `CreateProcess`), and blocks for as long as that takes: see
//! [`Command::spawn`].

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
