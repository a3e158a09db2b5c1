//! The line between a protocol and its transport: what both leave word on, and how it ends.
//!
//! The same for connections, datagram endpoints and subprocesses. A line's task is the only one to call its protocol; the
//! transport's calls only set what stands here, and wake that task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::change_notify::ChangeNotify;
use super::server::Attached;
use crate::event_loop::exception::{Exception, guard, report};

/// A write buffer, as far as a line knows it.
pub(super) trait Outgoing {
    /// Whether the high mark was crossed and the low one not reached since.
    fn is_over(&self) -> bool;
    /// Whether its sender waits, and there is something for it.
    fn has_events(&self) -> bool;
    fn close(&self);
    fn discard(&self);
    fn set_waker(&self, waker: &std::task::Waker);
    fn forget_waker(&self);
    fn wake(&self);
}

/// What every kind of protocol is told by its line.
pub(super) trait Callee {
    fn pause_writing(&mut self);
    fn resume_writing(&mut self);
    fn connection_lost(&mut self, error: Option<io::Error>);
}

/// How a line is to end.
enum Ending {
    /// It is not.
    No,
    /// When everything is sent.
    Flush,
    /// Now, and this is what its protocol is told.
    Now(Option<io::Error>),
}

/// How the peer learns of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    Close,
    Reset,
}

/// What a line's handles, its task and its server share. `A` is what is known of it for as long as anybody asks.
pub(super) struct Link<P: ?Sized, Q, A> {
    pub(super) write_buffer: Q,
    pub(super) about: A,
    protocol: RefCell<Option<Rc<RefCell<P>>>>,
    /// Not paused.
    pub(super) is_reading: Cell<bool>,
    ending: RefCell<Ending>,
    /// During which poll of the task the ending was asked for.
    ending_since: Cell<u64>,
    farewell: Cell<Farewell>,
    /// The protocol was told of the end, or never will be: the loop has closed.
    is_lost: Cell<bool>,
    /// What the protocol was last told about writing: true is pause.
    reported_over: Cell<bool>,
    /// Polls of the task so far.
    polls: Cell<u64>,
    /// The task is being polled, and will see by itself what is asked for now.
    in_poll: Cell<bool>,
    /// The sender has nothing more to send, and never will.
    is_flushed: Cell<bool>,
    /// In which poll the protocol was last called with something received.
    delivered_in: Cell<u64>,
    /// Rung when the line is made and when it is lost.
    pub(super) changed: ChangeNotify,
}

impl<P: Callee + ?Sized, Q: Outgoing, A> Link<P, Q, A> {
    pub(super) fn new(protocol: Rc<RefCell<P>>, write_buffer: Q, about: A) -> Link<P, Q, A> {
        Link {
            write_buffer,
            about,
            protocol: RefCell::new(Some(protocol)),
            is_reading: Cell::new(true),
            ending: RefCell::new(Ending::No),
            ending_since: Cell::new(0),
            farewell: Cell::new(Farewell::Close),
            is_lost: Cell::new(false),
            reported_over: Cell::new(false),
            polls: Cell::new(0),
            in_poll: Cell::new(false),
            is_flushed: Cell::new(false),
            delivered_in: Cell::new(0),
            changed: ChangeNotify::default(),
        }
    }

    // The transport's side.

    pub(super) fn set_protocol(&self, protocol: Rc<RefCell<P>>) {
        if self.is_lost.get() {
            return;
        }
        let old = self.protocol.replace(Some(protocol));
        guard("a protocol's destructor", || drop(old));
    }

    pub(super) fn close(&self) {
        let mut ending = self.ending.borrow_mut();
        if let Ending::No = *ending {
            *ending = Ending::Flush;
            drop(ending);
            self.write_buffer.close();
            self.ending_since.set(self.polls.get());
            // Also in a poll: the next one tells the protocol, in the order of the calls.
            self.write_buffer.wake();
        }
    }

