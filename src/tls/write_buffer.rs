//! Ciphertext on its way out.
//!
//! Records that were made must be sent, each byte once and in order, whatever becomes of the call that made them. So the
//! future that sends is the stream's: made once, kept in a box, and polled by whoever has an interest in it, one at a time.
//! It takes what is in the outbox, sends it, gives the memory back, and goes to sleep without a waker: who puts something in
//! polls it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::transport::TlsTransport;
use crate::error::from_code;
use crate::inflight::queue::{IoQueue, QueueGuard};

/// What is kept of the outbox's memory when it is empty: enough for short messages, and nothing that adds up over idle
/// connections.
const KEPT_LEN: usize = 1024;

type Sending = Pin<Box<dyn Future<Output = ()>>>;

/// What is to be sent, and the future that sends it.
pub(super) struct WriteBuffer {
    /// Held by who polls the future: its waker is the one that is woken.
    queue: IoQueue,
    /// Who sleeps until something is received. It sees to what a writer leaves.
    reader: Cell<Option<Waker>>,
    msg_pool: Rc<MsgHdrPool>,
    /// Out while it is polled.
    sending: Cell<Option<Sending>>,
}

#[derive(Default)]
struct MsgHdrPool {
    waiting: RefCell<Vec<u8>>,
    is_sending: Cell<bool>,
    failure: RefCell<Option<Failure>>,
}

/// Why nothing can be sent any more. Told to everybody who asks: a stream of records does not go on after a gap.
struct Failure {
    kind: io::ErrorKind,
    code: Option<i32>,
    message: String,
}

impl WriteBuffer {
    pub(super) fn new<S: TlsTransport>(carrier: Rc<S>) -> WriteBuffer {
        let msg_pool = Rc::new(MsgHdrPool::default());
        let sending = Box::pin(send_for_ever(carrier, msg_pool.clone()));
        WriteBuffer {
            queue: IoQueue::default(),
            reader: Cell::default(),
            msg_pool,
            sending: Cell::new(Some(sending)),
        }
    }

    /// Puts in what `fill` appends.
    pub(super) fn put(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        // Out of its cell while somebody else's code may run.
        let mut waiting = self.msg_pool.waiting.take();
        fill(&mut waiting);
        self.msg_pool.waiting.replace(waiting);
    }

    /// How many bytes wait behind what is being sent.
    pub(super) fn waiting_len(&self) -> usize {
        self.msg_pool.waiting.borrow().len()
    }

    /// Whether everything has been sent, or never will be.
    pub(super) fn is_idle(&self) -> bool {
        !self.msg_pool.is_sending.get() && self.msg_pool.waiting.borrow().is_empty()
    }

    /// Whether sending has come to a reset.
    pub(super) fn reset(&self) -> Option<io::Error> {
        let failure = self.msg_pool.failure.borrow();
        let failure = failure
            .as_ref()
            .filter(|failure| failure.kind == io::ErrorKind::ConnectionReset)?;
        Some(failure.error())
    }

    /// Waits for its turn to send. Who goes before everything is sent, also from the queue, leaves the rest to a reader that
    /// sleeps.
    pub(super) async fn hold(&self) -> WriteBufferGuard<'_> {
        // Dropped after what it waits for.
        let heir = Heir(self);
        let hold = self.queue.hold().await;
        WriteBufferGuard {
            _hold: hold,
            _heir: heir,
        }
    }

    /// A reader goes to sleep.
    pub(super) fn reader_sleeps(&self, waker: &Waker) {
        let known = self.reader.take().filter(|known| known.will_wake(waker));
        self.reader.set(Some(known.unwrap_or_else(|| waker.clone())));
    }

    /// It is awake, or gone.
    pub(super) fn reader_is_up(&self) {
        drop(self.reader.take());
    }

    /// The reader that sleeps, if it is somebody else.
    pub(super) fn other_reader(&self, waker: &Waker) -> Option<Waker> {
        let reader = self.reader.take()?;
        let other = (!reader.will_wake(waker)).then(|| reader.clone());
        self.reader.set(Some(reader));
        other
    }

    /// Sends; ready when there is nothing left to send. To be polled by who holds the lane.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(failure) = &*self.msg_pool.failure.borrow() {
                return Poll::Ready(Err(failure.error()));
            }
            if self.is_idle() {
                return Poll::Ready(Ok(()));
            }
            // It is missing only if a poll of it has panicked.
            let Some(mut sending) = self.sending.take() else {
                let message = "the stream below has panicked while it was written to";
                return Poll::Ready(Err(io::Error::other(message)));
            };
            let ended = sending.as_mut().poll(cx).is_ready();
            if ended {
                drop(sending);
                continue;
            }
            self.sending.set(Some(sending));
            if self.msg_pool.is_sending.get() {
                return Poll::Pending;
            }
        }
    }

    /// Lets it go on if nobody else sees to that. What becomes of it, the next writer hears.
    pub(super) fn nudge(&self, cx: &mut Context<'_>) {
        if !self.is_idle()
            && let Some(_hold) = self.queue.try_acquire()
        {
            let _ = self.poll_sent(cx);
        }
    }
}

/// The right to send.
pub(super) struct WriteBufferGuard<'a> {
    // The lane is free when the heir is told.
    _hold: QueueGuard<'a>,
    _heir: Heir<'a>,
}

/// Dropped, it wakes the reader that sleeps, if something is left to send and nobody else is there to send it.
struct Heir<'a>(&'a WriteBuffer);

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        let write_buffer = self.0;
        if !write_buffer.is_idle()
            && write_buffer.queue.is_free()
            && let Some(reader) = write_buffer.reader.take()
        {
            // Perhaps in a task that is unwinding already.
            crate::event_loop::exception::guard("a waker", || reader.wake());
        }
    }
}

/// Ends only with an error.
async fn send_for_ever<S: TlsTransport>(carrier: Rc<S>, msg_pool: Rc<MsgHdrPool>) {
    loop {
        std::future::poll_fn(|_| match msg_pool.waiting.borrow().is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        let bytes = msg_pool.waiting.take();
        msg_pool.is_sending.set(true);
        let (result, mut bytes) = carrier.send(bytes).await;
        msg_pool.is_sending.set(false);
        if let Err(error) = result {
            msg_pool.failure.replace(Some(Failure::new(&error)));
            return;
        }
        if bytes.capacity() <= KEPT_LEN && msg_pool.waiting.borrow().is_empty() {
            bytes.clear();
            msg_pool.waiting.replace(bytes);
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
