//! Socket calls that return `None` instead of blocking, and pipe calls that block: the drivers use overlapped calls for
//! pipes, and only a pool thread makes these.
//!
//! A reactor makes such a call first, and again each time the socket is reported ready. Every socket is non-blocking.
//! That is a property of the socket, which duplicates share, and Winsock has no `MSG_DONTWAIT`: if another holder makes
//! the socket blocking, these calls block.
//!
//! # Safety
//!
//! The unsafe functions require that buffers, slices and messages are valid, of the given length and not used otherwise
//! until the call returns.

use std::borrow::Cow;
use std::cell::RefCell;
use std::os::windows::io::IntoRawSocket;

use windows_sys::Win32::Foundation::{
    ERROR_CONNECTION_ABORTED, ERROR_HOST_UNREACHABLE, ERROR_NETNAME_DELETED, ERROR_NETWORK_UNREACHABLE,
    ERROR_SEM_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::{
    MSG_PEEK, POLLERR, POLLRDNORM, POLLWRNORM, SOCKADDR, SOCKET_ERROR, WSABUF, WSAEINPROGRESS, WSAEMSGSIZE,
    WSAESHUTDOWN, WSAEWOULDBLOCK, WSAPOLLFD, WSAPoll, WSARecv, WSARecvFrom, WSASend, WSASendTo,
    connect as connect_socket,
};

use super::message::Message;
use super::{Fd, IoVec, Name, errno, files, last_socket_code, number_of_socket, options, socket, with};
use crate::sys::{Direction, Medium, OsResult, code_of};

/// Receives into one buffer.
pub(crate) unsafe fn recv(fd: Fd, medium: Medium, ptr: *mut u8, len: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    unsafe { recv_vectored(fd, medium, &IoVec { base: ptr, len }, 1) }
}

/// Sends from one buffer.
pub(crate) unsafe fn send(fd: Fd, medium: Medium, ptr: *const u8, len: usize) -> Option<OsResult> {
    let base = ptr.cast_mut();
    // SAFETY: the caller's promise.
    unsafe { send_vectored(fd, medium, &IoVec { base, len }, 1) }
}

/// The portable result of a receive on a connection: as on other systems, a receive after a shutdown is the end of the
/// stream.
///
/// Under Wine an end of stream may be a reset: its server clears the socket's error when it checks for readiness, and
/// only a poll still reports it. Windows returns the error.
pub(crate) fn end_of_stream(fd: Fd, res: OsResult) -> OsResult {
    match res {
        Err(errno::BROKEN_PIPE | WSAESHUTDOWN) => Ok(0),
        Ok(0) if super::is_wine() && was_reset(fd) => Err(errno::RESET),
        res => res,
    }
}

fn was_reset(fd: Fd) -> bool {
    matches!(look(fd, POLLRDNORM), Some(Ok(events)) if events & POLLERR != 0)
}

/// The result of a Winsock call; `None` if it would block.
fn settle(result: i32, count: u32) -> Option<OsResult> {
    if result != SOCKET_ERROR {
        return Some(Ok(count));
    }
    match last_socket_code() {
        WSAEWOULDBLOCK => None,
        code => Some(Err(portable_code(code))),
    }
}

/// The portable error code: as on other systems, a send after a shutdown is a broken pipe.
pub(crate) fn portable_code(code: i32) -> i32 {
    match code {
        WSAESHUTDOWN => errno::BROKEN_PIPE,
        code => code,
    }
}

/// The slices as `WSABUF`s, for the length of a call.
pub(crate) fn with_buffers<T>(slices: &[IoVec], call: impl FnOnce(*const WSABUF, u32) -> T) -> T {
    const FEW: usize = 16;
    let as_buffer = |slice: &IoVec| WSABUF {
        len: slice.len.min(u32::MAX as usize) as u32,
        buf: slice.base,
    };
    if slices.len() <= FEW {
        let mut few = [WSABUF {
            len: 0,
            buf: std::ptr::null_mut(),
        }; FEW];
        for (place, slice) in few.iter_mut().zip(slices) {
            *place = as_buffer(slice);
        }
        return call(few.as_ptr(), slices.len() as u32);
    }
    let many: Vec<WSABUF> = slices.iter().map(as_buffer).collect();
    call(many.as_ptr(), many.len() as u32)
}

/// Receives into several buffers in order.
pub(crate) unsafe fn recv_vectored(fd: Fd, medium: Medium, slices: *const IoVec, count: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    let slices = unsafe { std::slice::from_raw_parts(slices, count) };
    if medium == Medium::Pipe {
        // SAFETY: the caller's promise.
        return Some(unsafe { files::read_pipe(fd, slices) });
    }
    let (mut count, mut flags) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the caller's promise; Winsock reads and writes the locals, and keeps no pointer to them without an
    // OVERLAPPED.
    let result = with_buffers(slices, |buffers, len| unsafe {
        WSARecv(socket(fd), buffers, len, &mut count, &mut flags, none, None)
    });
    settle(result, count).map(|res| end_of_stream(fd, res))
}

/// Sends from several buffers in order.
pub(crate) unsafe fn send_vectored(fd: Fd, medium: Medium, slices: *const IoVec, count: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    let slices = unsafe { std::slice::from_raw_parts(slices, count) };
    if medium == Medium::Pipe {
        // SAFETY: the caller's promise.
        return Some(unsafe { files::write_pipe(fd, slices) });
    }
    // Windows copies all bytes to memory of its own or fails, so it gets a bounded number.
    let mut most = MOST_SENT;
    loop {
        let slices = bounded(slices, most);
        let mut count = 0;
        let none = std::ptr::null_mut();
        // SAFETY: as in `recv_vectored`.
        let result = with_buffers(&slices, |buffers, len| unsafe {
            WSASend(socket(fd), buffers, len, &mut count, 0, none, None)
        });
        match settle(result, count) {
            // Not enough memory for that much: try less.
            Some(Err(errno::NO_BUFFERS)) if most > LEAST_SENT => most = LEAST_SENT,
            res => return res,
        }
    }
}

/// The most bytes that one send takes, and how many it takes when there is no memory for that.
const MOST_SENT: usize = 1 << 20;
const LEAST_SENT: usize = 16 << 10;

/// The slices up to this many bytes.
fn bounded(slices: &[IoVec], most: usize) -> Cow<'_, [IoVec]> {
    let total = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.len));
    if total <= most {
        return slices.into();
    }
    let mut left = most;
    let bound = |slice: &IoVec| {
        let (base, len) = (slice.base, slice.len.min(left));
        left -= len;
        IoVec { base, len }
    };
    slices.iter().map(bound).filter(|slice| slice.len > 0).collect()
}

