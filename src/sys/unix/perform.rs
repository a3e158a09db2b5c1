//! An operation as the plain system call.
//!
//! A readiness-based driver calls this first, and again each time the descriptor is said to be ready. Every socket is
//! non-blocking, so a call that would have to wait says so. File work is done in one go, and blocks: that is for the pool's
//! threads.

use std::io;

use super::letter::RECEIVE_FLAGS;
use super::{Fd, Name, errno, files, message};
use crate::driver::Outcome;
use crate::op::{Direction, Medium, Op};

/// Writing to a closed connection is an error, not a signal. Where the flag is missing, socket2 has set the same as an
/// option of the socket.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: libc::c_int = libc::MSG_NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: libc::c_int = 0;

/// Whether a socket waits is a matter of its description, which others may share: a send asks not to, whatever they have set.
const SEND_FLAGS: libc::c_int = NO_SIGNAL | libc::MSG_DONTWAIT;

/// Carries an operation out; `None` if it would have to wait.
///
/// # Safety
///
/// The memory that `op` points to is the caller's to use until this returns.
pub(crate) unsafe fn perform(op: Op) -> Option<Outcome> {
    match op {
        Op::Accept { fd } => attempt(|| accept(fd)),
        // SAFETY: the caller's promise: the name is there.
        Op::Connect { fd, name } => connect(fd, unsafe { &*name }),
        // SAFETY: the caller's promise: `len` bytes from `ptr` on may be written.
        Op::Recv { fd, medium, ptr, len } => attempt(|| unsafe {
            match medium {
                Medium::Tcp | Medium::Unix => libc::recv(fd, ptr.cast(), len, 0),
                Medium::Pipe => libc::read(fd, ptr.cast(), len),
            }
        }),
        // There is no pool here: a driver that has one turns this into a `Recv`.
        Op::RecvManaged { .. } => Some(Err(errno::NO_BUFFERS)),
        Op::RecvVectored {
            fd,
            medium,
            slices,
            count,
        } => attempt(|| {
            // SAFETY: the caller's promise: the slices, and what they point to, are there and may be written.
            unsafe {
                match medium {
                    Medium::Tcp | Medium::Unix => libc::recvmsg(fd, &mut message(slices, count), 0),
                    Medium::Pipe => libc::readv(fd, slices.cast(), count as libc::c_int),
                }
            }
        }),
        // SAFETY: the caller's promise: `len` bytes from `ptr` on may be read.
        Op::Send { fd, medium, ptr, len } => attempt(|| unsafe {
            match medium {
                Medium::Tcp | Medium::Unix => libc::send(fd, ptr.cast(), len, SEND_FLAGS),
                Medium::Pipe => libc::write(fd, ptr.cast(), len),
            }
        }),
        Op::SendVectored {
            fd,
            medium,
            slices,
            count,
        } => attempt(|| {
            // SAFETY: the caller's promise: the slices, and what they point to, are there.
            unsafe {
                match medium {
                    Medium::Tcp | Medium::Unix => libc::sendmsg(fd, &message(slices, count), SEND_FLAGS),
                    Medium::Pipe => libc::writev(fd, slices.cast(), count as libc::c_int),
                }
            }
        }),
        // SAFETY: the caller's promise: the message, and what it points to, are there and may be written.
        Op::RecvMessage { fd, message } => attempt(|| unsafe { libc::recvmsg(fd, message.cast(), RECEIVE_FLAGS) }),
        Op::RecvMessageManaged { .. } => Some(Err(errno::NO_BUFFERS)),
        Op::SendMessage { fd, at_once, message } => {
            // SAFETY: the caller's promise: the message, and what it points to, are there.
            let outcome = attempt(|| unsafe { libc::sendmsg(fd, message.cast(), NO_SIGNAL) });
            outcome.or(at_once.then_some(Err(errno::AGAIN)))
        }
        Op::Readiness { fd, direction } => ready(fd, direction),
        Op::Open { .. }
        | Op::ReadAt { .. }
        | Op::ReadVectoredAt { .. }
        | Op::WriteAt { .. }
        | Op::WriteVectoredAt { .. }
        | Op::Sync { .. }
        | Op::Stat { .. }
        | Op::Truncate { .. }
        | Op::Allocate { .. }
        | Op::Rename { .. }
        | Op::Remove { .. }
        | Op::MakeFolder { .. }
        | Op::HardLink { .. }
        | Op::SymLink { .. } => {
            // SAFETY: the caller's promise.
            unsafe { files::perform(op) }
        }
    }
}

/// Makes a call until no signal interrupts it; `None` if it would have to wait.
pub(super) fn attempt(mut call: impl FnMut() -> libc::ssize_t) -> Option<Outcome> {
    loop {
        let result = call();
        if result >= 0 {
            return Some(Ok(result as u32));
        }
        match last_errno() {
            libc::EINTR => {}
            // On some systems they are two.
            code if code == libc::EAGAIN || code == libc::EWOULDBLOCK => return None,
            code => return Some(Err(code)),
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(not(target_vendor = "apple"))]
fn accept(fd: Fd) -> libc::ssize_t {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for, so the kernel touches no memory of ours.
    let accepted = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    accepted as libc::ssize_t
}

/// Here the flags are set afterwards; socket2 knows which.
#[cfg(target_vendor = "apple")]
fn accept(fd: Fd) -> libc::ssize_t {
    use std::os::fd::IntoRawFd;
    let accepted = super::with(fd, |listener| {
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok(socket.into_raw_fd())
    });
    // The error is the last call's, and the caller reads it from there.
    accepted.map_or(-1, |fd| fd as libc::ssize_t)
}

/// Begins to connect.
fn connect(fd: Fd, name: &Name) -> Option<Outcome> {
    // SAFETY: the name is borrowed, and of the length that it says.
    if unsafe { libc::connect(fd, name.as_ptr(), name.len()) } == 0 {
        return Some(Ok(0));
    }
    match last_errno() {
        // A signal does not stop it: it goes on by itself.
        libc::EINPROGRESS | libc::EALREADY | libc::EINTR => None,
        code => Some(Err(code)),
    }
}

/// How a connect that had to wait has ended; `None` if it has not. Being writable alone does not say that it has.
#[cfg(feature = "reactor")]
pub(crate) fn connected(fd: Fd) -> Option<Outcome> {
    match super::with(fd, |socket| socket.take_error()) {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return Some(Err(error.raw_os_error().unwrap_or(errno::INVALID))),
    }
    match super::with(fd, |socket| socket.peer_addr()) {
        Ok(_) => Some(Ok(0)),
        Err(error) if error.raw_os_error() == Some(errno::NOT_CONNECTED) => None,
        Err(error) => Some(Err(error.raw_os_error().unwrap_or(errno::INVALID))),
    }
}

/// Looks whether a descriptor is ready.
fn ready(fd: Fd, direction: Direction) -> Option<Outcome> {
    let events = match direction {
        Direction::Read => libc::POLLIN,
        Direction::Write => libc::POLLOUT,
    };
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the kernel reads and writes the one local structure.
    let count = attempt(|| unsafe { libc::poll(&mut poll, 1, 0) } as libc::ssize_t)?;
    match count {
        Ok(0) => None,
        Ok(_) if poll.revents & libc::POLLNVAL != 0 => Some(Err(errno::BAD_FD)),
        Ok(_) => Some(Ok(0)),
        Err(code) => Some(Err(code)),
    }
}
