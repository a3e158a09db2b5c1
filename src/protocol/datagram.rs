//! Datagram endpoints with callbacks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::transport_state::{BaseProtocol, CloseMode, TaskGuard, TransportState};
use super::{Payload, ProtocolRef};
use crate::io::payload::Piece;
use crate::io::watermarks::Watermarks;
use crate::io::write_buffer::SendQueue;
use crate::net::{ToSocketAddrs, UdpSocket, try_each};
use crate::task::yield_now;

/// Larger than any UDP datagram, so none is truncated.
const LONGEST: usize = 1 << 16;

/// Callbacks for the events of one datagram endpoint. Every method has a default that does nothing.
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
    /// Called first, once: the endpoint is open.
    fn connection_made(&mut self, transport: DatagramTransport) {
        let _ = transport;
    }

    /// Called with one complete datagram, which may be empty.
    fn datagram_received(&mut self, data: &[u8], from: SocketAddr) {
        let _ = (data, from);
    }

    /// Called when sending or receiving has failed: the destination is unreachable, or the datagram is too long. The
    /// endpoint stays open.
    fn error_received(&mut self, error: io::Error) {
        let _ = error;
    }

    /// Called last, once: the endpoint is closed. `error` is set only if a callback panicked.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// Called when the send queue has grown above the high watermark.
    fn pause_writing(&mut self) {}

    /// Called when the send queue has drained to the low watermark.
    fn resume_writing(&mut self) {}
}

impl BaseProtocol for dyn DatagramProtocol {
    type Queue = DatagramQueue;
    type Info = EndpointAddrs;

    fn connection_made(&mut self, state: Rc<EndpointState>) {
        DatagramProtocol::connection_made(self, DatagramTransport { state });
    }
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

type EndpointState = TransportState<dyn DatagramProtocol>;

pub(super) struct EndpointAddrs {
    local: Option<SocketAddr>,
    /// Set if the socket is connected.
    peer: Option<SocketAddr>,
}

/// A handle to a datagram endpoint, through which its [`DatagramProtocol`] acts. Clones refer to the same endpoint.
///
/// Every call returns at once and invokes no callback. The loop delivers the effects later. Dropping the last handle
/// does not close the endpoint.
///
/// ```
/// use windlass::protocol::{DatagramProtocol, connect_datagram_endpoint};
///
/// struct Silent;
///
/// impl DatagramProtocol for Silent {}
///
/// windlass::run(async {
///     let socket = windlass::net::UdpSocket::bind("127.0.0.1:0").await?;
///     let (transport, _) = connect_datagram_endpoint(|| Silent, socket.local_addr()?).await?;
///     transport.send("hello");
///     transport.close(); // once that is sent
///     assert_eq!(&*socket.recv_managed().await?, b"hello");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct DatagramTransport {
    state: Rc<EndpointState>,
}

impl DatagramTransport {
    /// Queues a datagram, possibly empty, for an address. It is discarded if the endpoint is closing.
    ///
    /// If the send fails, [`error_received`](DatagramProtocol::error_received) is called: with `InvalidInput` if the
    /// endpoint is connected to another address.
    pub fn send_to(&self, data: impl Payload, to: SocketAddr) {
        let peer = self.state.info.peer;
        let destination = match peer {
            Some(peer) if peer != to => {
                let why = format!("the endpoint is connected to {peer} and cannot send to {to}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            Some(_) => Ok(None),
            None => Ok(Some(to)),
        };
        self.queue(data, destination);
    }

    /// Queues a datagram for the peer of a connected endpoint. On an unconnected one, `error_received` is called.
    pub fn send(&self, data: impl Payload) {
        let destination = match self.state.info.peer {
            Some(_) => Ok(None),
            None => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the endpoint is not connected: use `send_to`",
            )),
        };
        self.queue(data, destination);
    }

    fn queue(&self, data: impl Payload, to: io::Result<Option<SocketAddr>>) {
        self.state.write_buffer.put(data.bytes(), to);
        self.state.wake_sender();
    }

    /// Stops receiving, and closes the endpoint once everything is sent.
    pub fn close(&self) {
        self.state.close();
    }

    /// Closes the endpoint immediately and discards queued datagrams.
    pub fn abort(&self) {
        self.state.force_close(None, CloseMode::Normal);
    }

    /// Whether the endpoint is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.state.is_closing()
    }

    /// Sets the watermarks of the send queue: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.state.set_limits(high.into(), low.into())
    }

    /// The watermarks as (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.state.write_buffer.watermarks.limits()
    }

    /// The number of bytes not yet accepted by the kernel.
    pub fn get_write_buffer_size(&self) -> usize {
        self.state.write_buffer.watermarks.size()
    }

    /// The local address, also after the endpoint is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.state.info.local.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The peer's address if the endpoint is connected, also after it is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.state.info.peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl fmt::Debug for DatagramTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramTransport")
            .field("local", &self.state.info.local)
            .field("peer", &self.state.info.peer)
            .field("write_buffer_size", &self.get_write_buffer_size())
            .field("closing", &self.is_closing())
            .finish()
    }
}

