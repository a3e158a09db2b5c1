//! What has become of an operation.

use windows_sys::Win32::Foundation::{ERROR_MORE_DATA, ERROR_NETNAME_DELETED};
use windows_sys::Win32::Networking::WinSock::{
    SO_UPDATE_ACCEPT_CONTEXT, SO_UPDATE_CONNECT_CONTEXT, SOCKET, SOL_SOCKET, WSAGetLastError, WSAGetOverlappedResult,
    setsockopt,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::Iocp;
use super::afd::{code, status_of};
use super::overlapped::{InFlight, Unconnected};
use super::start::Begun;
use crate::driver::op::{FileOp, Medium, Op};
use crate::driver::{self, BufferPool, Completion, OpResult, OsResult, PoolBuffer};
use crate::sys::{self, Fd, IoVec, Message, errno, socket};

impl Iocp {
    /// The port has given an OVERLAPPED out.
    ///
    /// # Safety
    ///
    /// It is a flight's that is in the air, and the kernel is done with it.
    pub(super) unsafe fn complete(&mut self, overlapped: *mut OVERLAPPED, count: u32, completed: &mut Vec<Completion>) {
        let air = overlapped.cast::<InFlight>();
        // SAFETY: the caller's promise; the OVERLAPPED is the first field.
        let (id, res) = unsafe { ((*air).id, outcome_of(&*air, count)) };
        if !self.air.is_in_flight(id, overlapped) {
            debug_assert!(false, "the port told twice of flight {id:?}");
            self.counters.stale_events += 1;
            return;
        }
        // SAFETY: the caller's promise.
        if let Some(op_result) = unsafe { self.finish(air, res) } {
            completed.push(Completion { id, result: op_result });
        }
    }

    /// An operation has ended, or only its first part: then the next is begun, and nothing landed yet.
    ///
    /// # Safety
    ///
    /// `air` is a flight's that is in the air, and nothing of it is with the kernel.
    pub(super) unsafe fn finish(&mut self, air: *mut InFlight, mut res: OsResult) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        let (id, op) = unsafe { ((*air).id, (*air).op) };
        loop {
            // What was waited for is there to be taken, unless somebody else took it.
            let taken = match (op, res) {
                (
                    Op::RecvManaged {
                        fd,
                        medium: Medium::Tcp | Medium::Unix,
                    },
                    Ok(_),
                ) => self.receive(|base, len| {
                    let medium = Medium::Tcp;
                    // SAFETY: the bytes go to a buffer that was just taken from the pool.
                    unsafe {
                        driver::perform(Op::Recv {
                            fd,
                            medium,
                            ptr: base,
                            len,
                        })
                    }
                }),
                // SAFETY: as above.
                (Op::RecvMessage { .. }, Ok(_)) => unsafe { driver::perform(op) }.map(OpResult::last),
                (Op::RecvMessageManaged { fd, message }, Ok(_)) => self.receive_message(fd, message),
                // Somebody has written nothing, which is not the end: that is an error here.
                (
                    Op::Recv {
                        medium: Medium::Pipe, ..
                    }
                    | Op::RecvVectored {
                        medium: Medium::Pipe, ..
                    }
                    | Op::RecvManaged {
                        medium: Medium::Pipe, ..
                    },
                    Ok(0),
                ) => None,
                (Op::Send { medium, .. } | Op::SendVectored { medium, .. }, Ok(_)) if medium != Medium::Pipe => {
                    // SAFETY: the flight has what its op points to, and nothing of it is with the kernel.
                    unsafe { driver::perform(op) }.map(OpResult::last)
                }
                // SAFETY: as above.
                (Op::SendMessage { .. }, Ok(_)) => unsafe { driver::perform(op) }.map(OpResult::last),
                _ => {
                    let (accepted, buffer) = self.air.touch_down(id);
                    // SAFETY: the flight has what its op points to, and the kernel is done with that.
                    return Some(unsafe { self.settle(op, res, accepted, buffer) });
                }
            };
            if let Some(op_result) = taken {
                self.air.touch_down(id);
                return Some(op_result);
            }
            if self.air.is_ending(id) {
                self.air.touch_down(id);
                return Some(OpResult::last(Err(errno::CANCELED)));
            }
            // SAFETY: the caller's promise; it is laid out anew.
            let again = unsafe {
                (*air).overlapped = std::mem::zeroed();
                self.call(air)
            };
            match again {
                Ok(Begun::Pending) => return None,
                Ok(Begun::Done(Ok(_))) if !self.skips(op) => return None,
                Ok(Begun::Done(next)) => res = next,
                Err(code) => res = Err(code),
            }
        }
    }

    /// Whether what ends at once is told by the call alone.
    fn skips(&mut self, op: Op) -> bool {
        let Some(fd) = op.fd() else { return false };
        matches!(
            self.fds.use_of(&self.port, fd),
            Ok(super::fd_table::Use::Overlapped { skips: true })
        )
    }

    /// A landing for what has ended.
    ///
    /// # Safety
    ///
    /// What `op` points to is there, and the kernel is done with it.
    unsafe fn settle(
        &mut self,
        op: Op,
        res: OsResult,
        accepted: Option<Unconnected>,
        buffer: Option<PoolBuffer>,
    ) -> OpResult {
        let res = match op {
            Op::Accept { fd } => accept(fd, res, accepted),
            Op::Connect { fd, .. } => res.inspect(|_| update(fd, SO_UPDATE_CONNECT_CONTEXT, &[])),
            Op::Recv {
                medium: Medium::Pipe, ..
            }
            | Op::RecvVectored {
                medium: Medium::Pipe, ..
            }
            | Op::RecvManaged {
                medium: Medium::Pipe, ..
            }
            | Op::File(FileOp::ReadAt { .. }) => end_of_file(res),
            Op::Recv { fd, .. } | Op::RecvVectored { fd, .. } | Op::RecvManaged { fd, .. } => {
                sys::end_of_stream(fd, res)
            }
            Op::Send { .. } | Op::SendVectored { .. } | Op::File(FileOp::WriteAt { .. }) => {
                res.map_err(|code| sys::told(sys::write_code(code)))
            }
            Op::Readiness { .. } => res.map(|_| 0),
            Op::RecvMessage { .. } | Op::RecvMessageManaged { .. } | Op::SendMessage { .. } | Op::File(_) => res,
        };
        match buffer {
            Some(mut buffer) => {
                // SAFETY: the kernel has written this many bytes, and is done.
                unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
                OpResult::with_buffer(res, buffer)
            }
            None => OpResult::last(res),
        }
    }

    /// A buffer of the pool's, for a receive.
    pub(super) fn take_buffer(&mut self) -> Option<PoolBuffer> {
        if self.pool.is_none() {
            let count = self.settings.managed_count.next_power_of_two();
            self.pool = BufferPool::new(count, self.settings.managed_len);
        }
        let buffer = self.pool.as_ref().and_then(BufferPool::take);
        self.counters.pool_empty += u64::from(buffer.is_none());
        buffer
    }

    /// Receives a message into a buffer of the pool. `None` if there is none.
    pub(super) fn receive_message(&mut self, fd: Fd, message: *mut Message) -> Option<OpResult> {
        self.receive(|base, len| {
            // SAFETY: the message is a flight's that has not landed, and nothing of it is with the kernel; the bytes go to a
            // buffer that was just taken from the pool.
            unsafe {
                let receive = |message: *mut Message| driver::perform(Op::RecvMessage { fd, message });
                (*message).divert(&mut IoVec { base, len }, receive)
            }
        })
    }

    /// Receives through `perform` into a buffer of the pool. `None` if there is nothing.
    fn receive(&mut self, perform: impl FnOnce(*mut u8, usize) -> Option<OsResult>) -> Option<OpResult> {
        let Some(mut buffer) = self.take_buffer() else {
            return Some(OpResult::last(Err(errno::NO_BUFFERS)));
        };
        let (ptr, len) = buffer.memory();
        let res = perform(ptr, len)?;
        // SAFETY: the system has just written this many bytes.
        unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
        Some(OpResult::with_buffer(res, buffer))
    }
}

