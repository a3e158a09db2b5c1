//! Ending an operation: turns an OVERLAPPED's status into a result, or starts the operation's next step.

use std::os::windows::io::{IntoRawSocket, OwnedSocket};

use windows_sys::Win32::Foundation::ERROR_NETNAME_DELETED;
use windows_sys::Win32::Networking::WinSock::{
    SO_UPDATE_ACCEPT_CONTEXT, SO_UPDATE_CONNECT_CONTEXT, SOL_SOCKET, WSAGetOverlappedResult, setsockopt,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::Iocp;
use super::afd::{status_of, win32_code};
use super::overlapped::IocpScratch;
use crate::driver::file_call::{FileCall, MORE_DATA, PENDING};
use crate::driver::op::{Direction, FileOp, Medium, Op};
use crate::driver::pool::PoolBuffer;
use crate::driver::{self, Completion, OpResult, OsResult};
use crate::sys::{self, Fd, errno, last_socket_code, socket};

impl Iocp {
    /// The port has returned an OVERLAPPED.
    ///
    /// # Safety
    ///
    /// It lies in the scratch of an operation that has not completed, and the kernel has finished with it.
    pub(super) unsafe fn complete(&mut self, overlapped: *mut OVERLAPPED, count: u32, completed: &mut Vec<Completion>) {
        let scratch = overlapped.cast::<IocpScratch>();
        // SAFETY: the caller's promise; the OVERLAPPED is the first field.
        let (id, res) = unsafe { ((*scratch).id, result_of(&*scratch, count)) };
        let entry = self.in_flight.entry(id);
        if entry.is_none_or(|entry| entry.overlapped != overlapped) {
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
    pub(super) unsafe fn finish(&mut self, scratch: *mut IocpScratch, mut res: OsResult) -> Option<OpResult> {
        // SAFETY: the caller's promise.
        let (id, op) = unsafe { ((*scratch).id, &*(*scratch).op) };
        loop {
            // The socket is ready: perform the operation without blocking. `None` if it is no longer ready: wait again.
            let is_pipe = op.medium() == Some(Medium::Pipe);
            let attempted = match (op, res) {
                // The writer wrote zero bytes. This is not the end of the pipe, which is reported as an error.
                (Op::Recv { .. } | Op::RecvVectored { .. } | Op::RecvManaged { .. }, Ok(0)) if is_pipe => None,
                // SAFETY: the operation owns the message, and the kernel does not use it.
                (Op::RecvManaged { .. } | Op::RecvMessageManaged { .. }, Ok(_)) if !is_pipe => unsafe {
                    driver::perform_managed(op, &self.pool, &mut self.counters)
                },
                (
                    Op::RecvMessage { .. } | Op::Send { .. } | Op::SendVectored { .. } | Op::SendMessage { .. },
                    Ok(_),
                ) if !is_pipe => {
                    // SAFETY: the operation owns the memory that `op` points to, and the kernel does not use it.
                    unsafe { driver::perform(op) }.map(OpResult::new)
                }
                _ => {
                    let (accepted, buffer) = self.in_flight.remove(id);
                    return Some(PoolBuffer::report(buffer, result(op, res, accepted)));
                }
            };
            if let Some(op_result) = attempted {
                self.in_flight.remove(id);
                return Some(op_result);
            }
            if self.in_flight.entry(id).is_some_and(|entry| entry.is_cancelled) {
                self.in_flight.remove(id);
                return Some(OpResult::new(Err(errno::CANCELED)));
            }
            // SAFETY: the caller's promise; the OVERLAPPED is reset.
            let again = unsafe {
                (*scratch).overlapped = OVERLAPPED::default();
                self.call(scratch)
            };
            match again {
                Err(PENDING) => return None,
                Ok(_) if !self.skips(op) => return None,
                next => res = next,
            }
        }
    }

    /// Whether an operation that succeeds at once queues no packet.
    fn skips(&mut self, op: &Op) -> bool {
        op.fd()
            .is_some_and(|fd| matches!(self.fds.skips(&self.port, fd), Ok(Some(true))))
    }
}

/// The result of an operation that has ended.
fn result(op: &Op, res: OsResult, accepted: Option<OwnedSocket>) -> OsResult {
    let is_pipe = op.medium() == Some(Medium::Pipe);
    match *op {
        Op::Accept { fd } => accept(fd, res, accepted),
        Op::Connect { fd, .. } => res.inspect(|_| set_socket_option(fd, SO_UPDATE_CONNECT_CONTEXT, &[])),
        Op::Recv { fd, .. } | Op::RecvVectored { fd, .. } | Op::RecvManaged { fd, .. } if !is_pipe => {
            sys::end_of_stream(fd, res)
        }
        Op::Recv { .. } | Op::RecvVectored { .. } | Op::RecvManaged { .. } | Op::File(FileOp::ReadAt { .. }) => {
            FileCall::normalize(Direction::Read, res)
        }
        Op::Send { .. } | Op::SendVectored { .. } | Op::File(FileOp::WriteAt { .. }) => {
            FileCall::normalize(Direction::Write, res).map_err(sys::portable_code)
        }
        Op::Readiness { .. } => res.map(|_| 0),
        Op::RecvMessage { .. }
        | Op::RecvMessageManaged { .. }
        | Op::SendMessage { .. }
        | Op::LookUp { .. }
        | Op::File(_) => res,
    }
}

/// The result in an OVERLAPPED that the port has returned.
fn result_of(scratch: &IocpScratch, count: u32) -> OsResult {
    let status = status_of(&scratch.overlapped);
    if status >= 0 {
        return Ok(count);
    }
    // SAFETY: the operation has not completed, so its op is in place.
    let op = unsafe { &*scratch.op };
    match (is_winsock_call(op), op.fd()) {
        (true, Some(fd)) => Err(socket_code(fd, &scratch.overlapped)),
        _ => match win32_code(status) {
            MORE_DATA => Ok(count),
            code => Err(code),
        },
    }
}

/// Whether a Winsock call started the operation.
fn is_winsock_call(op: &Op) -> bool {
    match *op {
        Op::Recv { .. } | Op::RecvManaged { .. } | Op::RecvVectored { .. } => op.medium() != Some(Medium::Pipe),
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
    match last_socket_code() {
        // Winsock does not translate this code, with which the kernel reports a reset connection.
        code if code == ERROR_NETNAME_DELETED as i32 => errno::RESET,
        code => code,
    }
}

/// The result of AcceptEx: the accepted socket, or an error after which the listener can go on.
fn accept(listener: Fd, res: OsResult, accepted: Option<OwnedSocket>) -> OsResult {
    let Some(accepted) = accepted else {
        return res.and(Err(errno::INVALID));
    };
    res.map_err(sys::accept_code)?;
    let accepted = sys::number_of_socket(accepted.into_raw_socket());
    set_socket_option(accepted, SO_UPDATE_ACCEPT_CONTEXT, &socket(listener).to_ne_bytes());
    Ok(accepted as u32)
}

/// Sets a socket option whose failure does no harm. The state of a socket that AcceptEx or ConnectEx connected is
/// completed in this way, for getpeername and shutdown: it fails if the connection is already gone, and then the next
/// operation reports that.
pub(super) fn set_socket_option(fd: Fd, option: i32, value: &[u8]) {
    // SAFETY: Winsock reads the value, whose length it is given.
    unsafe { setsockopt(socket(fd), SOL_SOCKET, option, value.as_ptr(), value.len() as i32) };
}
