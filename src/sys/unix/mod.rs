//! System calls on Unix.
//!
//! Every socket created here is close-on-exec and non-blocking. io_uring waits on a non-blocking socket too, so a
//! descriptor is the same on every driver and can be converted to and from std's types without a change of flags.

#[cfg(target_os = "linux")]
#[path = "affinity_linux.rs"]
mod affinity;
#[cfg(target_os = "freebsd")]
#[path = "affinity_freebsd.rs"]
mod affinity;
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
#[path = "no_affinity.rs"]
mod affinity;
#[cfg(target_os = "linux")]
mod cached;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(sanitized, miri))
))]
#[path = "raw_calls.rs"]
mod calls;
#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(sanitized, miri))
)))]
use libc as calls;
pub(crate) mod files;
mod forks;
mod message;
mod name;
pub(crate) mod options;
mod pool_call;
pub(crate) mod processes;
pub(crate) mod signals;
mod sockets;
#[cfg(target_os = "linux")]
#[path = "splice_pipe.rs"]
mod splice_pipe;
#[cfg(not(target_os = "linux"))]
#[path = "no_splice_pipe.rs"]
mod splice_pipe;
#[cfg(target_os = "linux")]
#[path = "udp_linux.rs"]
mod udp;
#[cfg(not(target_os = "linux"))]
#[path = "no_offload.rs"]
mod udp;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use socket2::SockRef;

pub(in crate::sys) use self::affinity::main_mask;
#[cfg(all(feature = "proactor", target_os = "linux"))]
pub(crate) use self::affinity::to_cpu_set;
pub(crate) use self::affinity::{CHILDREN_INHERIT_MASK, current_mask, set_thread_mask, topology};
#[cfg(target_os = "linux")]
pub(crate) use self::cached::read_cached;
pub use self::files::Stat;
pub(crate) use self::files::{DIRECT, KernelPath, kind, kind_of, mode_of, path_for_kernel, path_of};
#[cfg(all(feature = "proactor", target_os = "linux"))]
pub(crate) use self::files::{STAT_MASK, stat_arguments};
pub(crate) use self::forks::{count_forks, forks};
pub use self::message::Message;
#[cfg(all(feature = "proactor", target_os = "linux"))]
pub(crate) use self::message::RECEIVE_FLAGS;
pub(crate) use self::message::{MOST_DESCRIPTORS, MsgHdrBuf, is_full_queue};
pub(crate) use self::name::unix_name;
pub(crate) use self::options::{credentials, new_pair, new_socket};
pub(crate) use self::pool_call::PoolCall;
pub(crate) use self::sockets::{
    accept, connect, ready, recv, recv_message, recv_vectored, send, send_message, send_vectored,
};
pub(crate) use self::splice_pipe::SplicePipe;
pub(crate) use self::udp::{gro, recv_batch, segment_size, send_batch, set_gro};
use crate::sys::{Fd, Instant, IoVec, Name};
pub(crate) use libc::{sockaddr as RawSockAddr, socklen_t as SockLen};

/// The unit of a path.
pub type PathChar = std::ffi::c_char;

const _: () = {
    assert!(size_of::<IoVec>() == size_of::<libc::iovec>());
    assert!(std::mem::offset_of!(IoVec, base) == std::mem::offset_of!(libc::iovec, iov_base));
    assert!(std::mem::offset_of!(IoVec, len) == std::mem::offset_of!(libc::iovec, iov_len));
};

