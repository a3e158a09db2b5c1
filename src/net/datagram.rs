//! Sending and receiving messages: `recvmsg` and `sendmsg`.
//!
//! As on a stream, each direction has at most one operation in flight, and callers are served in FIFO order. A message
//! received for a dropped call is kept whole for the next: bytes, sender and descriptors. The message header is in a
//! [`MsgHdrBuf`], which is part of the operation's payload and is reused, so a message needs no allocation.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, Op};
use crate::error::from_code;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::stream::count;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf, bytes_from, fill_target, no_capacity};
use crate::sys::{Foreign, MsgHdrBuf, MsgMeta, Name, errno};

/// The heap buffer of a managed receive when the pool is empty: large enough for any datagram.
const HEAP_LEN: usize = 64 * 1024;

/// Idle message headers: one to receive and one to send.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "an operation's payload contains the box")]
pub(crate) struct MsgHdrPool(RefCell<Vec<Box<MsgHdrBuf>>>);

impl MsgHdrPool {
    fn take(&self) -> Box<MsgHdrBuf> {
        self.0.borrow_mut().pop().unwrap_or_else(MsgHdrBuf::new)
    }

    pub(super) fn put_back(&self, msg: Box<MsgHdrBuf>) {
        let mut msg_pool = self.0.borrow_mut();
        if msg_pool.len() < 2 {
            msg_pool.push(msg);
        }
    }
}

/// Receives one message into `buf`, with up to `descriptors` descriptors. On a stream, which has no message boundaries,
/// bytes that do not fit stay for the next call.
pub(crate) async fn receive<B: IoBufMut>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    mut buf: B,
    descriptors: usize,
    is_stream: bool,
) -> BufResult<(usize, MsgMeta), B> {
    if buf.capacity() == 0 {
        return (Err(no_capacity()), buf);
    }
    let descriptor = &owned.descriptor;
    let (core, queue) = (&*descriptor.core, &descriptor.read);
    let _guard = queue.begin(core).await;
    if let Some(served) = queue.serve_message(&mut buf, is_stream) {
        let limited = |(count, meta): (usize, MsgMeta)| (count, meta.with_at_most(descriptors));
        return (served.map(limited).map_err(from_code), buf);
    }
    receive_next(owned, msg_pool, buf, Ancillary::Descriptors(descriptors), is_stream).await
}

/// What a receive has space for besides the bytes and the sender.
#[derive(Clone, Copy)]
pub(super) enum Ancillary {
    Descriptors(usize),
    /// The segment size of coalesced datagrams.
    SegmentSize,
}

