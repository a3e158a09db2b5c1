//! Starting an operation: an attempt without blocking where that is enough, then an overlapped call or an AFD poll.

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_MORE_DATA, HANDLE};
use windows_sys::Win32::Networking::WinSock::{
    SO_REUSE_UNICASTPORT, SOCK_DGRAM, SOCKADDR_IN6, SOCKET_ERROR, SOL_SOCKET, WSA_IO_PENDING, WSAEINVAL,
    WSAGetLastError, WSARecv, setsockopt,
};
use windows_sys::Win32::Storage::FileSystem::{ReadFile, WriteFile};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::Iocp;
use super::afd::Afd;
use super::fd_table::Use;
use super::overlapped::{InFlight, Unconnected};
use crate::driver::op::{CURRENT, Direction, FileOp, Medium, Op};
use crate::driver::{self, Completion, Control, OpId, OpResult, OsResult, Reply, Scratch, Start};
use crate::sys::{self, Fd, IoVec, SocketKind, errno, handle, socket};

/// The space that AcceptEx requires for each address: 16 bytes more than the largest address.
const ADDRESS_LEN: u32 = size_of::<SOCKADDR_IN6>() as u32 + 16;

/// The most that one pipe write passes on, as much as a pipe holds: a write ends only when all its bytes were taken.
const PIPE_LEN: usize = 64 * 1024;

/// The immediate result of a call that starts an operation.
pub(super) enum Begun {
    /// The port will return the OVERLAPPED.
    Pending,
    /// The call has ended. It queues no packet if it failed, or if the handle skips the port on success.
    Done(OsResult),
}

