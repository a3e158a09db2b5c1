//! Ciphertext waiting to be sent, and the future that sends it.
//!
//! Each byte of a record must be sent once and in order, even if the call that created the record is dropped. So the
//! sending future belongs to the stream: boxed once, and polled by one interested call at a time. It sends what the
//! buffer holds, returns the memory and waits for more. It registers no waker for that: the call that adds bytes polls
//! it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::transport::TlsTransport;
use crate::error::from_code;
use crate::inflight::queue::{IoQueue, QueueGuard};

/// An empty buffer keeps at most this capacity: enough for short messages, little for many idle connections.
const RETAINED_LEN: usize = 1024;

type Sending = Pin<Box<dyn Future<Output = ()>>>;

pub(super) struct WriteBuffer {
    /// Held by the call that polls the future, whose waker receives the wake-ups.
    queue: IoQueue,
    /// A reader waiting for data. It drives the sends that a dropped writer leaves.
    reader: Cell<Option<Waker>>,
    state: Rc<SendState>,
    /// Taken out while polled.
    sending: Cell<Option<Sending>>,
}

#[derive(Default)]
struct SendState {
    waiting: RefCell<Vec<u8>>,
    is_sending: Cell<bool>,
    failure: RefCell<Option<Failure>>,
}

/// The send error, returned by every later call: a record stream cannot continue after a gap.
struct Failure {
    kind: io::ErrorKind,
    code: Option<i32>,
    message: String,
}

impl WriteBuffer {
    pub(super) fn new<S: TlsTransport>(transport: Rc<S>) -> WriteBuffer {
        let state = Rc::new(SendState::default());
        let sending = Box::pin(send_loop(transport, state.clone()));
        WriteBuffer {
            queue: IoQueue::default(),
            reader: Cell::default(),
            state,
            sending: Cell::new(Some(sending)),
        }
    }

    /// Appends the bytes that `fill` adds.
    pub(super) fn put(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        // Taken out of its cell, since `fill` may run user code.
        let mut waiting = self.state.waiting.take();
        fill(&mut waiting);
        self.state.waiting.replace(waiting);
    }

    /// The number of bytes behind the send in flight.
    pub(super) fn waiting_len(&self) -> usize {
        self.state.waiting.borrow().len()
    }

    /// Whether no bytes are waiting and no send is in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.state.is_sending.get() && self.state.waiting.borrow().is_empty()
    }

    /// The error, if sending failed with a reset.
    pub(super) fn reset(&self) -> Option<io::Error> {
        let failure = self.state.failure.borrow();
        let failure = failure
            .as_ref()
            .filter(|failure| failure.kind == io::ErrorKind::ConnectionReset)?;
        Some(failure.error())
    }

    /// Waits for its turn to send. If dropped before everything is sent, even while still queued, the rest is left to a
    /// waiting reader.
    pub(super) async fn acquire(&self) -> WriteBufferGuard<'_> {
        // Dropped after the queue entry.
        let wake_reader = WakeReaderOnDrop(self);
        let hold = self.queue.acquire().await;
        WriteBufferGuard {
            _guard: hold,
            _wake_reader: wake_reader,
        }
    }

    /// Registers a waiting reader.
    pub(super) fn set_reader(&self, waker: &Waker) {
        let known = self.reader.take().filter(|known| known.will_wake(waker));
        self.reader.set(Some(known.unwrap_or_else(|| waker.clone())));
    }

    /// The reader is running again, or gone.
    pub(super) fn clear_reader(&self) {
        drop(self.reader.take());
    }

    /// The waiting reader, if it is another task.
    pub(super) fn other_reader(&self, waker: &Waker) -> Option<Waker> {
        let reader = self.reader.take()?;
        let other = (!reader.will_wake(waker)).then(|| reader.clone());
        self.reader.set(Some(reader));
        other
    }

    /// Sends; ready when nothing is left. The caller holds the queue.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(failure) = &*self.state.failure.borrow() {
                return Poll::Ready(Err(failure.error()));
            }
            if self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            // It is missing only after a panic during an earlier poll.
            let Some(mut sending) = self.sending.take() else {
                let message = "the transport panicked during an earlier write";
                return Poll::Ready(Err(io::Error::other(message)));
            };
            let ended = sending.as_mut().poll(cx).is_ready();
            if ended {
                drop(sending);
                continue;
            }
            self.sending.set(Some(sending));
            if self.state.is_sending.get() {
                return Poll::Pending;
            }
        }
    }

    /// Drives the send if no other call does. The next write returns its error.
    pub(super) fn try_send(&self, cx: &mut Context<'_>) {
        if !self.is_idle()
            && let Some(_guard) = self.queue.try_acquire()
        {
            let _ = self.poll_sent(cx);
        }
    }
}

/// The exclusive right to send.
pub(super) struct WriteBufferGuard<'a> {
    // Dropped first: the queue is free when the reader is woken.
    _guard: QueueGuard<'a>,
    _wake_reader: WakeReaderOnDrop<'a>,
}

/// On drop, wakes the waiting reader if bytes are left and no other call will send them.
struct WakeReaderOnDrop<'a>(&'a WriteBuffer);

impl Drop for WakeReaderOnDrop<'_> {
    fn drop(&mut self) {
        let write_buffer = self.0;
        if !write_buffer.is_idle()
            && write_buffer.queue.is_free()
            && let Some(reader) = write_buffer.reader.take()
        {
            // The task may be unwinding already.
            crate::event_loop::exception::guard("a waker", || reader.wake());
        }
    }
}

/// Ends only after an error.
async fn send_loop<S: TlsTransport>(transport: Rc<S>, state: Rc<SendState>) {
    loop {
        std::future::poll_fn(|_| match state.waiting.borrow().is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        let bytes = state.waiting.take();
        state.is_sending.set(true);
        let (result, mut bytes) = transport.send(bytes).await;
        state.is_sending.set(false);
        if let Err(error) = result {
            state.failure.replace(Some(Failure::new(&error)));
            return;
        }
        if bytes.capacity() <= RETAINED_LEN && state.waiting.borrow().is_empty() {
            bytes.clear();
            state.waiting.replace(bytes);
        }
    }
}

impl Failure {
    fn new(error: &io::Error) -> Failure {
        Failure {
            kind: error.kind(),
            code: error.raw_os_error(),
            message: error.to_string(),
        }
    }

    fn error(&self) -> io::Error {
        match self.code {
            Some(code) => from_code(code),
            None => io::Error::new(self.kind, self.message.clone()),
        }
    }
}
