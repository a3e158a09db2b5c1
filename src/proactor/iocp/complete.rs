//! Ending an operation: turns an OVERLAPPED's status into a result, or starts the operation's next step.

use windows_sys::Win32::Foundation::{ERROR_MORE_DATA, ERROR_NETNAME_DELETED};
use windows_sys::Win32::Networking::WinSock::{
    SO_UPDATE_ACCEPT_CONTEXT, SO_UPDATE_CONNECT_CONTEXT, SOCKET, SOL_SOCKET, WSAGetLastError, WSAGetOverlappedResult,
    setsockopt,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::Iocp;
use super::afd::{status_of, win32_code};
use super::overlapped::{InFlight, Unconnected};
use super::start::Begun;
use crate::driver::op::{FileOp, Medium, Op};
use crate::driver::{self, BufferPool, Completion, OpResult, OsResult, PoolBuffer};
use crate::sys::{self, Fd, IoVec, Message, errno, socket};

impl Iocp {
    /// The port has returned an OVERLAPPED.
    ///
    /// # Safety
    ///
    /// It lies in the scratch of an operation that has not completed, and the kernel has finished with it.
    pub(super) unsafe fn complete(&mut self, overlapped: *mut OVERLAPPED, count: u32, completed: &mut Vec<Completion>) {
        let scratch = overlapped.cast::<InFlight>();
        // SAFETY: the caller's promise; the OVERLAPPED is the first field.
        let (id, res) = unsafe { ((*scratch).id, result_of(&*scratch, count)) };
        if !self.in_flight.contains(id, overlapped) {
            debug_assert!(false, "the port returned operation {id:?} twice");
            self.counters.stale_events += 1;
            return;
        }
        // SAFETY: the caller's promise.
        if let Some(op_result) = unsafe { self.finish(scratch, res) } {
            completed.push(Completion { id, result: op_result });
        }
    }

    /// A call has ended: either the operation has its result, or the next call is made and this returns `None`.
    ///
    /// # Safety
    ///
    /// `scratch` is that of an operation in flight, and the kernel does not use it.
    pub(super) unsafe fn finish(&mut self, scratch: *mut InFlight, mut res: OsResult) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        let (id, op) = unsafe { ((*scratch).id, (*scratch).op) };
        loop {
            // The socket is ready: perform the operation without blocking. `None` if it is no longer ready: wait again.
            let attempted = match (op, res) {
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
                // SAFETY: the operation owns the message, and the kernel does not use it.
                (Op::RecvMessage { .. }, Ok(_)) => unsafe { driver::perform(op) }.map(OpResult::last),
                (Op::RecvMessageManaged { fd, message }, Ok(_)) => self.receive_message(fd, message),
                // The writer wrote zero bytes. This is not the end of the pipe, which is reported as an error.
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
                    // SAFETY: the operation owns the memory that `op` points to, and the kernel does not use it.
                    unsafe { driver::perform(op) }.map(OpResult::last)
                }
                // SAFETY: as above.
                (Op::SendMessage { .. }, Ok(_)) => unsafe { driver::perform(op) }.map(OpResult::last),
                _ => {
                    let (accepted, buffer) = self.in_flight.remove(id);
                    // SAFETY: the operation owns the memory that `op` points to, and the kernel has finished with it.
                    return Some(unsafe { self.result(op, res, accepted, buffer) });
                }
            };
            if let Some(op_result) = attempted {
                self.in_flight.remove(id);
                return Some(op_result);
            }
            if self.in_flight.is_cancelled(id) {
                self.in_flight.remove(id);
                return Some(OpResult::last(Err(errno::CANCELED)));
            }
            // SAFETY: the caller's promise; the OVERLAPPED is reset.
            let again = unsafe {
                (*scratch).overlapped = std::mem::zeroed();
                self.call(scratch)
            };
            match again {
                Ok(Begun::Pending) => return None,
                Ok(Begun::Done(Ok(_))) if !self.skips(op) => return None,
                Ok(Begun::Done(next)) => res = next,
                Err(code) => res = Err(code),
            }
        }
    }

    /// Whether an operation that succeeds at once queues no packet.
    fn skips(&mut self, op: Op) -> bool {
        let Some(fd) = op.fd() else { return false };
        matches!(
            self.fds.use_of(&self.port, fd),
            Ok(super::fd_table::Use::Overlapped { skips: true })
        )
    }

    /// The result of an operation that has ended.
    ///
    /// # Safety
    ///
    /// The memory that `op` points to is valid, and the kernel has finished with it.
    unsafe fn result(
        &mut self,
        op: Op,
        res: OsResult,
        accepted: Option<Unconnected>,
        buffer: Option<PoolBuffer>,
    ) -> OpResult {
        let res = match op {
            Op::Accept { fd } => accept(fd, res, accepted),
            Op::Connect { fd, .. } => res.inspect(|_| update_context(fd, SO_UPDATE_CONNECT_CONTEXT, &[])),
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
                // SAFETY: the kernel has written this many bytes.
                unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
                OpResult::with_buffer(res, buffer)
            }
            None => OpResult::last(res),
        }
    }

    /// Takes a buffer from the pool, which the first call creates.
    pub(super) fn take_buffer(&mut self) -> Option<PoolBuffer> {
        if self.pool.is_none() {
            let count = self.settings.managed_count.next_power_of_two();
            self.pool = BufferPool::new(count, self.settings.managed_len);
        }
        let buffer = self.pool.as_ref().and_then(BufferPool::take);
        self.counters.pool_empty += u64::from(buffer.is_none());
        buffer
    }

    /// Receives a message into a pool buffer. `None` if none has arrived.
    pub(super) fn receive_message(&mut self, fd: Fd, message: *mut Message) -> Option<OpResult> {
        self.receive(|base, len| {
            // SAFETY: the message belongs to an operation that has not completed, and the kernel does not use it. The
            // bytes go to a buffer that was just taken from the pool.
            unsafe {
                let receive = |message: *mut Message| driver::perform(Op::RecvMessage { fd, message });
                (*message).divert(&mut IoVec { base, len }, receive)
            }
        })
    }

    /// Receives with `perform` into a pool buffer. `None` if it would block.
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

