//! System calls on Windows.
//!
//! Facts that shape this module:
//!
//! - A descriptor is a handle or a socket. Both fit into 31 bits, although their types are wider, and the lowest two
//!   bits are always zero. So the layers above store them as an `Fd`, as on Unix.
//! - Sockets are non-blocking and not inherited. Non-blocking mode does not affect the proactor's overlapped calls.
//! - Files are opened for overlapped calls. A blocking call on a file is an overlapped call that is waited for.
//! - Error codes are those of Win32 and Winsock. If both have a code for the same error, Winsock's is used.

mod affinity;
mod console;
pub(crate) mod files;
mod forks;
mod message;
pub(crate) mod options;
mod pool_call;
pub(crate) mod processes;
pub(crate) mod signals;
mod sockets;
#[path = "../unix/no_splice_pipe.rs"]
mod splice_pipe;
#[path = "../unix/no_offload.rs"]
mod udp;

use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::io::{
    AsRawHandle, AsRawSocket, BorrowedHandle, BorrowedSocket, FromRawHandle, FromRawSocket, IntoRawHandle,
    IntoRawSocket, OwnedHandle, OwnedSocket, RawHandle, RawSocket,
};
use std::sync::OnceLock;
use std::time::Duration;

use socket2::SockRef;
use windows_sys::Win32::Foundation::{CloseHandle, ERROR_INVALID_HANDLE, HANDLE};
use windows_sys::Win32::Networking::WinSock::{SOCKET, WSAENOTSOCK, WSAGetLastError, WSANOTINITIALISED, closesocket};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::Performance::{QueryPerformanceCounter, QueryPerformanceFrequency};
use windows_sys::Win32::System::Threading::CreateEventW;

pub(in crate::sys) use self::affinity::main_mask;
pub(crate) use self::affinity::{CHILDREN_INHERIT_MASK, current_mask, set_thread_mask, topology};
pub use self::files::Stat;
#[cfg(feature = "proactor")]
pub(crate) use self::files::is_overlapped;
pub(crate) use self::files::{KernelPath, kind, kind_of, mode_of, path_for_kernel, path_of, pipe, standard_stream};
pub(crate) use self::files::{is_end, place, write_code};
pub(crate) use self::forks::{count_forks, forks};
pub use self::message::Message;
pub(crate) use self::message::MsgHdrBuf;
#[cfg(feature = "proactor")]
pub(crate) use self::options::ioctl;
pub(crate) use self::options::{credentials, new_pair, new_socket};
pub(crate) use self::pool_call::PoolCall;
pub(crate) use self::sockets::{
    accept, connect, ready, recv, recv_message, recv_vectored, send, send_message, send_vectored,
};
#[cfg(feature = "proactor")]
pub(crate) use self::sockets::{accept_code, end_of_stream, portable_code, with_buffers};
pub(crate) use self::splice_pipe::SplicePipe;
pub(crate) use self::udp::{gro, recv_batch, segment_size, send_batch, set_gro};
pub(crate) use super::entropy::from_hasher as entropy;
use crate::sys::{Fd, Instant, IoVec, Name, OsResult};
pub(crate) use windows_sys::Win32::Networking::WinSock::{SOCKADDR as RawSockAddr, socklen_t as SockLen};

/// The unit of a path.
pub type PathChar = u16;

