//! TCP keep-alive between hosts of a world, and what changed socket options do to connections.

use super::transit::SECOND;
use super::{ConnKey, NetEvent, Network, State};
use crate::driver::SocketOption;
use crate::sys::{Fd, KeepAlive, errno};

impl Network {
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
    pub(super) fn keep_alive(&mut self, key: ConnKey, end: usize) {
        let Some((idle, ..)) = self.keep_alive_times(key, end) else {
            return;
        };
        let now = self.wire().now;
        let conn = self.conn(key.index);
        conn.ends[end].heard_at = conn.ends[end].heard_at.max(now);
        let end = end as u8;
        self.schedule(now.saturating_add(idle), NetEvent::KeepAlive { conn: key, end });
    }

    pub(super) fn check_alive(&mut self, key: ConnKey, end: usize, event: NetEvent) {
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
}
