//! Sends from a buffer of the caller: `write` and `write_all`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{ByteStream, Call, count};
use crate::driver::OpResult;
use crate::inflight::OnOrphan;
use crate::inflight::op_future::DoneOp;
use crate::inflight::queue::Ticket;
use crate::io::{BufResult, IoBuf, bytes_from};

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

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<(), B>> {
        let (result, buf) = ready!(self.poll_sent(cx));
        Poll::Ready((result.map(drop), buf))
    }
}

impl<'a, B: IoBuf, const ALL: bool> Write<'a, B, ALL> {
    pub(super) fn new(bytes: &'a ByteStream, buf: B) -> Write<'a, B, ALL> {
        Write {
            call: Call::new(bytes, buf),
            left: 0,
        }
    }

    #[inline(always)]
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
                // With `ALL`, the result is known to be a success, and the caller's test of it is compiled away.
                let result = match ALL {
                    true => Ok(left),
                    false => count(done.result().res()),
                };
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
