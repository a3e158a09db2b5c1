//! Datagrams on the in-memory network. As in UDP, boundaries are kept and a full queue drops datagrams.

use std::net::SocketAddr;

use super::net::{Network, STREAM_CAPACITY};
use crate::driver::OsResult;
use crate::sys::errno;

/// The largest payload of a datagram over IPv4.
const MAX_DATAGRAM: usize = 65_507;

impl Network {
    /// Sends to `to`, or to the peer that the socket is connected to.
    pub(super) fn send_datagram(&mut self, fd: i32, bytes: &[u8], to: Option<SocketAddr>) -> OsResult {
        let Some(to) = to.or(self.datagrams(fd)?.peer) else {
            return Err(errno::NO_DESTINATION);
        };
        if bytes.len() > MAX_DATAGRAM {
            return Err(errno::TOO_LONG);
        }
        let from = self.bind_if_unbound(fd, to)?;
        let Some(receiver) = self.datagrams_at(to) else {
            let sender = self.datagrams(fd)?;
            sender.refused |= sender.peer == Some(to);
            return Ok(bytes.len() as u32);
        };
        let receiver = self.datagrams(receiver)?;
        let is_accepted = receiver.peer.is_none_or(|peer| peer == from);
        let queued: usize = receiver.recv_queue.iter().map(|(_, bytes)| bytes.len().max(1)).sum();
        if is_accepted && queued + bytes.len() <= 4 * STREAM_CAPACITY {
            receiver.recv_queue.push_back((from, bytes.to_vec()));
        }
        Ok(bytes.len() as u32)
    }

    /// The next datagram with its sender; `None` if none has arrived.
    pub(super) fn recv_datagram(&mut self, fd: i32) -> Option<Result<(SocketAddr, Vec<u8>), i32>> {
        let datagrams = match self.datagrams(fd) {
            Ok(datagrams) => datagrams,
            Err(code) => return Some(Err(code)),
        };
        if std::mem::take(&mut datagrams.refused) {
            return Some(Err(errno::REFUSED));
        }
        datagrams.recv_queue.pop_front().map(Ok)
    }
}
