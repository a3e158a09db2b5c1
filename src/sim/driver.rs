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
use std::time::SystemTime;

use super::files::Files;
use super::kernel::Kernel;
use super::log::{EventKind, describe_running_task};
use super::mount::HostFiles;
use super::net::Network;
use super::ops::{recv_entry, send_at_once, send_message};
use super::rng::hash_bytes;
use super::schedule::Event;
use crate::driver::op::Op;
use crate::driver::{
    self, BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, FileOp, Job, MessageEntry,
    Notify, NullFiles, OpId, OpResult, OsResult, Reply, Scratch, SignalSource, Start, Wait,
};
use crate::sys::{self, Fd, Instant, PathChar, errno, lock};

/// The driver of one loop.
pub(crate) struct SimDriver {
    /// Why this driver was chosen.
    reason: &'static str,
    kernel: Rc<RefCell<Kernel>>,
    host: u16,
    loop_index: u32,
    notifier: Notifying,
}

/// What another thread notifies.
enum Notifying {
    /// The sleeping thread of a loop on its own.
    Thread(Arc<Notifier>),
    /// The world, which gives the loop a turn.
    World(Arc<dyn Notify>),
}

impl SimDriver {
    /// Receives or sends the messages of a batch with `call`, until one must wait or fails.
    fn batch(
        &mut self,
        entries: &mut [MessageEntry],
        mut call: impl FnMut(&mut Network, &mut MessageEntry) -> Option<OsResult>,
    ) -> usize {
        let mut kernel = self.kernel.borrow_mut();
        if kernel.loops[self.loop_index as usize].is_dead {
            return sys::one_by_one(entries, |_| Some(Err(errno::NOT_CONNECTED)));
        }
        let network = &mut kernel.network;
        let count = sys::one_by_one(entries, |entry| call(network, entry));
        kernel.distribute();
        count
    }

    /// Starts an operation of any kind.
    #[inline(never)]
    fn start_any(&self, kernel: &mut Kernel, id: OpId, op: &Op) -> Start {
        let mut is_queued = true;
        match *op {
            Op::File(FileOp::Remove { path, is_dir: false })
                // SAFETY: the operation owns the path until it completes.
                if unsafe { is_socket_removed(kernel, self.host, path) } =>
            {
                return Start::Done(OpResult::new(Ok(0)));
            }
            Op::File(ref file_op) if kernel.has_file(self.host, file_op) => {
                is_queued = !kernel.start_file(self.host, self.loop_index, id, file_op);
            }
            Op::LookUp { .. } if kernel.world.is_some() => {
                let (now, loop_index) = (kernel.clock, self.loop_index);
                let at = now + kernel.shared().zone.next_delay();
                kernel.schedule().push(at, Event::op(loop_index, id));
                is_queued = false;
            }
            // Names are the kernel's even here, and so are files that were opened elsewhere or if the program wants it: a
            // pool thread carries the operation out.
            Op::LookUp { .. } | Op::File(_) => {
                if let Some(world) = &mut kernel.world {
                    world.real_files.insert(describe_running_task());
                }
                return Start::Blocking;
            }
            _ => {}
        }
        if let Some(wire) = &mut kernel.network.wire {
            let fd = op.fd().unwrap_or(-1);
            wire.log
                .record(wire.now, self.host, EventKind::Start, op_kind(op), fd as i64 as u64);
        }
        let (ops, network) = kernel.parts(self.loop_index);
        if let Op::SendMessage { fd, message, .. } = *op
            && network.wire.is_some()
            && !ops.is_dead
        {
            // SAFETY: the operation owns the message and the memory that it points to.
            if let Some(sent) = unsafe { send_message(network, fd, message) } {
                kernel.distribute();
                return Start::Done(OpResult::new(sent));
            }
        }
        let (ops, network) = kernel.parts(self.loop_index);
        ops.start(network, id, op, is_queued);
        Start::Pending
    }

    /// A host on its own, with one loop.
    pub(crate) fn standalone(reason: &'static str, files: NullFiles) -> SimDriver {
        let mut kernel = Kernel::standalone();
        let host = kernel.network.add_host();
        kernel.files.push(match files {
            NullFiles::Memory => Files::in_memory(SystemTime::now()).into(),
            NullFiles::Real => HostFiles::Real,
        });
        SimDriver {
            reason,
            host,
            loop_index: kernel.add_loop(host),
            kernel: Rc::new(RefCell::new(kernel)),
            notifier: Notifying::Thread(Arc::default()),
        }
    }

