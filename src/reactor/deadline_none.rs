//! On Windows the reactor cannot be embedded, so there are no deadlines to arm.

use std::io;

use mio::{Poll, Token};

use crate::sys::Instant;

#[derive(Default)]
pub(super) struct DeadlineTimer {}

impl DeadlineTimer {
    pub(super) fn open(&mut self, _: &Poll, _: Token) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        false
    }

    pub(super) fn set(&mut self, _: &Poll, _: Token, _: Instant) -> bool {
        false
    }
}
