//! `ReadFile` and `WriteFile` with an OVERLAPPED: the calls of both Windows drivers for pipes, and of the proactor for
//! files.

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_MORE_DATA, HANDLE};
use windows_sys::Win32::Storage::FileSystem::{ReadFile, WriteFile};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::pool::PoolBuffer;
use super::{CURRENT, Direction, FileOp, Medium, Op, OsResult};
use crate::sys::{self, Fd, IoVec, handle, transferred};

/// The most bytes that one write passes to a pipe, its capacity: a write ends only when all its bytes were taken.
const MAX_PIPE_WRITE: usize = 64 * 1024;

/// The call is in flight.
pub(crate) const PENDING: i32 = ERROR_IO_PENDING as i32;

/// A pipe's message is longer than the buffer; the next read returns the rest.
pub(crate) const MORE_DATA: i32 = ERROR_MORE_DATA as i32;

/// One read or write.
#[derive(Clone, Copy)]
pub(crate) struct FileCall {
    pub(crate) fd: Fd,
    pub(crate) direction: Direction,
    ptr: *mut u8,
    pub(crate) len: u32,
    offset: u64,
}

impl FileCall {
    /// The call for an operation on a pipe, or for a read or write of a file; `None` for other operations. A call has
    /// one buffer, so a vectored operation transfers its first slice that is not empty. A managed receive reads into
    /// `buffer`.
    ///
    /// # Safety
    ///
    /// The operation owns the memory that `op` points to.
    pub(crate) unsafe fn of(op: &Op, buffer: Option<&mut PoolBuffer>) -> Option<FileCall> {
        if op.medium().is_some_and(|medium| medium != Medium::Pipe) {
            return None;
        }
        let (ptr, len, offset) = match *op {
            Op::Recv { ptr, len, .. } => (ptr, len, 0),
            Op::RecvManaged { .. } => {
                let (ptr, len) = buffer?.memory();
                (ptr, len, 0)
            }
            Op::Send { ptr, len, .. } => (ptr.cast_mut(), len, 0),
            Op::RecvVectored { slices, count, .. } | Op::SendVectored { slices, count, .. } => {
                // SAFETY: the caller's promise.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let first = slices.iter().find(|slice| slice.len > 0).unwrap_or(&IoVec::EMPTY);
                (first.base, first.len, 0)
            }
            Op::File(FileOp::ReadAt { ptr, len, offset, .. }) => (ptr, len, if offset == CURRENT { 0 } else { offset }),
            // `CURRENT` has all bits set, which means the end of the file.
            Op::File(FileOp::WriteAt { ptr, len, offset, .. }) => (ptr.cast_mut(), len, offset),
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::RecvMessage { .. }
            | Op::RecvMessageManaged { .. }
            | Op::SendMessage { .. }
            | Op::Readiness { .. }
            | Op::LookUp { .. }
            | Op::File(_) => return None,
        };
        let (direction, most) = match op {
            Op::Send { .. } | Op::SendVectored { .. } => (Direction::Write, MAX_PIPE_WRITE),
            Op::File(FileOp::WriteAt { .. }) => (Direction::Write, usize::MAX),
            _ => (Direction::Read, usize::MAX),
        };
        Some(FileCall {
            fd: op.fd()?,
            direction,
            ptr,
            len: len.min(most) as u32,
            offset,
        })
    }

    /// Makes the call. [`PENDING`] if it is in flight.
    ///
    /// # Safety
    ///
    /// The call's memory, the event and the OVERLAPPED stay valid until the call has ended.
    pub(crate) unsafe fn issue(self, overlapped: *mut OVERLAPPED, event: HANDLE) -> OsResult {
        let (file, mut count) = (handle(self.fd), 0);
        let mut fresh = sys::place(self.offset);
        fresh.hEvent = event;
        // SAFETY: the caller's promise; the kernel does not use the OVERLAPPED before the call, nor the count after it.
        let succeeded = unsafe {
            overlapped.write(fresh);
            match self.direction {
                Direction::Read => ReadFile(file, self.ptr, self.len, &mut count, overlapped),
                Direction::Write => WriteFile(file, self.ptr, self.len, &mut count, overlapped),
            }
        };
        transferred(succeeded, count)
    }

    /// The result as the layers above expect it: the end of a file or pipe is no error, and a broken pipe has one code.
    pub(crate) fn normalize(direction: Direction, res: OsResult) -> OsResult {
        match (direction, res) {
            (Direction::Read, Err(code)) if sys::is_end(code) => Ok(0),
            (Direction::Write, Err(code)) => Err(sys::write_code(code)),
            (_, res) => res,
        }
    }
}
