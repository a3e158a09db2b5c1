//! A guard that runs a closure.

/// Calls the closure when dropped, whether a function returns, unwinds or is cancelled. `mem::forget` disarms it.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}
