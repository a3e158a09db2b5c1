//! Pipes through overlapped calls, because Windows reports no readiness for pipes.
//!
//! A call uses the operation's own memory, and its OVERLAPPED lies in the operation's scratch. If the call does not end
//! at once, the system's wait threads (one per 63 waits) watch its event. The callback on such a thread queues the
//! operation's id and wakes the loop, which fetches the result and completes the operation. The operation keeps its
//! memory and handle until then.
//!
//! A cancel is a request: the call ends with the bytes transferred, or with an error and none. A cancelled read takes
//! no bytes out of the pipe.
//!
//! mio's own pipes are not used: they read ahead and buffer writes, so bytes would be lost when a pipe is given away.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::sync::{Arc, Mutex, PoisonError};

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_MORE_DATA, HANDLE};
use windows_sys::Win32::Storage::FileSystem::{ReadFile, WriteFile};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEINWAITTHREAD, WT_EXECUTEONLYONCE,
};

use crate::driver::op::{Direction, Medium, Op};
use crate::driver::pool::PoolBuffer;
use crate::driver::{Completion, Notify, OpId, OpResult, OsResult, SCRATCH_LEN, Scratch, Start};
use crate::reactor::poller::Notifier;
use crate::sys::{self, Fd, IoVec, errno, handle, last_code};

/// The most that one call transfers, as much as a pipe holds: a write ends only when all its bytes were taken.
const MAX_CALL_LEN: usize = 64 * 1024;

/// The operation lends no memory.
const NOT_LENT: (*mut u8, usize) = (std::ptr::null_mut(), 0);

/// How many events are kept for later calls.
const MAX_SPARE_EVENTS: usize = 16;

const _: () = assert!(size_of::<OVERLAPPED>() <= SCRATCH_LEN && align_of::<OVERLAPPED>() <= align_of::<Scratch>());

/// The calls in flight.
pub(in crate::reactor) struct Pipes {
    pending: HashMap<OpId, PendingCall>,
    done: Arc<DoneQueue>,
    spare_events: Vec<OwnedHandle>,
}

/// Calls whose event is set, from the wait threads to the loop.
struct DoneQueue {
    ids: Mutex<Vec<OpId>>,
    notifier: Arc<Notifier>,
}

/// The argument of one wait callback.
struct WaitContext {
    done: Arc<DoneQueue>,
    id: OpId,
}

/// A call in flight.
struct PendingCall {
    call: Call,
    /// In the operation's scratch; the kernel owns it until the event is set.
    overlapped: *mut OVERLAPPED,
    memory: Memory,
    event: OwnedHandle,
    /// The registered wait for the event.
    wait: HANDLE,
    cancelled: bool,
}

/// The memory that a call reads into or writes from.
enum Memory {
    /// The operation's own.
    Lent,
    /// A pool buffer.
    Managed(PoolBuffer),
    /// A bounce buffer for the operation's slices, since a call takes one buffer. A `Vec`, which may be moved while the
    /// kernel uses its content; a `Box` may not (aliasing).
    Gathered(Vec<u8>, *const IoVec, usize),
}

/// A read or a write.
#[derive(Clone, Copy)]
struct Call {
    fd: Fd,
    direction: Direction,
    ptr: *mut u8,
    len: u32,
}

impl Pipes {
    pub(in crate::reactor) fn new(notifier: &Arc<Notifier>) -> Pipes {
        Pipes {
            pending: HashMap::new(),
            done: Arc::new(DoneQueue {
                ids: Mutex::default(),
                notifier: notifier.clone(),
            }),
            spare_events: Vec::new(),
        }
    }

    /// Whether the operation is for a pipe.
    pub(in crate::reactor) fn serves(op: &Op) -> bool {
        matches!(
            op,
            Op::Recv { medium, .. }
                | Op::RecvManaged { medium, .. }
                | Op::RecvVectored { medium, .. }
                | Op::Send { medium, .. }
                | Op::SendVectored { medium, .. }
                if *medium == Medium::Pipe
        )
    }

