//! Winsock extension functions, AcceptEx and ConnectEx, which WSAIoctl looks up by GUID at run time.

use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, LPFN_CONNECTEX, SIO_GET_EXTENSION_FUNCTION_POINTER, SOCKET, WSAGetLastError, WSAID_ACCEPTEX,
    WSAID_CONNECTEX, WSAIoctl,
};
use windows_sys::core::GUID;

/// Function pointers, each looked up at its first use.
#[derive(Default)]
pub(super) struct Extensions {
    accept: LPFN_ACCEPTEX,
    connect: LPFN_CONNECTEX,
}

impl Extensions {
    pub(super) fn accept(&mut self, socket: SOCKET) -> Result<LPFN_ACCEPTEX, i32> {
        if self.accept.is_none() {
            // SAFETY: the GUID is this function's.
            self.accept = unsafe { look_up(socket, WSAID_ACCEPTEX) }?;
        }
        Ok(self.accept)
    }

    pub(super) fn connect(&mut self, socket: SOCKET) -> Result<LPFN_CONNECTEX, i32> {
        if self.connect.is_none() {
            // SAFETY: the GUID is this function's.
            self.connect = unsafe { look_up(socket, WSAID_CONNECTEX) }?;
        }
        Ok(self.connect)
    }
}

/// # Safety
///
/// `F` is an optional pointer to the function that `id` names.
unsafe fn look_up<F: Default>(socket: SOCKET, id: GUID) -> Result<F, i32> {
    let mut function = F::default();
    let mut written = 0;
    // SAFETY: Winsock reads the GUID and writes a pointer to the local, which has that size; the caller promises its
    // type.
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
        // SAFETY: this reads a thread-local error code.
        _ => Err(unsafe { WSAGetLastError() }),
    }
}
