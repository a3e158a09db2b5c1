//! The completion port: associating handles, dequeuing packets in batches, waking the loop.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::{
    ERROR_NO_SYSTEM_RESOURCES, GetLastError, HANDLE, INVALID_HANDLE_VALUE, WAIT_IO_COMPLETION, WAIT_TIMEOUT,
};
use windows_sys::Win32::System::IO::{
    CreateIoCompletionPort, GetQueuedCompletionStatusEx, OVERLAPPED_ENTRY, PostQueuedCompletionStatus,
};

use crate::driver::Notify;
use crate::sys::{self, Fd};

pub(super) struct Port(OwnedHandle);

impl Port {
    pub(super) fn open() -> io::Result<Port> {
        // One thread dequeues: the loop's.
        // SAFETY: nothing is passed in; the returned handle is new and ours.
        let port = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, std::ptr::null_mut(), 0, 1) };
        if port.is_null() {
            let error = io::Error::last_os_error();
            return Err(crate::sys::context("cannot create a completion port", error));
        }
        // SAFETY: as above.
        Ok(Port(unsafe { OwnedHandle::from_raw_handle(port) }))
    }

    /// Associates a handle: operations that are started on it from now on complete on this port.
    pub(super) fn associate(&self, handle: HANDLE) -> io::Result<()> {
        // SAFETY: the port is open; the call keeps no pointer, and fails on a handle that is not open.
        match unsafe { CreateIoCompletionPort(handle, self.0.as_raw_handle(), 0, 0) }.is_null() {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    pub(super) fn number(&self) -> Fd {
        sys::number_of_handle(self.0.as_raw_handle())
    }

    /// Waits for packets and dequeues up to a batch, in place of the earlier ones.
    pub(super) fn dequeue(
        &self,
        packets: &mut Vec<OVERLAPPED_ENTRY>,
        milliseconds: u32,
        alertable: bool,
    ) -> io::Result<Dequeued> {
        let (port, alertable, mut count) = (self.0.as_raw_handle(), i32::from(alertable), 0);
        packets.clear();
        packets.reserve(BATCH);
        let place = packets.as_mut_ptr();
        // SAFETY: the system writes the local, and at most `BATCH` packets, for which there is space; the port is open.
        let succeeded =
            unsafe { GetQueuedCompletionStatusEx(port, place, BATCH as u32, &mut count, milliseconds, alertable) };
        if succeeded == 0 {
            // SAFETY: this reads a thread-local error code.
            return match unsafe { GetLastError() } {
                WAIT_TIMEOUT => Ok(Dequeued::TimedOut),
                WAIT_IO_COMPLETION => Ok(Dequeued::TimerFired),
                // The loop pauses and polls again after this one.
                ERROR_NO_SYSTEM_RESOURCES => Err(io::Error::from_raw_os_error(sys::errno::NO_BUFFERS)),
                code => Err(io::Error::from_raw_os_error(code as i32)),
            };
        }
        // SAFETY: the system has written this many packets.
        unsafe { packets.set_len(count as usize) };
        Ok(match packets.len() {
            BATCH => Dequeued::Full,
            _ => Dequeued::All,
        })
    }
}

impl Notify for Port {
    fn notify(&self) {
        // SAFETY: the port is open while it is borrowed. A null OVERLAPPED marks a notification.
        unsafe { PostQueuedCompletionStatus(self.0.as_raw_handle(), 0, 0, std::ptr::null()) };
    }
}

/// The most packets that one call dequeues.
pub(super) const BATCH: usize = 128;

/// How a wait on the port ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dequeued {
    /// With a full batch; there may be more.
    Full,
    /// With every packet that was queued.
    All,
    /// With the call's own timeout.
    TimedOut,
    /// With the timer's APC.
    TimerFired,
}
