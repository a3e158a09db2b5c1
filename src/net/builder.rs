//! TCP with options.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::accept::BACKLOG;
use super::addr::ToSocketAddrs;
use super::connect::connect_any;
use super::listener::TcpListener;
use super::stream::TcpStream;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{self, KeepAlive, Name, SocketKind, SocketOption, context};

/// How to listen, or to connect, with options: see [`TcpListener::builder`] and [`TcpStream::builder`].
///
/// What is not set stays as the system has it. A listener's options hold for the connections that it accepts.
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// windlass::run(async {
///     let listener = TcpListener::builder().backlog(16).nodelay(true).listen("127.0.0.1:0").await?;
///     let client = TcpStream::builder().nodelay(true).recv_buffer(65_536).connect(listener.local_addr()?).await?;
///     let (server, _) = listener.accept().await?;
///     assert!(client.nodelay()? && server.nodelay()?);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `listen` or `connect`"]
pub struct TcpBuilder {
    backlog: u32,
    accept_ahead: Option<u32>,
    reuse_address: bool,
    local: Option<SocketAddr>,
    options: Vec<SocketOption>,
}

impl TcpBuilder {
    pub(super) fn new() -> TcpBuilder {
        TcpBuilder {
            backlog: BACKLOG,
            accept_ahead: None,
            reuse_address: sys::REUSES_ADDRESSES,
            local: None,
            options: Vec::new(),
        }
    }

    /// How many connections the kernel may hold that nobody has accepted: 1,024, unless the system allows fewer.
    pub fn backlog(mut self, connections: u32) -> TcpBuilder {
        self.backlog = connections;
        self
    }

    /// Limits how many connections the runtime may accept before the program asks for them: see
    /// [`TcpListener::set_accept_ahead`].
    pub fn accept_ahead(mut self, connections: u32) -> TcpBuilder {
        self.accept_ahead = Some(connections);
        self
    }

    /// Whether a listener may use an address while old connections of an earlier one are in TIME_WAIT: yes, unless told
    /// otherwise, as in std. On Windows it may anyway, and this lets others take the address while it is in use: there it
    /// is off.
    pub fn reuse_address(mut self, on: bool) -> TcpBuilder {
        self.reuse_address = on;
        self
    }

    /// Whether several listeners may share an address, each getting some of the connections.
    pub fn reuse_port(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::ReusePort(on))
    }

    /// Whether a listener for IPv6 leaves IPv4 alone.
    pub fn only_v6(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::OnlyV6(on))
    }

    /// Whether small writes leave at once (Nagle's algorithm is off).
    pub fn nodelay(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::Nodelay(on))
    }

    /// Whether and when a quiet connection is asked whether it is still there.
    pub fn keepalive(self, times: Option<KeepAlive>) -> TcpBuilder {
        self.with(SocketOption::KeepAlive(times))
    }

    /// How long closing waits, on a thread, for what was written to arrive, in seconds, rounded up; zero resets the
    /// connection.
    pub fn linger(self, time: Option<Duration>) -> TcpBuilder {
        self.with(SocketOption::Linger(time))
    }

    /// How many bytes the kernel holds that were written and not sent. Linux doubles the number.
    pub fn send_buffer(self, bytes: usize) -> TcpBuilder {
        self.with(SocketOption::SendBuffer(bytes))
    }

    /// How many bytes the kernel holds that came and were not read. Linux doubles the number.
    pub fn recv_buffer(self, bytes: usize) -> TcpBuilder {
        self.with(SocketOption::RecvBuffer(bytes))
    }

    /// The address to connect from; only addresses of its family are connected to.
    pub fn local(mut self, addr: SocketAddr) -> TcpBuilder {
        self.local = Some(addr);
        self
    }

    fn with(mut self, option: SocketOption) -> TcpBuilder {
        let is_same = |other: &SocketOption| std::mem::discriminant(other) == std::mem::discriminant(&option);
        self.options.retain(|other| !is_same(other));
        self.options.push(option);
        self
    }

    /// Listens, as [`TcpListener::bind`].
    pub async fn listen(self, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let explain = |error| context(format_args!("bind {}", addr.shown()), error);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for addr in addr.resolve().await.map_err(explain)? {
            match self.listen_on(addr) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(explain(last))
    }

    fn listen_on(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.socket(addr)?;
        socket.set(SocketOption::ReuseAddress(self.reuse_address))?;
        socket.bind(&Name::from(addr))?;
        socket.listen(i32::try_from(self.backlog).unwrap_or(i32::MAX))?;
        let listener = TcpListener::from_socket(socket);
        if let Some(connections) = self.accept_ahead {
            listener.set_accept_ahead(connections);
        }
        Ok(listener)
    }

    /// Connects, as [`TcpStream::connect`].
    pub async fn connect(self, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let explain = |error| context(format_args!("connect to {}", addr.shown()), error);
        let mut addrs = addr.resolve().await.map_err(explain)?;
        if let Some(local) = self.local {
            addrs.retain(|addr| addr.is_ipv4() == local.is_ipv4());
            if addrs.is_empty() {
                let why = format!("no address is of the same family as {local}, where the connection is to come from");
                return Err(explain(io::Error::new(io::ErrorKind::InvalidInput, why)));
            }
        }
        connect_any(&self, addrs).await.map_err(explain)
    }

    pub(super) async fn connect_one(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(addr)?;
        if let Some(local) = self.local {
            let explain = |error| context(format_args!("from {local}"), error);
            socket.bind(&Name::from(local)).map_err(explain)?;
        }
        socket.connect(addr.into()).await?;
        Ok(TcpStream::from_socket(socket))
    }

    /// A socket for addresses of this one's family, with the options set.
    fn socket(&self, addr: SocketAddr) -> io::Result<OwnedDescriptor> {
        let socket = OwnedDescriptor::socket(SocketKind::tcp_for(addr))?;
        for &option in &self.options {
            // A name may have addresses of both families.
            if addr.is_ipv4() && matches!(option, SocketOption::OnlyV6(_)) {
                continue;
            }
            let explain = |error| context(format_args!("set {option:?}"), error);
            socket.set(option).map_err(explain)?;
        }
        Ok(socket)
    }
}
