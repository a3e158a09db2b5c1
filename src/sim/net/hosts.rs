//! Hosts of a world: their addresses, and what the end of a process or a power loss does to their sockets.

use std::net::IpAddr;

use super::conn::{Conn, Transport};
use super::{HostNet, Network, State};
use crate::sys::{Fd, errno};

impl Network {
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

    pub(super) fn host(&mut self, host: u16) -> &mut HostNet {
        &mut self.hosts[usize::from(host)]
    }

    pub(super) fn is_down(&self, host: u16) -> bool {
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
}
