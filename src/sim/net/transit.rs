//! TCP and UDP between the hosts of a world: what is sent, and what happens when it arrives.

use std::net::{IpAddr, SocketAddr};

use super::addr::{as_seen_by, unmapped};
use super::conn::{Conn, End, STREAM_CAPACITY, Transport, both};
use super::segments::{Segment, SegmentKind};
use super::udp::Packet;
use super::wire::{Fate, rto};
use super::{Addr, Attempt, ConnKey, HostNet, NetEvent, Network, Protocol, Socket, SocketKey, State, Waiter, Wire};
use crate::driver::{FdSpace, SocketOption};
use crate::sim::log::EventKind;
use crate::sys::{Direction, Fd, KeepAlive, errno};

const SECOND: u64 = 1_000_000_000;

/// How often a connection request is sent again, as on Linux: 127 s in all.
const SYN_RETRIES: u8 = 6;

/// How often a full backlog is tried for a connection that the client takes for established.
const BACKLOG_RETRIES: u8 = 5;

/// How long it takes to find that no host has an address.
const UNREACHABLE_AFTER: u64 = 3 * SECOND;

/// A socket whose connect waits for an answer.
pub(super) struct SynSent {
    /// The address that it was bound to, the one that it sends from, and the server's as the program wrote it.
    pub(super) local: SocketAddr,
    pub(super) from: SocketAddr,
    to: SocketAddr,
    hosts: (u16, u16),
    /// The connection, once the server has made it.
    conn: Option<ConnKey>,
    /// The error, once it has failed.
    error: Option<i32>,
}

impl Network {
    fn wire(&mut self) -> &mut Wire {
        self.wire.as_mut().expect("hosts of a world have wires")
    }

    fn schedule(&mut self, at: u64, event: NetEvent) {
        self.wire().schedule(at, event);
    }

    fn note(&mut self, host: u16, kind: EventKind, a: u64, b: u64) {
        let wire = self.wire();
        wire.log.record(wire.now, host, kind, a, b);
    }

    /// Gives a host its addresses in a world.
    pub(crate) fn set_addrs(&mut self, host: u16, addrs: Vec<IpAddr>) {
        for addr in &addrs {
            self.addrs.insert(super::address_key(*addr), host);
        }
        self.hosts[usize::from(host)].addrs = addrs;
    }

    pub(crate) fn set_abort_on_overflow(&mut self, host: u16, is_on: bool) {
        self.host(host).aborts_on_overflow = is_on;
    }

    fn host(&mut self, host: u16) -> &mut HostNet {
        &mut self.hosts[usize::from(host)]
    }

    fn is_down(&self, host: u16) -> bool {
        self.hosts[usize::from(host)].is_down
    }

    /// The host has power again.
    pub(crate) fn power_on(&mut self, host: u16) {
        self.host(host).is_down = false;
    }

    /// A process ends: the kernel closes its sockets.
    pub(crate) fn end_process(&mut self, host: u16) {
        for fd in self.fds_of(host) {
            self.close(fd, false);
        }
    }

    /// A host loses power: its sockets vanish without a packet to their peers.
    pub(crate) fn power_off(&mut self, host: u16) {
        self.host(host).is_down = true;
        for fd in self.fds_of(host) {
            self.touch_both(fd);
            let index = (fd - crate::driver::FdSpace::FIRST_OWN) as u32;
            let Some(socket) = self.sockets.remove(index) else {
                continue;
            };
            let State::Stream { conn: key, end } = socket.state else {
                continue;
            };
            let conn = self.conn(key);
            (conn.ends[end].fd, conn.ends[end].has_vanished) = (None, true);
            conn.flows[end].discard();
            if conn.ends[1 - end].fd.is_none() {
                self.conns.remove(key);
            }
        }
        let host = self.host(host);
        host.ports.clear();
        host.names.clear();
    }

    fn fds_of(&self, host: u16) -> Vec<Fd> {
        let sockets = self.sockets.iter().filter(|(_, socket)| socket.host == host);
        sockets
            .map(|(index, _)| crate::driver::FdSpace::FIRST_OWN + index as Fd)
            .collect()
    }

