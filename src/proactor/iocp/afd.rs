//! Waiting for socket readiness through AFD, the driver below Winsock.
//!
//! AFD's device has an undocumented overlapped poll of any number of sockets. `select` and the event libraries of
//! Windows (mio, libuv, wepoll) are built on it. One handle to the device is enough here: only foreign sockets,
//! datagrams, and sends that found the send buffer full wait in this way.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{FILE_OPEN, NtCreateFile};
use windows_sys::Wdk::System::IO::NtDeviceIoControlFile;
use windows_sys::Win32::Foundation::{
    HANDLE, NTSTATUS, RtlNtStatusToDosError, STATUS_PENDING, STATUS_SUCCESS, UNICODE_STRING,
};
use windows_sys::Win32::Networking::WinSock::{SIO_BASE_HANDLE, SOCKET};
use windows_sys::Win32::Storage::FileSystem::{FILE_SHARE_READ, FILE_SHARE_WRITE, SYNCHRONIZE};
use windows_sys::Win32::System::IO::{IO_STATUS_BLOCK, OVERLAPPED};

use super::overlapped::IocpScratch;
use super::port::Port;
use crate::driver::op::Direction;
use crate::sys::{self, Fd};

/// `AFD_POLL_INFO` for one socket: the request, which AFD overwrites with its reply.
#[repr(C)]
struct Poll {
    timeout: i64,
    count: u32,
    exclusive: u32,
    socket: HANDLE,
    events: u32,
    status: NTSTATUS,
}

const _: () = assert!(size_of::<Poll>() <= size_of::<[u64; 11]>());

const IOCTL_AFD_POLL: u32 = 0x0001_2024;

const RECEIVE: u32 = 0x001;
const SEND: u32 = 0x004;
const DISCONNECT: u32 = 0x008;
const ABORT: u32 = 0x010;
const LOCAL_CLOSE: u32 = 0x020;
const ACCEPT: u32 = 0x080;
const CONNECT_FAIL: u32 = 0x100;

pub(super) struct Afd(OwnedHandle);

impl Afd {
    /// Opens the device, and associates it with the port.
    pub(super) fn open(port: &Port) -> io::Result<Afd> {
        let name: Vec<u16> = r"\Device\Afd\Windlass".encode_utf16().collect();
        let len = (name.len() * 2) as u16;
        let name = UNICODE_STRING {
            Length: len,
            MaximumLength: len,
            Buffer: name.as_ptr().cast_mut(),
        };
        let attributes = OBJECT_ATTRIBUTES {
            Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
            ObjectName: &raw const name,
            ..OBJECT_ATTRIBUTES::default()
        };
        let mut device: HANDLE = std::ptr::null_mut();
        let mut status = IO_STATUS_BLOCK::default();
        let share = FILE_SHARE_READ | FILE_SHARE_WRITE;
        // SAFETY: the system reads the attributes and the name, which outlive the call, and writes the two locals.
        let result = unsafe {
            NtCreateFile(
                &mut device,
                SYNCHRONIZE,
                &attributes,
                &mut status,
                std::ptr::null(),
                0,
                share,
                FILE_OPEN,
                0,
                std::ptr::null(),
                0,
            )
        };
        if result != STATUS_SUCCESS {
            let error = io::Error::from_raw_os_error(win32_code(result));
            return Err(crate::sys::context(
                "cannot open AFD, the device that reports socket readiness",
                error,
            ));
        }
        // SAFETY: the handle is new and ours.
        let device = unsafe { OwnedHandle::from_raw_handle(device) };
        port.associate(device.as_raw_handle())?;
        Ok(Afd(device))
    }

    pub(super) fn handle(&self) -> HANDLE {
        self.0.as_raw_handle()
    }

    /// Starts a poll of one socket; it completes on the port when the socket is ready.
    ///
    /// # Safety
    ///
    /// `scratch` is laid out, and the kernel does not use it. On `Ok` the kernel owns it until the port returns it.
    pub(super) unsafe fn poll(&self, scratch: *mut IocpScratch, fd: Fd, direction: Direction) -> Result<(), i32> {
        let events = match direction {
            Direction::Read => RECEIVE | ACCEPT | DISCONNECT | ABORT | CONNECT_FAIL | LOCAL_CLOSE,
            Direction::Write => SEND | ABORT | CONNECT_FAIL | LOCAL_CLOSE,
        };
        let poll = Poll {
            timeout: i64::MAX,
            count: 1,
            exclusive: 0,
            socket: base_socket(fd)? as HANDLE,
            events,
            status: 0,
        };
        // SAFETY: the caller's promise: the scratch is the operation's. The request fits, as asserted above.
        let (overlapped, request) = unsafe {
            let request = (&raw mut (*scratch).extra).cast::<Poll>();
            request.write(poll);
            let overlapped = &raw mut (*scratch).overlapped;
            (*overlapped).Internal = STATUS_PENDING as u32 as usize;
            (overlapped, request)
        };
        let (status, len) = (overlapped.cast::<IO_STATUS_BLOCK>(), size_of::<Poll>() as u32);
        let none = std::ptr::null_mut();
        // SAFETY: the first two words of an OVERLAPPED are an IO_STATUS_BLOCK, as Windows itself uses them. Request and
        // reply share memory, which belongs to the operation until the port returns the OVERLAPPED.
        let result = unsafe {
            NtDeviceIoControlFile(
                self.handle(),
                none,
                None,
                overlapped.cast(),
                status,
                IOCTL_AFD_POLL,
                request.cast(),
                len,
                request.cast(),
                len,
            )
        };
        match result {
            // A socket that is ready at once queues a packet too.
            STATUS_SUCCESS | STATUS_PENDING => Ok(()),
            refused => Err(win32_code(refused)),
        }
    }
}

/// The base provider's socket, below any layered service providers.
fn base_socket(fd: Fd) -> Result<SOCKET, i32> {
    let mut base: SOCKET = 0;
    // SAFETY: the code takes nothing and returns a socket's number.
    unsafe { sys::ioctl(sys::socket(fd), SIO_BASE_HANDLE, &(), &mut base) }?;
    Ok(base)
}

/// Converts an NTSTATUS to a Win32 error code.
pub(super) fn win32_code(status: NTSTATUS) -> i32 {
    // SAFETY: the call takes and returns a number.
    unsafe { RtlNtStatusToDosError(status) as i32 }
}

/// The status with which the operation of an OVERLAPPED ended.
pub(super) fn status_of(overlapped: &OVERLAPPED) -> NTSTATUS {
    overlapped.Internal as NTSTATUS
}
