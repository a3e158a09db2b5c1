//! The state shared by a protocol's transport handles, its task and its server, and how a connection ends.
//!
//! One implementation serves connections, datagram endpoints and subprocesses. The task is the only caller of the
//! protocol. Transport calls only record a request here and wake the task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::condition::Condition;
use super::server::Registration;
use crate::event_loop::exception::{Exception, guard, report};
use crate::io::ManagedBuf;
use crate::io::waker_cell::WakerCell;
use crate::io::write_buffer::SendQueue;
use crate::on_drop::OnDrop;
use crate::task::yield_now;

/// The callbacks common to every kind of protocol, like asyncio's `BaseProtocol`.
pub(super) trait BaseProtocol {
    /// The send queue.
    type Queue: SendQueue + Default;
    /// Data that outlives the connection, such as addresses.
    type Info;

    fn connection_made(&mut self, state: Rc<TransportState<Self>>);
    fn pause_writing(&mut self);
    fn resume_writing(&mut self);
    fn connection_lost(&mut self, error: Option<io::Error>);
}

/// A recorded request to close.
enum CloseRequest {
    None,
    /// Close when everything is sent.
    AfterFlush,
    /// Close immediately and report this error.
    Now(Option<io::Error>),
}

/// How to close the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseMode {
    Normal,
    Reset,
}

/// The shared state of one transport.
pub(super) struct TransportState<P: BaseProtocol + ?Sized> {
    pub(super) write_buffer: P::Queue,
    pub(super) info: P::Info,
    protocol: RefCell<Option<Rc<RefCell<P>>>>,
    /// False while paused.
    pub(super) is_reading: Cell<bool>,
    close_request: RefCell<CloseRequest>,
    /// The poll of the task during which the close was requested.
    close_requested_in: Cell<u64>,
    close_mode: Cell<CloseMode>,
    /// `connection_lost` was called, or the loop has closed and it never will be.
    pub(super) is_lost: Cell<bool>,
    /// The last pause state reported to the protocol.
    reported_paused: Cell<bool>,
    /// The number of polls of the task so far.
    polls: Cell<u64>,
    /// The task is being polled: it handles new requests without a wake-up.
    in_poll: Cell<bool>,
    /// The sender has finished for good.
    is_flushed: Cell<bool>,
    /// The poll in which the protocol last received data.
    delivered_in: Cell<u64>,
    /// Notified after `connection_made` and when the transport is lost.
    pub(super) changed: Condition,
    /// The waker of the task.
    pub(super) waker: WakerCell,
}

impl<P: BaseProtocol + ?Sized> TransportState<P> {
    pub(super) fn new(protocol: Rc<RefCell<P>>, info: P::Info) -> Rc<TransportState<P>> {
        Rc::new(TransportState {
            write_buffer: P::Queue::default(),
            info,
            protocol: RefCell::new(Some(protocol)),
            is_reading: Cell::new(true),
            close_request: RefCell::new(CloseRequest::None),
            close_requested_in: Cell::new(0),
            close_mode: Cell::new(CloseMode::Normal),
            is_lost: Cell::new(false),
            reported_paused: Cell::new(false),
            polls: Cell::new(0),
            in_poll: Cell::new(false),
            is_flushed: Cell::new(false),
            delivered_in: Cell::new(0),
            changed: Condition::default(),
            waker: WakerCell::default(),
        })
    }

    // Called by the transport.

    pub(super) fn set_protocol(&self, protocol: Rc<RefCell<P>>) {
        if self.is_lost.get() {
            return;
        }
        let old = self.protocol.replace(Some(protocol));
        guard("a protocol's destructor", || drop(old));
    }

    pub(super) fn close(&self) {
        let mut close_request = self.close_request.borrow_mut();
        if let CloseRequest::None = *close_request {
            *close_request = CloseRequest::AfterFlush;
            drop(close_request);
            self.write_buffer.close();
            self.close_requested_in.set(self.polls.get());
            // Also during a poll: as in asyncio, the protocol is notified in a later one.
            self.waker.wake();
        }
    }

