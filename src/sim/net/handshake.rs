//! The TCP handshake between hosts of a world: requests, retries, refusals, and the way to the backlog.

use std::net::SocketAddr;

use super::addr::{as_seen_by, unmapped};
use super::conn::{Conn, End, STREAM_CAPACITY, Transport};
use super::segments::{Segment, SegmentKind};
use super::transit::SECOND;
use super::wire::Fate;
use super::{Addr, Attempt, ConnKey, NetEvent, Network, Protocol, Socket, SocketKey, State};
use crate::sim::log::EventKind;
use crate::sys::{Direction, Fd, errno};

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
    fn syn_sent(&mut self, key: SocketKey) -> Option<&mut SynSent> {
        let socket = self.socket(key.fd).ok().filter(|socket| socket.serial == key.serial)?;
        match &mut socket.state {
            State::SynSent(sent) if sent.error.is_none() => Some(sent),
            _ => None,
        }
    }

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

    pub(super) fn refuse(&mut self, client: SocketKey, code: i32) {
        if let Some(sent) = self.syn_sent(client) {
            sent.error = Some(code);
            self.touch(client.fd, Direction::Write);
        }
    }

    pub(super) fn syn_timer(&mut self, client: SocketKey, tries: u8) {
        let Some(sent) = self.syn_sent(client) else { return };
        let hosts = sent.hosts;
        match tries < SYN_RETRIES {
            true => self.send_syn(client, hosts, tries + 1),
            false => self.refuse(client, errno::TIMED_OUT),
        }
    }

    pub(super) fn syn_arrives(&mut self, client: SocketKey, event: NetEvent) {
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

    pub(super) fn syn_ack_arrives(&mut self, key: ConnKey, event: NetEvent) {
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

    /// A connection that the client takes for established can be accepted. False if it cannot yet, or is reset.
    pub(super) fn join_backlog(&mut self, key: ConnKey, segment: Segment, event: NetEvent) -> bool {
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
}
