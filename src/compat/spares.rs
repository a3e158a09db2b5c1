//! Write buffers that nobody uses at the moment.

use std::cell::RefCell;

use super::write_buffer::BOUND;

/// How many are kept.
const SPARES_MAX: usize = 32;

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, perhaps with room. A thread that is ending has none.
pub(super) fn take() -> Vec<u8> {
    let spare = SPARES.try_with(|spares| spares.borrow_mut().pop());
    spare.ok().flatten().unwrap_or_default()
}

/// Keeps a buffer for the next who needs one.
pub(super) fn give_back(mut buf: Vec<u8>) {
    // Growth may have made more room than was ever asked for.
    if buf.capacity() == 0 || buf.capacity() > 2 * BOUND {
        return;
    }
    buf.clear();
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(buf);
        }
    });
}