    /// The driver of a loop in a world.
    pub(super) fn in_world(
        kernel: &Rc<RefCell<Kernel>>,
        host: u16,
        loop_index: u32,
        notifier: Arc<dyn Notify>,
    ) -> SimDriver {
        SimDriver {
            reason: "a host of a simulation",
            kernel: kernel.clone(),
            host,
            loop_index,
            notifier: Notifying::World(notifier),
        }
    }

    fn is_in_world(&self) -> bool {
        matches!(self.notifier, Notifying::World(_))
    }
}

// SAFETY: an operation's memory is used only when `LoopOps::advance` tries it. It is not used again: its slot is empty
// then, and its completion is reported by this poll or the next.
unsafe impl Driver for SimDriver {
    fn describe(&self) -> Description {
        let features = vec!["virtual clock", "in-memory sockets"];
        match self.is_in_world() {
            true => Description::new("sim", features, self.reason),
            false => Description::new("null", features, self.reason),
        }
    }

    fn now(&self) -> Instant {
        self.kernel.borrow().now(self.host)
    }

    fn has_virtual_clock(&self) -> bool {
        true
    }

    fn tries_first(&self) -> bool {
        self.is_in_world()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        let mut kernel = self.kernel.borrow_mut();
        let is_dead = kernel.loops[self.loop_index as usize].is_dead;
        match call {
            // A file of the kernel's.
            Control::Close { fd } | Control::Forget { fd } if FdSpace::Split.is_kernel(fd) => driver::control(call),
            // A crashed host reaches nothing, and its numbers may be used by others.
            Control::Close { .. } | Control::Reset { .. } | Control::Forget { .. } if is_dead => Ok(Reply::Done),
            _ if is_dead => Err(io::Error::from_raw_os_error(errno::NOT_CONNECTED)),
            Control::Seek { fd, .. } | Control::Close { fd } | Control::Forget { fd } if Files::is_file(fd) => {
                let files = kernel.files[usize::from(self.host)].mount();
                control_file(files, call).map_err(io::Error::from_raw_os_error)
            }
            Control::Seek { .. } => driver::control(call),
            _ => {
                let is_possible = kernel.check_descriptors(self.host, &call);
                let reply = is_possible.and_then(|()| kernel.network.control(self.host, call));
                kernel.distribute();
                reply.map_err(io::Error::from_raw_os_error)
            }
        }
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        let mut kernel = self.kernel.borrow_mut();
        // The most frequent case: a receive for which nothing has arrived yet.
        if let Op::Recv { fd, .. } = *op
            && let Kernel { loops, network, .. } = &mut *kernel
            && loops[self.loop_index as usize].start_waiting(network, id, op, fd)
        {
            return Start::Pending;
        }
        self.start_any(&mut kernel, id, op)
    }

