//! Pipes: bytes in one direction, between processes or within one.
//!
//! The kernel's own, not blocking, and waited for as sockets are. What a dropped read received goes to the next, as on a
//! connection. A process that reads or writes a pipe's other end is not bothered: each end has its own flags.

use std::fmt;
use std::io;

use crate::driver::op::Medium;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{reads_its_bytes, writes_its_bytes};
use crate::sys::{self, Foreign};

/// A new pipe.
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
/// Outside of a loop.
#[track_caller]
pub fn pipe() -> io::Result<(Sender, Receiver)> {
    let (reader, writer) = sys::pipe()?;
    Ok((Sender::adopt(writer)?, Receiver::adopt(reader)?))
}

/// The end of a pipe that is read from: see [`pipe`].
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

/// The end of a pipe that is written to: see [`pipe`].
///
/// Writing when the other end is closed is the error `BrokenPipe`. The kernel also sends the signal SIGPIPE, which a Rust
/// program ignores unless it was told otherwise.
///
/// ```
/// windlass::run(async {
///     let (sender, receiver) = windlass::io::pipe::pipe()?;
///     drop(receiver);
///     let error = sender.write_all("nobody listens").await.0.unwrap_err();
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

    /// Gives the pipe away, if nothing would be lost.
    pub(crate) fn release(self) -> Result<Foreign, IntoStdError<Receiver>> {
        release(self.bytes, |bytes| Receiver { bytes })
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

    /// Gives the pipe away, if nothing is under way.
    pub(crate) fn release(self) -> Result<Foreign, IntoStdError<Sender>> {
        release(self.bytes, |bytes| Sender { bytes })
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut ByteStream {
        &mut self.bytes
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    writing_methods!();
}

reads_its_bytes!([], Receiver);
reads_its_bytes!([], &Receiver);
writes_its_bytes!([], Sender, closes);

#[track_caller]
fn adopt(pipe: Foreign) -> io::Result<ByteStream> {
    let owned = OwnedDescriptor::adopt(pipe)?;
    Ok(ByteStream::new(owned, Medium::Pipe))
}

fn release<E>(bytes: ByteStream, again: impl FnOnce(ByteStream) -> E) -> Result<Foreign, IntoStdError<E>> {
    match bytes.owned.release() {
        Ok(fd) => Ok(sys::into_std(fd)),
        Err((error, owned)) => Err(IntoStdError {
            inner: again(ByteStream::new(owned, Medium::Pipe)),
            error,
        }),
    }
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
