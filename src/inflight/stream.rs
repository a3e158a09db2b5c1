//! `ByteStream`: reads and writes on TCP and Unix connections and pipes.
//!
//! These types differ only in how they are opened. Their public methods are written once, here, and added to each type
//! by [`reading_methods!`] and [`writing_methods!`].

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::driver::op::{MAX_LEN, Medium, Op};
use crate::driver::{OpResult, OsResult};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::event_loop::task_key::TaskKey;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::large_receive;
use crate::inflight::op_future::{DoneOp, polled_after_completion};
use crate::inflight::queue::{IoQueue, Ticket};
use crate::inflight::{OnOrphan, RawOp};
use crate::io::vectored::{set_all_filled, set_others_empty};
use crate::io::{
    BufResult, HEAP_READ_LEN, IoBuf, IoBufMut, KernelStream, ManagedBuf, bytes_from, check_exact_len, fill_range,
    fill_target, no_capacity, unexpected_eof,
};
use crate::sys::errno;

/// A descriptor for a stream of bytes.
pub(crate) struct ByteStream {
    pub(crate) owned: OwnedDescriptor,
    medium: Medium,
}

/// The read and write methods are documented below, where they become public.
impl ByteStream {
    pub(crate) fn new(owned: OwnedDescriptor, medium: Medium) -> ByteStream {
        ByteStream { owned, medium }
    }

    pub(crate) fn medium(&self) -> Medium {
        self.medium
    }

    pub(crate) fn read<B: IoBufMut>(&self, buf: B) -> Read<'_, B> {
        Read(Call::new(self, buf))
    }

    pub(crate) fn read_exact<B: IoBufMut>(&self, buf: B) -> ReadExact<'_, B> {
        ReadExact {
            call: Call::new(self, buf),
            len: 0,
            filled: 0,
        }
    }

    pub(crate) fn read_managed(&self) -> ReadManaged<'_> {
        ReadManaged {
            bytes: self,
            read: ManagedRead::default(),
        }
    }

    pub(crate) async fn read_vectored<B: IoBufMut>(&self, mut bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        let Some(first) = bufs.iter().position(|buf| buf.capacity() > 0) else {
            return (Err(no_capacity()), bufs);
        };
        let descriptor = &self.owned.descriptor;
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        let _guard = queue.begin(core).await;
        if let Some(served) = serve_first(queue, &mut bufs, first) {
            return (served, bufs);
        }
        let (fd, medium) = (descriptor.fd, self.medium);
        let op = |slices, count| Op::RecvVectored {
            fd,
            medium,
            slices,
            count,
        };
        let op_future = self.owned.start_read_vectored(queue, OnOrphan::Keep, bufs, op);
        let (op_result, (_, mut bufs, slices)) = op_future.await;
        if let Some(served) = serve_first(queue, &mut bufs, first) {
            return (served, bufs);
        }
        let result = count(op_result.res());
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, in order.
            unsafe { set_all_filled(&mut bufs, &slices, count) };
        }
        (result, bufs)
    }

    pub(crate) fn write<B: IoBuf>(&self, buf: B) -> Write<'_, B, false> {
        Write::new(self, buf)
    }

    pub(crate) fn write_all<B: IoBuf>(&self, buf: B) -> Write<'_, B, true> {
        Write::new(self, buf)
    }

    pub(crate) async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.write_slices(bufs, false).await
    }

    pub(crate) async fn write_all_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        let (result, bufs) = self.write_slices(bufs, true).await;
        (result.map(drop), bufs)
    }

    /// Sends once from several buffers, or `all` of them.
    async fn write_slices<B: IoBuf>(&self, mut bufs: Vec<B>, all: bool) -> BufResult<usize, Vec<B>> {
        let len: usize = bufs.iter().map(IoBuf::len).sum();
        if len == 0 {
            return (Ok(0), bufs);
        }
        let (fd, medium, queue) = (self.owned.fd(), self.medium, &self.owned.descriptor.write);
        let _guard = queue.begin(self.owned.core()).await;
        let (mut sent, mut slices) = (0, Vec::new());
        loop {
            let op = |slices, count| Op::SendVectored {
                fd,
                medium,
                slices,
                count,
            };
            let op_result;
            let op_future = self.owned.start_write_vectored(queue, bufs, sent, slices, op);
            (op_result, (_, bufs, slices)) = op_future.await;
            match self.advance(op_result.res(), len - sent, all) {
                Ok(left) => sent = len - left,
                Err(result) => return (result, bufs),
            }
        }
    }

    #[inline]
    fn send_op(&self, ptr: *const u8, len: usize) -> Op {
        Op::Send {
            fd: self.owned.fd(),
            medium: self.medium,
            ptr,
            len: len.min(MAX_LEN),
        }
    }

    /// Builds the send of `buf[begin..]`.
    #[inline]
    fn plan_send<B: IoBuf>(&self, begin: usize) -> impl FnOnce(&mut B) -> Op {
        move |buf| {
            let (ptr, len) = bytes_from(buf, begin);
            self.send_op(ptr, len)
        }
    }

    /// For copies inside the kernel: `Some` for TCP sockets of the kernel.
    pub(crate) fn kernel_stream(&self) -> Option<KernelStream> {
        let is_kernel_tcp = self.medium == Medium::Tcp && self.owned.kernel_fd().is_some();
        is_kernel_tcp.then(|| KernelStream::new(self.owned.descriptor.clone()))
    }

    pub(crate) async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how == Shutdown::Read {
            return self.owned.shutdown(how);
        }
        let queue = &self.owned.descriptor.write;
        let _guard = queue.begin(self.owned.core()).await;
        self.owned.shutdown(how)
    }

    /// Closes the descriptor after the write in flight. Later calls on the stream fail.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        drop(self.owned.descriptor.write.begin(self.owned.core()).await);
        self.close_now();
        Ok(())
    }

    /// `close` when no write is in flight.
    pub(crate) fn close_now(&mut self) {
        self.owned = OwnedDescriptor::closed(self.owned.descriptor.core.clone());
    }

    /// How many of `left` bytes are left after one more send, or the result of the write if that was the last one. Writing
    /// after `close` fails as if the peer had closed: with `BrokenPipe`.
    #[inline]
    fn advance(&self, res: OsResult, left: usize, all: bool) -> Result<usize, io::Result<usize>> {
        match res {
            Ok(0) if all => Err(Err(io::ErrorKind::WriteZero.into())),
            Ok(count) if count as usize >= left || !all => Err(Ok(count as usize)),
            Ok(count) => Ok(left - count as usize),
            Err(errno::BAD_FD) if self.owned.is_closed() => Err(Err(from_code(errno::BROKEN_PIPE))),
            Err(code) => Err(Err(from_code(code))),
        }
    }
}