    unsafe fn attempt(&mut self, op: &Op, _alone: bool) -> Option<OsResult> {
        if !self.is_in_world() {
            return None;
        }
        let mut kernel = self.kernel.borrow_mut();
        if kernel.loops[self.loop_index as usize].is_dead {
            return Some(Err(errno::NOT_CONNECTED));
        }
        // SAFETY: the caller's promise.
        let sent = unsafe { send_at_once(&mut kernel.network, op) };
        kernel.distribute();
        sent
    }

    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        self.batch(entries, |network, entry| unsafe { recv_entry(network, fd, entry) })
    }

    unsafe fn send_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        // SAFETY: the caller's promise.
        self.batch(entries, |network, entry| unsafe {
            send_message(network, fd, entry.message())
        })
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        let mut kernel = self.kernel.borrow_mut();
        let (ops, network) = kernel.parts(self.loop_index);
        // The tasks of a crashed host are dropped, which shows nothing that the host did.
        if let Some(wire) = &mut network.wire
            && !ops.is_dead
        {
            let fd = op.fd().unwrap_or(-1);
            wire.log
                .record(wire.now, self.host, EventKind::Cancel, op_kind(op), fd as i64 as u64);
        }
        ops.cancel(network, id, op);
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.kernel.borrow_mut().parts(self.loop_index).0.pool.0 = Some(pool.clone());
        true
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let mut kernel = self.kernel.borrow_mut();
        let before = completed.len();
        kernel.reap(self.loop_index, completed);
        let is_idle = completed.len() == before;
        match (wait, &self.notifier) {
            (Wait::No | Wait::Poll, _) => {
                kernel.loops[self.loop_index as usize].counters.spins += u64::from(is_idle);
            }
            // The world decides when the loop runs again.
            (_, Notifying::World(_)) => {}
            _ if !is_idle => {}
            (Wait::Until(deadline) | Wait::Between(_, deadline), Notifying::Thread(notifier)) => {
                // A notification that has already come ends the wait before the clock moves.
                if !notifier.take() {
                    kernel.clock = kernel.clock.max(deadline.since_origin().as_nanos() as u64);
                }
            }
            (Wait::Forever, Notifying::Thread(notifier)) => notifier.wait(),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_in_world() {
            self.kernel.borrow_mut().submit(self.loop_index);
        }
        Ok(())
    }

    fn offload(&mut self, job: Job) -> Result<(), Job> {
        self.kernel.borrow_mut().offload(self.loop_index, job)
    }

    fn wall_clock(&self) -> SystemTime {
        let kernel = self.kernel.borrow();
        match &kernel.network.wire {
            Some(wire) => wire.schedule.clocks[usize::from(self.host)].wall(kernel.clock),
            None => SystemTime::now(),
        }
    }

    fn entropy(&mut self, bytes: &mut [u8]) {
        let mut kernel = self.kernel.borrow_mut();
        match &mut kernel.world {
            Some(world) => world.entropy[usize::from(self.host)].fill(bytes),
            None => sys::entropy(bytes),
        }
        if let Some(wire) = &mut kernel.network.wire {
            let (count, hash) = (bytes.len() as u64, hash_bytes(bytes));
            wire.log.record(wire.now, self.host, EventKind::Entropy, count, hash);
        }
    }

    fn signals(&self) -> SignalSource {
        match self.is_in_world() {
            true => SignalSource::Driver,
            false => SignalSource::None,
        }
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        match &self.notifier {
            Notifying::Thread(notifier) => notifier.clone(),
            Notifying::World(notifier) => notifier.clone(),
        }
    }

    fn counters(&self) -> DriverCounters {
        self.kernel.borrow().loops[self.loop_index as usize].counters
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Split
    }
}

/// A control call on a simulated file.
fn control_file(files: Option<&mut Files>, call: Control<'_>) -> Result<Reply, i32> {
    let files = files.ok_or(errno::BAD_FD)?;
    match call {
        Control::Seek { fd, to } => files.seek(fd, to).map(Reply::Position),
        Control::Close { fd } if !files.close(fd) => Err(errno::BAD_FD),
        _ => Ok(Reply::Done),
    }
}

/// The names of operations in the log, by `op_kind`.
pub(super) const OP_NAMES: &[&str] = &[
    "accept",
    "connect",
    "recv",
    "send",
    "recv message",
    "send message",
    "readiness",
    "look up",
    "open",
    "read",
    "write",
    "sync",
    "stat",
    "truncate",
    "allocate",
    "rename",
    "remove",
    "make dir",
    "link",
    "symlink",
    "read link",
    "set mode",
    "read dir",
    "real path",
    "copy",
    "remove all",
];

pub(super) fn op_kind(op: &Op) -> u64 {
    match op {
        Op::Accept { .. } => 0,
        Op::Connect { .. } => 1,
        Op::Recv { .. } | Op::RecvManaged { .. } | Op::RecvVectored { .. } => 2,
        Op::Send { .. } | Op::SendVectored { .. } => 3,
        Op::RecvMessage { .. } | Op::RecvMessageManaged { .. } => 4,
        Op::SendMessage { .. } => 5,
        Op::Readiness { .. } => 6,
        Op::LookUp { .. } => 7,
        Op::File(op) => file_kind(op),
    }
}

fn file_kind(op: &FileOp) -> u64 {
    match op {
        FileOp::Open { .. } => 8,
        FileOp::ReadAt { .. } | FileOp::ReadVectoredAt { .. } => 9,
        FileOp::WriteAt { .. } | FileOp::WriteVectoredAt { .. } => 10,
        FileOp::Sync { .. } => 11,
        FileOp::Stat { .. } => 12,
        FileOp::Truncate { .. } => 13,
        FileOp::Allocate { .. } => 14,
        FileOp::Rename { .. } => 15,
        FileOp::Remove { .. } => 16,
        FileOp::MakeDir { .. } => 17,
        FileOp::HardLink { .. } => 18,
        FileOp::SymLink { .. } => 19,
        FileOp::ReadLink { .. } => 20,
        FileOp::SetMode { .. } => 21,
        FileOp::ReadDir { .. } => 22,
        FileOp::RealPath { .. } => 23,
        FileOp::Copy { .. } => 24,
        FileOp::RemoveAll { .. } => 25,
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
