//! UDP between hosts of a world: loss, duplicates, reordering, and ICMP refusals.

use super::addr::unmapped;
use super::udp::Packet;
use super::wire::Fate;
use super::{Addr, NetEvent, Network, Protocol};
use crate::sim::log::EventKind;
use crate::sys::Direction;

impl Network {
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

    pub(super) fn datagram_arrives(&mut self, index: u32, event: NetEvent) {
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
    pub(super) fn refusal_arrives(&mut self, index: u32, event: NetEvent) {
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
}