    /// Resets every connection between two hosts.
    pub(crate) fn reset_between(&mut self, one: u16, other: u16) {
        let is_between = |conn: &Conn| {
            let hosts = (conn.ends[0].host, conn.ends[1].host);
            conn.transport == Transport::Tcp && (hosts == (one, other) || hosts == (other, one))
        };
        let found = self.conns.iter().filter(|(_, conn)| is_between(conn));
        let found: Vec<u32> = found.map(|(index, _)| index).collect();
        for index in found {
            for end in [0, 1] {
                self.fail(index, end, errno::RESET);
            }
        }
    }

    /// The connection is over for an end, and its operations learn it.
    fn fail(&mut self, index: u32, end: usize, code: i32) {
        let conn = self.conn(index);
        match code {
            errno::RESET => conn.reset(end),
            code => conn.fail(end, code),
        }
        conn.flows[1 - end].segments.clear();
        if let Some(fd) = conn.ends[end].fd {
            self.touch_both(fd);
        }
    }

    fn existing(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.conns.get_mut(key.index).filter(|conn| conn.serial == key.serial)
    }

    fn syn_sent(&mut self, key: SocketKey) -> Option<&mut SynSent> {
        let socket = self.socket(key.fd).ok().filter(|socket| socket.serial == key.serial)?;
        match &mut socket.state {
            State::SynSent(sent) if sent.error.is_none() => Some(sent),
            _ => None,
        }
    }

    // Connecting.

    /// Sends the first request of a connect, whose result comes later.
    pub(super) fn send_first_syn(&mut self, fd: Fd, local: SocketAddr, to: SocketAddr) -> Result<(), i32> {
        if local.is_ipv4() != to.is_ipv4() {
            return Err(errno::NO_FAMILY);
        }
        let socket = self.socket(fd)?;
        let (host, client) = (
            socket.host,
            SocketKey {
                fd,
                serial: socket.serial,
            },
        );
        let seen = Network::destination(to);
        let to = unmapped(seen);
        let server_host = self.host_at(host, to.ip());
        let mut from = match local.ip().is_unspecified() {
            true => SocketAddr::new(self.source_for(host, to.ip()), local.port()),
            false => unmapped(local),
        };
        if from.port() == 0 {
            from.set_port(self.free_port(host, Protocol::Tcp)?);
            self.use_port(host, Protocol::Tcp, from.port(), fd);
        }
        let socket = self.socket(fd)?;
        socket.is_connecting = true;
        socket.state = State::SynSent(SynSent {
            local,
            from,
            to: seen,
            hosts: (host, server_host.unwrap_or(host)),
            conn: None,
            error: None,
        });
        let now = self.wire().now;
        match server_host {
            Some(server_host) => {
                self.note(host, EventKind::Connect, server_host.into(), to.port().into());
                self.send_syn(client, (host, server_host), 0);
            }
            None => {
                let code = errno::HOST_UNREACHABLE;
                self.schedule(now + UNREACHABLE_AFTER, NetEvent::Refused { client, code });
            }
        }
        Ok(())
    }

    fn send_syn(&mut self, client: SocketKey, hosts: (u16, u16), tries: u8) {
        let wire = self.wire();
        let link = wire.link(hosts.0, hosts.1);
        let at = wire.arrival(link, 0);
        if !wire.is_lost(link) {
            wire.schedule(at, NetEvent::Syn { client });
        }
        let retry = wire.now + (SECOND << tries);
        wire.schedule(retry, NetEvent::SynTimer { client, tries });
    }

    /// The result of a connect that waits for an answer.
    pub(super) fn syn_result(&mut self, fd: Fd) -> Attempt<()> {
        let socket = self.socket(fd).ok()?;
        let host = socket.host;
        let State::SynSent(sent) = &socket.state else {
            return Some(Err(errno::INVALID));
        };
        let (code, local, from) = (sent.error?, sent.local, sent.from);
        socket.is_connecting = false;
        socket.state = State::Fresh(Addr::Inet(local));
        if local.port() == 0 {
            self.release(host, Protocol::Tcp, &Addr::Inet(from), fd);
        }
        Some(Err(code))
    }

