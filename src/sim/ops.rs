//! The operations in flight of one loop, and how each of them is carried out.

use std::time::SystemTime;

use super::driver::op_kind;
use super::files::Files;
use super::kernel::Shared;
use super::log::EventKind;
use super::mount::HostFiles;
use super::net::{Attempt, ByteQueue, Network, Waiter};
use crate::driver::op::Op;
use crate::driver::pool::ProvidedPool;
use crate::driver::{Completion, DriverCounters, FileOp, MessageEntry, OpId, OpResult, OsResult};
use crate::sys::{Fd, IoVec, Message, errno};

/// The operations in flight of one loop.
pub(super) struct LoopOps {
    index: u32,
    host: u16,
    /// By the index of the operation's id.
    slots: Vec<Slot>,
    /// Operations to try in the next poll, in order: new ones, cancelled ones, and those whose socket has changed.
    queued: Vec<u32>,
    /// Completions that the next poll reports.
    pub(super) done: Vec<Completion>,
    /// The loop's host has crashed: its operations fail.
    pub(super) is_dead: bool,
    /// Its operations fail, but its sockets can be closed: the loop ends, and its process continues.
    pub(super) fails_ops: bool,
    /// Another driver wraps the loop's: completions reach the loop through its poll alone.
    pub(super) is_wrapped: bool,
    pub(super) pool: ProvidedPool,
    pub(super) counters: DriverCounters,
}

#[derive(Clone, Copy)]
struct Slot {
    id: OpId,
    /// In place until the operation completes; null if there is none.
    op: *const Op,
    /// Whether it is in `queued`. If not, it waits in its socket, or for its time.
    is_queued: bool,
    is_cancelled: bool,
    /// Its time has come, if it takes one.
    is_due: bool,
}

impl Slot {
    const EMPTY: Slot = Slot {
        id: OpId::new(0, 0),
        op: std::ptr::null(),
        is_queued: false,
        is_cancelled: false,
        is_due: false,
    };
}

impl LoopOps {
    pub(super) fn new(index: u32, host: u16) -> LoopOps {
        LoopOps {
            index,
            host,
            slots: Vec::new(),
            queued: Vec::new(),
            done: Vec::new(),
            is_dead: false,
            fails_ops: false,
            is_wrapped: false,
            pool: ProvidedPool::default(),
            counters: DriverCounters::default(),
        }
    }

    /// Starts a receive through a socket of a world for which nothing has arrived yet. False, without any effect, in all
    /// other cases.
    #[inline(always)]
    pub(super) fn start_waiting(&mut self, network: &mut Network, id: OpId, op: &Op, fd: Fd) -> bool {
        let waiter = Waiter {
            loop_index: self.index,
            slot: id.index() as u32,
        };
        let Some(slot) = self.slots.get_mut(id.index()) else {
            return false;
        };
        if self.is_dead || self.fails_ops || !network.wait_if_empty(fd, waiter) {
            return false;
        }
        if let Some(wire) = &mut network.wire {
            wire.log
                .record_inline(wire.now, self.host, EventKind::Start, op_kind(op), fd as u64);
        }
        self.counters.submissions += 1;
        *slot = Slot {
            id,
            op,
            is_queued: false,
            is_cancelled: false,
            is_due: false,
        };
        true
    }

