//! Bytes queued for a stream, with at most one send in flight.
//!
//! Protocol transports, stream writers, `compat` bridges and TLS streams all write through this buffer. Writing is a
//! plain call that appends bytes and returns; writes during a send are coalesced for the next. So the small writes of
//! one turn leave in one send, in call order.
//!
//! The buffer does no I/O. Its owner takes the next bytes, sends them from memory that the send owns, and gives them
//! back with the number of bytes sent: a partial send loses nothing. [`WriteBuffer::send_all`] does this as a future;
//! a bridge does it on each completion, without a task.
//!
//! A transport's memory is bounded only if the protocol cooperates, as in asyncio. If the peer does not read, writes
//! grow the buffer, so the buffer reports once when it crosses the high watermark and once when it has drained to the
//! low one. The distance between the two prevents rapid toggling.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::Poll;

use super::BufResult;
use super::payload::{OwnedBytes, Payload, Piece};
use super::watermarks::Watermarks;
use crate::error::copy_error;
use crate::event_loop::exception::guard;

/// The maximum size of a buffer that small writes share.
const COALESCED_MAX: usize = 64 * 1024;

/// Owned bytes up to this length are copied into such a buffer: cheaper than an entry of their own.
const OWNED_COALESCED_MAX: usize = 2 * 1024 - 1;

/// The maximum number of entries in one send.
const PIECES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct WriteBuffer {
    queue: RefCell<Queue>,
    pub(crate) watermarks: Watermarks,
    /// Shut down the write side after the queued bytes.
    eof_queued: Cell<bool>,
    eof_sent: Cell<bool>,
    /// Accepts nothing more; the sender finishes after the queued bytes.
    closed: Cell<bool>,
    /// The queue was discarded: entries in flight are not returned to it.
    discarded: Cell<bool>,
    /// A send is in flight, or the sender has finished.
    is_busy: Cell<bool>,
    /// The error of a failed send. Accepted bytes are lost, so no later bytes are sent.
    failure: RefCell<Option<io::Error>>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Allocation for the next vectored send; empty.
    batch: Vec<Piece>,
}

/// A stream that [`WriteBuffer::send_all`] can send to.
pub(crate) trait SendTarget {
    async fn send(&self, piece: Piece) -> BufResult<usize, Piece>;
    async fn send_vectored(&self, pieces: Vec<Piece>) -> BufResult<usize, Vec<Piece>>;
    async fn send_eof(&self) -> io::Result<()>;
}

/// A queue of outgoing data with one sender, as a protocol's transport sees it.
pub(crate) trait SendQueue {
    fn watermarks(&self) -> &Watermarks;
    /// Whether the sender is idle although there is work, so that its task must be woken.
    fn needs_wake(&self) -> bool;
    /// Accepts nothing more. The sender finishes after the queued data.
    fn close(&self);
    /// Discards the queued data and accepts nothing more.
    fn discard(&self);
}

/// The sender's next action.
enum Step {
    Send(Piece),
    SendAll(Vec<Piece>),
    Eof,
    Done,
}

/// Called by the writer.
impl WriteBuffer {
    /// Appends bytes. A closed buffer discards them.
    pub(crate) fn put<P: Payload>(&self, payload: P) {
        // Called once and without a borrow: `as_ref` and a destructor may be user code.
        let bytes = payload.bytes();
        if bytes.is_empty() || self.is_ended() {
            return;
        }
        let coalesced_max = match P::IS_OWNED {
            true => OWNED_COALESCED_MAX,
            false => COALESCED_MAX,
        };
        if bytes.len() <= coalesced_max {
            self.watermarks.add(bytes.len());
            self.queue.borrow_mut().tail(bytes.len()).extend_from_slice(bytes);
        } else {
            let owned = match P::IS_OWNED {
                true => payload.into_owned_bytes(),
                false => OwnedBytes::Vec(bytes.to_vec()),
            };
            let piece = Piece::new(owned);
            self.watermarks.add(piece.left());
            self.queue.borrow_mut().pieces.push_back(piece);
        }
    }

    /// Appends bytes up to a total of `max` unsent ones, and returns their number.
    pub(crate) fn put_slices(&self, bufs: &[IoSlice<'_>], max: usize) -> usize {
        let room = max.saturating_sub(self.watermarks.size());
        let mut left = room;
        let mut queue = self.queue.borrow_mut();
        for buf in bufs {
            let part = left.min(buf.len());
            if part > 0 {
                queue.tail(part).extend_from_slice(&buf[..part]);
            }
            left -= part;
        }
        self.watermarks.add(room - left);
        room - left
    }

    /// Appends the bytes that `fill` adds. A closed buffer discards them.
    #[cfg(feature = "tls")]
    pub(crate) fn put_with(&self, fill: impl FnOnce(&mut Vec<u8>)) {
        if self.is_ended() {
            return fill(&mut Vec::new());
        }
        // Taken out of the queue, since `fill` may run user code.
        let mut tail = self.queue.borrow_mut().take_tail();
        let OwnedBytes::Coalesced(bytes) = &mut tail.bytes else {
            unreachable!("a tail is a coalesced buffer")
        };
        let old_len = bytes.0.len();
        fill(&mut bytes.0);
        let added = bytes.0.len() - old_len;
        if tail.left() > 0 {
            self.queue.borrow_mut().pieces.push_back(tail);
            self.watermarks.add(added);
        }
    }

    /// Shuts down the write side after the queued bytes.
    pub(crate) fn put_eof(&self) {
        if !self.closed.get() {
            self.eof_queued.set(true);
        }
    }

    pub(crate) fn has_eof(&self) -> bool {
        self.eof_queued.get()
    }

    fn is_ended(&self) -> bool {
        self.closed.get() || self.eof_queued.get()
    }

    /// Discards the queued bytes because sending has failed.
    pub(crate) fn fail(&self, error: io::Error) {
        self.failure.replace(Some(error));
        self.is_busy.set(false);
        self.discard();
    }

    /// The error of a failed send.
    pub(crate) fn failure(&self) -> io::Result<()> {
        match &*self.failure.borrow() {
            Some(error) => Err(copy_error(error)),
            None => Ok(()),
        }
    }

    /// Whether a send is in flight, or `send_all` has finished.
    pub(crate) fn is_sending(&self) -> bool {
        self.is_busy.get()
    }

    /// The number of bytes behind the send in flight.
    #[cfg(feature = "tls")]
    pub(crate) fn queued_len(&self) -> usize {
        self.queue.borrow().pieces.iter().map(Piece::left).sum()
    }

    pub(crate) fn has_pieces(&self) -> bool {
        !self.queue.borrow().pieces.is_empty()
    }
}

impl SendQueue for WriteBuffer {
    fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    fn needs_wake(&self) -> bool {
        let has_work = || self.has_pieces() || self.closed.get() || (self.eof_queued.get() && !self.eof_sent.get());
        !self.is_busy.get() && has_work()
    }

