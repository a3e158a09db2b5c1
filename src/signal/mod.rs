//! Signals of the operating system, and graceful shutdown.
//!
//! ```no_run
//! windlass::run(async {
//!     let mut shutdown = windlass::signal::shutdown()?;
//!     shutdown.recv().await;
//!     println!("shutting down");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Design
//!
//! A signal handler may run in the middle of any code, even inside the allocator, so it may only call async-signal-safe
//! functions. The handler (one per signal and process, chained by signal-hook-registry; on Windows called on a thread
//! of the system) sets a flag per loop and signal, and writes a byte to the loop's wake-up socket. The loop drains the
//! socket, takes the flags and wakes the listeners (`hub.rs`). The byte only wakes the loop, so a full socket loses no
//! signal.

mod hub;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

pub(crate) use self::hub::SignalHub;
use futures_core::Stream;

use crate::error::LoopClosed;
use crate::event_loop::core::LoopCore;
use crate::sys;
use crate::task::{Either, WaitReason, select, set_wait_reason};

/// The number of a signal.
///
/// ```
/// use windlass::signal::SignalKind;
/// assert_eq!(SignalKind::from_raw(SignalKind::hangup().as_raw()), SignalKind::hangup());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignalKind(i32);

impl SignalKind {
    /// A signal by its number. [`signal`] refuses numbers that cannot be listened to.
    pub const fn from_raw(number: i32) -> SignalKind {
        SignalKind(number)
    }

    /// The signal's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// `SIGHUP`: the terminal was closed; for a daemon, a request to reload its configuration. On Windows: the console
    /// window was closed; the process is terminated some seconds later.
    pub const fn hangup() -> SignalKind {
        SignalKind(sys::signals::HANGUP)
    }

    /// `SIGINT`: Ctrl-C was pressed.
    pub const fn interrupt() -> SignalKind {
        SignalKind(sys::signals::INTERRUPT)
    }

    /// `SIGTERM`: a request to terminate. On Windows, for services only: the system shuts down or the user logs off.
    pub const fn terminate() -> SignalKind {
        SignalKind(sys::signals::TERMINATE)
    }
}

/// Unix signals.
#[cfg(unix)]
impl SignalKind {
    /// `SIGALRM`: a timer of the process has expired.
    pub const fn alarm() -> SignalKind {
        SignalKind(sys::signals::ALARM)
    }

    /// `SIGCHLD`: a child process has exited or was stopped.
    pub const fn child() -> SignalKind {
        SignalKind(sys::signals::CHILD)
    }

    /// `SIGPIPE`: a write to a pipe without readers. Rust programs ignore it and get the error of the write.
    pub const fn pipe() -> SignalKind {
        SignalKind(sys::signals::PIPE)
    }

    /// `SIGQUIT`: Ctrl-\ was pressed.
    pub const fn quit() -> SignalKind {
        SignalKind(sys::signals::QUIT)
    }

    /// `SIGUSR1`: defined by the application.
    pub const fn user_defined1() -> SignalKind {
        SignalKind(sys::signals::USER1)
    }

    /// `SIGUSR2`: defined by the application.
    pub const fn user_defined2() -> SignalKind {
        SignalKind(sys::signals::USER2)
    }

    /// `SIGWINCH`: the terminal was resized.
    pub const fn window_change() -> SignalKind {
        SignalKind(sys::signals::WINDOW_CHANGE)
    }

    /// `SIGIO`: a descriptor in asynchronous mode (`O_ASYNC`) is ready.
    pub const fn io() -> SignalKind {
        SignalKind(sys::signals::IO)
    }
}

/// Windows signals.
#[cfg(windows)]
impl SignalKind {
    /// Ctrl-Break was pressed.
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

/// Listens to a signal. [`Signal::recv`] returns for signals that arrive after this call.
///
/// Every listener on every loop and thread receives each signal. Handlers that were installed before are still called,
/// but **the default action of the signal is disabled permanently**: once a program has listened to `SIGTERM`, that
/// signal does not terminate it any more, not even after the listener was dropped.
///
/// # Errors
///
/// `InvalidInput` for an invalid number and for signals that cannot or must not be caught (`SIGKILL`, `SIGSTOP`,
/// `SIGILL`, `SIGFPE`, `SIGSEGV`). `Unsupported` on the null driver, whose clock is virtual.
///
/// ```
/// use windlass::signal::{SignalKind, signal};
/// windlass::run(async {
///     let mut hangup = signal(SignalKind::hangup())?;
///     windlass::spawn(async move {
///         while hangup.recv().await.is_some() {
///             println!("reloading the configuration");
///         }
///     });
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    let hub = SignalHub::of(LoopCore::current("signal"), kind.0)?;
    let (key, seen) = hub.join(kind.0)?;
    Ok(Signal { hub, kind, key, seen })
}

/// Waits for Ctrl-C (`SIGINT`). It listens from its first poll on; earlier signals are not seen.
///
/// After the first poll, Ctrl-C does not terminate the program any more, even after this future has returned or was
/// dropped. In a loop, use [`signal()`], which does not lose signals between two waits.
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
/// Outside a loop.
pub async fn ctrl_c() -> io::Result<()> {
    let received = signal(SignalKind::interrupt())?.recv().await;
    received.ok_or_else(|| LoopClosed.into())
}

