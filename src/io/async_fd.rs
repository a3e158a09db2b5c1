//! Waiting for the readiness of any descriptor.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::driver::Control;
use crate::driver::op::Direction;
use crate::event_loop::core::LoopCore;
use crate::sys::{AsSource, Fd, context, source};

/// Waits for the readiness of any pollable descriptor: a terminal, a timer, a device, or a socket of another library.
///
/// Readiness is level-triggered: [`readable`](AsyncFd::readable) returns immediately while there is data to read. The
/// descriptor should be non-blocking; `AsyncFd` does not set that flag, because the open file may be shared with other
/// processes, as the standard streams are.
///
/// **Cancel safety:** a dropped wait consumes nothing; the descriptor stays ready.
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
    watch: Watch,
    inner: T,
}

/// Unregisters the descriptor from the driver on drop, before the descriptor is closed.
struct Watch {
    core: Rc<LoopCore>,
    fd: Fd,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.core.control(Control::Forget { fd: self.fd });
        // Submit at once: a wait that was dropped outside the loop would otherwise keep the file open.
        self.core.pump();
    }
}

impl<T: AsSource> AsyncFd<T> {
    /// Registers a descriptor. `inner` must not close or replace it while the `AsyncFd` exists. Fails if the kernel
    /// cannot wait for it, as for files and directories, which are always ready.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn new(inner: T) -> io::Result<AsyncFd<T>> {
        let core = LoopCore::current("AsyncFd::new").rc();
        let fd = source(&inner);
        core.control(Control::Watch { fd })
            .map_err(|error| context(format_args!("watch descriptor {fd}"), error))?;
        let watch = Watch { core, fd };
        Ok(AsyncFd { watch, inner })
    }

    pub(crate) fn number(&self) -> Fd {
        self.watch.fd
    }

    /// Waits until the descriptor is readable, at end of stream, or has an error.
    pub async fn readable(&self) -> io::Result<()> {
        self.watch.core.readiness((), self.watch.fd, Direction::Read).await
    }

    /// Waits until the descriptor is writable or has an error.
    pub async fn writable(&self) -> io::Result<()> {
        self.watch.core.readiness((), self.watch.fd, Direction::Write).await
    }

    /// Calls `read`, and again whenever the descriptor becomes readable, until its result is not `WouldBlock`.
    pub async fn read_with<R>(&self, mut read: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match read(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                result => return result,
            }
        }
    }

    /// Calls `write`, and again whenever the descriptor becomes writable, until its result is not `WouldBlock`.
    pub async fn write_with<R>(&self, mut write: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match write(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                result => return result,
            }
        }
    }

    /// The owner of the descriptor.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The owner of the descriptor, mutably. Do not close or replace the descriptor through it.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Unregisters the descriptor and returns its owner.
    pub fn into_inner(self) -> T {
        drop(self.watch);
        self.inner
    }
}

impl<T: AsSource + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFd").field("inner", &self.inner).finish()
    }
}