/// A read or write in progress.
struct Call<'a, B, const IS_WRITE: bool> {
    bytes: &'a ByteStream,
    ticket: Ticket,
    /// While no operation has it.
    buf: Option<B>,
    op: RawOp<B>,
}

impl<'a, B, const IS_WRITE: bool> Call<'a, B, IS_WRITE> {
    fn new(bytes: &'a ByteStream, buf: B) -> Call<'a, B, IS_WRITE> {
        Call {
            bytes,
            ticket: Ticket::NONE,
            buf: Some(buf),
            op: RawOp::NONE,
        }
    }

    #[inline]
    fn core_and_queue(&self) -> (&'a LoopCore, &'a IoQueue) {
        let descriptor = &self.bytes.owned.descriptor;
        let queue = match IS_WRITE {
            true => &descriptor.write,
            false => &descriptor.read,
        };
        (&descriptor.core, queue)
    }

    /// Ends a call whose buffer no operation has.
    #[inline]
    fn finish<T>(&mut self, result: io::Result<T>) -> Poll<BufResult<T, B>> {
        self.core_and_queue().1.end(&mut self.ticket);
        match self.buf.take() {
            Some(buf) => Poll::Ready((result, buf)),
            None => polled_after_completion(),
        }
    }

    /// Drops a call that may have been started: its operation stays in the queue.
    #[cold]
    fn give_up(&mut self) {
        let (core, queue) = self.core_and_queue();
        self.op.abandon(core);
        queue.end(&mut self.ticket);
    }
}

/// No field is pinned: the buffer moves into the operation's slot before anything points to it.
impl<B, const IS_WRITE: bool> Unpin for Call<'_, B, IS_WRITE> {}

impl<B, const IS_WRITE: bool> Drop for Call<'_, B, IS_WRITE> {
    #[inline]
    fn drop(&mut self) {
        if self.ticket != Ticket::NONE {
            self.give_up();
        }
    }
}

