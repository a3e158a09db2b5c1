//! asyncio's two styles of networking above the streams: callbacks, and a reader with a writer.
//!
//! # Callbacks
//!
//! A [`Protocol`] is told what happens on one connection, and acts through its [`Transport`]. There is no `async` in it.
//!
//! ```
//! use windlass::protocol::{Protocol, Transport, create_connection, create_server};
//!
//! /// Sends everything back.
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
//! /// Says one thing, and closes when it has heard it back.
//! struct Client {
//!     transport: Option<Transport>,
//!     heard: Vec<u8>,
//!     done: windlass::Promise<()>,
//! }
//!
//! impl Protocol for Client {
//!     fn connection_made(&mut self, transport: Transport) {
//!         transport.write("hello");
//!         self.transport = Some(transport);
//!     }
//!     fn data_received(&mut self, data: &[u8]) {
//!         self.heard.extend(data);
//!         if self.heard.len() == 5 {
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
//!     let client = || Client { transport: None, heard: Vec::new(), done };
//!     let (_transport, client) = create_connection(client, server.local_addr()?).await?;
//!     is_done.await.unwrap();
//!     assert_eq!(client.with(|client| client.heard.clone()), b"hello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What a protocol can rely on, as in asyncio:
//!
//! - `connection_made` comes first and once, `connection_lost` last and once, and nothing after it;
//! - every callback comes from the loop: none runs inside of a call to the transport, so a protocol may call its transport
//!   in any callback; `data_received` comes at most once per turn;
//! - `eof_received` comes after all data; if it returns false, `close` follows by itself;
//! - a panic in a callback is told to the loop's exception handler, resets that connection, and ends in `connection_lost`
//!   with an error; other connections do not notice.
//!
//! A loop that closes lets its connections go without a word: nobody is left to call. The protocols are dropped.
//!
//! # Reader and writer
//!
//! [`open_connection`] and [`start_server`] give a [`StreamReader`] and a [`StreamWriter`]: reading is awaited, writing is a
//! plain call, and `drain` is where a fast writer waits for a slow reader.
//!
//! # How it is made
//!
//! ```text
//!  Protocol <---- callbacks ---- the connection's task ---- managed reads ----> stream
//!     |                               ^  one send under way                      ^
//!     +--- Transport.write ---> Outbox+--- joined, in order ---------------------+
//!                                 ^
//!  StreamWriter.write ------------+    StreamReader ------ managed reads -------> stream
//! ```
//!
//! The trap is re-entry. A protocol is `&mut self` in a callback and calls its transport there; in Python `write` may call
//! `pause_writing` back at once, and here that would be a second `&mut`. So no call of a transport ever calls a protocol: it
//! leaves word, and the connection's task, the only one to call, finds it when the callback has returned.

mod any_stream;
mod change_notify;
mod connection;
mod datagram;
mod link;
mod payload;
mod reader;
mod server;
mod streams;
mod subprocess;
mod transport;
mod watermarks;
mod write_buffer;
mod writer;

use std::cell::RefCell;
use std::fmt;
use std::io;
#[cfg(unix)]
use std::path::Path;
use std::rc::{Rc, Weak};

pub use datagram::{DatagramProtocol, DatagramTransport, connect_datagram_endpoint, create_datagram_endpoint};
pub use payload::Payload;
pub use reader::{IncompleteRead, LimitOverrun, StreamReader};
pub use server::Server;
pub use streams::{HandlerResult, open_connection, start_server};
#[cfg(unix)]
pub use streams::{open_unix_connection, start_unix_server};
pub use subprocess::{SubprocessProtocol, SubprocessTransport, subprocess_exec};
pub use transport::Transport;
pub use writer::StreamWriter;

use crate::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use crate::net::{UnixListener, UnixStream};
use any_stream::AnyStream;
use server::Ear;

/// What happens on one connection. Every method has a default that does nothing.
///
/// See [the module](self) for what can be relied on.
///
/// ```
/// use windlass::protocol::{Protocol, Transport, create_server};
/// /// Says the time of day to everybody who comes.
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
    /// There is a connection, and this is the way to it. Comes first, once.
    fn connection_made(&mut self, transport: Transport) {
        let _ = transport;
    }

    /// Bytes have come: some, never none. How they were cut into pieces means nothing.
    fn data_received(&mut self, data: &[u8]) {
        let _ = data;
    }

    /// The peer will send no more. Return true to keep the connection open for writing; otherwise it is closed, as by
    /// [`Transport::close`].
    fn eof_received(&mut self) -> bool {
        false
    }

    /// The connection is gone: with an error, or with `None` if it was closed, here or there, in good order, or
    /// [aborted](Transport::abort) here. Comes last, once.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// More bytes than the high mark wait to be sent: write no more if you can.
    fn pause_writing(&mut self) {}

    /// No more bytes than the low mark wait to be sent: go on writing. Comes once for each
    /// [`pause_writing`](Protocol::pause_writing).
    fn resume_writing(&mut self) {}
}

