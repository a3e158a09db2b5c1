//! What only Windows has: flags of a new process, arguments as they stand, Ctrl-Break.

use std::ffi::OsStr;
use std::io;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::os::windows::process::CommandExt;

use super::{Child, Command};
use crate::sys::processes::NEW_GROUP;

/// What std does not tell any more once it was told.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    creation_flags: u32,
}

impl Extras {
    /// Whether the child is the first of a process group.
    pub(super) fn leads_a_group(self) -> bool {
        self.creation_flags & NEW_GROUP != 0
    }
}

/// What Windows has besides.
impl Command {
    /// Sets flags for `CreateProcess`, as std's does: `CREATE_NEW_PROCESS_GROUP` (0x200) for instance, so that Ctrl-C in our
    /// console does not reach the child, and [`Child::send_ctrl_break`] does.
    pub fn creation_flags(&mut self, flags: u32) -> &mut Command {
        self.extras.creation_flags = flags;
        self.std.creation_flags(flags);
        self
    }

    /// Adds to the command line as it stands, without quoting it, for programs that take it apart in their own way.
    pub fn raw_arg(&mut self, text: impl AsRef<OsStr>) -> &mut Command {
        self.std.raw_arg(text);
        self
    }
}

/// What Windows has besides.
impl Child {
    /// Sends Ctrl-Break to the child and what it has started: the one request to end that Windows knows. Does nothing to a
    /// child whose end is known.
    ///
    /// The child must lead a process group of its own, by [`creation_flags`](Command::creation_flags) with
    /// `CREATE_NEW_PROCESS_GROUP`, and share our console. Otherwise this is an error.
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
        match self.running() {
            Some(running) => running.send_ctrl_break(),
            None => Ok(()),
        }
    }

    /// The process's handle; `None` once its end is known.
    pub fn handle(&self) -> Option<BorrowedHandle<'_>> {
        self.running().map(|running| running.child.as_handle())
    }
}
