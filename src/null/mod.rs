//! A driver that needs no kernel: in-memory sockets and a virtual clock.
//!
//! It is completion-based like the real ones, and takes the same liberties: an operation completes in a later poll,
//! writing through the raw pointers that it was given; a cancel is honoured only if the operation could not complete
//! first, so every "cancelled, yet done" race happens here without luck. Since nothing here is a system call, Miri can
//! run the whole core on it.
//!
//! The clock stands still while anything can run, and while a thread works for the loop (see `Driver::has_virtual_clock`).
//! When the loop wants to sleep until a deadline and no operation can
//! complete, the clock jumps there at once. When it wants to sleep for ever, the thread does sleep, until another thread
//! wakes it.

mod datagrams;
mod net;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use self::net::Network;
use crate::driver::op::{Direction, Op};
use crate::driver::pool::PoolBuffer;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, OpId, OpResult,
    OsResult, Reply, Scratch, Settings, Start, Wait,
};
use crate::sys::{Instant, Message, Name, errno};

pub(crate) struct Null {
    clock: Instant,
    network: Network,
    /// In the order in which they were started.
    pending: VecDeque<Pending>,
    pool: Option<Rc<BufferPool>>,
    alarm: Arc<Alarm>,
    settings: Settings,
    counters: DriverCounters,
}

struct Pending {
    id: OpId,
    op: Op,
    cancelled: bool,
}

impl Null {
    pub(crate) fn new(settings: &Settings) -> Null {
        Null {
            // Not zero, so that subtracting from now does not saturate by accident.
            clock: Instant::from_origin(Duration::from_secs(1)),
            network: Network::default(),
            pending: VecDeque::new(),
            pool: None,
            alarm: Arc::default(),
            settings: *settings,
            counters: DriverCounters::default(),
        }
    }

    /// Lets every operation that can complete do so; then honours the cancels. True if anything landed.
    fn advance(&mut self, completed: &mut Vec<Completion>) -> bool {
        let before = completed.len();
        let mut still_pending = VecDeque::with_capacity(self.pending.len());
        for pending in std::mem::take(&mut self.pending) {
            let op_result = match self.attempt(pending.op) {
                Some(op_result) => {
                    self.counters.late_cancels += u64::from(pending.cancelled);
                    op_result
                }
                None if pending.cancelled => OpResult::last(Err(errno::CANCELED)),
                None => {
                    still_pending.push_back(pending);
                    continue;
                }
            };
            self.counters.completions += 1;
            completed.push(Completion {
                id: pending.id,
                result: op_result,
            });
        }
        self.pending = still_pending;
        completed.len() > before
    }

    /// Carries an operation out, if it can be.
    fn attempt(&mut self, op: Op) -> Option<OpResult> {
        let res = match op {
            Op::Accept { fd } => self.network.accept(fd)?.map(|fd| fd as u32),
            Op::Connect { fd, name } => {
                // SAFETY: the flight owns the name until its completion.
                match unsafe { &*name }.as_socket() {
                    Some(addr) => self.network.connect(fd, addr)?.map(|()| 0),
                    None => Err(errno::NO_FAMILY),
                }
            }
            Op::Recv { fd, ptr, len, .. } => {
                // SAFETY: the flight owns these bytes until its completion, which has not been told yet.
                self.network.recv(fd, |bytes| unsafe { copy_out(bytes, ptr, len) })?
            }
            Op::RecvVectored { fd, slices, count, .. } => self.network.recv(fd, |bytes| {
                // SAFETY: the flight owns the slices and what they point to until its completion.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let parts = slices.iter();
                // SAFETY: as above.
                parts.map(|part| unsafe { copy_out(bytes, part.base, part.len) }).sum()
            })?,
            Op::RecvManaged { fd, .. } => return self.recv_managed(fd),
            Op::Send { fd, ptr, len, .. } => {
                // SAFETY: the flight owns these bytes until its completion.
                self.network.send(fd, unsafe { std::slice::from_raw_parts(ptr, len) })?
            }
            Op::SendVectored { fd, slices, count, .. } => self.send_vectored(fd, slices, count)?,
            Op::RecvMessage { fd, message } => {
                // SAFETY: the flight owns the message and what it points to until its completion.
                let place = unsafe { (*message).bytes() };
                // SAFETY: as above.
                unsafe { self.recv_message(fd, message, (place.base, place.len)) }?
            }
            Op::RecvMessageManaged { fd, message } => return self.recv_message_managed(fd, message),
            Op::SendMessage { fd, message, .. } => {
                // SAFETY: the flight owns the message and what it points to until its completion.
                unsafe {
                    let (bytes, to) = ((*message).bytes(), (*message).name());
                    let bytes = match bytes.len {
                        0 => &[][..],
                        len => std::slice::from_raw_parts(bytes.base, len),
                    };
                    self.network
                        .send_datagram(fd, bytes, to.and_then(|name| name.as_socket()))
                }
            }
            Op::Readiness { fd, direction } => match direction {
                _ if !self.network.is_open(fd) => Err(errno::BAD_FD),
                Direction::Read if self.network.can_recv(fd) => Ok(0),
                Direction::Write if self.network.can_send(fd) => Ok(0),
                Direction::Read | Direction::Write => return None,
            },
            // `start` leaves these to a thread.
            Op::File(_) => Err(errno::NOT_SUPPORTED),
        };
        Some(OpResult::last(res))
    }

