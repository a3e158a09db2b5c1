//! Servers: one or several listening sockets, and the connections that came through them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use slab::Slab;

use super::any_stream::AnyStream;
use super::change_notify::ChangeNotify;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::net::unix::{UnixAddr, UnixListener};
use crate::net::{TcpListener, ToSocketAddrs};
use crate::sys::context;
use crate::task::{JoinHandle, spawn};

/// A server that accepts connections, made by [`create_server`](super::create_server) or
/// [`start_server`](super::start_server).
///
/// It serves from the start. Dropping it closes it: nothing more is accepted, and the connections that are there go on.
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
///     server.wait_closed().await; // its connections are gone too
///     let error = open_connection(addr).await.unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping a server closes it"]
pub struct Server {
    inner: Rc<Inner>,
}

struct Inner {
    core: Rc<LoopCore>,
    addrs: Vec<SocketAddr>,
    #[cfg_attr(not(unix), allow(dead_code, reason = "nobody has one"))]
    unix_addr: Option<UnixAddr>,
    /// One per listening socket.
    accepting: RefCell<Vec<JoinHandle<()>>>,
    /// How many of them have not ended.
    listening: Cell<usize>,
    closed: Cell<bool>,
    /// It is closed, but the kernel has not let go of every listening socket.
    settling: Cell<bool>,
    failure: RefCell<Option<io::Error>>,
    clients: RefCell<Slab<Weak<dyn Client>>>,
    changed: ChangeNotify,
}

/// A connection of a server's, of either style.
pub(super) trait Client {
    fn close_client(self: Rc<Self>);
    fn abort_client(self: Rc<Self>);
}

/// Ties a connection to its server for as long as it is open.
pub(super) struct Attached {
    inner: Rc<Inner>,
    place: usize,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let client = self.inner.clients.borrow_mut().try_remove(self.place);
        drop(client);
        self.inner.changed.ring();
    }
}

/// Where a new connection is attached.
pub(super) struct Attaching(Rc<Inner>);

impl Attaching {
    pub(super) fn attach(self, client: Weak<dyn Client>) -> Attached {
        let place = self.0.clients.borrow_mut().insert(client);
        Attached { inner: self.0, place }
    }
}

/// What becomes of a new connection.
pub(super) type Serve = dyn FnMut(AnyStream, Attaching);

/// A socket that listens, of whatever family.
pub(super) enum Ear {
    Tcp(TcpListener),
    #[cfg_attr(not(unix), allow(dead_code, reason = "nobody has one"))]
    Unix(UnixListener),
}

impl Ear {
    /// Listens on every address that `addr` stands for.
    pub(super) async fn at(addr: impl ToSocketAddrs) -> io::Result<Vec<Ear>> {
        let explain = |error| context(format_args!("bind {}", addr.shown()), error);
        let mut ears = Vec::new();
        let mut refused = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for addr in addr.resolve().await.map_err(explain)? {
            match TcpListener::bind(addr).await {
                Ok(listener) => ears.push(Ear::Tcp(listener)),
                // A name may stand for addresses of a family that this machine does not have.
                Err(error) if is_missing_family(&error) => refused = error,
                Err(error) => return Err(error),
            }
        }
        match ears.is_empty() {
            true => Err(explain(refused)),
            false => Ok(ears),
        }
    }

    async fn accept(&self) -> io::Result<AnyStream> {
        match self {
            Ear::Tcp(listener) => Ok(AnyStream::tcp(listener.accept().await?.0)),
            Ear::Unix(listener) => Ok(AnyStream::Unix(listener.accept().await?.0)),
        }
    }
}

impl Server {
    /// Serves whoever comes to one of `ears`.
    pub(super) fn new(ears: Vec<Ear>, serve: Box<Serve>) -> Server {
        let mut addrs = Vec::new();
        let mut unix_addr = None;
        for ear in &ears {
            match ear {
                Ear::Tcp(listener) => addrs.extend(listener.local_addr().ok()),
                Ear::Unix(listener) => unix_addr = listener.local_addr().ok(),
            }
        }
        let inner = Rc::new(Inner {
            core: LoopCore::current("create_server").rc(),
            addrs,
            unix_addr,
            accepting: RefCell::default(),
            listening: Cell::new(ears.len()),
            closed: Cell::new(false),
            settling: Cell::new(false),
            failure: RefCell::default(),
            clients: RefCell::default(),
            changed: ChangeNotify::default(),
        });
        let serve = Rc::new(Cell::new(Some(serve)));
        for ear in ears {
            let task = spawn(accept_all(inner.clone(), ear, serve.clone()));
            inner.accepting.borrow_mut().push(task);
        }
        Server { inner }
    }