/// Receives once into a buffer.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Read<'a, B: IoBufMut>(Call<'a, B, false>);

impl<B: IoBufMut> Future for Read<'_, B> {
    type Output = BufResult<usize, B>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<usize, B>> {
        let call = &mut self.0;
        let (core, queue) = call.core_and_queue();
        if let Some(buf) = &mut call.buf {
            if buf.capacity() == 0 && call.ticket == Ticket::NONE {
                return call.finish(Err(no_capacity()));
            }
            ready!(queue.poll_begin(core, &mut call.ticket, cx));
            if let Some(served) = queue.serve(buf) {
                return call.finish(served.map_err(from_code));
            }
            if let Some(buf) = call.buf.take() {
                call.op = start_recv(&call.bytes.owned.descriptor, call.bytes.medium, buf, fill_target);
            }
        }
        let (result, buf) = ready!(call.op.poll(core, queue, cx));
        // SAFETY: the operation has received into this buffer.
        let finished = unsafe { finish_read(queue, result.res(), buf) };
        queue.end(&mut call.ticket);
        Poll::Ready(finished)
    }
}

/// Receives until a buffer is full. The buffer stays in the operation's slot from the first receive to the last.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct ReadExact<'a, B: IoBufMut> {
    call: Call<'a, B, false>,
    len: usize,
    filled: usize,
}

impl<B: IoBufMut> Future for ReadExact<'_, B> {
    type Output = BufResult<(), B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<(), B>> {
        let ReadExact { call, len, filled } = &mut *self;
        let (core, queue) = call.core_and_queue();
        let (descriptor, medium) = (&call.bytes.owned.descriptor, call.bytes.medium);
        if !call.op.is_started() {
            let buf = call.buf.as_mut().unwrap_or_else(|| polled_after_completion());
            if call.ticket == Ticket::NONE {
                if let Some(result) = check_exact_len(buf) {
                    return call.finish(result);
                }
                *len = buf.len();
            }
            ready!(queue.poll_begin(core, &mut call.ticket, cx));
            if queue.has_leftover()
                && let Some(served) = serve_head(queue, buf, *len)
            {
                match served {
                    Ok(count) => *filled = count,
                    Err(code) => return call.finish(Err(from_code(code))),
                }
            }
        }
        let len = *len;
        loop {
            if call.buf.is_some() {
                if *filled == len {
                    return call.finish(Ok(()));
                }
                // The kernel does not repeat an error that a dropped read received after its last bytes.
                if let Some(code) = queue.take_error() {
                    return call.put_back(*filled, from_code(code));
                }
                let (begin, buf) = (*filled, call.buf.take().expect("checked"));
                call.op = start_recv(descriptor, medium, buf, |buf| fill_range(buf, begin, len));
                call.op.set_prefix(core, begin);
            }
            let done = ready!(call.op.poll_done(core, cx));
            let result = done.result();
            let received = *filled + result.res().unwrap_or(0) as usize;
            let is_overtaken = queue.has_leftover();
            if result.res().is_ok_and(|count| count > 0) && received < len && !is_overtaken {
                queue.note_received(result);
                let plan = plan_recv(descriptor, medium, |buf| fill_range(buf, received, len));
                call.op.restart(core, queue, plan);
                call.op.set_prefix(core, received);
                // Not before: if the buffer panics, the next poll counts this operation again.
                *filled = received;
                continue;
            }
            let (result, buf) = call.op.finish(core, queue, done);
            let buf = call.buf.insert(buf);
            if is_overtaken {
                *filled = serve_head(queue, buf, len).and_then(Result::ok).unwrap_or(0);
                continue;
            }
            match count(result.res()) {
                Ok(0) => return call.put_back(*filled, unexpected_eof()),
                Ok(_) => *filled = received,
                Err(error) => return call.put_back(*filled, error),
            }
        }
    }
}

impl<B: IoBufMut> Call<'_, B, false> {
    /// Ends a `read_exact` with an error. The next read returns the first `filled` bytes, which were received.
    fn put_back(&mut self, filled: usize, error: io::Error) -> Poll<BufResult<(), B>> {
        let (_, queue) = self.core_and_queue();
        if filled > 0
            && let Some(buf) = &mut self.buf
        {
            // SAFETY: this many bytes were received.
            queue.put_back(unsafe { received_in(buf, filled) });
        }
        self.finish(Err(error))
    }
}