    /// Starts an operation. `buffer` is for a managed receive.
    ///
    /// # Safety
    ///
    /// As for [`Driver::start`](crate::driver::Driver::start).
    pub(in crate::reactor) unsafe fn start(
        &mut self,
        id: OpId,
        op: Op,
        buffer: Option<PoolBuffer>,
        scratch: *mut Scratch,
    ) -> Start {
        // SAFETY: the caller's promise.
        let Some((call, memory)) = (unsafe { Call::of(op, buffer) }) else {
            return Start::Done(OpResult::last(Ok(0)));
        };
        let event = match self.spare_events.pop().map_or_else(new_event, Ok) {
            Ok(event) => event,
            Err(code) => return Start::Done(OpResult::last(Err(code))),
        };
        // SAFETY: the caller's promise: the operation owns its scratch, which is large enough, and the memory that `op`
        // points to until it completes. `memory` owns the other buffers, and lives as long as the call.
        match unsafe { self.start_call(id, call, memory, event, scratch.cast()) } {
            Some(op_result) => Start::Done(op_result),
            None => Start::Pending,
        }
    }

    /// Makes the call, and waits for its event unless it ends at once. `None` if the call is in flight.
    ///
    /// # Safety
    ///
    /// The call's memory and the OVERLAPPED belong to an operation that does not complete before the call has ended.
    unsafe fn start_call(
        &mut self,
        id: OpId,
        call: Call,
        memory: Memory,
        event: OwnedHandle,
        overlapped: *mut OVERLAPPED,
    ) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        if let Some(res) = unsafe { call.issue(&event, overlapped) } {
            self.recycle(event);
            // SAFETY: the call has ended, and its operation has not completed.
            return Some(unsafe { memory.complete(call, res) });
        }
        let done = self.done.clone();
        let context = Box::into_raw(Box::new(WaitContext { done, id }));
        let mut wait = std::ptr::null_mut();
        let flags = WT_EXECUTEONLYONCE | WT_EXECUTEINWAITTHREAD;
        // SAFETY: the event stays open until the wait has ended: `PendingCall` owns it, and `Pipes` leaks that if it is
        // dropped earlier. The callback, which runs once on any thread, owns the context, whose content is `Send`.
        let is_waiting = unsafe {
            let event = event.as_raw_handle();
            RegisterWaitForSingleObject(&mut wait, event, Some(on_event), context.cast(), INFINITE, flags)
        };
        if is_waiting == 0 {
            let why = last_code();
            // SAFETY: without a wait, no callback owns it.
            drop(unsafe { Box::from_raw(context) });
            // SAFETY: the call is in flight with this OVERLAPPED, and has ended when `result` returns.
            let res = unsafe {
                CancelIoEx(handle(call.fd), overlapped);
                call.result(overlapped)
            };
            self.recycle(event);
            let res = match res {
                Err(errno::CANCELED) => Err(why),
                res => call.normalize(res),
            };
            // SAFETY: the call has ended, and its operation has not completed.
            return Some(unsafe { memory.complete(call, res) });
        }
        let pending = PendingCall {
            call,
            overlapped,
            memory,
            event,
            wait,
            cancelled: false,
        };
        self.pending.insert(id, pending);
        None
    }

    fn recycle(&mut self, event: OwnedHandle) {
        if self.spare_events.len() < MAX_SPARE_EVENTS {
            self.spare_events.push(event);
        }
    }

    /// Requests a cancel: whether it came in time, or `None` if no such call is in flight.
    pub(in crate::reactor) fn cancel(&mut self, id: OpId) -> Option<bool> {
        let pending = self.pending.get_mut(&id)?;
        pending.cancelled = true;
        // SAFETY: the call was made with this OVERLAPPED, and its operation has not completed.
        Some(unsafe { CancelIoEx(handle(pending.call.fd), pending.overlapped) } != 0)
    }

    /// Reports the calls that have ended.
    pub(in crate::reactor) fn complete(&mut self, completed: &mut Vec<Completion>) {
        if self.pending.is_empty() {
            return;
        }
        let ids = std::mem::take(&mut *self.done.ids.lock().unwrap_or_else(PoisonError::into_inner));
        for id in ids {
            if let Some(op_result) = self.pending.remove(&id).and_then(|pending| self.finish(id, pending)) {
                completed.push(Completion { id, result: op_result });
            }
        }
    }

    /// A call's event is set. `None` if the call is made again.
    fn finish(&mut self, id: OpId, pending: PendingCall) -> Option<OpResult> {
        let PendingCall {
            call,
            overlapped,
            memory,
            event,
            wait,
            cancelled,
        } = pending;
        // SAFETY: the wait was for one callback, which has run; nothing else uses the wait's handle. If the callback
        // has not yet returned, the system frees the wait when it does.
        unsafe { UnregisterWaitEx(wait, std::ptr::null_mut()) };
        // SAFETY: the operation has not completed, so its scratch is valid. The event is set, so this does not block.
        let res = match unsafe { call.result(overlapped) } {
            // The writer wrote zero bytes; this is not the end of the pipe.
            Ok(0) if call.direction == Direction::Read && !cancelled => {
                // SAFETY: as `start`'s caller promised; the operation has not completed yet.
                return unsafe { self.start_call(id, call, memory, event, overlapped) };
            }
            Ok(0) if call.direction == Direction::Read => Err(errno::CANCELED),
            res => call.normalize(res),
        };
        self.recycle(event);
        // SAFETY: the call has ended, and its operation has not completed.
        Some(unsafe { memory.complete(call, res) })
    }
}

