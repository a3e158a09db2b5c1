//! asyncio's two networking APIs: protocols with callbacks, and a stream reader with a stream writer.
//!
//! # Callbacks
//!
//! A [`Protocol`] receives the events of one connection as method calls and acts through its [`Transport`]. It contains
//! no `async` code.
//!
//! ```
//! use windlass::protocol::{Protocol, Transport, create_connection, create_server};
//!
//! /// Sends all data back.
//! #[derive(Default)]
//! struct Echo {
//!     transport: Option<Transport>,
//! }
//!
//! impl Protocol for Echo {
//!     fn connection_made(&mut self, transport: Transport) {
//!         self.transport = Some(transport);
//!     }
//!     fn data_received(&mut self, data: &[u8]) {
//!         self.transport.as_ref().unwrap().write(data);
//!     }
//! }
//!
//! /// Sends a message and closes when it has been echoed.
//! struct Client {
//!     transport: Option<Transport>,
//!     echoed: Vec<u8>,
//!     done: windlass::Promise<()>,
//! }
//!
//! impl Protocol for Client {
//!     fn connection_made(&mut self, transport: Transport) {
//!         transport.write("hello");
//!         self.transport = Some(transport);
//!     }
//!     fn data_received(&mut self, data: &[u8]) {
//!         self.echoed.extend(data);
//!         if self.echoed.len() == 5 {
//!             self.transport.as_ref().unwrap().close();
//!         }
//!     }
//!     fn connection_lost(&mut self, _error: Option<std::io::Error>) {
//!         let _ = self.done.resolve(());
//!     }
//! }
//!
//! windlass::run(async {
//!     let server = create_server(Echo::default, "127.0.0.1:0").await?;
//!     let (done, is_done) = windlass::promise();
//!     let client = || Client { transport: None, echoed: Vec::new(), done };
//!     let (_transport, client) = create_connection(client, server.local_addr()?).await?;
//!     is_done.await.unwrap();
//!     assert_eq!(client.with(|client| client.echoed.clone()), b"hello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A protocol can rely on asyncio's guarantees:
//!
//! - `connection_made` is called first and once, `connection_lost` last and once.
//! - The loop invokes every callback; no transport call does, so a protocol may call its transport anywhere.
//! - `data_received` is called at most once per turn, and `eof_received` after all data. If `eof_received` returns
//!   false, the transport closes.
//! - A panic in a callback is reported to the loop's exception handler and resets that connection, which ends in
//!   `connection_lost` with an error. Other connections are not affected.
//!
//! When the loop closes, it drops open connections and their protocols without calling `connection_lost`.
//!
//! # Reader and writer
//!
//! [`open_connection`] and [`start_server`] return a [`StreamReader`] and a [`StreamWriter`]. Reads are awaited,
//! `write` is a plain call, and `drain` applies backpressure.
//!
//! # Design
//!
//! ```text
//! Protocol <---- callbacks ----- the connection's task <---- managed reads ---- stream
//!    |                                   | one send in flight                     ^
//!    +-- Transport.write --> WriteBuffer +-------- coalesced, in order -----------+
//!
//! StreamReader <----------------------------- managed reads -------------------- stream
//! StreamWriter.write ------> WriteBuffer ---- a task sends, coalesced ---------> stream
//! ```
//!
//! The hazard is re-entrancy: a callback holds the protocol as `&mut self` and calls its transport. In Python, `write`
//! may call `pause_writing` synchronously; here that would need a second `&mut`. So a transport call only records a
//! request, and the connection's task, the only caller of the protocol, acts on it after the callback has returned.

mod any_stream;
mod condition;
mod connection;
mod datagram;
mod reader;
mod server;
mod streams;
mod subprocess;
mod transport;
mod transport_state;
mod writer;

use std::cell::RefCell;
use std::fmt;
use std::io;
#[cfg(unix)]
use std::path::Path;
use std::rc::Rc;

pub use datagram::{DatagramProtocol, DatagramTransport, connect_datagram_endpoint, create_datagram_endpoint};
pub use reader::{IncompleteRead, LimitOverrun, StreamReader};
pub use server::Server;
pub use streams::{HandlerResult, open_connection, start_server};
#[cfg(unix)]
pub use streams::{open_unix_connection, start_unix_server};
pub use subprocess::{SubprocessProtocol, SubprocessTransport, subprocess_exec};
pub use transport::Transport;
pub use writer::StreamWriter;