/// Receives once into a buffer of the pool.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct ReadManaged<'a> {
    bytes: &'a ByteStream,
    read: ManagedRead,
}

impl Future for ReadManaged<'_> {
    type Output = io::Result<ManagedBuf>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        let this = &mut *self;
        this.read.poll(&this.bytes.owned.descriptor, this.bytes.medium, cx)
    }
}

impl Drop for ReadManaged<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.read.ticket != Ticket::NONE {
            self.read.give_up(&self.bytes.owned.descriptor);
        }
    }
}

/// A managed receive of a stream or a bridge, which pass the descriptor to every call.
#[derive(Default)]
pub(crate) struct ManagedRead {
    ticket: Ticket,
    op: ManagedOp,
}

#[derive(Default)]
enum ManagedOp {
    #[default]
    NotStarted,
    Pooled(RawOp<()>),
    /// Into a large buffer: there was more data than one of the pool holds.
    Large(RawOp<ManagedBuf>),
    /// Without a pool, or when it is empty.
    Heap(RawOp<Vec<u8>>),
}

impl ManagedRead {
    /// The two most frequent cases: a read that nothing is in front of, and one that has received. All others are
    /// [`poll_slowly`](ManagedRead::poll_slowly), out of line, so that they take no registers here.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<ManagedBuf>> {
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        match &mut self.op {
            ManagedOp::NotStarted => {
                let task = core.waiter(cx);
                let is_plain = task != TaskKey::NONE && core.has_pool() && !queue.has_more.get();
                if is_plain && queue.try_begin(&mut self.ticket) {
                    let (op, is_waiting) = start_managed(task, descriptor, medium);
                    self.op = ManagedOp::Pooled(op);
                    if is_waiting {
                        return Poll::Pending;
                    }
                }
            }
            ManagedOp::Pooled(op) => {
                let has_bytes = |result: OpResult| result.received_in_pool().is_some();
                if !queue.has_leftover()
                    && let Some(done) = op.try_done(core, has_bytes)
                {
                    queue.note_received(done.result());
                    queue.op.set(None);
                    queue.end_held(&mut self.ticket);
                    let (result, ()) = op.take(core, done);
                    // As for a write, the buffer comes last.
                    if let Some(buffer) = core.take_buffer(result) {
                        return Poll::Ready(Ok(buffer));
                    }
                }
            }
            ManagedOp::Large(_) | ManagedOp::Heap(_) => {}
        }
        self.poll_slowly(descriptor, medium, cx)
    }

    #[cold]
    fn poll_slowly(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<ManagedBuf>> {
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        if let ManagedOp::NotStarted = self.op {
            ready!(queue.poll_begin(core, &mut self.ticket, cx));
            if queue.has_leftover()
                && let Some(served) = queue.serve_all()
            {
                queue.end(&mut self.ticket);
                return Poll::Ready(served.map(ManagedBuf::from_heap).map_err(from_code));
            }
            let large = match queue.has_more.get() {
                true => core.large_buffer(),
                false => None,
            };
            self.op = match (core.pool(), large) {
                (_, Some(buffer)) => ManagedOp::Large(large_receive::start(descriptor, medium, buffer)),
                (Some(_), None) => {
                    let (op, _) = start_managed(TaskKey::NONE, descriptor, medium);
                    core.trace(op.id);
                    ManagedOp::Pooled(op)
                }
                (None, None) => ManagedOp::Heap(start_heap_read(descriptor, medium)),
            };
        }
        if let ManagedOp::Pooled(op) = &mut self.op {
            let (result, ()) = ready!(op.poll(core, queue, cx));
            if !queue.has_leftover() && result.received_in_pool().is_some() {
                queue.end(&mut self.ticket);
                if let Some(buffer) = core.take_buffer(result) {
                    return Poll::Ready(Ok(buffer));
                }
            }
            if let Some(finished) = self.finish_pooled(descriptor, medium, result) {
                return Poll::Ready(finished);
            }
        }
        self.poll_other(descriptor, cx)
    }

    /// A managed receive got no bytes, or some were put in front of it meanwhile. `None` if the pool was empty: the bytes
    /// are received into the heap.
    #[cold]
    fn finish_pooled(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        result: OpResult,
    ) -> Option<io::Result<ManagedBuf>> {
        let queue = &descriptor.read;
        drop(descriptor.core.take_buffer(result));
        let finished = match (queue.serve_all(), result.res()) {
            (Some(served), _) => served.map(ManagedBuf::from_heap).map_err(from_code),
            (None, Err(errno::NO_BUFFERS)) => {
                self.op = ManagedOp::Heap(start_heap_read(descriptor, medium));
                return None;
            }
            (None, res) => count(res).map(|_| ManagedBuf::default()),
        };
        queue.end(&mut self.ticket);
        Some(finished)
    }

    /// A receive into a large buffer or into the heap.
    #[cold]
    fn poll_other(&mut self, descriptor: &Descriptor, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        let queue = &descriptor.read;
        let received = match &mut self.op {
            ManagedOp::Large(op) => ready!(large_receive::poll(op, descriptor, cx)),
            ManagedOp::Heap(op) => {
                let (result, buf) = ready!(op.poll(&descriptor.core, queue, cx));
                // SAFETY: the operation has received into this buffer.
                let (result, buf) = unsafe { finish_read(queue, result.res(), buf) };
                result.map(|_| ManagedBuf::from_heap(buf))
            }
            ManagedOp::NotStarted | ManagedOp::Pooled(_) => unreachable!("these are polled before"),
        };
        queue.end(&mut self.ticket);
        Poll::Ready(received)
    }

    /// Drops a read that may have been started: its operation stays in the queue, and the next read gets its bytes.
    #[cold]
    pub(crate) fn give_up(&mut self, descriptor: &Descriptor) {
        match &mut self.op {
            ManagedOp::NotStarted => {}
            ManagedOp::Pooled(op) => op.abandon(&descriptor.core),
            ManagedOp::Large(op) => op.abandon(&descriptor.core),
            ManagedOp::Heap(op) => op.abandon(&descriptor.core),
        }
        descriptor.read.end(&mut self.ticket);
    }
}

