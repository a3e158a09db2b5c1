//! Operations in the air: what of them the kernel has, and what is known here.

use std::mem::{align_of, size_of};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::OVERLAPPED;

use crate::driver::op::Op;
use crate::driver::{OpId, PoolBuffer, Scratch};
use crate::sys;

/// How a flight's scratch is laid out. The kernel has the first field from the begin of the operation to its end, and the
/// last one too where the call is given its address.
#[repr(C)]
pub(super) struct InFlight {
    /// First: the port gives its address out, and that is this structure's.
    pub(super) overlapped: OVERLAPPED,
    pub(super) id: OpId,
    pub(super) op: Op,
    /// The addresses of an accept; what a wait for readiness asks and is answered.
    pub(super) room: [u64; ROOM],
}

const ROOM: usize = 11;

const _: () = {
    assert!(size_of::<InFlight>() <= size_of::<Scratch>());
    assert!(align_of::<InFlight>() <= align_of::<Scratch>());
};

impl InFlight {
    /// Lays a scratch out for an operation that is about to begin.
    ///
    /// # Safety
    ///
    /// The scratch is the flight's, and nothing of it is with the kernel.
    pub(super) unsafe fn prepare(scratch: *mut Scratch, id: OpId, op: Op) -> *mut InFlight {
        let air = scratch.cast::<InFlight>();
        // SAFETY: it fits, as asserted above, and is the caller's.
        unsafe {
            air.write(InFlight {
                overlapped: std::mem::zeroed(),
                id,
                op,
                room: [0; ROOM],
            });
        }
        air
    }
}

/// What is known here of an operation in the air.
struct Entry {
    id: OpId,
    overlapped: *mut OVERLAPPED,
    /// What it is under way on.
    handle: HANDLE,
    is_ending: bool,
    /// The socket that an accept will fill.
    socket: Option<Unconnected>,
    /// The buffer that a pipe is read into.
    buffer: Option<PoolBuffer>,
}

/// A socket that nobody has yet: closed when it goes.
pub(super) struct Unconnected(sys::Fd);

impl Unconnected {
    pub(super) fn new(fd: sys::Fd) -> Unconnected {
        Unconnected(fd)
    }

    pub(super) fn fd(&self) -> sys::Fd {
        self.0
    }

    pub(super) fn keep(self) -> sys::Fd {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Unconnected {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// By the flight's index.
#[derive(Default)]
pub(super) struct Air {
    entries: Vec<Option<Entry>>,
}

impl Air {
    /// An operation has begun.
    pub(super) fn mark_in_flight(&mut self, id: OpId, overlapped: *mut OVERLAPPED, handle: HANDLE) {
        let index = id.index as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(Entry {
            id,
            overlapped,
            handle,
            is_ending: false,
            socket: None,
            buffer: None,
        });
    }

    fn entry(&mut self, id: OpId) -> Option<&mut Entry> {
        self.entries
            .get_mut(id.index as usize)?
            .as_mut()
            .filter(|entry| entry.id == id)
    }

    /// What it needs until it is over.
    pub(super) fn give_socket(&mut self, id: OpId, socket: Unconnected) {
        if let Some(entry) = self.entry(id) {
            entry.socket = Some(socket);
        }
    }

    /// The same of a pipe's.
    pub(super) fn give_buffer(&mut self, id: OpId, buffer: PoolBuffer) {
        if let Some(entry) = self.entry(id) {
            entry.buffer = Some(buffer);
        }
    }

    /// Whether something is under way on a handle.
    pub(super) fn is_used(&self, handle: HANDLE) -> bool {
        self.entries.iter().flatten().any(|entry| entry.handle == handle)
    }

    /// Whether this is what the kernel has of a flight that is in the air.
    pub(super) fn is_in_flight(&mut self, id: OpId, overlapped: *mut OVERLAPPED) -> bool {
        self.entry(id).is_some_and(|entry| entry.overlapped == overlapped)
    }

    /// It shall end early: what to say so of. `None` if it is over.
    pub(super) fn request_cancel(&mut self, id: OpId) -> Option<(HANDLE, *mut OVERLAPPED)> {
        let entry = self.entry(id)?;
        entry.is_ending = true;
        Some((entry.handle, entry.overlapped))
    }

    pub(super) fn is_ending(&mut self, id: OpId) -> bool {
        self.entry(id).is_some_and(|entry| entry.is_ending)
    }

    /// It is over. Gives what it held.
    pub(super) fn touch_down(&mut self, id: OpId) -> (Option<Unconnected>, Option<PoolBuffer>) {
        let entry = match self.entries.get_mut(id.index as usize) {
            Some(place) if place.as_ref().is_some_and(|entry| entry.id == id) => place.take(),
            _ => None,
        };
        entry.map_or((None, None), |entry| (entry.socket, entry.buffer))
    }
}

impl Drop for Air {
    /// What is still in the air when the driver goes may yet be written to: its buffers and sockets are leaked, as its flight
    /// is.
    fn drop(&mut self) {
        for entry in self.entries.drain(..).flatten() {
            std::mem::forget(entry);
        }
    }
}
