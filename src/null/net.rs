//! An in-memory network that behaves like TCP and UDP: the same error codes, and a bounded receive queue per direction.

use std::collections::{HashMap, VecDeque};
use std::mem::Discriminant;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::Duration;

use crate::driver::{Control, FdSpace, OsResult, Reply, SocketKind, SocketOption};
use crate::sys::{Fd, Name, errno};

/// How many bytes one direction of a connection holds before a send blocks.
pub(super) const STREAM_CAPACITY: usize = 64 * 1024;

/// The result of an operation; `None` if it cannot complete yet.
type Attempt<T> = Option<Result<T, i32>>;

#[derive(Default)]
pub(super) struct Network {
    sockets: HashMap<Fd, Socket>,
    options: HashMap<Fd, Options>,
    sockets_created: i32,
    next_port: u16,
}

/// The options that were set, by kind.
type Options = HashMap<Discriminant<SocketOption>, SocketOption>;

pub(super) enum Socket {
    /// A stream socket that is neither listening nor connected, with its address: port 0 if it is not bound.
    Fresh(SocketAddr),
    Listener(Listener),
    Stream(Stream),
    Datagrams(Datagrams),
}

/// A datagram socket.
pub(super) struct Datagrams {
    pub(super) local: SocketAddr,
    pub(super) peer: Option<SocketAddr>,
    pub(super) recv_queue: VecDeque<(SocketAddr, Vec<u8>)>,
    /// The connected peer did not exist at the last send: the next receive returns ECONNREFUSED, once.
    pub(super) refused: bool,
}

pub(super) struct Listener {
    addr: SocketAddr,
    /// Connections that were not accepted yet.
    backlog: VecDeque<Fd>,
    backlog_max: usize,
}

pub(super) struct Stream {
    local: SocketAddr,
    remote: SocketAddr,
    /// The other end, while it is open.
    peer: Option<Fd>,
    recv_queue: VecDeque<u8>,
    /// The peer will send no more.
    at_eof: bool,
    /// The peer reset the connection, or closed it with unread bytes: the next receive returns ECONNRESET, once.
    reset: bool,
    write_shut: bool,
}

impl Socket {
    /// The address that the socket is bound to; port 0 if it is not.
    fn local(&self) -> SocketAddr {
        match self {
            Socket::Fresh(local) => *local,
            Socket::Listener(listener) => listener.addr,
            Socket::Stream(stream) => stream.local,
            Socket::Datagrams(datagrams) => datagrams.local,
        }
    }

    /// Whether the socket is bound to this address, or to its port on every interface.
    fn is_at(&self, addr: SocketAddr) -> bool {
        let bound = self.local();
        addr.port() > 0 && bound.port() == addr.port() && (bound.ip() == addr.ip() || bound.ip().is_unspecified())
    }
}

impl Network {
    pub(super) fn control(&mut self, call: Control<'_>) -> Result<Reply, i32> {
        match call {
            Control::Socket { kind } => new_socket(kind).map(|socket| Reply::Fd(self.add(socket))),
            Control::Pair { .. } | Control::Pipe | Control::PeerCredentials { .. } => Err(errno::NOT_SUPPORTED),
            Control::Bind { fd, name } => self.bind(fd, name).map(|()| Reply::Done),
            Control::Listen { fd, backlog } => self.listen(fd, backlog).map(|()| Reply::Done),
            // A socket that was made elsewhere is the kernel's.
            Control::Adopt { .. } => Err(errno::BAD_FD),
            Control::Watch { fd } if self.is_open(fd) => Ok(Reply::Done),
            Control::Watch { .. } => Err(errno::BAD_FD),
            Control::Forget { .. } => Ok(Reply::Done),
            Control::Seek { .. } => Err(errno::INVALID),
            Control::LocalName { fd } => self.local_addr(fd).map(|addr| Reply::Name(addr.into())),
            Control::PeerName { fd } => self.peer_addr(fd).map(|addr| Reply::Name(addr.into())),
            Control::SetOption { fd, .. } | Control::Option { fd, .. } if !self.is_open(fd) => Err(errno::BAD_FD),
            Control::SetOption { fd, option } => {
                let options = self.options.entry(fd).or_default();
                options.insert(std::mem::discriminant(&option), option);
                Ok(Reply::Done)
            }
            Control::Option { fd, like } => {
                let value = self.option(fd, like).or_else(|| default_value(like));
                value.map(Reply::Option).ok_or(errno::NOT_SUPPORTED)
            }
            Control::Shutdown { fd, how } => self.shutdown(fd, how).map(|()| Reply::Done),
            Control::Close { fd } => {
                self.close(fd, false);
                Ok(Reply::Done)
            }
            Control::Reset { fd } => {
                self.close(fd, true);
                Ok(Reply::Done)
            }
        }
    }

