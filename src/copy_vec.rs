//! A growable array of `Copy` values that is changed through `&self`.
//!
//! Why this is sound without a borrow flag: the type is not `Sync`. No method returns a reference to an element, and
//! while a method uses the array it calls no other code: elements have no destructor, and `reserve` calls the allocator
//! only before and after it touches the array.

use std::cell::UnsafeCell;

pub(crate) struct CopyVec<T: Copy>(UnsafeCell<Vec<T>>);

impl<T: Copy> CopyVec<T> {
    pub(crate) const fn new() -> CopyVec<T> {
        CopyVec(UnsafeCell::new(Vec::new()))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: see the module.
        unsafe { (*self.0.get()).len() }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<T> {
        // SAFETY: see the module.
        unsafe { (&*self.0.get()).get(index).copied() }
    }

    /// Replaces an element and returns it. Panics if there is none at this index.
    #[inline]
    pub(crate) fn replace(&self, index: usize, value: T) -> T {
        // SAFETY: see the module.
        unsafe { std::mem::replace(&mut (&mut *self.0.get())[index], value) }
    }

    #[inline]
    pub(crate) fn push(&self, value: T) {
        // SAFETY: see the module; this reads two numbers.
        let is_full = unsafe { (*self.0.get()).len() == (*self.0.get()).capacity() };
        if is_full {
            self.reserve();
        }
        // SAFETY: see the module; there is room, so this does not allocate.
        unsafe { (*self.0.get()).push(value) }
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        // SAFETY: see the module.
        unsafe { (*self.0.get()).pop() }
    }

    /// Makes room for at least one more element.
    #[cold]
    fn reserve(&self) {
        let mut larger = Vec::with_capacity((2 * self.len()).max(16));
        // An allocator that pushes to this array is absurd. If it does, the copy must still not allocate.
        assert!(self.len() < larger.capacity());
        // SAFETY: see the module.
        let old = unsafe {
            larger.extend_from_slice(&*self.0.get());
            std::mem::replace(&mut *self.0.get(), larger)
        };
        drop(old);
    }
}

impl<T: Copy> Default for CopyVec<T> {
    fn default() -> CopyVec<T> {
        CopyVec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_shrinks_like_a_vector() {
        let array = CopyVec::new();
        assert_eq!((array.len(), array.pop(), array.get(0)), (0, None, None));
        for value in 0..1_000 {
            array.push(value);
        }
        assert_eq!((array.len(), array.get(17), array.get(1_000)), (1_000, Some(17), None));
        assert_eq!((array.replace(17, -1), array.replace(17, 17)), (17, -1));
        for value in (0..1_000).rev() {
            assert_eq!(array.pop(), Some(value));
        }
        assert_eq!(array.len(), 0);
    }
}
