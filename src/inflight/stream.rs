//! `ByteStream`: reads and writes on TCP and Unix connections and pipes.
//!
//! These types differ only in how they are opened. Their public methods are written once, here, and added to each type
//! by [`reading_methods!`] and [`writing_methods!`].

mod managed_read;
mod methods;
mod read;
mod write;

use std::io;
use std::net::Shutdown;
use std::task::Poll;

pub(crate) use self::managed_read::ManagedRead;
use self::managed_read::ReadManaged;
pub(crate) use self::methods::{reading_methods, writing_methods};
pub(super) use self::read::plan_recv;
use self::read::{Read, ReadExact};
use self::write::Write;
use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, Medium, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::inflight::op_future::polled_after_completion;
use crate::inflight::queue::{IoQueue, Ticket};
use crate::inflight::{OnOrphan, RawOp};
use crate::io::vectored::{set_all_filled, set_others_empty};
use crate::io::{BufResult, IoBuf, IoBufMut, KernelStream, bytes_from, no_capacity};
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

#[inline]
pub(crate) fn count(res: OsResult) -> io::Result<usize> {
    res.map(|count| count as usize).map_err(from_code)
}

/// Copies leftover bytes into the first of several buffers that has capacity.
fn serve_first<B: IoBufMut>(queue: &IoQueue, bufs: &mut [B], first: usize) -> Option<io::Result<usize>> {
    let served = queue.serve(&mut bufs[first])?;
    if served.is_ok() {
        set_others_empty(bufs, first);
    }
    Some(served.map_err(from_code))
}
