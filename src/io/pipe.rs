//! Unidirectional pipes, within a process or between processes.
//!
//! On the kernel's drivers these are kernel pipes in non-blocking mode. Each end has its own file status flags, so a process at the other end
//! is not affected. As on a socket, the next read returns the bytes of a dropped one.
//!
//! ```
//! windlass::run(async {
//!     let (sender, receiver) = windlass::io::pipe::pipe()?;
//!     sender.write_all("hello").await.0?;
//!     assert_eq!(&*receiver.read_managed().await?, b"hello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::io;

use crate::driver::op::Medium;
use crate::driver::{Control, Reply};
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{AsyncWrite, delegate_write, impl_async_read};
use crate::sys::Foreign;

/// Creates a pipe.
///
/// ```
/// windlass::run(async {
///     let (sender, receiver) = windlass::io::pipe::pipe()?;
///     sender.write_all("through the pipe").await.0?;
///     drop(sender);
///     assert_eq!(&*receiver.read_managed().await?, b"through the pipe");
///     assert!(receiver.read_managed().await?.is_empty());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn pipe() -> io::Result<(Sender, Receiver)> {
    let core = LoopCore::current("pipe").rc();
    let Reply::Pair(reader, writer) = core.control(Control::Pipe)? else {
        return Err(io::Error::other("the driver made no pipe"));
    };
    let end = |fd| ByteStream::new(OwnedDescriptor::new(core.clone(), fd), Medium::Pipe);
    let (receiver, sender) = (Receiver { bytes: end(reader) }, Sender { bytes: end(writer) });
    Ok((sender, receiver))
}

/// The read end of a pipe: see [`pipe`].
///
/// ```
/// use windlass::io::pipe::Receiver;
/// windlass::run(async {
///     let (theirs, mut ours) = std::io::pipe()?;
///     let receiver = Receiver::from_fd(theirs)?;
///     std::io::Write::write_all(&mut ours, b"ping")?;
///     assert_eq!(&*receiver.read_managed().await?, b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Receiver {
    bytes: ByteStream,
}

/// The write end of a pipe: see [`pipe`].
///
/// If the read end is closed, a write fails with `BrokenPipe`; Rust programs ignore `SIGPIPE` by default.
///
/// ```
/// windlass::run(async {
///     let (sender, receiver) = windlass::io::pipe::pipe()?;
///     drop(receiver);
///     let error = sender.write_all("no reader").await.0.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Sender {
    bytes: ByteStream,
}

impl Receiver {
    #[track_caller]
    pub(crate) fn adopt(pipe: Foreign) -> io::Result<Receiver> {
        let bytes = adopt(pipe)?;
        Ok(Receiver { bytes })
    }

    /// Releases the pipe, unless received bytes would be lost.
    pub(crate) fn release(self) -> Result<Foreign, IntoStdError<Receiver>> {
        let released = self.bytes.owned.release();
        IntoStdError::convert(self, released)
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    reading_methods!();
}

impl Sender {
    #[track_caller]
    pub(crate) fn adopt(pipe: Foreign) -> io::Result<Sender> {
        let bytes = adopt(pipe)?;
        Ok(Sender { bytes })
    }

    /// Releases the pipe, unless a write is in progress.
    pub(crate) fn release(self) -> Result<Foreign, IntoStdError<Sender>> {
        let released = self.bytes.owned.release();
        IntoStdError::convert(self, released)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut ByteStream {
        &mut self.bytes
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    writing_methods!();
}

impl_async_read!([], Receiver);
impl_async_read!([], &Receiver);

impl AsyncWrite for Sender {
    delegate_write!(
        self => self.bytes(),
        /// Closes this end of the pipe after the write in progress: the reader sees end of stream.
        async fn shutdown(&mut self) -> io::Result<()> {
            self.bytes.close().await
        }
    );
}

#[track_caller]
fn adopt(pipe: Foreign) -> io::Result<ByteStream> {
    let owned = OwnedDescriptor::adopt(pipe)?;
    Ok(ByteStream::new(owned, Medium::Pipe))
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("fd", &self.bytes.owned.fd()).finish()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("fd", &self.bytes.owned.fd()).finish()
    }
}