    fn refuse(&mut self, client: SocketKey, code: i32) {
        if let Some(sent) = self.syn_sent(client) {
            sent.error = Some(code);
            self.touch(client.fd, Direction::Write);
        }
    }

    fn syn_timer(&mut self, client: SocketKey, tries: u8) {
        let Some(sent) = self.syn_sent(client) else { return };
        let hosts = sent.hosts;
        match tries < SYN_RETRIES {
            true => self.send_syn(client, hosts, tries + 1),
            false => self.refuse(client, errno::TIMED_OUT),
        }
    }

    fn syn_arrives(&mut self, client: SocketKey, event: NetEvent) {
        let Some(sent) = self.syn_sent(client) else { return };
        let (local, from, seen, hosts, conn) = (sent.local, sent.from, sent.to, sent.hosts, sent.conn);
        let to = unmapped(seen);
        let wire = self.wire();
        let (there, back) = (wire.link(hosts.0, hosts.1), wire.link(hosts.1, hosts.0));
        if wire.fate(there, event) != Fate::Arrives || self.is_down(hosts.1) {
            return;
        }
        if let Some(conn) = conn {
            // The answer was lost.
            let at = self.wire().arrival(back, 0);
            return self.schedule(at, NetEvent::SynAck { conn });
        }
        let listener_fd = self.socket_at(hosts.1, Protocol::Tcp, to, from);
        let aborts = self.host(hosts.1).aborts_on_overflow;
        let listening = listener_fd.and_then(|fd| Some((fd, self.socket(fd).ok()?)));
        let (listener_fd, options, serial, listens_at) = match listening {
            Some((
                fd,
                Socket {
                    state: State::Listener(listener),
                    options,
                    serial,
                    ..
                },
            )) => {
                if listener.backlog.len() >= listener.backlog_max {
                    if aborts {
                        self.answer_with_refusal(client, hosts, back);
                    }
                    return;
                }
                (fd, options.clone(), *serial, listener.addr.inet())
            }
            _ => return self.answer_with_refusal(client, hosts, back),
        };
        let listens_at = listens_at.unwrap_or(to);
        let mut socket = Socket::new(hosts.1, State::Fresh(Addr::Inet(listens_at)));
        (socket.options, socket.is_open) = (options, false);
        let server_fd = self.add(socket);
        let inet = Addr::Inet;
        let ends = [
            End::new(client.fd, hosts.0, inet(as_seen_by(local, from)), inet(seen)),
            End::new(
                server_fd,
                hosts.1,
                inet(as_seen_by(listens_at, to)),
                inet(as_seen_by(listens_at, from)),
            ),
        ];
        let mut conn = Conn::new(self.next_serial(), Transport::Tcp, ends);
        (conn.is_wired, conn.links) = (true, [back, there]);
        conn.listener = Some(SocketKey {
            fd: listener_fd,
            serial,
        });
        let wire = self.wire();
        for (flow, link) in conn.flows.iter_mut().zip([back, there]) {
            flow.capacity = wire.capacity(link, STREAM_CAPACITY);
        }
        let at = wire.arrival(back, 0);
        let index = self.conns.insert(conn);
        let key = self.conn(index).key(index);
        if let Ok(socket) = self.socket(server_fd) {
            socket.state = State::Stream { conn: index, end: 1 };
        }
        if let Some(sent) = self.syn_sent(client) {
            sent.conn = Some(key);
        }
        self.keep_alive(key, 1);
        self.schedule(at, NetEvent::SynAck { conn: key });
    }

    fn answer_with_refusal(&mut self, client: SocketKey, hosts: (u16, u16), back: u32) {
        self.note(hosts.1, EventKind::Refuse, hosts.0.into(), 0);
        let wire = self.wire();
        let at = wire.arrival(back, 0);
        // An RST is not sent again: the next request gets another one.
        if !wire.links[back as usize].is_cut && !wire.is_lost(back) {
            let code = errno::REFUSED;
            wire.schedule(at, NetEvent::Refused { client, code });
        }
    }

