//! Per-descriptor state, and the tokens that tell a descriptor from an earlier one with the same number.
//!
//! A plain vector, because the kernel reuses the lowest free number. On Windows the numbers are multiples of four.

use mio::Token;

use super::os::{SHORT_MEANS_DRAINED, SPARE_BITS, Source};
use super::wait_list::WaitList;
use crate::driver::OpResult;
use crate::driver::op::{Direction, Medium};
use crate::sys::Fd;

/// The state of one direction.
pub(super) struct Side {
    pub(super) waiting: WaitList,
    /// False if the last attempt returned EAGAIN and no event has come since: an attempt would return EAGAIN again.
    pub(super) may_be_ready: bool,
    /// The kernel has reported a hang-up, an error or urgent data, and will not do so again: always attempt.
    pub(super) always_try: bool,
}

impl Side {
    const NEW: Side = Side {
        waiting: WaitList::EMPTY,
        may_be_ready: true,
        always_try: false,
    };

    /// Notes what an attempt at transferring up to `len` bytes says about the next one. It would block after one that
    /// would have blocked, and after one that transferred fewer bytes. The latter only TCP guarantees: a Unix socket
    /// stops where descriptors were passed, a terminal at the end of a line.
    #[inline(always)]
    pub(super) fn note(&mut self, result: Option<OpResult>, medium: Medium, len: usize) {
        let is_short = |result: OpResult| matches!(result.res(), Ok(count) if count > 0 && (count as usize) < len);
        let reports_short = SHORT_MEANS_DRAINED && medium == Medium::Tcp;
        if result.is_none_or(|result| reports_short && is_short(result)) {
            self.may_be_ready = self.always_try;
        }
    }
}

/// The state of a descriptor.
pub(super) struct FdState {
    /// The registration, if there is one.
    pub(super) source: Option<Source>,
    /// How often the number was reused, modulo `GENERATIONS + 1`.
    generation: u32,
    pub(super) read: Side,
    pub(super) write: Side,
}

impl FdState {
    const NEW: FdState = FdState {
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

    /// Notes that the kernel has reported this direction.
    pub(super) fn reported(&mut self, direction: Direction) -> &mut Side {
        if let Some(source) = &mut self.source {
            source.disarm(direction);
        }
        self.side(direction)
    }

    pub(super) fn has_no_waiters(&self) -> bool {
        self.read.waiting.is_empty() && self.write.waiting.is_empty()
    }
}

#[derive(Default)]
pub(super) struct FdTable {
    fds: Vec<FdState>,
}

/// A token's lower bits are the descriptor's number, the others its generation.
const FD_BITS: u32 = if usize::BITS == 64 { 32 } else { 22 };
const GENERATIONS: u32 = ((1u64 << (usize::BITS - FD_BITS)) - 1) as u32;

impl FdTable {
    #[inline]
    pub(super) fn get(&mut self, fd: Fd) -> &mut FdState {
        let index = fd as usize >> SPARE_BITS;
        match index < self.fds.len() {
            true => &mut self.fds[index],
            false => self.grow(fd),
        }
    }

    #[cold]
    fn grow(&mut self, fd: Fd) -> &mut FdState {
        let index = usize::try_from(fd).expect("kernel descriptors are not negative") >> SPARE_BITS;
        self.fds.resize_with(index + 1, || FdState::NEW);
        &mut self.fds[index]
    }

    /// The state of a descriptor that was used before.
    #[inline]
    pub(super) fn known(&mut self, fd: Fd) -> Option<&mut FdState> {
        self.fds.get_mut(fd as usize >> SPARE_BITS)
    }

    /// The state of a descriptor that is registered.
    #[inline]
    pub(super) fn registered(&mut self, fd: Fd) -> Option<&mut FdState> {
        self.known(fd).filter(|state| state.source.is_some())
    }

    /// The token that the kernel returns with this descriptor's events.
    pub(super) fn token(&mut self, fd: Fd) -> Token {
        Token((self.get(fd).generation as usize) << FD_BITS | fd as usize)
    }

    /// The descriptor that an event is for, and its state. `None` for a stale event: its number was reused.
    #[inline]
    pub(super) fn current(&mut self, token: Token) -> Option<(Fd, &mut FdState)> {
        let fd = token.0 & ((1 << FD_BITS) - 1);
        let state = self.registered(fd as Fd)?;
        (state.generation as usize == token.0 >> FD_BITS).then_some((fd as Fd, state))
    }

    /// Resets the state of a number that gets a new descriptor or loses its old one. Earlier tokens become stale.
    pub(super) fn reset(&mut self, fd: Fd) {
        let state = self.get(fd);
        debug_assert!(state.has_no_waiters());
        *state = FdState {
            generation: state.generation.wrapping_add(1) & GENERATIONS,
            ..FdState::NEW
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_event_is_recognised() {
        let mut fds = FdTable::default();
        let token = fds.token(8);
        let fd_of = |fds: &mut FdTable, token| fds.current(token).map(|(fd, _)| fd);
        assert_eq!(fd_of(&mut fds, token), None, "not registered");
        fds.get(8).source = Some(Source::new(8));
        assert_eq!(fd_of(&mut fds, token), Some(8));
        fds.reset(8);
        fds.get(8).source = Some(Source::new(8));
        assert_eq!(fd_of(&mut fds, token), None);
        let token = fds.token(8);
        assert_eq!(fd_of(&mut fds, token), Some(8));
        assert_eq!(fd_of(&mut fds, Token(1 << 20)), None);
    }
}