    /// Queues a new operation, unless it takes a time of its own: then `due` ends that. One that must wait does so in
    /// its socket at once.
    pub(super) fn start(&mut self, network: &mut Network, id: OpId, op: &Op, is_queued: bool) {
        self.counters.submissions += 1;
        let at = id.index();
        let waiter = Waiter {
            loop_index: self.index,
            slot: at as u32,
        };
        let must_wait = is_queued && !self.is_dead && !self.fails_ops && waits(network, op, waiter);
        let is_queued = is_queued && !must_wait;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::EMPTY);
        }
        self.slots[at] = Slot {
            id,
            op,
            is_queued,
            is_cancelled: false,
            is_due: false,
        };
        if is_queued {
            self.queued.push(at as u32);
        }
    }

    /// The time of an operation has come. False if it has ended before.
    pub(super) fn due(&mut self, id: OpId) -> bool {
        let slot = id.index() as u32;
        let slot_ref = &mut self.slots[slot as usize];
        if slot_ref.id != id || slot_ref.op.is_null() {
            return false;
        }
        slot_ref.is_due = true;
        if !slot_ref.is_queued {
            self.try_again(slot);
        }
        true
    }

    /// Marks an operation as cancelled, and queues it.
    pub(super) fn cancel(&mut self, network: &mut Network, id: OpId, op: &Op) {
        let at = id.index();
        let slot = self
            .slots
            .get_mut(at)
            .filter(|slot| slot.id == id && !slot.op.is_null());
        let Some(slot) = slot else { return };
        slot.is_cancelled = true;
        if slot.is_queued {
            return;
        }
        slot.is_queued = true;
        self.queued.push(at as u32);
        if let Some((fd, direction)) = op.waits_for() {
            let (loop_index, slot) = (self.index, at as u32);
            network.stop_waiting(fd, direction, Waiter { loop_index, slot });
        }
    }

    /// Queues an operation that has waited in its socket.
    pub(super) fn try_again(&mut self, slot: u32) {
        self.slots[slot as usize].is_queued = true;
        self.queued.push(slot);
    }

    /// Carries out a receive for which bytes have arrived at an end of a connection, if it is not cancelled and the loop
    /// has nothing else to report. Otherwise queues the operation, and returns false.
    #[inline(always)]
    pub(super) fn recv_at_once(
        &mut self,
        network: &mut Network,
        at: u32,
        conn: u32,
        end: usize,
        completed: &mut Vec<Completion>,
    ) -> bool {
        let slot = &mut self.slots[at as usize];
        let is_alone = self.queued.is_empty() && self.done.is_empty() && !self.is_wrapped;
        // A cancelled operation does not wait in its socket, and a host that has crashed has no sockets.
        debug_assert!(!slot.is_cancelled && !self.is_dead);
        // SAFETY: the operation has not completed, so its op is in place.
        if let (true, &Op::Recv { ptr, len, .. }) = (is_alone && !self.fails_ops, unsafe { &*slot.op }) {
            // SAFETY: the operation owns these bytes until it completes, which has not been reported yet.
            if let Some(received) = unsafe { network.recv_from(conn, end, ptr, len) } {
                slot.op = std::ptr::null();
                self.counters.completions += 1;
                completed.push(Completion {
                    id: slot.id,
                    result: OpResult::new(Ok(received)),
                });
                return true;
            }
        }
        self.try_again(at);
        false
    }

    /// Whether the next poll has something to do.
    pub(super) fn has_pending(&self) -> bool {
        !self.queued.is_empty() || !self.done.is_empty()
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Tries the queued operations once. One that can complete does, also if it was cancelled; one that cannot is
    /// cancelled, or waits in its socket.
    pub(super) fn advance(
        &mut self,
        network: &mut Network,
        world: &mut Option<Box<Shared>>,
        files: &mut [HostFiles],
        now: u64,
        completed: &mut Vec<Completion>,
    ) {
        for position in 0..self.queued.len() {
            let at = self.queued[position];
            let slot = self.slots[at as usize];
            // SAFETY: the operation has not completed, so its op and the memory that it points to are in place.
            let op = unsafe { &*slot.op };
            let is_rare = matches!(op, Op::Accept { .. } | Op::LookUp { .. } | Op::File(_));
            let attempted = match is_rare || self.is_dead || self.fails_ops {
                // SAFETY: as above.
                true => unsafe { self.attempt_rare(network, world, &mut files[usize::from(self.host)], now, slot) },
                // SAFETY: as above.
                false => unsafe { self.attempt(network, op) },
            };
            let result = match attempted {
                Some(result) => {
                    self.counters.late_cancels += u64::from(slot.is_cancelled);
                    result
                }
                None if slot.is_cancelled => OpResult::new(Err(errno::CANCELED)),
                None => {
                    self.slots[at as usize].is_queued = false;
                    // Other operations wait for their time.
                    if let Some((fd, direction)) = op.waits_for() {
                        let (loop_index, slot) = (self.index, at);
                        network.wait(fd, direction, Waiter { loop_index, slot });
                    }
                    continue;
                }
            };
            if is_rare {
                self.log_completion(network, &mut files[usize::from(self.host)], op, result.res());
            }
            self.slots[at as usize].op = std::ptr::null();
            self.counters.completions += 1;
            completed.push(Completion { id: slot.id, result });
        }
        self.queued.clear();
    }

    /// Performs an operation on a file, a look-up or an accept, or any operation of a host that has crashed; `None` if it
    /// cannot complete yet.
    ///
    /// # Safety
    ///
    /// The operation of the slot has not completed.
    #[inline(never)]
    unsafe fn attempt_rare(
        &mut self,
        network: &mut Network,
        world: &mut Option<Box<Shared>>,
        files: &mut HostFiles,
        now: u64,
        slot: Slot,
    ) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        let op = unsafe { &*slot.op };
        let is_opening = match op {
            Op::Accept { .. } => true,
            Op::File(FileOp::Open { .. }) => slot.is_due,
            _ => false,
        };
        let lacks_descriptor = is_opening && {
            let open_files = files.used().map_or(0, Files::open_count);
            network.check_descriptors(self.host, open_files, 1).is_err()
        };
        match (op, world) {
            _ if self.is_dead || self.fails_ops => Some(OpResult::new(Err(errno::NOT_CONNECTED))),
            // As on Linux, also if no connection waits.
            _ if lacks_descriptor => Some(OpResult::new(Err(errno::PROCESS_FILES))),
            (Op::LookUp { .. }, _) if !slot.is_due => None,
            // SAFETY: as above.
            (&Op::LookUp { query, out }, Some(world)) => unsafe {
                *out = world.zone.look_up(&*query);
                if let Some(wire) = &mut network.wire {
                    let count = (*out).as_ref().map_or(-1, |addrs| addrs.len() as i64);
                    wire.log
                        .record(wire.now, self.host, EventKind::Complete, op_kind(op), count as u64);
                }
                Some(OpResult::new(Ok(0)))
            },
            // In a world, file operations take time.
            (Op::File(_), Some(_)) if !slot.is_due => None,
            (Op::File(file_op), _) => Some(OpResult::new(match files.mount() {
                Some(files) => {
                    let wall = match &network.wire {
                        Some(wire) => wire.schedule.clocks[usize::from(self.host)].wall(now),
                        None => SystemTime::now(),
                    };
                    // SAFETY: as above.
                    unsafe { files.perform(file_op, wall) }
                }
                // `start` leaves it to a pool thread.
                None => Err(errno::NOT_SUPPORTED),
            })),
            // SAFETY: as above.
            _ => unsafe { self.attempt(network, op) },
        }
    }

    /// Records the result of a file operation in the log of a world.
    fn log_completion(&mut self, network: &mut Network, files: &mut HostFiles, op: &Op, result: OsResult) {
        let (Op::File(_), Some(wire)) = (op, &mut network.wire) else {
            return;
        };
        let value = match result {
            Ok(count) => i64::from(count),
            Err(code) => -i64::from(code),
        };
        if let Some(files) = files.mount() {
            files.take_faults(|fault, sector| {
                wire.log
                    .record(wire.now, self.host, EventKind::DiskFault, fault, sector);
            });
        }
        wire.log
            .record(wire.now, self.host, EventKind::Complete, op_kind(op), value as u64);
    }

    /// Performs an operation; `None` if it cannot complete yet.
    ///
    /// # Safety
    ///
    /// The operation has not completed.
    unsafe fn attempt(&mut self, network: &mut Network, op: &Op) -> Option<OpResult> {
        let res = match *op {
            Op::Accept { fd } => network.accept(fd)?.map(|fd| fd as u32),
            // SAFETY: the operation owns the name until it completes.
            Op::Connect { fd, name } => network.connect(fd, unsafe { &*name })?.map(|()| 0),
            Op::Recv { fd, ptr, len, .. } => {
                // SAFETY: the operation owns these bytes until it completes, which has not been reported yet.
                unsafe { network.recv_bytes(fd, ptr, len)? }
            }
            Op::RecvVectored { fd, slices, count, .. } => {
                // SAFETY: the operation owns the slices and their bytes until it completes.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let take = |bytes: &mut ByteQueue, most: usize| {
                    let mut received = 0;
                    for slice in slices {
                        // SAFETY: as above.
                        received += unsafe { bytes.take(most - received as usize, slice.base, slice.len) };
                    }
                    received
                };
                network.recv(fd, take, &mut Vec::new())?
            }
            Op::RecvManaged { fd, .. } | Op::RecvMessageManaged { fd, .. } if !network.can_recv(fd) => return None,
            Op::RecvManaged { fd, .. } => {
                // SAFETY: the buffer was just taken from the pool, and `take` returns how many bytes it wrote.
                return unsafe {
                    self.pool
                        .receive(&mut self.counters, |ptr, len| network.recv_bytes(fd, ptr, len))
                };
            }
            Op::Send { fd, ptr, len, .. } => {
                // SAFETY: the operation owns these bytes until it completes.
                let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
                network.send_bytes(fd, bytes)?
            }
            // SAFETY: the operation owns the slices and their bytes until it completes.
            Op::SendVectored { fd, slices, count, .. } => unsafe { send_vectored(network, fd, slices, count)? },
            Op::RecvMessage { fd, message } => {
                // SAFETY: the operation owns the message and the memory that it points to until it completes.
                unsafe {
                    let buffer = (*message).bytes();
                    recv_message(network, fd, message, buffer.base, buffer.len)?
                }
            }
            Op::RecvMessageManaged { fd, message } => {
                // SAFETY: as above; the buffer was just taken from the pool.
                return unsafe {
                    self.pool.receive(&mut self.counters, |ptr, len| {
                        recv_message(network, fd, message, ptr, len)
                    })
                };
            }
            Op::SendMessage { fd, message, at_once } => {
                // SAFETY: the operation owns the message and the memory that it points to until it completes.
                let sent = unsafe { send_message(network, fd, message) };
                sent.or(at_once.then_some(Err(errno::AGAIN)))?
            }
            Op::Readiness { fd, direction } => network.is_ready(fd, direction)?,
            // `advance` carries these out, or `start` leaves them to a pool thread.
            Op::LookUp { .. } | Op::File(_) => Err(errno::NOT_SUPPORTED),
        };
        Some(OpResult::new(res))
    }
}

