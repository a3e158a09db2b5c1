//! Servers: listening sockets and the connections accepted from them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use slab::Slab;

use super::any_stream::AnyStream;
use super::condition::Condition;
use crate::error::copy_error;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::net::unix::{UnixAddr, UnixListener};
use crate::net::{TcpListener, ToSocketAddrs, resolve};
use crate::on_drop::OnDrop;
use crate::sys::context;
use crate::task::{JoinHandle, spawn};

/// A server that accepts connections, made by [`create_server`](super::create_server) or
/// [`start_server`](super::start_server).
///
/// It accepts connections as soon as it exists. Dropping it stops accepting; open connections continue.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let server = start_server(async |_reader, writer| writer.write("welcome\n"), "127.0.0.1:0").await?;
///     let addr = server.local_addr()?;
///     let (mut reader, _writer) = open_connection(addr).await?;
///     assert_eq!(reader.read_line().await?, "welcome\n");
///     drop((reader, _writer));
///
///     server.close();
///     server.wait_closed().await; // also waits for its connections
///     let error = open_connection(addr).await.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping a server closes it"]
pub struct Server {
    state: Rc<ServerState>,
}

pub(super) struct ServerState {
    core: Rc<LoopCore>,
    addrs: Vec<SocketAddr>,
    #[cfg_attr(not(unix), allow(dead_code, reason = "Unix sockets only"))]
    unix_addr: Option<UnixAddr>,
    /// One task per listening socket.
    accepting: RefCell<Vec<JoinHandle<()>>>,
    /// How many of these sockets are open.
    open_listeners: Cell<usize>,
    closed: Cell<bool>,
    /// Closed, but the kernel has not released every listening socket yet.
    sockets_closing: Cell<bool>,
    failure: RefCell<Option<io::Error>>,
    clients: RefCell<Slab<Weak<dyn Client>>>,
    changed: Condition,
}

/// A connection of a server: with a protocol, or with a reader and a writer.
pub(super) trait Client {
    fn close_client(self: Rc<Self>);
    fn abort_client(self: Rc<Self>);
}

/// Removes a connection from its server's list when dropped.
pub(super) struct Registration {
    state: Rc<ServerState>,
    key: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let client = self.state.clients.borrow_mut().try_remove(self.key);
        drop(client);
        self.state.changed.notify();
    }
}

/// Handles a new connection.
pub(super) type Serve = dyn FnMut(AnyStream, Rc<ServerState>);

/// A listening socket of any family.
pub(super) enum AnyListener {
    Tcp(TcpListener),
    #[cfg_attr(not(unix), allow(dead_code, reason = "Unix sockets only"))]
    Unix(UnixListener),
}

impl AnyListener {
    /// Binds every address that `addr` resolves to.
    pub(super) async fn bind(addr: impl ToSocketAddrs) -> io::Result<Vec<AnyListener>> {
        let mut listeners = Vec::new();
        let mut last = None;
        for addr in resolve("bind", &addr).await? {
            match TcpListener::bind(addr).await {
                Ok(listener) => listeners.push(AnyListener::Tcp(listener)),
                // A name may resolve to an address family that this machine lacks.
                Err(error) if is_missing_family(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(error) if listeners.is_empty() => Err(context(format_args!("bind {}", addr.describe()), error)),
            _ => Ok(listeners),
        }
    }

    #[cfg(unix)]
    #[track_caller]
    pub(super) fn bind_unix(path: impl AsRef<std::path::Path>) -> io::Result<Vec<AnyListener>> {
        Ok(vec![AnyListener::Unix(UnixListener::bind(path)?)])
    }

    async fn accept(&self) -> io::Result<AnyStream> {
        match self {
            AnyListener::Tcp(listener) => Ok(listener.accept().await?.0.into()),
            AnyListener::Unix(listener) => Ok(listener.accept().await?.0.into()),
        }
    }
}

impl Server {
    /// Starts accepting on `listeners`.
    pub(super) fn new(listeners: Vec<AnyListener>, serve: Box<Serve>) -> Server {
        let mut addrs = Vec::new();
        let mut unix_addr = None;
        for listener in &listeners {
            match listener {
                AnyListener::Tcp(listener) => addrs.extend(listener.local_addr().ok()),
                AnyListener::Unix(listener) => unix_addr = listener.local_addr().ok(),
            }
        }
        let state = Rc::new(ServerState {
            core: LoopCore::current("create_server").rc(),
            addrs,
            unix_addr,
            accepting: RefCell::default(),
            open_listeners: Cell::new(listeners.len()),
            closed: Cell::new(false),
            sockets_closing: Cell::new(false),
            failure: RefCell::default(),
            clients: RefCell::default(),
            changed: Condition::default(),
        });
        let serve = Rc::new(Cell::new(Some(serve)));
        for listener in listeners {
            let task = spawn(accept_all(state.clone(), listener, serve.clone()));
            state.accepting.borrow_mut().push(task);
        }
        Server { state }
    }

    /// The local address; the first, if there are several.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.state.addrs.first().copied();
        first.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the server has no internet address"))
    }

    /// The local address of a Unix server.
    #[cfg(unix)]
    pub fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        let addr = self.state.unix_addr.clone();
        addr.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the server has no Unix address"))
    }

