//! Calls that Winsock has beside the ordinary ones, and gives out by their ids.

use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, LPFN_CONNECTEX, SIO_GET_EXTENSION_FUNCTION_POINTER, SOCKET, WSAGetLastError, WSAID_ACCEPTEX,
    WSAID_CONNECTEX, WSAIoctl,
};
use windows_sys::core::GUID;

/// Each is asked for when it is first needed.
#[derive(Default)]
pub(super) struct Extensions {
    accept: LPFN_ACCEPTEX,
    connect: LPFN_CONNECTEX,
}

impl Extensions {
    pub(super) fn accept(&mut self, socket: SOCKET) -> Result<LPFN_ACCEPTEX, i32> {
        if self.accept.is_none() {
            // SAFETY: the id is this function's.
            self.accept = unsafe { ask(socket, WSAID_ACCEPTEX) }?;
        }
        Ok(self.accept)
    }

    pub(super) fn connect(&mut self, socket: SOCKET) -> Result<LPFN_CONNECTEX, i32> {
        if self.connect.is_none() {
            // SAFETY: the id is this function's.
            self.connect = unsafe { ask(socket, WSAID_CONNECTEX) }?;
        }
        Ok(self.connect)
    }
}

/// # Safety
///
/// `F` is an optional pointer to the function that `id` names.
unsafe fn ask<F: Default>(socket: SOCKET, id: GUID) -> Result<F, i32> {
    let mut function = F::default();
    let mut written = 0;
    // SAFETY: Winsock reads the id and writes a pointer to the local; an optional function pointer is as large as that, and
    // the caller's promise is its type.
    let result = unsafe {
        WSAIoctl(
            socket,
            SIO_GET_EXTENSION_FUNCTION_POINTER,
            (&raw const id).cast(),
            size_of::<GUID>() as u32,
            (&raw mut function).cast(),
            size_of::<F>() as u32,
            &mut written,
            std::ptr::null_mut(),
            None,
        )
    };
    match result {
        0 => Ok(function),
        // SAFETY: this reads a number of the thread's.
        _ => Err(unsafe { WSAGetLastError() }),
    }
}
