//! Datagrams on the in-memory network: boundaries are kept, what finds no room is lost, as over UDP.

use std::net::SocketAddr;

use super::net::{Network, PIPE_LEN};
use crate::driver::OsResult;
use crate::sys::errno;

/// The most that one datagram carries over IPv4.
const LARGEST: usize = 65_507;

impl Network {
    /// Sends to `to`, or to who the socket is connected to.
    pub(super) fn send_datagram(&mut self, fd: i32, bytes: &[u8], to: Option<SocketAddr>) -> OsResult {
        let Some(to) = to.or(self.datagrams(fd)?.peer) else {
            return Err(errno::NO_DESTINATION);
        };
        if bytes.len() > LARGEST {
            return Err(errno::TOO_LONG);
        }
        let from = self.bind_if_not(fd, to)?;
        let Some(there) = self.datagrams_at(to) else {
            let sender = self.datagrams(fd)?;
            sender.refused = sender.peer == Some(to);
            return Ok(bytes.len() as u32);
        };
        let receiver = self.datagrams(there)?;
        let is_heard = receiver.peer.is_none_or(|peer| peer == from);
        let held: usize = receiver.inbox.iter().map(|(_, bytes)| bytes.len().max(1)).sum();
        if is_heard && held + bytes.len() <= 4 * PIPE_LEN {
            receiver.inbox.push_back((from, bytes.to_vec()));
        }
        Ok(bytes.len() as u32)
    }

    /// The next that has come; `None` if there is none yet.
    pub(super) fn recv_datagram(&mut self, fd: i32) -> Option<Result<(SocketAddr, Vec<u8>), i32>> {
        let datagrams = match self.datagrams(fd) {
            Ok(datagrams) => datagrams,
            Err(code) => return Some(Err(code)),
        };
        if std::mem::take(&mut datagrams.refused) {
            return Some(Err(errno::REFUSED));
        }
        datagrams.inbox.pop_front().map(Ok)
    }
}
