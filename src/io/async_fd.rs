//! Awaiting somebody else's descriptor.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::driver::Control;
use crate::driver::op::Direction;
use crate::event_loop::core::LoopCore;
use crate::sys::{AsSource, Fd, context, source};

/// Any descriptor that the kernel can wait for, to be awaited: a pipe, a terminal, a timer, a device, another library's
/// socket.
///
/// Readiness is the descriptor's state, not news of it: [`readable`](AsyncFd::readable) returns at once for as long as
/// there is something to read. The descriptor should be non-blocking; this does not change it, since it may be shared
/// with others, as the standard streams are.
///
/// ```
/// use std::{io::{Read, Write}, os::unix::net::UnixStream};
/// use windlass::io::AsyncFd;
///
/// windlass::run(async {
///     let (ours, mut theirs) = UnixStream::pair()?;
///     ours.set_nonblocking(true)?;
///     let ours = AsyncFd::new(ours)?;
///     theirs.write_all(b"ping")?;
///     let mut bytes = [0; 16];
///     let count = ours.read_with(|mut stream| stream.read(&mut bytes)).await?;
///     assert_eq!(&bytes[..count], b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct AsyncFd<T: AsSource> {
    watched: Watched,
    inner: T,
}

/// Tells the driver when it is over. Dropped before the descriptor closes.
struct Watched {
    core: Rc<LoopCore>,
    fd: Fd,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.core.control(Control::Forget { fd: self.fd });
        // A wait that was dropped outside of the loop must not keep the file open.
        self.core.pump();
    }
}

impl<T: AsSource> AsyncFd<T> {
    /// Takes a descriptor, which must stay the same as long as it is in here. It is an error if the kernel cannot wait
    /// for it, as for files and folders: these are always ready.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn new(inner: T) -> io::Result<AsyncFd<T>> {
        let core = LoopCore::current("AsyncFd::new").rc();
        let fd = source(&inner);
        core.control(Control::Watch { fd })
            .map_err(|error| context(format_args!("watch descriptor {fd}"), error))?;
        let watched = Watched { core, fd };
        Ok(AsyncFd { watched, inner })
    }

    pub(crate) fn number(&self) -> Fd {
        self.watched.fd
    }

    /// Waits until there is something to read, the other end is closed, or an error can be told.
    pub async fn readable(&self) -> io::Result<()> {
        self.watched.core.readiness(self.watched.fd, Direction::Read).await
    }

    /// Waits until something can be written, or an error can be told.
    pub async fn writable(&self) -> io::Result<()> {
        self.watched.core.readiness(self.watched.fd, Direction::Write).await
    }

    /// Calls `read` until it does not say `WouldBlock`, and waits to be readable in between.
    pub async fn read_with<R>(&self, mut read: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match read(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                result => return result,
            }
        }
    }

    /// Calls `write` until it does not say `WouldBlock`, and waits to be writable in between.
    pub async fn write_with<R>(&self, mut write: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match write(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                result => return result,
            }
        }
    }

    /// The descriptor's owner.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The descriptor's owner, to change. The descriptor must stay the same.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Gives the descriptor back.
    pub fn into_inner(self) -> T {
        drop(self.watched);
        self.inner
    }
}

impl<T: AsSource + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFd").field("inner", &self.inner).finish()
    }
}
