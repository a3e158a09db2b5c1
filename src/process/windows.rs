//! Windows-specific methods: creation flags, raw arguments, Ctrl-Break.

use std::ffi::OsStr;
use std::io;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::os::windows::process::CommandExt;

use super::{Child, Command};
use crate::sys::processes::NEW_GROUP;

/// Options that cannot be read back from std's `Command`.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    creation_flags: u32,
}

impl Extras {
    /// Whether the child is the leader of a process group.
    pub(super) fn leads_a_group(self) -> bool {
        self.creation_flags & NEW_GROUP != 0
    }
}

/// Windows options.
impl Command {
    /// Sets flags for `CreateProcess`, for instance `CREATE_NEW_PROCESS_GROUP` (0x200): Ctrl-C in the console does not
    /// reach the child then, and [`Child::send_ctrl_break`] does.
    pub fn creation_flags(&mut self, flags: u32) -> &mut Command {
        self.extras.creation_flags = flags;
        self.std.creation_flags(flags);
        self
    }

    /// Appends text to the command line without quoting, for programs with their own argument syntax.
    pub fn raw_arg(&mut self, text: impl AsRef<OsStr>) -> &mut Command {
        self.std.raw_arg(text);
        self
    }
}

/// Windows methods.
impl Child {
    /// Sends Ctrl-Break, a request to terminate, to the child's process group. Does nothing after its exit was seen.
    ///
    /// Fails unless the child leads its own process group ([`creation_flags`](Command::creation_flags) with
    /// `CREATE_NEW_PROCESS_GROUP`) and shares our console.
    ///
    /// ```no_run
    /// use windlass::process::Command;
    /// const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    /// windlass::run(async {
    ///     let mut child = Command::new("server").creation_flags(CREATE_NEW_PROCESS_GROUP).spawn()?;
    ///     child.send_ctrl_break()?;
    ///     println!("{}", child.wait().await?);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn send_ctrl_break(&self) -> io::Result<()> {
        match &self.running {
            Some(running) => running.send_ctrl_break(),
            None => Ok(()),
        }
    }

    /// The process handle; `None` after the child's exit was seen.
    pub fn handle(&self) -> Option<BorrowedHandle<'_>> {
        self.running.as_ref().map(|running| running.child.as_handle())
    }
}
