//! An in-memory network, with TCP's manners: the same errors for the same mistakes, a bounded pipe each way.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};

use crate::driver::{Control, Outcome, Reply};
use crate::sys::{Fd, errno};

/// How much one direction holds before a sender waits.
const PIPE_LEN: usize = 64 * 1024;

/// What an operation gives: `None` if it cannot complete yet.
type Attempt<T> = Option<Result<T, i32>>;

#[derive(Default)]
pub(super) struct Network {
    sockets: HashMap<Fd, Socket>,
    made: i32,
    next_port: u16,
}

enum Socket {
    Fresh { nodelay: bool },
    Listener(Listener),
    Stream(Stream),
}

struct Listener {
    addr: SocketAddr,
    /// Connections that nobody has accepted.
    backlog: VecDeque<Fd>,
    backlog_max: usize,
}

struct Stream {
    local: SocketAddr,
    remote: SocketAddr,
    /// The other end, while it is open.
    peer: Option<Fd>,
    inbox: VecDeque<u8>,
    /// The peer will send no more.
    ended: bool,
    /// The peer went away with something unread; told once.
    reset: bool,
    write_shut: bool,
    nodelay: bool,
}

impl Network {
    pub(super) fn control(&mut self, call: Control) -> Result<Reply, i32> {
        match call {
            Control::Listen { addr, backlog } => self.listen(addr, backlog).map(Reply::Fd),
            Control::Socket { .. } => Ok(Reply::Fd(self.add(Socket::Fresh { nodelay: false }))),
            // Only the kernel's own sockets exist outside of this network.
            Control::Adopt { .. } => Err(errno::BAD_FD),
            Control::Watch { fd } if self.sockets.contains_key(&fd) => Ok(Reply::Done),
            Control::Watch { .. } => Err(errno::BAD_FD),
            Control::Forget { .. } => Ok(Reply::Done),
            Control::Seek { .. } => Err(errno::INVALID),
            Control::LocalAddr { fd } => match self.sockets.get(&fd).ok_or(errno::BAD_FD)? {
                Socket::Fresh { .. } => Ok(Reply::Addr(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))),
                Socket::Listener(listener) => Ok(Reply::Addr(listener.addr)),
                Socket::Stream(stream) => Ok(Reply::Addr(stream.local)),
            },
            Control::PeerAddr { fd } => self.stream(fd).map(|stream| Reply::Addr(stream.remote)),
            Control::SetNodelay { fd, on } => {
                *self.nodelay(fd)? = on;
                Ok(Reply::Done)
            }
            Control::Nodelay { fd } => self.nodelay(fd).map(|on| Reply::Flag(*on)),
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

    /// Descriptors are negative, so that nobody mistakes them for the kernel's.
    fn add(&mut self, socket: Socket) -> Fd {
        self.made += 1;
        let fd = -1 - self.made;
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
            let is_taken = |socket: &Socket| match socket {
                Socket::Fresh { .. } => false,
                Socket::Listener(listener) => listener.addr.port() == port,
                Socket::Stream(stream) => stream.local.port() == port,
            };
            if !self.sockets.values().any(is_taken) {
                return port;
            }
        }
    }

    fn listen(&mut self, mut addr: SocketAddr, backlog: i32) -> Result<Fd, i32> {
        if addr.port() == 0 {
            addr.set_port(self.free_port());
        } else if self.listener_at(addr).is_some() {
            return Err(errno::IN_USE);
        }
        Ok(self.add(Socket::Listener(Listener {
            addr,
            backlog: VecDeque::new(),
            backlog_max: backlog.max(1) as usize,
        })))
    }

    fn listener_at(&self, addr: SocketAddr) -> Option<Fd> {
        let hears = |listener: &Listener| {
            let bound = listener.addr;
            bound.port() == addr.port() && (bound.ip() == addr.ip() || bound.ip().is_unspecified())
        };
        self.sockets.iter().find_map(|(&fd, socket)| match socket {
            Socket::Listener(listener) if hears(listener) => Some(fd),
            _ => None,
        })
    }

    fn stream(&mut self, fd: Fd) -> Result<&mut Stream, i32> {
        match self.sockets.get_mut(&fd) {
            Some(Socket::Stream(stream)) => Ok(stream),
            Some(_) => Err(errno::NOT_CONNECTED),
            None => Err(errno::BAD_FD),
        }
    }

