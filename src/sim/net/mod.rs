//! The in-memory network: TCP, UDP, Unix sockets and pipes, with the kernel's error codes and bounded queues.
//!
//! An operation that cannot complete waits in its socket, in its direction. Whatever changes the socket's state moves
//! the waiting operations to `woken`, and their loops try them again in their next poll. No operation is looked at
//! while nothing happens to its socket.

mod addr;
mod bytes;
mod conn;
mod handshake;
mod hosts;
mod keep_alive;
mod limits;
mod options;
mod packets;
mod rare;
mod segments;
mod stream;
mod table;
mod tcp;
mod transit;
mod udp;
mod unix;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};

use self::addr::{Addr, as_seen_by, loopback_like, unmapped};
pub(super) use self::bytes::ByteQueue;
use self::conn::{Conn, Transport};
use self::handshake::SynSent;
use self::limits::Limits;
use self::options::Options;
pub(super) use self::table::Table;
use self::tcp::Listener;
use self::udp::{Datagrams, Packet};
use self::unix::Names;
use self::wire::{ConnKey, KeyHasher, SocketKey};
pub(super) use self::wire::{NetEvent, Wire};
use crate::driver::{Control, FdSpace, Reply, SocketKind};
use crate::rand::mix;
use crate::sys::{Credentials, Direction, Fd, Name, errno};

/// The result of an operation; `None` if it cannot complete yet.
pub(super) type Attempt<T> = Option<Result<T, i32>>;

/// An operation in flight: its loop, and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) loop_index: u32,
    pub(super) slot: u32,
}

/// The sockets of all hosts.
#[derive(Default)]
pub(super) struct Network {
    sockets: Table<Socket>,
    conns: Table<Conn>,
    hosts: Vec<HostNet>,
    /// Operations that can be tried again.
    pub(super) woken: Vec<Waiter>,
    /// Empty buffers of datagrams, for the next ones.
    spare: Vec<Vec<u8>>,
    /// The number of sockets and connections made so far.
    serial: u32,
    /// Datagrams on their way.
    packets: Table<Packet>,
    /// The hosts of a world by address: see `address_key`. Not iterated.
    addrs: HashMap<u128, u16, BuildHasherDefault<KeyHasher>>,
    /// What is between the hosts of a world; `None` for a host on its own, where everything arrives at once.
    pub(super) wire: Option<Box<Wire>>,
}

/// The addresses in use on one host.
#[derive(Default)]
struct HostNet {
    /// Sockets by port: bound ones, listeners, and clients; not accepted connections, which share their listener's.
    ports: BTreeMap<(Protocol, u16), Vec<Fd>>,
    last_port: u16,
    names: Names,
    /// Its addresses in a world, besides the loopback ones.
    addrs: Vec<IpAddr>,
    /// The host has no power.
    is_down: bool,
    /// A full backlog refuses connections instead of ignoring them: `tcp_abort_on_overflow`.
    aborts_on_overflow: bool,
    limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Protocol {
    Tcp,
    Udp,
}

struct Socket {
    host: u16,
    /// Tells it from earlier sockets with the same number.
    serial: u32,
    /// Its connect has not been reported yet.
    is_connecting: bool,
    /// The process has it: not a connection that it has not accepted yet.
    is_open: bool,
    /// How many other loops of its process have it. The last one that closes it closes the socket, as with descriptors
    /// of one socket in the kernel.
    shares: u32,
    options: Options,
    /// The operations that wait, by direction, in the order in which they are tried.
    waiters: [Vec<Waiter>; 2],
    state: State,
}

enum State {
    /// A stream socket that is neither listening nor connected, with its address: port 0 if it is not bound.
    Fresh(Addr),
    /// A socket whose connect waits for space in the backlog of this listener.
    Connecting {
        local: Addr,
        listener: Fd,
    },
    /// A socket whose connect waits for an answer of another host.
    SynSent(SynSent),
    Listener(Listener),
    Stream {
        conn: u32,
        end: usize,
    },
    Datagrams(Datagrams),
}

impl Socket {
    fn new(host: u16, state: State) -> Socket {
        Socket {
            host,
            serial: 0,
            is_connecting: false,
            is_open: true,
            shares: 0,
            options: Options::default(),
            waiters: [Vec::new(), Vec::new()],
            state,
        }
    }
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}

/// The last port that is given out to a socket that is not bound; as on Linux, with the first one below.
const LAST_EPHEMERAL: u16 = 60_999;
const FIRST_EPHEMERAL: u16 = 32_768;

impl Network {
    /// Adds a host and returns its number.
    pub(super) fn add_host(&mut self) -> u16 {
        self.hosts.push(HostNet::default());
        self.hosts.len() as u16 - 1
    }

