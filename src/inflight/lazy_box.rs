//! What most do without.

/// Takes one word until it is needed, and a box from then on.
pub(crate) struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> LazyBox<T> {
        LazyBox(None)
    }
}

impl<T: Default> LazyBox<T> {
    /// What there is, if it was ever needed.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// It is needed.
    pub(crate) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
