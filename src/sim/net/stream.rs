//! Bytes through connections: TCP connections, Unix connections and pipes.

use std::collections::VecDeque;
use std::net::Shutdown;

use super::conn::{Conn, End, SegmentKind, Transport};
use super::{Addr, Attempt, Network, Protocol, Socket, State};
use crate::driver::SocketKind;
use crate::sys::{Direction, Fd, Foreign, errno};

impl Network {
    pub(super) fn conn(&mut self, conn: u32) -> &mut Conn {
        self.conns
            .get_mut(conn)
            .expect("a connection exists while an end is open")
    }

    /// The connection of a stream socket, and which end of it the socket is.
    fn stream(&mut self, fd: Fd) -> Result<(u32, usize), i32> {
        match self.socket(fd)?.state {
            State::Stream { conn, end } => Ok((conn, end)),
            State::Datagrams(_) => Err(errno::INVALID),
            State::Fresh(_) | State::Connecting { .. } | State::SynSent(_) | State::Listener(_) => {
                Err(errno::NOT_CONNECTED)
            }
        }
    }

    /// Two sockets of this kind that are connected to each other.
    pub(super) fn pair(&mut self, host: u16, kind: SocketKind) -> Result<(Fd, Fd), i32> {
        let (one, other) = match kind {
            SocketKind::UnixStream => self.connected(host, Transport::Unix),
            SocketKind::UnixDatagram => {
                let (one, other) = (self.new_socket(host, kind), self.new_socket(host, kind));
                self.join_datagrams(one, other)?;
                (one, other)
            }
            SocketKind::TcpV4 | SocketKind::TcpV6 | SocketKind::UdpV4 | SocketKind::UdpV6 => {
                return Err(errno::NOT_SUPPORTED);
            }
        };
        Ok((one, other))
    }

    /// Two connected, unnamed sockets; of a pipe, the end to read from and the end to write to.
    pub(super) fn connected(&mut self, host: u16, transport: Transport) -> (Fd, Fd) {
        let unnamed = Addr::Unix(None);
        let fds = [(); 2].map(|()| self.add(Socket::new(host, State::Fresh(unnamed.clone()))));
        let ends = fds.map(|fd| End::new(fd, host, unnamed.clone(), unnamed.clone()));
        let serial = self.next_serial();
        let conn = self.conns.insert(Conn::new(serial, transport, ends));
        for (end, fd) in fds.into_iter().enumerate() {
            if let Ok(socket) = self.socket(fd) {
                socket.state = State::Stream { conn, end };
            }
        }
        (fds[0], fds[1])
    }

    /// Applies the buffer sizes of a connection's sockets.
    pub(super) fn resize(&mut self, fd: Fd) {
        let Ok((conn, _)) = self.stream(fd) else { return };
        let fds = [0, 1].map(|end| self.conn(conn).ends[end].fd);
        let sizes = fds.map(|fd| fd.and_then(|fd| Some(self.socket(fd).ok()?.options.buffers())));
        let [Some(one), Some(other)] = sizes else { return };
        let conn = self.conn(conn);
        conn.flows[0].set_buffers(other.0, one.1);
        conn.flows[1].set_buffers(one.0, other.1);
        for fd in fds.into_iter().flatten() {
            self.touch(fd, Direction::Write);
        }
    }

    /// Receives with `take`, which moves up to the given number of bytes out of the queue and returns their count.
    /// Descriptors that came with the bytes are added to `descriptors`.
    pub(crate) fn recv(
        &mut self,
        fd: Fd,
        take: impl FnOnce(&mut VecDeque<u8>, usize) -> u32,
        descriptors: &mut Vec<Foreign>,
    ) -> Attempt<u32> {
        let (key, end) = match self.stream(fd) {
            Ok(stream) => stream,
            Err(code) => return Some(Err(code)),
        };
        let conn = self.conns.get_mut(key)?;
        let is_wired = conn.is_wired;
        let received = match &mut self.wire {
            Some(wire) if is_wired => {
                let link = conn.links[end];
                let take = |bytes: &mut VecDeque<u8>, most: usize| take(bytes, wire.count(link, most));
                conn.recv(end, take, descriptors)?
            }
            _ => conn.recv(end, take, descriptors)?,
        };
        if let (Ok(1..), Some(sender)) = (received, conn.ends[1 - end].fd) {
            match is_wired {
                true => self.open_window(key, end),
                false => self.touch(sender, Direction::Write),
            }
        }
        Some(received)
    }

