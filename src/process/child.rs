//! A handle to a child process.

use std::fmt;
use std::io;
use std::process::{ExitStatus, Output};

use super::extras::Extras;
use super::running::Running;
use super::streams::{ChildStderr, ChildStdin, ChildStdout};
use crate::event_loop::core::LoopCore;
use crate::io::AsyncRead;
use crate::task::join;

/// A child process, created by [`Command::spawn`](super::Command::spawn).
///
/// Dropping it lets the process run on, or kills it if [`kill_on_drop`](super::Command::kill_on_drop) was set. In both
/// cases the loop reaps the process, or a background thread if the loop closes first, so no zombie is left.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///     let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
///     stdin.write_all("to the cat and back").await.0?;
///     drop(stdin);
///     assert_eq!(&*stdout.read_managed().await?, b"to the cat and back");
///     assert!(child.wait().await?.success());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a dropped child runs on, and its exit status is lost"]
pub struct Child {
    /// The pipe to the child's standard input, if it was piped.
    pub stdin: Option<ChildStdin>,
    /// The pipe from the child's standard output, if it was piped.
    pub stdout: Option<ChildStdout>,
    /// The pipe from the child's standard error, if it was piped.
    pub stderr: Option<ChildStderr>,
    /// `None` after the exit was seen.
    pub(super) running: Option<Running>,
    status: Option<ExitStatus>,
    kill_on_drop: bool,
}

impl Child {
    /// Takes ownership of a new child. If this fails, the child is killed.
    pub(super) fn adopt(
        core: &LoopCore,
        mut child: std::process::Child,
        extras: Extras,
        kill_on_drop: bool,
    ) -> io::Result<Child> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut adopted = Child {
            stdin: None,
            stdout: None,
            stderr: None,
            running: Some(Running::new(core, child, extras)?),
            status: None,
            // Until all pipes are registered.
            kill_on_drop: true,
        };
        adopted.stdin = stdin.map(ChildStdin::adopt).transpose()?;
        adopted.stdout = stdout.map(ChildStdout::adopt).transpose()?;
        adopted.stderr = stderr.map(ChildStderr::adopt).transpose()?;
        adopted.kill_on_drop = kill_on_drop;
        Ok(adopted)
    }

    /// The process ID; `None` after its exit was seen, because the system may reuse the ID.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Closes the pipe to the child's standard input, waits for the exit and returns the status; so do later calls. A
    /// child that blocks on a full output pipe never exits: see [`wait_with_output`](Child::wait_with_output).
    ///
    /// **Cancel safety:** the next call continues to wait.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // The child might wait for the end of its input.
        drop(self.stdin.take());
        if let Some(running) = &mut self.running {
            let status = running.wait().await?;
            (self.running, self.status) = (None, Some(status));
        }
        Ok(self.status.expect("a child that does not run has exited"))
    }

    /// Returns the exit status, or `None` if the child is still running.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Some(running) = &mut self.running
            && let Some(status) = running.child.try_wait()?
        {
            (self.running, self.status) = (None, Some(status));
        }
        Ok(self.status)
    }

    /// Kills the child (`SIGKILL`, `TerminateProcess`) without waiting for it. Does nothing after its exit was seen.
    pub fn start_kill(&mut self) -> io::Result<()> {
        match &mut self.running {
            Some(running) => running.child.kill(),
            None => Ok(()),
        }
    }

    /// Kills the child (`SIGKILL`, `TerminateProcess`) and waits for it to exit. Cancelling only ends the wait.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Closes the pipe to the child's standard input, collects its output from the pipes that were not taken, and waits
    /// for it to exit. All of this runs concurrently, so large outputs do not deadlock.
    ///
    /// **Cancel safety:** the child and the collected output are dropped.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let (status, stdout, stderr) = join((self.wait(), read_all(stdout), read_all(stderr))).await;
        Ok(Output {
            status: status?,
            stdout: stdout?,
            stderr: stderr?,
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            if self.kill_on_drop && !running.is_forked() {
                // The child was not reaped, so the process ID is still its own.
                let _ = running.child.kill();
            }
            running.detach();
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Child");
        match &self.status {
            Some(status) => debug.field("exited", status),
            None => debug.field("id", &self.id().unwrap_or_default()),
        };
        debug
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .field("kill_on_drop", &self.kill_on_drop)
            .finish()
    }
}

/// Reads a pipe, if there is one, up to its end.
async fn read_all(pipe: Option<impl AsyncRead>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes, usize::MAX).await?;
    }
    Ok(bytes)
}
