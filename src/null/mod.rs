//! A driver without a kernel, for tests: in-memory sockets and a virtual clock.
//!
//! It is the worst case of a completion-based driver, and deterministic. An operation completes in a later poll, and
//! writes through its raw pointers then. An operation that can complete wins over its cancel, so the "cancelled, but
//! completed" race always happens. Sockets and time need no system call, so Miri can run the core.
//!
//! The clock stands still while a task can run, and while a thread works for the loop (see
//! `Driver::has_virtual_clock`). When the loop waits for a deadline and no operation can complete, the clock jumps to
//! the deadline. When the loop waits without a deadline, the thread blocks until another thread notifies it.

mod datagrams;
mod net;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use self::net::Network;
use crate::driver::op::{Direction, Op};
use crate::driver::pool::ProvidedPool;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, OpId, OpResult,
    OsResult, Reply, Scratch, Start, Wait,
};
use crate::sys::{Instant, IoVec, Message, Name, errno, lock};

pub(crate) struct Null {
    /// Why this driver was chosen.
    reason: &'static str,
    clock: Instant,
    network: Network,
    /// In the order of their start.
    pending: VecDeque<Pending>,
    pool: ProvidedPool,
    notifier: Arc<Notifier>,
    counters: DriverCounters,
}

struct Pending {
    id: OpId,
    /// In place until the operation completes.
    op: *const Op,
    cancelled: bool,
}

impl Null {
    pub(crate) fn new(reason: &'static str) -> Null {
        Null {
            reason,
            // Not zero, so that `now - duration` does not saturate by accident.
            clock: Instant::from_origin(Duration::from_secs(1)),
            network: Network::default(),
            pending: VecDeque::new(),
            pool: ProvidedPool::default(),
            notifier: Arc::default(),
            counters: DriverCounters::default(),
        }
    }

