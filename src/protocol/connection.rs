//! A connection's task: it alone calls the protocol.
//!
//! Both directions are polled by one task, so that an idle connection costs one. It calls at most one
//! [`data_received`](super::Protocol::data_received) per turn, as asyncio does: what the protocol schedules in it runs before
//! the next. What the protocol writes is sent when its callback returns, still in the same poll.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;

use super::any_stream::{AnyStream, Ends};
use super::link::{Callee, Farewell, Link, Presence};
use super::server::{Attached, Client};
use super::transport::Transport;
use super::write_buffer::WriteBuffer;
use super::{Protocol, ProtocolRef};
use crate::io::ManagedBuf;
use crate::task::yield_now;

/// The line of a connection.
pub(super) type Connected = Link<dyn Protocol, WriteBuffer, Ends>;

impl Callee for dyn Protocol {
    fn pause_writing(&mut self) {
        Protocol::pause_writing(self);
    }
    fn resume_writing(&mut self) {
        Protocol::resume_writing(self);
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        Protocol::connection_lost(self, error);
    }
}

impl Client for Connected {
    fn close_client(self: Rc<Self>) {
        self.close();
    }

    fn abort_client(self: Rc<Self>) {
        self.end(None, Farewell::Reset);
    }
}

/// Starts a connection's task. `attach` ties it to its server.
#[track_caller]
pub(super) fn open<P: Protocol + 'static>(
    any_stream: AnyStream,
    protocol: P,
    attach: impl FnOnce(&Rc<Connected>) -> Option<Attached>,
) -> (Transport, ProtocolRef<P>) {
    let protocol = Rc::new(RefCell::new(protocol));
    let link: Rc<Connected> = Rc::new(Link::new(protocol.clone(), WriteBuffer::new(), any_stream.ends()));
    let attached = attach(&link);
    let presence = Presence {
        link: link.clone(),
        _attached: attached,
    };
    crate::task::spawn(converse(presence, any_stream));
    (Transport { link }, ProtocolRef(protocol))
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
    let link = &transport.link;
    link.changed.until(|| link.is_made() || link.is_lost()).await;
    std::mem::forget(abort);
}

async fn converse(presence: Presence<dyn Protocol, WriteBuffer, Ends>, any_stream: AnyStream) {
    let link = &presence.link;
    let reason = {
        let mut sending = pin!(link.write_buffer.send_all(&any_stream, || {}));
        let mut receiving = pin!(receive_all(link, &any_stream));
        let made = || {
            let transport = Transport { link: link.clone() };
            link.call("connection_made", |protocol| protocol.connection_made(transport));
        };
        poll_fn(|cx| link.poll(cx, made, sending.as_mut(), receiving.as_mut())).await
    };
    if link.report_lost(reason) == Farewell::Reset {
        any_stream.end_with_reset();
    }
    // The descriptor closes before whoever waits for that is told.
    drop(any_stream);
}

/// Calls the protocol with what comes in, and at the end. Ends only with its task.
async fn receive_all(link: &Connected, any_stream: &AnyStream) {
    loop {
        link.until_reading().await;
        let mut received = any_stream.receive().await;
        loop {
            if link.has_delivered() {
                yield_now().await;
            } else if !link.is_reading.get() {
                // The pool's buffers are for those who read.
                received = received.map(ManagedBuf::into_heap);
                link.until_reading().await;
            } else {
                break;
            }
        }
        link.note_delivery();
        match received {
            Ok(bytes) if !bytes.is_empty() => {
                link.call("data_received", |protocol| protocol.data_received(&bytes));
            }
            Ok(_) => {
                let stays = link.call("eof_received", |protocol| protocol.eof_received());
                if stays == Some(false) {
                    link.close();
                }
                return pending().await;
            }
            Err(error) => {
                link.end(Some(error), Farewell::Close);
                return pending().await;
            }
        }
    }
}