    /// Closes immediately and discards the queued data.
    pub(super) fn force_close(&self, error: Option<io::Error>, close_mode: CloseMode) {
        let mut close_request = self.close_request.borrow_mut();
        if let CloseRequest::Now(_) = *close_request {
            return;
        }
        *close_request = CloseRequest::Now(error);
        drop(close_request);
        self.close_mode.set(close_mode);
        self.write_buffer.discard();
        self.close_requested_in.set(self.polls.get());
        self.waker.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_lost.get() || !matches!(*self.close_request.borrow(), CloseRequest::None)
    }

    /// Call after queueing data. Wakes the task unless it is running or its sender is busy: both see the data anyway.
    pub(super) fn wake_sender(&self) {
        if !self.in_poll.get() && (self.write_buffer.needs_wake() || self.has_pause_to_report()) {
            self.waker.wake();
        }
    }

    pub(super) fn set_limits(&self, high: Option<usize>, low: Option<usize>) -> io::Result<()> {
        self.write_buffer.watermarks().set_limits(high, low)?;
        self.wake_sender();
        Ok(())
    }

    pub(super) fn resume_reading(&self) {
        if !self.is_reading.replace(true) {
            self.waker.wake();
        }
    }

    /// Waits until `connection_made` was called. Dropping the future calls `abandon`: the transport has no other owner
    /// yet.
    pub(super) async fn wait_made(&self, abandon: impl FnMut()) {
        let guard = OnDrop(abandon);
        self.changed
            .wait_until(|| self.polls.get() > 0 || self.is_lost.get())
            .await;
        std::mem::forget(guard);
    }

    // Called by the task.

