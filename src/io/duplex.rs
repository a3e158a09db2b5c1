//! An in-memory connection.
//!
//! It consists of two bounded byte queues, one per direction. It needs neither a kernel nor a driver, so code written
//! against the stream traits can be tested on every loop, including the null driver and Miri. As on a socket, calls in
//! one direction are served one at a time, in FIFO order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::buf::{IoBuf, IoBufMut, fill_target, no_capacity};
use super::managed::ManagedBuf;
use super::read::{AsyncRead, check_exact_len, unexpected_eof};
use super::split::Halves;
use super::waker_cell::WakerCell;
use super::write::AsyncWrite;
use super::{BufResult, coop, delegate_read, delegate_write, poll_coop};
use crate::event_loop::exception::guard;
use crate::inflight::queue::{IoQueue, Ticket};
use crate::on_drop::OnDrop;

/// Creates two connected in-memory streams: bytes written to one are read from the other.
///
/// Each direction buffers at most `capacity` bytes (at least one); a writer waits for space. After one end is shut down
/// or dropped, the other end reads the remaining bytes, then end of stream. A write fails with `BrokenPipe` if its own
/// end was shut down or the other end was dropped.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, duplex};
/// windlass::run(async {
///     let (mut client, mut server) = duplex(64);
///     client.write_all("ping").await.0?;
///     assert_eq!(&*server.read_managed().await?, b"ping");
///     drop(server);
///     assert!(client.read_managed().await?.is_empty());
///     let error = client.write_all("no reader").await.0.unwrap_err();
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

/// One end of an in-memory connection: see [`duplex`].
///
/// `&DuplexStream` implements the stream traits too, so two tasks can use both directions at once.
///
/// **Cancel safety:** a dropped read loses nothing, including [`read_exact`](AsyncRead::read_exact). A dropped
/// `write_all` may have written any prefix of its buffer.
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
    /// The maximum number of buffered bytes.
    capacity: usize,
    /// The number of bytes that the current read waits for. It may exceed `capacity`: the reader's buffer has space.
    requested: Cell<usize>,
    read: IoQueue,
    write: IoQueue,
    /// The waker of the current read.
    reader: WakerCell,
    /// The waker of the current write.
    writer: WakerCell,
}

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// The write end was shut down or dropped.
    write_closed: bool,
    /// The read end was dropped.
    read_closed: bool,
}

impl Pipe {
    fn new(capacity: usize) -> Rc<Pipe> {
        Rc::new(Pipe {
            queue: RefCell::default(),
            capacity: capacity.max(1),
            requested: Cell::new(1),
            read: IoQueue::default(),
            write: IoQueue::default(),
            reader: WakerCell::default(),
            writer: WakerCell::default(),
        })
    }

    /// The number of bytes that may be buffered now.
    fn limit(&self) -> usize {
        self.capacity.max(self.requested.get())
    }

