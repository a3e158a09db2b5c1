//! Options of TCP sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::accept::BACKLOG;
use super::addr::{ToSocketAddrs, resolve, try_each};
use super::connect::connect_any;
use super::listener::TcpListener;
use super::stream::TcpStream;
use crate::driver::{Control, Reply, control};
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{self, Foreign, KeepAlive, Name, SocketKind, SocketOption, context};

/// Listens or connects with options: see [`TcpListener::builder`] and [`TcpStream::builder`].
///
/// Options that are not set keep the system's default. Accepted connections inherit the options of their listener.
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
#[must_use = "a builder does nothing until `listen` or `connect` is called"]
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

    /// The length of the kernel's accept queue. The default is 1,024; the system may have a lower limit.
    pub fn backlog(mut self, connections: u32) -> TcpBuilder {
        self.backlog = connections;
        self
    }

    /// Sets how many connections the listener may accept at a time: see [`TcpListener::set_accept_ahead`].
    pub fn accept_ahead(mut self, connections: u32) -> TcpBuilder {
        self.accept_ahead = Some(connections);
        self
    }

    /// Whether a listener may bind an address while connections of an earlier one are in TIME_WAIT. On by default, as
    /// in std; off on Windows, where that is always allowed and the option would let others take an address in use.
    pub fn reuse_address(mut self, on: bool) -> TcpBuilder {
        self.reuse_address = on;
        self
    }

    /// Whether several listeners may share an address; the kernel distributes the connections.
    pub fn reuse_port(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::ReusePort(on))
    }

    /// Whether an IPv6 listener does not accept IPv4 connections.
    pub fn only_v6(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::OnlyV6(on))
    }

    /// Whether small writes are sent immediately (`TCP_NODELAY`, Nagle's algorithm off).
    pub fn nodelay(self, on: bool) -> TcpBuilder {
        self.with(SocketOption::Nodelay(on))
    }

    /// Sets or turns off keepalive probes on idle connections.
    pub fn keepalive(self, times: Option<KeepAlive>) -> TcpBuilder {
        self.with(SocketOption::KeepAlive(times))
    }

    /// How long closing waits for unsent data (`SO_LINGER`), on a pool thread. Rounded up to seconds; zero sends a RST.
    pub fn linger(self, time: Option<Duration>) -> TcpBuilder {
        self.with(SocketOption::Linger(time))
    }

    /// The size of the kernel's send buffer. Linux doubles the number.
    pub fn send_buffer(self, bytes: usize) -> TcpBuilder {
        self.with(SocketOption::SendBuffer(bytes))
    }

    /// The size of the kernel's receive buffer. Linux doubles the number.
    pub fn recv_buffer(self, bytes: usize) -> TcpBuilder {
        self.with(SocketOption::RecvBuffer(bytes))
    }

    /// The local address to connect from; remote addresses of the other family are skipped.
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

    /// Listens on an address: see [`TcpListener::bind`].
    pub async fn listen(self, addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        try_each("bind", &addr, async |addr| self.listen_on(addr)).await
    }

    /// Binds a kernel socket without an event loop: for a pool of loops, which binds before any of them runs.
    pub(crate) fn listen_std(&self, addr: SocketAddr) -> io::Result<std::net::TcpListener> {
        let socket = std_socket(SocketKind::tcp_for(addr), &self.options, addr)?;
        let fd = sys::number(&socket);
        let option = SocketOption::ReuseAddress(self.reuse_address);
        control(Control::SetOption { fd, option })?;
        let name = &Name::from(addr);
        control(Control::Bind { fd, name }).map_err(|error| context(format_args!("bind {addr}"), error))?;
        let backlog = i32::try_from(self.backlog).unwrap_or(i32::MAX);
        control(Control::Listen { fd, backlog })?;
        Ok(socket.into())
    }

    /// The setting for a listener that was bound by [`listen_std`](TcpBuilder::listen_std).
    pub(crate) fn configure(&self, listener: &TcpListener) {
        if let Some(connections) = self.accept_ahead {
            listener.set_accept_ahead(connections);
        }
    }

    /// Listens on the current loop.
    pub(crate) fn listen_on(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.socket(addr)?;
        socket.set(SocketOption::ReuseAddress(self.reuse_address))?;
        socket.bind(&Name::from(addr))?;
        socket.listen(i32::try_from(self.backlog).unwrap_or(i32::MAX))?;
        let listener = TcpListener::from_socket(socket);
        self.configure(&listener);
        Ok(listener)
    }

    /// Connects to an address: see [`TcpStream::connect`].
    pub async fn connect(self, addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let explain = |error| context(format_args!("connect to {}", addr.describe()), error);
        let mut addrs = resolve("connect to", &addr).await?;
        if let Some(local) = self.local {
            addrs.retain(|addr| addr.is_ipv4() == local.is_ipv4());
            if addrs.is_empty() {
                let message = format!("no address has the same family as the local address {local}");
                return Err(explain(io::Error::new(io::ErrorKind::InvalidInput, message)));
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

    /// A socket of the address's family with the options set.
    fn socket(&self, addr: SocketAddr) -> io::Result<OwnedDescriptor> {
        let socket = OwnedDescriptor::socket(SocketKind::tcp_for(addr))?;
        for &option in &self.options {
            // A name may resolve to addresses of both families.
            if addr.is_ipv4() && matches!(option, SocketOption::OnlyV6(_)) {
                continue;
            }
            let explain = |error| context(format_args!("set {option:?}"), error);
            socket.set(option).map_err(explain)?;
        }
        Ok(socket)
    }
}

/// Makes a kernel socket with these options, without an event loop.
pub(super) fn std_socket(kind: SocketKind, options: &[SocketOption], addr: SocketAddr) -> io::Result<Foreign> {
    let Reply::Fd(fd) = control(Control::Socket { kind })? else {
        unreachable!("the reply to a new socket is its number");
    };
    let socket = sys::into_std(fd);
    for &option in options
        .iter()
        .filter(|option| addr.is_ipv6() || !matches!(option, SocketOption::OnlyV6(_)))
    {
        let explain = |error| context(format_args!("set {option:?}"), error);
        control(Control::SetOption { fd, option }).map_err(explain)?;
    }
    Ok(socket)
}
