//! A connection in memory.
//!
//! Two pipes, one per direction, each a queue of bytes with a bound. It needs no kernel and no driver, so what is written
//! against the traits can be tested on every loop, the null driver's and Miri's among them. As with a socket, calls on one
//! direction happen one after the other, each as a whole: who waits holds the pipe's lane.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use super::buf::{IoBuf, IoBufMut, no_room, room_of};
use super::managed::ManagedBuf;
use super::read::{AsyncRead, ended_early, refuse_exact};
use super::split::Halves;
use super::write::AsyncWrite;
use super::{BufResult, coop, poll_coop};
use crate::event_loop::exception::guard;
use crate::inflight::queue::{IoQueue, OwnedQueueGuard};

/// Two connected streams in memory: what is written to one is read from the other.
///
/// Each direction holds at most `capacity` bytes (at least one); a writer waits for room. When an end is shut down or dropped, the other
/// reads what is left and then the end; writing to a dropped end is a `BrokenPipe` error.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, duplex};
/// windlass::run(async {
///     let (mut client, mut server) = duplex(64);
///     client.write_all("ping").await.0?;
///     assert_eq!(&*server.read_managed().await?, b"ping");
///     drop(server);
///     assert!(client.read_managed().await?.is_empty());
///     let error = client.write_all("anybody?").await.0.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn duplex(capacity: usize) -> (DuplexStream, DuplexStream) {
    let (one, other) = (Pipe::new(capacity), Pipe::new(capacity));
    let first = DuplexStream {
        incoming: one.clone(),
        outgoing: other.clone(),
    };
    let second = DuplexStream {
        incoming: other,
        outgoing: one,
    };
    (first, second)
}

/// One end of a connection in memory: see [`duplex`].
///
/// Both the stream and a shared reference to it can be read from and written to. **Cancelling** a read loses nothing,
/// [`read_exact`](AsyncRead::read_exact) included. A cancelled `write_all` may have written any part from the front.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
/// windlass::run(async {
///     let (mut a, b): (DuplexStream, DuplexStream) = duplex(64);
///     (&b).write_all("hello").await.0?;
///     let (result, bytes) = a.read_exact([0; 5]).await;
///     result?;
///     assert_eq!(&bytes, b"hello");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct DuplexStream {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
}

