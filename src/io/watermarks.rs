//! The number of bytes in a write buffer, and the two watermarks at which writing pauses and resumes.

use std::cell::Cell;
use std::io;

/// asyncio's default high watermark; the low watermark is a quarter of it.
const HIGH: usize = 64 * 1024;

pub(crate) struct Watermarks {
    /// Bytes not yet accepted by the kernel, including those of a send in flight.
    size: Cell<usize>,
    high: Cell<usize>,
    low: Cell<usize>,
    /// The high watermark was crossed, and the low one not reached since.
    is_paused: Cell<bool>,
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        Watermarks {
            size: Cell::new(0),
            high: Cell::new(HIGH),
            low: Cell::new(HIGH / 4),
            is_paused: Cell::new(false),
        }
    }
}

impl Watermarks {
    pub(crate) fn size(&self) -> usize {
        self.size.get()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    pub(crate) fn add(&self, len: usize) {
        self.size.set(self.size.get() + len);
        self.pause_if_above();
    }

    /// Subtracts `len`; true if this reached the low watermark.
    pub(crate) fn take(&self, len: usize) -> bool {
        // `reset` may have come first.
        self.size.set(self.size.get().saturating_sub(len));
        self.is_paused.get() && self.size.get() <= self.low.get() && self.is_paused.replace(false)
    }

    /// Everything was discarded.
    pub(crate) fn reset(&self) {
        self.size.set(0);
    }

    /// (low, high), in asyncio's order.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.low.get(), self.high.get())
    }

    /// asyncio's rules: a missing high watermark is four times the low one, a missing low one a quarter of the high
    /// one.
    pub(crate) fn set_limits(&self, high: Option<usize>, low: Option<usize>) -> io::Result<()> {
        let high = high.unwrap_or_else(|| low.map_or(HIGH, |low| low.saturating_mul(4)));
        let low = low.unwrap_or(high / 4);
        if low > high {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the low watermark ({low}) must not exceed the high watermark ({high})"),
            ));
        }
        self.high.set(high);
        self.low.set(low);
        self.pause_if_above();
        Ok(())
    }

    fn pause_if_above(&self) {
        if self.size.get() > self.high.get() {
            self.is_paused.set(true);
        }
    }
}
