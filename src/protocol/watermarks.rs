//! How much is queued, and the two marks between which writing is paused and resumed.

use std::cell::Cell;
use std::io;

/// asyncio's high mark; the low one is a quarter of it.
const HIGH: usize = 64 * 1024;

pub(crate) struct Watermarks {
    /// Bytes that the kernel has not taken, those under way included.
    size: Cell<usize>,
    high: Cell<usize>,
    low: Cell<usize>,
    /// The high mark was crossed, and the low one has not been reached since.
    is_over: Cell<bool>,
}

impl Watermarks {
    pub(super) fn new() -> Watermarks {
        Watermarks {
            size: Cell::new(0),
            high: Cell::new(HIGH),
            low: Cell::new(HIGH / 4),
            is_over: Cell::new(false),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size.get()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    pub(super) fn add(&self, len: usize) {
        self.size.set(self.size.get() + len);
        self.note_if_over();
    }

    /// True if that brought it down to the low mark.
    pub(super) fn take(&self, len: usize) -> bool {
        // What was dropped meanwhile does not count any more.
        self.size.set(self.size.get().saturating_sub(len));
        self.is_over.get() && self.size.get() <= self.low.get() && self.is_over.replace(false)
    }

    /// Everything was dropped.
    pub(super) fn reset(&self) {
        self.size.set(0);
    }

    /// (low, high), as asyncio gives them.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.low.get(), self.high.get())
    }

    /// asyncio's rules: without a high mark it is four times the low one, without a low mark a quarter of the high one.
    pub(crate) fn set_limits(&self, high: Option<usize>, low: Option<usize>) -> io::Result<()> {
        let high = high.unwrap_or_else(|| low.map_or(HIGH, |low| low.saturating_mul(4)));
        let low = low.unwrap_or(high / 4);
        if low > high {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the low mark ({low}) must not be above the high one ({high})"),
            ));
        }
        self.high.set(high);
        self.low.set(low);
        self.note_if_over();
        Ok(())
    }

    fn note_if_over(&self) {
        if self.size.get() > self.high.get() {
            self.is_over.set(true);
        }
    }
}