    /// Descriptors have high numbers, so that they cannot be confused with the kernel's.
    fn add(&mut self, socket: Socket) -> Fd {
        let fd = FdSpace::FIRST_OWN + self.sockets_created;
        self.sockets_created += 1;
        self.sockets.insert(fd, socket);
        fd
    }

    fn free_port(&mut self) -> u16 {
        loop {
            self.next_port = match self.next_port {
                0 | u16::MAX => 49_152,
                port => port + 1,
            };
            let port = self.next_port;
            if !self.sockets.values().any(|socket| socket.local().port() == port) {
                return port;
            }
        }
    }

    fn bind(&mut self, fd: Fd, name: &Name) -> Result<(), i32> {
        let mut addr = name.as_socket().ok_or(errno::NO_FAMILY)?;
        let reuse = SocketOption::ReusePort(true);
        let is_shared = self.option(fd, reuse) == Some(reuse);
        let is_taken = match self.sockets.get(&fd).ok_or(errno::BAD_FD)? {
            Socket::Fresh(_) => self.listener_at(addr).is_some(),
            Socket::Datagrams(_) => self.datagrams_at(addr).is_some(),
            Socket::Listener(_) | Socket::Stream(_) => return Err(errno::INVALID),
        };
        if addr.port() == 0 {
            addr.set_port(self.free_port());
        } else if is_taken && !is_shared {
            return Err(errno::IN_USE);
        }
        match self.sockets.get_mut(&fd) {
            Some(Socket::Fresh(local)) => *local = addr,
            Some(Socket::Datagrams(datagrams)) => datagrams.local = addr,
            _ => {}
        }
        Ok(())
    }

