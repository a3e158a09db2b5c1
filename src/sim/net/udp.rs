//! Datagrams: UDP, and Unix datagram sockets. Boundaries are kept. A full queue drops a UDP datagram, and makes the
//! sender of a Unix datagram wait.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::addr::{as_seen_by, unmapped};
use super::conn::STREAM_CAPACITY;
use super::{Addr, Attempt, Network, Protocol, State};
use crate::sys::{Direction, Fd, Foreign, Name, errno};

/// The largest payload of a UDP datagram over IPv4.
const MAX_DATAGRAM: usize = 65_507;
/// The largest Unix datagram: what a send buffer holds.
const MAX_UNIX_DATAGRAM: usize = 3 * STREAM_CAPACITY;
/// How many bytes a UDP socket's queue holds.
const MAX_QUEUED: usize = 4 * STREAM_CAPACITY;
/// How many datagrams a Unix socket's queue holds, as on Linux.
const MAX_UNIX_QUEUED: usize = 10;
/// How many empty buffers are kept for later datagrams, and how long they are at most.
const MAX_SPARE: usize = 8_192;
const MAX_SPARE_LEN: usize = 2_048;

/// A datagram socket.
pub(super) struct Datagrams {
    pub(super) local: Addr,
    pub(super) peer: Option<Addr>,
    /// The socket that a Unix datagram socket is connected to.
    peer_fd: Option<Fd>,
    queue: VecDeque<Datagram>,
    /// The length of the queued datagrams in bytes, each at least 1.
    queued: usize,
    /// The connected peer did not exist at the last send: the next receive returns ECONNREFUSED, once.
    pub(super) refused: bool,
    /// The Unix sockets that are connected to this one.
    senders: Vec<Fd>,
}

/// A datagram in a queue.
pub(crate) struct Datagram {
    from: Addr,
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<Foreign>,
}

/// A UDP datagram on its way.
pub(super) struct Packet {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// The sender's and the receiver's host, and the link between them.
    pub(super) hosts: (u16, u16),
    pub(super) link: u32,
    pub(super) bytes: Vec<u8>,
}

impl Datagram {
    pub(crate) fn sender(&self) -> Name {
        self.from.to_name()
    }
}

impl Datagrams {
    pub(super) fn new(local: Addr) -> Datagrams {
        Datagrams {
            local,
            peer: None,
            peer_fd: None,
            queue: VecDeque::new(),
            queued: 0,
            refused: false,
            senders: Vec::new(),
        }
    }

    pub(super) fn can_recv(&self) -> bool {
        !self.queue.is_empty() || self.refused
    }

    fn push(&mut self, from: Addr, bytes: Vec<u8>, descriptors: Vec<Foreign>) {
        self.queued += bytes.len().max(1);
        self.queue.push_back(Datagram {
            from,
            bytes,
            descriptors,
        });
    }
}

impl Network {
    pub(super) fn datagrams(&mut self, fd: Fd) -> Result<&mut Datagrams, i32> {
        match &mut self.socket(fd)?.state {
            State::Datagrams(datagrams) => Ok(datagrams),
            State::Fresh(_)
            | State::Connecting { .. }
            | State::SynSent(_)
            | State::Listener(_)
            | State::Stream { .. } => Err(errno::INVALID),
        }
    }

    pub(crate) fn is_datagram_socket(&mut self, fd: Fd) -> bool {
        self.datagrams(fd).is_ok()
    }

    /// Connects two Unix datagram sockets.
    pub(super) fn join_datagrams(&mut self, one: Fd, other: Fd) -> Result<(), i32> {
        for (fd, peer) in [(one, other), (other, one)] {
            let datagrams = self.datagrams(fd)?;
            datagrams.peer = Some(Addr::Unix(None));
            datagrams.peer_fd = Some(peer);
            datagrams.senders.push(peer);
        }
        Ok(())
    }