    fn recv_managed(&mut self, fd: i32) -> Option<OpResult> {
        if !self.network.can_recv(fd) {
            return None;
        }
        let Some(mut buffer) = self.take_buffer() else {
            return Some(OpResult::last(Err(errno::NO_BUFFERS)));
        };
        let (address, len) = buffer.memory();
        // SAFETY: the buffer was just taken from the pool, so nobody else has it.
        let res = self
            .network
            .recv(fd, |bytes| unsafe { copy_out(bytes, address, len) })?;
        // SAFETY: this many of its bytes were just written.
        unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
        Some(OpResult::with_buffer(res, buffer))
    }

    fn take_buffer(&mut self) -> Option<PoolBuffer> {
        if self.pool.is_none() {
            let count = self.settings.managed_count.next_power_of_two();
            self.pool = BufferPool::new(count, self.settings.managed_len);
        }
        let buffer = self.pool.as_ref().and_then(BufferPool::take);
        self.counters.pool_empty += u64::from(buffer.is_none());
        buffer
    }

    /// Receives a datagram into a place.
    ///
    /// # Safety
    ///
    /// The flight owns the message and what it points to, and nobody else has the place.
    unsafe fn recv_message(&mut self, fd: i32, message: *mut Message, place: (*mut u8, usize)) -> Option<OsResult> {
        let (from, bytes) = match self.network.recv_datagram(fd)? {
            Ok(datagram) => datagram,
            Err(code) => return Some(Err(code)),
        };
        let count = bytes.len().min(place.1);
        // SAFETY: the caller's promise; `count` is no more than the place has.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.0, count);
            (*message).deliver(&Name::from(from), count < bytes.len());
        }
        Some(Ok(count as u32))
    }

    fn recv_message_managed(&mut self, fd: i32, message: *mut Message) -> Option<OpResult> {
        if !self.network.can_recv(fd) {
            return None;
        }
        let Some(mut buffer) = self.take_buffer() else {
            return Some(OpResult::last(Err(errno::NO_BUFFERS)));
        };
        // SAFETY: the flight owns the message until its completion, and the buffer was just taken from the pool.
        let res = unsafe { self.recv_message(fd, message, buffer.memory()) }?;
        // SAFETY: this many of its bytes were just written.
        unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
        Some(OpResult::with_buffer(res, buffer))
    }

    fn send_vectored(&mut self, fd: i32, slices: *const crate::sys::IoVec, count: usize) -> Option<OsResult> {
        // SAFETY: the flight owns the slices and what they point to until its completion.
        let slices = unsafe { std::slice::from_raw_parts(slices, count) };
        let mut sent = 0;
        for slice in slices {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(slice.base, slice.len) };
            match self.network.send(fd, bytes) {
                Some(Ok(count)) => {
                    sent += count;
                    if (count as usize) < slice.len {
                        break;
                    }
                }
                stopped if sent == 0 => return stopped,
                _ => break,
            }
        }
        Some(Ok(sent))
    }
}

/// Moves bytes from a pipe to a flight's memory.
///
/// # Safety
///
/// `len` bytes from `ptr` on may be written.
unsafe fn copy_out(bytes: &mut VecDeque<u8>, ptr: *mut u8, len: usize) -> u32 {
    let count = bytes.len().min(len);
    let (front, back) = bytes.as_slices();
    let first = front.len().min(count);
    // SAFETY: the caller's promise, for `count` bytes in all, which is at most `len`; the pipe is not the flight's memory.
    unsafe {
        std::ptr::copy_nonoverlapping(front.as_ptr(), ptr, first);
        std::ptr::copy_nonoverlapping(back.as_ptr(), ptr.add(first), count - first);
    }
    bytes.drain(..count);
    count as u32
}

// SAFETY: an operation's memory is touched only in `attempt`, and its completion is pushed right after that, once: the
// operation leaves `pending` with it.
unsafe impl Driver for Null {
    fn describe(&self) -> Description {
        Description::new(
            "null",
            vec!["virtual clock", "in-memory sockets"],
            "the program asked for a driver without a kernel",
        )
    }

    fn now(&self) -> Instant {
        self.clock
    }

    fn has_virtual_clock(&self) -> bool {
        true
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Seek { .. } => driver::control(call),
            // Files are the kernel's, and have numbers that no socket of ours has.
            Control::Close { fd } | Control::Forget { fd } if fd >= 0 => driver::control(call),
            _ => self.network.control(call).map_err(io::Error::from_raw_os_error),
        }
    }

    unsafe fn start(&mut self, id: OpId, op: Op, _scratch: *mut Scratch) -> Start {
        // Files are the kernel's even here: a thread does it.
        if op.waits_for().is_none() {
            return Start::Blocking;
        }
        self.counters.submissions += 1;
        self.pending.push_back(Pending {
            id,
            op,
            cancelled: false,
        });
        Start::Pending
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) {
            pending.cancelled = true;
        }
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let completed_any = self.advance(completed);
        match wait {
            Wait::No | Wait::Look => self.counters.spins += u64::from(!completed_any),
            _ if completed_any => {}
            Wait::Until(deadline) => {
                // A notification that has already come is not slept over.
                if !self.alarm.take() {
                    self.clock = self.clock.max(deadline);
                }
            }
            Wait::Forever => self.alarm.wait(),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.alarm.clone()
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Split
    }
}

/// How another thread ends the sleep.
#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Alarm {
    fn take(&self) -> bool {
        std::mem::take(&mut self.rung.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !*rung {
            rung = self.ringing.wait(rung).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *rung = false;
    }
}

impl Notify for Alarm {
    fn notify(&self) {
        *self.rung.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.ringing.notify_one();
    }
}