/// Waits for Ctrl-Break, like [`ctrl_c`] for Ctrl-C.
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
/// Outside a loop.
#[cfg(windows)]
pub async fn ctrl_break() -> io::Result<()> {
    let received = signal(SignalKind::ctrl_break())?.recv().await;
    received.ok_or_else(|| LoopClosed.into())
}

/// Listens to all requests to terminate: Ctrl-C and `SIGTERM`, which service managers and containers send; on Windows
/// Ctrl-C, Ctrl-Break, the closing of the console window, and the shutdown of a service.
///
/// It listens from this call on, so call it before the program reports that it is ready. As for [`signal()`], these
/// signals do not terminate the program any more.
///
/// ```no_run
/// use windlass::net::TcpListener;
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:7777").await?;
///     let mut shutdown = windlass::signal::shutdown()?;
///     while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
///         match accepted {
///             Ok((stream, _peer)) => drop(stream),
///             Err(error) => {
///                 eprintln!("accept: {error}");
///                 windlass::time::sleep(std::time::Duration::from_millis(100)).await;
///             }
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
/// Outside a loop.
#[track_caller]
pub fn shutdown() -> io::Result<ShutdownSignal> {
    let mut signals = Vec::with_capacity(sys::signals::SHUTDOWN.len());
    for &number in sys::signals::SHUTDOWN {
        signals.push(signal(SignalKind(number))?);
    }
    Ok(ShutdownSignal { signals })
}

/// A listener to all requests to terminate, created by [`shutdown()`].
#[must_use = "signals are only received while the listener exists"]
#[derive(Debug)]
pub struct ShutdownSignal {
    signals: Vec<Signal>,
}

impl ShutdownSignal {
    /// Waits for the next request to terminate. Returns `None` when the listener's loop is closed.
    ///
    /// **Cancel safety:** no signal is lost; the next call returns it.
    pub async fn recv(&mut self) -> Option<()> {
        let waiting = ForgetWakers(&mut self.signals);
        poll_fn(|cx| poll_any(waiting.0, cx)).await
    }

    /// Polls for the next request. Only the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        poll_any(&mut self.signals, cx)
    }

    /// Runs `future` to completion. If termination is requested first, drops the future and returns `None`.
    ///
    /// A request from before the call takes precedence, so a loop of these calls ends even if every future is ready
    /// immediately. Each request is reported once: the next call waits for another one, for instance to abort a
    /// graceful shutdown.
    pub async fn run_until_shutdown<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let waiting = ForgetWakers(&mut self.signals);
        // A signal received before this call takes precedence over a future that is ready.
        if poll_fn(|cx| Poll::Ready(poll_any(waiting.0, cx).is_ready())).await {
            return None;
        }
        match select(future, poll_fn(|cx| poll_any(waiting.0, cx))).await {
            Either::Left(output) => Some(output),
            Either::Right(_) => None,
        }
    }
}

impl Stream for ShutdownSignal {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        self.poll_recv(cx)
    }
}

/// Ready if any of the signals has arrived. Polls all of them, so that each has the waker.
fn poll_any(signals: &mut [Signal], cx: &mut Context<'_>) -> Poll<Option<()>> {
    let mut result = Poll::Pending;
    for signal in signals {
        if let Poll::Ready(received) = signal.poll_recv(cx) {
            result = Poll::Ready(received);
        }
    }
    result
}

/// A listener to a signal, created by [`signal()`].
///
/// Signals coalesce, as in the kernel: several that arrive before a [`recv`](Signal::recv) are received as one. After
/// the last signal, at least one `recv` returns. The listener's loop must run. It is a [`Stream`], too, which ends when the
/// loop closes.
///
/// ```
/// use windlass::signal::{SignalKind, signal};
/// windlass::run(async {
///     let mut alarm = signal(SignalKind::alarm())?;
///     // SAFETY: this only sends a signal to this process, which listens to it.
///     unsafe { libc::raise(libc::SIGALRM) };
///     assert_eq!(alarm.recv().await, Some(()));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "signals are only received while the listener exists"]
pub struct Signal {
    hub: Rc<SignalHub>,
    kind: SignalKind,
    /// The listener's key in the hub.
    key: usize,
    /// The hub's count for this signal when this listener last received it.
    seen: u64,
}

impl Signal {
    /// Waits for a signal, unless one has arrived since the last call. Returns `None` when the listener's loop closes.
    ///
    /// **Cancel safety:** no signal is lost; the next call returns it.
    pub async fn recv(&mut self) -> Option<()> {
        let waiting = ForgetWakers(std::slice::from_mut(self));
        poll_fn(|cx| poll_any(waiting.0, cx)).await
    }

    /// Polls for the signal. Only the waker of the last call is woken.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        let polled = self.hub.poll_count(self.kind.0, self.key, self.seen, cx);
        if polled.is_pending() {
            set_wait_reason(WaitReason::Named(&"a signal"));
        }
        polled.map(|count| count.map(|count| self.seen = count))
    }

    /// The signal that this listens to.
    pub fn kind(&self) -> SignalKind {
        self.kind
    }
}

impl Stream for Signal {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        self.poll_recv(cx)
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.hub.leave(self.kind.0, self.key);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Removes the wakers when a wait ends or is dropped, so that no task is woken for a dropped future.
struct ForgetWakers<'a>(&'a mut [Signal]);

impl Drop for ForgetWakers<'_> {
    fn drop(&mut self) {
        for signal in &*self.0 {
            signal.hub.forget_waker(signal.kind.0, signal.key);
        }
    }
}