    /// Ready when `condition` holds. The caller must hold the guard of its direction, whose `waker` it passes.
    fn poll_until(&self, condition: impl Fn(&Queue) -> bool, waker: &WakerCell, cx: &mut Context<'_>) -> Poll<()> {
        let holds = || condition(&self.queue.borrow());
        // Storing the waker runs user code, which may change the queue and then wakes only the old waker: check again.
        match holds() || waker.set(cx.waker()) && holds() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Whether a reader need not wait: `count` bytes are buffered, or no more will come.
    fn is_readable(queue: &Queue, count: usize) -> bool {
        queue.bytes.len() >= count || queue.write_closed
    }

    /// Whether a writer need not wait: there is space, or writing fails.
    fn is_writable(&self, queue: &Queue) -> bool {
        queue.bytes.len() < self.limit() || queue.write_closed || queue.read_closed
    }

    /// Fails if either end is closed.
    fn check_open(&self) -> io::Result<()> {
        let queue = self.queue.borrow();
        match queue.write_closed || queue.read_closed {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    /// Waits until `count` bytes are buffered or the write end is closed.
    async fn readable(&self, count: usize) {
        coop().await;
        let _reset = OnDrop(|| self.requested.set(1));
        self.requested.set(count);
        if count > self.capacity {
            wake(&self.writer);
        }
        poll_fn(|cx| self.poll_until(|queue| Pipe::is_readable(queue, count), &self.reader, cx)).await;
    }

    /// Waits until there is space for at least one byte.
    async fn writable(&self) -> io::Result<()> {
        coop().await;
        poll_fn(|cx| self.poll_until(|queue| self.is_writable(queue), &self.writer, cx)).await;
        self.check_open()
    }

    /// Moves buffered bytes to the start of `buf` and returns their number.
    fn take<B: IoBufMut>(&self, buf: &mut B) -> usize {
        // The buffer's methods are user code: none is called under the borrow.
        let (target, capacity) = fill_target(buf);
        let count = {
            let mut queue = self.queue.borrow_mut();
            let (front, back) = queue.bytes.as_slices();
            let count = capacity.min(queue.bytes.len());
            let first = front.len().min(count);
            // SAFETY: the buffer guarantees exclusive access to `capacity` bytes; `count` exceeds neither that nor the
            // length of both parts of the queue together.
            unsafe {
                std::ptr::copy_nonoverlapping(front.as_ptr(), target, first);
                std::ptr::copy_nonoverlapping(back.as_ptr(), target.wrapping_add(first), count - first);
            }
            queue.bytes.drain(..count);
            count
        };
        // SAFETY: the copy above has initialised these bytes.
        unsafe { buf.set_filled(count) };
        wake(&self.writer);
        count
    }

    /// Takes all buffered bytes.
    fn take_all(&self) -> ManagedBuf {
        let bytes = std::mem::take(&mut self.queue.borrow_mut().bytes);
        wake(&self.writer);
        ManagedBuf::from_heap(bytes.into())
    }

    /// Buffers as many bytes as fit and returns their number.
    fn push(&self, bytes: &[u8]) -> usize {
        let count = {
            let mut queue = self.queue.borrow_mut();
            let count = self.limit().saturating_sub(queue.bytes.len()).min(bytes.len());
            queue.bytes.extend(&bytes[..count]);
            count
        };
        wake(&self.reader);
        count
    }

    /// Ends the stream: the reader gets the remaining bytes, then end of stream.
    fn close_write(&self) {
        self.queue.borrow_mut().write_closed = true;
        wake(&self.reader);
    }

    /// Discards the buffered bytes and fails further writes.
    fn close_read(&self) {
        let unread = {
            let mut queue = self.queue.borrow_mut();
            queue.read_closed = true;
            std::mem::take(&mut queue.bytes)
        };
        drop(unread);
        wake(&self.writer);
    }
}

fn wake(waker: &WakerCell) {
    if let Some(waker) = waker.take() {
        // Called by destructors, which must not unwind.
        guard("a waker", || waker.wake());
    }
}

/// The read direction of a stream, for `compat` bridges.
pub(crate) struct IncomingPipe {
    pipe: Rc<Pipe>,
    ticket: Ticket,
}

impl Drop for IncomingPipe {
    fn drop(&mut self) {
        self.pipe.read.end(&mut self.ticket);
    }
}

impl IncomingPipe {
    /// Returns all buffered bytes; an empty buffer means end of stream.
    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<ManagedBuf> {
        let pipe = &self.pipe;
        ready!(pipe.read.poll_acquire(&mut self.ticket, cx));
        ready!(poll_coop(cx));
        ready!(pipe.poll_until(|queue| Pipe::is_readable(queue, 1), &pipe.reader, cx));
        let bytes = pipe.take_all();
        pipe.read.end(&mut self.ticket);
        Poll::Ready(bytes)
    }

    /// Whether this is the read direction of `stream`.
    pub(crate) fn is_of(&self, stream: &DuplexStream) -> bool {
        Rc::ptr_eq(&self.pipe, &stream.incoming)
    }

    /// Returns unconsumed bytes to the front of the queue.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        let pipe = &self.pipe;
        {
            let mut queue = pipe.queue.borrow_mut();
            for &byte in bytes.iter().rev() {
                queue.bytes.push_front(byte);
            }
        }
        // Another read may already be waiting.
        wake(&pipe.reader);
    }
}

/// The write direction of a stream, for `compat` bridges.
pub(crate) struct OutgoingPipe {
    pipe: Rc<Pipe>,
    ticket: Ticket,
}

impl Drop for OutgoingPipe {
    fn drop(&mut self) {
        self.pipe.write.end(&mut self.ticket);
    }
}

impl OutgoingPipe {
    /// Whether this is the write direction of `stream`.
    pub(crate) fn is_of(&self, stream: &DuplexStream) -> bool {
        Rc::ptr_eq(&self.pipe, &stream.outgoing)
    }

    /// Buffers as many bytes as fit and returns their number.
    pub(crate) fn poll_put(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let pipe = &self.pipe;
        ready!(pipe.write.poll_acquire(&mut self.ticket, cx));
        ready!(poll_coop(cx));
        ready!(pipe.poll_until(|queue| pipe.is_writable(queue), &pipe.writer, cx));
        let result = pipe.check_open().map(|()| bufs.iter().map(|buf| pipe.push(buf)).sum());
        pipe.write.end(&mut self.ticket);
        Poll::Ready(result)
    }

    /// Ends the stream.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.pipe.write.poll_acquire(&mut self.ticket, cx));
        self.pipe.close_write();
        self.pipe.write.end(&mut self.ticket);
        Poll::Ready(())
    }
}

impl DuplexStream {
    pub(crate) fn incoming_pipe(&self) -> IncomingPipe {
        IncomingPipe {
            pipe: self.incoming.clone(),
            ticket: Ticket::NONE,
        }
    }

