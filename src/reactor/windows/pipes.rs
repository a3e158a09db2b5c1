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
use std::os::windows::io::{AsRawHandle, OwnedHandle};
use std::sync::{Arc, Mutex};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEINWAITTHREAD, WT_EXECUTEONLYONCE,
};

use crate::driver::file_call::{FileCall, MORE_DATA, PENDING};
use crate::driver::op::{Direction, Medium, Op};
use crate::driver::pool::{PoolBuffer, ProvidedPool};
use crate::driver::{Completion, DriverCounters, Notify, OpId, OpResult, OsResult, SCRATCH_LEN, Scratch, Start};
use crate::reactor::poller::Notifier;
use crate::sys::{code_of, errno, handle, last_code, lock, new_event, transferred};

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
    call: FileCall,
    /// In the operation's scratch; the kernel owns it until the event is set.
    overlapped: *mut OVERLAPPED,
    /// The buffer of a managed receive.
    buffer: Option<PoolBuffer>,
    event: OwnedHandle,
    /// The registered wait for the event.
    wait: HANDLE,
    cancelled: bool,
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
        op.medium() == Some(Medium::Pipe)
    }

    /// Starts an operation; a managed receive takes a buffer of `pool`.
    /// Safety: as for [`Driver::start`](crate::driver::Driver::start).
    pub(in crate::reactor) unsafe fn start(
        &mut self,
        id: OpId,
        op: &Op,
        scratch: *mut Scratch,
        pool: &ProvidedPool,
        counters: &mut DriverCounters,
    ) -> Start {
        let buffer = matches!(op, Op::RecvManaged { .. }).then(|| pool.take(counters));
        let mut buffer = match buffer.transpose() {
            Ok(buffer) => buffer,
            Err(code) => return Start::Done(OpResult::new(Err(code))),
        };
        // SAFETY: the caller's promise.
        let Some(call) = (unsafe { FileCall::of(op, buffer.as_mut()) }).filter(|call| call.len > 0) else {
            return Start::Done(OpResult::new(Ok(0)));
        };
        let event = match self.spare_events.pop().map_or_else(new_event, Ok) {
            Ok(event) => event,
            Err(error) => return Start::Done(OpResult::new(Err(code_of(&error)))),
        };
        // SAFETY: the caller's promise: the operation owns its scratch, which is large enough, and the memory that `op`
        // points to until it completes. A pool buffer is kept until the call has ended.
        let ended = unsafe { self.start_call(id, call, buffer, event, scratch.cast()) };
        ended.map_or(Start::Pending, Start::Done)
    }

    /// Makes the call, and waits for its event unless it ends at once. `None` if the call is in flight.
    ///
    /// # Safety
    ///
    /// The call's memory and the OVERLAPPED belong to an operation that does not complete before the call has ended.
    unsafe fn start_call(
        &mut self,
        id: OpId,
        call: FileCall,
        buffer: Option<PoolBuffer>,
        event: OwnedHandle,
        overlapped: *mut OVERLAPPED,
    ) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        if let Some(res) = unsafe { issue(call, &event, overlapped) } {
            self.recycle(event);
            return Some(PoolBuffer::report(buffer, res));
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
                result_of(call, overlapped)
            };
            self.recycle(event);
            let res = match res {
                Err(errno::CANCELED) => Err(why),
                res => FileCall::normalize(call.direction, res),
            };
            return Some(PoolBuffer::report(buffer, res));
        }
        let pending = PendingCall {
            call,
            overlapped,
            buffer,
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
        let ids = std::mem::take(&mut *lock(&self.done.ids));
        for id in ids {
            if let Some(op_result) = self.pending.remove(&id).and_then(|pending| self.finish(id, pending)) {
                completed.push(Completion { id, result: op_result });
            }
        }
    }

    /// A call's event is set. `None` if the call is made again.
    fn finish(&mut self, id: OpId, pending: PendingCall) -> Option<OpResult> {
        let (call, overlapped) = (pending.call, pending.overlapped);
        // SAFETY: the wait was for one callback, which has run; nothing else uses the wait's handle. If the callback
        // has not yet returned, the system frees the wait when it does.
        unsafe { UnregisterWaitEx(pending.wait, std::ptr::null_mut()) };
        // SAFETY: the operation has not completed, so its scratch is valid. The event is set, so this does not block.
        let res = match unsafe { result_of(call, overlapped) } {
            // The writer wrote zero bytes; this is not the end of the pipe.
            Ok(0) if call.direction == Direction::Read && !pending.cancelled => {
                // SAFETY: as `start`'s caller promised; the operation has not completed yet.
                return unsafe { self.start_call(id, call, pending.buffer, pending.event, overlapped) };
            }
            Ok(0) if call.direction == Direction::Read => Err(errno::CANCELED),
            res => FileCall::normalize(call.direction, res),
        };
        self.recycle(pending.event);
        Some(PoolBuffer::report(pending.buffer, res))
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
    let mut ids = lock(&done.ids);
    ids.push(id);
    let is_first = ids.len() == 1;
    drop(ids);
    // Otherwise an earlier callback has woken the loop, which has not taken the ids yet.
    if is_first {
        done.notifier.notify();
    }
}

/// Makes the call. `None` if it is in flight.
///
/// # Safety
///
/// The call's memory, the event and the OVERLAPPED stay valid until the call has ended.
unsafe fn issue(call: FileCall, event: &OwnedHandle, overlapped: *mut OVERLAPPED) -> Option<OsResult> {
    // The lowest bit keeps the packet off a completion port that the handle may be associated with.
    let event = (event.as_raw_handle() as usize | 1) as HANDLE;
    loop {
        // SAFETY: the caller's promise.
        match unsafe { call.issue(overlapped, event) } {
            Err(PENDING) => return None,
            Ok(_) | Err(MORE_DATA) => {}
            res => return Some(FileCall::normalize(call.direction, res)),
        }
        // SAFETY: the call has ended.
        match unsafe { result_of(call, overlapped) } {
            // The writer wrote zero bytes; this is not the end of the pipe.
            Ok(0) if call.direction == Direction::Read => {}
            res => return Some(FileCall::normalize(call.direction, res)),
        }
    }
}

/// The call's result with the system's error codes. Blocks until the call has ended.
///
/// # Safety
///
/// The call was made with this OVERLAPPED.
unsafe fn result_of(call: FileCall, overlapped: *const OVERLAPPED) -> OsResult {
    let mut count = 0;
    // SAFETY: the caller's promise.
    let succeeded = unsafe { GetOverlappedResult(handle(call.fd), overlapped, &mut count, 1) };
    match transferred(succeeded, count) {
        Err(MORE_DATA) => Ok(call.len),
        res => res,
    }
}