    /// Whether a receive need not wait.
    pub(crate) fn can_recv(&mut self, fd: Fd) -> bool {
        self.is_ready(fd, Direction::Read).is_some()
    }

    /// Sends from the parts in order, as much as there is room for. The descriptors go with the first byte.
    pub(crate) fn send<'a>(
        &mut self,
        fd: Fd,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        descriptors: Vec<Foreign>,
    ) -> Attempt<u32> {
        let (key, end) = match self.stream(fd) {
            Ok(stream) => stream,
            Err(code) => return Some(Err(code)),
        };
        let conn = self.conn(key);
        if let Some(code) = conn.send_error(end) {
            return Some(Err(code));
        }
        if conn.is_wired {
            return self.send_segment(key, end, parts);
        }
        let Some(receiver) = conn.ends[1 - end].fd else {
            // The peer has closed, and answers with an RST.
            conn.reset(end);
            self.touch_both(fd);
            return Some(Ok(parts.map(|part| part.len() as u32).sum()));
        };
        let flow = &mut conn.flows[1 - end];
        let mut room = flow.room();
        if room == 0 {
            return None;
        }
        let (mut descriptors, mut sent) = (descriptors, 0);
        for part in parts {
            let count = part.len().min(room);
            flow.push(&part[..count], std::mem::take(&mut descriptors));
            room -= count;
            sent += count;
        }
        flow.arrived += sent;
        self.touch(receiver, Direction::Read);
        Some(Ok(sent as u32))
    }

    pub(super) fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), i32> {
        let (key, end) = self.stream(fd)?;
        let conn = self.conn(key);
        if conn.ends[end].is_over {
            return Err(errno::NOT_CONNECTED);
        }
        if how != Shutdown::Write {
            conn.ends[end].read_shut = true;
            self.touch(fd, Direction::Read);
        }
        let conn = self.conn(key);
        if how != Shutdown::Read && !conn.ends[end].write_shut {
            conn.ends[end].write_shut = true;
            if conn.is_wired {
                self.touch(fd, Direction::Write);
                self.push_segment(key, end, SegmentKind::Fin, 0);
                return Ok(());
            }
            conn.flows[1 - end].is_finished = true;
            let peer = conn.ends[1 - end].fd;
            self.touch(fd, Direction::Write);
            if let Some(peer) = peer {
                self.touch(peer, Direction::Read);
            }
        }
        Ok(())
    }

    pub(super) fn close_stream(&mut self, host: u16, fd: Fd, key: u32, end: usize, reset: bool) {
        let conn = self.conn(key);
        conn.ends[end].fd = None;
        // As with TCP, closing with unread bytes resets the connection.
        let reset = reset || conn.flows[end].arrived > 0;
        conn.flows[end].discard();
        if conn.is_wired {
            return self.close_wired(host, fd, key, end, reset);
        }
        let (peer, local) = (conn.ends[1 - end].fd, conn.ends[end].local.clone());
        match peer {
            Some(_) if reset && conn.transport != Transport::Pipe => conn.reset(1 - end),
            Some(_) => conn.flows[1 - end].is_finished = true,
            None => drop(self.conns.remove(key)),
        }
        if let Some(peer) = peer {
            self.touch_both(peer);
        }
        self.release(host, Protocol::Tcp, &local, fd);
    }
}
