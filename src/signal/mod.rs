//! Signals of the operating system, awaited.
//!
//! A signal interrupts a thread between two instructions, perhaps inside the allocator, so a handler may do next to
//! nothing. Ours sets a flag and writes one byte to the bell of each loop that listens, a non-blocking socket pair. (On Windows
//! a thread of the system's does it.) The flag
//! is the truth, the byte only wakes: a bell that is full, or one that a forked child rings too, changes nothing.
//!
//! ```text
//!   the kernel --> handler (shared by the whole process, chained by signal-hook-registry)
//!                    |  per loop: flags[number] = true; write(bell, 1)
//!                    v
//!   a loop's room: a watcher of the bell empties it, then takes the flags, counts, and wakes the listeners
//! ```
//!
//! The room (`room.rs`) belongs to the listeners: the first makes it, the last takes it along, with its descriptors and its
//! part of the handler.

mod hub;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

pub(crate) use self::hub::SignalHub;
use crate::event_loop::core::LoopCore;
use crate::sys;
use crate::task::{WaitReason, set_wait_reason};

/// Which signal.
///
/// ```
/// use windlass::signal::SignalKind;
/// assert_eq!(SignalKind::from_raw(SignalKind::hangup().as_raw()), SignalKind::hangup());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignalKind(i32);

impl SignalKind {
    /// Any signal by its number. Those that nobody can listen to are refused by [`signal`].
    pub const fn from_raw(number: i32) -> SignalKind {
        SignalKind(number)
    }

    /// The signal's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// `SIGHUP`: the terminal is gone; to a daemon, a request to read its settings again. On Windows: the console's window
    /// is closed, and the process ends some seconds later whatever it does.
    pub const fn hangup() -> SignalKind {
        SignalKind(sys::signals::HANGUP)
    }

    /// `SIGINT`: somebody pressed Ctrl-C.
    pub const fn interrupt() -> SignalKind {
        SignalKind(sys::signals::INTERRUPT)
    }

    /// `SIGTERM`: a polite request to end. On Windows, to services alone: the machine shuts down, or the user logs off.
    pub const fn terminate() -> SignalKind {
        SignalKind(sys::signals::TERMINATE)
    }
}

/// What Unix has besides.
#[cfg(unix)]
impl SignalKind {
    /// `SIGALRM`: a timer of the process is due.
    pub const fn alarm() -> SignalKind {
        SignalKind(sys::signals::ALARM)
    }

    /// `SIGCHLD`: a child has ended, or was stopped.
    pub const fn child() -> SignalKind {
        SignalKind(sys::signals::CHILD)
    }

    /// `SIGPIPE`: a write to a pipe that nobody reads. Rust programs ignore it, and see the write's error.
    pub const fn pipe() -> SignalKind {
        SignalKind(sys::signals::PIPE)
    }

    /// `SIGQUIT`: somebody pressed Ctrl-\.
    pub const fn quit() -> SignalKind {
        SignalKind(sys::signals::QUIT)
    }

    /// `SIGUSR1`: whatever the program says it means.
    pub const fn user_defined1() -> SignalKind {
        SignalKind(sys::signals::USER1)
    }

    /// `SIGUSR2`: whatever the program says it means.
    pub const fn user_defined2() -> SignalKind {
        SignalKind(sys::signals::USER2)
    }

    /// `SIGWINCH`: the terminal's window has changed its size.
    pub const fn window_change() -> SignalKind {
        SignalKind(sys::signals::WINDOW_CHANGE)
    }

    /// `SIGIO`: a descriptor that was asked to say so is ready.
    pub const fn io() -> SignalKind {
        SignalKind(sys::signals::IO)
    }
}

/// What Windows has besides.
#[cfg(windows)]
impl SignalKind {
    /// Somebody pressed Ctrl-Break.
    pub const fn ctrl_break() -> SignalKind {
        SignalKind(sys::signals::BREAK)
    }
}

impl From<i32> for SignalKind {
    fn from(number: i32) -> SignalKind {
        SignalKind(number)
    }
}

impl From<SignalKind> for i32 {
    fn from(kind: SignalKind) -> i32 {
        kind.0
    }
}

/// Listens to a signal: every one that comes from now on is heard by [`Signal::recv`].
///
/// Any number of listeners, on any number of loops and threads, hear each signal. A handler that was there before is still
/// called, but **what the system does by default is off from now on, for good**: once a program has listened to `SIGTERM` it
/// does not end by it any more, not even when the listener is gone.
///
/// It is an `InvalidInput` error for a number that is no signal, and for those that cannot be caught or must not be
/// (`SIGKILL`, `SIGSTOP`, `SIGILL`, `SIGFPE`, `SIGSEGV`). The null driver, whose time is not real, says `Unsupported`.
///
/// ```
/// use windlass::signal::{SignalKind, signal};
/// windlass::run(async {
///     let mut hangup = signal(SignalKind::hangup())?;
///     windlass::spawn(async move {
///         while hangup.recv().await.is_some() {
///             println!("reading the settings again");
///         }
///     });
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    let hub = SignalHub::of(LoopCore::current("signal"), kind.0)?;
    let (place, heard) = hub.join(kind.0)?;
    Ok(Signal {
        hub,
        kind,
        place,
        heard,
    })
}

