//! Options of UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::addr::{ToSocketAddrs, try_each};
use super::builder::std_socket;
use super::udp::UdpSocket;
use crate::driver::{Control, control};
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{self, Name, SocketKind, SocketOption, context};

/// Binds or connects a UDP socket with options: see [`UdpSocket::builder`].
///
/// Options that are not set keep the system's default.
///
/// ```
/// use windlass::net::UdpSocket;
/// windlass::run(async {
///     let server = UdpSocket::builder().recv_buffer(1 << 20).bind("127.0.0.1:0").await?;
///     let client = UdpSocket::builder().send_buffer(1 << 20).connect(server.local_addr()?).await?;
///     client.send("hello").await.0?;
///     assert_eq!(server.recv_managed().await?.from(), client.local_addr()?);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `bind` or `connect` is called"]
pub struct UdpBuilder {
    local: Option<SocketAddr>,
    options: Vec<SocketOption>,
}

impl UdpBuilder {
    /// Whether several sockets may be bound to one address (`SO_REUSEADDR`), for instance all receivers of a multicast
    /// group on one port. Off by default. Each of them gets multicast datagrams; which one gets other datagrams depends
    /// on the system.
    pub fn reuse_address(self, on: bool) -> UdpBuilder {
        self.with(SocketOption::ReuseAddress(on))
    }

    /// Whether several sockets may share an address (`SO_REUSEPORT`). Linux and FreeBSD (`SO_REUSEPORT_LB`) distribute the
    /// datagrams by sender, so that each of several loops can have a socket of its own. macOS does not distribute them. On
    /// Windows this is an error of the kind `Unsupported`.
    pub fn reuse_port(self, on: bool) -> UdpBuilder {
        self.with(SocketOption::ReusePort(on))
    }

    /// Whether an IPv6 socket does not receive from IPv4 senders.
    pub fn only_v6(self, on: bool) -> UdpBuilder {
        self.with(SocketOption::OnlyV6(on))
    }

    /// Whether datagrams may be sent to broadcast addresses.
    pub fn broadcast(self, on: bool) -> UdpBuilder {
        self.with(SocketOption::Broadcast(on))
    }

    /// The size of the kernel's send buffer. Linux doubles the number.
    pub fn send_buffer(self, bytes: usize) -> UdpBuilder {
        self.with(SocketOption::SendBuffer(bytes))
    }

    /// The size of the kernel's receive buffer. Linux doubles the number. When it is full, datagrams are lost.
    pub fn recv_buffer(self, bytes: usize) -> UdpBuilder {
        self.with(SocketOption::RecvBuffer(bytes))
    }

    /// The local address of [`connect`](UdpBuilder::connect); remote addresses of the other family are skipped. By default
    /// the system chooses it.
    pub fn local(mut self, addr: SocketAddr) -> UdpBuilder {
        self.local = Some(addr);
        self
    }

    fn with(mut self, option: SocketOption) -> UdpBuilder {
        let is_same = |other: &SocketOption| std::mem::discriminant(other) == std::mem::discriminant(&option);
        self.options.retain(|other| !is_same(other));
        self.options.push(option);
        self
    }

    /// Binds a socket to an address: see [`UdpSocket::bind`].
    pub async fn bind(self, addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        try_each("bind", &addr, async |addr| self.bind_to(addr)).await
    }

    /// Binds a kernel socket without an event loop: for a pool of loops, which binds before any of them runs.
    pub(crate) fn bind_std(&self, addr: SocketAddr) -> io::Result<std::net::UdpSocket> {
        let socket = std_socket(SocketKind::udp_for(addr), &self.options, addr)?;
        let (fd, name) = (sys::number(&socket), &Name::from(addr));
        control(Control::Bind { fd, name }).map_err(|error| context(format_args!("bind {addr}"), error))?;
        Ok(socket.into())
    }

    /// Connects a socket to an address: see [`UdpSocket::connect`].
    pub async fn connect(self, addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        try_each("connect to", &addr, async |addr| {
            let socket = self.bind_to(self.local_for(addr)?)?;
            socket.socket().connect(addr.into()).await?;
            Ok(socket)
        })
        .await
    }

    /// The address to bind a socket to before it is connected to this peer.
    fn local_for(&self, peer: SocketAddr) -> io::Result<SocketAddr> {
        match self.local {
            Some(local) if local.is_ipv4() != peer.is_ipv4() => {
                let why = format!("{peer} is not of the same family as the local address {local}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            Some(local) => Ok(local),
            None if peer.is_ipv4() => Ok((Ipv4Addr::UNSPECIFIED, 0).into()),
            None => Ok((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
    }

    /// Binds a socket of the current loop.
    pub(crate) fn bind_to(&self, addr: SocketAddr) -> io::Result<UdpSocket> {
        let socket = OwnedDescriptor::socket(SocketKind::udp_for(addr))?;
        for &option in &self.options {
            // A name may resolve to addresses of both families.
            if addr.is_ipv4() && matches!(option, SocketOption::OnlyV6(_)) {
                continue;
            }
            let explain = |error| context(format_args!("set {option:?}"), error);
            socket.set(option).map_err(explain)?;
        }
        socket.bind(&Name::from(addr))?;
        Ok(UdpSocket::from_socket(socket))
    }
}
