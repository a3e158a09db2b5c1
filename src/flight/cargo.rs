//! The memory that the kernel may touch: one box per place in the table, never moved.

use std::mem::{MaybeUninit, align_of, size_of};

use crate::driver::{SCRATCH_LEN, Scratch};

/// How many bytes of load lie inline.
const LOAD_LEN: usize = 64;

#[repr(C, align(16))]
pub(super) struct Cargo {
    pub(super) scratch: Scratch,
    load: MaybeUninit<[u8; LOAD_LEN]>,
}

/// A pointer to the load, made without a reference to the cargo.
pub(super) fn load_of(cargo: *mut Cargo) -> *mut u8 {
    // SAFETY: the cargo is allocated as long as its table is; this only computes an address.
    unsafe { (&raw mut (*cargo).load).cast() }
}

impl Cargo {
    pub(super) fn new() -> *mut Cargo {
        Box::into_raw(Box::new(Cargo {
            scratch: Scratch([MaybeUninit::uninit(); SCRATCH_LEN]),
            load: MaybeUninit::uninit(),
        }))
    }
}

const fn fits<T>() -> bool {
    size_of::<T>() <= LOAD_LEN && align_of::<T>() <= align_of::<Cargo>()
}

/// Moves a load to its final address and says where that is.
///
/// # Safety
///
/// `place` is a free cargo's load.
pub(super) unsafe fn load_up<T>(place: *mut u8, load: T) -> *mut T {
    if fits::<T>() {
        let place = place.cast::<T>();
        // SAFETY: it fits, and the place holds nothing.
        unsafe { place.write(load) };
        place
    } else {
        let boxed = Box::into_raw(Box::new(load));
        // SAFETY: a pointer fits, and the place holds nothing.
        unsafe { place.cast::<*mut T>().write(boxed) };
        boxed
    }
}

/// Moves a load out of its place.
///
/// # Safety
///
/// `load_up::<T>` filled this place, nobody has unloaded it since, and the kernel is done with it.
pub(super) unsafe fn unload<T>(place: *mut u8) -> T {
    if fits::<T>() {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<T>().read() }
    } else {
        // SAFETY: the caller's promise; `load_up` put a box's pointer here.
        unsafe { *Box::from_raw(place.cast::<*mut T>().read()) }
    }
}

/// As [`unload`], for a flight whose type nobody knows any more.
pub(super) unsafe fn drop_load<T>(place: *mut u8) {
    // SAFETY: the caller's promise, which is `unload`'s.
    drop(unsafe { unload::<T>(place) });
}
