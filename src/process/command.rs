//! `Command`: a builder for child processes.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use super::child::Child;
use super::extras::Extras;
use crate::driver::FdSpace;
use crate::event_loop::core::LoopCore;
use crate::sys::context;
use crate::worker_thread::inherit_worker_cpus;

/// A program to run with its arguments and environment: std's `Command` with asynchronous waiting.
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
    /// Platform-specific options.
    pub(super) extras: Extras,
    kill_on_drop: bool,
    configured: ConfiguredStreams,
}

/// Which streams the caller has set; the defaults of the others depend on the method that starts the child.
#[derive(Clone, Copy, Default)]
struct ConfiguredStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Command {
    /// Creates a command. The program is looked up in `PATH` unless it contains a slash.
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

    /// Sets an environment variable.
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.std.env(key, value);
        self
    }

    /// Sets environment variables.
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(&mut self, vars: impl IntoIterator<Item = (K, V)>) -> &mut Command {
        self.std.envs(vars);
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(&mut self, key: impl AsRef<OsStr>) -> &mut Command {
        self.std.env_remove(key);
        self
    }

    /// Starts with an empty environment.
    pub fn env_clear(&mut self) -> &mut Command {
        self.std.env_clear();
        self
    }

    /// Sets the working directory of the child.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Command {
        self.std.current_dir(dir);
        self
    }

    /// Sets the standard input of the child. It is inherited by default; for [`output`](Command::output) it is empty.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.configured.stdin = true;
        self.std.stdin(stdin);
        self
    }

    /// Sets the standard output of the child. It is inherited by default; for [`output`](Command::output) it is a pipe.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.configured.stdout = true;
        self.std.stdout(stdout);
        self
    }

    /// Sets the standard error of the child. It is inherited by default; for [`output`](Command::output) it is a pipe.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.configured.stderr = true;
        self.std.stderr(stderr);
        self
    }

    /// Kills the child if its handle is dropped while it runs. Off by default: see [`Child`].
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Command {
        self.kill_on_drop = kill;
        self
    }

    /// The underlying std command.
    pub fn as_std(&self) -> &std::process::Command {
        &self.std
    }

    /// The underlying std command, for options without a method here. Set the standard streams with the methods of this
    /// type: [`output`](Command::output) does not see streams that were set on the std command.
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.std
    }

    /// Starts the child.
    ///
    /// **This blocks** until the new program runs, as in std and in every other runtime. Measured on Linux: 0.15 to
    /// 0.35 ms for `true`. With `pre_exec` (Unix) std has to fork, which copies the page tables: 0.5 ms for a small
    /// process and 65 ms for one of 1 GiB. To start hundreds of children, use a loop in another thread.
    ///
    /// # Errors
    ///
    /// The error has std's kind, such as `NotFound` or `PermissionDenied`, and names the program. On the null driver,
    /// whose clock is virtual, it is `Unsupported`.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        let core = LoopCore::current("Command::spawn");
        check_can_wait(core)
            .and_then(|()| inherit_worker_cpus(core, || self.std.spawn()))
            .and_then(|child| Child::adopt(core, child, self.extras, self.kill_on_drop))
            .map_err(|error| self.explain(error))
    }

    /// Starts the child, closes its pipes, if any, and waits for it to exit.
    ///
    /// **Cancel safety:** the child is dropped: see [`kill_on_drop`](Command::kill_on_drop).
    pub async fn status(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.spawn()?;
        drop((child.stdin.take(), child.stdout.take(), child.stderr.take()));
        child.wait().await
    }

    /// Starts the child, collects its output and waits for it to exit. By default its input is empty.
    ///
    /// **Cancel safety:** the child is dropped: see [`kill_on_drop`](Command::kill_on_drop).
    pub async fn output(&mut self) -> io::Result<Output> {
        self.spawn_with(Stdio::null, Stdio::piped)?.wait_with_output().await
    }

    /// Starts the child; streams that were not set become pipes.
    pub(crate) fn spawn_piped(&mut self) -> io::Result<Child> {
        self.spawn_with(Stdio::piped, Stdio::piped)
    }

    /// Starts the child with these defaults for the streams that the caller has not set.
    fn spawn_with(&mut self, input: fn() -> Stdio, output: fn() -> Stdio) -> io::Result<Child> {
        self.default_streams(input, output);
        let child = self.spawn();
        // Restore the defaults for the next start.
        self.default_streams(Stdio::inherit, Stdio::inherit);
        child
    }

    /// Sets the streams that the caller has not set.
    fn default_streams(&mut self, input: fn() -> Stdio, output: fn() -> Stdio) {
        if !self.configured.stdin {
            self.std.stdin(input());
        }
        if !self.configured.stdout {
            self.std.stdout(output());
        }
        if !self.configured.stderr {
            self.std.stderr(output());
        }
    }

    /// Adds the program and its working directory to an error.
    fn explain(&self, error: io::Error) -> io::Error {
        let program = self.std.get_program().display();
        match self.std.get_current_dir() {
            Some(dir) => context(format_args!("start {program} in {}", dir.display()), error),
            None => context(format_args!("start {program}"), error),
        }
    }
}

/// Fails if the loop could not wait for a child.
fn check_can_wait(core: &LoopCore) -> io::Result<()> {
    if core.is_closed() {
        return Err(crate::error::LoopClosed.into());
    }
    let message = match (core.fd_space, core.has_virtual_clock) {
        (FdSpace::Own, _) => "this loop's driver has its own descriptors: it cannot wait for a child process",
        (_, true) => "this loop's clock is virtual: it cannot wait for a child process, which runs in real time",
        (_, false) => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

impl From<std::process::Command> for Command {
    /// The standard streams count as not set: see [`Command::output`].
    fn from(std: std::process::Command) -> Command {
        Command {
            std,
            extras: Extras::default(),
            kill_on_drop: false,
            configured: ConfiguredStreams::default(),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(f)
    }
}