/// std's slices as `IoVec`s, for the length of a call: std guarantees the layout of `iovec`.
pub(crate) fn with_slices<T>(bufs: &[io::IoSlice<'_>], call: impl FnOnce(*const IoVec, usize) -> T) -> T {
    call(bufs.as_ptr().cast(), bufs.len())
}

/// A message header for these slices.
pub(crate) fn message(slices: *const IoVec, count: usize) -> libc::msghdr {
    // SAFETY: zeroes are a valid message header.
    let mut header: libc::msghdr = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
    header.msg_iov = slices.cast_mut().cast();
    header.msg_iovlen = count as _;
    header
}

/// The OS's error codes that the layers above distinguish.
pub(crate) mod errno {
    pub(crate) const CANCELED: i32 = libc::ECANCELED;
    pub(crate) const NO_BUFFERS: i32 = libc::ENOBUFS;
    pub(crate) const NO_MEMORY: i32 = libc::ENOMEM;
    pub(crate) const PROCESS_FILES: i32 = libc::EMFILE;
    pub(crate) const SYSTEM_FILES: i32 = libc::ENFILE;
    pub(crate) const INTERRUPTED: i32 = libc::EINTR;
    pub(crate) const ABORTED: i32 = libc::ECONNABORTED;
    pub(crate) const PROTOCOL: i32 = libc::EPROTO;
    pub(crate) const NETWORK_DOWN: i32 = libc::ENETDOWN;
    /// The machine is not on the network.
    #[cfg(target_os = "linux")]
    pub(crate) const NO_NETWORK: i32 = libc::ENONET;
    /// No call fails with this here.
    #[cfg(not(target_os = "linux"))]
    pub(crate) const NO_NETWORK: i32 = -1;
    pub(crate) const HOST_UNREACHABLE: i32 = libc::EHOSTUNREACH;
    pub(crate) const NETWORK_UNREACHABLE: i32 = libc::ENETUNREACH;
    pub(crate) const HOST_DOWN: i32 = libc::EHOSTDOWN;
    pub(crate) const NO_PROTOCOL_OPTION: i32 = libc::ENOPROTOOPT;
    pub(crate) const INVALID: i32 = libc::EINVAL;
    pub(crate) const IO: i32 = libc::EIO;
    pub(crate) const NOT_SUPPORTED: i32 = libc::EOPNOTSUPP;
    pub(crate) const NO_FAMILY: i32 = libc::EAFNOSUPPORT;
    pub(crate) const NO_DESTINATION: i32 = libc::EDESTADDRREQ;
    pub(crate) const TOO_LONG: i32 = libc::EMSGSIZE;
    pub(crate) const IN_USE: i32 = libc::EADDRINUSE;
    pub(crate) const NOT_A_DIRECTORY: i32 = libc::ENOTDIR;
    pub(crate) const REFUSED: i32 = libc::ECONNREFUSED;
    pub(crate) const BROKEN_PIPE: i32 = libc::EPIPE;
    pub(crate) const RESET: i32 = libc::ECONNRESET;
    pub(crate) const NOT_CONNECTED: i32 = libc::ENOTCONN;
    pub(crate) const AGAIN: i32 = libc::EAGAIN;
    pub(crate) const BAD_FD: i32 = libc::EBADF;
    pub(crate) const NOT_PERMITTED: i32 = libc::EPERM;
    pub(crate) const NO_ACCESS: i32 = libc::EACCES;
    pub(crate) const NO_SYSTEM_CALL: i32 = libc::ENOSYS;
    pub(crate) const NOT_FOUND: i32 = libc::ENOENT;
    pub(crate) const WRONG_TYPE: i32 = libc::EPROTOTYPE;
    pub(crate) const NOT_AVAILABLE: i32 = libc::EADDRNOTAVAIL;
    pub(crate) const TIMED_OUT: i32 = libc::ETIMEDOUT;
}

/// Whether a signal that the process has no handler for does nothing.
#[cfg(feature = "sim")]
pub(crate) fn is_ignored_by_default(number: i32) -> bool {
    matches!(number, libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH)
}

/// Whether listeners set `SO_REUSEADDR`.
pub(crate) const REUSES_ADDRESSES: bool = true;

/// Whether the kernel distributes connections and datagrams over sockets that share a port. Elsewhere one of them gets all.
pub(crate) const BALANCES_REUSED_PORTS: bool =
    cfg!(any(target_os = "linux", target_os = "android", target_os = "freebsd"));

/// Fills `bytes` with random numbers of the OS.
pub(crate) fn entropy(bytes: &mut [u8]) {
    // Reads of up to 256 bytes are neither short nor interrupted, once the kernel's generator is seeded.
    for chunk in bytes.chunks_mut(256) {
        while !fill(chunk) {
            if io::Error::last_os_error().raw_os_error() != Some(errno::INTERRUPTED) {
                // The call is missing or denied.
                super::entropy::from_hasher(chunk);
                break;
            }
        }
    }
}

#[cfg(not(target_vendor = "apple"))]
fn fill(chunk: &mut [u8]) -> bool {
    // SAFETY: the kernel writes these bytes only, and keeps no pointer to them.
    unsafe { libc::getrandom(chunk.as_mut_ptr().cast(), chunk.len(), 0) == chunk.len() as libc::ssize_t }
}

#[cfg(target_vendor = "apple")]
fn fill(chunk: &mut [u8]) -> bool {
    // SAFETY: the kernel writes these bytes only, and keeps no pointer to them.
    unsafe { libc::getentropy(chunk.as_mut_ptr().cast(), chunk.len()) == 0 }
}

/// Reads the monotonic clock.
#[inline]
pub(crate) fn monotonic() -> Instant {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the local timespec and keeps no pointer to it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    // The time since the machine was started: it does not overflow.
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Waits for events of an epoll descriptor, for this many milliseconds at most, or without a limit if that is negative. Returns
/// their number.
///
/// # Safety
///
/// `events` is valid for writes of `capacity` events, which nothing else uses until this returns.
#[cfg(all(feature = "reactor", target_os = "linux"))]
#[inline]
pub(crate) unsafe fn wait_epoll(
    epoll: Fd,
    events: *mut libc::epoll_event,
    capacity: usize,
    millis: libc::c_int,
) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    match unsafe { calls::epoll_wait(epoll, events, capacity as libc::c_int, millis) } {
        -1 => Err(io::Error::last_os_error()),
        count => Ok(count as usize),
    }
}

/// Prepares a socket that was created elsewhere. On an error the caller still owns it.
pub(crate) fn adopt(fd: Fd) -> io::Result<()> {
    with(fd, |socket| socket.set_nonblocking(true))
}

/// An error if the readiness of a descriptor cannot be waited for. Files and directories are always ready; epoll
/// refuses them, so every driver does.
pub(crate) fn check_watchable(fd: Fd) -> io::Result<()> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the local structure and keeps no pointer to it.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstat has filled it.
    let mode = unsafe { stat.assume_init() }.st_mode;
    match mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR => Err(crate::sys::context(
            "a file or folder is always ready and cannot be waited for",
            io::Error::from_raw_os_error(errno::NOT_PERMITTED),
        )),
        _ => Ok(()),
    }
}

