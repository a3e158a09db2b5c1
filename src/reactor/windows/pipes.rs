//! Pipes, by overlapped calls: Windows does not tell when a pipe is ready.
//!
//! The call is made with the flight's own memory, and its OVERLAPPED lies in the flight's scratch. If it does not end at
//! once, the system is asked to call us when its event is set. That call comes on a thread of the system's own, one for
//! every 63 waits; it notes the flight's id and wakes the loop, which asks how the call went and lands the flight. Until
//! then the flight has not landed, so its memory and its handle stay.
//!
//! A cancel is a request: the call ends with what it has moved, or with nothing moved and an error. The system takes no
//! bytes out of a pipe for a read that it cancels.
//!
//! mio's own pipes read ahead and write behind, with buffers of their own: bytes would be lost when a pipe is given away.

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

/// The most that one call moves: as much as a pipe holds. A write ends only when all of it has been taken.
const MOST: usize = 64 * 1024;

/// No memory of the flight's.
const NONE: (*mut u8, usize) = (std::ptr::null_mut(), 0);

/// How many events are kept for later calls.
const SPARE: usize = 16;

const _: () = assert!(size_of::<OVERLAPPED>() <= SCRATCH_LEN && align_of::<OVERLAPPED>() <= align_of::<Scratch>());

/// The calls that are under way.
pub(in crate::reactor) struct Pipes {
    op_future: HashMap<OpId, OpFuture>,
    post: Arc<Post>,
    spare: Vec<OwnedHandle>,
}

/// What the waiting thread and the loop share.
struct Post {
    over: Mutex<Vec<OpId>>,
    notifier: Arc<Notifier>,
}

/// What the waiting thread is handed, to use once.
struct Ticket {
    post: Arc<Post>,
    id: OpId,
}

/// A call that is under way.
struct OpFuture {
    call: Call,
    /// In the flight's scratch: the kernel's until the event is set.
    overlapped: *mut OVERLAPPED,
    memory: Memory,
    event: OwnedHandle,
    /// The wait for the event.
    wait: HANDLE,
    cancelled: bool,
}

/// What a call reads from or writes to.
enum Memory {
    /// What the flight has lent.
    Lent,
    /// A buffer of the pool.
    Managed(PoolBuffer),
    /// Ours, since the system takes one piece at a time: what is in the flight's slices, or goes there in the end. A `Vec`
    /// may be moved while the kernel uses what it points to; a `Box` may not.
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
            op_future: HashMap::new(),
            post: Arc::new(Post {
                over: Mutex::default(),
                notifier: notifier.clone(),
            }),
            spare: Vec::new(),
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