/// What an OVERLAPPED that the port gave out says.
fn outcome_of(air: &InFlight, count: u32) -> OsResult {
    let status = status_of(&air.overlapped);
    if status >= 0 {
        return Ok(count);
    }
    match (is_of_winsock(air.op), air.op.fd()) {
        (true, Some(fd)) => Err(socket_code(fd, &air.overlapped)),
        // What was moved counts, although there is more.
        _ if code(status) == ERROR_MORE_DATA as i32 => Ok(count),
        _ => Err(code(status)),
    }
}

/// Whether an operation was begun by a call of Winsock's.
fn is_of_winsock(op: Op) -> bool {
    match op {
        Op::Recv { medium, .. } | Op::RecvManaged { medium, .. } | Op::RecvVectored { medium, .. } => {
            medium != Medium::Pipe
        }
        Op::Accept { .. } | Op::Connect { .. } => true,
        _ => false,
    }
}

/// Winsock's own code for how an operation has failed.
fn socket_code(fd: Fd, overlapped: &OVERLAPPED) -> i32 {
    let (mut count, mut flags) = (0, 0);
    // SAFETY: the OVERLAPPED is there and its operation is over: the call reads it, and writes the locals.
    let told = unsafe { WSAGetOverlappedResult(socket(fd), overlapped, &mut count, 0, &mut flags) };
    if told != 0 {
        return code(status_of(overlapped));
    }
    // SAFETY: this reads a number of the thread's.
    match unsafe { WSAGetLastError() } {
        // The name of a connection that is gone, as the file system puts it.
        code if code == ERROR_NETNAME_DELETED as i32 => errno::RESET,
        code => code,
    }
}

/// A connection has come, or the listener has to go on without it.
fn accept(listener: Fd, res: OsResult, accepted: Option<Unconnected>) -> OsResult {
    let Some(accepted) = accepted else {
        return res.and(Err(errno::INVALID));
    };
    match res {
        Ok(_) => {
            let listener = socket(listener);
            let bytes: [u8; size_of::<SOCKET>()] = listener.to_ne_bytes();
            update(accepted.fd(), SO_UPDATE_ACCEPT_CONTEXT, &bytes);
            Ok(accepted.keep() as u32)
        }
        // It was gone before it was taken.
        Err(errno::RESET) => Err(errno::ABORTED),
        Err(code) if code == ERROR_NETNAME_DELETED as i32 => Err(errno::ABORTED),
        Err(code) => Err(code),
    }
}

/// Makes a socket that was connected in an unusual way an ordinary one, with names and a shutdown.
fn update(fd: Fd, option: i32, value: &[u8]) {
    // A connection that is gone again refuses, and tells so when it is used.
    // SAFETY: Winsock reads the value, of the length that it is told.
    unsafe { setsockopt(socket(fd), SOL_SOCKET, option, value.as_ptr(), value.len() as i32) };
}

/// A read past the end, or of a pipe whose other end is closed, gives no bytes.
fn end_of_file(res: OsResult) -> OsResult {
    match res {
        Err(code) if sys::is_end(code) => Ok(0),
        res => res,
    }
}
