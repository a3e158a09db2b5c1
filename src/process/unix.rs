//! Unix-specific methods: users, groups, signals.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;

use super::{Child, Command};
use crate::signal::SignalKind;

/// Empty on Unix: std's `Command` keeps all options.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {}

/// Unix options.
impl Command {
    /// Sets the program name that the child sees (argument 0).
    pub fn arg0(&mut self, name: impl AsRef<OsStr>) -> &mut Command {
        self.std.arg0(name);
        self
    }

    /// Sets the user ID of the child.
    pub fn uid(&mut self, id: u32) -> &mut Command {
        self.std.uid(id);
        self
    }

    /// Sets the group ID of the child.
    pub fn gid(&mut self, id: u32) -> &mut Command {
        self.std.gid(id);
        self
    }

    /// Sets the process group of the child; 0 creates a new one, so that Ctrl-C does not reach the child.
    pub fn process_group(&mut self, group: i32) -> &mut Command {
        self.std.process_group(group);
        self
    }

    /// Runs `call` in the child, between `fork` and `exec`.
    ///
    /// # Safety
    ///
    /// As for std's `pre_exec`: after a fork of a multi-threaded program only async-signal-safe functions may be
    /// called, so for instance allocating is not allowed.
    pub unsafe fn pre_exec(&mut self, call: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> &mut Command {
        // SAFETY: guaranteed by the caller.
        unsafe { self.std.pre_exec(call) };
        self
    }
}

/// Unix methods.
impl Child {
    /// Sends a signal, for instance [`SignalKind::terminate`]. Does nothing after the child's exit was seen.
    ///
    /// ```
    /// use std::os::unix::process::ExitStatusExt;
    /// use windlass::{process::Command, signal::SignalKind};
    /// windlass::run(async {
    ///     let mut child = Command::new("sleep").arg("1000").spawn()?;
    ///     child.send_signal(SignalKind::terminate())?;
    ///     assert_eq!(child.wait().await?.signal(), Some(SignalKind::terminate().as_raw()));
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_signal(&self, kind: SignalKind) -> io::Result<()> {
        match &self.running {
            Some(running) => running.send_signal(kind.as_raw()),
            None => Ok(()),
        }
    }
}