    fn syn_ack_arrives(&mut self, key: ConnKey, event: NetEvent) {
        let Some(conn) = self.existing(key) else { return };
        let (client_fd, client_host, link) = (conn.ends[0].fd, conn.ends[0].host, conn.links[0]);
        if self.wire().fate(link, event) != Fate::Arrives || self.is_down(client_host) {
            return;
        }
        let Some(fd) = client_fd else { return };
        let is_waiting = |sent: &SynSent| sent.conn == Some(key);
        match self.socket(fd).map(|socket| &mut socket.state) {
            Ok(State::SynSent(sent)) if is_waiting(sent) => {}
            // An answer that was sent twice.
            Ok(State::Stream { conn, end: 0 }) if *conn == key.index => return,
            // The client has closed the socket meanwhile.
            _ => {
                self.conn(key.index).ends[0].fd = None;
                return self.send_reset(key.index, 1);
            }
        }
        if let Ok(socket) = self.socket(fd) {
            socket.state = State::Stream {
                conn: key.index,
                end: 0,
            };
        }
        self.push_segment(key.index, 0, SegmentKind::Established, 0);
        self.keep_alive(key, 0);
        self.touch(fd, Direction::Write);
    }

    // Bytes.

    /// Puts a segment on its way from an end to the other one.
    pub(super) fn push_segment(&mut self, index: u32, from: usize, kind: SegmentKind, len: usize) {
        let Some(conn) = self.conns.get_mut(index) else { return };
        let Some(wire) = &mut self.wire else { return };
        let at = wire.segment_arrival(conn.links[1 - from], len);
        conn.push_segment(wire, index, from, kind, len, at);
    }

    /// A receiver has taken the first bytes from a full buffer: a sender that waits for room learns it later.
    #[cold]
    pub(super) fn send_window(&mut self, index: u32, to: usize) {
        let conn = self.conn(index);
        let (key, link) = (conn.key(index), conn.links[to]);
        let wire = self.wire();
        let at = wire.arrival(link, 0);
        let end = to as u8;
        wire.schedule(at, NetEvent::Window { conn: key, end });
    }

    fn window_opens(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        let Some(conn) = self.existing(key) else { return };
        let (fd, link) = (conn.ends[end].fd, conn.links[end]);
        let wire = self.wire();
        match wire.fate(link, event) {
            Fate::Held => {}
            // The sender asks again.
            Fate::Lost => {
                let at = wire.now + rto(3);
                wire.schedule(at, event);
            }
            Fate::Arrives => {
                if let Some(fd) = fd {
                    self.touch(fd, Direction::Write);
                }
            }
        }
    }

    /// The first segment in flight towards an end arrives, and those behind it for which it is time.
    fn segment_arrives(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        while self.any_segment_arrives(key, end, event) {}
    }

    /// Delivers the only segment in flight towards an end if it has bytes, one receive waits for them and nothing prevents
    /// it: the most frequent case of `happen`. Returns that receive, which waits no longer. `None`, without any effect, in
    /// all other cases.
    #[inline(always)]
    pub(crate) fn bytes_arrive(&mut self, key: ConnKey, end: usize) -> Option<Waiter> {
        let wire = self.wire.as_mut()?;
        let conn = self.conns.get_mut(key.index).filter(|conn| conn.serial == key.serial)?;
        let [end, peer] = both(end);
        let from = conn.ends[peer].host;
        let (flow, own) = (&mut conn.flows[end], &mut conn.ends[end]);
        let &Segment { kind, len, at, .. } = flow.segments.only()?;
        // The sockets of a host that has lost power are gone.
        let fd = own.fd.filter(|_| kind == SegmentKind::Data && !own.is_over)?;
        let socket = self.sockets.get_mut((fd - FdSpace::FIRST_OWN) as u32)?;
        let waiters = &mut socket.waiters[super::index(Direction::Read)];
        let (&[waiter], false) = (&waiters[..], wire.has_blocked_links || at > wire.now) else {
            return None;
        };
        waiters.clear();
        flow.segments.pop_front();
        flow.arrived += len;
        flow.unacked_since = None;
        (own.heard_at, own.probes) = (wire.now, 0);
        wire.log
            .record_between_turns(wire.now, own.host, EventKind::Deliver, from.into(), len as u64);
        Some(waiter)
    }

