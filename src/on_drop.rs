//! A guard that runs a closure when it is dropped.

/// Calls the closure when the enclosing scope returns, unwinds or is cancelled. `mem::forget` disarms it.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}
