//! An open descriptor with its read and write queues, and how it is closed.
//!
//! The number cannot be reused for another file while the kernel may still act on it: a descriptor stays open until its
//! operations have completed. [`OwnedDescriptor`] is the user's handle. Dropping it cancels the operations in both queues
//! and gives each a reference to the descriptor, which closes when the last of them has completed. That also holds for
//! the operation of a future that was leaked. Operations outside of these queues have a reference in their payload.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;

use crate::driver::{self, Control, FdSpace};
use crate::event_loop::core::LoopCore;
use crate::inflight::OnOrphan;
use crate::inflight::queue::IoQueue;
use crate::sys::{self, Fd, Foreign, SocketOption};

/// An open descriptor, shared by its handle and its operations in flight. Dropping the last reference closes it.
pub(crate) struct Descriptor {
    pub(crate) core: Rc<LoopCore>,
    pub(crate) fd: Fd,
    /// Reads, or a listener's accepts.
    pub(crate) read: IoQueue,
    pub(crate) write: IoQueue,
    /// The descriptor was given away by `release`, and is not closed here.
    released: Cell<bool>,
    /// Close with a RST, so that the peer sees that data is lost.
    pub(crate) ends_with_reset: Cell<bool>,
    /// The user's handle was dropped.
    pub(crate) is_handle_dropped: Cell<bool>,
    /// SO_LINGER is set: closing blocks until the peer has acknowledged the sent data.
    pub(crate) lingers: Cell<bool>,
    /// A connection that its pool of loops counts until it is closed or given away.
    pub(crate) is_counted: Cell<bool>,
}

impl Descriptor {
    /// Closes a forked child's copy of the descriptor. The parent's stays open.
    fn close_copy(&self) {
        if !self.released.replace(true) {
            let _ = self.core.control(Control::Close { fd: self.fd });
        }
    }

    /// Closes the descriptor on a pool thread, because it may block.
    fn close_on_pool(&self) {
        let _ = self.core.control(Control::Forget { fd: self.fd });
        let mut closing = Closing(Some(sys::into_std(self.fd)));
        // If there is no thread, or the loop closes before the job runs, dropping the job closes the descriptor.
        let close = move || {
            if let Some(socket) = closing.0.take() {
                sys::close_slowly(socket);
            }
        };
        // Always a thread: the socket is the kernel's.
        let _ = self.core.files.submit(Box::new(close), None);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.is_counted.get()
            && let Some(peers) = self.core.peers.get()
        {
            peers.connection_closed();
        }
        if self.released.get() {
            return;
        }
        if self.core.is_forked() {
            return self.close_copy();
        }
        if self.ends_with_reset.get() {
            let _ = self.core.control(Control::Reset { fd: self.fd });
            return;
        }
        match self.lingers.get() && self.core.fd_space.is_kernel(self.fd) {
            true => self.close_on_pool(),
            false => drop(self.core.control(Control::Close { fd: self.fd })),
        }
    }
}

/// A descriptor to be closed with SO_LINGER. If it is dropped without having been closed, SO_LINGER is switched off so
/// that the drop does not block; the kernel still sends the written data.
struct Closing(Option<Foreign>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            let (fd, option) = (sys::number(socket), SocketOption::Linger(None));
            let _ = driver::control(Control::SetOption { fd, option });
        }
    }
}

impl LoopCore {
    /// Fails if the driver has its own descriptors: the kernel's could be confused with them.
    pub(crate) fn check_takes_kernel_descriptors(&self) -> io::Result<()> {
        match self.fd_space {
            FdSpace::Kernel | FdSpace::Split => Ok(()),
            FdSpace::Own => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this loop's driver has its own descriptors and does not accept the kernel's",
            )),
        }
    }
}

/// The user's handle to a descriptor. Dropping it closes the descriptor once its operations have completed.
pub(crate) struct OwnedDescriptor {
    pub(crate) descriptor: Rc<Descriptor>,
}

impl OwnedDescriptor {
    /// Takes ownership of an open descriptor of the loop's driver.
    pub(crate) fn new(core: Rc<LoopCore>, fd: Fd) -> OwnedDescriptor {
        let descriptor = Rc::new(Descriptor {
            core,
            fd,
            read: IoQueue::default(),
            write: IoQueue::default(),
            released: Cell::new(false),
            ends_with_reset: Cell::new(false),
            is_handle_dropped: Cell::new(false),
            lingers: Cell::new(false),
            is_counted: Cell::new(false),
        });
        OwnedDescriptor { descriptor }
    }

    /// A handle that is already closed: no driver has this descriptor.
    pub(crate) fn closed(core: Rc<LoopCore>) -> OwnedDescriptor {
        let closed = OwnedDescriptor::new(core, Fd::MIN);
        closed.descriptor.released.set(true);
        closed
    }

    /// Whether it was made by [`closed`](OwnedDescriptor::closed).
    pub(crate) fn is_closed(&self) -> bool {
        self.fd() == Fd::MIN
    }

    /// Takes ownership of a socket or pipe that other code has opened.
    #[track_caller]
    pub(crate) fn adopt(std_socket: impl Into<Foreign>) -> io::Result<OwnedDescriptor> {
        let core = LoopCore::current("from_std").rc();
        let socket = std_socket.into();
        let fd = sys::number(&socket);
        core.check_takes_kernel_descriptors()?;
        core.control(Control::Adopt { fd })?;
        let owned = OwnedDescriptor::new(core, sys::from_std(socket));
        // This fails for descriptors that are not sockets, which do not linger.
        if let Ok(SocketOption::Linger(time)) = owned.get(SocketOption::Linger(None)) {
            owned.note_linger(time);
        }
        Ok(owned)
    }