    pub(crate) fn outgoing_pipe(&self) -> OutgoingPipe {
        OutgoingPipe {
            pipe: self.outgoing.clone(),
            ticket: Ticket::NONE,
        }
    }
}

impl AsyncRead for &DuplexStream {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let pipe = &*self.incoming;
        let _guard = pipe.read.acquire().await;
        pipe.readable(1).await;
        (Ok(pipe.take(&mut buf)), buf)
    }

    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        let pipe = &*self.incoming;
        let _guard = pipe.read.acquire().await;
        pipe.readable(1).await;
        Ok(pipe.take_all())
    }

    /// Takes the bytes only when all are buffered, so neither cancellation nor end of stream loses data.
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        if let Some(result) = check_exact_len(&buf) {
            return (result, buf);
        }
        let pipe = &*self.incoming;
        let len = buf.len();
        let _guard = pipe.read.acquire().await;
        pipe.readable(len).await;
        if pipe.queue.borrow().bytes.len() < len {
            return (Err(unexpected_eof()), buf);
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
        let _guard = pipe.write.acquire().await;
        match pipe.writable().await {
            Ok(()) => (Ok(pipe.push(buf.as_slice())), buf),
            Err(error) => (Err(error), buf),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        let pipe = &*self.outgoing;
        let _guard = pipe.write.acquire().await;
        pipe.close_write();
        Ok(())
    }

    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        let pipe = &*self.outgoing;
        let _guard = pipe.write.acquire().await;
        let mut written = 0;
        while written < buf.len() {
            if let Err(error) = pipe.writable().await {
                return (Err(error), buf);
            }
            // A user's buffer may have become shorter in the meantime.
            written += pipe.push(buf.as_slice().get(written..).unwrap_or_default());
        }
        (Ok(()), buf)
    }
}

impl AsyncRead for DuplexStream {
    delegate_read!(self => &*self);
}

impl AsyncWrite for DuplexStream {
    delegate_write!(self => &*self);
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
        self.outgoing.close_write();
        self.incoming.close_read();
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