/// Closes a kernel descriptor; a negative number names none.
///
/// Errors are ignored: on Linux the number is free again whatever close(2) returns, and a second close could hit
/// another descriptor.
pub(crate) fn close(fd: Fd) {
    if fd >= 0 {
        // SAFETY: the caller owned `fd` and gives it up; close(2) touches no memory of ours.
        unsafe { libc::close(fd) };
    }
}

/// Closes a socket with `SO_LINGER`; blocks for up to the linger time.
pub(crate) fn close_slowly(foreign: Foreign) {
    drop(foreign);
}

pub(crate) fn with<T>(fd: Fd, call: impl FnOnce(SockRef<'_>) -> io::Result<T>) -> io::Result<T> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(errno::BAD_FD));
    }
    // SAFETY: the number is not -1, and the caller's descriptor stays open for the length of this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    call(SockRef::from(&borrowed))
}

/// Borrows an open descriptor for as long as the caller borrows its owner.
pub(crate) fn borrow<'a>(fd: Fd) -> BorrowedFd<'a> {
    assert!(
        fd >= 0,
        "it is closed, or a socket of the null driver: it has no descriptor"
    );
    // SAFETY: the number is an open descriptor, and the caller ties the result to the borrow of its owner.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// An owned descriptor that was created elsewhere.
pub(crate) type Foreign = OwnedFd;

/// A borrowed descriptor.
pub(crate) type Borrowed<'a> = BorrowedFd<'a>;

/// Its number.
pub(crate) fn number(foreign: &Foreign) -> Fd {
    foreign.as_raw_fd()
}

/// A type with a descriptor whose readiness can be waited for.
pub(crate) use std::os::fd::AsRawFd as AsSource;

/// The number of such a descriptor.
pub(crate) fn source(source: &impl AsSource) -> Fd {
    source.as_raw_fd()
}

/// Takes the descriptor out of a std type.
pub(crate) fn from_std(socket: impl Into<Foreign>) -> Fd {
    socket.into().into_raw_fd()
}

/// Converts to a std type. The caller owned the descriptor and gives it up.
pub(crate) fn into_std<S: From<Foreign>>(fd: Fd) -> S {
    // SAFETY: the caller owned this open descriptor and does not use it any more.
    S::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The two ends of a new pipe, both non-blocking: reader, writer.
pub(crate) fn pipe() -> io::Result<(Foreign, Foreign)> {
    let (reader, writer) = io::pipe()?;
    adopt(reader.as_raw_fd())?;
    adopt(writer.as_raw_fd())?;
    Ok((reader.into(), writer.into()))
}

/// A duplicate of a standard stream: close-on-exec, and never 0, 1 or 2. `None` if the stream is closed.
pub(crate) fn standard_stream(number: usize) -> io::Result<Option<Foreign>> {
    match borrow(number as Fd).try_clone_to_owned() {
        Ok(duplicate) => Ok(Some(duplicate)),
        Err(error) if error.raw_os_error() == Some(errno::BAD_FD) => Ok(None),
        Err(error) => Err(error),
    }
}
