//! Waiting until a socket is ready.
//!
//! The driver below Winsock answers such a question, about any number of sockets, as an overlapped operation of its own
//! device. It is what `select` and every event library of Windows come down to. One handle to it is enough here: only foreign
//! sockets, datagrams, and sends for which there was no room are waited for in this way.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{FILE_OPEN, NtCreateFile};
use windows_sys::Wdk::System::IO::NtDeviceIoControlFile;
use windows_sys::Win32::Foundation::{
    HANDLE, NTSTATUS, RtlNtStatusToDosError, STATUS_PENDING, STATUS_SUCCESS, UNICODE_STRING,
};
use windows_sys::Win32::Networking::WinSock::{SIO_BASE_HANDLE, SOCKET, SOCKET_ERROR, WSAGetLastError, WSAIoctl};
use windows_sys::Win32::Storage::FileSystem::{FILE_SHARE_READ, FILE_SHARE_WRITE, SYNCHRONIZE};
use windows_sys::Win32::System::IO::{IO_STATUS_BLOCK, OVERLAPPED};

use super::overlapped::InFlight;
use super::port::Port;
use crate::driver::op::Direction;
use crate::sys::{self, Fd};

/// The question, which is also the place for the answer.
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
    /// Opens the device. What is asked through it is heard of from the port.
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
            RootDirectory: std::ptr::null_mut(),
            ObjectName: &raw const name,
            Attributes: 0,
            SecurityDescriptor: std::ptr::null(),
            SecurityQualityOfService: std::ptr::null(),
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
            let error = io::Error::from_raw_os_error(code(result));
            return Err(crate::sys::context(
                "the device that sockets are waited for with could not be opened",
                error,
            ));
        }
        // SAFETY: the handle is new and ours.
        let device = unsafe { OwnedHandle::from_raw_handle(device) };
        port.absorb_orphan(device.as_raw_handle())?;
        Ok(Afd(device))
    }

    pub(super) fn handle(&self) -> HANDLE {
        self.0.as_raw_handle()
    }

    /// Asks to be told when a socket is ready, by the port.
    ///
    /// # Safety
    ///
    /// `air` is laid out, belongs to a flight, and nothing of it is with the kernel. On `Ok` it is the kernel's until the
    /// port gives its OVERLAPPED out.
    pub(super) unsafe fn ask(&self, air: *mut InFlight, fd: Fd, direction: Direction) -> Result<(), i32> {
        let events = match direction {
            Direction::Read => RECEIVE | ACCEPT | DISCONNECT | ABORT | CONNECT_FAIL | LOCAL_CLOSE,
            Direction::Write => SEND | ABORT | CONNECT_FAIL | LOCAL_CLOSE,
        };
        let poll = Poll {
            timeout: i64::MAX,
            count: 1,
            exclusive: 0,
            socket: base(fd)? as HANDLE,
            events,
            status: 0,
        };
        // SAFETY: the caller's promise: the places are the flight's, and fit.
        let (overlapped, place) = unsafe {
            let place = (&raw mut (*air).room).cast::<Poll>();
            place.write(poll);
            let overlapped = &raw mut (*air).overlapped;
            (*overlapped).Internal = STATUS_PENDING as u32 as usize;
            (overlapped, place)
        };
        let (status, len) = (overlapped.cast::<IO_STATUS_BLOCK>(), size_of::<Poll>() as u32);
        let none = std::ptr::null_mut();
        // SAFETY: the first two words of an OVERLAPPED are the status block, as Windows itself uses them; question and answer
        // share a place, which like them is the flight's until the port has given the OVERLAPPED out.
        let result = unsafe {
            NtDeviceIoControlFile(
                self.handle(),
                none,
                None,
                overlapped.cast(),
                status,
                IOCTL_AFD_POLL,
                place.cast(),
                len,
                place.cast(),
                len,
            )
        };
        match result {
            // What is ready at once is told by the port too.
            STATUS_SUCCESS | STATUS_PENDING => Ok(()),
            refused => Err(code(refused)),
        }
    }
}

/// The socket that layers of providers lie on.
fn base(fd: Fd) -> Result<SOCKET, i32> {
    let mut base: SOCKET = 0;
    let mut written = 0;
    // SAFETY: Winsock writes the base's number to the local.
    let result = unsafe {
        WSAIoctl(
            sys::socket(fd),
            SIO_BASE_HANDLE,
            std::ptr::null(),
            0,
            (&raw mut base).cast(),
            size_of::<SOCKET>() as u32,
            &mut written,
            std::ptr::null_mut(),
            None,
        )
    };
    match result {
        // SAFETY: this reads a number of the thread's.
        SOCKET_ERROR => Err(unsafe { WSAGetLastError() }),
        _ => Ok(base),
    }
}

/// A code of Win32's for a status of the kernel's.
pub(super) fn code(status: NTSTATUS) -> i32 {
    // SAFETY: the call takes a number and gives one.
    unsafe { RtlNtStatusToDosError(status) as i32 }
}

/// What an OVERLAPPED says of how its operation ended.
pub(super) fn status_of(overlapped: &OVERLAPPED) -> NTSTATUS {
    overlapped.Internal as NTSTATUS
}
