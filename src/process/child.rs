//! A child, as its parent holds it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::process::{ExitStatus, Output};
use std::task::Poll;

use super::extras::Extras;
use super::running::Running;
use super::streams::{ChildStderr, ChildStdin, ChildStdout};
use crate::event_loop::core::LoopCore;

/// A child that was started with [`Command::spawn`](super::Command::spawn).
///
/// Dropping it lets the child run on, or kills it if [`kill_on_drop`](super::Command::kill_on_drop) was asked for. Either way
/// the loop waits for its end, and after the loop a thread does, so no zombie stays.
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
#[must_use = "a child that is dropped runs on without anybody to hear how it ended"]
pub struct Child {
    /// Where the child reads from, if it was piped.
    pub stdin: Option<ChildStdin>,
    /// What the child writes, if it was piped.
    pub stdout: Option<ChildStdout>,
    /// What the child writes as errors, if it was piped.
    pub stderr: Option<ChildStderr>,
    state: State,
    kill_on_drop: bool,
}

enum State {
    Running(Running),
    Ended(ExitStatus),
    /// Only while it is dropped.
    Left,
}

impl Child {
    /// Takes a child that was just started. If anything fails, it is killed.
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
            state: State::Running(Running::new(core, child, extras)?),
            // Until it is whole.
            kill_on_drop: true,
        };
        adopted.stdin = stdin.map(ChildStdin::adopt).transpose()?;
        adopted.stdout = stdout.map(ChildStdout::adopt).transpose()?;
        adopted.stderr = stderr.map(ChildStderr::adopt).transpose()?;
        adopted.kill_on_drop = kill_on_drop;
        Ok(adopted)
    }

    /// The process's number; `None` once its end is known, since the number may be another's then.
    pub fn id(&self) -> Option<u32> {
        self.running().map(Running::id)
    }

    /// Closes the pipe to the child's input, if there is one, waits for its end, and tells how it ended; again, when it is
    /// called again.
    ///
    /// Cancelling it loses nothing: the next call waits on.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // Otherwise it might wait for input, and we for it.
        drop(self.stdin.take());
        let status = match &mut self.state {
            State::Running(running) => running.ended().await?,
            State::Ended(status) => *status,
            State::Left => unreachable!("nobody waits for a child that is dropped"),
        };
        self.state = State::Ended(status);
        Ok(status)
    }

    /// How the child has ended; `None` if it still runs.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let ended = match &mut self.state {
            State::Running(running) => running.try_wait()?,
            State::Ended(status) => Some(*status),
            State::Left => None,
        };
        if let Some(status) = ended {
            self.state = State::Ended(status);
        }
        Ok(ended)
    }

    /// The child, unless its end is known.
    pub(super) fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            State::Ended(_) | State::Left => None,
        }
    }

    /// Ends it at once (`SIGKILL`, `TerminateProcess`), without waiting for the end. Does nothing to a child whose end is known.
    pub fn start_kill(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Running(running) => running.kill(),
            State::Ended(_) | State::Left => Ok(()),
        }
    }

    /// Ends it at once (`SIGKILL`, `TerminateProcess`) and waits for the end. Cancelling it only ends the waiting.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Closes the pipe to the child's input, collects what it still writes to the pipes that were not taken, and waits for
    /// its end. All at once, so that neither of us waits for the other, however much it writes.
    ///
    /// Cancelling it drops the child, and what was collected.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let read_stdout = async {
            match &stdout {
                Some(stdout) => stdout.read_whole().await,
                None => Ok(Vec::new()),
            }
        };
        let read_stderr = async {
            match &stderr {
                Some(stderr) => stderr.read_whole().await,
                None => Ok(Vec::new()),
            }
        };
        let (status, stdout, stderr) = all(self.wait(), read_stdout, read_stderr).await;
        Ok(Output {
            status: status?,
            stdout: stdout?,
            stderr: stderr?,
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let State::Running(mut running) = std::mem::replace(&mut self.state, State::Left) {
            if self.kill_on_drop && !running.is_forked() {
                // It has not been waited for, so the number is still the child's; if it has ended this is no error.
                let _ = running.kill();
            }
            running.leave_behind();
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Child");
        match &self.state {
            State::Running(running) => debug.field("id", &running.id()),
            State::Ended(status) => debug.field("ended", status),
            State::Left => &mut debug,
        };
        debug
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .field("kill_on_drop", &self.kill_on_drop)
            .finish()
    }
}

/// Waits for three futures at once.
async fn all<A: Future, B: Future, C: Future>(a: A, b: B, c: C) -> (A::Output, B::Output, C::Output) {
    let (mut a, mut b, mut c) = (pin!(a), pin!(b), pin!(c));
    let (mut done_a, mut done_b, mut done_c) = (None, None, None);
    poll_fn(|cx| {
        if done_a.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(cx)
        {
            done_a = Some(output);
        }
        if done_b.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(cx)
        {
            done_b = Some(output);
        }
        if done_c.is_none()
            && let Poll::Ready(output) = c.as_mut().poll(cx)
        {
            done_c = Some(output);
        }
        if done_a.is_none() || done_b.is_none() || done_c.is_none() {
            return Poll::Pending;
        }
        let outputs = done_a.take().zip(done_b.take()).zip(done_c.take());
        let ((a, b), c) = outputs.expect("all three are done");
        Poll::Ready((a, b, c))
    })
    .await
}
