//! Messages: how a call becomes an op, and its landing a result.
//!
//! As on a stream there is one receive and one send in the air at a time, in the order of asking. What a dropped receive
//! got is kept for the next, whole: bytes, sender and descriptors. A message's header lives in a letter, which travels with
//! the flight and is used again, so that a message costs no allocation.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use crate::driver::OpResult;
use crate::driver::op::{MAX_LEN, Op};
use crate::error::from_code;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::stream::count;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf, no_room, rest_of, room_of};
use crate::sys::{Enclosure, MsgHdrBuf, MsgMeta, Name, errno};

/// What a managed receive takes from the heap when the pool is empty: room for any datagram.
const HEAP_LEN: usize = 64 * 1024;

/// Letters that are not in the air: one to receive with and one to send.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "a flight carries the box")]
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

/// Receives one message into `buf`, with up to so many descriptors. On a stream, which has no ends of messages, what does
/// not fit stays for the next.
pub(crate) async fn receive<B: IoBufMut>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    mut buf: B,
    descriptors: usize,
    is_stream: bool,
) -> BufResult<(usize, MsgMeta), B> {
    if buf.capacity() == 0 {
        return (Err(no_room()), buf);
    }
    let descriptor = &owned.descriptor;
    let (core, queue, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    let _hold = queue.hold().await;
    queue.settle(core).await;
    if queue.has_leftover(core).await
        && let Some(served) = queue.serve_message(&mut buf, is_stream)
    {
        let limited = |(count, meta): (usize, MsgMeta)| (count, meta.with_at_most(descriptors));
        return (served.map(limited).map_err(from_code), buf);
    }
    let mut msg = msg_pool.take();
    msg.make_room(descriptors);
    let payload = (descriptor.clone(), msg, buf);
    let plan = |(_, msg, buf): &mut (Rc<Descriptor>, Box<MsgHdrBuf>, B)| {
        let (ptr, len) = room_of(buf);
        let message = msg.ready_to_receive(ptr, len.min(MAX_LEN));
        Op::RecvMessage { fd, message }
    };
    let (op_result, (_, mut msg, mut buf)) = OpFuture::start_op(core, queue, OnOrphan::Keep, payload, 0, plan).await;
    let result = count(op_result.res);
    if let Ok(count) = result {
        // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
        unsafe { buf.set_filled(count) };
    }
    let mut meta = msg.open();
    msg_pool.put_back(msg);
    if queue.has_bytes() {
        // A bridge beside has put back what came before.
        let received = *result.as_ref().unwrap_or(&0);
        // SAFETY: the kernel has written this many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buf.as_ptr(), received) };
        queue.overtaken(bytes, result.is_ok().then(|| std::mem::take(&mut meta)), op_result.res);
        if let Some(Ok((count, meta))) = queue.serve_message(&mut buf, is_stream) {
            return (Ok((count, meta.with_at_most(descriptors))), buf);
        }
    }
    let meta = meta.with_at_most(descriptors);
    (result.map(|count| (count, meta)), buf)
}

/// Receives one message into a buffer of the runtime's.
pub(crate) async fn receive_managed(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
) -> io::Result<(ManagedBuf, MsgMeta)> {
    let descriptor = &owned.descriptor;
    let (core, queue, fd) = (&*descriptor.core, &descriptor.read, descriptor.fd);
    {
        let _hold = queue.hold().await;
        queue.settle(core).await;
        if queue.has_leftover(core).await
            && let Some(served) = queue.serve_whole_message()
        {
            let (bytes, meta) = served.map_err(from_code)?;
            return Ok((ManagedBuf::from_heap(bytes), meta));
        }
        let payload = (descriptor.clone(), msg_pool.take());
        let plan = |(_, msg): &mut (Rc<Descriptor>, Box<MsgHdrBuf>)| {
            msg.make_room(0);
            let message = msg.ready_to_receive(std::ptr::null_mut(), 0);
            Op::RecvMessageManaged { fd, message }
        };
        let (op_result, (_, mut msg)) = OpFuture::start_op(core, queue, OnOrphan::Keep, payload, 0, plan).await;
        let meta = msg.open();
        msg_pool.put_back(msg);
        match op_result {
            OpResult {
                res: Err(errno::NO_BUFFERS),
                ..
            } => {}
            OpResult {
                buffer: Some(buffer), ..
            } => return Ok((ManagedBuf::from_pool(buffer), meta)),
            OpResult { res, .. } => {
                return count(res).map(|_| (ManagedBuf::from_heap(Vec::new()), meta));
            }
        }
    }
    let (result, mut bytes) = receive(owned, msg_pool, Vec::with_capacity(HEAP_LEN), 0, false).await;
    // Whoever keeps many small ones keeps no more than they are.
    bytes.shrink_to_fit();
    result.map(|(_, meta)| (ManagedBuf::from_heap(bytes), meta))
}

/// Sends one message, to a name or to who the socket is connected to, with descriptors.
pub(crate) async fn send<B: IoBuf>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    to: Option<&Name>,
    descriptors: Enclosure,
) -> BufResult<usize, B> {
    let queue = &owned.descriptor.write;
    let _hold = queue.hold().await;
    queue.settle(owned.core()).await;
    let (op_result, (_, mut msg, buf)) = start_send(owned, msg_pool, buf, to, descriptors, false).await;
    drop(msg.take_enclosed());
    msg_pool.put_back(msg);
    (count(op_result.res), buf)
}

/// One send. `at_once` is told when there is no room, and does not wait.
pub(super) fn start_send<'a, B: IoBuf>(
    owned: &'a OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    buf: B,
    to: Option<&Name>,
    descriptors: Enclosure,
    at_once: bool,
) -> OpFuture<'a, SendLoad<B>> {
    let descriptor = &owned.descriptor;
    let fd = descriptor.fd;
    let mut msg = msg_pool.take();
    msg.address(to);
    msg.enclose(descriptors);
    let payload = (descriptor.clone(), msg, buf);
    let plan = |(_, msg, buf): &mut SendLoad<B>| {
        let (ptr, len) = rest_of(buf, 0);
        let message = msg.ready_to_send(ptr, len.min(MAX_LEN));
        Op::SendMessage { fd, at_once, message }
    };
    OpFuture::start_op(&descriptor.core, &descriptor.write, OnOrphan::Discard, payload, 0, plan)
}

/// Small enough to lie in a flight's place, also with a buffer of the pool.
pub(super) type SendLoad<B> = (Rc<Descriptor>, Box<MsgHdrBuf>, B);

/// The error for a message that was larger than the place for it. What did fit is in the buffer.
pub(super) fn cut_off(room: usize) -> io::Error {
    crate::sys::context(
        format_args!("a datagram of more than {room} bytes was cut off: give a larger buffer"),
        io::Error::from_raw_os_error(errno::TOO_LONG),
    )
}
