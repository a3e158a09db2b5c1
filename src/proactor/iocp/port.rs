//! The completion port: what belongs to it, what it gives out, how it is woken.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::{GetLastError, HANDLE, INVALID_HANDLE_VALUE, WAIT_IO_COMPLETION, WAIT_TIMEOUT};
use windows_sys::Win32::System::IO::{
    CreateIoCompletionPort, GetQueuedCompletionStatusEx, OVERLAPPED, OVERLAPPED_ENTRY, PostQueuedCompletionStatus,
};

use crate::driver::Notify;
use crate::sys::{self, Fd};

pub(super) struct Port(OwnedHandle);

impl Port {
    pub(super) fn open() -> io::Result<Port> {
        // One thread takes from it: this loop's.
        // SAFETY: nothing is passed in; what comes out is new and ours.
        let port = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, std::ptr::null_mut(), 0, 1) };
        if port.is_null() {
            let error = io::Error::last_os_error();
            return Err(crate::sys::context("no completion port could be had", error));
        }
        // SAFETY: as above.
        Ok(Port(unsafe { OwnedHandle::from_raw_handle(port) }))
    }

    /// What is begun on this handle from now on is heard of here.
    pub(super) fn absorb_orphan(&self, handle: HANDLE) -> io::Result<()> {
        // SAFETY: the port is open, and the handle is its owner's who lets us use it.
        match unsafe { CreateIoCompletionPort(handle, self.0.as_raw_handle(), 0, 0) }.is_null() {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    pub(super) fn number(&self) -> Fd {
        sys::number_of_handle(self.0.as_raw_handle())
    }
}

impl Notify for Port {
    fn notify(&self) {
        // SAFETY: the port is open as long as this is borrowed; there is no OVERLAPPED, which tells it from operations.
        unsafe { PostQueuedCompletionStatus(self.0.as_raw_handle(), 0, 0, std::ptr::null()) };
    }
}

/// How many completions are taken at once.
pub(super) const BATCH: usize = 128;

/// How a wait for the port has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    /// With as much as one batch holds; there may be more.
    Full,
    /// With all that was there.
    All,
    /// With its own timeout.
    TimeIsUp,
    /// With the timer's APC.
    TimerRan,
}

/// What the port gave out last.
pub(super) struct Batch {
    entries: Box<[OVERLAPPED_ENTRY; BATCH]>,
    len: usize,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            // SAFETY: zeroes are valid entries: null pointers and numbers.
            entries: Box::new(unsafe { std::mem::zeroed() }),
            len: 0,
        }
    }

    /// Waits as told, and takes what is there.
    pub(super) fn fetch(&mut self, port: &Port, milliseconds: u32, alertable: bool) -> io::Result<Fetched> {
        let mut count = 0;
        let entries = self.entries.as_mut_ptr();
        let port = port.0.as_raw_handle();
        self.len = 0;
        // SAFETY: the system writes at most so many entries, and the local; the port is open.
        let fetched = unsafe {
            GetQueuedCompletionStatusEx(
                port,
                entries,
                BATCH as u32,
                &mut count,
                milliseconds,
                i32::from(alertable),
            )
        };
        if fetched == 0 {
            // SAFETY: this reads a number of the thread's.
            return match unsafe { GetLastError() } {
                WAIT_TIMEOUT => Ok(Fetched::TimeIsUp),
                WAIT_IO_COMPLETION => Ok(Fetched::TimerRan),
                code => Err(io::Error::from_raw_os_error(code as i32)),
            };
        }
        self.len = count as usize;
        Ok(match self.len {
            BATCH => Fetched::Full,
            _ => Fetched::All,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// An OVERLAPPED, or null for a notification, and how many bytes were moved.
    pub(super) fn at(&self, index: usize) -> (*mut OVERLAPPED, u32) {
        let entry = &self.entries[..self.len][index];
        (entry.lpOverlapped, entry.dwNumberOfBytesTransferred)
    }
}
