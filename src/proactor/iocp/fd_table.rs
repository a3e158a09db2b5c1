//! What is known of each handle: whether it belongs to the port, and whether what ends at once is told by the call alone.
//!
//! Numbers are small and multiples of four, since the kernel gives out the lowest that is free.

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

/// What is known of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing.
    New,
    /// It belongs to the port.
    Ours { skips: bool },
    /// It was not opened for overlapped calls: threads serve it.
    Plain,
    /// It belonged to the port when it was given away, and may still.
    GivenAway { skips: bool },
}

/// How a handle is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Overlapped; what ends at once is told by the call alone, if it skips the port.
    Overlapped { skips: bool },
    /// Not overlapped.
    Plain,
}

#[derive(Default)]
pub(super) struct FdTable {
    fds: Vec<Place>,
}

impl FdTable {
    fn get(&mut self, fd: Fd) -> &mut Place {
        let index = fd as usize >> 2;
        if index >= self.fds.len() {
            self.fds.resize(index + 1, Place::New);
        }
        &mut self.fds[index]
    }

    /// The number is free, or somebody else's.
    pub(super) fn forget(&mut self, fd: Fd) {
        if fd >= 0 {
            *self.get(fd) = Place::New;
        }
    }

    /// Something comes under this number. Unless it is what we gave away, it is somebody new.
    pub(super) fn forget_if_gone(&mut self, fd: Fd) {
        if fd >= 0 && !matches!(self.get(fd), Place::GivenAway { .. }) {
            self.forget(fd);
        }
    }

    /// Whatever it was opened for, threads serve it.
    pub(super) fn leave_plain(&mut self, fd: Fd) {
        *self.get(fd) = Place::Plain;
    }

    /// The handle stays open, and others will use it. Windows 8.1 and later can take it out of the port; before that, and
    /// under Wine 8, it stays there, and comes back to this loop only.
    pub(super) fn give_away(&mut self, fd: Fd) {
        if fd < 0 {
            return;
        }
        let place = self.get(fd);
        if let Place::Ours { skips } = *place {
            let none = FILE_COMPLETION_INFORMATION {
                Port: std::ptr::null_mut(),
                Key: std::ptr::null_mut(),
            };
            let mut status = IO_STATUS_BLOCK::default();
            let len = size_of::<FILE_COMPLETION_INFORMATION>() as u32;
            let handle = sys::handle(fd);
            let what = FileReplaceCompletionInformation;
            // SAFETY: the system reads and writes the two locals, and keeps no pointer to them.
            let result = unsafe { NtSetInformationFile(handle, &mut status, (&raw const none).cast(), len, what) };
            *place = match result >= 0 {
                true => Place::New,
                false => Place::GivenAway { skips },
            };
        } else {
            *place = Place::New;
        }
    }

    /// Makes sure that what is begun on a handle is heard of, and says how.
    pub(super) fn use_of(&mut self, port: &Port, fd: Fd) -> io::Result<Use> {
        let place = *self.get(fd);
        let place = match place {
            Place::Ours { .. } | Place::Plain => place,
            Place::New | Place::GivenAway { .. } => {
                let taken = self.absorb_orphan(port, fd, place)?;
                *self.get(fd) = taken;
                taken
            }
        };
        Ok(match place {
            Place::Ours { skips } => Use::Overlapped { skips },
            _ => Use::Plain,
        })
    }

    fn absorb_orphan(&self, port: &Port, fd: Fd, before: Place) -> io::Result<Place> {
        let handle = sys::handle(fd);
        let kind = sys::with(fd, |socket| socket.r#type());
        match (port.absorb_orphan(handle), before) {
            (Ok(()), _) => {}
            // It belongs to a port already, and the only one that we know of is ours.
            (Err(error), Place::GivenAway { skips }) if is_refusal(&error) && sys::is_overlapped(fd) => {
                return Ok(Place::Ours { skips });
            }
            (Err(error), _) if is_refusal(&error) && kind.is_err() && !sys::is_overlapped(fd) => {
                return Ok(Place::Plain);
            }
            (Err(error), _) => {
                let why = "it belongs to another loop's completion port, and this system cannot change that";
                return Err(crate::sys::context(why, error));
            }
        }
        // With datagrams, versions of Windows have told of neither.
        let can_skip = match kind {
            Ok(kind) => i32::from(kind) == SOCK_STREAM && has_no_layers(fd),
            Err(_) => true,
        };
        let modes = (FILE_SKIP_COMPLETION_PORT_ON_SUCCESS | FILE_SKIP_SET_EVENT_ON_HANDLE) as u8;
        // SAFETY: the call takes a handle and a number.
        let skips = can_skip && unsafe { SetFileCompletionNotificationModes(handle, modes) } != 0;
        Ok(Place::Ours { skips })
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_INVALID_PARAMETER as i32)
}

/// Whether a socket is a handle of the system's: with layered providers between, nobody knows what the port is told.
fn has_no_layers(fd: Fd) -> bool {
    // SAFETY: zeroes are valid there: numbers and characters.
    let mut info: WSAPROTOCOL_INFOW = unsafe { std::mem::zeroed() };
    let mut len = size_of::<WSAPROTOCOL_INFOW>() as i32;
    let place = (&raw mut info).cast();
    // SAFETY: Winsock fills the local, of the length that it is told.
    let result = unsafe { getsockopt(sys::socket(fd), SOL_SOCKET, SO_PROTOCOL_INFOW, place, &mut len) };
    result == 0 && info.dwServiceFlags1 & XP1_IFS_HANDLES != 0
}