/// One direction.
struct Pipe {
    queue: RefCell<Queue>,
    /// How many bytes the queue may hold.
    capacity: usize,
    /// How many the reader waits for: it has room for them, so these may be in the queue even if they are more.
    wanted: Cell<usize>,
    read: IoQueue,
    write: IoQueue,
}

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// Nothing more will be written.
    ended: bool,
    /// Nobody will read.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(capacity: usize) -> Rc<Pipe> {
        Rc::new(Pipe {
            queue: RefCell::default(),
            capacity: capacity.max(1),
            wanted: Cell::new(1),
            read: IoQueue::default(),
            write: IoQueue::default(),
        })
    }

    /// How much may be in the queue.
    fn bound(&self) -> usize {
        self.capacity.max(self.wanted.get())
    }

    /// Waits until `is_so` of the queue; `waker` is where it is told of changes. To be called by who holds the lane.
    async fn wait(&self, is_so: impl Fn(&Queue) -> bool, waker: fn(&mut Queue) -> &mut Option<Waker>) {
        std::future::poll_fn(|cx| self.poll_until(&is_so, waker, cx)).await;
    }

    fn poll_until(
        &self,
        is_so: impl Fn(&Queue) -> bool,
        waker: fn(&mut Queue) -> &mut Option<Waker>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if is_so(&self.queue.borrow()) {
            return Poll::Ready(());
        }
        // Cloning and dropping wakers is foreign code, so neither happens under the borrow.
        let new = cx.waker().clone();
        let old = waker(&mut self.queue.borrow_mut()).replace(new);
        drop(old);
        // Inside of that it may have become so, and then only the waker from before was woken.
        match is_so(&self.queue.borrow()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Whether a writer has nothing to wait for.
    fn has_room(&self, queue: &Queue) -> bool {
        queue.bytes.len() < self.bound() || queue.ended || queue.abandoned
    }

    /// Whether what is written will be read.
    fn open(&self) -> io::Result<()> {
        let queue = self.queue.borrow();
        match queue.ended || queue.abandoned {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    /// Waits until `count` bytes are there, or all that ever will be.
    async fn readable(&self, count: usize) {
        struct Wanted<'a>(&'a Pipe);
        impl Drop for Wanted<'_> {
            fn drop(&mut self) {
                self.0.wanted.set(1);
            }
        }
        coop().await;
        let _wanted = Wanted(self);
        self.wanted.set(count);
        if count > self.capacity {
            self.wake(|queue| &mut queue.writer);
        }
        self.wait(
            |queue| queue.bytes.len() >= count || queue.ended,
            |queue| &mut queue.reader,
        )
        .await;
    }

    /// Waits until there is room for a byte.
    async fn writable(&self) -> io::Result<()> {
        coop().await;
        self.wait(|queue| self.has_room(queue), |queue| &mut queue.writer).await;
        self.open()
    }

    /// Moves what is there into `buf`, from its start, and gives how much it was.
    fn take<B: IoBufMut>(&self, buf: &mut B) -> usize {
        // The buffer's methods are foreign code: none is called under the borrow.
        let (place, capacity) = room_of(buf);
        let count = {
            let mut queue = self.queue.borrow_mut();
            let (front, back) = queue.bytes.as_slices();
            let count = capacity.min(queue.bytes.len());
            let first = front.len().min(count);
            // SAFETY: the buffer vouches for `capacity` bytes that are its alone; `count` is no more than that, and no more
            // than both parts of the queue hold.
            unsafe {
                std::ptr::copy_nonoverlapping(front.as_ptr(), place, first);
                std::ptr::copy_nonoverlapping(back.as_ptr(), place.wrapping_add(first), count - first);
            }
            queue.bytes.drain(..count);
            count
        };
        // SAFETY: these bytes were just copied.
        unsafe { buf.set_filled(count) };
        self.wake(|queue| &mut queue.writer);
        count
    }

    /// Puts in what there is room for, and gives how much it was.
    fn put(&self, bytes: &[u8]) -> usize {
        let count = {
            let mut queue = self.queue.borrow_mut();
            let count = self.bound().saturating_sub(queue.bytes.len()).min(bytes.len());
            queue.bytes.extend(&bytes[..count]);
            count
        };
        self.wake(|queue| &mut queue.reader);
        count
    }

    fn wake(&self, waker: fn(&mut Queue) -> &mut Option<Waker>) {
        let waker = waker(&mut self.queue.borrow_mut()).take();
        if let Some(waker) = waker {
            // This runs in destructors too.
            guard("a waker", || waker.wake());
        }
    }

    /// Nothing more will be written.
    fn end(&self) {
        self.queue.borrow_mut().ended = true;
        self.wake(|queue| &mut queue.reader);
    }

    /// Nobody will read.
    fn abandon(&self) {
        let leftover = {
            let mut queue = self.queue.borrow_mut();
            queue.abandoned = true;
            std::mem::take(&mut queue.bytes)
        };
        drop(leftover);
        self.wake(|queue| &mut queue.writer);
    }
}

/// The pipe that a bridge reads from.
pub(crate) struct IncomingPipe(OwnedQueueGuard<Pipe>);

impl IncomingPipe {
    /// All that is there, or, empty, the end.
    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<ManagedBuf> {
        ready!(self.0.poll(cx));
        ready!(poll_coop(cx));
        let pipe = self.0.owner();
        ready!(pipe.poll_until(
            |queue| !queue.bytes.is_empty() || queue.ended,
            |queue| &mut queue.reader,
            cx
        ));
        let bytes = std::mem::take(&mut pipe.queue.borrow_mut().bytes);
        pipe.wake(|queue| &mut queue.writer);
        self.0.release();
        Poll::Ready(ManagedBuf::from_heap(bytes.into()))
    }

    /// Whether it is what this stream reads from.
    pub(crate) fn is_of(&self, stream: &DuplexStream) -> bool {
        Rc::ptr_eq(self.0.owner(), &stream.incoming)
    }

    /// What was taken and not used is read next.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        let pipe = self.0.owner();
        {
            let mut queue = pipe.queue.borrow_mut();
            for &byte in bytes.iter().rev() {
                queue.bytes.push_front(byte);
            }
        }
        // Another read may wait already.
        pipe.wake(|queue| &mut queue.reader);
    }
}

/// The pipe that a bridge writes to.
pub(crate) struct OutgoingPipe(OwnedQueueGuard<Pipe>);

