//! Receives into a buffer of the caller: `read` and `read_exact`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Call, count};
use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, Medium, Op};
use crate::error::from_code;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::op_future::polled_after_completion;
use crate::inflight::queue::{IoQueue, Ticket};
use crate::inflight::{OnOrphan, RawOp};
use crate::io::{BufResult, IoBufMut, check_exact_len, fill_range, fill_target, no_capacity, unexpected_eof};

/// Receives once into a buffer.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Read<'a, B: IoBufMut>(pub(super) Call<'a, B, false>);

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
    pub(super) call: Call<'a, B, false>,
    pub(super) len: usize,
    pub(super) filled: usize,
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

/// Starts one receive into the part of `buf` that `target` returns.
#[inline]
pub(super) fn start_recv<B: IoBufMut>(
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
pub(crate) fn plan_recv<B>(
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

/// The result of a read: that of its operation, or leftover bytes if some were put in front of it meanwhile.
///
/// # Safety
///
/// The operation with the result `res` has received into `buf`, from its start.
#[inline]
pub(super) unsafe fn finish_read<B: IoBufMut>(queue: &IoQueue, res: OsResult, mut buf: B) -> BufResult<usize, B> {
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

/// Copies leftover bytes into the first `len` bytes of a buffer, and does not change its length.
fn serve_head<B: IoBufMut>(queue: &IoQueue, buf: &mut B, len: usize) -> Option<Result<usize, i32>> {
    let (ptr, len) = fill_range(buf, 0, len);
    // SAFETY: the buffer guarantees that these bytes are writable, and is borrowed exclusively.
    unsafe { queue.serve_to(ptr, len) }
}