    /// The option of the same kind as `like`, if it was set.
    fn option(&self, fd: Fd, like: SocketOption) -> Option<SocketOption> {
        self.options.get(&fd)?.get(&std::mem::discriminant(&like)).copied()
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<(), i32> {
        let addr = match self.sockets.get(&fd) {
            Some(Socket::Fresh(local)) if local.port() > 0 => *local,
            Some(_) => return Err(errno::INVALID),
            None => return Err(errno::BAD_FD),
        };
        let listener = Listener {
            addr,
            backlog: VecDeque::new(),
            backlog_max: backlog.max(1) as usize,
        };
        self.sockets.insert(fd, Socket::Listener(listener));
        Ok(())
    }

    fn local_addr(&self, fd: Fd) -> Result<SocketAddr, i32> {
        self.sockets.get(&fd).map(Socket::local).ok_or(errno::BAD_FD)
    }

    fn peer_addr(&self, fd: Fd) -> Result<SocketAddr, i32> {
        match self.sockets.get(&fd).ok_or(errno::BAD_FD)? {
            Socket::Stream(stream) => Ok(stream.remote),
            Socket::Datagrams(datagrams) => datagrams.peer.ok_or(errno::NOT_CONNECTED),
            Socket::Fresh(_) | Socket::Listener(_) => Err(errno::NOT_CONNECTED),
        }
    }

    pub(super) fn datagrams(&mut self, fd: Fd) -> Result<&mut Datagrams, i32> {
        match self.sockets.get_mut(&fd) {
            Some(Socket::Datagrams(datagrams)) => Ok(datagrams),
            Some(_) => Err(errno::INVALID),
            None => Err(errno::BAD_FD),
        }
    }

    pub(super) fn datagrams_at(&self, addr: SocketAddr) -> Option<Fd> {
        let receives = |socket: &Socket| matches!(socket, Socket::Datagrams(_)) && socket.is_at(addr);
        self.sockets
            .iter()
            .find(|(_, socket)| receives(socket))
            .map(|(&fd, _)| fd)
    }

    /// Binds a socket that is not bound yet. Returns its address as the peer sees it.
    pub(super) fn bind_if_unbound(&mut self, fd: Fd, peer: SocketAddr) -> Result<SocketAddr, i32> {
        if self.datagrams(fd)?.local.port() == 0 {
            let local = SocketAddr::new(loopback(peer), self.free_port());
            self.datagrams(fd)?.local = local;
        }
        let local = self.datagrams(fd)?.local;
        Ok(match local.ip().is_unspecified() {
            true => SocketAddr::new(loopback(peer), local.port()),
            false => local,
        })
    }

    fn listener_at(&self, addr: SocketAddr) -> Option<Fd> {
        let accepts = |socket: &Socket| matches!(socket, Socket::Listener(_)) && socket.is_at(addr);
        self.sockets
            .iter()
            .find(|(_, socket)| accepts(socket))
            .map(|(&fd, _)| fd)
    }

    fn stream(&mut self, fd: Fd) -> Result<&mut Stream, i32> {
        match self.sockets.get_mut(&fd) {
            Some(Socket::Stream(stream)) => Ok(stream),
            Some(_) => Err(errno::NOT_CONNECTED),
            None => Err(errno::BAD_FD),
        }
    }

    pub(super) fn accept(&mut self, fd: Fd) -> Attempt<Fd> {
        match self.sockets.get_mut(&fd) {
            Some(Socket::Listener(listener)) => listener.backlog.pop_front().map(Ok),
            Some(_) => Some(Err(errno::INVALID)),
            None => Some(Err(errno::BAD_FD)),
        }
    }

    pub(super) fn connect(&mut self, fd: Fd, addr: SocketAddr) -> Attempt<()> {
        if let Ok(datagrams) = self.datagrams(fd) {
            datagrams.peer = Some(addr);
            return Some(self.bind_if_unbound(fd, addr).map(|_| ()));
        }
        let Some(&Socket::Fresh(mut local)) = self.sockets.get(&fd) else {
            return Some(Err(errno::INVALID));
        };
        let Some(listener_fd) = self.listener_at(addr) else {
            return Some(Err(errno::REFUSED));
        };
        if local.port() == 0 {
            local = SocketAddr::new(loopback(addr), self.free_port());
        }
        let server = Stream::new(addr, local, fd);
        let server_fd = self.add(Socket::Stream(server));
        // As on Linux, an accepted socket inherits the listener's options.
        if let Some(options) = self.options.get(&listener_fd).cloned() {
            self.options.insert(server_fd, options);
        }
        match self.sockets.get_mut(&listener_fd) {
            Some(Socket::Listener(listener)) if listener.backlog.len() < listener.backlog_max => {
                listener.backlog.push_back(server_fd);
            }
            _ => {
                self.sockets.remove(&server_fd);
                self.options.remove(&server_fd);
                return None;
            }
        }
        let client = Stream::new(local, addr, server_fd);
        self.sockets.insert(fd, Socket::Stream(client));
        Some(Ok(()))
    }

    pub(super) fn is_open(&self, fd: Fd) -> bool {
        self.sockets.contains_key(&fd)
    }

    pub(super) fn can_recv(&self, fd: Fd) -> bool {
        match self.sockets.get(&fd) {
            Some(Socket::Listener(listener)) => !listener.backlog.is_empty(),
            Some(Socket::Datagrams(datagrams)) => !datagrams.recv_queue.is_empty() || datagrams.refused,
            Some(Socket::Stream(stream)) => !stream.recv_queue.is_empty() || stream.at_eof || stream.reset,
            Some(Socket::Fresh(_)) | None => true,
        }
    }

    pub(super) fn can_send(&mut self, fd: Fd) -> bool {
        let peer = match self.stream(fd) {
            Ok(stream) if !stream.write_shut => stream.peer,
            _ => return true,
        };
        match peer.map(|peer| self.stream(peer)) {
            Some(Ok(peer)) => peer.recv_queue.len() < STREAM_CAPACITY,
            _ => true,
        }
    }

    /// Receives with `take`, which moves bytes out of the queue and returns their count.
    pub(super) fn recv(&mut self, fd: Fd, take: impl FnOnce(&mut VecDeque<u8>) -> u32) -> Option<OsResult> {
        if !self.can_recv(fd) {
            return None;
        }
        Some(self.stream(fd).and_then(|stream| {
            if std::mem::take(&mut stream.reset) {
                stream.recv_queue.clear();
                return Err(errno::RESET);
            }
            Ok(take(&mut stream.recv_queue))
        }))
    }

    pub(super) fn send(&mut self, fd: Fd, bytes: &[u8]) -> Option<OsResult> {
        let stream = match self.stream(fd) {
            Ok(stream) => stream,
            Err(code) => return Some(Err(code)),
        };
        let peer = match stream.peer {
            Some(peer) if !stream.write_shut => peer,
            _ => return Some(Err(errno::BROKEN_PIPE)),
        };
        let Ok(peer) = self.stream(peer) else {
            return Some(Err(errno::BROKEN_PIPE));
        };
        let count = bytes.len().min(STREAM_CAPACITY - peer.recv_queue.len());
        if count == 0 {
            return None;
        }
        peer.recv_queue.extend(&bytes[..count]);
        Some(Ok(count as u32))
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), i32> {
        let stream = self.stream(fd)?;
        if how != Shutdown::Write {
            stream.at_eof = true;
        }
        if how != Shutdown::Read {
            stream.write_shut = true;
            if let Some(peer) = stream.peer
                && let Ok(peer) = self.stream(peer)
            {
                peer.at_eof = true;
            }
        }
        Ok(())
    }

    fn close(&mut self, fd: Fd, reset: bool) {
        let abortive = SocketOption::Linger(Some(Duration::ZERO));
        let reset = reset || self.option(fd, abortive) == Some(abortive);
        self.options.remove(&fd);
        match self.sockets.remove(&fd) {
            Some(Socket::Listener(listener)) => {
                for unaccepted in listener.backlog {
                    self.close(unaccepted, true);
                }
            }
            Some(Socket::Stream(stream)) => {
                if let Some(Ok(peer)) = stream.peer.map(|peer| self.stream(peer)) {
                    peer.peer = None;
                    peer.at_eof = true;
                    // As with TCP, closing with unread bytes resets the connection.
                    peer.reset = reset || !stream.recv_queue.is_empty();
                }
            }
            Some(Socket::Fresh(_) | Socket::Datagrams(_)) | None => {}
        }
    }
}

impl Stream {
    fn new(local: SocketAddr, remote: SocketAddr, peer: Fd) -> Stream {
        Stream {
            local,
            remote,
            peer: Some(peer),
            recv_queue: VecDeque::new(),
            at_eof: false,
            reset: false,
            write_shut: false,
        }
    }
}

/// A new socket, not bound.
fn new_socket(kind: SocketKind) -> Result<Socket, i32> {
    let local = match kind {
        SocketKind::TcpV4 | SocketKind::UdpV4 => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketKind::TcpV6 | SocketKind::UdpV6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        SocketKind::UnixStream | SocketKind::UnixDatagram => return Err(errno::NO_FAMILY),
    };
    Ok(match kind {
        SocketKind::UdpV4 | SocketKind::UdpV6 => Socket::Datagrams(Datagrams {
            local,
            peer: None,
            recv_queue: VecDeque::new(),
            refused: false,
        }),
        _ => Socket::Fresh(local),
    })
}

/// The loopback address of the peer's family.
fn loopback(peer: SocketAddr) -> IpAddr {
    match peer {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// The default value of an option; `None` for options that cannot be read.
fn default_value(like: SocketOption) -> Option<SocketOption> {
    Some(match like {
        SocketOption::Nodelay(_) => SocketOption::Nodelay(false),
        SocketOption::ReuseAddress(_) => SocketOption::ReuseAddress(false),
        SocketOption::ReusePort(_) => SocketOption::ReusePort(false),
        SocketOption::OnlyV6(_) => SocketOption::OnlyV6(false),
        SocketOption::KeepAlive(_) => SocketOption::KeepAlive(None),
        SocketOption::Linger(_) => SocketOption::Linger(None),
        SocketOption::SendBuffer(_) => SocketOption::SendBuffer(STREAM_CAPACITY),
        SocketOption::RecvBuffer(_) => SocketOption::RecvBuffer(STREAM_CAPACITY),
        SocketOption::Broadcast(_) => SocketOption::Broadcast(false),
        SocketOption::TtlV4(_) => SocketOption::TtlV4(64),
        SocketOption::HopsV6(_) => SocketOption::HopsV6(64),
        SocketOption::MulticastLoopV4(_) => SocketOption::MulticastLoopV4(true),
        SocketOption::MulticastLoopV6(_) => SocketOption::MulticastLoopV6(true),
        SocketOption::MulticastTtlV4(_) => SocketOption::MulticastTtlV4(1),
        SocketOption::MulticastHopsV6(_) => SocketOption::MulticastHopsV6(1),
        SocketOption::MulticastInterfaceV4(_) => SocketOption::MulticastInterfaceV4(Ipv4Addr::UNSPECIFIED),
        SocketOption::MulticastInterfaceV6(_) => SocketOption::MulticastInterfaceV6(0),
        SocketOption::JoinV4 { .. }
        | SocketOption::LeaveV4 { .. }
        | SocketOption::JoinV6 { .. }
        | SocketOption::LeaveV6 { .. } => return None,
    })
}
