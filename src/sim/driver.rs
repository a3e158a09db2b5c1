//! The driver of a loop on the simulated kernel.
//!
//! On its own, as [`DriverChoice::Null`](crate::DriverChoice::Null), it moves the clock itself. The clock stands still
//! while a task can run, and while a thread works for the loop (see `Driver::has_virtual_clock`). When the loop waits
//! for a deadline and no operation can complete, the clock jumps to the deadline. When the loop waits without a
//! deadline, the thread blocks until another thread notifies it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::kernel::Kernel;
use crate::driver::op::Op;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, FileOp, Notify, OpId, Reply,
    Scratch, Start, Wait,
};
use crate::sys::{Instant, PathChar, lock};

/// The driver of one loop.
pub(crate) struct SimDriver {
    /// Why this driver was chosen.
    reason: &'static str,
    kernel: Rc<RefCell<Kernel>>,
    host: u16,
    loop_index: u32,
    notifier: Arc<Notifier>,
}

impl SimDriver {
    /// A host on its own, with one loop.
    pub(crate) fn standalone(reason: &'static str) -> SimDriver {
        // Not zero, so that `now - duration` does not saturate by accident.
        let mut kernel = Kernel::new(Instant::from_origin(Duration::from_secs(1)));
        let host = kernel.network.add_host();
        SimDriver {
            reason,
            host,
            loop_index: kernel.add_loop(),
            kernel: Rc::new(RefCell::new(kernel)),
            notifier: Arc::default(),
        }
    }
}

// SAFETY: an operation's memory is used only when `LoopOps::advance` tries it. Its completion is reported right after
// that, and only once: its slot is empty then.
unsafe impl Driver for SimDriver {
    fn describe(&self) -> Description {
        Description::new("null", vec!["virtual clock", "in-memory sockets"], self.reason)
    }

    fn now(&self) -> Instant {
        self.kernel.borrow().clock
    }

    fn has_virtual_clock(&self) -> bool {
        true
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Seek { .. } => driver::control(call),
            // A file of the kernel's.
            Control::Close { fd } | Control::Forget { fd } if FdSpace::Split.is_kernel(fd) => driver::control(call),
            _ => {
                let mut kernel = self.kernel.borrow_mut();
                let reply = kernel.network.control(self.host, call);
                kernel.distribute();
                reply.map_err(io::Error::from_raw_os_error)
            }
        }
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        let mut kernel = self.kernel.borrow_mut();
        match *op {
            Op::File(FileOp::Remove { path, is_dir: false })
                // SAFETY: the operation owns the path until it completes.
                if unsafe { is_socket_removed(&mut kernel, self.host, path) } => {}
            // Files and names are the kernel's even here: a pool thread carries the operation out.
            Op::LookUp { .. } | Op::File(_) => return Start::Blocking,
            _ => {}
        }
        kernel.parts(self.loop_index).0.start(id, op);
        Start::Pending
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        let mut kernel = self.kernel.borrow_mut();
        let (ops, network) = kernel.parts(self.loop_index);
        ops.cancel(network, id, op);
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.kernel.borrow_mut().parts(self.loop_index).0.pool.0 = Some(pool.clone());
        true
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let mut kernel = self.kernel.borrow_mut();
        let before = completed.len();
        while kernel.advance(self.loop_index, completed) && completed.len() == before {}
        let is_idle = completed.len() == before;
        match wait {
            Wait::No | Wait::Poll => kernel.loops[self.loop_index as usize].counters.spins += u64::from(is_idle),
            _ if !is_idle => {}
            Wait::Until(deadline) => {
                // A notification that has already come ends the wait before the clock moves.
                if !self.notifier.take() {
                    kernel.clock = kernel.clock.max(deadline);
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
        self.kernel.borrow().loops[self.loop_index as usize].counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Split
    }
}

/// Removes the path of a Unix socket; false if no socket has this path.
///
/// # Safety
///
/// `path` ends in NUL.
unsafe fn is_socket_removed(kernel: &mut Kernel, host: u16, path: *const PathChar) -> bool {
    let mut bytes = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = path;
        while *at != 0 {
            bytes.push(*at as u8);
            at = at.add(1);
        }
    }
    kernel.network.remove_path(host, &bytes)
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