    /// The first segment in flight arrives; false if the next one does not arrive now.
    fn any_segment_arrives(&mut self, key: ConnKey, end: usize, event: NetEvent) -> bool {
        let Some(conn) = self.existing(key) else { return false };
        let (link, back, sender) = (conn.links[end], conn.links[1 - end], 1 - end);
        let Some(&segment) = conn.flows[end].segments.front() else {
            return false;
        };
        let (from, to) = (conn.ends[sender].host, conn.ends[end].host);
        let (is_closed, has_vanished) = (conn.ends[end].fd.is_none(), conn.ends[end].has_vanished);
        let is_over = conn.ends[end].is_over;
        let now = self.wire().now;
        if segment.at > now {
            self.schedule(segment.at, event);
            return false;
        }
        let fate = match self.is_down(to) {
            true => Fate::Lost,
            false => self.wire().fate(link, event),
        };
        match fate {
            Fate::Held => return false,
            Fate::Lost => {
                self.send_again(key, end, event);
                return false;
            }
            Fate::Arrives => {}
        }
        let is_unknown = has_vanished || is_over || (is_closed && segment.kind == SegmentKind::Data);
        if is_unknown && self.wire().links[back as usize].is_cut {
            // The RST is lost, and so the sender tries again.
            self.send_again(key, end, event);
            return false;
        }
        let flow = &mut self.conn(key.index).flows[end];
        flow.segments.pop_front();
        if is_unknown {
            let flow = &mut self.conn(key.index).flows[end];
            flow.segments.clear();
            flow.discard();
            self.conn(key.index).ends[sender].awaits_reset = true;
            self.send_reset(key.index, sender);
            return false;
        }
        match segment.kind {
            SegmentKind::Data => flow.arrived += segment.len,
            SegmentKind::Fin => flow.is_finished = true,
            SegmentKind::Established => {
                if !self.join_backlog(key, segment, event) {
                    return false;
                }
            }
        }
        self.note(to, EventKind::Deliver, from.into(), segment.len as u64);
        let conn = self.conn(key.index);
        (conn.ends[end].heard_at, conn.ends[end].probes) = (now, 0);
        if let Some(fd) = conn.ends[end].fd {
            self.touch(fd, Direction::Read);
        }
        if self.wire().links[back as usize].is_cut {
            self.miss_ack(key, end);
        } else if let Some(conn) = self.existing(key) {
            conn.flows[end].unacked_since = None;
        }
        true
    }

    /// A segment did not arrive: it is sent again, or the connection times out.
    fn send_again(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        let wire = self.wire();
        let (now, timeout) = (wire.now, wire.user_timeout);
        let Some(conn) = self.existing(key) else { return };
        let from = conn.ends[1 - end].host;
        let is_sender_gone = conn.ends[1 - end].has_vanished;
        let Some(segment) = conn.flows[end].segments.front_mut() else {
            return;
        };
        let (to, len) = (conn.ends[end].host, segment.len);
        segment.at = now + rto(segment.tries);
        segment.tries = segment.tries.saturating_add(1);
        let (at, is_late) = (segment.at, now - segment.sent_at >= timeout);
        if is_sender_gone {
            conn.flows[end].segments.clear();
            return;
        }
        self.note(from, EventKind::Lose, to.into(), len as u64);
        match is_late {
            true => self.fail(key.index, 1 - end, errno::TIMED_OUT),
            false => self.schedule(at, event),
        }
    }