impl Iocp {
    /// Starts an operation.
    ///
    /// # Safety
    ///
    /// As for [`Driver::start`](crate::driver::Driver::start).
    pub(super) unsafe fn begin(&mut self, id: OpId, op: Op, scratch: *mut Scratch) -> Start {
        let done = |res: OsResult| Start::Done(OpResult::last(res));
        let fd = match op {
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
            Op::Send { medium, .. } | Op::SendVectored { medium, .. } if medium == Medium::Pipe => {}
            // The send buffer usually has space.
            Op::Send { .. } | Op::SendVectored { .. } | Op::SendMessage { .. } => {
                // SAFETY: the caller's promise: the operation owns the op's memory, and the kernel does not use it.
                if let Some(res) = unsafe { driver::perform(op) } {
                    return done(res);
                }
            }
            Op::Readiness { .. } => {
                // A check is cheaper than an AFD poll. The result goes to `done`, so a watcher runs once per turn.
                // SAFETY: as above.
                if let Some(res) = unsafe { driver::perform(op) } {
                    let op_result = OpResult::last(res);
                    self.done.push(Completion { id, result: op_result });
                    return Start::Pending;
                }
            }
            Op::RecvMessage { .. } => {
                // SAFETY: as above.
                if let Some(res) = unsafe { driver::perform(op) } {
                    return done(res);
                }
            }
            Op::RecvMessageManaged { fd, message } => {
                if let Some(op_result) = self.receive_message(fd, message) {
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
            | Op::File(_) => {}
        }
        // An AFD poll needs no association of the socket with the port, so the socket may be a foreign one.
        if let Some(direction) = waits_for_readiness(op) {
            // SAFETY: the caller's promise: the scratch is the operation's, and the kernel does not use it.
            let begun = unsafe {
                let scratch = InFlight::prepare(scratch, id, op);
                self.wait_for(scratch, fd, direction)
            };
            return match begun {
                Ok(_) => Start::Pending,
                Err(code) => {
                    self.in_flight.remove(id);
                    done(Err(code))
                }
            };
        }
        let skips = match self.fds.use_of(&self.port, fd) {
            Ok(Use::Overlapped { skips }) => skips,
            Ok(Use::Plain) => {
                return match op {
                    Op::File(_) => Start::Blocking,
                    // A thread that reads an idle pipe could not be called back.
                    _ => done(Err(errno::NOT_SUPPORTED)),
                };
            }
            Err(error) => return done(Err(crate::sys::os_code(&error).unwrap_or(errno::INVALID))),
        };
        // SAFETY: the caller's promise: the scratch is the operation's, and the kernel does not use it.
        let scratch = unsafe { InFlight::prepare(scratch, id, op) };
        // SAFETY: as above; this only takes an address.
        let overlapped = unsafe { &raw mut (*scratch).overlapped };
        // Before the call, which attaches its socket or buffer to the entry.
        self.in_flight.insert(id, overlapped, handle(fd));
        // SAFETY: the caller's promise, and the scratch was just laid out.
        match unsafe { self.call(scratch) } {
            Ok(Begun::Done(res)) if skips || res.is_err() => {
                // SAFETY: the call has ended, and queues no packet.
                match unsafe { self.finish(scratch, res) } {
                    Some(op_result) => Start::Done(op_result),
                    None => Start::Pending,
                }
            }
            // A call that succeeded without skipping the port completes when its packet is dequeued.
            Ok(Begun::Done(_) | Begun::Pending) => Start::Pending,
            Err(code) => {
                self.in_flight.remove(id);
                done(Err(code))
            }
        }
    }

    /// Makes the call for the operation that `scratch` is laid out for. An error means that the call was not made.
    ///
    /// # Safety
    ///
    /// `scratch` is that of an operation in flight, which owns it and its op's memory; the kernel uses neither. From
    /// now on the kernel owns both, until the port returns the OVERLAPPED or this reports the call's end.
    pub(super) unsafe fn call(&mut self, scratch: *mut InFlight) -> Result<Begun, i32> {
        // SAFETY: the caller's promise.
        let (op, id, overlapped) = unsafe { ((*scratch).op, (*scratch).id, &raw mut (*scratch).overlapped) };
        // SAFETY, for every call below: the caller's promise: the OVERLAPPED and the op's memory belong to the
        // operation until it completes. Counts and flags are locals, which the system does not use after the call.
        match op {
            // SAFETY: see above.
            Op::Accept { fd } => unsafe { self.accept(scratch, fd) },
            // SAFETY: see above.
            Op::Connect { fd, name } => unsafe { self.connect(overlapped, fd, &*name) },
            Op::Recv { fd, medium, ptr, len } => match medium {
                // SAFETY: see above.
                Medium::Pipe => Ok(unsafe { read(overlapped, fd, ptr, len, 0) }),
                // SAFETY: see above.
                _ => Ok(unsafe { recv(overlapped, fd, &[IoVec { base: ptr, len }]) }),
            },
            Op::RecvManaged {
                fd,
                medium: Medium::Pipe,
            } => {
                let Some(mut buffer) = self.take_buffer() else {
                    return Err(errno::NO_BUFFERS);
                };
                let (ptr, len) = buffer.memory();
                self.in_flight.hold_buffer(id, buffer);
                // SAFETY: see above; `in_flight` holds the buffer until the operation completes.
                Ok(unsafe { read(overlapped, fd, ptr, len, 0) })
            }
            Op::RecvManaged { fd, .. } => {
                let nothing = IoVec {
                    base: std::ptr::null_mut(),
                    len: 0,
                };
                // SAFETY: see above.
                Ok(unsafe { recv(overlapped, fd, &[nothing]) })
            }
            Op::RecvVectored {
                fd,
                medium,
                slices,
                count,
            } => {
                // SAFETY: see above.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let first = slices.iter().find(|slice| slice.len > 0).unwrap_or(&slices[0]);
                match medium {
                    // SAFETY: see above.
                    Medium::Pipe => Ok(unsafe { read(overlapped, fd, first.base, first.len, 0) }),
                    // SAFETY: see above.
                    _ => Ok(unsafe { recv(overlapped, fd, slices) }),
                }
            }
            Op::Send {
                fd,
                medium: Medium::Pipe,
                ptr,
                len,
                // SAFETY: see above.
            } => Ok(unsafe { write(overlapped, fd, ptr, len.min(PIPE_LEN), 0) }),
            Op::SendVectored {
                fd,
                medium: Medium::Pipe,
                slices,
                count,
            } => {
                // SAFETY: see above.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let first = slices.iter().find(|slice| slice.len > 0).unwrap_or(&slices[0]);
                // SAFETY: see above.
                Ok(unsafe { write(overlapped, fd, first.base, first.len.min(PIPE_LEN), 0) })
            }
            Op::Send { .. }
            | Op::SendVectored { .. }
            | Op::SendMessage { .. }
            | Op::RecvMessage { .. }
            | Op::RecvMessageManaged { .. }
            | Op::Readiness { .. } => match (op.fd(), waits_for_readiness(op)) {
                // SAFETY: see above.
                (Some(fd), Some(direction)) => unsafe { self.wait_for(scratch, fd, direction) },
                _ => Err(errno::INVALID),
            },
            Op::File(FileOp::ReadAt { fd, ptr, len, offset }) => {
                let at = if offset == CURRENT { 0 } else { offset };
                // SAFETY: see above.
                Ok(unsafe { read(overlapped, fd, ptr, len, at) })
            }
            // All bits set are the end of the file, which is where what has no position is written.
            Op::File(FileOp::WriteAt { fd, ptr, len, offset }) => {
                // SAFETY: see above.
                Ok(unsafe { write(overlapped, fd, ptr, len, offset) })
            }
            // `begin` leaves these to a thread.
            Op::File(
                FileOp::Open { .. }
                | FileOp::ReadVectoredAt { .. }
                | FileOp::WriteVectoredAt { .. }
                | FileOp::Sync { .. }
                | FileOp::Stat { .. }
                | FileOp::Truncate { .. }
                | FileOp::Allocate { .. }
                | FileOp::Rename { .. }
                | FileOp::Remove { .. }
                | FileOp::MakeDir { .. }
                | FileOp::HardLink { .. }
                | FileOp::SymLink { .. },
            ) => Err(errno::NOT_SUPPORTED),
        }
    }

    /// # Safety
    ///
    /// As for [`call`](Iocp::call).
    unsafe fn accept(&mut self, scratch: *mut InFlight, fd: Fd) -> Result<Begun, i32> {
        let accept = self.extensions.accept(socket(fd))?;
        let Some(accept) = accept else {
            return Err(errno::NO_SYSTEM_CALL);
        };
        let accepted = socket_like(fd)?;
        let mut count = 0;
        // SAFETY: the caller's promise: the scratch is the operation's, and has space for two addresses.
        let (overlapped, addresses, id) =
            unsafe { (&raw mut (*scratch).overlapped, &raw mut (*scratch).extra, (*scratch).id) };
        let new = socket(accepted.fd());
        self.in_flight.hold_socket(id, accepted);
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
        Ok(begun_socket(if result == 0 { SOCKET_ERROR } else { 0 }, 0))
    }

    /// # Safety
    ///
    /// As for [`call`](Iocp::call).
    unsafe fn connect(&mut self, overlapped: *mut OVERLAPPED, fd: Fd, name: &sys::Name) -> Result<Begun, i32> {
        let connect = self.extensions.connect(socket(fd))?;
        let Some(connect) = connect else {
            return Err(errno::NO_SYSTEM_CALL);
        };
        // ConnectEx needs a bound socket. SO_REUSE_UNICASTPORT lets connections to other peers share the local port;
        // systems before Windows 10 do not have the option.
        let anywhere = name.anywhere_like().ok_or(errno::NO_FAMILY)?;
        let (on, len) = (1u32, size_of::<u32>() as i32);
        // SAFETY: Winsock reads the local, whose length it is given.
        unsafe {
            setsockopt(
                socket(fd),
                SOL_SOCKET,
                SO_REUSE_UNICASTPORT,
                (&raw const on).cast(),
                len,
            )
        };
        if let Err(error) = sys::bind(fd, &anywhere) {
            match error.raw_os_error() {
                // The socket is bound already.
                Some(WSAEINVAL) => {}
                code => return Err(code.unwrap_or(errno::INVALID)),
            }
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
        Ok(begun_socket(if result == 0 { SOCKET_ERROR } else { 0 }, 0))
    }

    /// # Safety
    ///
    /// As for [`call`](Iocp::call).
    unsafe fn wait_for(&mut self, scratch: *mut InFlight, fd: Fd, direction: Direction) -> Result<Begun, i32> {
        let afd = match &self.afd {
            Some(afd) => afd,
            None => {
                let opened = Afd::open(&self.port);
                let opened = opened.map_err(|error| crate::sys::os_code(&error).unwrap_or(errno::INVALID))?;
                self.afd.insert(opened)
            }
        };
        // SAFETY: the caller's promise.
        let (id, overlapped) = unsafe { ((*scratch).id, &raw mut (*scratch).overlapped) };
        // CancelIoEx needs the device's handle, not the socket's.
        self.in_flight.insert(id, overlapped, afd.handle());
        // SAFETY: the caller's promise.
        unsafe { afd.poll(scratch, fd, direction) }.map(|()| Begun::Pending)
    }
}

/// The direction that an operation waits for if it is attempted first, and again whenever the socket is ready.
fn waits_for_readiness(op: Op) -> Option<Direction> {
    match op {
        Op::Readiness { direction, .. } => Some(direction),
        Op::RecvMessage { .. } | Op::RecvMessageManaged { .. } => Some(Direction::Read),
        Op::SendMessage { .. } => Some(Direction::Write),
        Op::Send { medium, .. } | Op::SendVectored { medium, .. } => {
            (medium != Medium::Pipe).then_some(Direction::Write)
        }
        Op::Accept { .. }
        | Op::Connect { .. }
        | Op::Recv { .. }
        | Op::RecvManaged { .. }
        | Op::RecvVectored { .. }
        | Op::File(_) => None,
    }
}

fn is_for_datagrams(fd: Fd) -> bool {
    sys::with(fd, |socket| socket.r#type()).is_ok_and(|kind| i32::from(kind) == SOCK_DGRAM)
}

/// A new socket of the listener's family, for AcceptEx.
fn socket_like(listener: Fd) -> Result<Unconnected, i32> {
    let code = |error: std::io::Error| error.raw_os_error().unwrap_or(errno::INVALID);
    let kind = match sys::with(listener, |socket| socket.local_addr())
        .map_err(code)?
        .is_ipv6()
    {
        true => SocketKind::TcpV6,
        false => SocketKind::TcpV4,
    };
    match driver::control(Control::Socket { kind }).map_err(code)? {
        Reply::Fd(fd) => Ok(Unconnected::new(fd)),
        other => unreachable!("Control::Socket returned {other:?}"),
    }
}

/// The result of a Winsock call.
fn begun_socket(result: i32, count: u32) -> Begun {
    if result != SOCKET_ERROR {
        return Begun::Done(Ok(count));
    }
    // SAFETY: this reads a thread-local error code.
    match unsafe { WSAGetLastError() } {
        WSA_IO_PENDING => Begun::Pending,
        code => Begun::Done(Err(code)),
    }
}

/// The result of ReadFile or WriteFile.
fn begun_file(result: i32, count: u32) -> Begun {
    if result != 0 {
        return Begun::Done(Ok(count));
    }
    match sys::last_code() {
        // A message that does not fit is a warning to the kernel, not an error, and queues a packet.
        code if [ERROR_IO_PENDING, ERROR_MORE_DATA].contains(&(code as u32)) => Begun::Pending,
        code => Begun::Done(Err(code)),
    }
}

/// # Safety
///
/// The OVERLAPPED and the memory of the slices belong to an operation until it completes.
unsafe fn recv(overlapped: *mut OVERLAPPED, fd: Fd, slices: &[IoVec]) -> Begun {
    let (mut count, mut flags) = (0, 0);
    // SAFETY: the caller's promise; the call copies the list of buffers.
    let result = sys::with_buffers(slices, |buffers, len| unsafe {
        WSARecv(socket(fd), buffers, len, &mut count, &mut flags, overlapped, None)
    });
    begun_socket(result, count)
}

/// # Safety
///
/// The OVERLAPPED and `len` bytes from `ptr` on belong to an operation until it completes.
unsafe fn read(overlapped: *mut OVERLAPPED, fd: Fd, ptr: *mut u8, len: usize, offset: u64) -> Begun {
    let mut count = 0;
    // SAFETY: the caller's promise.
    unsafe {
        overlapped.write(sys::place(offset));
        let handle: HANDLE = handle(fd);
        begun_file(ReadFile(handle, ptr, len as u32, &mut count, overlapped), count)
    }
}

/// # Safety
///
/// As for [`read`].
unsafe fn write(overlapped: *mut OVERLAPPED, fd: Fd, ptr: *const u8, len: usize, offset: u64) -> Begun {
    let mut count = 0;
    // SAFETY: the caller's promise.
    unsafe {
        overlapped.write(sys::place(offset));
        let handle: HANDLE = handle(fd);
        begun_file(WriteFile(handle, ptr, len as u32, &mut count, overlapped), count)
    }
}
