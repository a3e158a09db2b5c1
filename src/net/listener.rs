//! Listening.
//!
//! The accept lane holds one multishot flight, which outlives the `accept` calls that use it: the kernel's backlog drains
//! into a queue, and a dropped `accept` loses none of it. When the queue holds 128 connections the multishot is cancelled,
//! and started again when it is empty. A kernel that finds its backlog full hands over the whole of it before it sees the
//! cancel, so the queue holds at most 128 and one backlog (1,024) more. What is still queued when the listener is dropped
//! is reset, so that those clients learn of it.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::addr::ToSocketAddrs;
use super::stream::TcpStream;
use crate::descriptor::{IntoStdError, OwnedDescriptor};
use crate::driver::{Control, FlightId, Landing};
use crate::error::{context, from_code};
use crate::exception::{Exception, report};
use crate::flight::NextLanding;
use crate::loop_core::LoopCore;
use crate::op::Op;
use crate::sys::{self, Fd, errno};
use crate::time::Instant;

/// How long `accept` waits when there are no descriptors left before it tries again. Long enough not to burn the
/// processor (four tries a second), short enough that clients do not notice when it is over.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(250);

/// Connections that the kernel may hold before they are accepted; what std and tokio ask for.
const BACKLOG: i32 = 1024;

/// A TCP socket that listens.
///
/// ```no_run
/// use windlass::net::TcpListener;
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:8080").await?;
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer} connected: {stream:?}");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpListener {
    socket: OwnedDescriptor,
    /// No descriptors were left; before this moment nobody tries again. Kept here and not in `accept`, so that an
    /// `accept` under a timeout does not start anew, and does not tell again, each time.
    exhausted_until: Cell<Option<Instant>>,
}

impl TcpListener {
    /// Listens on an address; port 0 lets the system choose one. If the address is a name with several addresses, the
    /// first that can be bound is taken.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let explain = |error| context(format_args!("bind {}", addr.shown()), error);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for addr in addr.resolve().await.map_err(explain)? {
            match OwnedDescriptor::make(Control::Listen { addr, backlog: BACKLOG }) {
                Ok(socket) => return Ok(TcpListener::from_socket(socket)),
                Err(error) => last = error,
            }
        }
        Err(explain(last))
    }

    /// Takes the next connection.
    ///
    /// Dropping the future loses no connection: the next `accept` gets it. A connection that its peer has given up
    /// meanwhile is passed over. When the process has no descriptors left, this waits until it has (the exception
    /// handler is told once) instead of failing.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let descriptor = &self.socket.descriptor;
        let core = self.socket.core();
        let _hold = descriptor.read.hold().await;
        loop {
            if let Some(until) = self.exhausted_until.get() {
                crate::time::sleep_until(until).await;
            }
            let landing = self.next_landing().await;
            match landing.outcome {
                Ok(fd) => {
                    self.exhausted_until.set(None);
                    let socket = OwnedDescriptor::new(core.rc(), fd as Fd);
                    // A peer that has reset the connection has no address any more, and nobody to serve.
                    if let Ok(peer) = socket.peer_addr() {
                        return Ok((TcpStream::from_socket(socket), peer));
                    }
                }
                Err(code) if is_passing(code) => {}
                Err(code) if is_exhaustion(code) => {
                    let until = core.now() + EXHAUSTED_PAUSE;
                    if self.exhausted_until.replace(Some(until)).is_none() {
                        report(Exception::error(
                            "accept is waiting for free resources",
                            io::Error::from_raw_os_error(code),
                        ));
                    }
                }
                Err(code) => return Err(from_code(code)),
            }
        }
    }

    /// What the multishot lands next; starts it if it is not in the air.
    async fn next_landing(&self) -> Landing {
        let descriptor = &self.socket.descriptor;
        let lane = &descriptor.read;
        let core = self.socket.core();
        loop {
            let id = match lane.flight.get() {
                Some(id) => id,
                None => {
                    let fd = descriptor.fd;
                    let id = core.launch(descriptor.clone(), 0, |_| Op::Accept { fd });
                    lane.flight.set(Some(id));
                    id
                }
            };
            let _waker = WakerBack { core, id };
            let next = std::future::poll_fn(|cx| {
                let next = std::task::ready!(core.poll_next_landing(id, cx));
                if !matches!(next, NextLanding::More(_)) {
                    lane.flight.set(None);
                }
                std::task::Poll::Ready(next)
            })
            .await;
            match next {
                NextLanding::More(landing) => return landing,
                // The bounded queue was full and is empty now, or the driver lands one at a time.
                NextLanding::Last(landing) if landing.outcome == Err(errno::CANCELED) && !core.is_closed() => {}
                NextLanding::Last(landing) => return landing,
                NextLanding::Gone => {}
            }
        }
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Makes a listener of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        Ok(TcpListener::from_socket(OwnedDescriptor::adopt(listener)?))
    }

    /// Makes it one of std's, non-blocking, once the kernel has stopped handing over connections. Refused, with the
    /// listener, if it had handed over some already: accept them first, or they would be lost.
    pub async fn into_std(self) -> Result<std::net::TcpListener, IntoStdError<TcpListener>> {
        let lane = &self.socket.descriptor.read;
        if let Some(id) = lane.flight.get() {
            let core = self.socket.core();
            core.ask_to_end(id);
            core.landed(id).await;
            if core.holds_connection(id) {
                return Err(IntoStdError {
                    error: io::Error::new(io::ErrorKind::WouldBlock, "connections are waiting: accept them first"),
                    inner: self,
                });
            }
        }
        match self.socket.release() {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, socket)) => Err(IntoStdError {
                inner: TcpListener::from_socket(socket),
                error,
            }),
        }
    }

    fn from_socket(socket: OwnedDescriptor) -> TcpListener {
        TcpListener {
            socket,
            exhausted_until: Cell::new(None),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.socket
    }
}

/// Takes the waker back when an `accept` is over or dropped: the flight goes on, and would keep a finished task's memory
/// until the next connection.
struct WakerBack<'a> {
    core: &'a LoopCore,
    id: FlightId,
}

impl Drop for WakerBack<'_> {
    fn drop(&mut self) {
        self.core.forget_waker(self.id);
    }
}

/// Errors of one connection, not of the listener: Linux passes on what happened to the connection before it was
/// accepted.
fn is_passing(code: i32) -> bool {
    matches!(
        code,
        errno::ABORTED
            | errno::PROTOCOL
            | errno::INTERRUPTED
            | errno::NETWORK_DOWN
            | errno::HOST_DOWN
            | errno::NO_PROTOCOL_OPTION
            | errno::HOST_UNREACHABLE
            | errno::NETWORK_UNREACHABLE
    )
}

fn is_exhaustion(code: i32) -> bool {
    matches!(
        code,
        errno::PROCESS_FILES | errno::SYSTEM_FILES | errno::NO_BUFFERS | errno::NO_MEMORY
    )
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("fd", &self.socket.fd())
            .field("local", &self.socket.local_addr().ok())
            .finish()
    }
}
