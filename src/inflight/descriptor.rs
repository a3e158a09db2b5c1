//! An open descriptor with its two lanes, and how it ends.
//!
//! A flight that uses a descriptor holds a share of it, so its number cannot be given to another file while the kernel
//! may still act on it. The handle that the user holds is one level above: when that goes, the lanes' flights are
//! cancelled, and when the last of them has landed, the descriptor closes.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;

use crate::driver::{self, Control, FdSpace};
use crate::event_loop::core::LoopCore;
use crate::inflight::OnOrphan;
use crate::inflight::queue::IoQueue;
use crate::sys::{self, Fd, Foreign, SocketOption};

/// An open descriptor, shared by its handle and the flights that use it. Closes when the last of them is gone.
pub(crate) struct Descriptor {
    pub(crate) core: Rc<LoopCore>,
    pub(crate) fd: Fd,
    /// Reads, or a listener's accepts.
    pub(crate) read: IoQueue,
    pub(crate) write: IoQueue,
    /// The number was given away and is no longer ours to close.
    released: Cell<bool>,
    /// The peer is to be told that what is under way is lost.
    pub(crate) ends_with_reset: Cell<bool>,
    /// The user's side is gone: nothing waits for the peer any more.
    pub(crate) is_left: Cell<bool>,
    /// Closing it waits until what was written has arrived.
    lingers: Cell<bool>,
}

impl Descriptor {
    pub(crate) fn set_lingers(&self, lingers: bool) {
        self.lingers.set(lingers);
    }

    pub(crate) fn lingers(&self) -> bool {
        self.lingers.get()
    }

    /// Closes a forked child's copy of it. The parent's stays open.
    fn close_copy(&self) {
        if !self.released.replace(true) {
            let _ = self.core.control(Control::Close { fd: self.fd });
        }
    }

    /// Closes it on a thread, since that takes its time.
    fn close_elsewhere(&self) {
        let _ = self.core.control(Control::Forget { fd: self.fd });
        let mut closing = Closing(Some(sys::into_std(self.fd)));
        // If there is no thread for it, or the loop ends before its turn, it is closed with the job.
        let _ = self.core.files.submit(Box::new(move || {
            if let Some(socket) = closing.0.take() {
                sys::close_slowly(socket);
            }
        }));
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
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
            true => self.close_elsewhere(),
            false => drop(self.core.control(Control::Close { fd: self.fd })),
        }
    }
}

/// A descriptor that lingers when it is closed. Dropped without having been closed, it does not: whoever drops it would
/// have to wait. What was written is on its way all the same.
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
    /// An error if the driver's numbers are its own: one of the kernel's could be taken for one of them.
    pub(crate) fn check_takes_kernel_descriptors(&self) -> io::Result<()> {
        match self.fd_space {
            FdSpace::Kernel | FdSpace::Split => Ok(()),
            FdSpace::Own => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this loop's driver has descriptors of its own, and takes none of the kernel's",
            )),
        }
    }
}

/// The user's side of a descriptor.
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
            is_left: Cell::new(false),
            lingers: Cell::new(false),
        });
        OwnedDescriptor { descriptor }
    }

    /// One that is closed already: no driver has this number.
    pub(crate) fn closed(core: Rc<LoopCore>) -> OwnedDescriptor {
        let closed = OwnedDescriptor::new(core, Fd::MIN);
        closed.descriptor.released.set(true);
        closed
    }

    /// Whether it was made by [`closed`](OwnedDescriptor::closed).
    pub(crate) fn is_closed(&self) -> bool {
        self.fd() == Fd::MIN
    }

    /// Takes over a socket that was made elsewhere.
    #[track_caller]
    pub(crate) fn adopt(std_socket: impl Into<Foreign>) -> io::Result<OwnedDescriptor> {
        let core = LoopCore::current("from_std").rc();
        let socket = std_socket.into();
        let fd = sys::number(&socket);
        core.check_takes_kernel_descriptors()?;
        core.control(Control::Adopt { fd })?;
        let owned = OwnedDescriptor::new(core, sys::from_std(socket));
        // What is no socket does not linger.
        if let Ok(SocketOption::Linger(time)) = owned.get(SocketOption::Linger(None)) {
            owned.note_linger(time);
        }
        Ok(owned)
    }

    /// Gives the descriptor away, if nothing in its lanes would be lost.
    pub(crate) fn release(self) -> Result<Fd, (io::Error, OwnedDescriptor)> {
        let refuse = |socket, why: &str| Err((io::Error::new(io::ErrorKind::WouldBlock, why), socket));
        if self.is_closed() {
            let why = "the pipe is closed";
            return Err((io::Error::new(io::ErrorKind::NotConnected, why), self));
        }
        if !self.core().fd_space.is_kernel(self.fd()) {
            let why = "the driver's sockets are its own, and not descriptors that the kernel could give away";
            return Err((io::Error::new(io::ErrorKind::Unsupported, why), self));
        }
        self.descriptor.read.absorb_orphan(self.core());
        self.descriptor.write.absorb_orphan(self.core());
        if self.descriptor.read.is_busy() {
            return refuse(
                self,
                "a read is under way, or what a dropped one received is unread: read once more first",
            );
        }
        if self.descriptor.write.is_busy() {
            return refuse(
                self,
                "a write is under way: write or shut down first, which waits for it",
            );
        }
        self.descriptor.released.set(true);
        let _ = self.core().control(Control::Forget { fd: self.fd() });
        Ok(self.fd())
    }

    pub(crate) fn core(&self) -> &LoopCore {
        &self.descriptor.core
    }

    pub(crate) fn fd(&self) -> Fd {
        self.descriptor.fd
    }

    /// Its number, if it is one of the kernel's.
    pub(crate) fn kernel_fd(&self) -> Option<Fd> {
        Some(self.fd()).filter(|&fd| self.core().fd_space.is_kernel(fd))
    }
}

impl Drop for OwnedDescriptor {
    /// Nobody will ask for what is in the lanes any more.
    fn drop(&mut self) {
        let core = self.descriptor.core.clone();
        if core.is_forked() {
            // What is in flight on it is the parent's, and never ends here.
            return self.descriptor.close_copy();
        }
        let mut left_any = false;
        self.descriptor.is_left.set(true);
        for queue in [&self.descriptor.read, &self.descriptor.write] {
            let Some(id) = queue.op.get() else { continue };
            if !core.request_cancel_listened(id) {
                queue.op.set(None);
                core.orphan(id, OnOrphan::Discard);
            }
            left_any = true;
        }
        if left_any {
            core.pump();
        }
    }
}

impl fmt::Debug for OwnedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedDescriptor").field("fd", &self.fd()).finish()
    }
}

/// Why a socket could not be turned into std's, with the socket.
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
///         // A read that is begun and given up: what it receives is kept for the next.
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
    /// The socket, as it was.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// The reason.
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
