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
use super::link::{Callee, Farewell, Link, Outgoing, Presence};
use super::payload::Payload;
use super::watermarks::Watermarks;
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

type Endpoint = Link<dyn DatagramProtocol, Post, Whereabouts>;

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
    link: Rc<Endpoint>,
}

impl DatagramTransport {
    /// Queues a datagram for an address; an empty one too. Once the endpoint is closing it is dropped.
    ///
    /// If it cannot be sent, [`error_received`](DatagramProtocol::error_received) is called. An endpoint that was connected
    /// sends to its peer alone: another address is the error `InvalidInput`.
    pub fn send_to(&self, data: impl Payload, to: SocketAddr) {
        let peer = self.link.about.peer;
        let msg = match peer {
            Some(peer) if peer != to => {
                let why = format!("the endpoint sends to {peer} alone, and not to {to}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            Some(_) => Ok(None),
            None => Ok(Some(to)),
        };
        self.queue(data, msg);
    }

    /// Queues a datagram for the peer of an endpoint that was connected; without one, `error_received` is called.
    pub fn send(&self, data: impl Payload) {
        let msg = match self.link.about.peer {
            Some(_) => Ok(None),
            None => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the endpoint is not connected: say whom to send to",
            )),
        };
        self.queue(data, msg);
    }

    fn queue(&self, data: impl Payload, to: io::Result<Option<SocketAddr>>) {
        self.link.write_buffer.put(data.bytes(), to);
        self.link.wake_sender();
    }

    /// Closes the endpoint once everything is sent. Nothing more is received.
    pub fn close(&self) {
        self.link.close();
    }

    /// Closes the endpoint now: what is queued is dropped.
    pub fn abort(&self) {
        self.link.end(None, Farewell::Close);
    }

    /// Whether the endpoint is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.link.is_closing()
    }

    /// Sets the marks between which writing is paused and resumed: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.link.write_buffer.watermarks.set_limits(high.into(), low.into())?;
        self.link.wake_sender();
        Ok(())
    }

    /// The marks: (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.link.write_buffer.watermarks.limits()
    }

    /// How many bytes the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.link.write_buffer.watermarks.size()
    }

    /// The endpoint's address; also when it is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.link.about.local.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The peer's address, if the endpoint was connected; also when it is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.link.about.peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl fmt::Debug for DatagramTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramTransport")
            .field("local", &self.link.about.local)
            .field("peer", &self.link.about.peer)
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
    let explain = |error| crate::sys::context(format_args!("connect to {}", peer.shown()), error);
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
    let link: Rc<Endpoint> = Rc::new(Link::new(protocol.clone(), Post::new(), about));
    let presence = Presence {
        link: link.clone(),
        _attached: None,
    };
    crate::task::spawn(exchange(presence, socket));
    let transport = DatagramTransport { link };
    let abort = AbortOnDrop(&transport);
    let link = &transport.link;
    link.changed.until(|| link.is_made() || link.is_lost()).await;
    std::mem::forget(abort);
    Ok((transport, ProtocolRef(protocol)))
}

async fn exchange(presence: Presence<dyn DatagramProtocol, Post, Whereabouts>, socket: UdpSocket) {
    let link = &presence.link;
    let reason = {
        let mut sending = pin!(send_all(link, &socket));
        let mut receiving = pin!(receive_all(link, &socket));
        let made = || {
            let transport = DatagramTransport { link: link.clone() };
            link.call("connection_made", |protocol| protocol.connection_made(transport));
        };
        poll_fn(|cx| link.poll(cx, made, sending.as_mut(), receiving.as_mut())).await
    };
    link.report_lost(reason);
    drop(socket);
}

/// Sends whatever comes, until the queue is closed and empty.
async fn send_all(link: &Endpoint, socket: &UdpSocket) -> io::Result<()> {
    loop {
        let next = poll_fn(|_| match link.write_buffer.next() {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        })
        .await;
        let Some(msg) = next else { return Ok(()) };
        let len = weight(&msg.bytes);
        let (result, bytes) = match msg.to {
            Ok(Some(to)) => socket.send_to(msg.bytes, to).await,
            Ok(None) => socket.send(msg.bytes).await,
            Err(error) => {
                // Nothing was sent, so nothing has waited: a protocol that answers an error with the same must not keep
                // everybody else from running.
                yield_now().await;
                (Err(error), msg.bytes)
            }
        };
        link.write_buffer.give_back(bytes, len);
        if let Err(error) = result {
            link.call("error_received", |protocol| protocol.error_received(error));
        }
    }
}

/// Calls the protocol with what comes in. Ends only with its task.
async fn receive_all(link: &Endpoint, socket: &UdpSocket) {
    let mut buf = Vec::with_capacity(LONGEST);
    loop {
        let result;
        (result, buf) = socket.recv_from(buf).await;
        while link.has_delivered() {
            yield_now().await;
        }
        link.note_delivery();
        match result {
            Ok((len, from)) => link.call("datagram_received", |protocol| {
                protocol.datagram_received(&buf[..len], from);
            }),
            Err(error) => link.call("error_received", |protocol| protocol.error_received(error)),
        };
    }
}

/// What a datagram counts for against the marks: an empty one takes memory too.
fn weight(data: &[u8]) -> usize {
    data.len().max(size_of::<MsgHdrBuf>())
}

/// Datagrams that wait to be sent, each with its address.
struct Post {
    queue: RefCell<Queue>,
    watermarks: Watermarks,
    closed: Cell<bool>,
    is_idle: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    msg_pool: VecDeque<MsgHdrBuf>,
    spares: Vec<Vec<u8>>,
}

struct MsgHdrBuf {
    bytes: Vec<u8>,
    /// `None` is whom the socket is connected to. An error is told in its place.
    to: io::Result<Option<SocketAddr>>,
}

impl Post {
    fn new() -> Post {
        Post {
            queue: RefCell::default(),
            watermarks: Watermarks::new(),
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
        queue.msg_pool.push_back(MsgHdrBuf { bytes, to });
        self.watermarks.add(weight(data));
    }

    /// What is to be sent next; `Some(None)` if there will be nothing more.
    fn next(&self) -> Option<Option<MsgHdrBuf>> {
        let msg = self.queue.borrow_mut().msg_pool.pop_front();
        let next = match msg {
            Some(msg) => Some(Some(msg)),
            None if self.closed.get() => Some(None),
            None => None,
        };
        self.is_idle.set(next.is_none());
        next
    }

    fn give_back(&self, mut bytes: Vec<u8>, len: usize) {
        self.watermarks.take(len);
        let mut queue = self.queue.borrow_mut();
        if bytes.capacity() <= SPARE_MAX && queue.spares.len() < SPARES_MAX {
            bytes.clear();
            queue.spares.push(bytes);
        }
    }
}

impl Outgoing for Post {
    fn is_over(&self) -> bool {
        self.watermarks.is_over()
    }

    fn has_events(&self) -> bool {
        self.is_idle.get() && (self.closed.get() || !self.queue.borrow().msg_pool.is_empty())
    }

    fn close(&self) {
        self.closed.set(true);
    }

    fn discard(&self) {
        self.closed.set(true);
        let queue = self.queue.take();
        drop(queue);
        self.watermarks.reset();
    }

    fn set_waker(&self, waker: &Waker) {
        super::write_buffer::set_waker(&self.waker, waker);
    }

    fn forget_waker(&self) {
        drop(self.waker.take());
    }

    fn wake(&self) {
        super::write_buffer::wake(&self.waker);
    }
}
