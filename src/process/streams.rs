//! The pipes to a child's standard streams.

use std::fmt;
use std::io;
use std::process::Stdio;

use crate::driver::op::Direction;
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::pipe::{Receiver, Sender};
use crate::io::{reads_its_bytes, writes_its_bytes};
use crate::sys::{Foreign, processes::for_child};

/// What [`read_whole`] asks for at a time: as much as a pipe holds.
const PIECE: usize = 64 * 1024;

/// The pipe to a child's input. Dropping it tells the child that this was all.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     let mut child = Command::new("wc").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///     child.stdin.as_ref().unwrap().write_all("12345").await.0?;
///     // Waiting closes the input first.
///     let output = child.wait_with_output().await?;
///     assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "5");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ChildStdin {
    pipe: Sender,
}

/// The pipe from a child's output.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     // One child's output as another's input.
///     let mut echo = Command::new("echo").arg("ahoy").stdout(Stdio::piped()).spawn()?;
///     let pipe: Stdio = echo.stdout.take().unwrap().try_into()?;
///     let output = Command::new("tr").args(["a-z", "A-Z"]).stdin(pipe).output().await?;
///     assert_eq!(output.stdout, b"AHOY\n");
///     echo.wait().await?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ChildStdout {
    pipe: Receiver,
}

/// The pipe from a child's errors.
///
/// ```
/// use windlass::process::{Command, Stdio};
/// windlass::run(async {
///     let mut child = Command::new("sh").args(["-c", "echo woe >&2"]).stderr(Stdio::piped()).spawn()?;
///     let stderr = child.stderr.take().unwrap();
///     assert_eq!(&*stderr.read_managed().await?, b"woe\n");
///     child.wait().await?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ChildStderr {
    pipe: Receiver,
}

impl ChildStdin {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStdin> {
        let pipe = Sender::adopt(pipe.into())?;
        Ok(ChildStdin { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut ByteStream {
        self.pipe.bytes_mut()
    }

    /// The pipe itself.
    pub fn into_sender(self) -> Sender {
        self.pipe
    }

    writing_methods!();
}

impl ChildStdout {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStdout> {
        let pipe = Receiver::adopt(pipe.into())?;
        Ok(ChildStdout { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    /// The pipe itself.
    pub fn into_receiver(self) -> Receiver {
        self.pipe
    }

    pub(super) async fn read_whole(&self) -> io::Result<Vec<u8>> {
        read_whole(&self.pipe).await
    }

    reading_methods!();
}

impl ChildStderr {
    pub(super) fn adopt(pipe: impl Into<Foreign>) -> io::Result<ChildStderr> {
        let pipe = Receiver::adopt(pipe.into())?;
        Ok(ChildStderr { pipe })
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.pipe.bytes()
    }

    /// The pipe itself.
    pub fn into_receiver(self) -> Receiver {
        self.pipe
    }

    pub(super) async fn read_whole(&self) -> io::Result<Vec<u8>> {
        read_whole(&self.pipe).await
    }

    reading_methods!();
}

/// Everything up to the end.
async fn read_whole(pipe: &Receiver) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        let result;
        (result, piece) = pipe.read(piece).await;
        if result? == 0 {
            return Ok(whole);
        }
        whole.extend_from_slice(&piece);
    }
}

impl TryFrom<ChildStdin> for Stdio {
    type Error = io::Error;

    /// Refused while a write is under way. The pipe becomes blocking, as programs expect it; on Windows, where a pipe cannot
    /// change, a thread carries the bytes from a blocking one to it until either ends.
    fn try_from(stdin: ChildStdin) -> io::Result<Stdio> {
        for_child(stdin.pipe.release()?, Direction::Write)
    }
}

impl TryFrom<ChildStdout> for Stdio {
    type Error = io::Error;

    /// Refused while a read is under way or received bytes are unread. The pipe becomes blocking, as programs expect it; on
    /// Windows, where a pipe cannot change, a thread carries the bytes from it to a blocking one until either ends.
    fn try_from(stdout: ChildStdout) -> io::Result<Stdio> {
        for_child(stdout.pipe.release()?, Direction::Read)
    }
}

impl TryFrom<ChildStderr> for Stdio {
    type Error = io::Error;

    /// Refused while a read is under way or received bytes are unread. The pipe becomes blocking, as programs expect it; on
    /// Windows, where a pipe cannot change, a thread carries the bytes from it to a blocking one until either ends.
    fn try_from(stderr: ChildStderr) -> io::Result<Stdio> {
        for_child(stderr.pipe.release()?, Direction::Read)
    }
}

impl fmt::Debug for ChildStdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildStdin")
            .field("fd", &self.bytes().owned.fd())
            .finish()
    }
}

impl fmt::Debug for ChildStdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildStdout")
            .field("fd", &self.bytes().owned.fd())
            .finish()
    }
}

impl fmt::Debug for ChildStderr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildStderr")
            .field("fd", &self.bytes().owned.fd())
            .finish()
    }
}

reads_its_bytes!([], ChildStdout);
reads_its_bytes!([], ChildStderr);
writes_its_bytes!([], ChildStdin, closes);