    /// Carries out a control call of a host's loop.
    pub(super) fn control(&mut self, host: u16, call: Control<'_>) -> Result<Reply, i32> {
        match call {
            Control::Socket { kind } => {
                self.check_memory(host)?;
                Ok(Reply::Fd(self.new_socket(host, kind)))
            }
            Control::Pair { kind } => self.pair(host, kind).map(|(one, other)| Reply::Pair(one, other)),
            Control::Pipe => {
                let (reader, writer) = self.connected(host, Transport::Pipe);
                Ok(Reply::Pair(reader, writer))
            }
            Control::PeerCredentials { fd } => self.credentials(fd).map(Reply::Credentials),
            Control::Bind { fd, name } => self.bind(fd, name).map(|()| Reply::Done),
            Control::Listen { fd, backlog } => self.listen(fd, backlog).map(|()| Reply::Done),
            // Another loop shares a socket of the process. A socket that was made elsewhere is the kernel's: not found.
            Control::Adopt { fd } => {
                self.socket(fd)?.shares += 1;
                Ok(Reply::Done)
            }
            Control::Watch { fd } => self.socket(fd).map(|_| Reply::Done),
            Control::Forget { .. } => Ok(Reply::Done),
            Control::Seek { .. } => Err(errno::INVALID),
            Control::LocalName { fd } => self.local_addr(fd).map(|addr| Reply::Name(addr.to_name())),
            Control::PeerName { fd } => self.peer_addr(fd).map(|addr| Reply::Name(addr.to_name())),
            Control::SetOption { fd, option } => {
                self.socket(fd)?.options.set(option);
                self.option_changed(fd, option);
                Ok(Reply::Done)
            }
            Control::Option { fd, like } => self.socket(fd)?.options.get(like).map(Reply::Option),
            Control::Shutdown { fd, how } => self.shutdown(fd, how).map(|()| Reply::Done),
            Control::Close { fd } => {
                match self.socket(fd) {
                    Ok(socket) if socket.shares > 0 => socket.shares -= 1,
                    _ => self.close(fd, false),
                }
                Ok(Reply::Done)
            }
            Control::Reset { fd } => {
                self.close(fd, true);
                Ok(Reply::Done)
            }
        }
    }