    fn close(&self) {
        self.closed.set(true);
    }

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
}

/// Called by the sender.
impl WriteBuffer {
    /// Sends until the buffer is closed and empty. Calls `on_resume` at the low watermark.
    ///
    /// Registers no waker while there is nothing to send: the code that adds bytes polls this future or wakes its task.
    pub(crate) async fn send_all(&self, stream: &impl SendTarget, on_resume: impl Fn()) -> io::Result<()> {
        loop {
            let is_resumed = match poll_fn(|_| self.poll_step()).await {
                Step::Send(piece) => {
                    let (result, piece) = stream.send(piece).await;
                    self.give_back(piece, nonzero(result)?)
                }
                Step::SendAll(pieces) => {
                    let (result, pieces) = stream.send_vectored(pieces).await;
                    self.give_all_back(pieces, nonzero(result)?)
                }
                Step::Eof => {
                    stream.send_eof().await?;
                    self.eof_sent.set(true);
                    false
                }
                Step::Done => return Ok(()),
            };
            if is_resumed {
                on_resume();
            }
        }
    }

    fn poll_step(&self) -> Poll<Step> {
        let mut queue = self.queue.borrow_mut();
        let step = match queue.pieces.len() {
            0 if self.eof_queued.get() && !self.eof_sent.get() => Step::Eof,
            0 if self.closed.get() => Step::Done,
            0 => {
                self.is_busy.set(false);
                return Poll::Pending;
            }
            1 => Step::Send(queue.pieces.pop_front().expect("there is one")),
            several => {
                let mut batch = std::mem::take(&mut queue.batch);
                batch.extend(queue.pieces.drain(..several.min(PIECES_MAX)));
                Step::SendAll(batch)
            }
        };
        self.is_busy.set(true);
        Poll::Ready(step)
    }

    /// The next bytes to send, for a sender other than `send_all`.
    pub(crate) fn next_piece(&self) -> Option<Piece> {
        let piece = self.queue.borrow_mut().pieces.pop_front();
        self.is_busy.set(piece.is_some());
        piece
    }

    /// Records that `count` more bytes of a piece were sent. True if this reached the low watermark.
    pub(crate) fn give_back(&self, piece: Piece, count: usize) -> bool {
        self.requeue(piece, count);
        !self.discarded.get() && self.watermarks.take(count)
    }

    /// Like `give_back`, for several pieces in order.
    fn give_all_back(&self, mut pieces: Vec<Piece>, count: usize) -> bool {
        // Backwards, to requeue them in order.
        let mut before: usize = pieces.iter().map(Piece::left).sum();
        for piece in pieces.drain(..).rev() {
            let len = piece.left();
            before -= len;
            self.requeue(piece, count.saturating_sub(before).min(len));
        }
        self.queue.borrow_mut().batch = pieces;
        !self.discarded.get() && self.watermarks.take(count)
    }

    /// Puts the unsent rest of a piece in front, or drops the piece.
    fn requeue(&self, mut piece: Piece, count: usize) {
        piece.sent += count;
        match piece.left() > 0 && !self.discarded.get() {
            true => self.queue.borrow_mut().pieces.push_front(piece),
            false => guard("a buffer's destructor", || drop(piece)),
        }
    }
}

/// Turns a send of 0 bytes into the error `WriteZero`: it would be repeated forever.
pub(crate) fn nonzero(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        result => result,
    }
}

impl Queue {
    /// The buffer for small writes at the end of the queue, with room for `len` more bytes.
    fn tail(&mut self, len: usize) -> &mut Vec<u8> {
        if !self.has_tail(len) {
            self.pieces.push_back(Piece::coalesced());
        }
        match self.pieces.back_mut() {
            Some(Piece {
                bytes: OwnedBytes::Coalesced(tail),
                ..
            }) => &mut tail.0,
            _ => unreachable!("just pushed"),
        }
    }

    fn has_tail(&self, room: usize) -> bool {
        matches!(
            self.pieces.back(),
            Some(Piece { bytes: OwnedBytes::Coalesced(tail), .. }) if tail.0.len() + room <= COALESCED_MAX
        )
    }

    #[cfg(feature = "tls")]
    fn take_tail(&mut self) -> Piece {
        let tail = self.has_tail(1).then(|| self.pieces.pop_back()).flatten();
        tail.unwrap_or_else(Piece::coalesced)
    }
}