/// The way to a protocol from outside of its callbacks.
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
    /// Looks at the protocol, or changes it. It stays there when the connection is gone.
    ///
    /// # Panics
    ///
    /// Inside of one of the same protocol's callbacks, which has it as `self` already.
    #[track_caller]
    pub fn with<R>(&self, look: impl FnOnce(&mut P) -> R) -> R {
        match self.0.try_borrow_mut() {
            Ok(mut protocol) => look(&mut protocol),
            Err(_) => panic!("windlass: a protocol was asked for inside of its own callback: use `self` there"),
        }
    }

    /// The same; `None` inside of one of the protocol's callbacks.
    pub fn try_with<R>(&self, look: impl FnOnce(&mut P) -> R) -> Option<R> {
        let mut protocol = self.0.try_borrow_mut().ok()?;
        Some(look(&mut protocol))
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

/// Connects, and has `factory` make a protocol for the connection. When this returns,
/// [`connection_made`](Protocol::connection_made) was called.
///
/// Dropping the future ends what is under way; a connection that was there already is reset.
pub async fn create_connection<P: Protocol + 'static>(
    factory: impl FnOnce() -> P,
    addr: impl ToSocketAddrs,
) -> io::Result<(Transport, ProtocolRef<P>)> {
    let stream = TcpStream::connect(addr).await?;
    let (transport, protocol) = connection::open(AnyStream::tcp(stream), factory(), |_| None);
    connection::until_made(&transport).await;
    Ok((transport, protocol))
}

/// The same over a Unix connection.
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
    let (transport, protocol) = connection::open(AnyStream::Unix(stream), factory(), |_| None);
    connection::until_made(&transport).await;
    Ok((transport, protocol))
}

/// Listens on every address that `addr` stands for, and has `factory` make a protocol for each connection.
///
/// If the factory panics, that connection is closed, and the loop's exception handler is told. When there are no descriptors
/// left, accepting waits until there are.
pub async fn create_server<P: Protocol + 'static>(
    factory: impl FnMut() -> P + 'static,
    addr: impl ToSocketAddrs,
) -> io::Result<Server> {
    Ok(Server::new(Ear::at(addr).await?, serve_with(factory)))
}

/// The same at the path of a Unix socket. The file is made by this, and stays: see
/// [`UnixListener::bind`](crate::net::UnixListener::bind).
///
/// # Panics
///
/// Outside of a loop.
#[cfg(unix)]
#[track_caller]
pub fn create_unix_server<P: Protocol + 'static>(
    factory: impl FnMut() -> P + 'static,
    path: impl AsRef<Path>,
) -> io::Result<Server> {
    Ok(Server::new(
        vec![Ear::Unix(UnixListener::bind(path)?)],
        serve_with(factory),
    ))
}

fn serve_with<P: Protocol + 'static>(mut factory: impl FnMut() -> P + 'static) -> Box<server::Serve> {
    Box::new(move |any_stream, server| {
        let protocol = factory();
        connection::open(any_stream, protocol, |link| {
            let client: Weak<dyn server::Client> = Rc::downgrade(link) as _;
            Some(server.attach(client))
        });
    })
}

/// A connection that can be given to a protocol: a [`TcpStream`] or a [`UnixStream`]. See [`attach`] for an example.
#[allow(private_bounds, reason = "which streams there are is ours to say")]
pub trait Attachable: IntoAnyStream {}

impl<S: IntoAnyStream> Attachable for S {}

pub(crate) trait IntoAnyStream {
    fn into_any_stream(self) -> AnyStream;
}

impl IntoAnyStream for TcpStream {
    fn into_any_stream(self) -> AnyStream {
        AnyStream::tcp(self)
    }
}

#[cfg(unix)]
impl IntoAnyStream for UnixStream {
    fn into_any_stream(self) -> AnyStream {
        AnyStream::Unix(self)
    }
}

/// Gives a connection that is there already to a protocol.
///
/// What a dropped read had received is not lost: the protocol gets it first.
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
/// Outside of a loop.
#[track_caller]
pub fn attach<P: Protocol + 'static>(stream: impl Attachable, protocol: P) -> (Transport, ProtocolRef<P>) {
    connection::open(stream.into_any_stream(), protocol, |_| None)
}