    /// Descriptors have high numbers, so that they cannot be confused with the kernel's.
    fn add(&mut self, mut socket: Socket) -> Fd {
        socket.serial = self.next_serial();
        FdSpace::FIRST_OWN + self.sockets.insert(socket) as Fd
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    fn new_socket(&mut self, host: u16, kind: SocketKind) -> Fd {
        let any = |v4: bool| match v4 {
            true => Addr::Inet(SocketAddr::from(([0; 4], 0))),
            false => Addr::Inet(SocketAddr::from(([0; 16], 0))),
        };
        let state = match kind {
            SocketKind::TcpV4 => State::Fresh(any(true)),
            SocketKind::TcpV6 => State::Fresh(any(false)),
            SocketKind::UdpV4 => State::Datagrams(Datagrams::new(any(true))),
            SocketKind::UdpV6 => State::Datagrams(Datagrams::new(any(false))),
            SocketKind::UnixStream => State::Fresh(Addr::Unix(None)),
            SocketKind::UnixDatagram => State::Datagrams(Datagrams::new(Addr::Unix(None))),
        };
        self.add(Socket::new(host, state))
    }

    #[inline]
    fn socket(&mut self, fd: Fd) -> Result<&mut Socket, i32> {
        let index = fd.checked_sub(FdSpace::FIRST_OWN).ok_or(errno::BAD_FD)?;
        self.sockets.get_mut(index as u32).ok_or(errno::BAD_FD)
    }

    /// Makes a receive wait if nothing can be received, not even an error: from another host through a connection, or
    /// through a datagram socket of a world.
    #[inline]
    pub(super) fn wait_if_empty(&mut self, fd: Fd, waiter: Waiter) -> bool {
        let at = fd - FdSpace::FIRST_OWN;
        let Some(socket) = self.sockets.get_mut(at as u32) else {
            return false;
        };
        let must_wait = match &socket.state {
            &State::Stream { conn, end } => {
                let conn = self.conns.get(conn);
                conn.is_some_and(|conn| conn.is_wired && !conn.can_recv(end))
            }
            State::Datagrams(datagrams) => self.wire.is_some() && !datagrams.can_recv(),
            _ => false,
        };
        if must_wait {
            socket.waiters[index(Direction::Read)].push(waiter);
        }
        must_wait
    }

    /// Makes an operation wait until its socket's state changes.
    pub(super) fn wait(&mut self, fd: Fd, direction: Direction, waiter: Waiter) {
        match self.socket(fd) {
            Ok(socket) => socket.waiters[index(direction)].push(waiter),
            Err(_) => self.woken.push(waiter),
        }
    }

    /// Ends the wait of an operation.
    pub(super) fn stop_waiting(&mut self, fd: Fd, direction: Direction, waiter: Waiter) {
        if let Ok(socket) = self.socket(fd) {
            socket.waiters[index(direction)].retain(|other| *other != waiter);
        }
    }

    /// A direction of a socket has changed: its operations are tried again.
    #[inline(always)]
    fn touch(&mut self, fd: Fd, direction: Direction) {
        let at = fd - FdSpace::FIRST_OWN;
        if let Some(socket) = self.sockets.get_mut(at as u32) {
            let waiters = &mut socket.waiters[index(direction)];
            match waiters[..] {
                [] => {}
                [waiter] => {
                    self.woken.push(waiter);
                    waiters.clear();
                }
                _ => self.woken.append(waiters),
            }
        }
    }

    fn touch_both(&mut self, fd: Fd) {
        self.touch(fd, Direction::Read);
        self.touch(fd, Direction::Write);
    }

    /// Whether a descriptor is readable or writable, or has an error.
    pub(super) fn is_ready(&mut self, fd: Fd, direction: Direction) -> Attempt<u32> {
        let socket = match self.socket(fd) {
            Ok(socket) => socket,
            Err(code) => return Some(Err(code)),
        };
        let is_ready = match (&socket.state, direction) {
            (State::Fresh(_), _) => true,
            (State::Connecting { .. } | State::SynSent(_), _) => false,
            (State::Listener(listener), Direction::Read) => !listener.backlog.is_empty(),
            (State::Listener(_), Direction::Write) => true,
            (State::Datagrams(datagrams), Direction::Read) => datagrams.can_recv(),
            (State::Datagrams(_), Direction::Write) => return self.can_send_datagram(fd).then_some(Ok(0)),
            (&State::Stream { conn, end }, Direction::Read) => self.conn(conn).can_recv(end),
            (&State::Stream { conn, end }, Direction::Write) => self.conn(conn).can_send(end),
        };
        is_ready.then_some(Ok(0))
    }

    fn local_addr(&mut self, fd: Fd) -> Result<Addr, i32> {
        Ok(match &self.socket(fd)?.state {
            State::Fresh(local) | State::Connecting { local, .. } => local.clone(),
            State::SynSent(sent) => Addr::Inet(sent.local),
            State::Listener(listener) => listener.addr.clone(),
            State::Datagrams(datagrams) => datagrams.local.clone(),
            &State::Stream { conn, end } => self.conn(conn).ends[end].local.clone(),
        })
    }

    fn peer_addr(&mut self, fd: Fd) -> Result<Addr, i32> {
        match &self.socket(fd)?.state {
            State::Datagrams(datagrams) => datagrams.peer.clone().ok_or(errno::NOT_CONNECTED),
            State::Fresh(_) | State::Connecting { .. } | State::SynSent(_) | State::Listener(_) => {
                Err(errno::NOT_CONNECTED)
            }
            &State::Stream { conn, end } => {
                let conn = self.conn(conn);
                match conn.ends[end].is_over && conn.transport == Transport::Tcp {
                    true => Err(errno::NOT_CONNECTED),
                    false => Ok(conn.ends[end].remote.clone()),
                }
            }
        }
    }

    /// There is one user and one process: this one.
    fn credentials(&mut self, fd: Fd) -> Result<Credentials, i32> {
        let State::Stream { conn, .. } = self.socket(fd)?.state else {
            return Err(errno::INVALID);
        };
        match self.conn(conn).transport {
            Transport::Unix => Ok(Credentials {
                user: 0,
                group: 0,
                process: Some(std::process::id()),
            }),
            Transport::Tcp | Transport::Pipe => Err(errno::INVALID),
        }
    }

    /// The host that has this address, as seen from `host`. A host on its own has every address.
    fn host_at(&self, host: u16, addr: IpAddr) -> Option<u16> {
        match self.wire.is_none() || addr.is_loopback() {
            true => Some(host),
            false => self.addrs.get(&address_key(addr)).copied(),
        }
    }

    /// The address from which `host` sends to this one.
    fn source_for(&self, host: u16, to: IpAddr) -> IpAddr {
        let addrs = &self.hosts[usize::from(host)].addrs;
        let own = addrs.iter().find(|own| own.is_ipv4() == to.is_ipv4());
        match own {
            Some(own) if !to.is_loopback() => *own,
            _ => loopback_like(to),
        }
    }

    /// Whether a socket of `host` can be bound to this address.
    fn is_local(&self, host: u16, addr: IpAddr) -> bool {
        let is_own = || self.hosts[usize::from(host)].addrs.contains(&addr);
        self.wire.is_none() || addr.is_unspecified() || addr.is_loopback() || is_own()
    }

    fn bind(&mut self, fd: Fd, name: &Name) -> Result<(), i32> {
        let socket = self.socket(fd)?;
        let (host, is_shared) = (socket.host, socket.options.reuses_port());
        let (local, protocol) = match &socket.state {
            State::Fresh(local) => (local.clone(), Protocol::Tcp),
            State::Datagrams(datagrams) => (datagrams.local.clone(), Protocol::Udp),
            State::Connecting { .. } | State::SynSent(_) | State::Listener(_) | State::Stream { .. } => {
                return Err(errno::INVALID);
            }
        };
        let addr = match (&local, name.as_socket()) {
            (Addr::Unix(Some(_)), _) => return Err(errno::INVALID),
            (Addr::Unix(None), None) => Addr::Unix(Some(self.bind_name(host, fd, name)?)),
            (Addr::Unix(None), Some(_)) => return Err(errno::INVALID),
            (Addr::Inet(_), None) => return Err(errno::NO_FAMILY),
            (Addr::Inet(local), Some(_)) if local.port() > 0 => return Err(errno::INVALID),
            (Addr::Inet(local), Some(addr)) if local.is_ipv4() != addr.is_ipv4() => return Err(errno::NO_FAMILY),
            (Addr::Inet(_), Some(addr)) if !self.is_local(host, addr.ip()) => return Err(errno::NOT_AVAILABLE),
            (Addr::Inet(_), Some(mut addr)) => {
                if addr.port() == 0 {
                    addr.set_port(self.free_port(host, protocol)?);
                } else if self.is_taken(host, protocol, addr, is_shared) {
                    return Err(errno::IN_USE);
                }
                self.use_port(host, protocol, addr.port(), fd);
                Addr::Inet(addr)
            }
        };
        match &mut self.socket(fd)?.state {
            State::Fresh(local) => *local = addr,
            State::Datagrams(datagrams) => datagrams.local = addr,
            State::Connecting { .. } | State::SynSent(_) | State::Listener(_) | State::Stream { .. } => {}
        }
        Ok(())
    }

    /// Whether another socket excludes binding to this address. A stream socket excludes others only while it listens.
    fn is_taken(&mut self, host: u16, protocol: Protocol, addr: SocketAddr, is_shared: bool) -> bool {
        let sockets = &self.sockets;
        let Some(fds) = self.hosts[usize::from(host)].ports.get(&(protocol, addr.port())) else {
            return false;
        };
        fds.iter().any(|fd| {
            let Some(socket) = sockets.get((fd - FdSpace::FIRST_OWN) as u32) else {
                return false;
            };
            let bound = match &socket.state {
                State::Listener(listener) => listener.addr.inet(),
                State::Datagrams(datagrams) => datagrams.local.inet(),
                State::Fresh(_) | State::Connecting { .. } | State::SynSent(_) | State::Stream { .. } => None,
            };
            let both_share = is_shared && socket.options.reuses_port();
            bound.is_some_and(|bound| overlaps(bound, addr)) && !both_share
        })
    }

    fn use_port(&mut self, host: u16, protocol: Protocol, port: u16, fd: Fd) {
        self.hosts[usize::from(host)]
            .ports
            .entry((protocol, port))
            .or_default()
            .push(fd);
    }

    /// A socket no longer uses an address.
    fn release(&mut self, host: u16, protocol: Protocol, addr: &Addr, fd: Fd) {
        let addr = match addr {
            Addr::Inet(addr) => addr,
            Addr::Unix(Some(name)) => return self.close_name(host, name, fd),
            Addr::Unix(None) => return,
        };
        let ports = &mut self.hosts[usize::from(host)].ports;
        let key = (protocol, addr.port());
        if let Some(fds) = ports.get_mut(&key) {
            fds.retain(|other| *other != fd);
            if fds.is_empty() {
                ports.remove(&key);
            }
        }
    }

    fn free_port(&mut self, host: u16, protocol: Protocol) -> Result<u16, i32> {
        let host = &mut self.hosts[usize::from(host)];
        for _ in FIRST_EPHEMERAL..=LAST_EPHEMERAL {
            host.last_port = match host.last_port {
                0 | LAST_EPHEMERAL => FIRST_EPHEMERAL,
                port => port + 1,
            };
            if !host.ports.contains_key(&(protocol, host.last_port)) {
                return Ok(host.last_port);
            }
        }
        Err(errno::IN_USE)
    }

    /// The socket that gets what is sent to this address: a listener, or a datagram socket that is not connected to
    /// another one. Of several that share it, one that is connected to the sender wins; otherwise the sender's address
    /// decides, as the kernel's hash does.
    fn socket_at(&mut self, host: u16, protocol: Protocol, addr: SocketAddr, from: SocketAddr) -> Option<Fd> {
        let addr = unmapped(addr);
        let sockets = &self.sockets;
        let fds = self.hosts[usize::from(host)].ports.get(&(protocol, addr.port()))?;
        let rank = |fd: Fd| {
            let socket = sockets.get((fd - FdSpace::FIRST_OWN) as u32)?;
            let (bound, peer) = match &socket.state {
                State::Listener(listener) => (listener.addr.inet()?, None),
                State::Datagrams(datagrams) => (datagrams.local.inet()?, datagrams.peer.as_ref().and_then(Addr::inet)),
                State::Fresh(_) | State::Connecting { .. } | State::SynSent(_) | State::Stream { .. } => return None,
            };
            let is_only_v6 = socket.options.is_only_v6();
            let connected = match peer {
                None => 0,
                Some(peer) if peer == as_seen_by(bound, from) => 3,
                Some(_) => return None,
            };
            let specific = match (bound.ip(), addr.ip()) {
                (bound, addr) if bound == addr => Some(2),
                (IpAddr::V4(bound), IpAddr::V4(_)) if bound.is_unspecified() => Some(1),
                (IpAddr::V6(bound), IpAddr::V6(_)) if bound.is_unspecified() => Some(1),
                (IpAddr::V6(bound), IpAddr::V4(_)) if bound.is_unspecified() && !is_only_v6 => Some(0),
                _ => None,
            };
            specific.map(|specific| connected + specific)
        };
        if let &[fd] = &fds[..] {
            return rank(fd).map(|_| fd);
        }
        // A more specific address wins.
        let best = fds.iter().filter_map(|fd| rank(*fd)).max()?;
        let sharing = || fds.iter().copied().filter(|fd| rank(*fd) == Some(best));
        match sharing().count() as u64 {
            1 => sharing().next(),
            count => sharing().nth((self.hash_of(from) % count) as usize),
        }
    }

    /// The hash of a sender's address, which the seed of the run salts as the kernel salts its own at boot.
    fn hash_of(&self, from: SocketAddr) -> u64 {
        let ip = match from.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => mix((ip.to_bits() >> 64) as u64) ^ ip.to_bits() as u64,
        };
        mix(mix(ip ^ self.wire.as_ref().map_or(0, |wire| wire.hash_salt)) ^ u64::from(from.port()))
    }

