//! Signals: their numbers, their registry, and what a handler may do.

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
/// The requests to end the program.
pub(crate) const SHUTDOWN: &[i32] = &[INTERRUPT, TERMINATE];
pub(crate) const USER1: i32 = libc::SIGUSR1;
pub(crate) const USER2: i32 = libc::SIGUSR2;
pub(crate) const WINDOW_CHANGE: i32 = libc::SIGWINCH;

/// Whether nobody may listen to a signal: it cannot be caught, or the program cannot go on after it.
pub(crate) fn is_forbidden(number: i32) -> bool {
    FORBIDDEN.contains(&number)
}

/// Has `action` called whenever the signal comes, after what others have registered.
///
/// # Safety
///
/// The action does only what a signal handler may: it does not allocate, lock or panic.
pub(crate) unsafe fn register(number: i32, action: impl Fn() + Send + Sync + 'static) -> io::Result<Action> {
    // SAFETY: the caller's promise. What the action captures is dropped when it is unregistered, and the registry waits
    // until no handler uses it.
    unsafe { signal_hook_registry::register(number, action) }
}

/// The end of a bell that a loop watches.
pub(crate) struct Hears(UnixStream);

/// The end of a bell that a signal handler may ring.
pub(crate) struct Rings {
    socket: UnixStream,
    /// The process that the other end is of: see `forks`.
    forks: u32,
}

/// Makes a bell. Both ends are close-on-exec and non-blocking.
pub(crate) fn bell() -> io::Result<(Hears, Rings)> {
    let (hears, rings) = UnixStream::pair()?;
    hears.set_nonblocking(true)?;
    rings.set_nonblocking(true)?;
    let (socket, forks) = (rings, super::count_forks());
    Ok((Hears(hears), Rings { socket, forks }))
}

impl Rings {
    /// Writes one byte. A bell that is full has rung already. A signal of a forked child is not the parent's.
    pub(crate) fn ring(&self) {
        if self.forks != super::forks() {
            return;
        }
        let byte = [0u8];
        // SAFETY: the byte is a local, and write(2) may be called in a signal handler; the bell is open and non-blocking.
        let _ = unsafe { libc::write(self.socket.as_raw_fd(), byte.as_ptr().cast(), 1) };
    }
}

impl Hears {
    /// What to watch.
    pub(crate) fn number(&self) -> Fd {
        self.0.as_raw_fd()
    }

    /// Takes back all rings.
    pub(crate) fn empty(&self) {
        let mut bytes = [0; 256];
        while matches!((&self.0).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}
