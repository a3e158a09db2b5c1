//! Taking connections off a listening socket.
//!
//! The accept lane holds one multishot flight, which outlives the `accept` calls that use it: the kernel's backlog drains
//! into a queue, and a dropped `accept` loses none of it. When the queue holds 128 connections the multishot is cancelled,
//! and started again when it is empty. A kernel that finds its backlog full hands over the whole of it before it sees the
//! cancel, so the queue holds at most 128 and one backlog (1,024) more. What is still queued when the listener is dropped
//! is reset, so that those clients learn of it.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use crate::descriptor::OwnedDescriptor;
use crate::driver::{FlightId, Landing};
use crate::error::from_code;
use crate::exception::{Exception, report};
use crate::flight::NextLanding;
use crate::loop_core::LoopCore;
use crate::op::Op;
use crate::sys::{Fd, errno};
use crate::time::Instant;

/// How long `accept` waits when there are no descriptors left before it tries again. Long enough not to burn the
/// processor (four tries a second), short enough that clients do not notice when it is over.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Connections that the kernel may hold before they are accepted; what std and tokio ask for.
pub(super) const BACKLOG: u32 = 1024;

/// A listening socket.
pub(super) struct Acceptor {
    pub(super) owned: OwnedDescriptor,
    /// No descriptors were left; before this moment nobody tries again. Kept here and not in `accept`, so that an
    /// `accept` under a timeout does not start anew, and does not tell again, each time.
    exhausted_until: Cell<Option<Instant>>,
}

impl Acceptor {
    pub(super) fn new(owned: OwnedDescriptor) -> Acceptor {
        Acceptor {
            owned,
            exhausted_until: Cell::new(None),
        }
    }

    /// The next connection that `admit` does not turn away.
    pub(super) async fn accept<T>(&self, admit: impl Fn(OwnedDescriptor) -> Option<T>) -> io::Result<T> {
        let core = self.owned.core();
        let _hold = self.owned.descriptor.read.hold().await;
        loop {
            if let Some(until) = self.exhausted_until.get() {
                crate::time::sleep_until(until).await;
            }
            let landing = self.next_landing().await;
            match landing.outcome {
                Ok(fd) => {
                    self.exhausted_until.set(None);
                    let accepted = OwnedDescriptor::new(core.rc(), fd as Fd);
                    // The kernel gives it the listener's options, and this is one that has to be known.
                    accepted.descriptor.set_lingers(self.owned.descriptor.lingers());
                    if let Some(admitted) = admit(accepted) {
                        return Ok(admitted);
                    }
                }
                Err(code) if is_passing(code) => {}
                Err(code) if is_exhaustion(code) => {
                    let until = core.now() + EXHAUSTED_PAUSE;
                    if self.exhausted_until.replace(Some(until)).is_none() {
                        report(Exception::error(
                            "accept is waiting for free resources",
                            io::Error::from_raw_os_error(code),
                        ));
                    }
                }
                Err(code) => return Err(from_code(code)),
            }
        }
    }

    /// What the multishot lands next; starts it if it is not in the air.
    async fn next_landing(&self) -> Landing {
        let descriptor = &self.owned.descriptor;
        let lane = &descriptor.read;
        let core = self.owned.core();
        loop {
            let id = match lane.flight.get() {
                Some(id) => id,
                None => {
                    let fd = descriptor.fd;
                    core.launch(lane, descriptor.clone(), 0, |_| Op::Accept { fd })
                }
            };
            let _waker = WakerBack { core, id };
            let next = std::future::poll_fn(|cx| {
                let next = std::task::ready!(core.poll_next_landing(id, cx));
                if !matches!(next, NextLanding::More(_)) {
                    lane.flight.set(None);
                }
                std::task::Poll::Ready(next)
            })
            .await;
            match next {
                NextLanding::More(landing) => return landing,
                // The bounded queue was full and is empty now, or the driver lands one at a time.
                NextLanding::Last(landing) if landing.outcome == Err(errno::CANCELED) && !core.is_closed() => {}
                NextLanding::Last(landing) => return landing,
                NextLanding::Gone => {}
            }
        }
    }

    /// Gives the descriptor away, once the kernel has stopped handing over connections, unless it had handed over some.
    pub(super) async fn release(self) -> Result<Fd, (io::Error, Acceptor)> {
        let lane = &self.owned.descriptor.read;
        if let Some(id) = lane.flight.get() {
            let core = self.owned.core();
            core.ask_to_end(id);
            core.landed(id).await;
            if core.holds_connection(id) {
                let why = "connections are waiting: accept them first";
                return Err((io::Error::new(io::ErrorKind::WouldBlock, why), self));
            }
        }
        let refused = |(error, owned)| (error, Acceptor::new(owned));
        self.owned.release().map_err(refused)
    }
}

/// Takes the waker back when an `accept` is over or dropped: the flight goes on, and would keep a finished task's memory
/// until the next connection.
struct WakerBack<'a> {
    core: &'a LoopCore,
    id: FlightId,
}

impl Drop for WakerBack<'_> {
    fn drop(&mut self) {
        self.core.forget_waker(self.id);
    }
}

/// Errors of one connection, not of the listener: Linux passes on what happened to the connection before it was
/// accepted.
fn is_passing(code: i32) -> bool {
    matches!(
        code,
        errno::ABORTED
            | errno::PROTOCOL
            | errno::INTERRUPTED
            | errno::NETWORK_DOWN
            | errno::HOST_DOWN
            | errno::NO_PROTOCOL_OPTION
            | errno::HOST_UNREACHABLE
            | errno::NETWORK_UNREACHABLE
    )
}

fn is_exhaustion(code: i32) -> bool {
    matches!(
        code,
        errno::PROCESS_FILES | errno::SYSTEM_FILES | errno::NO_BUFFERS | errno::NO_MEMORY
    )
}
