//! Connection setup and teardown: listeners, backlogs, connect and close. Unix connections share it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use super::addr::{as_seen_by, unmapped};
use super::conn::{Conn, End, Transport};
use super::{Addr, Attempt, Network, Protocol, Socket, State};
use crate::sys::{Direction, Fd, Name, errno};

/// A listening socket.
pub(super) struct Listener {
    pub(super) addr: Addr,
    /// Connections that were not accepted yet.
    pub(super) backlog: VecDeque<Fd>,
    pub(super) backlog_max: usize,
    /// Sockets whose connect waits for space in the backlog.
    connecting: Vec<Fd>,
}

impl Network {
    pub(super) fn listen(&mut self, fd: Fd, backlog: i32) -> Result<(), i32> {
        // Linux holds one connection more than it was asked for.
        let backlog_max = backlog.max(0) as usize + 1;
        let socket = self.socket(fd)?;
        let (host, is_shared) = (socket.host, socket.options.reuses_port());
        let addr = match &mut socket.state {
            State::Fresh(Addr::Inet(local)) if local.port() > 0 => Addr::Inet(*local),
            State::Fresh(Addr::Unix(Some(name))) => Addr::Unix(Some(name.clone())),
            State::Listener(listener) => {
                listener.backlog_max = backlog_max;
                return Ok(());
            }
            _ => return Err(errno::INVALID),
        };
        if let Addr::Inet(addr) = addr
            && self.is_taken(host, Protocol::Tcp, addr, is_shared)
        {
            return Err(errno::IN_USE);
        }
        self.socket(fd)?.state = State::Listener(Listener {
            addr,
            backlog: VecDeque::new(),
            backlog_max,
            connecting: Vec::new(),
        });
        Ok(())
    }

    pub(crate) fn accept(&mut self, fd: Fd) -> Attempt<Fd> {
        let (host, is_waiting) = match self.socket(fd).map(|socket| (socket.host, &socket.state)) {
            Ok((host, State::Listener(listener))) => (host, !listener.backlog.is_empty()),
            Ok(_) => return Some(Err(errno::INVALID)),
            Err(code) => return Some(Err(code)),
        };
        if is_waiting && let Err(code) = self.check_memory(host) {
            return Some(Err(code));
        }
        let (accepted, connecting) = match self.socket(fd).map(|socket| &mut socket.state) {
            Ok(State::Listener(listener)) => {
                let accepted = listener.backlog.pop_front()?;
                (accepted, listener.connecting.first().copied())
            }
            Ok(_) => return Some(Err(errno::INVALID)),
            Err(code) => return Some(Err(code)),
        };
        if let Ok(socket) = self.socket(accepted) {
            socket.is_open = true;
        }
        // There is space for one more.
        if let Some(connecting) = connecting {
            self.touch(connecting, Direction::Write);
        }
        Some(Ok(accepted))
    }