    /// Calls the protocol. A panic is reported to the exception handler and resets the connection.
    pub(super) fn call<R>(&self, callback: &str, call: impl FnOnce(&mut P) -> R) -> Option<R> {
        let protocol = self.protocol.borrow().clone()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *protocol.borrow_mut())));
        // If the callback replaced the protocol, this is its last reference.
        guard("a protocol's destructor", || drop(protocol));
        match result {
            Ok(result) => Some(result),
            Err(payload) => {
                report(Exception::panic(&format!("a protocol's {callback}"), payload));
                let error = io::Error::other(format!("the protocol's {callback} panicked"));
                self.force_close(Some(error), CloseMode::Reset);
                None
            }
        }
    }

    /// Calls `pause_writing` or `resume_writing` if the pause state has changed.
    pub(super) fn report_pause(&self) {
        while self.has_pause_to_report() {
            let is_paused = self.write_buffer.watermarks().is_paused();
            self.reported_paused.set(is_paused);
            match is_paused {
                true => self.call("pause_writing", |protocol| protocol.pause_writing()),
                false => self.call("resume_writing", |protocol| protocol.resume_writing()),
            };
        }
    }

    fn has_pause_to_report(&self) -> bool {
        self.write_buffer.watermarks().is_paused() != self.reported_paused.get() && !self.is_force_closed()
    }

    fn is_force_closed(&self) -> bool {
        matches!(*self.close_request.borrow(), CloseRequest::Now(_))
    }

    /// The reason to finish, if closing is complete. As in asyncio, `connection_lost` comes in a later turn, so a close
    /// requested during this poll does not count yet.
    fn take_close_reason(&self) -> Option<Option<io::Error>> {
        if self.close_requested_in.get() >= self.polls.get() {
            return None;
        }
        match &mut *self.close_request.borrow_mut() {
            CloseRequest::Now(error) => Some(error.take()),
            CloseRequest::AfterFlush if self.is_flushed.get() => Some(None),
            CloseRequest::AfterFlush | CloseRequest::None => None,
        }
    }

    /// Whether a callback has left work for this poll.
    fn has_work(&self) -> bool {
        !self.is_force_closed()
            && (self.has_pause_to_report() || (self.write_buffer.needs_wake() && !self.is_flushed.get()))
    }

    pub(super) async fn wait_reading(&self) {
        // `resume_reading` wakes the task.
        poll_fn(|_| match self.is_reading.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Waits until the protocol may be passed received data: at most once per poll, and not while reading is paused.
    pub(super) async fn begin_delivery(&self, received: &mut io::Result<ManagedBuf>) {
        loop {
            if self.has_delivered() {
                yield_now().await;
            } else if !self.is_reading.get() {
                // Do not hold a pool buffer while paused.
                if let Ok(bytes) = received {
                    *bytes = std::mem::take(bytes).into_heap();
                }
                self.wait_reading().await;
            } else {
                return self.mark_delivered();
            }
        }
    }

    pub(super) fn mark_delivered(&self) {
        self.delivered_in.set(self.polls.get());
    }

    /// Whether the protocol has already received data in this poll.
    pub(super) fn has_delivered(&self) -> bool {
        self.delivered_in.get() == self.polls.get()
    }

    /// Runs both directions and returns why the connection is over. Calls `connection_made` first. The caller pins the
    /// futures: pinned here, they would be stored twice.
    pub(super) async fn run(
        self: &Rc<Self>,
        mut sending: Pin<&mut impl Future<Output = io::Result<()>>>,
        mut receiving: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<io::Error> {
        poll_fn(|cx| self.poll(cx, sending.as_mut(), receiving.as_mut())).await
    }

    /// Polls the task once; ready with the reason when the connection is over.
    fn poll(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        mut sending: Pin<&mut impl Future<Output = io::Result<()>>>,
        receiving: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<Option<io::Error>> {
        self.in_poll.set(true);
        let _in_poll = OnDrop(|| self.in_poll.set(false));
        self.polls.set(self.polls.get() + 1);
        self.waker.set(cx.waker());
        if self.polls.get() == 1 {
            self.mark_delivered();
            self.call("connection_made", |protocol| protocol.connection_made(self.clone()));
            self.changed.notify();
        }
        let mut receiving = Some(receiving);
        loop {
            self.report_pause();
            // The kernel reports a reset to one direction only; the other sees EOF or `BrokenPipe`. So poll the sender
            // before trusting an EOF, and the receiver before trusting a `BrokenPipe`.
            let mut failed = None;
            if !self.is_flushed.get() && !self.is_force_closed() {
                match sending.as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => self.is_flushed.set(true),
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                        self.is_flushed.set(true);
                        failed = Some(error);
                    }
                    Poll::Ready(Err(error)) => self.force_close(Some(error), CloseMode::Normal),
                    Poll::Pending => {}
                }
            }
            self.report_pause();
            if failed.is_none()
                && let Some(reason) = self.take_close_reason()
            {
                return Poll::Ready(reason);
            }
            match receiving.take() {
                // It never completes.
                Some(receiving) if !self.is_closing() => drop(receiving.poll(cx)),
                _ => {}
            }
            if failed.is_some() {
                self.force_close(failed, CloseMode::Normal);
            }
            if !self.has_work() {
                return Poll::Pending;
            }
        }
    }

    /// Makes the last callback and returns how to close the descriptor.
    pub(super) fn report_lost(&self, reason: Option<io::Error>) -> CloseMode {
        self.is_lost.set(true);
        self.call("connection_lost", |protocol| protocol.connection_lost(reason));
        self.close_mode.get()
    }
}

/// Owned by the task. However the task ends, including with its loop, dropping this marks the transport as lost and
/// releases the protocol, which may hold a transport: this breaks the reference cycle.
pub(super) struct TaskGuard<P: BaseProtocol + ?Sized> {
    pub(super) state: Rc<TransportState<P>>,
    /// Dropped last: `Server::wait_closed` then finds the connection gone.
    pub(super) _registration: Option<Registration>,
}

impl<P: BaseProtocol + ?Sized> Drop for TaskGuard<P> {
    fn drop(&mut self) {
        let state = &self.state;
        state.is_lost.set(true);
        state.write_buffer.discard();
        state.waker.clear();
        let protocol = state.protocol.take();
        guard("a protocol's destructor", || drop(protocol));
        state.changed.notify();
    }
}
