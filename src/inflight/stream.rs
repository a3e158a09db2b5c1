//! `ByteStream`: reads and writes on TCP and Unix connections and pipes.
//!
//! These types differ only in how they are opened. Their public methods are written once, here, and added to each type
//! by [`reading_methods!`] and [`writing_methods!`].

use std::io;
use std::net::Shutdown;

use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, MAX_SLICES, Medium, Op};
use crate::error::from_code;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::queue::IoQueue;
use crate::inflight::transfer::{Payload, VectoredPayload};
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::vectored::{set_all_filled, set_others_empty};
use crate::io::{
    BufResult, HEAP_READ_LEN, IoBuf, IoBufMut, KernelStream, ManagedBuf, bytes_from, check_exact_len, fill_range,
    no_capacity, unexpected_eof,
};
use crate::sys::{self, IoVec, errno};

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

    pub(crate) async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let queue = &self.owned.descriptor.read;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        if queue.has_leftover(self.owned.core()).await
            && let Some(served) = queue.serve(&mut buf)
        {
            return (served.map_err(from_code), buf);
        }
        let capacity = buf.capacity();
        let (op_result, (_, buf)) = self.receive(buf, 0, capacity).await;
        // SAFETY: the operation has received into this buffer.
        unsafe { finish_read(queue, op_result.res(), buf) }
    }

    pub(crate) async fn read_exact<B: IoBufMut>(&self, mut buf: B) -> BufResult<(), B> {
        if let Some(result) = check_exact_len(&buf) {
            return (result, buf);
        }
        let len = buf.len();
        let queue = &self.owned.descriptor.read;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        let mut filled = 0;
        if queue.has_leftover(self.owned.core()).await {
            match serve_head(queue, &mut buf, len) {
                Some(Ok(served)) => filled = served,
                Some(Err(code)) => return (Err(from_code(code)), buf),
                None => {}
            }
        }
        while filled < len {
            // The kernel does not repeat an error that a dropped read received after its last bytes.
            let res = match queue.take_error() {
                Some(code) => Err(code),
                None => {
                    let (op_result, (_, back)) = self.receive(buf, filled, len).await;
                    buf = back;
                    let received = filled + *op_result.res().as_ref().unwrap_or(&0) as usize;
                    // SAFETY: this many bytes were received.
                    if queue.append_if_overtaken(unsafe { received_in(&buf, received) }, None, op_result.res()) {
                        filled = serve_head(queue, &mut buf, len).and_then(Result::ok).unwrap_or(0);
                        continue;
                    }
                    op_result.res()
                }
            };
            let error = match count(res) {
                Ok(0) => unexpected_eof(),
                Ok(count) => {
                    filled += count;
                    continue;
                }
                Err(error) => error,
            };
            // SAFETY: the buffer's first `filled` bytes were received.
            queue.put_back(unsafe { received_in(&buf, filled) });
            return (Err(error), buf);
        }
        (Ok(()), buf)
    }

    /// One receive into `buf[begin..end]`. If it is dropped, the bytes before `begin` count as received by it too.
    fn receive<B: IoBufMut>(&self, buf: B, begin: usize, end: usize) -> OpFuture<'_, Payload<B>> {
        let (fd, medium) = (self.owned.fd(), self.medium);
        let op = |ptr, len| Op::Recv { fd, medium, ptr, len };
        let queue = &self.owned.descriptor.read;
        self.owned.start_read(queue, OnOrphan::Keep, buf, begin..end, op)
    }

    pub(crate) async fn read_managed(&self) -> io::Result<ManagedBuf> {
        let descriptor = &self.owned.descriptor;
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        let _guard = queue.acquire().await;
        queue.settle(core).await;
        if queue.has_leftover(core).await
            && let Some(served) = queue.serve_all()
        {
            return served.map(ManagedBuf::from_heap).map_err(from_code);
        }
        if core.pool().is_none() {
            // Boxed, so that this rare case does not enlarge the future.
            return Box::pin(self.read_to_heap()).await;
        }
        let (fd, medium) = (descriptor.fd, self.medium);
        let (op_result, _) = OpFuture::start_op(core, queue, OnOrphan::Keep, descriptor.clone(), 0, |_| {
            Op::RecvManaged { fd, medium }
        })
        .await;
        let buffer = core.take_buffer(op_result);
        let received = buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
        if queue.append_if_overtaken(received, None, op_result.res())
            && let Some(served) = queue.serve_all()
        {
            return served.map(ManagedBuf::from_heap).map_err(from_code);
        }
        match (op_result.res(), buffer) {
            (_, Some(buffer)) => Ok(ManagedBuf::from_pool(buffer)),
            (Err(errno::NO_BUFFERS), None) => Box::pin(self.read_to_heap()).await,
            (res, None) => count(res).map(|_| ManagedBuf::default()),
        }
    }

    /// `read_managed` without a pool, or when it is empty.
    async fn read_to_heap(&self) -> io::Result<ManagedBuf> {
        let buf = Vec::with_capacity(HEAP_READ_LEN);
        let (op_result, (_, buf)) = self.receive(buf, 0, HEAP_READ_LEN).await;
        // SAFETY: the operation has received into this buffer.
        let (result, buf) = unsafe { finish_read(&self.owned.descriptor.read, op_result.res(), buf) };
        result.map(|_| ManagedBuf::from_heap(buf))
    }

    pub(crate) async fn read_vectored<B: IoBufMut>(&self, mut bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        let Some(first) = bufs.iter().position(|buf| buf.capacity() > 0) else {
            return (Err(no_capacity()), bufs);
        };
        let descriptor = &self.owned.descriptor;
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        let _guard = queue.acquire().await;
        queue.settle(core).await;
        if queue.has_leftover(core).await {
            match queue.serve(&mut bufs[first]) {
                Some(Ok(count)) => {
                    set_others_empty(&mut bufs, first);
                    return (Ok(count), bufs);
                }
                Some(Err(code)) => return (Err(from_code(code)), bufs),
                None => {}
            }
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
        let result = count(op_result.res());
        if queue.has_bytes() {
            let (mut received, mut left) = (Vec::new(), *result.as_ref().unwrap_or(&0));
            let lent = bufs.iter().filter(|buf| buf.capacity() > 0).zip(&slices);
            for (buf, slice) in lent {
                let part = left.min(slice.len).min(buf.capacity());
                // SAFETY: the kernel has filled the buffers in order, each to its capacity before the next.
                received.extend_from_slice(unsafe { received_in(buf, part) });
                left -= part;
            }
            queue.append_if_overtaken(&received, None, op_result.res());
            if let Some(Ok(count)) = queue.serve(&mut bufs[first]) {
                set_others_empty(&mut bufs, first);
                return (Ok(count), bufs);
            }
        }
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, in order.
            unsafe { set_all_filled(&mut bufs, &slices, count) };
        }
        (result, bufs)
    }

    pub(crate) async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let queue = &self.owned.descriptor.write;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        if let Some(res) = self.try_send(&buf, 0) {
            return (self.sent(res), buf);
        }
        let (op_result, (_, buf)) = self.send(buf, 0).await;
        (self.sent(op_result.res()), buf)
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn would store the buffer twice: as the argument and as the local variable"
    )]
    pub(crate) fn write_all<B: IoBuf>(&self, mut buf: B) -> impl Future<Output = BufResult<(), B>> {
        async move {
            let len = buf.len();
            if len == 0 {
                return (Ok(()), buf);
            }
            let queue = &self.owned.descriptor.write;
            let _guard = queue.acquire().await;
            queue.settle(self.owned.core()).await;
            let mut sent = 0;
            while sent < len {
                let res = match self.try_send(&buf, sent) {
                    Some(res) => res,
                    None => {
                        let (op_result, (_, back)) = self.send(buf, sent).await;
                        buf = back;
                        op_result.res()
                    }
                };
                match self.sent(res) {
                    Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                    Ok(count) => sent += count,
                    Err(error) => return (Err(error), buf),
                }
            }
            (Ok(()), buf)
        }
    }

    /// One synchronous send from `buf[begin..]`, if the driver supports it. The caller must hold the queue.
    fn try_send<B: IoBuf>(&self, buf: &B, begin: usize) -> Option<OsResult> {
        let (ptr, len) = bytes_from(buf, begin);
        let op = Op::Send {
            fd: self.owned.fd(),
            medium: self.medium,
            ptr,
            len: len.min(MAX_LEN),
        };
        // SAFETY: `buf` owns the memory that `op` points to, and is borrowed until this returns.
        unsafe { self.owned.core().attempt(&op) }
    }

    /// One asynchronous send from `buf[begin..]`.
    fn send<B: IoBuf>(&self, buf: B, begin: usize) -> OpFuture<'_, Payload<B>> {
        let (fd, medium) = (self.owned.fd(), self.medium);
        let op = |ptr, len| Op::Send { fd, medium, ptr, len };
        self.owned.start_write(&self.owned.descriptor.write, buf, begin, op)
    }

    pub(crate) async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let queue = &self.owned.descriptor.write;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        let (op_result, (_, bufs, _)) = self.send_vectored(bufs, 0, Vec::new()).await;
        (self.sent(op_result.res()), bufs)
    }

    pub(crate) async fn write_all_vectored<B: IoBuf>(&self, mut bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        let len: usize = bufs.iter().map(IoBuf::len).sum();
        if len == 0 {
            return (Ok(()), bufs);
        }
        let queue = &self.owned.descriptor.write;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        let mut sent = 0;
        let mut slices = Vec::new();
        while sent < len {
            let op_result;
            (op_result, (_, bufs, slices)) = self.send_vectored(bufs, sent, slices).await;
            match self.sent(op_result.res()) {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bufs),
                Ok(count) => sent += count,
                Err(error) => return (Err(error), bufs),
            }
        }
        (Ok(()), bufs)
    }

    /// One send of everything after the first `skip` bytes. `slices` is passed only to reuse its memory.
    fn send_vectored<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        skip: usize,
        slices: Vec<IoVec>,
    ) -> OpFuture<'_, VectoredPayload<B>> {
        let (fd, medium) = (self.owned.fd(), self.medium);
        let op = |slices, count| Op::SendVectored {
            fd,
            medium,
            slices,
            count,
        };
        let queue = &self.owned.descriptor.write;
        self.owned.start_write_vectored(queue, bufs, skip, slices, op)
    }

    /// For copies inside the kernel: `Some` for TCP sockets of the kernel.
    pub(crate) fn kernel_stream(&self) -> Option<KernelStream> {
        match self.medium {
            Medium::Tcp if self.owned.kernel_fd().is_some() => Some(KernelStream::new(self.owned.descriptor.clone())),
            _ => None,
        }
    }

    pub(crate) async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how == Shutdown::Read {
            return self.owned.shutdown(how);
        }
        let queue = &self.owned.descriptor.write;
        let _guard = queue.acquire().await;
        queue.settle(self.owned.core()).await;
        self.owned.shutdown(how)
    }
}

