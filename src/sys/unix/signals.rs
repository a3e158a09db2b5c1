//! Signal numbers, the registration of handlers, and the wake-up socket that a handler writes to.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use signal_hook_registry::FORBIDDEN;
pub(crate) use signal_hook_registry::{SigId as Action, unregister};

use super::Fd;

pub(crate) const ALARM: i32 = libc::SIGALRM;
pub(crate) const CHILD: i32 = libc::SIGCHLD;
pub(crate) const HANGUP: i32 = libc::SIGHUP;
pub(crate) const INTERRUPT: i32 = libc::SIGINT;
pub(crate) const IO: i32 = libc::SIGIO;
pub(crate) const PIPE: i32 = libc::SIGPIPE;
pub(crate) const QUIT: i32 = libc::SIGQUIT;
pub(crate) const TERMINATE: i32 = libc::SIGTERM;
/// The signals that ask the program to end.
pub(crate) const SHUTDOWN: &[i32] = &[INTERRUPT, TERMINATE];
pub(crate) const USER1: i32 = libc::SIGUSR1;
pub(crate) const USER2: i32 = libc::SIGUSR2;
pub(crate) const WINDOW_CHANGE: i32 = libc::SIGWINCH;

/// Whether a signal cannot be caught, or the program cannot continue after it.
pub(crate) fn is_forbidden(number: i32) -> bool {
    FORBIDDEN.contains(&number)
}

/// Calls `action` on each occurrence of the signal, after the actions and handlers that were there before.
///
/// # Safety
///
/// The action must be async-signal-safe: it must not allocate, lock or panic.
pub(crate) unsafe fn register(number: i32, action: impl Fn() + Send + Sync + 'static) -> io::Result<Action> {
    // SAFETY: the caller's promise. Unregistering drops the action, after the registry has waited until no handler runs
    // it.
    unsafe { signal_hook_registry::register(number, action) }
}

/// The end of a wake-up socket pair that the loop watches.
pub(crate) struct WakeReceiver(UnixStream);

/// The end of a wake-up socket pair that a signal handler may write to.
pub(crate) struct WakeSender {
    socket: UnixStream,
    /// The fork count of the process that created the pair: see `forks`.
    forks: u32,
}

/// Creates a wake-up socket pair. Both ends are close-on-exec and non-blocking.
pub(crate) fn wake_pair() -> io::Result<(WakeReceiver, WakeSender)> {
    let (receiver, sender) = UnixStream::pair()?;
    receiver.set_nonblocking(true)?;
    sender.set_nonblocking(true)?;
    let (socket, forks) = (sender, super::count_forks());
    Ok((WakeReceiver(receiver), WakeSender { socket, forks }))
}

impl WakeSender {
    /// Writes one byte. If the socket is full, the loop has a wake-up pending already. Does nothing in a
    /// forked child: the other end is the parent's.
    pub(crate) fn wake(&self) {
        if self.forks != super::forks() {
            return;
        }
        let byte = [0u8];
        // SAFETY: the byte is a local. write(2) is async-signal-safe, and the socket is open and non-blocking.
        let _ = unsafe { libc::write(self.socket.as_raw_fd(), byte.as_ptr().cast(), 1) };
    }
}

impl WakeReceiver {
    /// The descriptor to watch.
    pub(crate) fn number(&self) -> Fd {
        self.0.as_raw_fd()
    }

    /// Drains the socket.
    pub(crate) fn drain(&self) {
        let mut bytes = [0; 256];
        while matches!((&self.0).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}