/// Receives one message.
pub(crate) unsafe fn recv_message(fd: Fd, message: *mut Message) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    unsafe {
        let (bytes, sender) = ((*message).bytes(), Message::sender_place(message));
        if super::is_wine() {
            peek_sender(fd, sender);
        }
        match recv_from(fd, bytes, 0, sender) {
            Some(Err(WSAEMSGSIZE)) => {
                (*message).is_truncated = true;
                Some(Ok(bytes.len as u32))
            }
            // An ICMP refusal of a datagram that was sent earlier. Other systems report it as a refused connection.
            Some(Err(errno::RESET)) => Some(Err(errno::REFUSED)),
            res => res,
        }
    }
}

/// Pointers to the address of a datagram's sender and to its length.
type SenderPlace = (*mut SOCKADDR, *mut i32);

/// Receives a datagram into `bytes`, and its sender into `sender`.
///
/// # Safety
///
/// The bytes and the sender's address and length may be written.
unsafe fn recv_from(fd: Fd, bytes: IoVec, mut flags: u32, sender: SenderPlace) -> Option<OsResult> {
    let (mut received, (name, name_len), none) = (0, sender, std::ptr::null_mut());
    let (fd, count, flags) = (socket(fd), &raw mut received, &raw mut flags);
    // SAFETY: the caller's promise, for the bytes and the sender; for the rest as in `recv_vectored`.
    let result = with_buffers(&[bytes], |buffers, len| unsafe {
        WSARecvFrom(fd, buffers, len, count, flags, name, name_len, none, None)
    });
    settle(result, received)
}

