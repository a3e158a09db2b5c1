//! Bytes through connections: TCP connections, Unix connections and pipes.

use std::net::Shutdown;

use super::bytes::ByteQueue;
use super::conn::{Conn, End, Transport, both};
use super::segments::SegmentKind;
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
    #[inline]
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
    #[inline]
    pub(crate) fn recv(
        &mut self,
        fd: Fd,
        take: impl FnOnce(&mut ByteQueue, usize) -> u32,
        descriptors: &mut Vec<Foreign>,
    ) -> Attempt<u32> {
        let (key, end) = match self.stream(fd) {
            Ok(stream) => stream,
            Err(code) => return Some(Err(code)),
        };
        let conn = self.conns.get_mut(key)?;
        if conn.is_writer(end) {
            return Some(Err(errno::BAD_FD));
        }
        let flow = &mut conn.flows[end];
        let was_full = flow.room() == 0;
        let most = match (flow.available(), &mut self.wire) {
            (0, _) => return conn.recv_nothing(end),
            (most, Some(wire)) if conn.is_wired => wire.count(conn.links[end], most),
            (most, _) => most,
        };
        let count = take(&mut flow.bytes, most);
        flow.took(count, descriptors);
        if let (1.., Some(sender)) = (count, conn.ends[1 - end].fd) {
            match conn.is_wired {
                true if was_full => self.send_window(key, 1 - end),
                true => {}
                false => self.touch(sender, Direction::Write),
            }
        }
        Some(Ok(count))
    }

    /// As `recv`, to `len` bytes from `ptr` on.
    ///
    /// # Safety
    ///
    /// These bytes may be written, and nothing else uses them.
    #[inline]
    pub(crate) unsafe fn recv_bytes(&mut self, fd: Fd, ptr: *mut u8, len: usize) -> Attempt<u32> {
        // SAFETY: the caller's promise.
        if let Some(count) = unsafe { self.recv_arrived(fd, ptr, len) } {
            return Some(Ok(count));
        }
        // SAFETY: as above.
        self.recv(fd, |bytes, most| unsafe { bytes.take(most, ptr, len) }, &mut Vec::new())
    }

    /// Receives bytes that have arrived from another host, which is the most frequent case. `None`, without any effect,
    /// if there are none, or in any other case.
    ///
    /// # Safety
    ///
    /// `len` bytes from `ptr` on may be written, and nothing else uses them.
    #[inline(always)]
    pub(crate) unsafe fn recv_arrived(&mut self, fd: Fd, ptr: *mut u8, len: usize) -> Option<u32> {
        let (key, end) = self.stream(fd).ok()?;
        let conn = self.conns.get(key)?;
        let [end, _] = both(end);
        if !conn.is_wired || conn.flows[end].arrived == 0 {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { self.recv_from(key, end, ptr, len) }
    }

    /// Receives bytes that have arrived at an end of a connection between hosts.
    ///
    /// # Safety
    ///
    /// `len` bytes from `ptr` on may be written, and nothing else uses them.
    #[inline(always)]
    pub(crate) unsafe fn recv_from(&mut self, key: u32, end: usize, ptr: *mut u8, len: usize) -> Option<u32> {
        let (conn, wire) = (self.conns.get_mut(key)?, self.wire.as_mut()?);
        let [end, peer] = both(end);
        let flow = &mut conn.flows[end];
        let was_full = flow.room() == 0;
        let most = wire.count(conn.links[end], flow.arrived);
        // SAFETY: the caller's promise.
        let count = unsafe { flow.bytes.take(most, ptr, len) };
        // Descriptors are passed within a host.
        flow.arrived -= count as usize;
        if was_full && count > 0 {
            self.send_window(key, peer);
        }
        Some(count)
    }

    /// Whether a receive need not wait.
    pub(crate) fn can_recv(&mut self, fd: Fd) -> bool {
        self.is_ready(fd, Direction::Read).is_some()
    }

    /// As `send`, of one part: to another host in the most frequent case, in which nothing prevents it.
    #[inline(always)]
    pub(crate) fn send_bytes(&mut self, fd: Fd, bytes: &[u8]) -> Attempt<u32> {
        if let Ok((key, end)) = self.stream(fd)
            && let (Some(conn), Some(wire)) = (self.conns.get_mut(key), &mut self.wire)
            && conn.is_wired
            && conn.ends[end & 1].can_send()
        {
            return conn.send(wire, key, end, [bytes].into_iter()).map(Ok);
        }
        self.send(fd, [bytes].into_iter(), Vec::new())
    }

    /// Sends from the parts in order, as much as there is room for. The descriptors go with the first byte.
    #[inline(never)]
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
        let conn = self.conns.get_mut(key)?;
        if let Some(code) = conn.send_error(end) {
            return Some(Err(code));
        }
        if let (true, Some(wire)) = (conn.is_wired, &mut self.wire) {
            return conn.send(wire, key, end, parts).map(Ok);
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
