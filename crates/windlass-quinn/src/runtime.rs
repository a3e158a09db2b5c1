//! quinn's runtime interface: tasks, timers, sockets, each on the loop that made the runtime.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket};
use windlass::compat::ThreadBound;

use crate::socket::Socket;
use crate::timer::{Clock, Timer};

/// quinn's [`Runtime`](quinn::Runtime) for one loop: for [`Endpoint::new`](quinn::Endpoint::new), where [`server`](crate::server)
/// and [`client`](crate::client) do not suffice.
///
/// quinn starts tasks on the thread that opens a connection, which may be any thread. This runtime sends them to its own loop,
/// where the sockets are.
///
/// ```
/// use std::{net::UdpSocket, sync::Arc};
/// use windlass_quinn::{Runtime, quinn::{Endpoint, EndpointConfig}};
///
/// windlass::run(async {
///     let socket = UdpSocket::bind("127.0.0.1:0")?;
///     let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(Runtime::new()))?;
///     assert_eq!(endpoint.open_connections(), 0);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    home: ThreadBound<()>,
    clock: Clock,
}

impl Runtime {
    /// A runtime on the current loop.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    #[allow(
        clippy::new_without_default,
        reason = "a default that panics outside of a loop would surprise"
    )]
    pub fn new() -> Runtime {
        Runtime {
            home: ThreadBound::new(()),
            clock: Clock::new(),
        }
    }
}

impl quinn::Runtime for Runtime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer::new(self.clock, deadline))
    }

    #[track_caller]
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.home.is_home() {
            windlass::spawn(future).detach();
        } else {
            // An error means that the loop has closed. Its endpoints and connections have ended then.
            let _ = self.home.home().spawn(future);
        }
    }

    /// # Errors
    ///
    /// `Unsupported` on another thread than the loop's: [`Endpoint::rebind`](quinn::Endpoint::rebind) must be called on the loop.
    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        if !self.home.is_home() {
            let why = "a socket of an endpoint must be made on the endpoint's loop";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Arc::new(Socket::new(socket)?))
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_home = self.home.is_home();
        f.debug_struct("Runtime").field("is_home", &is_home).finish()
    }
}