/// Starts a receive into the pool, for this task: see [`LoopCore::start_op_for`].
#[inline(always)]
fn start_managed(task: TaskKey, descriptor: &Descriptor, medium: Medium) -> (RawOp<()>, bool) {
    let (fd, queue) = (descriptor.fd, &descriptor.read);
    let drained = queue.drained.get();
    let plan = |(): &mut ()| Op::RecvManaged { medium, drained, fd };
    descriptor.core.start_op_for(task, queue, OnOrphan::Keep, || (), plan)
}

fn start_heap_read(descriptor: &Descriptor, medium: Medium) -> RawOp<Vec<u8>> {
    let buf = Vec::with_capacity(HEAP_READ_LEN);
    start_recv(descriptor, medium, buf, fill_target)
}

/// Starts one receive into the part of `buf` that `target` returns.
#[inline]
fn start_recv<B: IoBufMut>(
    descriptor: &Descriptor,
    medium: Medium,
    buf: B,
    target: impl FnOnce(&mut B) -> (*mut u8, usize),
) -> RawOp<B> {
    let plan = plan_recv(descriptor, medium, target);
    let core = &descriptor.core;
    let op = core.start_op(&descriptor.read, OnOrphan::Keep, || buf, plan);
    core.trace(op.id);
    op
}

#[inline]
pub(super) fn plan_recv<B>(
    descriptor: &Descriptor,
    medium: Medium,
    target: impl FnOnce(&mut B) -> (*mut u8, usize),
) -> impl FnOnce(&mut B) -> Op {
    let (fd, drained) = (descriptor.fd, descriptor.read.drained.get());
    move |buf| {
        let (ptr, len) = target(buf);
        let len = len.min(MAX_LEN);
        Op::Recv {
            fd,
            medium,
            drained,
            ptr,
            len,
        }
    }
}

/// Sends once from a buffer, or `ALL` of it. The buffer is sent from where it lies as long as the driver can do so at
/// once; then it stays in the operation's slot until the last byte is sent.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Write<'a, B: IoBuf, const ALL: bool> {
    call: Call<'a, B, true>,
    /// The bytes that were not sent. Valid from the first poll on.
    left: usize,
}

impl<B: IoBuf> Future for Write<'_, B, false> {
    type Output = BufResult<usize, B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<usize, B>> {
        self.poll_sent(cx)
    }
}

