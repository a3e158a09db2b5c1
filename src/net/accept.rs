//! Accepting connections.
//!
//! Every accept is a one-shot operation, so the runtime takes at most one connection off the kernel's backlog per
//! operation. A multishot accept has no such bound: the kernel delivers its whole backlog before it sees a cancel.
//!
//! Accept-ahead: a driver that submits in batches (io_uring) accepts a burst of connections with few system calls. The
//! first `accept` starts one operation. If all operations of a batch have completed when the first of them is returned,
//! the next batch is twice as large, up to the listener's `accept_ahead`; otherwise it is 1 again. So the listener
//! holds at most that many connections that the program has not asked for. Other drivers accept one at a time.
//!
//! A dropped `accept` loses nothing: its operation continues and serves the next call. Dropping the listener cancels
//! its operations and resets the connections that it holds, so that their clients see an error at once.

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
use crate::on_drop::OnDrop;
use crate::sys::{Fd, Foreign, errno};
use crate::time::Instant;

/// The pause of `accept` when descriptors have run out: four attempts per second cost little and delay a client little.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// The default backlog, the same as std's and tokio's.
pub(super) const BACKLOG: u32 = 1024;

/// The default of `accept_ahead`.
const ACCEPT_AHEAD: u32 = 1;

/// How many consecutive ambiguous errors (see [`ErrorScope::Ambiguous`]) `accept` skips before it returns one.
const MAX_AMBIGUOUS: u32 = 16;

/// A listening socket.
pub(super) struct Acceptor {
    pub(super) owned: OwnedDescriptor,
    accepts: Accepts,
    /// The maximum number of operations in flight or completed but not yet returned; at least 1.
    ahead: Cell<usize>,
    /// The number of operations to start when there are none.
    batch: Cell<usize>,
    /// Set when descriptors have run out: no accept starts before this time. Stored here and not in `accept`, so that
    /// repeated calls with a timeout neither restart the pause nor repeat the report.
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

    /// Returns the next connection for which `admit` returns a value.
    pub(super) async fn accept<T>(&self, admit: impl Fn(OwnedDescriptor) -> Option<T>) -> io::Result<T> {
        let core = self.owned.core();
        let _guard = self.owned.descriptor.read.acquire().await;
        let mut ambiguous = 0;
        loop {
            if let Some(until) = self.exhausted_until.get() {
                crate::time::sleep_until(until).await;
            }
            let code = match self.next_result().await {
                Ok(fd) => {
                    self.exhausted_until.set(None);
                    ambiguous = 0;
                    let accepted = OwnedDescriptor::new(core.rc(), fd as Fd);
                    // Inherited from the listener; it affects how the runtime closes the socket.
                    accepted.descriptor.lingers.set(self.owned.descriptor.lingers.get());
                    match admit(accepted) {
                        Some(admitted) => return Ok(admitted),
                        None => continue,
                    }
                }
                Err(code) => code,
            };
            self.batch.set(1);
            match error_scope(code) {
                ErrorScope::Connection => {}
                ErrorScope::Ambiguous if ambiguous < MAX_AMBIGUOUS => ambiguous += 1,
                ErrorScope::Exhausted => {
                    // Other operations of the batch failed for the same reason: pause only once.
                    self.accepts.drop_exhausted();
                    let until = core.now() + EXHAUSTED_PAUSE;
                    if self.exhausted_until.replace(Some(until)).is_none() {
                        report(Exception::error(
                            "accept is waiting for free resources",
                            io::Error::from_raw_os_error(code),
                        ));
                    }
                }
                ErrorScope::Ambiguous | ErrorScope::Listener => return Err(from_code(code)),
            }
        }
    }

    /// The result of the next operation that completes; starts a batch if there are no operations.
    async fn next_result(&self) -> OsResult {
        // The operations continue, and a foreign waker would keep memory of its executor until the next connection.
        let _forget = OnDrop(|| self.accepts.for_each(|id| self.owned.core().forget_waker(id)));
        std::future::poll_fn(|cx| self.poll_next_result(cx)).await
    }

    fn poll_next_result(&self, cx: &mut Context<'_>) -> Poll<OsResult> {
        let core = self.owned.core();
        if core.is_forked() {
            // The operations in flight are the parent's and never complete here.
            return Poll::Ready(Err(errno::CANCELED));
        }
        loop {
            if self.accepts.is_empty() {
                let batch = match core.driver.borrow().submits_in_batches() {
                    true => self.batch.get(),
                    false => 1,
                };
                self.accepts.start(batch);
            }
            let Some(completed) = self.accepts.first_completed() else {
                self.accepts.for_each(|id| {
                    core.register_waiter(id, cx);
                });
                // Cloning the waker is user code, which may have run a turn of the loop.
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
                // Cancelled by an `into_std` that then returned the listener.
                Some(Err(errno::CANCELED)) if !core.is_closed() => {}
                Some(res) => return Poll::Ready(res),
                None => {}
            }
        }
    }

