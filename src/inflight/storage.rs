//! The memory that the kernel may touch: one box per place in the table, never moved.

use std::mem::{MaybeUninit, align_of, size_of};

use crate::driver::{SCRATCH_LEN, Scratch};

/// How many bytes of load lie inline.
const PAYLOAD_LEN: usize = 64;

#[repr(C, align(16))]
pub(super) struct OpStorage {
    pub(super) scratch: Scratch,
    payload: MaybeUninit<[u8; PAYLOAD_LEN]>,
}

/// A pointer to the load, made without a reference to the cargo.
pub(super) fn payload_ptr(storage: *mut OpStorage) -> *mut u8 {
    // SAFETY: the cargo is allocated as long as its table is; this only computes an address.
    unsafe { (&raw mut (*storage).payload).cast() }
}

impl OpStorage {
    pub(super) fn new() -> *mut OpStorage {
        Box::into_raw(Box::new(OpStorage {
            scratch: Scratch([MaybeUninit::uninit(); SCRATCH_LEN]),
            payload: MaybeUninit::uninit(),
        }))
    }
}

const fn fits<T>() -> bool {
    size_of::<T>() <= PAYLOAD_LEN && align_of::<T>() <= align_of::<OpStorage>()
}

/// Moves a load to its final address and says where that is.
///
/// # Safety
///
/// `place` is a free cargo's load.
pub(super) unsafe fn store_payload<T>(place: *mut u8, payload: T) -> *mut T {
    if fits::<T>() {
        let place = place.cast::<T>();
        // SAFETY: it fits, and the place holds nothing.
        unsafe { place.write(payload) };
        place
    } else {
        let boxed = Box::into_raw(Box::new(payload));
        // SAFETY: a pointer fits, and the place holds nothing.
        unsafe { place.cast::<*mut T>().write(boxed) };
        boxed
    }
}

/// Moves a load out of its place.
///
/// # Safety
///
/// `store_payload::<T>` filled this place, nobody has unloaded it since, and the kernel is done with it.
pub(super) unsafe fn take_payload<T>(place: *mut u8) -> T {
    if fits::<T>() {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<T>().read() }
    } else {
        // SAFETY: the caller's promise; `store_payload` put a box's pointer here.
        unsafe { *Box::from_raw(place.cast::<*mut T>().read()) }
    }
}

/// As [`unload`], for a flight whose type nobody knows any more.
pub(super) unsafe fn drop_payload<T>(place: *mut u8) {
    // SAFETY: the caller's promise, which is `unload`'s.
    drop(unsafe { take_payload::<T>(place) });
}
