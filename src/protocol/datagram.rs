//! Datagrams as callbacks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::ProtocolRef;
use super::line::{Callee, Farewell, Line, Outgoing, Presence};
use super::marks::Marks;
use super::payload::Payload;
use crate::net::{ToSocketAddrs, UdpSocket};
use crate::task::yield_now;

/// The longest datagram that can come: none is ever cut off.
const LONGEST: usize = 1 << 16;

/// Buffers that are kept for the next datagrams, and how large they may be.
const SPARES_MAX: usize = 8;
const SPARE_MAX: usize = 2 * 1024;

/// What happens at one datagram endpoint. Every method has a default that does nothing.
///
/// ```
/// use std::net::SocketAddr;
/// use windlass::protocol::{DatagramProtocol, DatagramTransport, create_datagram_endpoint};
///
/// #[derive(Default)]
/// struct Echo(Option<DatagramTransport>);
///
/// impl DatagramProtocol for Echo {
///     fn connection_made(&mut self, transport: DatagramTransport) {
///         self.0 = Some(transport);
///     }
///     fn datagram_received(&mut self, data: &[u8], from: SocketAddr) {
///         self.0.as_ref().unwrap().send_to(data, from);
///     }
/// }
///
/// windlass::run(async {
///     let (echo, _) = create_datagram_endpoint(Echo::default, "127.0.0.1:0").await?;
///     let socket = windlass::net::UdpSocket::bind("127.0.0.1:0").await?;
///     socket.send_to("hello", echo.local_addr()?).await.0?;
///     assert_eq!(&*socket.recv_managed().await?, b"hello");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait DatagramProtocol {
    /// There is an endpoint, and this is the way to it. Comes first, once.
    fn connection_made(&mut self, transport: DatagramTransport) {
        let _ = transport;
    }

    /// A datagram has come, whole; it may be empty.
    fn datagram_received(&mut self, data: &[u8], from: SocketAddr) {
        let _ = (data, from);
    }

    /// Sending or receiving has failed: nobody is there, or a datagram was too long. The endpoint goes on.
    fn error_received(&mut self, error: io::Error) {
        let _ = error;
    }

    /// The endpoint is closed. Comes last, once; with an error only if a callback panicked.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// More bytes than the high mark wait to be sent.
    fn pause_writing(&mut self) {}

    /// No more bytes than the low mark wait to be sent.
    fn resume_writing(&mut self) {}
}

impl Callee for dyn DatagramProtocol {
    fn pause_writing(&mut self) {
        DatagramProtocol::pause_writing(self);
    }
    fn resume_writing(&mut self) {
        DatagramProtocol::resume_writing(self);
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        DatagramProtocol::connection_lost(self, error);
    }
}

type Endpoint = Line<dyn DatagramProtocol, Post, Whereabouts>;

struct Whereabouts {
    local: Option<SocketAddr>,
    /// Whom the socket is connected to.
    peer: Option<SocketAddr>,
}

/// A datagram endpoint, as its protocol sees it. A cheap handle: clones are the same endpoint. See [`DatagramProtocol`].
///
/// Every call returns at once and calls nobody back; what it causes comes through the loop, later.
///
/// ```
/// use windlass::protocol::{DatagramProtocol, connect_datagram_endpoint};
///
/// struct Mute;
///
/// impl DatagramProtocol for Mute {}
///
/// windlass::run(async {
///     let socket = windlass::net::UdpSocket::bind("127.0.0.1:0").await?;
///     let (transport, _) = connect_datagram_endpoint(|| Mute, socket.local_addr()?).await?;
///     transport.send("hello");
///     transport.close(); // after that was sent
///     assert_eq!(&*socket.recv_managed().await?, b"hello");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct DatagramTransport {
    line: Rc<Endpoint>,
}

impl DatagramTransport {
    /// Queues a datagram for an address; an empty one too. Once the endpoint is closing it is dropped.
    ///
    /// If it cannot be sent, [`error_received`](DatagramProtocol::error_received) is called. An endpoint that was connected
    /// sends to its peer alone: another address is the error `InvalidInput`.
    pub fn send_to(&self, data: impl Payload, to: SocketAddr) {
        let peer = self.line.about.peer;
        let letter = match peer {
            Some(peer) if peer != to => {
                let why = format!("the endpoint sends to {peer} alone, and not to {to}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            Some(_) => Ok(None),
            None => Ok(Some(to)),
        };
        self.queue(data, letter);
    }

    /// Queues a datagram for the peer of an endpoint that was connected; without one, `error_received` is called.
    pub fn send(&self, data: impl Payload) {
        let letter = match self.line.about.peer {
            Some(_) => Ok(None),
            None => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the endpoint is not connected: say whom to send to",
            )),
        };
        self.queue(data, letter);
    }

