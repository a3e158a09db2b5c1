//! Per-handle state: whether the handle is associated with the port, and whether an immediate success skips the port.
//!
//! A plain vector, because handle values are small multiples of four: the kernel reuses the lowest free value.

use std::io;

use windows_sys::Wdk::Storage::FileSystem::{
    FILE_COMPLETION_INFORMATION, FileReplaceCompletionInformation, NtSetInformationFile,
};
use windows_sys::Win32::Foundation::ERROR_INVALID_PARAMETER;
use windows_sys::Win32::Networking::WinSock::{
    SO_PROTOCOL_INFOW, SOCK_STREAM, SOL_SOCKET, WSAPROTOCOL_INFOW, XP1_IFS_HANDLES, getsockopt,
};
use windows_sys::Win32::Storage::FileSystem::SetFileCompletionNotificationModes;
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;
use windows_sys::Win32::System::WindowsProgramming::{
    FILE_SKIP_COMPLETION_PORT_ON_SUCCESS, FILE_SKIP_SET_EVENT_ON_HANDLE,
};

use super::port::Port;
use crate::sys::{self, Fd};

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandleState {
    /// Not used yet, or closed.
    Unknown,
    /// With `skips`, an operation that succeeds at once queues no packet on the port.
    Associated { skips: bool },
    /// Not opened for overlapped I/O: the blocking pool serves it.
    Plain,
    /// Given away, but the association could not be undone.
    Released { skips: bool },
}

#[derive(Default)]
pub(super) struct FdTable {
    states: Vec<HandleState>,
}

impl FdTable {
    fn get(&mut self, fd: Fd) -> &mut HandleState {
        let index = fd as usize >> 2;
        if index >= self.states.len() {
            self.states.resize(index + 1, HandleState::Unknown);
        }
        &mut self.states[index]
    }

    /// The handle was closed, or its number belongs to a new one.
    pub(super) fn forget(&mut self, fd: Fd) {
        if fd >= 0 {
            *self.get(fd) = HandleState::Unknown;
        }
    }

    /// A handle is adopted. Unless it is one that this loop released, it is unknown.
    pub(super) fn forget_unless_released(&mut self, fd: Fd) {
        if fd >= 0 && !matches!(self.get(fd), HandleState::Released { .. }) {
            self.forget(fd);
        }
    }

    /// Uses the blocking pool for this handle, even if it was opened for overlapped I/O.
    pub(super) fn mark_plain(&mut self, fd: Fd) {
        *self.get(fd) = HandleState::Plain;
    }

    /// Gives up a handle that stays open. Windows 8.1 and later can undo the association. Earlier versions and Wine 8
    /// cannot: then only this loop can use the handle again.
    pub(super) fn release(&mut self, fd: Fd) {
        if fd < 0 {
            return;
        }
        let state = self.get(fd);
        if let HandleState::Associated { skips } = std::mem::replace(state, HandleState::Unknown) {
            // No port.
            let none = FILE_COMPLETION_INFORMATION::default();
            let mut status = IO_STATUS_BLOCK::default();
            let len = size_of::<FILE_COMPLETION_INFORMATION>() as u32;
            let handle = sys::handle(fd);
            let class = FileReplaceCompletionInformation;
            // SAFETY: the system reads and writes the two locals, and keeps no pointer to them.
            let result = unsafe { NtSetInformationFile(handle, &mut status, (&raw const none).cast(), len, class) };
            if result < 0 {
                *state = HandleState::Released { skips };
            }
        }
    }

    /// Associates a handle with the port at its first use. Returns whether an operation that succeeds at once queues no
    /// packet; `None` if operations on the handle run on the blocking pool.
    pub(super) fn skips(&mut self, port: &Port, fd: Fd) -> io::Result<Option<bool>> {
        let mut state = *self.get(fd);
        if let HandleState::Unknown | HandleState::Released { .. } = state {
            state = self.associate(port, fd, state)?;
            *self.get(fd) = state;
        }
        Ok(match state {
            HandleState::Associated { skips } => Some(skips),
            _ => None,
        })
    }

    fn associate(&self, port: &Port, fd: Fd, before: HandleState) -> io::Result<HandleState> {
        let handle = sys::handle(fd);
        let kind = sys::with(fd, |socket| socket.r#type());
        match (port.associate(handle), before) {
            (Ok(()), _) => {}
            // It is still associated with a port, and this loop released it, so the port is this loop's.
            (Err(error), HandleState::Released { skips }) if is_refusal(&error) && sys::is_overlapped(fd) => {
                return Ok(HandleState::Associated { skips });
            }
            (Err(error), _) if is_refusal(&error) && kind.is_err() && !sys::is_overlapped(fd) => {
                return Ok(HandleState::Plain);
            }
            (Err(error), _) => {
                let why = "the handle belongs to another loop's completion port, and this system cannot undo that";
                return Err(crate::sys::context(why, error));
            }
        }
        // With datagrams, some versions of Windows report a completion neither through the call nor through the port.
        let can_skip = match kind {
            Ok(kind) => i32::from(kind) == SOCK_STREAM && has_no_layers(fd),
            Err(_) => true,
        };
        let modes = (FILE_SKIP_COMPLETION_PORT_ON_SUCCESS | FILE_SKIP_SET_EVENT_ON_HANDLE) as u8;
        // SAFETY: the call takes no pointer.
        let skips = can_skip && unsafe { SetFileCompletionNotificationModes(handle, modes) } != 0;
        Ok(HandleState::Associated { skips })
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_INVALID_PARAMETER as i32)
}

/// Whether a socket is a kernel handle. With layered service providers, skip-on-success is not reliable.
fn has_no_layers(fd: Fd) -> bool {
    let mut info = WSAPROTOCOL_INFOW::default();
    let mut len = size_of::<WSAPROTOCOL_INFOW>() as i32;
    let out = (&raw mut info).cast();
    // SAFETY: Winsock fills the local, whose length it is given.
    let result = unsafe { getsockopt(sys::socket(fd), SOL_SOCKET, SO_PROTOCOL_INFOW, out, &mut len) };
    result == 0 && info.dwServiceFlags1 & XP1_IFS_HANDLES != 0
}