    /// All local IP addresses: a name may resolve to several.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.state.addrs
    }

    /// Whether the server accepts connections.
    pub fn is_serving(&self) -> bool {
        !self.state.closed.get() && self.state.open_listeners.get() > 0
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.state.clients.borrow().len()
    }

    /// Stops listening: new connections are refused, open ones continue.
    pub fn close(&self) {
        self.state.close();
    }

    /// Closes every connection once its queued data is sent.
    pub fn close_clients(&self) {
        for client in self.state.clients() {
            client.close_client();
        }
    }

    /// Resets every connection and discards its queued data.
    pub fn abort_clients(&self) {
        for client in self.state.clients() {
            client.abort_client();
        }
    }

    /// Waits until the server is closed and its sockets and connections are closed. Dropping the future has no effect.
    pub async fn wait_closed(&self) {
        let state = &self.state;
        state
            .changed
            .wait_until(|| state.has_stopped_listening() && state.clients.borrow().is_empty())
            .await;
    }

    /// Waits until the server and its connections are closed. Fails if accepting has failed permanently. Dropping the
    /// future closes the server.
    pub async fn serve_forever(&self) -> io::Result<()> {
        let _close = OnDrop(|| self.state.close());
        self.state
            .changed
            .wait_until(|| self.state.has_stopped_listening())
            .await;
        let failure = self.state.failure.take();
        if let Some(error) = failure {
            return Err(error);
        }
        self.wait_closed().await;
        Ok(())
    }
}

impl ServerState {
    /// Adds a new connection to the list.
    pub(super) fn register(self: Rc<Self>, client: Weak<dyn Client>) -> Registration {
        let key = self.clients.borrow_mut().insert(client);
        Registration { state: self, key }
    }

    /// The sockets close in the next turn, since an accepting task may be the caller.
    fn close(self: &Rc<Self>) {
        if self.closed.replace(true) {
            return;
        }
        let tasks = self.accepting.take();
        for task in &tasks {
            task.cancel();
        }
        self.sockets_closing.set(true);
        let state = self.clone();
        let _current = self.core.make_current();
        spawn(async move {
            for task in tasks {
                let _ = task.await;
            }
            state.sockets_closing.set(false);
            state.changed.notify();
        });
    }

    /// Whether no socket listens and the kernel has released them all.
    fn has_stopped_listening(&self) -> bool {
        self.open_listeners.get() == 0 && !self.sockets_closing.get()
    }

    fn clients(&self) -> Vec<Rc<dyn Client>> {
        let clients = self.clients.borrow();
        clients.iter().filter_map(|(_, client)| client.upgrade()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addrs", &self.state.addrs)
            .field("serving", &self.is_serving())
            .field("connections", &self.connections())
            .finish()
    }
}

async fn accept_all(state: Rc<ServerState>, listener: AnyListener, serve: Rc<Cell<Option<Box<Serve>>>>) {
    // Declared before the socket, and so dropped after it.
    let _count = OnDrop(|| {
        state.open_listeners.set(state.open_listeners.get() - 1);
        state.changed.notify();
    });
    let listener = listener;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                // Taken out, so that no borrow is held while user code runs.
                let Some(mut serve_one) = serve.take() else { return };
                guard("a server's factory", || serve_one(stream, state.clone()));
                serve.set(Some(serve_one));
            }
            Err(error) => {
                state.failure.replace(Some(copy_error(&error)));
                report(Exception::error("a server stopped accepting connections", error));
                return;
            }
        }
    }
}

fn is_missing_family(error: &io::Error) -> bool {
    // `io::ErrorKind` has no name for this code.
    crate::sys::os_code(error) == Some(crate::sys::errno::NO_FAMILY)
        || matches!(
            error.kind(),
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
        )
}