    /// Ends the line without sending what is queued.
    pub(super) fn end(&self, error: Option<io::Error>, farewell: Farewell) {
        let mut ending = self.ending.borrow_mut();
        if let Ending::Now(_) = *ending {
            return;
        }
        *ending = Ending::Now(error);
        drop(ending);
        self.farewell.set(farewell);
        self.write_buffer.discard();
        self.ending_since.set(self.polls.get());
        self.write_buffer.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_lost.get() || !matches!(*self.ending.borrow(), Ending::No)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Something was put into the outbox. If the task runs, or the sender is busy, it is seen without this.
    pub(super) fn wake_sender(&self) {
        if !self.in_poll.get() && (self.write_buffer.has_events() || self.has_flow_to_report()) {
            self.write_buffer.wake();
        }
    }

    // The task's side.

    /// Calls the protocol. A panic is told to the exception handler, and ends this line.
    pub(super) fn call<R>(&self, what: &str, call: impl FnOnce(&mut P) -> R) -> Option<R> {
        let protocol = self.protocol.borrow().clone()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *protocol.borrow_mut())));
        // If it was swapped meanwhile, this is the last share of it.
        guard("a protocol's destructor", || drop(protocol));
        match result {
            Ok(result) => Some(result),
            Err(payload) => {
                report(Exception::panic(&format!("a protocol's {what}"), payload));
                let error = io::Error::other(format!("the protocol's {what} panicked"));
                self.end(Some(error), Farewell::Reset);
                None
            }
        }
    }

    /// Tells the protocol to pause or resume writing, if it does not know yet.
    pub(super) fn report_flow(&self) {
        while self.has_flow_to_report() {
            let is_over = self.write_buffer.is_over();
            self.reported_over.set(is_over);
            match is_over {
                true => self.call("pause_writing", |protocol| protocol.pause_writing()),
                false => self.call("resume_writing", |protocol| protocol.resume_writing()),
            };
        }
    }

    fn has_flow_to_report(&self) -> bool {
        self.write_buffer.is_over() != self.reported_over.get() && !self.is_ending_now()
    }

    fn is_ending_now(&self) -> bool {
        matches!(*self.ending.borrow(), Ending::Now(_))
    }

    /// Why the line is over, if it is, and if that was asked for before this poll of its task: as in asyncio the protocol
    /// hears of it in a later turn.
    fn reason_to_go(&self) -> Option<Option<io::Error>> {
        if self.ending_since.get() >= self.polls.get() {
            return None;
        }
        match &mut *self.ending.borrow_mut() {
            Ending::Now(error) => Some(error.take()),
            Ending::Flush if self.is_flushed.get() => Some(None),
            Ending::Flush | Ending::No => None,
        }
    }

    /// Whether a callback has left something to do in this poll.
    fn has_work(&self) -> bool {
        !self.is_ending_now()
            && (self.has_flow_to_report() || (self.write_buffer.has_events() && !self.is_flushed.get()))
    }

    pub(super) fn is_made(&self) -> bool {
        self.polls.get() > 0
    }

    pub(super) async fn until_reading(&self) {
        // Resuming wakes the task.
        poll_fn(|_| match self.is_reading.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    pub(super) fn note_delivery(&self) {
        self.delivered_in.set(self.polls.get());
    }

    /// Whether the protocol was called with something received in this poll already.
    pub(super) fn has_delivered(&self) -> bool {
        self.delivered_in.get() == self.polls.get()
    }

    /// One poll of the task: gives the reason when the line is over. `made` is called in the first.
    pub(super) fn poll(
        &self,
        cx: &mut Context<'_>,
        made: impl FnOnce(),
        mut sending: Pin<&mut impl Future<Output = io::Result<()>>>,
        receiving: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<Option<io::Error>> {
        let _in_poll = InPoll::new(&self.in_poll);
        self.polls.set(self.polls.get() + 1);
        self.write_buffer.set_waker(cx.waker());
        if self.polls.get() == 1 {
            self.note_delivery();
            made();
            self.changed.ring();
        }
        let mut receiving = Some(receiving);
        loop {
            self.report_flow();
            // Of a reset, the kernel tells only one direction. To the other it is a mere end, or a broken pipe: so sending
            // comes before that end is believed, and receiving before that broken pipe is.
            let mut failed = None;
            if !self.is_flushed.get() && !self.is_ending_now() {
                match sending.as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => self.is_flushed.set(true),
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                        self.is_flushed.set(true);
                        failed = Some(error);
                    }
                    Poll::Ready(Err(error)) => self.end(Some(error), Farewell::Close),
                    Poll::Pending => {}
                }
            }
            self.report_flow();
            if failed.is_none()
                && let Some(reason) = self.reason_to_go()
            {
                return Poll::Ready(reason);
            }
            match receiving.take() {
                // It never ends.
                Some(receiving) if !self.is_closing() => drop(receiving.poll(cx)),
                _ => {}
            }
            if failed.is_some() {
                self.end(failed, Farewell::Close);
            }
            if !self.has_work() {
                return Poll::Pending;
            }
        }
    }

    /// The last callback; says how the peer is to learn of the end.
    pub(super) fn report_lost(&self, reason: Option<io::Error>) -> Farewell {
        self.is_lost.set(true);
        self.call("connection_lost", |protocol| protocol.connection_lost(reason));
        self.farewell.get()
    }
}

/// The task's hold on its line. However the task ends, also with its loop, the line is lost then, and the protocol, which
/// may hold the transport, is let go.
pub(super) struct Presence<P: Callee + ?Sized, Q: Outgoing, A> {
    pub(super) link: Rc<Link<P, Q, A>>,
    /// Dropped last: who waits for a server's connections finds them gone.
    pub(super) _attached: Option<Attached>,
}

impl<P: Callee + ?Sized, Q: Outgoing, A> Drop for Presence<P, Q, A> {
    fn drop(&mut self) {
        let link = &self.link;
        link.is_lost.set(true);
        link.write_buffer.discard();
        link.write_buffer.forget_waker();
        let protocol = link.protocol.take();
        guard("a protocol's destructor", || drop(protocol));
        link.changed.ring();
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