/// std's slices as `IoVec`s, for the length of a call; at most 16 of them.
pub(crate) fn with_slices<T>(bufs: &[io::IoSlice<'_>], call: impl FnOnce(*const IoVec, usize) -> T) -> T {
    const SOME: usize = 16;
    let mut slices = [IoVec::EMPTY; SOME];
    for (place, buf) in slices.iter_mut().zip(bufs) {
        *place = IoVec {
            base: buf.as_ptr().cast_mut(),
            len: buf.len(),
        };
    }
    call(slices.as_ptr(), bufs.len().min(SOME))
}

/// Whether this is Wine, some of whose calls differ from Windows'.
pub(crate) fn is_wine() -> bool {
    static IS_WINE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the names end in NUL; a library that is always loaded is asked for a function that only Wine has.
    *IS_WINE.get_or_init(|| unsafe {
        let library = GetModuleHandleA(c"ntdll.dll".as_ptr().cast());
        GetProcAddress(library, c"wine_get_version".as_ptr().cast()).is_some()
    })
}

/// The OS's error codes that the layers above distinguish.
pub(crate) mod errno {
    use windows_sys::Win32::Foundation as win;
    use windows_sys::Win32::Networking::WinSock as sock;

    pub(crate) const CANCELED: i32 = win::ERROR_OPERATION_ABORTED as i32;
    pub(crate) const NO_BUFFERS: i32 = sock::WSAENOBUFS;
    pub(crate) const NO_MEMORY: i32 = win::ERROR_NOT_ENOUGH_MEMORY as i32;
    pub(crate) const PROCESS_FILES: i32 = sock::WSAEMFILE;
    pub(crate) const SYSTEM_FILES: i32 = win::ERROR_TOO_MANY_OPEN_FILES as i32;
    pub(crate) const INTERRUPTED: i32 = sock::WSAEINTR;
    pub(crate) const ABORTED: i32 = sock::WSAECONNABORTED;
    /// No accept fails with this here.
    pub(crate) const PROTOCOL: i32 = -2;
    pub(crate) const NETWORK_DOWN: i32 = sock::WSAENETDOWN;
    /// No call fails with this here.
    pub(crate) const NO_NETWORK: i32 = -1;
    pub(crate) const HOST_UNREACHABLE: i32 = sock::WSAEHOSTUNREACH;
    pub(crate) const NETWORK_UNREACHABLE: i32 = sock::WSAENETUNREACH;
    pub(crate) const HOST_DOWN: i32 = sock::WSAEHOSTDOWN;
    pub(crate) const NO_PROTOCOL_OPTION: i32 = sock::WSAENOPROTOOPT;
    pub(crate) const INVALID: i32 = sock::WSAEINVAL;
    pub(crate) const IO: i32 = win::ERROR_IO_DEVICE as i32;
    pub(crate) const NOT_SUPPORTED: i32 = sock::WSAEOPNOTSUPP;
    pub(crate) const NO_FAMILY: i32 = sock::WSAEAFNOSUPPORT;
    pub(crate) const NO_DESTINATION: i32 = sock::WSAEDESTADDRREQ;
    pub(crate) const TOO_LONG: i32 = sock::WSAEMSGSIZE;
    pub(crate) const IN_USE: i32 = sock::WSAEADDRINUSE;
    pub(crate) const NOT_A_DIRECTORY: i32 = win::ERROR_DIRECTORY as i32;
    pub(crate) const REFUSED: i32 = sock::WSAECONNREFUSED;
    pub(crate) const BROKEN_PIPE: i32 = win::ERROR_BROKEN_PIPE as i32;
    pub(crate) const RESET: i32 = sock::WSAECONNRESET;
    pub(crate) const NOT_CONNECTED: i32 = sock::WSAENOTCONN;
    pub(crate) const AGAIN: i32 = sock::WSAEWOULDBLOCK;
    pub(crate) const BAD_FD: i32 = win::ERROR_INVALID_HANDLE as i32;
    pub(crate) const NOT_PERMITTED: i32 = win::ERROR_PRIVILEGE_NOT_HELD as i32;
    pub(crate) const NO_ACCESS: i32 = win::ERROR_ACCESS_DENIED as i32;
    pub(crate) const NO_SYSTEM_CALL: i32 = win::ERROR_CALL_NOT_IMPLEMENTED as i32;
    pub(crate) const NOT_FOUND: i32 = win::ERROR_FILE_NOT_FOUND as i32;
    pub(crate) const WRONG_TYPE: i32 = sock::WSAEPROTOTYPE;
    pub(crate) const NOT_AVAILABLE: i32 = sock::WSAEADDRNOTAVAIL;
    pub(crate) const TIMED_OUT: i32 = sock::WSAETIMEDOUT;
}

/// Whether a signal that the process has no handler for does nothing: every one ends it.
#[cfg(feature = "sim")]
pub(crate) fn is_ignored_by_default(_number: i32) -> bool {
    false
}

/// The handle under a number.
pub(crate) fn handle(fd: Fd) -> HANDLE {
    fd as isize as HANDLE
}

/// The socket under a number.
pub(crate) fn socket(fd: Fd) -> SOCKET {
    fd as isize as SOCKET
}

/// The number of a handle. Only the lower 32 bits are significant, so that 32-bit and 64-bit programs can share
/// handles.
pub(crate) fn number_of_handle(handle: RawHandle) -> Fd {
    handle as isize as Fd
}

/// The number of a socket, which is a handle too.
pub(crate) fn number_of_socket(socket: RawSocket) -> Fd {
    socket as Fd
}

/// A listener can bind to an address with connections in TIME_WAIT without `SO_REUSEADDR`, which here would allow
/// taking an address that is in use.
pub(crate) const REUSES_ADDRESSES: bool = false;

/// Whether the kernel distributes connections and datagrams over sockets that share a port: there is no such option.
pub(crate) const BALANCES_REUSED_PORTS: bool = false;

/// Reads the monotonic clock.
pub(crate) fn monotonic() -> Instant {
    static FREQUENCY: OnceLock<i64> = OnceLock::new();
    let frequency = *FREQUENCY.get_or_init(|| {
        let mut frequency = 0;
        // SAFETY: the system fills the local, and cannot fail since Windows XP.
        unsafe { QueryPerformanceFrequency(&mut frequency) };
        frequency.max(1)
    });
    let mut ticks = 0;
    // SAFETY: as above.
    unsafe { QueryPerformanceCounter(&mut ticks) };
    let (seconds, rest) = (ticks / frequency, ticks % frequency);
    let nanoseconds = i128::from(rest) * 1_000_000_000 / i128::from(frequency);
    Instant::from_origin(Duration::new(seconds as u64, nanoseconds as u32))
}

/// Prepares a socket or pipe that was created elsewhere. A pipe must be open for overlapped calls: a plain read would
/// block a thread until the peer writes.
pub(crate) fn adopt(fd: Fd) -> io::Result<()> {
    if is_socket(fd) || !files::is_open(fd) {
        with(fd, |socket| socket.set_nonblocking(true))?;
        if with(fd, |socket| socket.r#type()).is_ok_and(|kind| kind == socket2::Type::DGRAM) {
            let is_connected = with(fd, |socket| socket.peer_addr()).is_ok();
            options::report_refusals(fd, is_connected);
        }
        return Ok(());
    }
    match files::is_overlapped(fd) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the pipe was not made for overlapped calls, so it cannot be waited for",
        )),
    }
}