/// [`receive`] for a caller that holds the queue and has found no leftover.
pub(super) async fn receive_next<B: IoBufMut>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    ancillary: Ancillary,
    is_stream: bool,
) -> BufResult<(usize, MsgMeta), B> {
    let descriptor = &owned.descriptor;
    let (core, queue, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    let mut msg = msg_pool.take();
    let descriptors = match ancillary {
        Ancillary::Descriptors(descriptors) => {
            msg.reserve_descriptors(descriptors);
            descriptors
        }
        Ancillary::SegmentSize => {
            msg.reserve_segment_size();
            0
        }
    };
    let limited = |(count, meta): (usize, MsgMeta)| (count, meta.with_at_most(descriptors));
    let payload = (descriptor.clone(), msg, buf);
    let plan = |(_, msg, buf): &mut (Rc<Descriptor>, Box<MsgHdrBuf>, B)| {
        let (ptr, len) = fill_target(buf);
        let message = msg.ready_to_receive(ptr, len.min(MAX_LEN));
        Op::RecvMessage { fd, message }
    };
    let (op_result, (_, mut msg, mut buf)) = OpFuture::start_op(core, queue, OnOrphan::Keep, payload, plan).await;
    let meta = msg.open();
    msg_pool.put_back(msg);
    // A `compat` bridge of the same socket has put back bytes that came earlier.
    if let Some(served) = queue.serve_message(&mut buf, is_stream) {
        return (served.map(limited).map_err(from_code), buf);
    }
    let result = count(op_result.res());
    if let Ok(count) = result {
        // SAFETY: the kernel has written this many bytes, which is at most the capacity.
        unsafe { buf.set_filled(count) };
    }
    (result.map(|count| limited((count, meta))), buf)
}

/// Receives one message into a managed buffer.
pub(crate) async fn receive_managed(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
) -> io::Result<(ManagedBuf, MsgMeta)> {
    let descriptor = &owned.descriptor;
    let (core, queue, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    if core.pool().is_some() {
        let _guard = queue.begin(core).await;
        if let Some(served) = queue.serve_whole_message() {
            let (bytes, meta) = served.map_err(from_code)?;
            return Ok((ManagedBuf::from_heap(bytes), meta));
        }
        let payload = (descriptor.clone(), msg_pool.take());
        let plan = |(_, msg): &mut (Rc<Descriptor>, Box<MsgHdrBuf>)| {
            msg.reserve_descriptors(0);
            let message = msg.ready_to_receive(std::ptr::null_mut(), 0);
            Op::RecvMessageManaged { fd, message }
        };
        let (op_result, (_, mut msg)) = OpFuture::start_op(core, queue, OnOrphan::Keep, payload, plan).await;
        debug_assert!(
            !queue.has_leftover(),
            "a bridge has put bytes back into a datagram socket"
        );
        let meta = msg.open();
        msg_pool.put_back(msg);
        match (op_result.res(), core.take_buffer(op_result)) {
            (Err(errno::NO_BUFFERS), _) => {}
            (_, Some(buffer)) => return Ok((buffer, meta)),
            (res, None) => return count(res).map(|_| (ManagedBuf::default(), meta)),
        }
    }
    let (result, mut bytes) = receive(owned, msg_pool, Vec::with_capacity(HEAP_LEN), 0, false).await;
    // Do not let a small datagram occupy 64 KiB.
    bytes.shrink_to_fit();
    result.map(|(_, meta)| (ManagedBuf::from_heap(bytes), meta))
}

/// Sends one message with descriptors, to `to` or to the connected address.
pub(crate) async fn send<B: IoBuf>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    to: Option<&Name>,
    descriptors: Vec<Foreign>,
) -> BufResult<usize, B> {
    let queue = &owned.descriptor.write;
    let _guard = queue.begin(owned.core()).await;
    let (op_result, (_, mut msg, buf)) = start_send(owned, msg_pool, buf, to, descriptors, false).await;
    drop(msg.take_descriptors());
    msg_pool.put_back(msg);
    (count(op_result.res()), buf)
}

/// Sends bytes that the kernel splits into datagrams of `segment_size`, or one datagram. The caller holds the queue.
pub(super) async fn send_segments<B: IoBuf>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    to: Option<&Name>,
    segment_size: Option<u16>,
) -> (OsResult, B) {
    let mut msg = msg_pool.take();
    msg.address(to);
    msg.set_descriptors(Vec::new());
    if let Some(size) = segment_size {
        msg.set_segment_size(size);
    }
    let (op_result, (_, msg, buf)) = start_message(owned, msg, buf, false).await;
    msg_pool.put_back(msg);
    (op_result.res(), buf)
}

/// Starts one send. With `at_once` it fails with EAGAIN instead of waiting for space.
pub(super) fn start_send<'a, B: IoBuf>(
    owned: &'a OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    to: Option<&Name>,
    descriptors: Vec<Foreign>,
    at_once: bool,
) -> OpFuture<'a, SendPayload<B>> {
    let mut msg = msg_pool.take();
    msg.address(to);
    msg.set_descriptors(descriptors);
    start_message(owned, msg, buf, at_once)
}

fn start_message<B: IoBuf>(
    owned: &OwnedDescriptor,
    msg: Box<MsgHdrBuf>,
    buf: B,
    at_once: bool,
) -> OpFuture<'_, SendPayload<B>> {
    let descriptor = &owned.descriptor;
    let fd = descriptor.fd;
    let payload = (descriptor.clone(), msg, buf);
    let plan = |(_, msg, buf): &mut SendPayload<B>| {
        let (ptr, len) = bytes_from(buf, 0);
        let message = msg.ready_to_send(ptr, len.min(MAX_LEN));
        Op::SendMessage { fd, at_once, message }
    };
    OpFuture::start_op(&descriptor.core, &descriptor.write, OnOrphan::Discard, payload, plan)
}

/// Small enough to be stored inline in the operation's slot, also with a pool buffer.
pub(super) type SendPayload<B> = (Rc<Descriptor>, Box<MsgHdrBuf>, B);

/// The error for a truncated datagram, of which the buffer has the first `len` bytes.
pub(super) fn truncated_error(len: usize) -> io::Error {
    crate::sys::context(
        format_args!("a datagram of more than {len} bytes was truncated: use a larger buffer"),
        io::Error::from_raw_os_error(errno::TOO_LONG),
    )
}