/// The result in an OVERLAPPED that the port has returned.
fn result_of(scratch: &InFlight, count: u32) -> OsResult {
    let status = status_of(&scratch.overlapped);
    if status >= 0 {
        return Ok(count);
    }
    match (is_winsock_call(scratch.op), scratch.op.fd()) {
        (true, Some(fd)) => Err(socket_code(fd, &scratch.overlapped)),
        // A pipe message longer than the buffer: the next read returns the rest.
        _ if win32_code(status) == ERROR_MORE_DATA as i32 => Ok(count),
        _ => Err(win32_code(status)),
    }
}

/// Whether a Winsock call started the operation.
fn is_winsock_call(op: Op) -> bool {
    match op {
        Op::Recv { medium, .. } | Op::RecvManaged { medium, .. } | Op::RecvVectored { medium, .. } => {
            medium != Medium::Pipe
        }
        Op::Accept { .. } | Op::Connect { .. } => true,
        _ => false,
    }
}

/// Winsock's error code for an operation that failed.
fn socket_code(fd: Fd, overlapped: &OVERLAPPED) -> i32 {
    let (mut count, mut flags) = (0, 0);
    // SAFETY: the OVERLAPPED is valid and its operation has ended: the call reads it, and writes the locals.
    let succeeded = unsafe { WSAGetOverlappedResult(socket(fd), overlapped, &mut count, 0, &mut flags) };
    if succeeded != 0 {
        return win32_code(status_of(overlapped));
    }
    // SAFETY: this reads a thread-local error code.
    match unsafe { WSAGetLastError() } {
        // Winsock does not translate this code, with which the kernel reports a reset connection.
        code if code == ERROR_NETNAME_DELETED as i32 => errno::RESET,
        code => code,
    }
}

/// The result of AcceptEx: the accepted socket, or an error after which the listener can go on.
fn accept(listener: Fd, res: OsResult, accepted: Option<Unconnected>) -> OsResult {
    let Some(accepted) = accepted else {
        return res.and(Err(errno::INVALID));
    };
    match res {
        Ok(_) => {
            let listener = socket(listener);
            let bytes: [u8; size_of::<SOCKET>()] = listener.to_ne_bytes();
            update_context(accepted.fd(), SO_UPDATE_ACCEPT_CONTEXT, &bytes);
            Ok(accepted.keep() as u32)
        }
        // The peer reset the connection before it was accepted.
        Err(errno::RESET) => Err(errno::ABORTED),
        Err(code) if code == ERROR_NETNAME_DELETED as i32 => Err(errno::ABORTED),
        Err(code) => Err(code),
    }
}

/// Completes the state of a socket that AcceptEx or ConnectEx connected; getpeername and shutdown need it.
fn update_context(fd: Fd, option: i32, value: &[u8]) {
    // It fails if the connection is already gone; the next operation reports that.
    // SAFETY: Winsock reads the value, whose length it is given.
    unsafe { setsockopt(socket(fd), SOL_SOCKET, option, value.as_ptr(), value.len() as i32) };
}

/// A read past the end of a file, or of a pipe whose writer is closed, returns zero bytes.
fn end_of_file(res: OsResult) -> OsResult {
    match res {
        Err(code) if sys::is_end(code) => Ok(0),
        res => res,
    }
}