impl Drop for Pipes {
    /// The kernel still uses calls in flight: their events and buffers are leaked, as the operations are.
    fn drop(&mut self) {
        for (_, pending) in self.pending.drain() {
            std::mem::forget(pending);
        }
    }
}

/// The wait callback: a call's event is set. Runs on one of the system's wait threads.
unsafe extern "system" fn on_event(context: *mut c_void, _timed_out: bool) {
    // SAFETY: `start_call` made the context for this callback, which runs once.
    let WaitContext { done, id } = *unsafe { Box::from_raw(context.cast::<WaitContext>()) };
    let is_first = {
        let mut ids = done.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.push(id);
        ids.len() == 1
    };
    // Otherwise an earlier callback has woken the loop, which has not taken the ids yet.
    if is_first {
        done.notifier.notify();
    }
}

fn new_event() -> Result<OwnedHandle, i32> {
    // SAFETY: nothing is passed in. The event is manual-reset and not set.
    let event = unsafe { CreateEventW(std::ptr::null(), 1, 0, std::ptr::null()) };
    if event.is_null() {
        return Err(last_code());
    }
    // SAFETY: the handle is new and ours.
    Ok(unsafe { OwnedHandle::from_raw_handle(event) })
}

impl Memory {
    /// A bounce buffer for these slices, filled with their bytes for a write.
    ///
    /// # Safety
    ///
    /// The slices are valid; for a write, so are the bytes that they point to.
    unsafe fn gather(direction: Direction, slices: *const IoVec, count: usize) -> Memory {
        // SAFETY: the caller's promise.
        let all = unsafe { std::slice::from_raw_parts(slices, count) };
        let len = all
            .iter()
            .fold(0, |sum: usize, slice| sum.saturating_add(slice.len))
            .min(MAX_CALL_LEN);
        let mut bytes = Vec::with_capacity(len);
        for slice in all.iter().filter(|_| direction == Direction::Write) {
            let part = slice.len.min(len - bytes.len());
            // SAFETY: the caller's promise.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(slice.base, part) });
        }
        bytes.resize(len, 0);
        Memory::Gathered(bytes, slices, count)
    }

