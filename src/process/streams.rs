//! The pipes to a child's standard streams.

use std::io;
use std::process::Stdio;

use crate::driver::op::Direction;
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::pipe::{Receiver, Sender};
use crate::io::{AsyncWrite, delegate_write, impl_async_read};
use crate::sys::Foreign;
use crate::sys::processes::for_child;

/// The pipe to a child's standard input. Dropping it ends the input.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     let mut child = Command::new("wc").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///     child.stdin.as_ref().unwrap().write_all("12345").await.0?;
///     // `wait_with_output` closes the input first.
///     let output = child.wait_with_output().await?;
///     assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "5");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ChildStdin {
    pipe: Sender,
}

/// The pipe from a child's standard output.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     // Use the output of one child as the input of another.
///     let mut echo = Command::new("echo").arg("ahoy").stdout(Stdio::piped()).spawn()?;
///     let pipe: Stdio = echo.stdout.take().unwrap().try_into()?;
///     let output = Command::new("tr").args(["a-z", "A-Z"]).stdin(pipe).output().await?;
///     assert_eq!(output.stdout, b"AHOY\n");
///     echo.wait().await?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ChildStdout {
    pipe: Receiver,
}

/// The pipe from a child's standard error.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     let mut child = Command::new("sh").args(["-c", "echo error >&2"]).stderr(Stdio::piped()).spawn()?;
///     let stderr = child.stderr.take().unwrap();
///     assert_eq!(&*stderr.read_managed().await?, b"error\n");
///     child.wait().await?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ChildStderr {
    pipe: Receiver,
}

impl ChildStdin {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStdin> {
        Sender::adopt(pipe.into()).map(|pipe| ChildStdin { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut ByteStream {
        self.pipe.bytes_mut()
    }

    /// Returns the underlying pipe.
    pub fn into_sender(self) -> Sender {
        self.pipe
    }

    writing_methods!();
}

impl ChildStdout {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStdout> {
        Receiver::adopt(pipe.into()).map(|pipe| ChildStdout { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    /// Returns the underlying pipe.
    pub fn into_receiver(self) -> Receiver {
        self.pipe
    }

    reading_methods!();
}

impl ChildStderr {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStderr> {
        Receiver::adopt(pipe.into()).map(|pipe| ChildStderr { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    /// Returns the underlying pipe.
    pub fn into_receiver(self) -> Receiver {
        self.pipe
    }

    reading_methods!();
}

impl TryFrom<ChildStdin> for Stdio {
    type Error = io::Error;

    /// Passes the pipe to another child. Fails while a write is in progress. The pipe becomes blocking, as programs
    /// expect; on Windows, where a pipe cannot change its mode, a thread copies to it from a blocking one.
    fn try_from(stdin: ChildStdin) -> io::Result<Stdio> {
        for_child(stdin.pipe.release()?, Direction::Write)
    }
}

impl TryFrom<ChildStdout> for Stdio {
    type Error = io::Error;

    /// Passes the pipe to another child. Fails while a read is in progress or received bytes are unread. The pipe
    /// becomes blocking, as programs expect; on Windows, where a pipe cannot change its mode, a thread copies from it
    /// to a blocking one.
    fn try_from(stdout: ChildStdout) -> io::Result<Stdio> {
        for_child(stdout.pipe.release()?, Direction::Read)
    }
}

impl TryFrom<ChildStderr> for Stdio {
    type Error = io::Error;

    /// As for [`ChildStdout`].
    fn try_from(stderr: ChildStderr) -> io::Result<Stdio> {
        for_child(stderr.pipe.release()?, Direction::Read)
    }
}

impl_async_read!([], ChildStdout);
impl_async_read!([], ChildStderr);

impl AsyncWrite for ChildStdin {
    delegate_write!(self => self.pipe);
}
