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

use super::line::{Callee, Farewell, Line, Presence};
use super::outbox::Outbox;
use super::server::{Attached, Client};
use super::transport::Transport;
use super::wire::{Ends, Wire};
use super::{Protocol, ProtocolRef};
use crate::io::ManagedBuf;
use crate::task::yield_now;

/// The line of a connection.
pub(super) type Connected = Line<dyn Protocol, Outbox, Ends>;

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
    wire: Wire,
    protocol: P,
    attach: impl FnOnce(&Rc<Connected>) -> Option<Attached>,
) -> (Transport, ProtocolRef<P>) {
    let protocol = Rc::new(RefCell::new(protocol));
    let line: Rc<Connected> = Rc::new(Line::new(protocol.clone(), Outbox::new(), wire.ends()));
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
    line.bell.until(|| line.is_made() || line.is_lost()).await;
    std::mem::forget(abort);
}

async fn converse(presence: Presence<dyn Protocol, Outbox, Ends>, wire: Wire) {
    let line = &presence.line;
    let reason = {
        let mut sending = pin!(line.outbox.send_all(&wire, || {}));
        let mut receiving = pin!(receive_all(line, &wire));
        let made = || {
            let transport = Transport { line: line.clone() };
            line.call("connection_made", |protocol| protocol.connection_made(transport));
        };
        poll_fn(|cx| line.poll(cx, made, sending.as_mut(), receiving.as_mut())).await
    };
    if line.tell_lost(reason) == Farewell::Reset {
        wire.end_with_reset();
    }
    // The descriptor closes before whoever waits for that is told.
    drop(wire);
}

/// Calls the protocol with what comes in, and at the end. Ends only with its task.
async fn receive_all(line: &Connected, wire: &Wire) {
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
