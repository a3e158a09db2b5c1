//! What to start, and how.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use super::child::Child;
use super::extras::Extras;
use crate::event_loop::core::LoopCore;
use crate::sys::context;

/// A program to start, with its arguments and surroundings: std's `Command`, whose children can be awaited.
///
/// ```
/// use windlass::process::Command;
/// windlass::run(async {
///     let output = Command::new("echo").arg("hello").output().await?;
///     assert!(output.status.success());
///     assert_eq!(output.stdout, b"hello\n");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Command {
    pub(super) std: std::process::Command,
    /// What was asked for that only this system has.
    pub(super) extras: Extras,
    kill_on_drop: bool,
    /// Which of the streams were said; the others depend on what the child is started for.
    said: Said,
}

#[derive(Clone, Copy, Default)]
struct Said {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Command {
    /// Begins a command: the program is looked for in `PATH` unless it has a slash.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        Command::from(std::process::Command::new(program))
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Command {
        self.std.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Command {
        self.std.args(args);
        self
    }

    /// Sets a variable of the environment.
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.std.env(key, value);
        self
    }

    /// Sets variables of the environment.
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(&mut self, vars: impl IntoIterator<Item = (K, V)>) -> &mut Command {
        self.std.envs(vars);
        self
    }

    /// Takes a variable out of the environment.
    pub fn env_remove(&mut self, key: impl AsRef<OsStr>) -> &mut Command {
        self.std.env_remove(key);
        self
    }

    /// Begins with an empty environment.
    pub fn env_clear(&mut self) -> &mut Command {
        self.std.env_clear();
        self
    }

    /// Sets the folder that the child works in.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Command {
        self.std.current_dir(dir);
        self
    }

    /// Sets the child's standard input. Without this it has ours, or, for [`output`](Command::output), none.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.said.stdin = true;
        self.std.stdin(stdin);
        self
    }

    /// Sets the child's standard output. Without this it has ours, or, for [`output`](Command::output), a pipe.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.said.stdout = true;
        self.std.stdout(stdout);
        self
    }

    /// Sets the child's standard error. Without this it has ours, or, for [`output`](Command::output), a pipe.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.said.stderr = true;
        self.std.stderr(stderr);
        self
    }

    /// Kills the child when its handle is dropped while it runs (it does not). Either way it leaves no zombie.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Command {
        self.kill_on_drop = kill;
        self
    }

    /// The command as std's.
    pub fn as_std(&self) -> &std::process::Command {
        &self.std
    }

    /// The command as std's, for what has no method here. The three streams are better set here, since
    /// [`output`](Command::output) goes by that.
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.std
    }

    /// Starts the child.
    ///
    /// An error has std's kind, `NotFound` or `PermissionDenied` for instance, and names the program; nothing is left
    /// behind then. On the null driver, whose time is not real, it is `Unsupported`.
    ///
    /// **This blocks** until the new program runs, as it does in std and in every other runtime. Measured on Linux: 0.15 to
    /// 0.35 ms for `true`. With `pre_exec`, which Unix has, std has to fork, which copies the page tables: 0.5 ms for a
    /// small process and 65 ms for one of 1 GiB. To start children by the hundreds without holding the loop up, start them on
    /// a loop in a thread of its own.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        let core = LoopCore::current("Command::spawn");
        let started = match can_wait(core) {
            Ok(()) => self.std.spawn(),
            Err(error) => Err(error),
        };
        started
            .and_then(|child| Child::adopt(core, child, self.extras, self.kill_on_drop))
            .map_err(|error| self.explain(error))
    }

    /// Starts the child and waits for its end. Pipes to it, if any were asked for, are closed.
    ///
    /// Cancelling it drops the child: see [`kill_on_drop`](Command::kill_on_drop).
    pub async fn status(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.spawn()?;
        drop((child.stdin.take(), child.stdout.take(), child.stderr.take()));
        child.wait().await
    }

    /// Starts the child, collects what it writes, and waits for its end. Without a word on them its output and errors are
    /// collected, and its input is empty.
    ///
    /// Cancelling it drops the child: see [`kill_on_drop`](Command::kill_on_drop).
    pub async fn output(&mut self) -> io::Result<Output> {
        self.default_streams(Stdio::null, Stdio::piped);
        let child = self.spawn();
        // What it is started for next time is not known yet.
        self.default_streams(Stdio::inherit, Stdio::inherit);
        child?.wait_with_output().await
    }

    /// Starts the child; the streams of which nothing was said become pipes.
    pub(crate) fn spawn_piped(&mut self) -> io::Result<Child> {
        self.default_streams(Stdio::piped, Stdio::piped);
        let child = self.spawn();
        self.default_streams(Stdio::inherit, Stdio::inherit);
        child
    }

    /// Sets the streams of which nothing was said.
    fn default_streams(&mut self, input: fn() -> Stdio, output: fn() -> Stdio) {
        if !self.said.stdin {
            self.std.stdin(input());
        }
        if !self.said.stdout {
            self.std.stdout(output());
        }
        if !self.said.stderr {
            self.std.stderr(output());
        }
    }

    /// Says what was to be started, and where.
    fn explain(&self, error: io::Error) -> io::Error {
        let program = self.std.get_program().display();
        match self.std.get_current_dir() {
            Some(dir) => context(format_args!("start {program} in {}", dir.display()), error),
            None => context(format_args!("start {program}"), error),
        }
    }
}

/// Refuses to start what could not be waited for.
fn can_wait(core: &LoopCore) -> io::Result<()> {
    if core.is_closed() {
        return Err(crate::error::LoopClosed.into());
    }
    if core.has_virtual_clock {
        let why = "the null driver has no children: they run in real time, and its clock is virtual";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(())
}

impl From<std::process::Command> for Command {
    /// The three streams count as not set: see [`Command::output`].
    fn from(std: std::process::Command) -> Command {
        Command {
            std,
            extras: Extras::default(),
            kill_on_drop: false,
            said: Said::default(),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(f)
    }
}