    /// The address that it listens on; the first, if there are several.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.inner.addrs.first().copied();
        first.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the server has no internet address"))
    }

    /// The address that a server of Unix connections listens on.
    #[cfg(unix)]
    pub fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        let addr = self.inner.unix_addr.clone();
        addr.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the server has no Unix address"))
    }

    /// Every internet address that it listens on: a name may stand for several.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.inner.addrs
    }

    /// Whether it accepts connections.
    pub fn is_serving(&self) -> bool {
        !self.inner.closed.get() && self.inner.listening.get() > 0
    }

    /// How many of its connections are open.
    pub fn connections(&self) -> usize {
        self.inner.clients.borrow().len()
    }

    /// Stops listening: who connects from now on is refused. Connections that are there go on.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Closes every connection, each when what it has queued is sent.
    pub fn close_clients(&self) {
        for client in self.inner.clients() {
            client.close_client();
        }
    }

    /// Ends every connection with a reset.
    pub fn abort_clients(&self) {
        for client in self.inner.clients() {
            client.abort_client();
        }
    }

    /// Waits until the server is closed, its sockets are gone, and so are its connections. Dropping the future changes
    /// nothing.
    pub async fn wait_closed(&self) {
        let inner = &self.inner;
        inner
            .changed
            .until(|| inner.is_deaf() && inner.clients.borrow().is_empty())
            .await;
    }

    /// Serves until it is closed, and then until its connections are gone; or until it cannot accept any more, which is an
    /// error. Dropping the future closes the server.
    pub async fn serve_forever(&self) -> io::Result<()> {
        let _close = CloseOnDrop(&self.inner);
        self.inner.changed.until(|| self.inner.is_deaf()).await;
        let failure = self.inner.failure.take();
        if let Some(error) = failure {
            return Err(error);
        }
        self.wait_closed().await;
        Ok(())
    }
}

impl Inner {
    /// The sockets close in the next turn: this may be called from inside of a task that accepts.
    fn close(self: &Rc<Self>) {
        if self.closed.replace(true) {
            return;
        }
        let tasks = self.accepting.take();
        for task in &tasks {
            task.cancel();
        }
        self.settling.set(true);
        let inner = self.clone();
        let _entered = self.core.enter();
        spawn(async move {
            for task in tasks {
                let _ = task.await;
            }
            inner.settling.set(false);
            inner.changed.ring();
        });
    }

    /// Whether nothing listens any more, and the kernel has let go of what did.
    fn is_deaf(&self) -> bool {
        self.listening.get() == 0 && !self.settling.get()
    }

    fn clients(&self) -> Vec<Rc<dyn Client>> {
        let clients = self.clients.borrow();
        clients.iter().filter_map(|(_, client)| client.upgrade()).collect()
    }
}

struct CloseOnDrop<'a>(&'a Rc<Inner>);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addrs", &self.inner.addrs)
            .field("serving", &self.is_serving())
            .field("connections", &self.connections())
            .finish()
    }
}

/// Counts a listening socket out when it is gone.
struct Listening(Rc<Inner>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.listening.set(self.0.listening.get() - 1);
        self.0.changed.ring();
    }
}

async fn accept_all(inner: Rc<Inner>, ear: Ear, serve: Rc<Cell<Option<Box<Serve>>>>) {
    // Declared before the socket moves in, so that it is dropped after it.
    let listening = Listening(inner);
    let ear = ear;
    let inner = &listening.0;
    loop {
        match ear.accept().await {
            Ok(any_stream) => {
                // Taken out, so that nothing is borrowed while it runs.
                let Some(mut call) = serve.take() else { return };
                guard("a server's factory", || call(any_stream, Attaching(inner.clone())));
                serve.set(Some(call));
            }
            Err(error) => {
                let told = io::Error::new(error.kind(), error.to_string());
                inner.failure.replace(Some(error));
                report(Exception::error("a server cannot accept any more", told));
                return;
            }
        }
    }
}

fn is_missing_family(error: &io::Error) -> bool {
    // The kind of the OS's own code for it has no name.
    crate::sys::os_code(error) == Some(crate::sys::errno::NO_FAMILY)
        || matches!(
            error.kind(),
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
        )
}
