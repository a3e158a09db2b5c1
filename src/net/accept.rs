//! Accepting connections.
//!
//! Every accept is a one-shot operation, so the runtime takes no more connections off the kernel's backlog than it has started
//! accepts for. A multishot accept has no such bound: the kernel hands over its whole backlog before it sees a cancel.
//!
//! Accept-ahead: on a driver that submits in batches (io_uring), a burst of connections is accepted with few system calls. The
//! first `accept` starts one operation. When all operations of a batch have completed by the time that the first of them is
//! returned, the next batch is twice as large, up to the listener's `accept_ahead`; else it is one again. So at most that many
//! connections are held that the program has not asked for. Other drivers accept one at a time.
//!
//! A dropped `accept` loses nothing: its operation goes on and serves the next call. When the listener is dropped, its
//! operations are cancelled and the connections that it holds are reset, so that those clients see an error at once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::op::Op;
use crate::driver::{OpId, OsResult};
use crate::error::from_code;
use crate::event_loop::exception::{Exception, report};
use crate::inflight::OnOrphan;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::queue::IoQueue;
use crate::sys::{Fd, errno};
use crate::time::Instant;

/// How long `accept` waits when there are no descriptors left before it tries again. Long enough not to burn the
/// processor (four tries a second), short enough that clients do not notice when it is over.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Connections that the kernel may hold before they are accepted; what std and tokio ask for.
pub(super) const BACKLOG: u32 = 1024;

/// The default of `accept_ahead`.
const ACCEPT_AHEAD: u32 = 1;

/// Consecutive errors that are either one connection's or the listener's (see [`Verdict::Unclear`]) before `accept` returns
/// the error.
const MAX_UNCLEAR: u32 = 16;

/// A listening socket.
pub(super) struct Acceptor {
    pub(super) owned: OwnedDescriptor,
    accepts: Accepts,
    /// The most operations that are in flight, or have completed and not been returned; at least 1.
    ahead: Cell<usize>,
    /// How many operations to start when there are none.
    batch: Cell<usize>,
    /// No descriptors were left; before this moment no accept is started. Kept here and not in `accept`, so that an
    /// `accept` under a timeout does not start anew, and does not report again, each time.
    exhausted_until: Cell<Option<Instant>>,
}

impl Acceptor {
    pub(super) fn new(owned: OwnedDescriptor) -> Acceptor {
        Acceptor {
            accepts: Accepts {
                descriptor: owned.descriptor.clone(),
                ids: RefCell::default(),
                started: Cell::new(0),
            },
            owned,
            ahead: Cell::new(ACCEPT_AHEAD as usize),
            batch: Cell::new(1),
            exhausted_until: Cell::new(None),
        }
    }

    pub(super) fn set_ahead(&self, connections: u32) {
        let connections = (connections as usize).max(1);
        self.ahead.set(connections);
        self.batch.set(self.batch.get().min(connections));
    }

    /// The next connection that `admit` does not turn away.
    pub(super) async fn accept<T>(&self, admit: impl Fn(OwnedDescriptor) -> Option<T>) -> io::Result<T> {
        let core = self.owned.core();
        let _hold = self.owned.descriptor.read.hold().await;
        let mut unclear = 0;
        loop {
            if let Some(until) = self.exhausted_until.get() {
                crate::time::sleep_until(until).await;
            }
            let code = match self.next_outcome().await {
                Ok(fd) => {
                    self.exhausted_until.set(None);
                    unclear = 0;
                    let accepted = OwnedDescriptor::new(core.rc(), fd as Fd);
                    // The kernel gives it the listener's options, and this is one that has to be known.
                    accepted.descriptor.set_lingers(self.owned.descriptor.lingers());
                    match admit(accepted) {
                        Some(admitted) => return Ok(admitted),
                        None => continue,
                    }
                }
                Err(code) => code,
            };
            self.batch.set(1);
            match verdict(code) {
                Verdict::OneConnection => {}
                Verdict::Unclear if unclear < MAX_UNCLEAR => unclear += 1,
                Verdict::Exhausted => {
                    // Operations of the same batch have failed for the same reason: only one is to be waited for.
                    self.accepts.drop_exhausted();
                    let until = core.now() + EXHAUSTED_PAUSE;
                    if self.exhausted_until.replace(Some(until)).is_none() {
                        report(Exception::error(
                            "accept is waiting for free resources",
                            io::Error::from_raw_os_error(code),
                        ));
                    }
                }
                Verdict::Unclear | Verdict::Listener => return Err(from_code(code)),
            }
        }
    }