/// Binds a UDP endpoint to an address and attaches the protocol made by `factory`. When this returns,
/// [`connection_made`](DatagramProtocol::connection_made) has been called. See [`DatagramProtocol`] for an example.
///
/// Dropping the future closes the endpoint.
pub async fn create_datagram_endpoint<P: DatagramProtocol + 'static>(
    factory: impl FnOnce() -> P,
    local: impl ToSocketAddrs,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    let socket = UdpSocket::bind(local).await?;
    open(socket, factory()).await
}

/// Like [`create_datagram_endpoint`], but with a system-chosen address and connected: it sends to and receives from
/// `peer` only. See [`DatagramTransport`] for an example.
pub async fn connect_datagram_endpoint<P: DatagramProtocol + 'static>(
    factory: impl FnOnce() -> P,
    peer: impl ToSocketAddrs,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    let socket = try_each("connect to", &peer, async |peer| {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The machine may lack this address family but have the other.
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(peer).await?;
        Ok(socket)
    })
    .await?;
    open(socket, factory()).await
}

/// Starts an endpoint's task.
async fn open<P: DatagramProtocol + 'static>(
    socket: UdpSocket,
    protocol: P,
) -> io::Result<(DatagramTransport, ProtocolRef<P>)> {
    let protocol = Rc::new(RefCell::new(protocol));
    let info = EndpointAddrs {
        local: socket.local_addr().ok(),
        peer: socket.peer_addr().ok(),
    };
    let state = EndpointState::new(protocol.clone(), info);
    let guard = TaskGuard {
        state: state.clone(),
        _registration: None,
    };
    crate::task::spawn(run_endpoint(guard, socket));
    let transport = DatagramTransport { state };
    transport.state.wait_made(|| transport.abort()).await;
    Ok((transport, ProtocolRef(protocol)))
}

async fn run_endpoint(guard: TaskGuard<dyn DatagramProtocol>, socket: UdpSocket) {
    let state = &guard.state;
    let (sending, receiving) = (send_all(state, &socket), receive_all(state, &socket));
    let reason = state.run(pin!(sending), pin!(receiving)).await;
    state.report_lost(reason);
    // The descriptor closes before waiters are notified.
    drop(socket);
}

/// Sends datagrams until the queue is closed and empty.
async fn send_all(state: &EndpointState, socket: &UdpSocket) -> io::Result<()> {
    loop {
        let next = poll_fn(|_| state.write_buffer.poll_next()).await;
        let Some(datagram) = next else { return Ok(()) };
        let len = weight(datagram.piece.left());
        let result = match datagram.to {
            Ok(Some(to)) => socket.send_to(datagram.piece, to).await.0,
            Ok(None) => socket.send(datagram.piece).await.0,
            Err(error) => {
                // This path does no I/O. Without a yield, a protocol that answers the error with the same send would
                // starve other tasks.
                yield_now().await;
                Err(error)
            }
        };
        state.write_buffer.watermarks.take(len);
        if let Err(error) = result {
            state.call("error_received", |protocol| protocol.error_received(error));
        }
    }
}

/// Delivers datagrams to the protocol. Never completes.
async fn receive_all(state: &EndpointState, socket: &UdpSocket) {
    let mut buf = Vec::with_capacity(LONGEST);
    loop {
        let result;
        (result, buf) = socket.recv_from(buf).await;
        while state.has_delivered() {
            yield_now().await;
        }
        state.mark_delivered();
        match result {
            Ok((len, from)) => state.call("datagram_received", |protocol| {
                protocol.datagram_received(&buf[..len], from);
            }),
            Err(error) => state.call("error_received", |protocol| protocol.error_received(error)),
        };
    }
}

/// A datagram's size against the watermarks: an empty one uses memory too.
fn weight(len: usize) -> usize {
    len.max(size_of::<Datagram>())
}

/// Datagrams waiting to be sent.
#[derive(Default)]
pub(super) struct DatagramQueue {
    datagrams: RefCell<VecDeque<Datagram>>,
    watermarks: Watermarks,
    closed: Cell<bool>,
    /// A send is in flight, or the sender has finished.
    is_busy: Cell<bool>,
}

struct Datagram {
    piece: Piece,
    /// `None` is the connected peer. An error is passed to `error_received` instead of sending.
    to: io::Result<Option<SocketAddr>>,
}

impl DatagramQueue {
    fn put(&self, data: &[u8], to: io::Result<Option<SocketAddr>>) {
        if !self.closed.get() {
            let piece = Piece::copy_of(data);
            self.datagrams.borrow_mut().push_back(Datagram { piece, to });
            self.watermarks.add(weight(data.len()));
        }
    }

    /// The next datagram; `None` when the queue is closed and empty.
    fn poll_next(&self) -> Poll<Option<Datagram>> {
        let next = self.datagrams.borrow_mut().pop_front();
        let is_busy = next.is_some() || self.closed.get();
        self.is_busy.set(is_busy);
        match is_busy {
            true => Poll::Ready(next),
            false => Poll::Pending,
        }
    }
}

impl SendQueue for DatagramQueue {
    fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    fn needs_wake(&self) -> bool {
        !self.is_busy.get() && (self.closed.get() || !self.datagrams.borrow().is_empty())
    }

    fn close(&self) {
        self.closed.set(true);
    }

    fn discard(&self) {
        self.closed.set(true);
        drop(self.datagrams.take());
        self.watermarks.reset();
    }
}
