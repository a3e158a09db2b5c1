//! The write buffer of a transport and of a stream writer: one mechanism for both.
//!
//! Writing is a plain call: it puts bytes here and returns. Whoever sends, a task, takes what has gathered and lends it to
//! the kernel in one send, never two at once; what is written meanwhile gathers for the next. So the small writes of one
//! turn leave together, and the order is that of the calls.
//!
//! The trap is memory: a peer that does not read lets the box grow for as long as somebody writes. So it has two marks. Above
//! the high one it says stop, and it says go on only at the low one, so that the two do not chase each other. Whether the
//! writer listens is the writer's affair, as in asyncio; but it is told exactly once per crossing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, Waker};

use super::any_stream::AnyStream;
use super::link::Outgoing;
use super::payload::{Kept, Payload, Piece};
use super::watermarks::Watermarks;
use crate::event_loop::exception::guard;

/// Owned bytes that are fewer than this are copied to the end of a buffer: cheaper than a slot of their own.
const JOIN_BELOW: usize = 2 * 1024;

/// A buffer that small writes are appended to holds at most this much.
const JOINED_MAX: usize = 64 * 1024;

/// How many such buffers a thread keeps for the next writes, of whichever connection: an idle one has none.
const SPARES_MAX: usize = 64;

/// Pieces that one send carries.
const PIECES_MAX: usize = 64;

pub(crate) struct WriteBuffer {
    queue: RefCell<Queue>,
    pub(crate) watermarks: Watermarks,
    /// The peer is to see the end after what is queued.
    end_wanted: Cell<bool>,
    ended: Cell<bool>,
    /// Nothing more is taken in; the sender is done when it has sent the rest.
    closed: Cell<bool>,
    /// What is under way when this is set does not come back.
    discarded: Cell<bool>,
    /// The sender waits for something to send.
    is_idle: Cell<bool>,
    /// The sender's task.
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// For the next send of several pieces; empty.
    batch: Vec<Piece>,
}

/// What the sender does next.
enum Step {
    Send(Piece),
    SendAll(Vec<Piece>),
    End,
    Done,
}

impl WriteBuffer {
    pub(crate) fn new() -> WriteBuffer {
        WriteBuffer {
            queue: RefCell::default(),
            watermarks: Watermarks::new(),
            end_wanted: Cell::new(false),
            ended: Cell::new(false),
            closed: Cell::new(false),
            discarded: Cell::new(false),
            is_idle: Cell::new(true),
            waker: Cell::new(None),
        }
    }

    // The writer's side.

    /// Takes bytes in. Whether they are sent before the connection ends is not known yet; bytes for a box that is closed
    /// are dropped.
    pub(crate) fn put(&self, payload: impl Payload) {
        let len = payload.bytes().len();
        if len == 0 || self.closed.get() || self.end_wanted.get() {
            return;
        }
        let copied = self.queue.borrow_mut().put(payload, len);
        self.watermarks.add(len);
        // Only now: a buffer may run foreign code when it is dropped.
        drop(copied);
    }

    /// Lets the peer see the end after what is queued.
    pub(crate) fn put_end(&self) {
        if !self.closed.get() {
            self.end_wanted.set(true);
        }
    }

    pub(crate) fn has_end(&self) -> bool {
        self.end_wanted.get()
    }

    // The sender's side.

    fn has_work(&self) -> bool {
        !self.queue.borrow().pieces.is_empty() || self.closed.get() || (self.end_wanted.get() && !self.ended.get())
    }

