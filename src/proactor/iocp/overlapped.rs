//! Operations in flight: the memory that the kernel writes to, and the driver's record of each.

use std::os::windows::io::OwnedSocket;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::OVERLAPPED;

use crate::driver::op::Op;
use crate::driver::pool::PoolBuffer;
use crate::driver::{OpId, Scratch};

/// How this driver lays out an operation's scratch. While the operation is in flight the kernel owns the first field,
/// and the last one if the call was given its address.
#[repr(C)]
pub(super) struct IocpScratch {
    /// First, so that the address that the port returns is this structure's.
    pub(super) overlapped: OVERLAPPED,
    pub(super) id: OpId,
    /// In place until the operation completes.
    pub(super) op: *const Op,
    /// The addresses that AcceptEx writes, or the request and reply of an AFD poll.
    pub(super) extra: [u64; EXTRA_WORDS],
}

const EXTRA_WORDS: usize = 11;

const _: () = {
    assert!(size_of::<IocpScratch>() <= size_of::<Scratch>());
    assert!(align_of::<IocpScratch>() <= align_of::<Scratch>());
};

impl IocpScratch {
    /// Lays out a scratch for an operation that is about to start.
    ///
    /// # Safety
    ///
    /// The scratch belongs to the operation, and the kernel does not use it.
    pub(super) unsafe fn prepare(scratch: *mut Scratch, id: OpId, op: &Op) -> *mut IocpScratch {
        let scratch = scratch.cast::<IocpScratch>();
        // SAFETY: it fits, as asserted above, and the caller owns the scratch.
        unsafe {
            scratch.write(IocpScratch {
                overlapped: OVERLAPPED::default(),
                id,
                op,
                extra: [0; EXTRA_WORDS],
            });
        }
        scratch
    }
}

/// The driver's record of an operation in flight.
pub(super) struct Entry {
    id: OpId,
    pub(super) overlapped: *mut OVERLAPPED,
    /// The handle that the call was made on: the AFD device's for a wait for readiness.
    pub(super) handle: HANDLE,
    pub(super) is_cancelled: bool,
    /// The socket that AcceptEx will connect, open until the operation completes.
    pub(super) socket: Option<OwnedSocket>,
    /// The buffer that a pipe is read into, kept until the operation completes.
    pub(super) buffer: Option<PoolBuffer>,
}

/// The operations in flight, by index.
#[derive(Default)]
pub(super) struct InFlightTable {
    entries: Vec<Option<Entry>>,
}

impl InFlightTable {
    pub(super) fn insert(&mut self, id: OpId, overlapped: *mut OVERLAPPED, handle: HANDLE) {
        let index = id.index();
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(Entry {
            id,
            overlapped,
            handle,
            is_cancelled: false,
            socket: None,
            buffer: None,
        });
    }

    /// The record of an operation; `None` if it has completed.
    pub(super) fn entry(&mut self, id: OpId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index())?.as_mut();
        entry.filter(|entry| entry.id == id)
    }

    /// Whether an operation on this handle is in flight.
    pub(super) fn uses(&self, handle: HANDLE) -> bool {
        self.entries.iter().flatten().any(|entry| entry.handle == handle)
    }

    /// Removes an operation that has ended. Returns the socket and the buffer that it held.
    pub(super) fn remove(&mut self, id: OpId) -> (Option<OwnedSocket>, Option<PoolBuffer>) {
        let slot = self.entries.get_mut(id.index());
        let entry = slot.and_then(|slot| slot.take_if(|entry| entry.id == id));
        entry.map_or((None, None), |entry| (entry.socket, entry.buffer))
    }
}

impl Drop for InFlightTable {
    /// The kernel may still write for these operations: their buffers and sockets are leaked, as their memory is.
    fn drop(&mut self) {
        for entry in self.entries.drain(..).flatten() {
            std::mem::forget(entry);
        }
    }
}