    pub(super) fn connect_datagrams(&mut self, fd: Fd, to: &Name) -> Result<(), i32> {
        let (is_unix, to) = (matches!(self.datagrams(fd)?.local, Addr::Unix(_)), to);
        match (is_unix, to.as_socket()) {
            (false, Some(to)) => {
                let from = self.bind_if_unbound(fd, to)?;
                let datagrams = self.datagrams(fd)?;
                // From now on the socket has the address that it sends from, and receives only there.
                if let Some(local) = datagrams.local.inet().filter(|local| local.ip().is_unspecified()) {
                    datagrams.local = Addr::Inet(as_seen_by(local, from));
                }
                datagrams.peer = Some(Addr::Inet(Network::destination(to)));
                datagrams.refused = false;
                Ok(())
            }
            (true, None) => {
                let host = self.socket(fd)?.host;
                let peer = self.datagrams_named(host, to)?;
                let receiver = self.datagrams(peer)?;
                receiver.senders.push(fd);
                let addr = receiver.local.clone();
                let datagrams = self.datagrams(fd)?;
                datagrams.peer = Some(addr);
                let old = datagrams.peer_fd.replace(peer);
                self.disconnect(fd, old.filter(|old| *old != peer));
                self.touch(fd, Direction::Write);
                Ok(())
            }
            (false, None) | (true, Some(_)) => Err(errno::NO_FAMILY),
        }
    }

    /// A socket is no longer connected to its old peer.
    fn disconnect(&mut self, fd: Fd, old: Option<Fd>) {
        if let Some(Ok(old)) = old.map(|old| self.datagrams(old)) {
            old.senders.retain(|sender| *sender != fd);
        }
    }

    /// Binds a UDP socket that is not bound yet. Returns its address as the receiver at `to` sees it.
    fn bind_if_unbound(&mut self, fd: Fd, to: SocketAddr) -> Result<SocketAddr, i32> {
        let host = self.socket(fd)?.host;
        let local = self.datagrams(fd)?.local.inet().ok_or(errno::INVALID)?;
        if local.is_ipv4() != to.is_ipv4() {
            return Err(errno::NO_FAMILY);
        }
        let to = unmapped(Network::destination(to));
        let mut from = local;
        if from.port() == 0 {
            from.set_port(self.free_port(host, Protocol::Udp)?);
            self.use_port(host, Protocol::Udp, from.port(), fd);
            self.datagrams(fd)?.local = Addr::Inet(from);
        }
        Ok(match from.ip().is_unspecified() {
            true => SocketAddr::new(self.source_for(host, to.ip()), from.port()),
            false => unmapped(from),
        })
    }

    /// Whether a send of this datagram socket need not wait: only the queue of a connected Unix socket can be full.
    pub(super) fn can_send_datagram(&mut self, fd: Fd) -> bool {
        let Some(peer) = self.datagrams(fd).ok().and_then(|datagrams| datagrams.peer_fd) else {
            return true;
        };
        match self.datagrams(peer) {
            Ok(receiver) => receiver.queue.len() < MAX_UNIX_QUEUED,
            Err(_) => true,
        }
    }

    /// Sends to `to`, or to the peer that the socket is connected to. `None` if a Unix socket's queue is full.
    pub(crate) fn send_datagram(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<&Name>,
        descriptors: Vec<Foreign>,
    ) -> Attempt<u32> {
        let sent = match self.datagrams(fd).map(|datagrams| &datagrams.local) {
            Ok(Addr::Inet(_)) => self.send_udp(fd, bytes, to.and_then(Name::as_socket)),
            Ok(Addr::Unix(_)) => match self.send_unix(fd, bytes, to, descriptors) {
                Ok(false) => return None,
                Ok(true) => Ok(()),
                Err(code) => Err(code),
            },
            Err(code) => Err(code),
        };
        Some(sent.map(|()| bytes.len() as u32))
    }

