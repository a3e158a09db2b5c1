//! Signals: their numbers, and what a handler may do.

use super::Fd;

pub(crate) const ALARM: i32 = libc::SIGALRM;
pub(crate) const CHILD: i32 = libc::SIGCHLD;
pub(crate) const HANGUP: i32 = libc::SIGHUP;
pub(crate) const INTERRUPT: i32 = libc::SIGINT;
pub(crate) const IO: i32 = libc::SIGIO;
pub(crate) const PIPE: i32 = libc::SIGPIPE;
pub(crate) const QUIT: i32 = libc::SIGQUIT;
pub(crate) const TERMINATE: i32 = libc::SIGTERM;
pub(crate) const USER1: i32 = libc::SIGUSR1;
pub(crate) const USER2: i32 = libc::SIGUSR2;
pub(crate) const WINDOW_CHANGE: i32 = libc::SIGWINCH;

/// Writes one byte to a bell, from inside a signal handler. A bell that is full has rung already.
pub(crate) fn ring(bell: Fd) {
    let byte = [0u8];
    // SAFETY: the byte is a local, and write(2) may be called in a signal handler; the bell is open and non-blocking.
    let _ = unsafe { libc::write(bell, byte.as_ptr().cast(), 1) };
}