    /// Starts an operation. One that is managed brings its buffer.
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
        let event = match self.spare.pop().map_or_else(new_event, Ok) {
            Ok(event) => event,
            Err(code) => return Start::Done(OpResult::last(Err(code))),
        };
        // SAFETY: the caller's promise: the flight owns its scratch, which is large enough, and what `op` points to, until
        // it lands. What else there is of memory is ours, and stays with the call.
        match unsafe { self.fly(id, call, memory, event, scratch.cast()) } {
            Some(op_result) => Start::Done(op_result),
            None => Start::Pending,
        }
    }

    /// Makes the call. `None` if it is under way.
    ///
    /// # Safety
    ///
    /// The memory of the call and the OVERLAPPED are the flight's, which has not landed and does not before the call is over.
    unsafe fn fly(
        &mut self,
        id: OpId,
        call: Call,
        memory: Memory,
        event: OwnedHandle,
        overlapped: *mut OVERLAPPED,
    ) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        if let Some(res) = unsafe { call.issue(&event, overlapped) } {
            self.keep(event);
            // SAFETY: the call is over, and its flight has not landed.
            return Some(unsafe { memory.complete(call, res) });
        }
        let post = self.post.clone();
        let ticket = Box::into_raw(Box::new(Ticket { post, id }));
        let mut wait = std::ptr::null_mut();
        let flags = WT_EXECUTEONLYONCE | WT_EXECUTEINWAITTHREAD;
        // SAFETY: the event stays open until the wait is over, with `OpFuture` or, if that is dropped, for ever. The ticket
        // is the callback's, which runs once, on any thread: all in it may go there.
        let waits = unsafe {
            let event = event.as_raw_handle();
            RegisterWaitForSingleObject(&mut wait, event, Some(on_event), ticket.cast(), INFINITE, flags)
        };
        if waits == 0 {
            let why = last_code();
            // SAFETY: nobody has taken it.
            drop(unsafe { Box::from_raw(ticket) });
            // SAFETY: the call is under way with this OVERLAPPED, and over when `outcome` returns.
            let res = unsafe {
                CancelIoEx(handle(call.fd), overlapped);
                call.res(overlapped)
            };
            self.keep(event);
            let res = match res {
                Err(errno::CANCELED) => Err(why),
                res => call.told(res),
            };
            // SAFETY: as above.
            return Some(unsafe { memory.complete(call, res) });
        }
        let op_future = OpFuture {
            call,
            overlapped,
            memory,
            event,
            wait,
            cancelled: false,
        };
        self.op_future.insert(id, op_future);
        None
    }

    fn keep(&mut self, event: OwnedHandle) {
        if self.spare.len() < SPARE {
            self.spare.push(event);
        }
    }

    /// Asks for the end of one that is under way; `None` if there is none, else whether it came in time.
    pub(in crate::reactor) fn cancel(&mut self, id: OpId) -> Option<bool> {
        let op_future = self.op_future.get_mut(&id)?;
        op_future.cancelled = true;
        // SAFETY: the call was made with this OVERLAPPED, and its flight has not landed.
        Some(unsafe { CancelIoEx(handle(op_future.call.fd), op_future.overlapped) } != 0)
    }

    /// Lands what is over.
    pub(in crate::reactor) fn complete(&mut self, completed: &mut Vec<Completion>) {
        if self.op_future.is_empty() {
            return;
        }
        let over = std::mem::take(&mut *self.post.over.lock().unwrap_or_else(PoisonError::into_inner));
        for id in over {
            if let Some(op_result) = self.op_future.remove(&id).and_then(|op_future| self.end(id, op_future)) {
                completed.push(Completion { id, result: op_result });
            }
        }
    }

    /// A call's event was set: how it went. `None` if it goes on.
    fn end(&mut self, id: OpId, op_future: OpFuture) -> Option<OpResult> {
        let OpFuture {
            call,
            overlapped,
            memory,
            event,
            wait,
            cancelled,
        } = op_future;
        // SAFETY: the wait has ended, once for all, and nobody else knows of it. If its callback has not quite returned,
        // the system frees it then.
        unsafe { UnregisterWaitEx(wait, std::ptr::null_mut()) };
        // SAFETY: the flight has not landed, so its scratch is there; and its event is set, so this does not wait.
        let res = match unsafe { call.res(overlapped) } {
            // Somebody has written nothing, which is not the end.
            Ok(0) if call.direction == Direction::Read && !cancelled => {
                // SAFETY: as `start`'s caller promised: the flight has still not landed.
                return unsafe { self.fly(id, call, memory, event, overlapped) };
            }
            Ok(0) if call.direction == Direction::Read => Err(errno::CANCELED),
            res => call.told(res),
        };
        self.keep(event);
        // SAFETY: the call is over, and its flight has not landed.
        Some(unsafe { memory.complete(call, res) })
    }
}

impl Drop for Pipes {
    /// What is still under way is the kernel's: its event and its memory are leaked, as its flight is.
    fn drop(&mut self) {
        for (_, op_future) in self.op_future.drain() {
            std::mem::forget(op_future);
        }
    }
}

/// A call's event is set. Runs on a thread of the system's.
unsafe extern "system" fn on_event(ticket: *mut c_void, _timed_out: bool) {
    // SAFETY: `fly` made it for this, the only call with it.
    let Ticket { post, id } = *unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    let is_first = {
        let mut over = post.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.push(id);
        over.len() == 1
    };
    // Whoever came before has woken the loop, which has not looked since.
    if is_first {
        post.notifier.notify();
    }
}

fn new_event() -> Result<OwnedHandle, i32> {
    // SAFETY: nothing is passed in. Reset by hand, and not set.
    let event = unsafe { CreateEventW(std::ptr::null(), 1, 0, std::ptr::null()) };
    if event.is_null() {
        return Err(last_code());
    }
    // SAFETY: it is new, and ours.
    Ok(unsafe { OwnedHandle::from_raw_handle(event) })
}

impl Memory {
    /// Gathers what several slices hold, or makes room for what is to go there.
    ///
    /// # Safety
    ///
    /// So many slices are there, and what they point to; for a write it may be read.
    unsafe fn gather(direction: Direction, slices: *const IoVec, count: usize) -> Memory {
        // SAFETY: the caller's promise.
        let all = unsafe { std::slice::from_raw_parts(slices, count) };
        let len = all
            .iter()
            .fold(0, |sum: usize, slice| sum.saturating_add(slice.len))
            .min(MOST);
        let mut bytes = Vec::with_capacity(len);
        for slice in all.iter().filter(|_| direction == Direction::Write) {
            let part = slice.len.min(len - bytes.len());
            // SAFETY: the caller's promise.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(slice.base, part) });
        }
        bytes.resize(len, 0);
        Memory::Gathered(bytes, slices, count)
    }