    fn send_udp(&mut self, fd: Fd, bytes: &[u8], to: Option<SocketAddr>) -> Result<(), i32> {
        let host = self.socket(fd)?.host;
        let sender = self.datagrams(fd)?;
        if std::mem::take(&mut sender.refused) {
            return Err(errno::REFUSED);
        }
        let connected = sender.peer.as_ref().and_then(Addr::inet);
        let to = to
            .map(Network::destination)
            .or(connected)
            .ok_or(errno::NO_DESTINATION)?;
        if bytes.len() > MAX_DATAGRAM {
            return Err(errno::TOO_LONG);
        }
        let from = self.bind_if_unbound(fd, to)?;
        let Some(receiver_host) = self.host_at(host, to.ip()) else {
            return Ok(());
        };
        if let Some(wire) = &mut self.wire {
            let link = wire.link(host, receiver_host);
            let bytes = self.copy_of(bytes);
            self.send_packet(Packet {
                from,
                to,
                hosts: (host, receiver_host),
                link,
                bytes,
            });
            return Ok(());
        }
        let Some(receiver) = self.socket_at(receiver_host, Protocol::Udp, to, from) else {
            let sender = self.datagrams(fd)?;
            sender.refused = connected == Some(to);
            self.touch(fd, Direction::Read);
            return Ok(());
        };
        let bytes = self.copy_of(bytes);
        self.deliver_udp(receiver, from, bytes);
        Ok(())
    }

    /// A datagram arrives at a socket, which may drop it.
    pub(super) fn deliver_udp(&mut self, receiver_fd: Fd, from: SocketAddr, bytes: Vec<u8>) {
        let Ok(receiver) = self.datagrams(receiver_fd) else {
            return;
        };
        let Some(local) = receiver.local.inet() else { return };
        let from = as_seen_by(local, from);
        let peer = receiver.peer.as_ref().and_then(Addr::inet);
        if peer.is_some_and(|peer| peer != from) || receiver.queued + bytes.len() > MAX_QUEUED {
            return self.recycle(bytes);
        }
        receiver.push(Addr::Inet(from), bytes, Vec::new());
        self.touch(receiver_fd, Direction::Read);
    }

    /// A copy of these bytes, in a buffer of an earlier datagram if there is one.
    pub(super) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn send_unix(&mut self, fd: Fd, bytes: &[u8], to: Option<&Name>, descriptors: Vec<Foreign>) -> Result<bool, i32> {
        let host = self.socket(fd)?.host;
        let sender = self.datagrams(fd)?;
        let (from, connected) = (sender.local.clone(), sender.peer_fd);
        if bytes.len() > MAX_UNIX_DATAGRAM {
            return Err(errno::TOO_LONG);
        }
        let receiver_fd = match (to, connected, &sender.peer) {
            (Some(to), _, _) => self.datagrams_named(host, to)?,
            (None, Some(peer), _) => peer,
            (None, None, Some(_)) => return Err(errno::REFUSED),
            (None, None, None) => return Err(errno::NOT_CONNECTED),
        };
        let receiver = self.datagrams(receiver_fd).map_err(|_| errno::REFUSED)?;
        if receiver.peer_fd.is_some_and(|peer| peer != fd) {
            return Err(errno::NOT_PERMITTED);
        }
        if receiver.queue.len() >= MAX_UNIX_QUEUED {
            return Ok(false);
        }
        let bytes = self.copy_of(bytes);
        self.datagrams(receiver_fd)?.push(from, bytes, descriptors);
        self.touch(receiver_fd, Direction::Read);
        Ok(true)
    }

    /// The next datagram; `None` if none has arrived.
    pub(crate) fn recv_datagram(&mut self, fd: Fd) -> Attempt<Datagram> {
        let datagrams = match self.datagrams(fd) {
            Ok(datagrams) => datagrams,
            Err(code) => return Some(Err(code)),
        };
        if std::mem::take(&mut datagrams.refused) {
            return Some(Err(errno::REFUSED));
        }
        let datagram = datagrams.queue.pop_front()?;
        datagrams.queued -= datagram.bytes.len().max(1);
        for at in 0..datagrams.senders.len() {
            let sender = self.datagrams(fd).ok()?.senders[at];
            self.touch(sender, Direction::Write);
        }
        Some(Ok(datagram))
    }

    /// Keeps a received datagram's buffer for a later one.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < MAX_SPARE && bytes.capacity() <= MAX_SPARE_LEN {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Sockets that are connected to a closed Unix socket no longer are: its number is reused.
    pub(super) fn close_datagrams(&mut self, fd: Fd, closed: Datagrams) {
        self.disconnect(fd, closed.peer_fd);
        for sender in closed.senders {
            if let Ok(datagrams) = self.datagrams(sender) {
                datagrams.peer_fd = None;
            }
            self.touch(sender, Direction::Write);
        }
    }
}