pub use crate::io::payload::Payload;
#[cfg(unix)]
use crate::net::UnixStream;
use crate::net::{TcpStream, ToSocketAddrs};
use any_stream::AnyStream;
use server::AnyListener;

/// Callbacks for the events of one connection. Every method has a default that does nothing.
///
/// [The module](self) lists the guarantees.
///
/// ```
/// use windlass::protocol::{Protocol, Transport, create_server};
/// /// Sends the time of day to each client.
/// struct Daytime;
/// impl Protocol for Daytime {
///     fn connection_made(&mut self, transport: Transport) {
///         transport.write(format!("{:?}\n", std::time::SystemTime::now()));
///         transport.close();
///     }
/// }
/// windlass::run(async {
///     let server = create_server(|| Daytime, "127.0.0.1:0").await?;
///     let client = windlass::net::TcpStream::connect(server.local_addr()?).await?;
///     assert!(!client.read_managed().await?.is_empty());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Protocol {
    /// Called first, once: the connection is established.
    fn connection_made(&mut self, transport: Transport) {
        let _ = transport;
    }

    /// Called with received bytes, at least one. TCP has no message boundaries: a call may have any part of a message.
    fn data_received(&mut self, data: &[u8]) {
        let _ = data;
    }

    /// Called when the peer has shut down its write side. Return true to keep the connection open for writing;
    /// otherwise it closes as by [`Transport::close`].
    fn eof_received(&mut self) -> bool {
        false
    }

    /// Called last, once. `error` is `None` after an orderly close by either side or a local
    /// [`abort`](Transport::abort). After a reset by the peer it is the error of the first operation that failed:
    /// `ConnectionReset`, or `BrokenPipe` of a write whose socket had reported the reset to a read.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// Called when the write buffer has grown above the high watermark: stop writing if possible.
    fn pause_writing(&mut self) {}

    /// Called when the write buffer has drained to the low watermark: writing may continue. Called at most once after
    /// each [`pause_writing`](Protocol::pause_writing).
    fn resume_writing(&mut self) {}
}

/// Access to a protocol from outside of its callbacks.
///
/// ```
/// use windlass::protocol::{Protocol, Transport, create_connection, create_server};
///
/// struct Counter(usize);
///
/// impl Protocol for Counter {
///     fn connection_made(&mut self, _transport: Transport) {
///         self.0 += 1;
///     }
/// }
///
/// windlass::run(async {
///     let server = create_server(|| Counter(0), "127.0.0.1:0").await?;
///     let (transport, counter) = create_connection(|| Counter(41), server.local_addr()?).await?;
///     assert_eq!(counter.with(|counter| counter.0), 42);
///     transport.close();
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ProtocolRef<P: ?Sized>(Rc<RefCell<P>>);

impl<P: ?Sized> ProtocolRef<P> {
    /// Runs `action` on the protocol, also after the connection is lost.
    ///
    /// # Panics
    ///
    /// When called from a callback of the same protocol, which already holds it as `self`.
    #[track_caller]
    pub fn with<R>(&self, action: impl FnOnce(&mut P) -> R) -> R {
        match self.0.try_borrow_mut() {
            Ok(mut protocol) => action(&mut protocol),
            Err(_) => panic!(
                "windlass: `ProtocolRef::with` was called from a callback of the same protocol: use `self` there"
            ),
        }
    }

    /// Like [`with`](ProtocolRef::with), but returns `None` inside a callback of the same protocol.
    pub fn try_with<R>(&self, action: impl FnOnce(&mut P) -> R) -> Option<R> {
        let mut protocol = self.0.try_borrow_mut().ok()?;
        Some(action(&mut protocol))
    }
}

impl<P: ?Sized> Clone for ProtocolRef<P> {
    fn clone(&self) -> ProtocolRef<P> {
        ProtocolRef(self.0.clone())
    }
}

impl<P: ?Sized> fmt::Debug for ProtocolRef<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtocolRef").finish_non_exhaustive()
    }
}

