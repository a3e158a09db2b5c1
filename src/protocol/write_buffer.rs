//! The write buffer of a transport or stream writer.
//!
//! Writing is a plain call that appends bytes and returns. A task sends them with at most one send in flight; writes
//! during a send are coalesced for the next. So the small writes of one turn leave in one send, in call order.
//!
//! Memory is bounded by cooperation, as in asyncio. A peer that does not read lets the buffer grow while the protocol
//! writes, so the buffer reports once when it crosses the high watermark and once when it has drained to the low one.
//! The distance between the two prevents rapid toggling.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, Waker};

use super::any_stream::AnyStream;
use super::payload::{OwnedBytes, Payload, Piece};
use super::transport_state::SendQueue;
use super::watermarks::Watermarks;
use crate::event_loop::exception::guard;

/// Owned bytes shorter than this are copied into a shared buffer: cheaper than an entry of their own.
const COALESCE_BELOW: usize = 2 * 1024;

/// The maximum size of such a buffer.
const COALESCED_MAX: usize = 64 * 1024;

/// How many of them a thread caches for all its connections: an idle connection has none.
const SPARES_MAX: usize = 64;

/// The maximum number of entries in one send.
const PIECES_MAX: usize = 64;

pub(crate) struct WriteBuffer {
    queue: RefCell<Queue>,
    pub(crate) watermarks: Watermarks,
    /// Shut down the write direction after the queued bytes.
    eof_queued: Cell<bool>,
    eof_sent: Cell<bool>,
    /// Accepts nothing more; the sender finishes after the queued bytes.
    closed: Cell<bool>,
    /// The queue was discarded: entries in flight are not returned to it.
    discarded: Cell<bool>,
    /// The sender is waiting for data.
    is_idle: Cell<bool>,
    /// Of the sending task.
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Allocation for the next vectored send; empty.
    batch: Vec<Piece>,
}

/// The sender's next action.
enum Step {
    Send(Piece),
    SendAll(Vec<Piece>),
    Eof,
    Done,
}

impl WriteBuffer {
    pub(crate) fn new() -> WriteBuffer {
        WriteBuffer {
            queue: RefCell::default(),
            watermarks: Watermarks::new(),
            eof_queued: Cell::new(false),
            eof_sent: Cell::new(false),
            closed: Cell::new(false),
            discarded: Cell::new(false),
            is_idle: Cell::new(true),
            waker: Cell::new(None),
        }
    }

    // Called by the writer.

    /// Appends bytes. A closed buffer discards them.
    pub(crate) fn put(&self, payload: impl Payload) {
        let len = payload.bytes().len();
        if len == 0 || self.closed.get() || self.eof_queued.get() {
            return;
        }
        let copied = self.queue.borrow_mut().put(payload, len);
        self.watermarks.add(len);
        // Dropped after the borrow ends: a destructor may run foreign code.
        drop(copied);
    }

    /// Shuts down the write direction after the queued bytes.
    pub(crate) fn put_eof(&self) {
        if !self.closed.get() {
            self.eof_queued.set(true);
        }
    }

    pub(crate) fn has_eof(&self) -> bool {
        self.eof_queued.get()
    }

    // Called by the sender.

    fn has_work(&self) -> bool {
        !self.queue.borrow().pieces.is_empty() || self.closed.get() || (self.eof_queued.get() && !self.eof_sent.get())
    }

    /// Sends until the buffer is closed and empty, in the task of [`set_waker`](SendQueue::set_waker). Calls
    /// `on_resume` at the low watermark.
    pub(crate) async fn send_all(&self, stream: &AnyStream, on_resume: impl Fn()) -> io::Result<()> {
        loop {
            let step = poll_fn(|_| match self.next_step() {
                Some(step) => Poll::Ready(step),
                None => Poll::Pending,
            })
            .await;
            match step {
                Step::Send(piece) => {
                    let (result, piece) = stream.send(piece).await;
                    let count = nonzero(result)?;
                    if self.discarded.get() {
                        return Ok(());
                    }
                    let sent = self.queue.borrow_mut().give_back(piece, count);
                    guard("a buffer's destructor", || drop(sent));
                    if self.watermarks.take(count) {
                        on_resume();
                    }
                }
                Step::SendAll(pieces) => {
                    let (result, pieces) = stream.send_vectored(pieces).await;
                    let count = nonzero(result)?;
                    if self.discarded.get() {
                        return Ok(());
                    }
                    let mut sent = self.queue.borrow_mut().give_all_back(pieces, count);
                    for piece in sent.drain(..) {
                        guard("a buffer's destructor", || drop(piece));
                    }
                    self.queue.borrow_mut().batch = sent;
                    if self.watermarks.take(count) {
                        on_resume();
                    }
                }
                Step::Eof => {
                    stream.shutdown_write().await?;
                    self.eof_sent.set(true);
                }
                Step::Done => return Ok(()),
            }
        }
    }