impl<B: IoBuf> Future for Write<'_, B, true> {
    type Output = BufResult<(), B>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<(), B>> {
        let (result, buf) = ready!(self.poll_sent(cx));
        Poll::Ready((result.map(drop), buf))
    }
}

impl<'a, B: IoBuf, const ALL: bool> Write<'a, B, ALL> {
    fn new(bytes: &'a ByteStream, buf: B) -> Write<'a, B, ALL> {
        Write {
            call: Call::new(bytes, buf),
            left: 0,
        }
    }

    #[inline]
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<BufResult<usize, B>> {
        let bytes = self.call.bytes;
        let (core, queue) = self.call.core_and_queue();
        if let Some(buf) = &self.call.buf {
            if self.call.ticket == Ticket::NONE {
                self.left = buf.len();
                if self.left == 0 {
                    return self.call.finish(Ok(0));
                }
            }
            ready!(queue.poll_begin(core, &mut self.call.ticket, cx));
            let mut begin = 0;
            if core.may_attempt() {
                let (ptr, len) = bytes_from(buf, 0);
                // SAFETY: `buf` owns the memory that the op points to, and is borrowed until this returns.
                if let Some(res) = unsafe { core.attempt(&bytes.send_op(ptr, len)) } {
                    match bytes.advance(res, self.left, ALL) {
                        Ok(left) => {
                            begin = self.left - left;
                            self.left = left;
                        }
                        Err(result) => return self.call.finish(result),
                    }
                }
            }
            let take = || self.call.buf.take().expect("no operation has the buffer");
            let plan = bytes.plan_send(begin);
            let (op, is_waiting) = core.start_op_for(core.waiter(cx), queue, OnOrphan::Discard, take, plan);
            self.call.op = op;
            core.trace(self.call.op.id);
            if is_waiting {
                return Poll::Pending;
            }
        }
        let left = self.left;
        let is_last = |result: OpResult| matches!(result.res(), Ok(count @ 1..) if count as usize >= left || !ALL);
        match self.call.op.try_done(core, is_last) {
            Some(done) => {
                let result = count(done.result().res());
                self.take_buffer(result, done)
            }
            None => self.poll_slowly(cx),
        }
    }

    /// Polls the operation in the less frequent cases, out of line, so that they take no registers in `poll_sent`.
    #[cold]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<BufResult<usize, B>> {
        let core = &*self.call.bytes.owned.descriptor.core;
        loop {
            let done = ready!(self.call.op.poll_done(core, cx));
            match self.call.bytes.advance(done.result().res(), self.left, ALL) {
                Ok(left) => self.send_more(left),
                Err(result) => return self.take_buffer(result, done),
            }
        }
    }

    /// Ends a write whose last operation has completed.
    #[inline(always)]
    fn take_buffer(&mut self, result: io::Result<usize>, done: DoneOp<'_>) -> Poll<BufResult<usize, B>> {
        let (core, queue) = self.call.core_and_queue();
        // The buffer is taken last: a panic would have to drop it, and it would be moved through memory.
        queue.op.set(None);
        queue.end_held(&mut self.call.ticket);
        let (_, buf) = self.call.op.take(core, done);
        Poll::Ready((result, buf))
    }

    /// Sends the rest, with the buffer where it is: in the slot of the send that has completed.
    #[cold]
    fn send_more(&mut self, left: usize) {
        let (core, queue) = self.call.core_and_queue();
        let bytes = self.call.bytes;
        let plan = |buf: &mut B| {
            let len = buf.len();
            assert!(
                left <= len,
                "a buffer's length shrank from at least {left} to {len}: its implementation of IoBuf is wrong"
            );
            bytes.plan_send(len - left)(buf)
        };
        self.call.op.restart(core, queue, plan);
        // Not before: if the buffer panics, the next poll counts this operation again.
        self.left = left;
    }
}

