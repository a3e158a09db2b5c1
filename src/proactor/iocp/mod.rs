//! The I/O completion port driver (experimental: tested under Wine, never on Windows itself).
//!
//! A call starts an operation with an OVERLAPPED. The kernel owns it until the operation ends, and then queues a
//! packet with its address on the port. Kernel facts that shape this driver:
//!
//! - The OVERLAPPED lies in the operation's scratch, with other memory that the system writes to (`overlapped`). An
//!   operation completes when the port returns its OVERLAPPED, or when its call ends without queueing a packet.
//! - An operation that succeeds at once still queues a packet by default. `fd_table` turns that off (skip-on-success)
//!   for handles where Windows does so reliably: a read of data that is already there costs one system call.
//! - An overlapped receive pins its buffer while the connection is idle. So a managed receive starts with zero bytes;
//!   when it completes there is data, and the driver receives it into a pool buffer.
//! - A handle stays associated with its port until it is closed. Windows 8.1 and later can undo that; the driver does
//!   so when a socket is given away.
//! - A cancelled overlapped send may have sent some of its bytes, and Windows does not say how many. So the driver
//!   sends without blocking and waits for writability in between: a cancel loses nothing, and counts are exact.
//! - A datagram that does not fit its buffer ends the call with an error and may or may not queue a packet as well. So
//!   datagrams, too, are received without blocking once the socket is readable.
//! - A pipe read holds its buffer while it waits: a program has few pipes.
//! - Winsock has no overlapped wait for readiness. AFD, the driver below it, has one (`afd`).
//! - The port's timeout follows the system clock's tick, 15.6 ms by default. A high-resolution timer, whose APC
//!   interrupts the wait, is more precise (`timer`).
//! - A cancel is a request for one OVERLAPPED. An operation that has ended keeps its result.

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

use windows_sys::Win32::System::IO::{CancelIoEx, OVERLAPPED_ENTRY};

use self::afd::Afd;
use self::extensions::Extensions;
use self::fd_table::FdTable;
use self::overlapped::InFlightTable;
use self::port::{Dequeued, Port};
use self::timer::Timer;
use crate::driver::op::{Direction, Medium, Op};
use crate::driver::poll_throttle::PollThrottle;
use crate::driver::pool::ProvidedPool;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, MessageEntry, Notify, OpId,
    OsResult, Reply, Scratch, Start, Wait,
};
use crate::sys::{self, Fd, Instant};

pub(crate) struct Iocp {
    port: Arc<Port>,
    /// The packets dequeued last.
    packets: Vec<OVERLAPPED_ENTRY>,
    in_flight: InFlightTable,
    fds: FdTable,
    extensions: Extensions,
    afd: Option<Afd>,
    timer: Timer,
    throttle: PollThrottle,
    /// Readiness operations that were ready when they were started.
    done: Vec<Completion>,
    pool: ProvidedPool,
    reason: String,
    counters: DriverCounters,
}

impl Iocp {
    pub(crate) fn open(reason: &str) -> io::Result<Iocp> {
        Ok(Iocp {
            port: Arc::new(Port::open()?),
            packets: Vec::with_capacity(port::BATCH),
            in_flight: InFlightTable::default(),
            fds: FdTable::default(),
            extensions: Extensions::default(),
            afd: None,
            timer: Timer::new(),
            throttle: PollThrottle::new(),
            done: Vec::new(),
            pool: ProvidedPool::default(),
            reason: reason.to_owned(),
            counters: DriverCounters::default(),
        })
    }
}

// SAFETY: the kernel may use an operation's memory from the call that starts it until the port returns its OVERLAPPED,
// or until the call reports its end and queues no packet. Only then does the driver report the completion, and only
// once: it removes the operation from `in_flight` at the same time.
unsafe impl Driver for Iocp {
    fn describe(&self) -> Description {
        Description::new("iocp", self.timer.names(), self.reason.clone())
    }