    /// Ends the operations in flight and returns the connections that they have accepted. The caller starts no further accept.
    pub(super) async fn drain<T>(&self, admit: impl Fn(OwnedDescriptor) -> Option<T>) -> Vec<T> {
        let mut ending = std::pin::pin!(self.accepts.cancel_all());
        std::future::poll_fn(|cx| {
            let ended = ending.as_mut().poll(cx);
            // An `accept` that is dropped meanwhile forgets the waker of its operation, also ours. A cancel takes a turn.
            if ended.is_pending() {
                cx.waker().wake_by_ref();
            }
            ended
        })
        .await;
        self.take_accepted(admit)
    }

    /// The connections of operations that have completed.
    pub(super) fn take_accepted<T>(&self, admit: impl Fn(OwnedDescriptor) -> Option<T>) -> Vec<T> {
        let accepted = std::iter::from_fn(|| self.accepts.take(self.accepts.first_completed()?));
        let core = self.owned.core();
        let sockets = accepted.filter_map(|result| Some(OwnedDescriptor::new(core.rc(), result.ok()? as Fd)));
        sockets.filter_map(admit).collect()
    }

    /// Releases the descriptor once no operation is in flight, unless the listener holds connections.
    pub(super) async fn release(&self) -> io::Result<Foreign> {
        if self.accepts.cancel_all().await {
            let message = "the listener holds accepted connections: accept them first";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        self.owned.release()
    }
}

/// A listener's operations in the order in which they were started. Dropping it cancels those in flight and resets the
/// connections that the others have accepted.
struct Accepts {
    descriptor: Rc<Descriptor>,
    ids: RefCell<VecDeque<OpId>>,
    /// The size of the current batch.
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
            // The tracing subscriber may drop the listener, so the operation is added to the list first.
            let op = core.start_op(&IoQueue::default(), OnOrphan::Discard, || self.descriptor.clone(), plan);
            self.ids.borrow_mut().push_back(op.id);
            core.trace(op.id);
        }
    }

    fn first_completed(&self) -> Option<usize> {
        let core = &self.descriptor.core;
        self.ids.borrow().iter().position(|&id| core.is_complete(id))
    }

    /// The size of the next batch, or `None` if it was decided when the first operation of this batch was taken.
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

    /// Takes the result of a completed operation.
    fn take(&self, at: usize) -> Option<OsResult> {
        let id = self.ids.borrow_mut().remove(at)?;
        self.descriptor.core.take_result(id)
    }

    /// Drops the results of operations that failed for lack of descriptors or memory.
    fn drop_exhausted(&self) {
        let core = &self.descriptor.core;
        self.drop_results(
            |id| matches!(core.result_of(id), Some(Err(code)) if error_scope(code) == ErrorScope::Exhausted),
        );
    }

    fn drop_results(&self, is_unwanted: impl Fn(OpId) -> bool) {
        let position = || self.ids.borrow().iter().position(|&id| is_unwanted(id));
        while let Some(at) = position() {
            self.take(at);
        }
    }

    /// Calls `act`, which may run user code (a waker's clone or destructor), without borrowing the list.
    fn for_each(&self, act: impl Fn(OpId)) {
        let mut at = 0;
        while let Some(id) = { self.ids.borrow().get(at).copied() } {
            act(id);
            at += 1;
        }
    }

    /// Cancels all operations, waits for their completion and drops failures. Returns whether connections are left.
    async fn cancel_all(&self) -> bool {
        let core = &self.descriptor.core;
        let ids = self.ids.borrow().clone();
        for &id in &ids {
            core.request_cancel(id);
        }
        for &id in &ids {
            core.completed(id).await;
        }
        self.drop_results(|id| core.is_complete(id) && !matches!(core.result_of(id), Some(Ok(_))));
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

/// What an error of accept(2) concerns.
#[derive(PartialEq, Eq)]
enum ErrorScope {
    /// One connection: Linux reports errors that were pending on it before it was accepted. The next one may succeed.
    Connection,
    /// One connection (a firewall forbids it, its protocol has no such operation) or the listener (a seccomp filter
    /// forbids accept, it is not a stream socket), which would fail forever.
    Ambiguous,
    /// The process or the system has no descriptors or no memory left.
    Exhausted,
    /// The listener.
    Listener,
}

fn error_scope(code: i32) -> ErrorScope {
    match code {
        errno::ABORTED
        | errno::PROTOCOL
        | errno::INTERRUPTED
        | errno::NETWORK_DOWN
        | errno::NO_NETWORK
        | errno::HOST_DOWN
        | errno::NO_PROTOCOL_OPTION
        | errno::HOST_UNREACHABLE
        | errno::NETWORK_UNREACHABLE => ErrorScope::Connection,
        errno::NOT_SUPPORTED | errno::NOT_PERMITTED => ErrorScope::Ambiguous,
        errno::PROCESS_FILES | errno::SYSTEM_FILES | errno::NO_BUFFERS | errno::NO_MEMORY => ErrorScope::Exhausted,
        _ => ErrorScope::Listener,
    }
}
