//! What is known of each descriptor: one place per number. Numbers are small, since the kernel gives out the lowest that
//! is free. On Windows they go by fours.

use mio::Token;

use super::os::{SPARE_BITS, Source};
use super::parked::Queue;
use crate::driver::op::Direction;
use crate::sys::Fd;

/// One direction of a descriptor.
pub(super) struct Side {
    pub(super) queue: Queue,
    /// False when the last try found nothing more, and no news has come since: another try would be in vain.
    pub(super) may_be_ready: bool,
    /// The kernel has told of an end, an error or urgent bytes, and will not tell again: every operation is tried.
    pub(super) always_try: bool,
}

impl Side {
    const NEW: Side = Side {
        queue: Queue::EMPTY,
        may_be_ready: true,
        always_try: false,
    };

    /// The last try found nothing more.
    pub(super) fn used_up(&mut self) {
        self.may_be_ready = self.always_try;
    }
}

/// A descriptor's number and who has it.
pub(super) struct Place {
    /// How the kernel was asked to tell of it, if it was.
    pub(super) source: Option<Source>,
    /// How often this number was given to somebody else.
    generation: usize,
    read: Side,
    write: Side,
}

impl Place {
    const NEW: Place = Place {
        source: None,
        generation: 0,
        read: Side::NEW,
        write: Side::NEW,
    };

    pub(super) fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }

    /// A side that the kernel has told of.
    pub(super) fn news(&mut self, direction: Direction) -> &mut Side {
        if let Some(source) = &mut self.source {
            source.told(direction);
        }
        self.side(direction)
    }

    pub(super) fn nobody_waits(&self) -> bool {
        self.read.queue.is_empty() && self.write.queue.is_empty()
    }
}

/// By number.
#[derive(Default)]
pub(super) struct FdTable {
    fds: Vec<Place>,
}

/// A token's lower bits are the descriptor's number, the others its generation.
const FD_BITS: u32 = if usize::BITS == 64 { 32 } else { 22 };
const GENERATIONS: usize = (1 << (usize::BITS - FD_BITS)) - 1;

impl FdTable {
    #[inline]
    pub(super) fn get(&mut self, fd: Fd) -> &mut Place {
        let index = usize::try_from(fd).expect("descriptors of the kernel are not negative");
        let index = index >> SPARE_BITS;
        if index >= self.fds.len() {
            self.grow(index);
        }
        &mut self.fds[index]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.fds.resize_with(index + 1, || Place::NEW);
    }

    /// What events for this descriptor are marked with.
    pub(super) fn token(&mut self, fd: Fd) -> Token {
        Token(self.get(fd).generation << FD_BITS | fd as usize)
    }

    /// The descriptor that an event is for. `None` if its number belongs to somebody else by now.
    pub(super) fn fd_of(&mut self, token: Token) -> Option<Fd> {
        let fd = token.0 & ((1 << FD_BITS) - 1);
        let place = self.fds.get(fd >> SPARE_BITS)?;
        let is_current = place.source.is_some() && place.generation == token.0 >> FD_BITS;
        is_current.then_some(fd as Fd)
    }

    /// A new tenant comes, or the old one leaves: nothing that was known of the number holds any more.
    pub(super) fn renew(&mut self, fd: Fd) {
        let place = self.get(fd);
        debug_assert!(place.nobody_waits());
        *place = Place {
            generation: (place.generation + 1) & GENERATIONS,
            ..Place::NEW
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_for_an_earlier_tenant_is_recognised() {
        let mut fds = FdTable::default();
        let token = fds.token(8);
        assert_eq!(fds.fd_of(token), None, "not registered");
        fds.get(8).source = Some(Source::new(8));
        assert_eq!(fds.fd_of(token), Some(8));
        fds.renew(8);
        fds.get(8).source = Some(Source::new(8));
        assert_eq!(fds.fd_of(token), None);
        let token = fds.token(8);
        assert_eq!(fds.fd_of(token), Some(8));
        assert_eq!(fds.fd_of(Token(1 << 20)), None);
    }
}
