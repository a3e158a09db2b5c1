//! The memory that the kernel may access: one box per slot of the table, never moved.

use std::mem::{MaybeUninit, align_of, size_of};

use crate::driver::{SCRATCH_LEN, Scratch};

/// Payloads of up to this many bytes are stored inline.
const PAYLOAD_LEN: usize = 64;

#[repr(C, align(16))]
pub(super) struct OpStorage {
    pub(super) scratch: Scratch,
    payload: MaybeUninit<[u8; PAYLOAD_LEN]>,
}

/// A pointer to the payload, made without a reference to the storage.
pub(super) fn payload_ptr(storage: *mut OpStorage) -> *mut u8 {
    // SAFETY: the storage is allocated as long as its table is; this only computes an address.
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

/// Moves a payload to its final address and returns that address.
///
/// # Safety
///
/// `slot` is the payload pointer of a free storage.
pub(super) unsafe fn store_payload<T>(slot: *mut u8, payload: T) -> *mut T {
    if fits::<T>() {
        let slot = slot.cast::<T>();
        // SAFETY: it fits, and the slot is empty.
        unsafe { slot.write(payload) };
        slot
    } else {
        let boxed = Box::into_raw(Box::new(payload));
        // SAFETY: a pointer fits, and the slot is empty.
        unsafe { slot.cast::<*mut T>().write(boxed) };
        boxed
    }
}

/// Moves a payload out of its slot.
///
/// # Safety
///
/// `store_payload::<T>` filled this slot, the payload was not taken since, and the kernel is done with it.
pub(super) unsafe fn take_payload<T>(slot: *mut u8) -> T {
    if fits::<T>() {
        // SAFETY: the caller's promise.
        unsafe { slot.cast::<T>().read() }
    } else {
        // SAFETY: the caller's promise; `store_payload` put a box's pointer here.
        unsafe { *Box::from_raw(slot.cast::<*mut T>().read()) }
    }
}

/// [`take_payload`] as a function pointer for the table, which does not know the type; the same safety rules apply.
pub(super) unsafe fn drop_payload<T>(slot: *mut u8) {
    // SAFETY: the caller's promise, which is that of `take_payload`.
    drop(unsafe { take_payload::<T>(slot) });
}
