//! Starting an operation: an attempt without blocking where that is enough, then an overlapped call or an AFD poll.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::windows::io::{AsRawSocket, FromRawSocket, OwnedSocket, RawSocket};

use windows_sys::Win32::Networking::WinSock::{
    SO_REUSE_UNICASTPORT, SOCK_DGRAM, SOCKADDR_IN6, SOCKET, WSAEINVAL, WSARecv,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::Iocp;
use super::afd::Afd;
use super::complete::set_socket_option;
use super::overlapped::IocpScratch;
use crate::driver::file_call::{FileCall, MORE_DATA, PENDING};
use crate::driver::op::{Direction, FileOp, Medium, Op};
use crate::driver::{self, Completion, OpId, OpResult, OsResult, Scratch, Start};
use crate::sys::{self, Fd, IoVec, SocketKind, code_of, errno, handle, last_socket_code, socket};

/// The space that AcceptEx requires for each address: 16 bytes more than the largest address.
const ADDRESS_LEN: u32 = size_of::<SOCKADDR_IN6>() as u32 + 16;

impl Iocp {
    /// Starts an operation.
    /// Safety: as for [`Driver::start`](crate::driver::Driver::start).
    pub(super) unsafe fn begin(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        let done = |res: OsResult| Start::Done(OpResult::new(res));
        let fd = match *op {
            Op::File(FileOp::ReadAt { fd, .. } | FileOp::WriteAt { fd, .. }) => fd,
            _ => match op.waits_for() {
                Some((fd, _)) => fd,
                // Windows has no overlapped call for it.
                None => return Start::Blocking,
            },
        };
        if fd < 0 {
            return done(Err(errno::BAD_FD));
        }
        match op {
            Op::Send { .. } | Op::SendVectored { .. } if op.medium() == Some(Medium::Pipe) => {}
            // The send buffer usually has space.
            Op::Send { .. } | Op::SendVectored { .. } | Op::SendMessage { .. } | Op::RecvMessage { .. } => {
                // SAFETY: the caller's promise: the operation owns the op's memory, and the kernel does not use it.
                if let Some(res) = unsafe { driver::perform(op) } {
                    return done(res);
                }
            }
            Op::Readiness { .. } => {
                // A check is cheaper than an AFD poll. The result goes to `done`, so a watcher runs once per turn.
                // SAFETY: as above.
                if let Some(res) = unsafe { driver::perform(op) } {
                    let op_result = OpResult::new(res);
                    self.done.push(Completion { id, result: op_result });
                    return Start::Pending;
                }
            }
            Op::RecvMessageManaged { .. } => {
                // SAFETY: as above.
                let op_result = unsafe { driver::perform_managed(op, &self.pool, &mut self.counters) };
                if let Some(op_result) = op_result {
                    return Start::Done(op_result);
                }
            }
            Op::Connect { .. } if is_for_datagrams(fd) => {
                // SAFETY: as above.
                return done(unsafe { driver::perform(op) }.unwrap_or(Err(errno::AGAIN)));
            }
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Recv { .. }
            | Op::RecvManaged { .. }
            | Op::RecvVectored { .. }
            | Op::LookUp { .. }
            | Op::File(_) => {}
        }
        let skips = match waits_for_readiness(op) {
            // An AFD poll needs no association of the socket with the port, so the socket may be a foreign one.
            Some(_) => false,
            None => match (self.fds.skips(&self.port, fd), op) {
                (Ok(Some(skips)), _) => skips,
                (Ok(None), Op::File(_)) => return Start::Blocking,
                // A thread that reads an idle pipe could not be called back.
                (Ok(None), _) => return done(Err(errno::NOT_SUPPORTED)),
                (Err(error), _) => return done(Err(code_of(&error))),
            },
        };
        // SAFETY: the caller's promise: the scratch is the operation's, and the kernel does not use it.
        let scratch = unsafe { IocpScratch::prepare(scratch, id, op) };
        // The OVERLAPPED is the first field. Before the call, which attaches its socket or buffer to the entry.
        self.in_flight.insert(id, scratch.cast(), handle(fd));
        // SAFETY: the caller's promise, and the scratch was just laid out.
        match unsafe { self.call(scratch) } {
            Err(PENDING) => Start::Pending,
            // A call that succeeded without skipping the port completes when its packet is dequeued.
            Ok(_) if !skips => Start::Pending,
            // SAFETY: the call has ended, and queues no packet.
            res => unsafe { self.finish(scratch, res) }.map_or(Start::Pending, Start::Done),
        }
    }

    /// Makes the call for the operation that `scratch` is laid out for. [`PENDING`] means that the port will return the
    /// OVERLAPPED. With any other result the call has ended, or was not made; it queues no packet if it failed, or if
    /// the handle skips the port on success.
    ///
    /// # Safety
    ///
    /// `scratch` is that of an operation in flight, which owns it and its op's memory; the kernel uses neither. From
    /// now on the kernel owns both, until the port returns the OVERLAPPED or this reports the call's end.
    pub(super) unsafe fn call(&mut self, scratch: *mut IocpScratch) -> OsResult {
        // SAFETY: the caller's promise.
        let (op, id, overlapped) = unsafe { (&*(*scratch).op, (*scratch).id, &raw mut (*scratch).overlapped) };
        let is_managed = matches!(op, Op::RecvManaged { .. }) && op.medium() == Some(Medium::Pipe);
        let buffer = is_managed.then(|| self.pool.take(&mut self.counters));
        let mut buffer = buffer.transpose()?;
        // SAFETY: the caller's promise.
        if let Some(call) = unsafe { FileCall::of(op, buffer.as_mut()) } {
            if let Some(entry) = self.in_flight.entry(id) {
                entry.buffer = buffer;
            }
            // SAFETY: the caller's promise: the OVERLAPPED and the op's memory belong to the operation until it
            // completes; `in_flight` holds the buffer until then.
            return match unsafe { call.issue(overlapped, std::ptr::null_mut()) } {
                // A message that does not fit is a warning to the kernel, not an error, and queues a packet.
                Err(MORE_DATA) => Err(PENDING),
                res => res,
            };
        }
        // SAFETY, for every call below: as above. Counts and flags are locals, which the system does not use after the
        // call.
        match *op {
            // SAFETY: see above.
            Op::Accept { fd } => unsafe { self.accept(scratch, fd) },
            // SAFETY: see above.
            Op::Connect { fd, name } => unsafe { self.connect(overlapped, fd, &*name) },
            // SAFETY: see above.
            Op::Recv { fd, ptr, len, .. } => unsafe { recv(overlapped, fd, &[IoVec { base: ptr, len }]) },
            // SAFETY: see above.
            Op::RecvManaged { fd, .. } => unsafe { recv(overlapped, fd, &[IoVec::EMPTY]) },
            // SAFETY: see above.
            Op::RecvVectored { fd, slices, count, .. } => unsafe {
                recv(overlapped, fd, std::slice::from_raw_parts(slices, count))
            },
            Op::Send { .. }
            | Op::SendVectored { .. }
            | Op::SendMessage { .. }
            | Op::RecvMessage { .. }
            | Op::RecvMessageManaged { .. }
            | Op::Readiness { .. } => match waits_for_readiness(op) {
                // SAFETY: see above.
                Some((fd, direction)) => unsafe { self.wait_for(scratch, fd, direction) },
                None => Err(errno::INVALID),
            },
            // `begin` leaves these to a pool thread.
            Op::LookUp { .. } | Op::File(_) => Err(errno::NOT_SUPPORTED),
        }
    }

    /// Safety: as for [`call`](Iocp::call).
    unsafe fn accept(&mut self, scratch: *mut IocpScratch, fd: Fd) -> OsResult {
        let Some(accept) = self.extensions.accept(socket(fd))? else {
            return Err(errno::NO_SYSTEM_CALL);
        };
        let accepted = socket_like(fd)?;
        let mut count = 0;
        // SAFETY: the caller's promise: the scratch is the operation's, and has space for two addresses.
        let (overlapped, addresses, id) =
            unsafe { (&raw mut (*scratch).overlapped, &raw mut (*scratch).extra, (*scratch).id) };
        let new = accepted.as_raw_socket() as SOCKET;
        if let Some(entry) = self.in_flight.entry(id) {
            entry.socket = Some(accepted);
        }
        // SAFETY: as above; `in_flight` holds the new socket until the operation completes.
        let result = unsafe {
            accept(
                socket(fd),
                new,
                addresses.cast(),
                0,
                ADDRESS_LEN,
                ADDRESS_LEN,
                &mut count,
                overlapped,
            )
        };
        socket_result(result != 0, 0)
    }

    /// Safety: as for [`call`](Iocp::call).
    unsafe fn connect(&mut self, overlapped: *mut OVERLAPPED, fd: Fd, name: &sys::Name) -> OsResult {
        let Some(connect) = self.extensions.connect(socket(fd))? else {
            return Err(errno::NO_SYSTEM_CALL);
        };
        // ConnectEx needs a bound socket. SO_REUSE_UNICASTPORT lets connections to other peers share the local port;
        // systems before Windows 10 do not have the option.
        let anywhere = match name.as_socket().ok_or(errno::NO_FAMILY)? {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        set_socket_option(fd, SO_REUSE_UNICASTPORT, &1u32.to_ne_bytes());
        match sys::bind(fd, &anywhere.into()).map_err(|error| code_of(&error)) {
            // The socket is bound already.
            Ok(()) | Err(WSAEINVAL) => {}
            Err(code) => return Err(code),
        }
        // SAFETY: the caller's promise: the name and the OVERLAPPED belong to the operation until it completes.
        let result = unsafe {
            connect(
                socket(fd),
                name.as_ptr(),
                name.len(),
                std::ptr::null(),
                0,
                std::ptr::null_mut(),
                overlapped,
            )
        };
        socket_result(result != 0, 0)
    }

    /// Safety: as for [`call`](Iocp::call).
    unsafe fn wait_for(&mut self, scratch: *mut IocpScratch, fd: Fd, direction: Direction) -> OsResult {
        let afd = match &self.afd {
            Some(afd) => afd,
            None => {
                let opened = Afd::open(&self.port).map_err(|error| code_of(&error))?;
                self.afd.insert(opened)
            }
        };
        // SAFETY: the caller's promise.
        let (id, overlapped) = unsafe { ((*scratch).id, &raw mut (*scratch).overlapped) };
        // CancelIoEx needs the device's handle, not the socket's.
        self.in_flight.insert(id, overlapped, afd.handle());
        // SAFETY: the caller's promise.
        unsafe { afd.poll(scratch, fd, direction) }.and(Err(PENDING))
    }
}

/// What an operation waits for if it is attempted first, and again whenever the socket is ready.
fn waits_for_readiness(op: &Op) -> Option<(Fd, Direction)> {
    match *op {
        Op::Send { medium, .. } | Op::SendVectored { medium, .. } if medium == Medium::Pipe => None,
        Op::Send { .. }
        | Op::SendVectored { .. }
        | Op::SendMessage { .. }
        | Op::RecvMessage { .. }
        | Op::RecvMessageManaged { .. }
        | Op::Readiness { .. } => op.waits_for(),
        Op::Accept { .. }
        | Op::Connect { .. }
        | Op::Recv { .. }
        | Op::RecvManaged { .. }
        | Op::RecvVectored { .. }
        | Op::LookUp { .. }
        | Op::File(_) => None,
    }
}

fn is_for_datagrams(fd: Fd) -> bool {
    sys::with(fd, |socket| socket.r#type()).is_ok_and(|kind| i32::from(kind) == SOCK_DGRAM)
}

/// A new socket of the listener's family, for AcceptEx.
fn socket_like(listener: Fd) -> Result<OwnedSocket, i32> {
    let kind = match sys::with(listener, |socket| socket.local_addr()) {
        Ok(addr) if addr.is_ipv6() => SocketKind::TcpV6,
        Ok(_) => SocketKind::TcpV4,
        Err(error) => return Err(code_of(&error)),
    };
    let fd = sys::new_socket(kind).map_err(|error| code_of(&error))?;
    // SAFETY: the socket is new and ours.
    Ok(unsafe { OwnedSocket::from_raw_socket(fd as RawSocket) })
}

/// The result of a Winsock call: [`PENDING`] is also Winsock's code for a call in flight.
fn socket_result(has_succeeded: bool, count: u32) -> OsResult {
    match has_succeeded {
        true => Ok(count),
        false => Err(last_socket_code()),
    }
}

/// # Safety
///
/// The OVERLAPPED and the memory of the slices belong to an operation until it completes.
unsafe fn recv(overlapped: *mut OVERLAPPED, fd: Fd, slices: &[IoVec]) -> OsResult {
    let (mut count, mut flags) = (0, 0);
    // SAFETY: the caller's promise; the call copies the list of buffers.
    let result = sys::with_buffers(slices, |buffers, len| unsafe {
        WSARecv(socket(fd), buffers, len, &mut count, &mut flags, overlapped, None)
    });
    socket_result(result == 0, count)
}