    /// Completes every operation that can complete, and of the others those that were cancelled. True if any completed.
    fn advance(&mut self, completed: &mut Vec<Completion>) -> bool {
        let before = completed.len();
        let mut still_pending = VecDeque::with_capacity(self.pending.len());
        for pending in std::mem::take(&mut self.pending) {
            // SAFETY: the operation has not completed, so its op and the memory that it points to are in place.
            let op_result = match unsafe { self.attempt(&*pending.op) } {
                Some(op_result) => {
                    self.counters.late_cancels += u64::from(pending.cancelled);
                    op_result
                }
                None if pending.cancelled => OpResult::new(Err(errno::CANCELED)),
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

    /// Performs an operation; `None` if it cannot complete yet.
    ///
    /// # Safety
    ///
    /// The operation has not completed.
    unsafe fn attempt(&mut self, op: &Op) -> Option<OpResult> {
        let res = match *op {
            Op::Accept { fd } => self.network.accept(fd)?.map(|fd| fd as u32),
            Op::Connect { fd, name } => {
                // SAFETY: the operation owns the name until it completes.
                match unsafe { &*name }.as_socket() {
                    Some(addr) => self.network.connect(fd, addr)?.map(|()| 0),
                    None => Err(errno::NO_FAMILY),
                }
            }
            Op::Recv { fd, ptr, len, .. } => {
                // SAFETY: the operation owns these bytes until it completes, which has not been reported yet.
                self.network.recv(fd, |bytes| unsafe { copy_out(bytes, ptr, len) })?
            }
            Op::RecvVectored { fd, slices, count, .. } => self.network.recv(fd, |bytes| {
                // SAFETY: the operation owns the slices and their bytes until it completes.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let parts = slices.iter();
                // SAFETY: as above.
                parts.map(|part| unsafe { copy_out(bytes, part.base, part.len) }).sum()
            })?,
            Op::RecvManaged { fd, .. } | Op::RecvMessageManaged { fd, .. } if !self.network.can_recv(fd) => {
                return None;
            }
            Op::RecvManaged { fd, .. } => {
                let network = &mut self.network;
                // SAFETY: the buffer was just taken from the pool, and `copy_out` returns how many bytes it wrote.
                return unsafe {
                    self.pool.receive(&mut self.counters, |ptr, len| {
                        network.recv(fd, |bytes| copy_out(bytes, ptr, len))
                    })
                };
            }
            Op::Send { fd, ptr, len, .. } => {
                // SAFETY: the operation owns these bytes until it completes.
                self.network.send(fd, unsafe { std::slice::from_raw_parts(ptr, len) })?
            }
            Op::SendVectored { fd, slices, count, .. } => self.send_vectored(fd, slices, count)?,
            Op::RecvMessage { fd, message } => {
                // SAFETY: the operation owns the message and the memory that it points to until it completes.
                unsafe {
                    let buffer = (*message).bytes();
                    recv_message(&mut self.network, fd, message, buffer.base, buffer.len)?
                }
            }
            Op::RecvMessageManaged { fd, message } => {
                let network = &mut self.network;
                // SAFETY: as above; the buffer was just taken from the pool.
                return unsafe {
                    self.pool.receive(&mut self.counters, |ptr, len| {
                        recv_message(network, fd, message, ptr, len)
                    })
                };
            }
            Op::SendMessage { fd, message, .. } => {
                // SAFETY: the operation owns the message and the memory that it points to until it completes.
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
            // `start` leaves these to a pool thread.
            Op::LookUp { .. } | Op::File(_) => Err(errno::NOT_SUPPORTED),
        };
        Some(OpResult::new(res))
    }

    fn send_vectored(&mut self, fd: i32, slices: *const IoVec, count: usize) -> Option<OsResult> {
        // SAFETY: the operation owns the slices and their bytes until it completes.
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
                first if sent == 0 => return first,
                _ => break,
            }
        }
        Some(Ok(sent))
    }
}

/// Receives a datagram into `len` bytes from `ptr` on, and its sender into the message.
///
/// # Safety
///
/// The operation owns the message and the memory that it points to; nothing else uses the buffer.
unsafe fn recv_message(
    network: &mut Network,
    fd: i32,
    message: *mut Message,
    ptr: *mut u8,
    len: usize,
) -> Option<OsResult> {
    let (from, bytes) = match network.recv_datagram(fd)? {
        Ok(datagram) => datagram,
        Err(code) => return Some(Err(code)),
    };
    let count = bytes.len().min(len);
    // SAFETY: the caller's promise; `count` is at most the buffer's length.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, count);
        (*message).deliver(&Name::from(from), count < bytes.len());
    }
    Some(Ok(count as u32))
}

/// Moves bytes from a receive queue to an operation's memory.
///
/// # Safety
///
/// `len` bytes from `ptr` on may be written.
unsafe fn copy_out(bytes: &mut VecDeque<u8>, ptr: *mut u8, len: usize) -> u32 {
    let count = bytes.len().min(len);
    let (front, back) = bytes.as_slices();
    let first = front.len().min(count);
    // SAFETY: the caller's promise: `count` bytes in all, which is at most `len`. The queue is memory of this driver's.
    unsafe {
        std::ptr::copy_nonoverlapping(front.as_ptr(), ptr, first);
        std::ptr::copy_nonoverlapping(back.as_ptr(), ptr.add(first), count - first);
    }
    bytes.drain(..count);
    count as u32
}

// SAFETY: an operation's memory is used only in `attempt`. Its completion is reported right after that, and only once:
// it leaves `pending` at the same time.
unsafe impl Driver for Null {
    fn describe(&self) -> Description {
        Description::new("null", vec!["virtual clock", "in-memory sockets"], self.reason)
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
            // A file of the kernel's.
            Control::Close { fd } | Control::Forget { fd } if FdSpace::Split.is_kernel(fd) => driver::control(call),
            _ => self.network.control(call).map_err(io::Error::from_raw_os_error),
        }
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        // Files and names are the kernel's even here: a pool thread carries the operation out.
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

    fn cancel(&mut self, id: OpId, _: &Op) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) {
            pending.cancelled = true;
        }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.pool.0 = Some(pool.clone());
        true
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let completed_any = self.advance(completed);
        match wait {
            Wait::No | Wait::Poll => self.counters.spins += u64::from(!completed_any),
            _ if completed_any => {}
            Wait::Until(deadline) => {
                // A notification that has already come ends the wait before the clock moves.
                if !self.notifier.take() {
                    self.clock = self.clock.max(deadline);
                }
            }
            Wait::Forever => self.notifier.wait(),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.notifier.clone()
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Split
    }
}

/// Wakes the loop from another thread.
#[derive(Default)]
struct Notifier {
    is_notified: Mutex<bool>,
    condvar: Condvar,
}

impl Notifier {
    fn take(&self) -> bool {
        std::mem::take(&mut *lock(&self.is_notified))
    }

    fn wait(&self) {
        let notified = self
            .condvar
            .wait_while(lock(&self.is_notified), |is_notified| !*is_notified);
        *notified.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        *lock(&self.is_notified) = true;
        self.condvar.notify_one();
    }
}
