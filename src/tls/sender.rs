//! Sends the records of a TLS stream.
//!
//! Each byte of a record must be sent once and in order, even if the call that created the record is dropped. So the
//! sending future belongs to the stream: boxed once, and polled by one interested call at a time. It sends what the
//! write buffer holds and waits for more. It registers no waker for that: the call that adds bytes polls it.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::transport::TlsTransport;
use crate::event_loop::exception::guard;
use crate::inflight::queue::{IoQueue, QueueGuard};
use crate::io::waker_cell::WakerCell;
use crate::io::write_buffer::WriteBuffer;
use crate::on_drop::OnDrop;

pub(super) struct Sender {
    /// Held by the call that polls the future, whose waker receives the wake-ups.
    queue: IoQueue,
    /// A reader waiting for data. It drives the sends that a dropped writer leaves.
    pub(super) reader: WakerCell,
    /// After a failed send, every later call fails: a record stream cannot continue after a gap.
    pub(super) buffer: Rc<WriteBuffer>,
    /// Taken out while polled.
    sending: Cell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl Sender {
    pub(super) fn new<S: TlsTransport>(transport: Rc<S>) -> Sender {
        let buffer = Rc::new(WriteBuffer::default());
        let sending = {
            let buffer = buffer.clone();
            Box::pin(async move {
                if let Err(error) = buffer.send_all(&*transport, || {}).await {
                    buffer.fail(error);
                }
            })
        };
        Sender {
            queue: IoQueue::default(),
            reader: WakerCell::default(),
            buffer,
            sending: Cell::new(Some(sending)),
        }
    }

    /// Whether no bytes are waiting and no send is in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.buffer.is_sending() && !self.buffer.has_pieces()
    }

    /// The error, if sending failed with a reset.
    pub(super) fn reset(&self) -> Option<io::Error> {
        let failure = self.buffer.failure().err()?;
        (failure.kind() == io::ErrorKind::ConnectionReset).then_some(failure)
    }

    /// Waits for its turn to send. If dropped before everything is sent, even while still queued, the rest is left to a
    /// waiting reader.
    pub(super) async fn acquire(&self) -> (QueueGuard<'_>, OnDrop<impl FnMut()>) {
        // Dropped after the queue entry: the queue is free when the reader is woken.
        let wake_reader = OnDrop(|| self.wake_reader());
        (self.queue.acquire().await, wake_reader)
    }

    /// Wakes the waiting reader if bytes are left and no other call will send them.
    fn wake_reader(&self) {
        if !self.is_idle()
            && self.queue.is_free()
            && let Some(reader) = self.reader.take()
        {
            // The task may be unwinding already.
            guard("a waker", || reader.wake());
        }
    }

    /// Registers a waiting reader.
    pub(super) fn set_reader(&self, cx: &mut Context<'_>) {
        if self.reader.set(cx.waker()) {
            // A writer that was dropped while the waker was cloned has found no reader to wake.
            self.try_send(cx);
        }
    }

    /// Sends; ready when nothing is left. The caller holds the queue.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.buffer.failure()?;
            if self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            // It is missing only after a panic during an earlier poll.
            let Some(mut sending) = self.sending.take() else {
                let message = "the transport panicked during an earlier write";
                return Poll::Ready(Err(io::Error::other(message)));
            };
            // It ends only after an error.
            if sending.as_mut().poll(cx).is_ready() {
                continue;
            }
            self.sending.set(Some(sending));
            if self.buffer.is_sending() {
                return Poll::Pending;
            }
        }
    }

    /// Drives the send if no other call does. The next write returns its error.
    pub(super) fn try_send(&self, cx: &mut Context<'_>) {
        if !self.is_idle()
            && let Some(_hold) = self.queue.try_acquire()
        {
            let _ = self.poll_sent(cx);
        }
    }
}
