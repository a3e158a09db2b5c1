//! Winsock extension functions, AcceptEx and ConnectEx, which WSAIoctl looks up by GUID at run time.

use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, LPFN_CONNECTEX, SIO_GET_EXTENSION_FUNCTION_POINTER, SOCKET, WSAID_ACCEPTEX, WSAID_CONNECTEX,
};
use windows_sys::core::GUID;

use crate::sys;

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
    // SAFETY: the code takes a GUID and returns the pointer to its function, whose type the caller promises.
    unsafe { sys::ioctl(socket, SIO_GET_EXTENSION_FUNCTION_POINTER, &id, &mut function) }?;
    Ok(function)
}