/// The public read methods of a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! reading_methods {
    () => {
        /// Receives into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of
        /// stream. A `Vec` then has that length. A buffer without capacity is an `InvalidInput` error.
        ///
        /// **Cancel safety:** a dropped read loses no data: the next read returns the bytes that it had received.
        /// Leaking a polled future ([`std::mem::forget`]) blocks every later read of this stream forever; its buffer is
        /// freed when the stream is dropped. Writes are not affected.
        pub fn read<B: $crate::io::IoBufMut>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<usize, B>> {
            self.bytes().read(buf)
        }

        /// Fills `buf` up to its length (not its capacity), like std's `read_exact`. If the stream ends first, the
        /// error is `UnexpectedEof`. A buffer with capacity but no length is an `InvalidInput` error, because it is
        /// almost certainly a mistake.
        ///
        /// **Cancel safety:** after a cancellation or an error, the next read returns the bytes received so far.
        pub fn read_exact<B: $crate::io::IoBufMut>(
            &self,
            buf: B,
        ) -> impl Future<Output = $crate::io::BufResult<(), B>> {
            self.bytes().read_exact(buf)
        }

        /// Receives into a buffer of the runtime's pool, taken only when data arrives: an idle stream holds none. An
        /// empty buffer means end of stream.
        pub fn read_managed(&self) -> impl Future<Output = std::io::Result<$crate::io::ManagedBuf>> {
            self.bytes().read_managed()
        }

        /// Receives into several buffers, each filled before the next. Returns the number of bytes; 0 at the end.
        pub async fn read_vectored<B: $crate::io::IoBufMut>(
            &self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<usize, Vec<B>> {
            self.bytes().read_vectored(bufs).await
        }
    };
}

/// The public write methods of a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! writing_methods {
    () => {
        /// Sends from `buf` and returns the number of bytes sent, which may be less than its length.
        ///
        /// **Cancel safety:** a dropped write may have sent any prefix of its buffer; the next write waits for its end.
        pub fn write<B: $crate::io::IoBuf>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<usize, B>> {
            self.bytes().write(buf)
        }

        /// Sends all of `buf`, without other writes in between.
        pub fn write_all<B: $crate::io::IoBuf>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<(), B>> {
            self.bytes().write_all(buf)
        }

        /// Sends from several buffers in order, at most 1,024 per call, and returns the number of bytes sent.
        pub async fn write_vectored<B: $crate::io::IoBuf>(&self, bufs: Vec<B>) -> $crate::io::BufResult<usize, Vec<B>> {
            self.bytes().write_vectored(bufs).await
        }

        /// Sends all of several buffers, any number of them, without other writes in between.
        pub async fn write_all_vectored<B: $crate::io::IoBuf>(
            &self,
            bufs: Vec<B>,
        ) -> $crate::io::BufResult<(), Vec<B>> {
            self.bytes().write_all_vectored(bufs).await
        }
    };
}

pub(crate) use {reading_methods, writing_methods};

#[inline]
pub(crate) fn count(res: OsResult) -> io::Result<usize> {
    res.map(|count| count as usize).map_err(from_code)
}

/// The result of a read: that of its operation, or leftover bytes if some were put in front of it meanwhile.
///
/// # Safety
///
/// The operation with the result `res` has received into `buf`, from its start.
#[inline]
unsafe fn finish_read<B: IoBufMut>(queue: &IoQueue, res: OsResult, mut buf: B) -> BufResult<usize, B> {
    if let Some(served) = queue.serve(&mut buf) {
        return (served.map_err(from_code), buf);
    }
    let result = count(res);
    if let Ok(count) = result {
        // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
        unsafe { buf.set_filled(count) };
    }
    (result, buf)
}

/// The first `count` bytes of a buffer.
///
/// # Safety
///
/// This many bytes were received into the buffer.
unsafe fn received_in<B: IoBufMut>(buf: &mut B, count: usize) -> &[u8] {
    // Not `as_ptr`, which may be valid for the buffer's length only.
    // SAFETY: the caller's promise, and the buffer is not written to while it is borrowed.
    unsafe { std::slice::from_raw_parts(buf.as_mut_ptr(), count) }
}

/// Copies leftover bytes into the first of several buffers that has capacity.
fn serve_first<B: IoBufMut>(queue: &IoQueue, bufs: &mut [B], first: usize) -> Option<io::Result<usize>> {
    let served = queue.serve(&mut bufs[first])?;
    if served.is_ok() {
        set_others_empty(bufs, first);
    }
    Some(served.map_err(from_code))
}

/// Copies leftover bytes into the first `len` bytes of a buffer, and does not change its length.
fn serve_head<B: IoBufMut>(queue: &IoQueue, buf: &mut B, len: usize) -> Option<Result<usize, i32>> {
    let (ptr, len) = fill_range(buf, 0, len);
    // SAFETY: the buffer guarantees that these bytes are writable, and is borrowed exclusively.
    unsafe { queue.serve_to(ptr, len) }
}