    /// A connection that the client takes for established can be accepted. False if it cannot yet, or is reset.
    fn join_backlog(&mut self, key: ConnKey, segment: Segment, event: NetEvent) -> bool {
        let now = self.wire().now;
        let conn = self.conn(key.index);
        let (Some(fd), Some(listening)) = (conn.ends[1].fd, conn.listener) else {
            return true;
        };
        let (client, server) = (conn.ends[0].host, conn.ends[1].host);
        let listener = self
            .socket(listening.fd)
            .ok()
            .filter(|socket| socket.serial == listening.serial);
        let Some(Socket {
            state: State::Listener(listener),
            ..
        }) = listener
        else {
            self.close(fd, true);
            return false;
        };
        if listener.backlog.len() >= listener.backlog_max {
            let mut segment = segment;
            segment.at = now + (SECOND << segment.tries);
            segment.tries += 1;
            if segment.tries > BACKLOG_RETRIES {
                self.close(fd, true);
                return false;
            }
            self.conn(key.index).flows[1].segments.push_front(segment);
            self.schedule(segment.at, event);
            return false;
        }
        listener.backlog.push_back(fd);
        self.conn(key.index).listener = None;
        self.touch(listening.fd, Direction::Read);
        self.note(server, EventKind::Accept, client.into(), 0);
        true
    }

    /// Bytes towards an end have arrived, but their sender gets no acknowledgement.
    fn miss_ack(&mut self, key: ConnKey, end: usize) {
        let now = self.wire().now;
        let Some(conn) = self.existing(key) else { return };
        if conn.flows[end].unacked_since.is_none() {
            conn.flows[end].unacked_since = Some(now);
            let end = end as u8;
            self.schedule(now + SECOND, NetEvent::AckCheck { conn: key, end });
        }
    }

    fn check_ack(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        let wire = self.wire();
        let (now, timeout) = (wire.now, wire.user_timeout);
        let Some(conn) = self.existing(key) else { return };
        let (back, Some(since)) = (conn.links[1 - end], conn.flows[end].unacked_since) else {
            return;
        };
        if !self.wire().links[back as usize].is_cut {
            self.conn(key.index).flows[end].unacked_since = None;
        } else if now - since >= timeout {
            self.fail(key.index, 1 - end, errno::TIMED_OUT);
        } else {
            self.schedule(now + 10 * SECOND, event);
        }
    }

    /// Sends an RST to an end. If it is lost, it is sent again only as the answer to a segment that is sent again.
    fn send_reset(&mut self, index: u32, end: usize) {
        let conn = self.conn(index);
        let (key, link) = (conn.key(index), conn.links[end]);
        let last = conn.flows[end].segments.back().map_or(0, |segment| segment.at);
        let (from, to) = (conn.ends[1 - end].host, conn.ends[end].host);
        let wire = self.wire();
        let at = wire.arrival(link, 0).max(last);
        let end = end as u8;
        wire.schedule(at, NetEvent::Reset { conn: key, end });
        self.note(from, EventKind::Reset, to.into(), 0);
    }

    fn reset_arrives(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        let Some(conn) = self.existing(key) else { return };
        let (link, host, awaits_reset) = (conn.links[end], conn.ends[end].host, conn.ends[end].awaits_reset);
        match self.wire().fate(link, event) {
            Fate::Held => return,
            Fate::Lost if awaits_reset => {
                let at = self.wire().now + rto(3);
                return self.schedule(at, event);
            }
            Fate::Lost => return,
            Fate::Arrives if self.is_down(host) => return,
            Fate::Arrives => {}
        }
        self.fail(key.index, end, errno::RESET);
        let conn = self.conn(key.index);
        let (fd, is_waiting) = (conn.ends[end].fd, conn.listener.is_some() && end == 1);
        match fd {
            // A connection that was never accepted.
            Some(fd) if is_waiting => self.close(fd, false),
            Some(_) => {}
            None if conn.ends[1 - end].fd.is_none() => drop(self.conns.remove(key.index)),
            None => {}
        }
    }