    /// Sends whatever comes, until the box is closed and empty. Its task is that of [`set_waker`](Outgoing::set_waker).
    /// `told` is called when the size has gone down to the low mark.
    pub(crate) async fn send_all(&self, any_stream: &AnyStream, told: impl Fn()) -> io::Result<()> {
        loop {
            let step = poll_fn(|_| match self.next_step() {
                Some(step) => Poll::Ready(step),
                None => Poll::Pending,
            })
            .await;
            match step {
                Step::Send(piece) => {
                    let (result, piece) = any_stream.send(piece).await;
                    let count = taken(result)?;
                    if self.discarded.get() {
                        return Ok(());
                    }
                    let sent = self.queue.borrow_mut().give_back(piece, count);
                    guard("a buffer's destructor", || drop(sent));
                    if self.watermarks.take(count) {
                        told();
                    }
                }
                Step::SendAll(pieces) => {
                    let (result, pieces) = any_stream.send_vectored(pieces).await;
                    let count = taken(result)?;
                    if self.discarded.get() {
                        return Ok(());
                    }
                    let mut sent = self.queue.borrow_mut().give_all_back(pieces, count);
                    for piece in sent.drain(..) {
                        guard("a buffer's destructor", || drop(piece));
                    }
                    self.queue.borrow_mut().batch = sent;
                    if self.watermarks.take(count) {
                        told();
                    }
                }
                Step::End => {
                    any_stream.end().await?;
                    self.ended.set(true);
                }
                Step::Done => return Ok(()),
            }
        }
    }

    fn next_step(&self) -> Option<Step> {
        let mut queue = self.queue.borrow_mut();
        let step = match queue.pieces.len() {
            0 if self.end_wanted.get() && !self.ended.get() => Some(Step::End),
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

impl Outgoing for WriteBuffer {
    fn is_over(&self) -> bool {
        self.watermarks.is_over()
    }

    fn has_events(&self) -> bool {
        self.is_idle.get() && self.has_work()
    }

    /// Takes nothing more. The sender is done when it has sent the rest.
    fn close(&self) {
        self.closed.set(true);
    }

    /// Drops what is queued, and takes nothing more.
    fn discard(&self) {
        self.closed.set(true);
        self.discarded.set(true);
        self.end_wanted.set(false);
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

/// Keeps the waker of a task of ours.
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

fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        result => result,
    }
}

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, perhaps with room. A thread that is ending has none.
fn take_spare() -> Vec<u8> {
    SPARES
        .try_with(|spares| spares.borrow_mut().pop())
        .ok()
        .flatten()
        .unwrap_or_default()
}

fn keep_spare(mut bytes: Vec<u8>) {
    bytes.clear();
    // Growth may have made more room than was ever asked for.
    if bytes.capacity() <= 2 * JOINED_MAX {
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MAX {
                spares.push(bytes);
            }
        });
    }
}

impl Queue {
    /// Gives back what was copied.
    fn put<P: Payload>(&mut self, payload: P, len: usize) -> Option<P> {
        let is_kept = match payload.is_owned() {
            true => len >= JOIN_BELOW,
            false => len > JOINED_MAX,
        };
        if is_kept {
            self.pieces.push_back(Piece {
                kept: payload.into_kept(),
                sent: 0,
                joins: false,
            });
            return None;
        }
        let tail = match self.pieces.back_mut() {
            Some(Piece {
                kept: Kept::Vec(tail),
                joins: true,
                ..
            }) if tail.len() + len <= JOINED_MAX => tail,
            _ => {
                self.pieces.push_back(Piece {
                    kept: Kept::Vec(take_spare()),
                    sent: 0,
                    joins: true,
                });
                match self.pieces.back_mut() {
                    Some(Piece {
                        kept: Kept::Vec(tail), ..
                    }) => tail,
                    _ => unreachable!("it was just put there"),
                }
            }
        };
        tail.extend_from_slice(payload.bytes());
        Some(payload)
    }

    /// A piece of which `count` more bytes were sent: what is left comes first again. Gives what was sent, to be dropped.
    fn give_back(&mut self, mut piece: Piece, count: usize) -> Option<Piece> {
        piece.sent += count;
        if piece.left() > 0 {
            self.pieces.push_front(piece);
            return None;
        }
        match piece {
            Piece {
                kept: Kept::Vec(bytes),
                joins: true,
                ..
            } => {
                keep_spare(bytes);
                None
            }
            piece => Some(piece),
        }
    }

    /// The same for several, in order.
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
            if let Kept::Vec(bytes) = &mut piece.kept
                && piece.joins
            {
                keep_spare(std::mem::take(bytes));
                piece.sent = 0;
            }
        }
        pieces
    }
}