    fn queue(&self, data: impl Payload, to: io::Result<Option<SocketAddr>>) {
        self.line.outbox.put(data.bytes(), to);
        self.line.wake_sender();
    }

    /// Closes the endpoint once everything is sent. Nothing more is received.
    pub fn close(&self) {
        self.line.close();
    }

    /// Closes the endpoint now: what is queued is dropped.
    pub fn abort(&self) {
        self.line.end(None, Farewell::Close);
    }

    /// Whether the endpoint is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.line.is_closing()
    }

    /// Sets the marks between which writing is paused and resumed: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.line.outbox.marks.set_limits(high.into(), low.into())?;
        self.line.wake_sender();
        Ok(())
    }

    /// The marks: (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.line.outbox.marks.limits()
    }

    /// How many bytes the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.line.outbox.marks.size()
    }

    /// The endpoint's address; also when it is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.line.about.local.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The peer's address, if the endpoint was connected; also when it is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.line.about.peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl fmt::Debug for DatagramTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramTransport")
            .field("local", &self.line.about.local)
            .field("peer", &self.line.about.peer)
            .field("write_buffer_size", &self.get_write_buffer_size())
            .field("closing", &self.is_closing())
            .finish()
    }
}

/// Makes a UDP endpoint at an address, with a protocol that `factory` makes. When this returns,
/// [`connection_made`](DatagramProtocol::connection_made) was called.
///
/// Dropping the future closes it again. See [`DatagramProtocol`] for an example.
pub async fn create_datagram_endpoint<P: DatagramProtocol + 'static>(
    factory: impl FnOnce() -> P,
    local: impl ToSocketAddrs,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    let socket = UdpSocket::bind(local).await?;
    open(socket, factory()).await
}

/// The same, at an address of the system's choice, and connected: it sends to `peer`, and receives from it alone. See
/// [`DatagramTransport`] for an example.
pub async fn connect_datagram_endpoint<P: DatagramProtocol + 'static>(
    factory: impl FnOnce() -> P,
    peer: impl ToSocketAddrs,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    let explain = |error| crate::error::context(format_args!("connect to {}", peer.shown()), error);
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for peer in peer.resolve().await.map_err(explain)? {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = match UdpSocket::bind((any, 0)).await {
            Ok(socket) => socket,
            // A machine without this family may have the other.
            Err(error) => {
                last = error;
                continue;
            }
        };
        match socket.connect(peer).await {
            Ok(()) => return open(socket, factory()).await,
            Err(error) => last = error,
        }
    }
    Err(explain(last))
}

/// Starts an endpoint's task.
async fn open<P: DatagramProtocol + 'static>(
    socket: UdpSocket,
    protocol: P,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    struct AbortOnDrop<'a>(&'a DatagramTransport);

    impl Drop for AbortOnDrop<'_> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    let protocol = Rc::new(RefCell::new(protocol));
    let about = Whereabouts {
        local: socket.local_addr().ok(),
        peer: socket.peer_addr().ok(),
    };
    let line: Rc<Endpoint> = Rc::new(Line::new(protocol.clone(), Post::new(), about));
    let presence = Presence {
        line: line.clone(),
        _attached: None,
    };
    crate::task::spawn(exchange(presence, socket));
    let transport = DatagramTransport { line };
    let abort = AbortOnDrop(&transport);
    let line = &transport.line;
    line.bell.until(|| line.is_made() || line.is_lost()).await;
    std::mem::forget(abort);
    Ok((transport, ProtocolRef(protocol)))
}

async fn exchange(presence: Presence<dyn DatagramProtocol, Post, Whereabouts>, socket: UdpSocket) {
    let line = &presence.line;
    let reason = {
        let mut sending = pin!(send_all(line, &socket));
        let mut receiving = pin!(receive_all(line, &socket));
        let made = || {
            let transport = DatagramTransport { line: line.clone() };
            line.call("connection_made", |protocol| protocol.connection_made(transport));
        };
        poll_fn(|cx| line.poll(cx, made, sending.as_mut(), receiving.as_mut())).await
    };
    line.tell_lost(reason);
    drop(socket);
}