    pub(super) fn close_wired(&mut self, host: u16, fd: Fd, index: u32, end: usize, reset: bool) {
        let conn = self.conn(index);
        let (is_over, write_shut) = (conn.ends[end].is_over, conn.ends[end].write_shut);
        let local = conn.ends[end].local.clone();
        let is_peer_gone = conn.ends[1 - end].fd.is_none();
        if is_peer_gone {
            self.conns.remove(index);
        } else if reset && !is_over {
            self.send_reset(index, 1 - end);
        } else if !is_over && !write_shut {
            self.push_segment(index, end, SegmentKind::Fin, 0);
        }
        self.release(host, Protocol::Tcp, &local, fd);
    }

    // Keep-alive.

    pub(super) fn option_changed(&mut self, fd: Fd, option: SocketOption) {
        let stream = match self.socket(fd).map(|socket| &socket.state) {
            Ok(&State::Stream { conn, end }) => Some((conn, end)),
            _ => None,
        };
        match (option, stream) {
            (SocketOption::KeepAlive(Some(_)), Some((conn, end))) if self.wire.is_some() => {
                let key = self.conn(conn).key(conn);
                self.keep_alive(key, end);
            }
            (SocketOption::SendBuffer(_) | SocketOption::RecvBuffer(_), _) => self.resize(fd),
            _ => {}
        }
    }

    fn keep_alive_times(&mut self, key: ConnKey, end: usize) -> Option<(u64, u64, u32)> {
        let conn = self.existing(key)?;
        let (fd, is_tcp) = (conn.ends[end].fd?, conn.is_wired);
        let option = self.socket(fd).ok()?.options.get(SocketOption::KeepAlive(None));
        let (
            Ok(SocketOption::KeepAlive(Some(KeepAlive {
                idle,
                interval,
                retries,
            }))),
            true,
        ) = (option, is_tcp)
        else {
            return None;
        };
        let nanos =
            |time: Option<std::time::Duration>, default: u64| time.map_or(default * SECOND, crate::sim::link::nanos);
        Some((nanos(idle, 7_200), nanos(interval, 75), retries.unwrap_or(9)))
    }

    /// Plans the next check of an end whose socket has `SO_KEEPALIVE`.
    fn keep_alive(&mut self, key: ConnKey, end: usize) {
        let Some((idle, ..)) = self.keep_alive_times(key, end) else {
            return;
        };
        let now = self.wire().now;
        let conn = self.conn(key.index);
        conn.ends[end].heard_at = conn.ends[end].heard_at.max(now);
        let end = end as u8;
        self.schedule(now.saturating_add(idle), NetEvent::KeepAlive { conn: key, end });
    }

    fn check_alive(&mut self, key: ConnKey, end: usize, event: NetEvent) {
        let Some((idle, interval, retries)) = self.keep_alive_times(key, end) else {
            return;
        };
        let now = self.wire().now;
        let conn = self.conn(key.index);
        let (links, peer) = (conn.links, &conn.ends[1 - end]);
        let (peer_host, is_unknown) = (peer.host, peer.has_vanished || peer.is_over);
        let own = &conn.ends[end];
        if own.is_over {
            return;
        }
        let due = own.heard_at.saturating_add(idle);
        if due > now && own.probes == 0 {
            return self.schedule(due, event);
        }
        let is_cut = links.iter().any(|link| self.wire().links[*link as usize].is_cut);
        if is_cut || self.is_down(peer_host) {
            let own = &mut self.conn(key.index).ends[end];
            own.probes += 1;
            match own.probes > retries {
                true => self.fail(key.index, end, errno::TIMED_OUT),
                false => self.schedule(now + interval, event),
            }
        } else if is_unknown {
            self.fail(key.index, end, errno::RESET);
        } else {
            let own = &mut self.conn(key.index).ends[end];
            (own.heard_at, own.probes) = (now, 0);
            self.schedule(now.saturating_add(idle), event);
        }
    }

    // Datagrams.