    /// The address that a packet to `to` has: the unspecified one means this host.
    fn destination(to: SocketAddr) -> SocketAddr {
        match to.ip().is_unspecified() {
            true => SocketAddr::new(loopback_like(to.ip()), to.port()),
            false => to,
        }
    }

    pub(super) fn close(&mut self, fd: Fd, reset: bool) {
        self.touch_both(fd);
        let at = (fd - FdSpace::FIRST_OWN) as u32;
        let Some(socket) = self.sockets.remove(at) else { return };
        let host = socket.host;
        let reset = reset || socket.options.resets_on_close();
        match socket.state {
            State::Fresh(local) => self.release(host, Protocol::Tcp, &local, fd),
            State::Connecting { local, listener } => {
                self.release(host, Protocol::Tcp, &local, fd);
                self.stop_connecting(listener, fd);
            }
            State::SynSent(sent) => self.release(host, Protocol::Tcp, &Addr::Inet(sent.from), fd),
            State::Listener(listener) => {
                self.release(host, Protocol::Tcp, &listener.addr, fd);
                self.close_listener(listener);
            }
            State::Stream { conn, end } => self.close_stream(host, fd, conn, end, reset),
            State::Datagrams(datagrams) => {
                self.release(host, Protocol::Udp, &datagrams.local, fd);
                self.close_datagrams(fd, datagrams);
            }
        }
    }
}

/// An address as a number. No host has an IPv6 address that begins like the number of an IPv4 address.
fn address_key(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => 1 << 127 | u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

/// Whether two sockets cannot be bound to these addresses with one port at the same time.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
