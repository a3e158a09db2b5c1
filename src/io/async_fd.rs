//! Waiting for the readiness of any descriptor.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::driver::op::Direction;
use crate::driver::{Control, OpId};
use crate::event_loop::core::LoopCore;
use crate::inflight::OnOrphan;
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
    /// The operations of `poll_readable` and `poll_writable`, kept between two polls.
    read: Cell<Option<OpId>>,
    write: Cell<Option<OpId>>,
}

impl Watch {
    fn poll(&self, direction: Direction, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wait = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        self.core.poll_readiness(wait, self.fd, direction, cx)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for id in [self.read.take(), self.write.take()].into_iter().flatten() {
            self.core.orphan(id, OnOrphan::Discard);
        }
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
        let watch = Watch {
            core,
            fd,
            read: Cell::new(None),
            write: Cell::new(None),
        };
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

    /// [`readable`](AsyncFd::readable) for implementations of `poll`, such as sockets of other libraries: allocates nothing.
    ///
    /// The first call that returns `Pending` starts a wait. The following calls are about the same wait, until one returns
    /// `Ready`. Only the waker of the last call is woken. Dropping the `AsyncFd` cancels the wait.
    ///
    /// There is no readiness to clear, unlike in tokio: each new wait checks the state of the descriptor, on every driver.
    /// But a wait may have ended before the data was read, so that `Ready` is about the past. So read until `WouldBlock`, then
    /// call this; if it returns `Ready`, read again:
    ///
    /// ```
    /// use std::{io, task::{Context, Poll, ready}};
    /// use windlass::io::AsyncFd;
    ///
    /// fn poll_recv(
    ///     socket: &AsyncFd<std::net::UdpSocket>, // non-blocking
    ///     buf: &mut [u8],
    ///     cx: &mut Context<'_>,
    /// ) -> Poll<io::Result<usize>> {
    ///     loop {
    ///         match socket.get_ref().recv(buf) {
    ///             Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_readable(cx))?,
    ///             result => return Poll::Ready(result),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch.poll(Direction::Read, cx)
    }

    /// [`writable`](AsyncFd::writable) for implementations of `poll`, as [`poll_readable`](AsyncFd::poll_readable). The two
    /// have a wait and a waker each.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch.poll(Direction::Write, cx)
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