    fn next_step(&self) -> Option<Step> {
        let mut queue = self.queue.borrow_mut();
        let step = match queue.pieces.len() {
            0 if self.eof_queued.get() && !self.eof_sent.get() => Some(Step::Eof),
            0 if self.closed.get() => Some(Step::Done),
            0 => None,
            1 => queue.pieces.pop_front().map(Step::Send),
            several => {
                let mut batch = std::mem::take(&mut queue.batch);
                batch.extend(queue.pieces.drain(..several.min(PIECES_MAX)));
                Some(Step::SendAll(batch))
            }
        };
        self.is_idle.set(step.is_none());
        step
    }
}

impl SendQueue for WriteBuffer {
    fn is_paused(&self) -> bool {
        self.watermarks.is_paused()
    }

    fn needs_wake(&self) -> bool {
        self.is_idle.get() && self.has_work()
    }

    /// Accepts nothing more. The sender finishes after the queued bytes.
    fn close(&self) {
        self.closed.set(true);
    }

    /// Discards the queued bytes and accepts nothing more.
    fn discard(&self) {
        self.closed.set(true);
        self.discarded.set(true);
        self.eof_queued.set(false);
        self.watermarks.reset();
        let queue = self.queue.take();
        for piece in queue.pieces {
            guard("a buffer's destructor", || drop(piece));
        }
    }

    fn set_waker(&self, waker: &Waker) {
        set_waker(&self.waker, waker);
    }

    fn forget_waker(&self) {
        drop(self.waker.take());
    }

    fn wake(&self) {
        wake(&self.waker);
    }
}

/// Stores the waker of the task, unless it is the same.
pub(super) fn set_waker(slot: &Cell<Option<Waker>>, waker: &Waker) {
    let old = slot.take();
    slot.set(match old {
        Some(old) if old.will_wake(waker) => Some(old),
        _ => Some(waker.clone()),
    });
}

pub(super) fn wake(slot: &Cell<Option<Waker>>) {
    if let Some(waker) = slot.take() {
        waker.wake_by_ref();
        slot.set(Some(waker));
    }
}

fn nonzero(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        result => result,
    }
}

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, reused if the cache has one. The cache is gone while its thread exits.
fn take_spare() -> Vec<u8> {
    SPARES
        .try_with(|spares| spares.borrow_mut().pop())
        .ok()
        .flatten()
        .unwrap_or_default()
}

fn keep_spare(mut bytes: Vec<u8>) {
    bytes.clear();
    // Do not cache buffers that grew beyond their intended size.
    if bytes.capacity() <= 2 * COALESCED_MAX {
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MAX {
                spares.push(bytes);
            }
        });
    }
}

impl Queue {
    /// Returns the payload if its bytes were copied.
    fn put<P: Payload>(&mut self, payload: P, len: usize) -> Option<P> {
        let is_large = match payload.is_owned() {
            true => len >= COALESCE_BELOW,
            false => len > COALESCED_MAX,
        };
        if is_large {
            self.pieces.push_back(Piece {
                bytes: payload.into_owned_bytes(),
                sent: 0,
                is_coalesced: false,
            });
            return None;
        }
        let tail = match self.pieces.back_mut() {
            Some(Piece {
                bytes: OwnedBytes::Vec(tail),
                is_coalesced: true,
                ..
            }) if tail.len() + len <= COALESCED_MAX => tail,
            _ => {
                self.pieces.push_back(Piece {
                    bytes: OwnedBytes::Vec(take_spare()),
                    sent: 0,
                    is_coalesced: true,
                });
                match self.pieces.back_mut() {
                    Some(Piece {
                        bytes: OwnedBytes::Vec(tail),
                        ..
                    }) => tail,
                    _ => unreachable!("just pushed"),
                }
            }
        };
        tail.extend_from_slice(payload.bytes());
        Some(payload)
    }

    /// Records that `count` more bytes of a piece were sent. Requeues the rest in front, or returns the piece to be
    /// dropped.
    fn give_back(&mut self, mut piece: Piece, count: usize) -> Option<Piece> {
        piece.sent += count;
        if piece.left() > 0 {
            self.pieces.push_front(piece);
            return None;
        }
        match piece {
            Piece {
                bytes: OwnedBytes::Vec(bytes),
                is_coalesced: true,
                ..
            } => {
                keep_spare(bytes);
                None
            }
            piece => Some(piece),
        }
    }

    /// Like `give_back`, for several pieces in order.
    fn give_all_back(&mut self, mut pieces: Vec<Piece>, mut count: usize) -> Vec<Piece> {
        let mut sent = 0;
        for piece in &pieces {
            if piece.left() > count {
                break;
            }
            count -= piece.left();
            sent += 1;
        }
        for piece in pieces.drain(sent..).rev() {
            self.pieces.push_front(piece);
        }
        if let Some(first) = self.pieces.front_mut() {
            first.sent += count;
        }
        for piece in &mut pieces {
            if let OwnedBytes::Vec(bytes) = &mut piece.bytes
                && piece.is_coalesced
            {
                keep_spare(std::mem::take(bytes));
                piece.sent = 0;
            }
        }
        pieces
    }
}
