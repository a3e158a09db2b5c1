//! Sending Unix datagrams, with retries while the receiver's queue is full.

use std::rc::Rc;
use std::time::Duration;

use crate::driver::op::{Direction, Op};
use crate::error::from_code;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::stream::count;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::{BufResult, IoBuf};
use crate::net::datagram::{MsgHdrPool, start_send};
use crate::sys::{self, Foreign, Name, errno};
use crate::time::sleep;

/// Sends one message from a Unix datagram socket and waits while the receiver's queue is full.
///
/// The wait is here and not in the kernel. io_uring retries with the same iovec iterator, which the first attempt has
/// consumed, and then sends an empty datagram (Linux 6.18). And an unconnected socket gets no readiness event when the
/// queue has space again, so the send is retried with exponential back-off.
pub(super) async fn send_with_retry<B: IoBuf>(
    owned: &OwnedDescriptor,
    msg_pool: &MsgHdrPool,
    mut buf: B,
    to: Option<&Name>,
    mut descriptors: Vec<Foreign>,
) -> BufResult<usize, B> {
    let descriptor = &owned.descriptor;
    let (core, queue, fd) = (&*descriptor.core, &descriptor.write, descriptor.fd);
    let _guard = queue.begin(core).await;
    let mut pause = Duration::from_millis(1);
    loop {
        let (op_result, mut msg);
        (op_result, (_, msg, buf)) = start_send(owned, msg_pool, buf, to, descriptors, true).await;
        descriptors = msg.take_descriptors();
        msg_pool.put_back(msg);
        match op_result.res() {
            Err(errno::AGAIN) if to.is_none() => {
                let direction = Direction::Write;
                let plan = |_: &mut Rc<Descriptor>| Op::Readiness { fd, direction };
                let (op_result, _) = OpFuture::start_op(core, queue, OnOrphan::Discard, descriptor.clone(), plan).await;
                if let Err(code) = op_result.res() {
                    return (Err(from_code(code)), buf);
                }
            }
            Err(code) if sys::is_full_queue(code) => {
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            res => return (count(res), buf),
        }
    }
}