    /// Gives the descriptor away, unless data in its queues would be lost. On success the caller must drop this handle,
    /// which then does not close the descriptor.
    pub(crate) fn release(&self) -> io::Result<Foreign> {
        let refuse = |kind, why| Err(io::Error::new(kind, why));
        if self.is_closed() {
            return refuse(io::ErrorKind::NotConnected, "the pipe is closed");
        }
        if self.kernel_fd().is_none() {
            let why = "the driver's sockets are its own: they have no kernel descriptor";
            return refuse(io::ErrorKind::Unsupported, why);
        }
        self.check_idle()?;
        self.descriptor.released.set(true);
        let _ = self.core().control(Control::Forget { fd: self.fd() });
        Ok(sys::into_std(self.fd()))
    }

    /// An error if an operation is in flight, or received data would be lost.
    fn check_idle(&self) -> io::Result<()> {
        let refuse = |kind, why| Err(io::Error::new(kind, why));
        let read_again = "a read is in flight, or a dropped read has received data: read again first";
        let wait_for_write = "a write is in flight: wait for it with a write or a shutdown first";
        for (queue, why) in [
            (&self.descriptor.read, read_again),
            (&self.descriptor.write, wait_for_write),
        ] {
            queue.absorb_if_free(self.core());
            if queue.is_busy() {
                return refuse(io::ErrorKind::WouldBlock, why);
            }
        }
        Ok(())
    }

    /// As [`release`](OwnedDescriptor::release), for a socket of a simulated host, whose loops share their numbers.
    #[cfg(feature = "sim")]
    pub(crate) fn release_simulated(&self) -> io::Result<Fd> {
        self.check_idle()?;
        self.descriptor.released.set(true);
        let _ = self.core().control(Control::Forget { fd: self.fd() });
        Ok(self.fd())
    }

    /// Shares a socket of a simulated host with its other owners: it is closed with the last of them.
    #[cfg(feature = "sim")]
    #[track_caller]
    pub(crate) fn share_simulated(fd: Fd) -> io::Result<OwnedDescriptor> {
        let core = LoopCore::current("a simulated socket").rc();
        core.control(Control::Adopt { fd })?;
        Ok(OwnedDescriptor::new(core, fd))
    }

    pub(crate) fn core(&self) -> &LoopCore {
        &self.descriptor.core
    }

    pub(crate) fn fd(&self) -> Fd {
        self.descriptor.fd
    }

    /// The descriptor, if it is one of the kernel's.
    pub(crate) fn kernel_fd(&self) -> Option<Fd> {
        Some(self.fd()).filter(|&fd| self.core().fd_space.is_kernel(fd))
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        let core = self.descriptor.core.clone();
        if core.is_forked() {
            // Its operations in flight belong to the parent, and never complete here.
            return self.descriptor.close_copy();
        }
        let mut has_cancelled = false;
        self.descriptor.is_handle_dropped.set(true);
        let queues = [&self.descriptor.read, &self.descriptor.write];
        for id in queues.iter().filter_map(|queue| queue.op.get()) {
            core.keep_open(id, &self.descriptor);
        }
        for queue in queues {
            let Some(id) = queue.op.get() else { continue };
            if !core.request_cancel_listened(id) {
                queue.op.set(None);
                core.orphan(id, OnOrphan::Discard);
            }
            has_cancelled = true;
        }
        if has_cancelled {
            core.pump();
        }
    }
}

impl fmt::Debug for OwnedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedDescriptor").field("fd", &self.fd()).finish()
    }
}

/// The error of `into_std` and `into_fd`, which returns the socket, pipe or file.
///
/// ```
/// use std::{future::{poll_fn, Future}, pin::pin, task::Poll};
/// use windlass::net::{TcpListener, TcpStream};
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let stream = TcpStream::connect(listener.local_addr()?).await?;
///     let (peer, _) = listener.accept().await?;
///     peer.write_all("unread").await.0?;
///     {
///         // A read that is started and dropped: the bytes it receives are kept for the next read.
///         let mut read = pin!(stream.read(vec![0; 16]));
///         poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_ready())).await;
///     }
///     windlass::time::sleep(std::time::Duration::from_millis(20)).await;
///     if let Err(refused) = stream.into_std() {
///         println!("{}", refused.error());
///         let stream = refused.into_inner();
///         assert_eq!(&*stream.read_managed().await?, b"unread");
///     }
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct IntoStdError<S> {
    pub(crate) inner: S,
    pub(crate) error: io::Error,
}

impl<S> IntoStdError<S> {
    /// Converts the released descriptor of `inner`, or returns `inner` with the error.
    pub(crate) fn convert<T: From<Foreign>>(inner: S, released: io::Result<Foreign>) -> Result<T, IntoStdError<S>> {
        match released {
            Ok(socket) => Ok(socket.into()),
            Err(error) => Err(IntoStdError { inner, error }),
        }
    }

    /// The unchanged socket, pipe or file.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Why the conversion failed.
    pub fn error(&self) -> &io::Error {
        &self.error
    }
}

impl<S> fmt::Display for IntoStdError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S: fmt::Debug> std::error::Error for IntoStdError<S> {}

impl<S> From<IntoStdError<S>> for io::Error {
    fn from(refused: IntoStdError<S>) -> io::Error {
        refused.error
    }
}