    /// The outcome of the next operation that completes; starts some if there are none.
    async fn next_outcome(&self) -> OsResult {
        let _forget = ForgetWakers(&self.accepts);
        std::future::poll_fn(|cx| self.poll_next_outcome(cx)).await
    }

    fn poll_next_outcome(&self, cx: &mut Context<'_>) -> Poll<OsResult> {
        let core = self.owned.core();
        loop {
            if self.accepts.is_empty() {
                let batch = match core.submits_in_batches() {
                    true => self.batch.get(),
                    false => 1,
                };
                self.accepts.start(batch);
            }
            let Some(completed) = self.accepts.first_completed() else {
                self.accepts.wake(cx);
                // Cloning the waker is foreign code, and may have turned the loop.
                if self.accepts.first_completed().is_some() {
                    continue;
                }
                return Poll::Pending;
            };
            if !core.spend_budget(cx) {
                return Poll::Pending;
            }
            if let Some(next) = self.accepts.next_batch() {
                self.batch.set(next.min(self.ahead.get()));
            }
            match self.accepts.take(completed) {
                // `into_std` has cancelled it, and then returned the listener.
                Some(Err(errno::CANCELED)) if !core.is_closed() => {}
                Some(res) => return Poll::Ready(res),
                None => {}
            }
        }
    }

    /// Gives the descriptor away once no operation is in flight, unless the listener holds connections.
    pub(super) async fn release(self) -> Result<Fd, (io::Error, Acceptor)> {
        if self.accepts.end().await {
            let why = "connections are waiting: accept them first";
            return Err((io::Error::new(io::ErrorKind::WouldBlock, why), self));
        }
        let ahead = self.ahead;
        let refused = |(error, owned)| {
            let ahead = ahead.clone();
            (
                error,
                Acceptor {
                    ahead,
                    ..Acceptor::new(owned)
                },
            )
        };
        self.owned.release().map_err(refused)
    }
}

/// A listener's operations, in the order in which they were started. Dropping it cancels those in flight and resets the
/// connections that the others have accepted.
struct Accepts {
    descriptor: Rc<Descriptor>,
    ids: RefCell<VecDeque<OpId>>,
    /// How many of them were started together.
    started: Cell<usize>,
}

impl Accepts {
    fn is_empty(&self) -> bool {
        self.ids.borrow().is_empty()
    }

    fn start(&self, count: usize) {
        let fd = self.descriptor.fd;
        self.started.set(count);
        for _ in 0..count {
            let plan = |_: &mut Rc<Descriptor>| Op::Accept { fd };
            let core = &self.descriptor.core;
            // The subscriber may drop the listener: the operation is in the list by then.
            let started = core.start_op(&IoQueue::default(), self.descriptor.clone(), 0, plan);
            self.ids.borrow_mut().push_back(started.id);
            core.trace(started);
        }
    }

    fn first_completed(&self) -> Option<usize> {
        let core = &self.descriptor.core;
        self.ids.borrow().iter().position(|&id| core.is_complete(id))
    }

    /// How large the next batch should be; `None` if that was decided when the first of this one was taken.
    fn next_batch(&self) -> Option<usize> {
        let core = &self.descriptor.core;
        let (ids, started) = (self.ids.borrow(), self.started.get());
        if ids.len() < started {
            return None;
        }
        match ids.iter().all(|&id| core.is_complete(id)) {
            true => Some(started * 2),
            false => Some(1),
        }
    }