impl ByteStream {
    /// Closes the descriptor after the write in flight. Later calls on the stream fail.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        let descriptor = self.owned.descriptor.clone();
        {
            let _guard = descriptor.write.acquire().await;
            descriptor.write.settle(&descriptor.core).await;
        }
        self.close_now();
        Ok(())
    }

    /// `close` when no write is in flight.
    pub(crate) fn close_now(&mut self) {
        self.owned = OwnedDescriptor::closed(self.owned.descriptor.core.clone());
    }

    /// The result of a send. Writing after `close` fails as if the peer had closed: with `BrokenPipe`.
    fn sent(&self, res: OsResult) -> io::Result<usize> {
        match res {
            Err(errno::BAD_FD) if self.owned.is_closed() => Err(from_code(errno::BROKEN_PIPE)),
            res => count(res),
        }
    }
}

impl Descriptor {
    /// Sends synchronously from the slices; `None` if the driver does not support it, another send is active or the
    /// kernel accepts nothing at once. The caller has already spent the budget.
    pub(crate) fn send_now(&self, medium: Medium, bufs: &[io::IoSlice<'_>]) -> Option<OsResult> {
        if !self.write.is_free() {
            return None;
        }
        let fd = self.fd;
        let mut small = [0; SMALL];
        let bytes: &[u8] = if let [buf] = bufs {
            buf
        } else if let Some(len) = join_small(bufs, &mut small) {
            // For example an HTTP head and a short body: one buffer costs the kernel less than a list of two.
            &small[..len]
        } else {
            return sys::with_slices(bufs, |slices, count| {
                let op = Op::SendVectored {
                    fd,
                    medium,
                    slices,
                    count: count.min(MAX_SLICES),
                };
                // SAFETY: the slices and their memory live until this call returns, and a send only reads them.
                unsafe { self.core.attempt_unbudgeted(&op) }
            });
        };
        let op = Op::Send {
            fd,
            medium,
            ptr: bytes.as_ptr(),
            len: bytes.len().min(MAX_LEN),
        };
        // SAFETY: what `op` points to, `small` included, lives until this call returns, and a send only reads it.
        unsafe { self.core.attempt_unbudgeted(&op) }
    }
}

/// Slices of up to this many bytes in total are copied into one buffer.
const SMALL: usize = 512;

fn join_small(bufs: &[io::IoSlice<'_>], into: &mut [u8; SMALL]) -> Option<usize> {
    let mut len = 0;
    for buf in bufs {
        into.get_mut(len..len + buf.len())?.copy_from_slice(buf);
        len += buf.len();
    }
    Some(len)
}

/// The public read methods of a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! reading_methods {
    () => {
        /// Receives into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of
        /// stream. A `Vec` then has that length. A buffer without capacity is an `InvalidInput` error.
        ///
        /// **Cancel safety:** a dropped read loses no data: the next read returns the bytes that it had received.
        /// Leaking a polled future ([`std::mem::forget`]) leaks its buffer and blocks every later read of this stream
        /// forever; writes, and dropping the stream, are not affected.
        pub fn read<B: $crate::io::IoBufMut>(&self, buf: B) -> impl Future<Output = $crate::io::BufResult<usize, B>> {
            self.bytes().read(buf)
        }

        /// Fills `buf` up to its length (not its capacity), like std's `read_exact`. If the stream ends first, the
        /// error is `UnexpectedEof`. A buffer with capacity but no length is an `InvalidInput` error, because it is
        /// almost certainly a mistake.
        ///
        /// **Cancel safety:** after a cancellation or an error, the next read returns the bytes received so far.
        pub async fn read_exact<B: $crate::io::IoBufMut>(&self, buf: B) -> $crate::io::BufResult<(), B> {
            self.bytes().read_exact(buf).await
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
    let result = count(res);
    let received = *result.as_ref().unwrap_or(&0);
    // SAFETY: the kernel has written this many bytes.
    if queue.append_if_overtaken(unsafe { received_in(&buf, received) }, None, res)
        && let Some(served) = queue.serve(&mut buf)
    {
        return (served.map_err(from_code), buf);
    }
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
unsafe fn received_in<B: IoBufMut>(buf: &B, count: usize) -> &[u8] {
    // SAFETY: the caller's promise, and the buffer is not written to while it is borrowed.
    unsafe { std::slice::from_raw_parts(buf.as_ptr(), count) }
}

/// Copies leftover bytes into the first `len` bytes of a buffer, and does not change its length.
fn serve_head<B: IoBufMut>(queue: &IoQueue, buf: &mut B, len: usize) -> Option<Result<usize, i32>> {
    let (ptr, len) = fill_range(buf, 0, len);
    // SAFETY: the buffer guarantees that these bytes are writable, and is borrowed exclusively.
    unsafe { queue.serve_to(ptr, len) }
}
