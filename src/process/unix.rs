//! What only Unix has: users, groups, signals.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;

use super::{Child, Command};
use crate::signal::SignalKind;

/// Whatever is asked for here, std keeps.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {}

/// What Unix has besides.
impl Command {
    /// Sets what the program sees as its own name, the argument before the first.
    pub fn arg0(&mut self, name: impl AsRef<OsStr>) -> &mut Command {
        self.std.arg0(name);
        self
    }

    /// Sets the user that the child runs as.
    pub fn uid(&mut self, id: u32) -> &mut Command {
        self.std.uid(id);
        self
    }

    /// Sets the group that the child runs as.
    pub fn gid(&mut self, id: u32) -> &mut Command {
        self.std.gid(id);
        self
    }

    /// Puts the child into a process group; 0 makes a new one, so that Ctrl-C in our terminal does not reach it.
    pub fn process_group(&mut self, group: i32) -> &mut Command {
        self.std.process_group(group);
        self
    }

    /// Runs `call` in the child, between `fork` and `exec`.
    ///
    /// # Safety
    ///
    /// As for std's: in a program with threads next to nothing is safe there, allocating for instance is not.
    pub unsafe fn pre_exec(&mut self, call: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> &mut Command {
        // SAFETY: the caller's promise.
        unsafe { self.std.pre_exec(call) };
        self
    }
}

/// What Unix has besides.
impl Child {
    /// Sends a signal: [`SignalKind::terminate`] asks it to end. Does nothing to a child whose end is known.
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
        match self.running() {
            Some(running) => running.send_signal(kind.as_raw()),
            None => Ok(()),
        }
    }
}