    /// The operation's result after the call has ended. Copies the bytes of a bounced read to the slices.
    ///
    /// # Safety
    ///
    /// The call was made with this memory and has ended, and its operation has not completed.
    unsafe fn complete(self, call: Call, res: OsResult) -> OpResult {
        let count = res.unwrap_or(0) as usize;
        match self {
            Memory::Managed(mut buffer) => {
                // SAFETY: the system has written this many bytes to it.
                unsafe { buffer.set_filled(count) };
                return OpResult::with_buffer(res, buffer);
            }
            Memory::Gathered(bytes, slices, slice_count) if call.direction == Direction::Read => {
                // SAFETY: the caller's promise: the operation owns the slices.
                let slices = unsafe { std::slice::from_raw_parts(slices, slice_count) };
                let mut rest = &bytes[..count];
                for slice in slices {
                    let (part, others) = rest.split_at(slice.len.min(rest.len()));
                    // SAFETY: the operation lends the slice's bytes for this read.
                    unsafe { slice.base.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                    rest = others;
                }
            }
            Memory::Gathered(..) | Memory::Lent => {}
        }
        OpResult::last(res)
    }
}

impl Call {
    /// The call for an operation, and its memory; `None` if its length is zero.
    ///
    /// # Safety
    ///
    /// The memory that `op` points to belongs to an operation that has not completed.
    unsafe fn of(op: Op, buffer: Option<PoolBuffer>) -> Option<(Call, Memory)> {
        let (fd, direction, memory, lent) = match op {
            Op::Recv { fd, ptr, len, .. } => (fd, Direction::Read, Memory::Lent, (ptr, len)),
            Op::RecvManaged { fd, .. } => (fd, Direction::Read, Memory::Managed(buffer?), NOT_LENT),
            Op::RecvVectored { fd, slices, count, .. } => {
                // SAFETY: the caller's promise.
                let memory = unsafe { Memory::gather(Direction::Read, slices, count) };
                (fd, Direction::Read, memory, NOT_LENT)
            }
            Op::Send { fd, ptr, len, .. } => (fd, Direction::Write, Memory::Lent, (ptr.cast_mut(), len)),
            Op::SendVectored { fd, slices, count, .. } => {
                // SAFETY: the caller's promise.
                let memory = unsafe { Memory::gather(Direction::Write, slices, count) };
                (fd, Direction::Write, memory, NOT_LENT)
            }
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::RecvMessage { .. }
            | Op::RecvMessageManaged { .. }
            | Op::SendMessage { .. }
            | Op::Readiness { .. }
            | Op::File(_) => unreachable!("{op:?} is not for a pipe"),
        };
        let mut memory = memory;
        let (ptr, len) = match &mut memory {
            Memory::Lent => lent,
            Memory::Managed(buffer) => buffer.memory(),
            Memory::Gathered(bytes, ..) => (bytes.as_mut_ptr(), bytes.len()),
        };
        let call = Call {
            fd,
            direction,
            ptr,
            len: len.min(MAX_CALL_LEN) as u32,
        };
        (len > 0).then_some((call, memory))
    }

    /// Makes the call. `None` if it is in flight.
    ///
    /// # Safety
    ///
    /// The call's memory, the event and the OVERLAPPED stay valid until the call has ended.
    unsafe fn issue(self, event: &OwnedHandle, overlapped: *mut OVERLAPPED) -> Option<OsResult> {
        loop {
            let fresh = OVERLAPPED {
                // The lowest bit keeps the packet off a completion port that the handle may be associated with.
                hEvent: (event.as_raw_handle() as usize | 1) as HANDLE,
                ..OVERLAPPED::default()
            };
            let (pipe, none) = (handle(self.fd), std::ptr::null_mut());
            // SAFETY: the caller's promise; the kernel does not use the OVERLAPPED before the call.
            let done = unsafe {
                overlapped.write(fresh);
                match self.direction {
                    Direction::Read => ReadFile(pipe, self.ptr, self.len, none, overlapped),
                    Direction::Write => WriteFile(pipe, self.ptr, self.len, none, overlapped),
                }
            };
            if done == 0 {
                match last_code() as u32 {
                    ERROR_IO_PENDING => return None,
                    ERROR_MORE_DATA => {}
                    code => return Some(self.normalize(Err(code as i32))),
                }
            }
            // SAFETY: the call has ended.
            match unsafe { self.result(overlapped) } {
                // The writer wrote zero bytes; this is not the end of the pipe.
                Ok(0) if self.direction == Direction::Read => {}
                res => return Some(self.normalize(res)),
            }
        }
    }

    /// The call's result with the system's error codes. Blocks until the call has ended.
    ///
    /// # Safety
    ///
    /// The call was made with this OVERLAPPED.
    unsafe fn result(self, overlapped: *const OVERLAPPED) -> OsResult {
        let mut count = 0;
        // SAFETY: the caller's promise.
        match unsafe { GetOverlappedResult(handle(self.fd), overlapped, &mut count, 1) } {
            0 => match last_code() {
                // A message that is longer than the buffer; the next read returns the rest.
                code if code == ERROR_MORE_DATA as i32 => Ok(self.len),
                code => Err(code),
            },
            _ => Ok(count),
        }
    }

    /// The result as the layers above expect it: the end of a pipe is no error, and a broken pipe has one code.
    fn normalize(self, res: OsResult) -> OsResult {
        match (self.direction, res) {
            (Direction::Read, Err(code)) if sys::is_end(code) => Ok(0),
            (Direction::Write, Err(code)) => Err(sys::write_code(code)),
            (_, res) => res,
        }
    }
}
