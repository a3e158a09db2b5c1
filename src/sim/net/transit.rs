//! TCP segments between hosts of a world: in flight, arriving, lost and sent again; windows and resets. `happen` carries
//! out the scheduled events of the network.

use super::conn::{Conn, both};
use super::segments::{Segment, SegmentKind};
use super::wire::{Fate, rto};
use super::{ConnKey, NetEvent, Network, Protocol, Waiter, Wire};
use crate::driver::FdSpace;
use crate::sim::log::EventKind;
use crate::sys::{Direction, Fd, errno};

pub(super) const SECOND: u64 = 1_000_000_000;

impl Network {
    pub(super) fn wire(&mut self) -> &mut Wire {
        self.wire.as_mut().expect("hosts of a world have wires")
    }

    pub(super) fn schedule(&mut self, at: u64, event: NetEvent) {
        self.wire().schedule(at, event);
    }

    pub(super) fn note(&mut self, host: u16, kind: EventKind, a: u64, b: u64) {
        let wire = self.wire();
        wire.log.record(wire.now, host, kind, a, b);
    }

    /// The connection is over for an end, and its operations learn it.
    pub(super) fn fail(&mut self, index: u32, end: usize, code: i32) {
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

    pub(super) fn existing(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.conns.get_mut(key.index).filter(|conn| conn.serial == key.serial)
    }

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
    pub(super) fn send_reset(&mut self, index: u32, end: usize) {
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