    fn now(&self) -> Instant {
        sys::monotonic()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            // The next handle with this number is a different one.
            Control::Close { fd } | Control::Reset { fd } => self.fds.forget(fd),
            // Without the association, operations in flight would never complete.
            Control::Forget { fd } if self.in_flight.uses(sys::handle(fd)) => {}
            Control::Forget { fd } => self.fds.release(fd),
            Control::Adopt { fd } => self.fds.forget_unless_released(fd),
            _ => {}
        }
        let reply = driver::control(call);
        match (call, &reply) {
            (_, &Ok(Reply::Fd(fd))) => self.fds.forget(fd),
            (_, &Ok(Reply::Pair(one, other))) => {
                self.fds.forget(one);
                self.fds.forget(other);
            }
            // A standard stream that is not a socket. Other processes share it, and would share the association.
            (Control::Watch { fd }, Err(error)) if sys::os_code(error) == Some(sys::errno::NOT_PERMITTED) => {
                self.fds.mark_plain(fd);
            }
            _ => {}
        }
        reply
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        self.counters.submissions += 1;
        // SAFETY: the caller's promise.
        let start = unsafe { self.begin(id, op, scratch) };
        self.counters.completions += u64::from(matches!(start, Start::Done(_)));
        start
    }

    fn tries_first(&self) -> bool {
        true
    }

    unsafe fn attempt(&mut self, op: &Op, _: bool) -> Option<OsResult> {
        let res = match *op {
            Op::Send { fd, medium, .. } | Op::SendVectored { fd, medium, .. } if fd >= 0 && medium != Medium::Pipe => {
                // SAFETY: the caller's promise: the memory is valid until this returns, and the call has ended by then.
                unsafe { driver::perform(op) }?
            }
            _ => return None,
        };
        self.counters.submissions += 1;
        self.counters.completions += 1;
        Some(res)
    }

    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { driver::perform_batch(fd, Direction::Read, entries, &mut self.counters) }
    }

    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { driver::perform_batch(fd, Direction::Write, entries, &mut self.counters) }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.pool.0 = Some(pool.clone());
        true
    }

    fn cancel(&mut self, id: OpId, _: &Op) {
        let Some(entry) = self.in_flight.entry(id) else {
            self.counters.late_cancels += 1;
            return;
        };
        entry.is_cancelled = true;
        self.counters.submissions += 1;
        // SAFETY: the operation is in flight, so its handle is open; the OVERLAPPED's address is only compared.
        if unsafe { CancelIoEx(entry.handle, entry.overlapped) } == 0 {
            // It has ended: its packet is on the port.
            self.counters.late_cancels += 1;
        }
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        // Completions that are already here are handled before blocking.
        let wait = wait.unless_done(&self.done);
        self.counters.completions += self.done.len() as u64;
        completed.append(&mut self.done);
        if wait == Wait::No && !self.throttle.is_due() {
            self.counters.spins += u64::from(completed.is_empty());
            return Ok(());
        }
        let (mut milliseconds, mut alertable) = self.timer.set(wait);
        loop {
            self.counters.enters += 1;
            let dequeued = self.port.dequeue(&mut self.packets, milliseconds, alertable);
            if alertable {
                // After a failed wait the timer may have fired already: it is set again.
                let end = dequeued.as_ref().unwrap_or(&Dequeued::TimerFired);
                self.timer.on_wait_end(*end);
            }
            let dequeued = dequeued?;
            // Further batches are already on the port: do not wait.
            (milliseconds, alertable) = (0, false);
            for index in 0..self.packets.len() {
                self.counters.completions += 1;
                let packet = self.packets[index];
                // Null: a notification.
                if !packet.lpOverlapped.is_null() {
                    // SAFETY: the port returned this OVERLAPPED, so it is one of ours, and the kernel has finished.
                    unsafe { self.complete(packet.lpOverlapped, packet.dwNumberOfBytesTransferred, completed) };
                }
            }
            // Beyond a batch, the loop runs the completions first; the next turn dequeues more.
            if dequeued != Dequeued::Full || completed.len() >= port::BATCH {
                break;
            }
        }
        self.throttle.polled();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // An outer loop watches the port, so completions outside of it must be announced there.
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
