//! A connection's task: it alone calls the protocol.
//!
//! Both directions are polled by one task, so that an idle connection costs one. It calls at most one
//! [`data_received`](super::Protocol::data_received) per turn, as asyncio does: what the protocol schedules in it runs before
//! the next. What the protocol writes is sent when its callback returns, still in the same poll.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::server::Attached;
use super::transport::{Farewell, Line, Transport};
use super::wire::Wire;
use super::{Protocol, ProtocolRef};
use crate::exception::guard;
use crate::io::ManagedBuf;
use crate::task::yield_now;

/// Starts a connection's task. `attach` ties it to its server.
pub(super) fn open<P: Protocol + 'static>(
    wire: Wire,
    protocol: P,
    attach: impl FnOnce(&Rc<Line>) -> Option<Attached>,
) -> (Transport, ProtocolRef<P>) {
    let protocol = Rc::new(RefCell::new(protocol));
    let line = Rc::new(Line::new(protocol.clone(), wire.ends()));
    let attached = attach(&line);
    let presence = Presence {
        line: line.clone(),
        _attached: attached,
    };
    crate::task::spawn(converse(presence, wire));
    (Transport { line }, ProtocolRef(protocol))
}

/// Waits until the protocol was told that it has a connection. Dropping the future aborts it: nobody else has it yet.
pub(super) async fn until_made(transport: &Transport) {
    struct AbortOnDrop<'a>(&'a Transport);

    impl Drop for AbortOnDrop<'_> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    let abort = AbortOnDrop(transport);
    let line = &transport.line;
    line.bell.until(|| line.polls.get() > 0 || line.is_lost.get()).await;
    std::mem::forget(abort);
}

/// The task's hold on the connection. However the task ends, also with its loop, the connection is lost then, and the
/// protocol, which may hold the transport, is let go.
struct Presence {
    line: Rc<Line>,
    /// Dropped last: the server may count on what it leaves being gone.
    _attached: Option<Attached>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let line = &self.line;
        line.is_lost.set(true);
        line.outbox.discard();
        line.outbox.forget_waker();
        let protocol = line.protocol.take();
        guard("a protocol's destructor", || drop(protocol));
        line.bell.ring();
    }
}

async fn converse(presence: Presence, wire: Wire) {
    let line = &presence.line;
    let reason = {
        let mut sending = pin!(line.outbox.send_all(&wire, || {}));
        let mut receiving = pin!(receive_all(line, &wire));
        poll_fn(|cx| {
            let _in_poll = InPoll::new(&line.in_poll);
            poll(line, cx, sending.as_mut(), receiving.as_mut())
        })
        .await
    };
    line.is_lost.set(true);
    line.call("connection_lost", |protocol| protocol.connection_lost(reason));
    if line.farewell.get() == Farewell::Reset {
        wire.end_with_reset();
    }
    // The descriptor closes before whoever waits for that is told.
    drop(wire);
}

/// One poll of the task: gives the reason when the connection is over.
fn poll(
    line: &Rc<Line>,
    cx: &mut Context<'_>,
    mut sending: Pin<&mut impl Future<Output = io::Result<()>>>,
    receiving: Pin<&mut impl Future<Output = ()>>,
) -> Poll<Option<io::Error>> {
    line.polls.set(line.polls.get() + 1);
    line.outbox.set_waker(cx.waker());
    if line.polls.get() == 1 {
        let transport = Transport { line: line.clone() };
        line.note_delivery();
        line.call("connection_made", |protocol| protocol.connection_made(transport));
        line.bell.ring();
    }
    let mut receiving = Some(receiving);
    loop {
        line.tell_flow();
        // Of a reset, the kernel tells only one direction. To the other it is a mere end, or a broken pipe: so sending comes
        // before that end is believed, and receiving before that broken pipe is.
        let mut failed = None;
        if !line.is_flushed.get() && !line.is_ending_now() {
            match sending.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => line.is_flushed.set(true),
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                    line.is_flushed.set(true);
                    failed = Some(error);
                }
                Poll::Ready(Err(error)) => line.end(Some(error), Farewell::Close),
                Poll::Pending => {}
            }
        }
        line.tell_flow();
        if failed.is_none()
            && let Some(reason) = line.reason_to_go()
        {
            return Poll::Ready(reason);
        }
        match receiving.take() {
            // It never ends.
            Some(receiving) if !line.is_closing() => drop(receiving.poll(cx)),
            _ => {}
        }
        if failed.is_some() {
            line.end(failed, Farewell::Close);
        }
        if !line.has_work() {
            return Poll::Pending;
        }
    }
}

/// Calls the protocol with what comes in, and at the end. Ends only with its task.
async fn receive_all(line: &Line, wire: &Wire) {
    loop {
        line.until_reading().await;
        let mut received = wire.receive().await;
        loop {
            if line.has_delivered() {
                yield_now().await;
            } else if !line.is_reading.get() {
                // The pool's buffers are for those who read.
                received = received.map(ManagedBuf::into_heap);
                line.until_reading().await;
            } else {
                break;
            }
        }
        line.note_delivery();
        match received {
            Ok(bytes) if !bytes.is_empty() => {
                line.call("data_received", |protocol| protocol.data_received(&bytes));
            }
            Ok(_) => {
                let stays = line.call("eof_received", |protocol| protocol.eof_received());
                if stays == Some(false) {
                    line.close();
                }
                return pending().await;
            }
            Err(error) => {
                line.end(Some(error), Farewell::Close);
                return pending().await;
            }
        }
    }
}

impl Line {
    async fn until_reading(&self) {
        // Resuming wakes the task.
        poll_fn(|_| match self.is_reading.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn note_delivery(&self) {
        self.delivered_in.set(self.polls.get());
    }

    /// Whether the protocol was called with something received in this poll already.
    fn has_delivered(&self) -> bool {
        self.delivered_in.get() == self.polls.get()
    }

    /// Whether a callback has left something to do in this poll.
    fn has_work(&self) -> bool {
        if self.is_ending_now() {
            return false;
        }
        self.has_flow_to_tell() || (self.outbox.has_news() && !self.is_flushed.get())
    }
}

/// Says that the task is being polled.
struct InPoll<'a>(&'a Cell<bool>);

impl<'a> InPoll<'a> {
    fn new(flag: &'a Cell<bool>) -> InPoll<'a> {
        flag.set(true);
        InPoll(flag)
    }
}

impl Drop for InPoll<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