/// Reads the sender of the next datagram. Wine does not report the sender of a truncated datagram, so
/// the datagram is first peeked at with a buffer that is large enough.
///
/// # Safety
///
/// The sender's address and length may be written.
unsafe fn peek_sender(fd: Fd, sender: SenderPlace) {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; 1 << 16]);
    }
    BUFFER.with_borrow_mut(|buffer| {
        let (base, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the caller's promise; the buffer is this thread's.
        unsafe { recv_from(fd, IoVec { base, len }, MSG_PEEK as u32, sender) };
    });
}

/// Sends one message.
pub(crate) unsafe fn send_message(fd: Fd, message: *const Message) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    let message = unsafe { &*message };
    let mut count = 0;
    let none = std::ptr::null_mut();
    let (name, name_len) = message.destination();
    // SAFETY: the caller's promise, for the message; for the rest as in `recv_vectored`.
    let result = unsafe {
        with_buffers(&[message.bytes()], |buffers, len| {
            WSASendTo(socket(fd), buffers, len, &mut count, 0, name, name_len, none, None)
        })
    };
    settle(result, count)
}

/// Accepts a connection and returns its socket, non-blocking.
pub(crate) fn accept(fd: Fd) -> Option<OsResult> {
    let accepted = with(fd, |listener| {
        // socket2 keeps it from being inherited.
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok(number_of_socket(socket.into_raw_socket()))
    });
    match accepted {
        Ok(fd) => Some(Ok(fd as u32)),
        Err(error) => match error.raw_os_error() {
            Some(WSAEWOULDBLOCK) => None,
            _ => Some(Err(accept_code(code_of(&error)))),
        },
    }
}

/// The portable error code of an accept. Winsock leaves some of the kernel's codes untranslated. Those here concern one
/// connection and not the listener, which accepts the next.
pub(crate) fn accept_code(code: i32) -> i32 {
    const RESET: u32 = errno::RESET as u32;
    match code as u32 {
        // The connection ended before it was accepted.
        RESET | ERROR_NETNAME_DELETED | ERROR_CONNECTION_ABORTED | ERROR_SEM_TIMEOUT => errno::ABORTED,
        ERROR_NETWORK_UNREACHABLE => errno::NETWORK_UNREACHABLE,
        ERROR_HOST_UNREACHABLE => errno::HOST_UNREACHABLE,
        _ => code,
    }
}

/// Starts to connect; `None` if the connection is in progress.
pub(crate) fn connect(fd: Fd, name: &Name) -> Option<OsResult> {
    if with(fd, |socket| socket.r#type()).is_ok_and(|kind| kind == socket2::Type::DGRAM) {
        options::report_refusals(fd, true);
    }
    // SAFETY: the name is borrowed, and of the length that it says.
    if unsafe { connect_socket(socket(fd), name.as_ptr(), name.len()) } == 0 {
        return Some(Ok(0));
    }
    match last_socket_code() {
        WSAEWOULDBLOCK | WSAEINPROGRESS => None,
        code => Some(Err(code)),
    }
}

/// Whether a socket is ready: `None` if not, else `Ok(0)` or the error.
pub(crate) fn ready(fd: Fd, direction: Direction) -> Option<OsResult> {
    let events = match direction {
        Direction::Read => POLLRDNORM,
        Direction::Write => POLLWRNORM,
    };
    Some(look(fd, events)?.map(|_| 0))
}

/// Polls the socket without waiting; `None` if it has none of these events, and no error or hang-up.
fn look(fd: Fd, events: i16) -> Option<Result<i16, i32>> {
    let mut poll = WSAPOLLFD {
        fd: socket(fd),
        events,
        revents: 0,
    };
    // SAFETY: Winsock reads and writes the one local structure.
    match unsafe { WSAPoll(&mut poll, 1, 0) } {
        0 => None,
        SOCKET_ERROR => Some(Err(last_socket_code())),
        _ => Some(Ok(poll.revents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accept_error_of_one_connection_is_not_the_listeners() {
        for (raw, portable) in [
            (ERROR_CONNECTION_ABORTED, errno::ABORTED),
            (ERROR_SEM_TIMEOUT, errno::ABORTED),
            (ERROR_NETWORK_UNREACHABLE, errno::NETWORK_UNREACHABLE),
            (ERROR_HOST_UNREACHABLE, errno::HOST_UNREACHABLE),
        ] {
            assert_eq!(accept_code(raw as i32), portable);
        }
        assert_eq!(accept_code(errno::INVALID), errno::INVALID);
    }
}