/// Whether the descriptor is a socket.
fn is_socket(fd: Fd) -> bool {
    with(fd, |socket| socket.r#type()).is_ok()
}

/// An error if readiness cannot be waited for: only sockets have it.
pub(crate) fn check_watchable(fd: Fd) -> io::Result<()> {
    match with(fd, |socket| socket.r#type()) {
        Ok(_) => Ok(()),
        Err(_) if files::is_open(fd) => Err(crate::sys::context(
            "only sockets can be waited for on Windows",
            io::Error::from_raw_os_error(errno::NOT_PERMITTED),
        )),
        Err(error) => Err(error),
    }
}

/// Closes a socket or a handle; a negative number names none.
pub(crate) fn close(fd: Fd) {
    if fd < 0 {
        return;
    }
    console::forget(fd);
    // SAFETY: the caller owned `fd` and gives it up. `closesocket` fails with WSAENOTSOCK for any other handle.
    unsafe {
        if closesocket(socket(fd)) == 0 {
            return;
        }
        match last_socket_code() {
            WSAENOTSOCK | WSANOTINITIALISED => {
                CloseHandle(handle(fd));
            }
            // A non-blocking socket with SO_LINGER cannot be closed: turn lingering off first.
            _ => {
                let _ = with(fd, |socket| socket.set_linger(None));
                closesocket(socket(fd));
            }
        }
    }
}

/// Closes a socket with `SO_LINGER`; blocks for up to the linger time. A non-blocking socket would fail to close.
pub(crate) fn close_slowly(foreign: Foreign) {
    let _ = with(number(&foreign), |socket| socket.set_nonblocking(false));
    drop(foreign);
}

pub(crate) fn with<T>(fd: Fd, call: impl FnOnce(SockRef<'_>) -> io::Result<T>) -> io::Result<T> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(errno::BAD_FD));
    }
    // SAFETY: the number is not -1, and the caller's socket stays open for the length of this call.
    let borrowed = unsafe { BorrowedSocket::borrow_raw(fd as RawSocket) };
    call(SockRef::from(&borrowed))
}

/// An owned socket or handle that was created elsewhere.
#[derive(Debug)]
pub(crate) enum Foreign {
    Socket(OwnedSocket),
    Handle(OwnedHandle),
}

macro_rules! foreign {
    ($($kind:ty => $variant:ident),* $(,)?) => {$(
        impl From<$kind> for Foreign {
            fn from(std: $kind) -> Foreign {
                Foreign::$variant(std.into())
            }
        }
    )*};
}

foreign!(
    OwnedSocket => Socket,
    std::net::TcpStream => Socket,
    std::net::TcpListener => Socket,
    std::net::UdpSocket => Socket,
    OwnedHandle => Handle,
    std::fs::File => Handle,
    std::process::ChildStdin => Handle,
    std::process::ChildStdout => Handle,
    std::process::ChildStderr => Handle,
);

macro_rules! back_to_std {
    ($($kind:ty => $as:ident),* $(,)?) => {$(
        impl From<Foreign> for $kind {
            fn from(foreign: Foreign) -> $kind {
                foreign.$as().into()
            }
        }
    )*};
}

back_to_std!(
    std::net::TcpStream => into_socket,
    std::net::TcpListener => into_socket,
    std::net::UdpSocket => into_socket,
    std::fs::File => into_handle,
    std::process::Stdio => into_handle,
);

impl Foreign {
    /// The socket; callers know that it is one.
    fn into_socket(self) -> OwnedSocket {
        match self {
            Foreign::Socket(socket) => socket,
            Foreign::Handle(handle) => unreachable!("{handle:?} is no socket"),
        }
    }

    /// The handle; callers know that it is one.
    pub(crate) fn into_handle(self) -> OwnedHandle {
        match self {
            Foreign::Handle(handle) => handle,
            Foreign::Socket(socket) => unreachable!("{socket:?} is no handle"),
        }
    }
}

/// A borrowed handle.
pub(crate) type Borrowed<'a> = BorrowedHandle<'a>;

/// Its number.
pub(crate) fn number(foreign: &Foreign) -> Fd {
    match foreign {
        Foreign::Socket(socket) => number_of_socket(socket.as_raw_socket()),
        Foreign::Handle(handle) => number_of_handle(handle.as_raw_handle()),
    }
}

/// A type with a socket whose readiness can be waited for.
pub(crate) use std::os::windows::io::AsRawSocket as AsSource;

/// The number of such a socket.
pub(crate) fn source(source: &impl AsSource) -> Fd {
    number_of_socket(source.as_raw_socket())
}

/// Takes the socket or handle out of a std type.
pub(crate) fn from_std(std: impl Into<Foreign>) -> Fd {
    match std.into() {
        Foreign::Socket(socket) => number_of_socket(socket.into_raw_socket()),
        Foreign::Handle(handle) => number_of_handle(handle.into_raw_handle()),
    }
}

/// Converts to a std type. The caller owned the descriptor and gives it up.
pub(crate) fn into_std<S: From<Foreign>>(fd: Fd) -> S {
    let is_socket = is_socket(fd);
    // SAFETY: the caller owned this open descriptor and does not use it any more.
    S::from(unsafe {
        match is_socket {
            true => Foreign::Socket(OwnedSocket::from_raw_socket(fd as RawSocket)),
            false => Foreign::Handle(OwnedHandle::from_raw_handle(handle(fd))),
        }
    })
}

/// Borrows an open handle for as long as the caller borrows its owner.
pub(crate) fn borrow<'a>(fd: Fd) -> Borrowed<'a> {
    assert!(
        fd >= 0,
        "it is closed, or a socket of the null driver: it has no handle"
    );
    // SAFETY: the number is an open handle, and the caller ties the result to the borrow of its owner.
    unsafe { BorrowedHandle::borrow_raw(handle(fd)) }
}

/// The file under a number, for a call of std. Its owner keeps it.
fn file(fd: Fd) -> ManuallyDrop<std::fs::File> {
    // SAFETY: the file is never dropped, so nothing is closed; a number that is not open makes calls fail.
    ManuallyDrop::new(unsafe { std::fs::File::from_raw_handle(handle(fd)) })
}

/// A new event: manual-reset, and not set.
pub(crate) fn new_event() -> io::Result<OwnedHandle> {
    // SAFETY: nothing is passed in.
    let event = unsafe { CreateEventW(std::ptr::null(), 1, 0, std::ptr::null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is new and ours.
    Ok(unsafe { OwnedHandle::from_raw_handle(event) })
}

/// The last error of a Win32 call.
pub(crate) fn last_code() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(ERROR_INVALID_HANDLE as i32)
}

/// The result of a Win32 call that transfers bytes.
pub(crate) fn transferred(succeeded: i32, count: u32) -> OsResult {
    match succeeded {
        0 => Err(last_code()),
        _ => Ok(count),
    }
}

/// The last error of a Winsock call.
pub(crate) fn last_socket_code() -> i32 {
    // SAFETY: this reads a thread-local error code.
    unsafe { WSAGetLastError() }
}

/// Always `None`: sockets have only internet addresses here.
pub(crate) fn unix_name(_addr: &socket2::SockAddr) -> Option<String> {
    None
}