/// Sends whatever comes, until the queue is closed and empty.
async fn send_all(line: &Endpoint, socket: &UdpSocket) -> io::Result<()> {
    loop {
        let next = poll_fn(|_| match line.outbox.next() {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        })
        .await;
        let Some(letter) = next else { return Ok(()) };
        let len = weight(&letter.bytes);
        let (result, bytes) = match letter.to {
            Ok(Some(to)) => socket.send_to(letter.bytes, to).await,
            Ok(None) => socket.send(letter.bytes).await,
            Err(error) => {
                // Nothing was sent, so nothing has waited: a protocol that answers an error with the same must not keep
                // everybody else from running.
                yield_now().await;
                (Err(error), letter.bytes)
            }
        };
        line.outbox.give_back(bytes, len);
        if let Err(error) = result {
            line.call("error_received", |protocol| protocol.error_received(error));
        }
    }
}

/// Calls the protocol with what comes in. Ends only with its task.
async fn receive_all(line: &Endpoint, socket: &UdpSocket) {
    let mut buf = Vec::with_capacity(LONGEST);
    loop {
        let result;
        (result, buf) = socket.recv_from(buf).await;
        while line.has_delivered() {
            yield_now().await;
        }
        line.note_delivery();
        match result {
            Ok((len, from)) => line.call("datagram_received", |protocol| {
                protocol.datagram_received(&buf[..len], from);
            }),
            Err(error) => line.call("error_received", |protocol| protocol.error_received(error)),
        };
    }
}

/// What a datagram counts for against the marks: an empty one takes memory too.
fn weight(data: &[u8]) -> usize {
    data.len().max(size_of::<Letter>())
}

/// Datagrams that wait to be sent, each with its address.
struct Post {
    queue: RefCell<Queue>,
    marks: Marks,
    closed: Cell<bool>,
    is_idle: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    letters: VecDeque<Letter>,
    spares: Vec<Vec<u8>>,
}

struct Letter {
    bytes: Vec<u8>,
    /// `None` is whom the socket is connected to. An error is told in its place.
    to: io::Result<Option<SocketAddr>>,
}

impl Post {
    fn new() -> Post {
        Post {
            queue: RefCell::default(),
            marks: Marks::new(),
            closed: Cell::new(false),
            is_idle: Cell::new(true),
            waker: Cell::new(None),
        }
    }

    fn put(&self, data: &[u8], to: io::Result<Option<SocketAddr>>) {
        if self.closed.get() {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        let mut bytes = queue.spares.pop().unwrap_or_default();
        bytes.extend_from_slice(data);
        queue.letters.push_back(Letter { bytes, to });
        self.marks.add(weight(data));
    }

    /// What is to be sent next; `Some(None)` if there will be nothing more.
    fn next(&self) -> Option<Option<Letter>> {
        let letter = self.queue.borrow_mut().letters.pop_front();
        let next = match letter {
            Some(letter) => Some(Some(letter)),
            None if self.closed.get() => Some(None),
            None => None,
        };
        self.is_idle.set(next.is_none());
        next
    }

    fn give_back(&self, mut bytes: Vec<u8>, len: usize) {
        self.marks.take(len);
        let mut queue = self.queue.borrow_mut();
        if bytes.capacity() <= SPARE_MAX && queue.spares.len() < SPARES_MAX {
            bytes.clear();
            queue.spares.push(bytes);
        }
    }
}

impl Outgoing for Post {
    fn is_over(&self) -> bool {
        self.marks.is_over()
    }

    fn has_news(&self) -> bool {
        self.is_idle.get() && (self.closed.get() || !self.queue.borrow().letters.is_empty())
    }

    fn close(&self) {
        self.closed.set(true);
    }

    fn discard(&self) {
        self.closed.set(true);
        let queue = self.queue.take();
        drop(queue);
        self.marks.reset();
    }

    fn set_waker(&self, waker: &Waker) {
        super::outbox::set_waker(&self.waker, waker);
    }

    fn forget_waker(&self) {
        drop(self.waker.take());
    }

    fn wake(&self) {
        super::outbox::wake(&self.waker);
    }
}