/// Makes a receive wait in its socket if there is nothing to receive, so that it need not be tried.
#[inline]
fn waits(network: &mut Network, op: &Op, waiter: Waiter) -> bool {
    match *op {
        Op::Recv { fd, .. }
        | Op::RecvVectored { fd, .. }
        | Op::RecvManaged { fd, .. }
        | Op::RecvMessage { fd, .. }
        | Op::RecvMessageManaged { fd, .. } => network.wait_if_empty(fd, waiter),
        _ => false,
    }
}

/// Sends at once what there is room for; `None`, without any effect, if the operation is not a send or must wait.
///
/// # Safety
///
/// The memory that `op` points to is valid.
pub(super) unsafe fn send_at_once(network: &mut Network, op: &Op) -> Option<OsResult> {
    match *op {
        Op::Send { fd, ptr, len, .. } => {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
            network.send_bytes(fd, bytes)
        }
        // SAFETY: as above.
        Op::SendVectored { fd, slices, count, .. } => unsafe { send_vectored(network, fd, slices, count) },
        _ => None,
    }
}

/// Sends from several slices in order.
///
/// # Safety
///
/// The slices and their bytes are valid.
unsafe fn send_vectored(network: &mut Network, fd: Fd, slices: *const IoVec, count: usize) -> Attempt<u32> {
    // SAFETY: the caller's promise.
    let slices = unsafe { std::slice::from_raw_parts(slices, count) };
    // SAFETY: as above.
    let part = |slice: &IoVec| unsafe { std::slice::from_raw_parts(slice.base.cast_const(), slice.len) };
    let parts = slices.iter().filter(|slice| slice.len > 0).map(part);
    network.send(fd, parts, Vec::new())
}