    pub(super) fn send_packet(&mut self, packet: Packet) {
        let ((from, to), link) = (packet.hosts, packet.link);
        let len = packet.bytes.len();
        let wire = self.wire();
        let at = wire.datagram_arrival(link, len);
        if wire.is_lost(link) {
            self.note(from, EventKind::Lose, to.into(), len as u64);
            return self.recycle(packet.bytes);
        }
        self.note(from, EventKind::Send, to.into(), len as u64);
        if self.wire().is_duplicated(link) {
            self.note(from, EventKind::Duplicate, to.into(), len as u64);
            let bytes = self.copy_of(&packet.bytes);
            let again = self.packets.insert(Packet { bytes, ..packet });
            let at = self.wire().arrival(link, len);
            self.schedule(at, NetEvent::Datagram { packet: again });
        }
        let packet = self.packets.insert(packet);
        self.schedule(at, NetEvent::Datagram { packet });
    }

    fn datagram_arrives(&mut self, index: u32, event: NetEvent) {
        let Some(packet) = self.packets.get(index) else { return };
        let (hosts, link, from, to) = (packet.hosts, packet.link, packet.from, packet.to);
        match self.wire().fate(link, event) {
            Fate::Held => return,
            Fate::Lost => {
                self.packets.remove(index);
                return;
            }
            Fate::Arrives => {}
        }
        if self.is_down(hosts.1) {
            self.packets.remove(index);
            return;
        }
        match self.socket_at(hosts.1, Protocol::Udp, to, from) {
            Some(fd) => {
                if let Some(packet) = self.packets.remove(index) {
                    self.note(hosts.1, EventKind::Deliver, hosts.0.into(), packet.bytes.len() as u64);
                    self.deliver_udp(fd, packet.from, packet.bytes);
                }
            }
            None => {
                let wire = self.wire();
                let back = wire.link(hosts.1, hosts.0);
                let at = wire.arrival(back, 0);
                wire.schedule(at, NetEvent::Unreachable { packet: index });
            }
        }
    }

    /// ICMP: no socket has the address that a datagram was sent to. Only a connected socket learns it.
    fn refusal_arrives(&mut self, index: u32, event: NetEvent) {
        let Some(packet) = self.packets.get(index) else { return };
        let (hosts, from, to) = (packet.hosts, packet.from, packet.to);
        let wire = self.wire();
        let back = wire.link(hosts.1, hosts.0);
        match wire.fate(back, event) {
            Fate::Held => return,
            Fate::Lost | Fate::Arrives => drop(self.packets.remove(index)),
        }
        if self.wire().links[back as usize].is_cut || self.is_down(hosts.0) {
            return;
        }
        if let Some(fd) = self.socket_at(hosts.0, Protocol::Udp, from, to)
            && let Ok(sender) = self.datagrams(fd)
            && sender.peer.as_ref().and_then(Addr::inet).map(unmapped) == Some(unmapped(to))
        {
            sender.refused = true;
            self.touch(fd, Direction::Read);
        }
    }

    /// Something that was scheduled happens. Not inlined, so that the most frequent case, `bytes_arrive`, is compiled
    /// apart from it.
    #[inline(never)]
    pub(crate) fn happen(&mut self, event: NetEvent) {
        match event {
            NetEvent::Segment { conn, end } => self.segment_arrives(conn, end.into(), event),
            NetEvent::AckCheck { conn, end } => self.check_ack(conn, end.into(), event),
            NetEvent::KeepAlive { conn, end } => self.check_alive(conn, end.into(), event),
            NetEvent::Window { conn, end } => self.window_opens(conn, end.into(), event),
            NetEvent::Reset { conn, end } => self.reset_arrives(conn, end.into(), event),
            NetEvent::Syn { client } => self.syn_arrives(client, event),
            NetEvent::SynTimer { client, tries } => self.syn_timer(client, tries),
            NetEvent::SynAck { conn } => self.syn_ack_arrives(conn, event),
            NetEvent::Refused { client, code } => self.refuse(client, code),
            NetEvent::Datagram { packet } => self.datagram_arrives(packet, event),
            NetEvent::Unreachable { packet } => self.refusal_arrives(packet, event),
        }
    }
}