    pub(crate) fn connect(&mut self, fd: Fd, to: &Name) -> Attempt<()> {
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(code) => return Some(Err(code)),
        };
        let local = match &socket.state {
            State::Datagrams(_) => return Some(self.connect_datagrams(fd, to)),
            State::Fresh(local) => local.clone(),
            State::Connecting { local, listener } => {
                let (local, listener) = (local.clone(), *listener);
                self.stop_connecting(listener, fd);
                local
            }
            State::SynSent(_) => return self.syn_result(fd),
            State::Stream { .. } if std::mem::take(&mut socket.is_connecting) => return Some(Ok(())),
            State::Listener(_) | State::Stream { .. } => return Some(Err(errno::INVALID)),
        };
        let connected = match (local.clone(), to.as_socket()) {
            (Addr::Inet(local), Some(to)) if self.wire.is_some() => {
                return self.send_first_syn(fd, local, to).err().map(Err);
            }
            (Addr::Inet(local), Some(to)) => self.connect_tcp(fd, local, to),
            (Addr::Unix(local), None) => self.connect_unix(fd, local, to),
            (Addr::Inet(_) | Addr::Unix(_), _) => Err(errno::NO_FAMILY),
        };
        let state = match connected {
            Ok(Setup::Connected) => return Some(Ok(())),
            Ok(Setup::Full(listener)) => State::Connecting { local, listener },
            Err(_) => State::Fresh(local),
        };
        self.socket(fd).ok()?.state = state;
        connected.err().map(Err)
    }

    fn connect_tcp(&mut self, fd: Fd, local: SocketAddr, to: SocketAddr) -> Result<Setup, i32> {
        if local.is_ipv4() != to.is_ipv4() {
            return Err(errno::NO_FAMILY);
        }
        let host = self.socket(fd)?.host;
        let seen = Network::destination(to);
        let to = unmapped(seen);
        let mut from = match local.ip().is_unspecified() {
            true => SocketAddr::new(self.source_for(host, to.ip()), local.port()),
            false => unmapped(local),
        };
        let server_host = self.host_at(host, to.ip()).ok_or(errno::HOST_UNREACHABLE)?;
        let is_unbound = from.port() == 0;
        if is_unbound {
            from.set_port(self.free_port(host, Protocol::Tcp)?);
        }
        let listener = self.socket_at(server_host, Protocol::Tcp, to, from);
        let listener = listener.ok_or(errno::REFUSED)?;
        if self.is_full(listener, fd)? {
            return Ok(Setup::Full(listener));
        }
        if is_unbound {
            self.use_port(host, Protocol::Tcp, from.port(), fd);
        }
        let listens_at = self.local_addr(listener)?.inet().ok_or(errno::REFUSED)?;
        let server = (as_seen_by(listens_at, to), as_seen_by(listens_at, from));
        let client = (as_seen_by(local, from), as_seen_by(local, seen));
        let inet = |(local, remote)| (Addr::Inet(local), Addr::Inet(remote));
        self.establish(Transport::Tcp, fd, listener, inet(client), inet(server))
    }

    fn connect_unix(&mut self, fd: Fd, local: Option<Rc<[u8]>>, to: &Name) -> Result<Setup, i32> {
        let host = self.socket(fd)?.host;
        let listener = self.listener_named(host, to)?;
        if self.is_full(listener, fd)? {
            return Ok(Setup::Full(listener));
        }
        let (from, at) = (Addr::Unix(local), self.local_addr(listener)?);
        self.establish(Transport::Unix, fd, listener, (from.clone(), at.clone()), (at, from))
    }

    /// Whether a listener's backlog is full. The socket then waits for space there.
    fn is_full(&mut self, listener: Fd, fd: Fd) -> Result<bool, i32> {
        let State::Listener(listener) = &mut self.socket(listener)?.state else {
            return Err(errno::REFUSED);
        };
        let is_full = listener.backlog.len() >= listener.backlog_max;
        if is_full {
            listener.connecting.push(fd);
        }
        Ok(is_full)
    }

    /// Connects a socket with a new one in the listener's backlog. Each end has its local and its remote address.
    fn establish(
        &mut self,
        transport: Transport,
        fd: Fd,
        listener: Fd,
        client: (Addr, Addr),
        server: (Addr, Addr),
    ) -> Result<Setup, i32> {
        let listening = self.socket(listener)?;
        // As on Linux, an accepted socket inherits the listener's options.
        let (host, options) = (listening.host, listening.options.clone());
        let mut socket = Socket::new(host, State::Fresh(server.0.clone()));
        (socket.options, socket.is_open) = (options, false);
        let server_fd = self.add(socket);
        let ends = [
            End::new(fd, host, client.0, client.1),
            End::new(server_fd, host, server.0, server.1),
        ];
        let serial = self.next_serial();
        let conn = self.conns.insert(Conn::new(serial, transport, ends));
        for (end, fd) in [fd, server_fd].into_iter().enumerate() {
            self.socket(fd)?.state = State::Stream { conn, end };
        }
        self.resize(fd);
        if let State::Listener(listener) = &mut self.socket(listener)?.state {
            listener.backlog.push_back(server_fd);
        }
        self.touch(listener, Direction::Read);
        Ok(Setup::Connected)
    }

    /// A socket no longer waits for space in a backlog; the next one that waits may use it.
    pub(super) fn stop_connecting(&mut self, listener: Fd, fd: Fd) {
        let Ok(State::Listener(listener)) = self.socket(listener).map(|socket| &mut socket.state) else {
            return;
        };
        listener.connecting.retain(|other| *other != fd);
        let next = listener.connecting.first().copied();
        if let Some(next) = next.filter(|_| listener.backlog.len() < listener.backlog_max) {
            self.touch(next, Direction::Write);
        }
    }

    /// Connections that were not accepted are reset, and waiting ones refused.
    pub(super) fn close_listener(&mut self, listener: Listener) {
        for unaccepted in listener.backlog {
            self.close(unaccepted, true);
        }
        for connecting in listener.connecting {
            self.touch(connecting, Direction::Write);
        }
    }
}

/// The result of an attempt to connect.
enum Setup {
    Connected,
    /// The backlog of this listener is full.
    Full(Fd),
}