    fn nodelay(&mut self, fd: Fd) -> Result<&mut bool, i32> {
        match self.sockets.get_mut(&fd) {
            Some(Socket::Stream(stream)) => Ok(&mut stream.nodelay),
            Some(Socket::Fresh { nodelay }) => Ok(nodelay),
            Some(Socket::Listener(_)) => Err(errno::INVALID),
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
        let Some(Socket::Fresh { nodelay }) = self.sockets.get(&fd) else {
            return Some(Err(errno::INVALID));
        };
        let nodelay = *nodelay;
        let Some(listener_fd) = self.listener_at(addr) else {
            return Some(Err(errno::REFUSED));
        };
        let loopback = match addr.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let local = SocketAddr::new(loopback, self.free_port());
        let server = Stream::new(addr, local, fd, false);
        let server_fd = self.add(Socket::Stream(server));
        match self.sockets.get_mut(&listener_fd) {
            Some(Socket::Listener(listener)) if listener.backlog.len() < listener.backlog_max => {
                listener.backlog.push_back(server_fd);
            }
            _ => {
                self.sockets.remove(&server_fd);
                return None;
            }
        }
        let client = Stream::new(local, addr, server_fd, nodelay);
        self.sockets.insert(fd, Socket::Stream(client));
        Some(Ok(()))
    }

    pub(super) fn is_open(&self, fd: Fd) -> bool {
        self.sockets.contains_key(&fd)
    }

    pub(super) fn can_recv(&mut self, fd: Fd) -> bool {
        if let Some(Socket::Listener(listener)) = self.sockets.get(&fd) {
            return !listener.backlog.is_empty();
        }
        match self.stream(fd) {
            Ok(stream) => !stream.inbox.is_empty() || stream.ended || stream.reset,
            Err(_) => true,
        }
    }

    pub(super) fn can_send(&mut self, fd: Fd) -> bool {
        let peer = match self.stream(fd) {
            Ok(stream) if !stream.write_shut => stream.peer,
            _ => return true,
        };
        match peer.map(|peer| self.stream(peer)) {
            Some(Ok(peer)) => peer.inbox.len() < PIPE_LEN,
            _ => true,
        }
    }

    /// Receives through `take`, which moves bytes out of the pipe and says how many.
    pub(super) fn recv(&mut self, fd: Fd, take: impl FnOnce(&mut VecDeque<u8>) -> u32) -> Option<Outcome> {
        if !self.can_recv(fd) {
            return None;
        }
        Some(self.stream(fd).and_then(|stream| {
            if std::mem::take(&mut stream.reset) {
                stream.inbox.clear();
                return Err(errno::RESET);
            }
            Ok(take(&mut stream.inbox))
        }))
    }

    pub(super) fn send(&mut self, fd: Fd, bytes: &[u8]) -> Option<Outcome> {
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
        let count = bytes.len().min(PIPE_LEN - peer.inbox.len());
        if count == 0 {
            return None;
        }
        peer.inbox.extend(&bytes[..count]);
        Some(Ok(count as u32))
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), i32> {
        let stream = self.stream(fd)?;
        if how != Shutdown::Write {
            stream.ended = true;
        }
        if how != Shutdown::Read {
            stream.write_shut = true;
            if let Some(peer) = stream.peer
                && let Ok(peer) = self.stream(peer)
            {
                peer.ended = true;
            }
        }
        Ok(())
    }

    fn close(&mut self, fd: Fd, reset: bool) {
        match self.sockets.remove(&fd) {
            Some(Socket::Listener(listener)) => {
                for unaccepted in listener.backlog {
                    self.close(unaccepted, true);
                }
            }
            Some(Socket::Stream(stream)) => {
                if let Some(Ok(peer)) = stream.peer.map(|peer| self.stream(peer)) {
                    peer.peer = None;
                    peer.ended = true;
                    // Bytes that nobody read tell the peer that they were lost.
                    peer.reset = reset || !stream.inbox.is_empty();
                }
            }
            Some(Socket::Fresh { .. }) | None => {}
        }
    }
}

impl Stream {
    fn new(local: SocketAddr, remote: SocketAddr, peer: Fd, nodelay: bool) -> Stream {
        Stream {
            local,
            remote,
            peer: Some(peer),
            inbox: VecDeque::new(),
            ended: false,
            reset: false,
            write_shut: false,
            nodelay,
        }
    }
}