impl OutgoingPipe {
    /// Whether it is what this stream writes to.
    pub(crate) fn is_of(&self, stream: &DuplexStream) -> bool {
        Rc::ptr_eq(self.0.owner(), &stream.outgoing)
    }

    /// Puts in what there is room for, and gives how much it was.
    pub(crate) fn poll_put(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        ready!(self.0.poll(cx));
        ready!(poll_coop(cx));
        let pipe = self.0.owner();
        ready!(pipe.poll_until(|queue| pipe.has_room(queue), |queue| &mut queue.writer, cx));
        let result = pipe.open().map(|()| bufs.iter().map(|buf| pipe.put(buf)).sum());
        self.0.release();
        Poll::Ready(result)
    }

    /// Nothing more will be written.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.0.poll(cx));
        self.0.owner().end();
        self.0.release();
        Poll::Ready(())
    }
}

impl DuplexStream {
    pub(crate) fn incoming_pipe(&self) -> IncomingPipe {
        IncomingPipe(OwnedQueueGuard::new(self.incoming.clone(), |pipe| &pipe.read))
    }

    pub(crate) fn outgoing_pipe(&self) -> OutgoingPipe {
        OutgoingPipe(OwnedQueueGuard::new(self.outgoing.clone(), |pipe| &pipe.write))
    }
}

impl AsyncRead for &DuplexStream {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_room()), buf);
        }
        let pipe = &*self.incoming;
        let _hold = pipe.read.hold().await;
        pipe.readable(1).await;
        (Ok(pipe.take(&mut buf)), buf)
    }

    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        let pipe = &*self.incoming;
        let _hold = pipe.read.hold().await;
        pipe.readable(1).await;
        let bytes = std::mem::take(&mut pipe.queue.borrow_mut().bytes);
        pipe.wake(|queue| &mut queue.writer);
        Ok(ManagedBuf::from_heap(bytes.into()))
    }

    /// The bytes are taken when all of them are there. So dropping the future, or the other end, loses nothing.
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        if let Some(nothing_to_do) = refuse_exact(&buf) {
            return (nothing_to_do, buf);
        }
        let pipe = &*self.incoming;
        let len = buf.len();
        let _hold = pipe.read.hold().await;
        pipe.readable(len).await;
        if pipe.queue.borrow().bytes.len() < len {
            return (Err(ended_early()), buf);
        }
        let mut part = buf.slice_mut(..len);
        pipe.take(&mut part);
        (Ok(()), part.into_inner())
    }
}

impl AsyncWrite for &DuplexStream {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let pipe = &*self.outgoing;
        let _hold = pipe.write.hold().await;
        match pipe.writable().await {
            Ok(()) => (Ok(pipe.put(buf.as_slice())), buf),
            Err(error) => (Err(error), buf),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        let pipe = &*self.outgoing;
        let _hold = pipe.write.hold().await;
        pipe.end();
        Ok(())
    }

    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        let pipe = &*self.outgoing;
        let _hold = pipe.write.hold().await;
        let mut written = 0;
        while written < buf.len() {
            if let Err(error) = pipe.writable().await {
                return (Err(error), buf);
            }
            // A buffer of somebody else's may hold less than it did a moment ago.
            written += pipe.put(buf.as_slice().get(written..).unwrap_or_default());
        }
        (Ok(()), buf)
    }
}

impl AsyncRead for DuplexStream {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        (&*self).read(buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        (&*self).read_managed().await
    }
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        (&*self).read_exact(buf).await
    }
}

impl AsyncWrite for DuplexStream {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        (&*self).write(buf).await
    }
    async fn flush(&mut self) -> io::Result<()> {
        (&*self).flush().await
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        (&*self).shutdown().await
    }
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        (&*self).write_all(buf).await
    }
}

impl Halves for DuplexStream {
    type ReadHalf<'a> = &'a DuplexStream;
    type WriteHalf<'a> = &'a DuplexStream;

    fn halves(&mut self) -> (&DuplexStream, &DuplexStream) {
        (self, self)
    }
}

impl Drop for DuplexStream {
    fn drop(&mut self) {
        self.outgoing.end();
        self.incoming.abandon();
    }
}

impl fmt::Debug for DuplexStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DuplexStream")
            .field("unread", &self.incoming.queue.borrow().bytes.len())
            .field("unsent", &self.outgoing.queue.borrow().bytes.len())
            .field("capacity", &self.incoming.capacity)
            .finish()
    }
}
