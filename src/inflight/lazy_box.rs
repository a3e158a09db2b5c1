//! A lazily boxed optional field: one word until first use.

/// `None` until [`get_or_init`](LazyBox::get_or_init) is called.
pub(crate) struct LazyBox<T>(Option<Box<T>>);

impl<T> Default for LazyBox<T> {
    fn default() -> LazyBox<T> {
        LazyBox(None)
    }
}

impl<T: Default> LazyBox<T> {
    /// The value, if it was ever used.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    pub(crate) fn get_or_init(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}