/// Waits for Ctrl-C (`SIGINT`), from the first poll on.
///
/// Once this was polled, Ctrl-C does not end the program by itself any more, also when this has returned or was dropped: see
/// [`signal()`], which is also what a loop wants that waits for it again and again. Cancelling it loses nothing but the
/// signals that come while nobody listens.
///
/// ```no_run
/// windlass::run(async {
///     println!("press Ctrl-C to end");
///     windlass::signal::ctrl_c().await
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside of a loop.
pub async fn ctrl_c() -> io::Result<()> {
    match signal(SignalKind::interrupt())?.recv().await {
        Some(()) => Ok(()),
        None => Err(crate::error::LoopClosed.into()),
    }
}

/// Waits for Ctrl-Break, as [`ctrl_c`] does for Ctrl-C.
///
/// ```no_run
/// windlass::run(async {
///     println!("press Ctrl-Break to end");
///     windlass::signal::ctrl_break().await
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside of a loop.
#[cfg(windows)]
pub async fn ctrl_break() -> io::Result<()> {
    match signal(SignalKind::ctrl_break())?.recv().await {
        Some(()) => Ok(()),
        None => Err(crate::error::LoopClosed.into()),
    }
}

/// Listens to every request to end the program: Ctrl-C and `SIGTERM`, which service managers and containers send. On Windows:
/// Ctrl-C, Ctrl-Break, the console's window closing, and a service's shutdown.
///
/// It listens from this call on, so call it before the program says that it is ready. The rules are those of [`signal()`]: once
/// a program has listened, these signals do not end it by themselves any more.
///
/// ```no_run
/// use windlass::net::TcpListener;
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:7777").await?;
///     let mut shutdown = windlass::signal::shutdown()?;
///     while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
///         match accepted {
///             Ok((stream, _peer)) => drop(stream),
///             Err(error) => eprintln!("accept: {error}"),
///         }
///     }
///     println!("no longer accepting");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn shutdown() -> io::Result<ShutdownSignal> {
    let mut signals = Vec::with_capacity(sys::signals::SHUTDOWN.len());
    for &number in sys::signals::SHUTDOWN {
        signals.push(signal(SignalKind(number))?);
    }
    Ok(ShutdownSignal { signals })
}

/// A listener to every request to end the program, made by [`shutdown()`].
#[must_use = "a signal is heard only while its listener lives"]
#[derive(Debug)]
pub struct ShutdownSignal {
    signals: Vec<Signal>,
}

impl ShutdownSignal {
    /// Waits for the next request to end. `None` when the loop that this was made on is closed.
    ///
    /// Cancelling it loses nothing: the next call hears what came meanwhile.
    pub async fn recv(&mut self) -> Option<()> {
        let waiting = Waiting(&mut self.signals);
        poll_fn(|cx| poll_any(waiting.0, cx)).await
    }

    /// The same as a poll: the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        poll_any(&mut self.signals, cx)
    }

    /// Runs `future` until it is done or the program is asked to end; then the future is dropped, and there is `None`.
    ///
    /// A request that came before is answered first, so a loop of these ends even if each future is ready at once. Each
    /// request is heard once: a second call waits for a second one, for instance to cut short what the first has begun.
    pub async fn run_until_shutdown<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let waiting = Waiting(&mut self.signals);
        let mut future = pin!(future);
        let mut is_first = true;
        poll_fn(|cx| {
            if std::mem::take(&mut is_first) && poll_any(waiting.0, cx).is_ready() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            poll_any(waiting.0, cx).map(|_| None)
        })
        .await
    }
}

/// Ready if one of them has come. All are polled, so that each has the waker.
fn poll_any(signals: &mut [Signal], cx: &mut Context<'_>) -> Poll<Option<()>> {
    let mut result = Poll::Pending;
    for signal in signals {
        if let Poll::Ready(heard) = signal.poll_recv(cx) {
            result = Poll::Ready(heard);
        }
    }
    result
}

/// One listener to a signal, made by [`signal()`].
///
/// Signals coalesce, here as in the kernel: several that come before one is received are received as one. None is lost:
/// after the last signal there is always one more [`recv`](Signal::recv) that returns. The loop that it was made on hears for
/// it.
///
/// ```
/// use windlass::signal::{SignalKind, signal};
/// windlass::run(async {
///     let mut alarm = signal(SignalKind::alarm())?;
///     // SAFETY: this only sends a signal to ourselves, and it is listened to.
///     unsafe { libc::raise(libc::SIGALRM) };
///     assert_eq!(alarm.recv().await, Some(()));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a signal is heard only while its listener lives"]
pub struct Signal {
    hub: Rc<SignalHub>,
    kind: SignalKind,
    /// Among the listeners to this signal in the room.
    place: usize,
    /// What the room's count was when this one last heard.
    heard: u64,
}

impl Signal {
    /// Waits for the signal, if none has come since the last call. `None` when the loop that this was made on is closed.
    ///
    /// Cancelling it loses nothing: the next call hears what came meanwhile.
    pub async fn recv(&mut self) -> Option<()> {
        let waiting = Waiting(std::slice::from_mut(self));
        poll_fn(|cx| poll_any(waiting.0, cx)).await
    }

    /// The same as a poll: the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        let polled = self.hub.poll_heard(self.kind.0, self.place, self.heard, cx);
        if polled.is_pending() {
            set_wait_reason(WaitReason::Named("a signal"));
        }
        polled.map(|count| count.map(|count| self.heard = count))
    }

    /// Which signal this listens to.
    pub fn kind(&self) -> SignalKind {
        self.kind
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.hub.leave(self.kind.0, self.place);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Takes the wakers along when a wait ends, so that no task is woken for a future that is gone.
struct Waiting<'a>(&'a mut [Signal]);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for signal in &*self.0 {
            signal.hub.forget_waker(signal.kind.0, signal.place);
        }
    }
}