    /// Takes the outcome of a completed operation.
    fn take(&self, at: usize) -> Option<OsResult> {
        let id = self.ids.borrow_mut().remove(at)?;
        self.descriptor.core.take_result(id)
    }

    /// Drops the outcomes of operations that have failed for want of descriptors or memory.
    fn drop_exhausted(&self) {
        let core = &self.descriptor.core;
        let is_exhausted = |id| matches!(core.result_of(id), Some(Err(code)) if verdict(code) == Verdict::Exhausted);
        let position = || self.ids.borrow().iter().position(|&id| is_exhausted(id));
        while let Some(at) = position() {
            self.take(at);
        }
    }

    /// Has the task woken when one completes.
    fn wake(&self, cx: &Context<'_>) {
        self.for_each(|id| {
            self.descriptor.core.register_waiter(id, cx.waker());
        });
    }

    /// Calls `act`, which may run foreign code (a waker's clone or destructor), with the list not borrowed.
    fn for_each(&self, act: impl Fn(OpId)) {
        let mut at = 0;
        while let Some(id) = { self.ids.borrow().get(at).copied() } {
            act(id);
            at += 1;
        }
    }

    /// Cancels what is in flight, waits until all have completed, and drops failures. Whether connections are left.
    async fn end(&self) -> bool {
        let core = &self.descriptor.core;
        let ids = self.ids.borrow().clone();
        for &id in &ids {
            core.request_cancel(id);
        }
        for &id in &ids {
            core.completed(id).await;
        }
        let has_failed = |id| core.is_complete(id) && !matches!(core.result_of(id), Some(Ok(_)));
        let position = || self.ids.borrow().iter().position(|&id| has_failed(id));
        while let Some(at) = position() {
            self.take(at);
        }
        !self.is_empty()
    }
}

impl Drop for Accepts {
    fn drop(&mut self) {
        let ids = self.ids.take();
        if ids.is_empty() {
            return;
        }
        let core = &self.descriptor.core;
        for id in ids {
            core.orphan(id, OnOrphan::Discard);
        }
        core.pump();
    }
}

/// Takes the wakers back when an `accept` is over or dropped: the operations go on, and would keep a finished task's memory
/// until the next connection.
struct ForgetWakers<'a>(&'a Accepts);

impl Drop for ForgetWakers<'_> {
    fn drop(&mut self) {
        self.0.for_each(|id| self.0.descriptor.core.forget_waker(id));
    }
}

/// What an error of accept(2) is about.
#[derive(PartialEq, Eq)]
enum Verdict {
    /// The connection: Linux reports errors that were pending on it before it was accepted. The next one may be fine.
    OneConnection,
    /// The connection (a firewall forbids it, its protocol has no such operation) or the listener (a filter forbids accept, it
    /// is not a stream socket). The latter would fail for ever.
    Unclear,
    /// The process or the system, which has no descriptors or no memory left.
    Exhausted,
    /// The listener.
    Listener,
}

fn verdict(code: i32) -> Verdict {
    match code {
        errno::ABORTED
        | errno::PROTOCOL
        | errno::INTERRUPTED
        | errno::NETWORK_DOWN
        | errno::NO_NETWORK
        | errno::HOST_DOWN
        | errno::NO_PROTOCOL_OPTION
        | errno::HOST_UNREACHABLE
        | errno::NETWORK_UNREACHABLE => Verdict::OneConnection,
        errno::NOT_SUPPORTED | errno::NOT_PERMITTED => Verdict::Unclear,
        errno::PROCESS_FILES | errno::SYSTEM_FILES | errno::NO_BUFFERS | errno::NO_MEMORY => Verdict::Exhausted,
        _ => Verdict::Listener,
    }
}
