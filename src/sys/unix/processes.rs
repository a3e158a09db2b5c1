//! Child processes: a descriptor that becomes readable when a process exits, waiting for several, and signals.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use super::Fd;
use crate::sys::Direction;

/// A descriptor that becomes readable when the process exits; close-on-exec.
#[cfg(target_os = "linux")]
pub(crate) fn descriptor_of(process: u32) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: pidfd_open(2) takes two numbers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as Fd) })
}

/// Only Linux has such descriptors.
#[cfg(not(target_os = "linux"))]
pub(crate) fn descriptor_of(_process: u32) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Blocks until a descriptor is readable, the time is up, or a signal arrives; the caller checks which.
pub(crate) fn wait_for_any(descriptors: &[Fd], longest: Option<Duration>) {
    let of = |&fd: &Fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polls: Vec<libc::pollfd> = descriptors.iter().map(of).collect();
    let timeout = longest.map_or(-1, |longest| longest.as_millis().min(i32::MAX as u128) as i32);
    // SAFETY: the kernel reads and writes this many structures of the local list.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
}

/// Turns one of our pipes into a child's standard stream, whose reads and writes block.
pub(crate) fn for_child(pipe: OwnedFd, _used: Direction) -> io::Result<Stdio> {
    let fd = pipe.as_raw_fd();
    // SAFETY: the descriptor is open; fcntl(2) touches no memory of ours.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Stdio::from(pipe))
}

/// Sends a signal to a child that was not waited for, so its process id is not reused yet.
pub(crate) fn send_signal(process: u32, number: i32) -> io::Result<()> {
    // SAFETY: kill(2) takes two numbers and touches no memory of ours.
    match unsafe { libc::kill(process as libc::pid_t, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