/// Sends a message through a datagram socket or a Unix connection.
///
/// # Safety
///
/// The message and the memory that it points to are valid.
pub(super) unsafe fn send_message(network: &mut Network, fd: Fd, message: *const Message) -> Attempt<u32> {
    // SAFETY: the caller's promise.
    let (bytes, to) = unsafe { ((*message).bytes(), (*message).name()) };
    let bytes = match bytes.len {
        0 => &[][..],
        // SAFETY: as above.
        len => unsafe { std::slice::from_raw_parts(bytes.base.cast_const(), len) },
    };
    // SAFETY: as above.
    let descriptors = match unsafe { (*message).duplicate_descriptors() } {
        Ok(descriptors) => descriptors,
        Err(code) => return Some(Err(code)),
    };
    match network.is_datagram_socket(fd) {
        true => network.send_datagram(fd, bytes, to.as_ref(), descriptors),
        false => network.send(fd, [bytes].into_iter(), descriptors),
    }
}

/// Receives a datagram, or bytes of a Unix connection, into `len` bytes from `ptr` on, and the sender and descriptors
/// into the message.
///
/// # Safety
///
/// The operation owns the message and the memory that it points to; nothing else uses the buffer.
unsafe fn recv_message(
    network: &mut Network,
    fd: Fd,
    message: *mut Message,
    ptr: *mut u8,
    len: usize,
) -> Option<OsResult> {
    if !network.is_datagram_socket(fd) {
        let mut descriptors = Vec::new();
        // SAFETY: the caller's promise.
        let take = |bytes: &mut ByteQueue, most: usize| unsafe { bytes.take(most, ptr, len) };
        let received = network.recv(fd, take, &mut descriptors)?;
        if received.is_ok() {
            // SAFETY: as above.
            unsafe { (*message).deliver_with(None, false, descriptors) };
        }
        return Some(received);
    }
    let datagram = match network.recv_datagram(fd)? {
        Ok(datagram) => datagram,
        Err(code) => return Some(Err(code)),
    };
    let count = datagram.bytes.len().min(len);
    let sender = datagram.sender();
    // SAFETY: as above; `count` is at most the buffer's length.
    unsafe {
        std::ptr::copy_nonoverlapping(datagram.bytes.as_ptr(), ptr, count);
        (*message).deliver_with(Some(&sender), count < datagram.bytes.len(), datagram.descriptors);
    }
    network.recycle(datagram.bytes);
    Some(Ok(count as u32))
}

/// Receives the next datagram into a message of a batch.
///
/// # Safety
///
/// The memory that the message points to may be written, and nothing else uses it.
pub(super) unsafe fn recv_entry(network: &mut Network, fd: Fd, entry: &mut MessageEntry) -> Option<OsResult> {
    let message = entry.message_mut();
    // SAFETY: the caller's promise.
    unsafe {
        let buffer = message.bytes();
        recv_message(network, fd, message, buffer.base, buffer.len)
    }
}