    /// The landing of a call that is over, with its bytes where they belong.
    ///
    /// # Safety
    ///
    /// The call was made with this memory, its flight has not landed, and the kernel is done with both.
    unsafe fn complete(self, call: Call, res: OsResult) -> OpResult {
        let moved = res.unwrap_or(0) as usize;
        match self {
            Memory::Managed(mut buffer) => {
                // SAFETY: the system has written this many bytes there.
                unsafe { buffer.set_filled(moved) };
                return OpResult::with_buffer(res, buffer);
            }
            Memory::Gathered(bytes, slices, count) if call.direction == Direction::Read => {
                // SAFETY: the caller's promise: the flight's slices are there.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let mut rest = &bytes[..moved];
                for slice in slices {
                    let (part, others) = rest.split_at(slice.len.min(rest.len()));
                    // SAFETY: what the slice points to is the flight's, for this, and it is as long as it says.
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
    /// The call that an operation comes to, and its memory; `None` if there is nothing to move.
    ///
    /// # Safety
    ///
    /// What `op` points to belongs to a flight that has not landed.
    unsafe fn of(op: Op, buffer: Option<PoolBuffer>) -> Option<(Call, Memory)> {
        let (fd, direction, memory, lent) = match op {
            Op::Recv { fd, ptr, len, .. } => (fd, Direction::Read, Memory::Lent, (ptr, len)),
            Op::RecvManaged { fd, .. } => (fd, Direction::Read, Memory::Managed(buffer?), NONE),
            Op::RecvVectored { fd, slices, count, .. } => {
                // SAFETY: the caller's promise.
                let memory = unsafe { Memory::gather(Direction::Read, slices, count) };
                (fd, Direction::Read, memory, NONE)
            }
            Op::Send { fd, ptr, len, .. } => (fd, Direction::Write, Memory::Lent, (ptr.cast_mut(), len)),
            Op::SendVectored { fd, slices, count, .. } => {
                // SAFETY: the caller's promise.
                let memory = unsafe { Memory::gather(Direction::Write, slices, count) };
                (fd, Direction::Write, memory, NONE)
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
            len: len.min(MOST) as u32,
        };
        (len > 0).then_some((call, memory))
    }

    /// Makes the call. `None` if it is under way.
    ///
    /// # Safety
    ///
    /// The call's memory, the event and the OVERLAPPED are the kernel's until it is over.
    unsafe fn issue(self, event: &OwnedHandle, overlapped: *mut OVERLAPPED) -> Option<OsResult> {
        loop {
            let fresh = OVERLAPPED {
                // The lowest bit keeps the end out of the completion port that the handle may belong to.
                hEvent: (event.as_raw_handle() as usize | 1) as HANDLE,
                ..OVERLAPPED::default()
            };
            let (pipe, none) = (handle(self.fd), std::ptr::null_mut());
            // SAFETY: the caller's promise; the OVERLAPPED is ours to write until the call is made.
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
                    code => return Some(self.told(Err(code as i32))),
                }
            }
            // SAFETY: the call is over.
            match unsafe { self.res(overlapped) } {
                // Somebody has written nothing, which is not the end.
                Ok(0) if self.direction == Direction::Read => {}
                res => return Some(self.told(res)),
            }
        }
    }

    /// How the call went, in the system's terms. Waits for its end, if that has not come.
    ///
    /// # Safety
    ///
    /// The call was made with this OVERLAPPED.
    unsafe fn res(self, overlapped: *const OVERLAPPED) -> OsResult {
        let mut count = 0;
        // SAFETY: the caller's promise.
        match unsafe { GetOverlappedResult(handle(self.fd), overlapped, &mut count, 1) } {
            0 => match last_code() {
                // A message that is longer than the room for it; the rest comes with the next.
                code if code == ERROR_MORE_DATA as i32 => Ok(self.len),
                code => Err(code),
            },
            _ => Ok(count),
        }
    }

    /// The same as the layers above know it: the end is no error, and a broken pipe has one code.
    fn told(self, res: OsResult) -> OsResult {
        match (self.direction, res) {
            (Direction::Read, Err(code)) if sys::is_end(code) => Ok(0),
            (Direction::Write, Err(code)) => Err(sys::write_code(code)),
            (_, res) => res,
        }
    }
}
