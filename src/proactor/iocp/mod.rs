//! I/O completion ports.
//!
//! An operation is begun with an OVERLAPPED, which is the kernel's until the operation is over; then the port gives out its
//! address. Facts that shape this room:
//!
//! - The OVERLAPPED lies in the flight's scratch, with whatever else the system writes to meanwhile (`air`). A flight is told
//!   to be over only when the port has given its OVERLAPPED out, or when the call was refused and will not be heard of.
//! - An operation that ends at once is normally heard of twice: by the call and by the port. Handles are told to leave the
//!   port out of it where that can be relied on (`places`), so a read of what is there already costs one system call.
//! - Nobody's buffer waits with an idle connection: a managed receive is begun with no room at all, and when that ends there
//!   is something to take, into a buffer of the pool.
//! - A handle belongs to one port for as long as it is open. Windows 8.1 can take that back, which is done when a socket is
//!   given away.
//! - A send that was begun overlapped and is cancelled leaves the connection in a state that nobody knows: some of it may be
//!   gone, and Windows does not say how much. So a send takes at once what there is room for, and if there is none waits for
//!   room, not in the kernel's queue: its count is exact, and a cancel loses nothing. Datagrams are received in the same way:
//!   of one that does not fit nobody can say for sure whether the port tells, when the call has told already.
//! - Pipes hold a buffer while they wait: of these a program has few.
//! - Waiting for readiness is no operation of Winsock's. The driver below it has one, which every event library uses (`afd`).
//! - The port waits in steps of the system's clock, 15.6 ms unless somebody asked for less. A timer of high resolution, which
//!   interrupts the wait by an APC, does better (`timer`).
//! - A cancel is a request about one OVERLAPPED. What has ended by then is given out by the port as it ended.

mod afd;
mod complete;
mod extensions;
mod fd_table;
mod overlapped;
mod port;
mod start;
mod timer;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use windows_sys::Win32::System::IO::CancelIoEx;

use self::afd::Afd;
use self::extensions::Extensions;
use self::fd_table::FdTable;
use self::overlapped::Air;
use self::port::{Batch, Fetched, Port};
use self::timer::Timer;
use crate::driver::op::{Medium, Op};
use crate::driver::poll_throttle::PollThrottle;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, OpId, OsResult, Reply,
    Scratch, Settings, Start, Wait,
};
use crate::sys::{self, Fd, Instant};

pub(crate) struct Iocp {
    port: Arc<Port>,
    batch: Batch,
    air: Air,
    fds: FdTable,
    extensions: Extensions,
    afd: Option<Afd>,
    timer: Timer,
    throttle: PollThrottle,
    /// What was found ready as it was asked for.
    done: Vec<Completion>,
    pool: Option<Rc<BufferPool>>,
    settings: Settings,
    reason: String,
    counters: DriverCounters,
}

impl Iocp {
    pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Iocp> {
        Ok(Iocp {
            port: Arc::new(Port::open()?),
            batch: Batch::new(),
            air: Air::default(),
            fds: FdTable::default(),
            extensions: Extensions::default(),
            afd: None,
            timer: Timer::new(),
            throttle: PollThrottle::new(),
            done: Vec::new(),
            pool: None,
            settings: *settings,
            reason: reason.to_owned(),
            counters: DriverCounters::default(),
        })
    }
}

// SAFETY: a flight's memory is the kernel's from the call that begins its operation until the port gives its OVERLAPPED out,
// or until the call says that it has ended and that the port will not. Only then is its landing told, once: the entry in
// `air` goes with it.
unsafe impl Driver for Iocp {
    fn describe(&self) -> Description {
        Description::new("iocp", self.timer.names(), self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            // Whoever comes under this number next is somebody else.
            Control::Close { fd } | Control::Reset { fd } => self.fds.forget(fd),
            // What is under way would be lost with it.
            Control::Forget { fd } if self.air.is_used(sys::handle(fd)) => {}
            Control::Forget { fd } => self.fds.give_away(fd),
            Control::Adopt { fd } => self.fds.forget_if_gone(fd),
            _ => {}
        }
        let watched = match call {
            Control::Watch { fd } => Some(fd),
            _ => None,
        };
        let reply = driver::control(call);
        if let Ok(Reply::Fd(fd)) = reply {
            self.fds.forget(fd);
        }
        if let (Some(fd), Err(error)) = (watched, &reply)
            && crate::sys::os_code(error) == Some(sys::errno::NOT_PERMITTED)
        {
            // A standard stream that is no socket. Others share it, and would share our port.
            self.fds.leave_plain(fd);
        }
        reply
    }

    unsafe fn start(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start {
        self.counters.submissions += 1;
        // SAFETY: the caller's promise is the same.
        let start = unsafe { self.begin(id, op, scratch) };
        self.counters.completions += u64::from(matches!(start, Start::Done(_)));
        start
    }

    unsafe fn attempt(&mut self, op: Op, _: bool) -> Option<OsResult> {
        let res = match op {
            Op::Send { fd, medium, .. } | Op::SendVectored { fd, medium, .. } if fd >= 0 && medium != Medium::Pipe => {
                // SAFETY: the caller's promise: it is there until this returns, and the call is over then.
                unsafe { driver::perform(op) }?
            }
            _ => return None,
        };
        self.counters.submissions += 1;
        self.counters.completions += 1;
        Some(res)
    }

    fn cancel(&mut self, id: OpId) {
        let Some((handle, overlapped)) = self.air.request_cancel(id) else {
            self.counters.late_cancels += 1;
            return;
        };
        self.counters.submissions += 1;
        // SAFETY: the operation is in the air, so its handle is open and its OVERLAPPED is there; the call reads neither,
        // but looks for an operation of that address.
        if unsafe { CancelIoEx(handle, overlapped) } == 0 {
            // It has ended, and waits in the port.
            self.counters.late_cancels += 1;
        }
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        // What is here already is served before anybody sleeps.
        let wait = match self.done.is_empty() || wait == Wait::Look {
            true => wait,
            false => Wait::No,
        };
        self.counters.completions += self.done.len() as u64;
        completed.append(&mut self.done);
        if wait == Wait::No && !self.throttle.is_due() {
            self.counters.spins += u64::from(completed.is_empty());
            return Ok(());
        }
        let (mut milliseconds, mut alertable) = self.timer.set(wait);
        loop {
            self.counters.enters += 1;
            let fetched = self.batch.fetch(&self.port, milliseconds, alertable)?;
            if alertable {
                self.timer.heard(fetched);
            }
            // Whatever more there is, is there already.
            (milliseconds, alertable) = (0, false);
            for index in 0..self.batch.len() {
                self.counters.completions += 1;
                let (overlapped, count) = self.batch.at(index);
                // Without one it is the notifier's.
                if !overlapped.is_null() {
                    // SAFETY: the port has given this OVERLAPPED out, so it is one of ours, and the kernel is done with it.
                    unsafe { self.complete(overlapped, count, completed) };
                }
            }
            if fetched != Fetched::Full {
                break;
            }
            // More is there than one batch holds; the next turn takes it.
            if completed.len() >= port::BATCH {
                break;
            }
        }
        self.throttle.asked();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // An outer loop watches the port.
        if !self.done.is_empty() {
            self.port.notify();
        }
        Ok(())
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        Ok(self.port.number())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.port.clone()
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Kernel
    }
}