/// Connects and attaches the protocol made by `factory`. When this returns,
/// [`connection_made`](Protocol::connection_made) has been called.
///
/// Dropping the future cancels the attempt; an established connection is reset.
pub async fn create_connection<P: Protocol + 'static>(
    factory: impl FnOnce() -> P,
    addr: impl ToSocketAddrs,
) -> io::Result<(Transport, ProtocolRef<P>)> {
    let stream = TcpStream::connect(addr).await?;
    Ok(open(stream, factory()).await)
}

/// Like [`create_connection`], over a Unix socket.
///
/// ```
/// use windlass::protocol::{Protocol, create_unix_connection, create_unix_server};
///
/// struct Silent;
///
/// impl Protocol for Silent {}
///
/// let path = std::env::temp_dir().join(format!("windlass-doc-{}.sock", std::process::id()));
/// windlass::run(async {
///     let server = create_unix_server(|| Silent, &path)?;
///     let (transport, _) = create_unix_connection(|| Silent, &path).await?;
///     assert_eq!(transport.peer_unix_addr()?.as_pathname(), Some(&*path));
///     assert_eq!(server.local_unix_addr()?.as_pathname(), Some(&*path));
///     Ok::<(), std::io::Error>(())
/// })??;
/// std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(unix)]
pub async fn create_unix_connection<P: Protocol + 'static>(
    factory: impl FnOnce() -> P,
    path: impl AsRef<Path>,
) -> io::Result<(Transport, ProtocolRef<P>)> {
    let stream = UnixStream::connect(path).await?;
    Ok(open(stream, factory()).await)
}

async fn open<P: Protocol + 'static>(stream: impl Attachable, protocol: P) -> (Transport, ProtocolRef<P>) {
    let (transport, protocol) = attach(stream, protocol);
    transport.state.wait_made(|| transport.abort()).await;
    (transport, protocol)
}

/// Listens on every address that `addr` resolves to, and attaches a protocol made by `factory` to each connection.
///
/// If the factory panics, that connection is closed and the panic is reported to the loop's exception handler. When the
/// process runs out of descriptors, accepting waits until some are free.
pub async fn create_server<P: Protocol + 'static>(
    factory: impl FnMut() -> P + 'static,
    addr: impl ToSocketAddrs,
) -> io::Result<Server> {
    Ok(Server::new(AnyListener::bind(addr).await?, serve_with(factory)))
}

/// Like [`create_server`], on a Unix socket path. This creates the socket file and does not remove it: see
/// [`UnixListener::bind`](crate::net::UnixListener::bind).
///
/// # Panics
///
/// Outside a loop.
#[cfg(unix)]
#[track_caller]
pub fn create_unix_server<P: Protocol + 'static>(
    factory: impl FnMut() -> P + 'static,
    path: impl AsRef<Path>,
) -> io::Result<Server> {
    Ok(Server::new(AnyListener::bind_unix(path)?, serve_with(factory)))
}

fn serve_with<P: Protocol + 'static>(mut factory: impl FnMut() -> P + 'static) -> Box<server::Serve> {
    Box::new(move |stream, server| {
        connection::open(stream, factory(), Some(server));
    })
}

/// A stream that [`attach`] accepts: a [`TcpStream`] or a [`UnixStream`].
#[allow(private_bounds, reason = "sealed: only this crate's streams implement it")]
pub trait Attachable: Into<AnyStream> {}

impl<S: Into<AnyStream>> Attachable for S {}

/// Attaches a protocol to an established connection. Bytes left over from a cancelled read are delivered first.
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// use windlass::protocol::{Protocol, attach};
///
/// struct Sink(Vec<u8>);
///
/// impl Protocol for Sink {
///     fn data_received(&mut self, data: &[u8]) {
///         self.0.extend(data);
///     }
/// }
///
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let client = TcpStream::connect(listener.local_addr()?).await?;
///     let (stream, _) = listener.accept().await?;
///     let (_transport, sink) = attach(stream, Sink(Vec::new()));
///     client.write_all("abc").await.0?;
///     while sink.with(|sink| sink.0.len()) < 3 {
///         windlass::task::yield_now().await;
///     }
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn attach<P: Protocol + 'static>(stream: impl Attachable, protocol: P) -> (Transport, ProtocolRef<P>) {
    connection::open(stream.into(), protocol, None)
}
