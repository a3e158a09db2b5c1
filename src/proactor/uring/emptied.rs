//! Which sockets had nothing more when they were last received from.
//!
//! A receive is tried first, and waits for the socket if there is nothing. Where it is known that there is nothing, the try is
//! in vain, and the kernel can be told to wait at once (`POLL_FIRST`): the completion of the receive before says so. It is a
//! hint: if something has come meanwhile, the wait ends at once.

use io_uring::cqueue;

use crate::driver::OpId;
use crate::sys::Fd;

#[derive(Default)]
pub(super) struct Emptied {
    /// By descriptor.
    sockets: Vec<bool>,
    /// By flight: the socket that it receives from.
    receiving: Vec<Option<Fd>>,
}

impl Emptied {
    /// A flight is about to receive from a socket. True if that was empty.
    #[inline]
    pub(super) fn receives(&mut self, id: OpId, fd: Fd) -> bool {
        let index = id.index as usize;
        if index >= self.receiving.len() {
            self.receiving.resize(index + 1, None);
        }
        self.receiving[index] = Some(fd);
        self.sockets.get(fd as usize).copied().unwrap_or(false)
    }

    /// What its completion says.
    #[inline]
    pub(super) fn completed(&mut self, id: OpId, entry: &cqueue::Entry) {
        let Some(Some(fd)) = self.receiving.get_mut(id.index as usize).map(Option::take) else {
            return;
        };
        let is_empty = entry.result() > 0 && !cqueue::sock_nonempty(entry.flags());
        let place = fd as usize;
        if place >= self.sockets.len() {
            self.sockets.resize(place + 1, false);
        }
        self.sockets[place] = is_empty;
    }

    /// The number will be somebody else's.
    pub(super) fn forget(&mut self, fd: Fd) {
        if let Some(is_empty) = self.sockets.get_mut(fd as usize) {
            *is_empty = false;
        }
    }
}
