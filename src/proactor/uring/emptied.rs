//! Tracks which TCP sockets their last receive left empty.
//!
//! io_uring first attempts a receive and then polls the socket. After a receive without `SOCK_NONEMPTY` the attempt
//! would find nothing, so the next one is submitted with `POLL_FIRST`. It loses nothing if data has arrived since.

use io_uring::cqueue;

use crate::driver::OpId;
use crate::sys::Fd;

#[derive(Default)]
pub(super) struct Emptied {
    /// By descriptor.
    sockets: Vec<bool>,
    /// By operation: the socket that it receives from.
    receiving: Vec<Option<Fd>>,
}

impl Emptied {
    /// An operation is about to receive from a socket. True if the last receive left the socket empty.
    #[inline]
    pub(super) fn receives(&mut self, id: OpId, fd: Fd) -> bool {
        let index = id.index();
        if index >= self.receiving.len() {
            self.receiving.resize(index + 1, None);
        }
        self.receiving[index] = Some(fd);
        self.sockets.get(fd as usize).copied().unwrap_or(false)
    }

    /// A receive has completed.
    #[inline]
    pub(super) fn completed(&mut self, id: OpId, entry: &cqueue::Entry) {
        let Some(Some(fd)) = self.receiving.get_mut(id.index()).map(Option::take) else {
            return;
        };
        let is_empty = entry.result() > 0 && !cqueue::sock_nonempty(entry.flags());
        let place = fd as usize;
        if place >= self.sockets.len() {
            self.sockets.resize(place + 1, false);
        }
        self.sockets[place] = is_empty;
    }

    /// The descriptor is closed or given up: its number may be reused.
    pub(super) fn forget(&mut self, fd: Fd) {
        if let Some(is_empty) = self.sockets.get_mut(fd as usize) {
            *is_empty = false;
        }
    }
}
