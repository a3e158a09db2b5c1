//! Operations on files and paths, which block until they are done, and a file's metadata.
//!
//! Operations on paths go through std, which handles long paths. A file is opened for overlapped calls, as the proactor
//! requires, and such a handle has no position in the kernel. So every read and write here passes an offset, and waits
//! for the overlapped call with an event.

use std::ffi::OsString;
use std::io::{self, SeekFrom};
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, FromRawHandle, IntoRawHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use windows_sys::Wdk::Foundation::{NtQueryObject, ObjectBasicInformation};
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_MODE_INFORMATION, FILE_SYNCHRONOUS_IO_ALERT, FILE_SYNCHRONOUS_IO_NONALERT, FileModeInformation,
    NtQueryInformationFile,
};
use windows_sys::Win32::Foundation::{
    ERROR_BROKEN_PIPE, ERROR_HANDLE_EOF, ERROR_INVALID_PARAMETER, ERROR_IO_PENDING, ERROR_MORE_DATA,
    ERROR_NEGATIVE_SEEK, ERROR_NO_DATA, ERROR_PIPE_NOT_CONNECTED, ERROR_SEEK, GENERIC_READ, HANDLE,
    INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    CreateFileW, FILE_ALLOCATION_INFO, FILE_APPEND_DATA, FILE_BEGIN, FILE_CURRENT, FILE_END,
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, FILE_TYPE_DISK, FILE_TYPE_UNKNOWN,
    FILE_WRITE_DATA, FileAllocationInfo, GetFileType, OPEN_EXISTING, PIPE_ACCESS_OUTBOUND, ReadFile,
    SetFileInformationByHandle, SetFilePointerEx, WriteFile,
};
use windows_sys::Win32::System::Console::{GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE};
use windows_sys::Win32::System::IO::{GetOverlappedResult, IO_STATUS_BLOCK, OVERLAPPED};
use windows_sys::Win32::System::Pipes::{CreateNamedPipeW, PIPE_REJECT_REMOTE_CLIENTS, PIPE_TYPE_BYTE, PIPE_WAIT};
use windows_sys::Win32::System::WindowsProgramming::PUBLIC_OBJECT_BASIC_INFORMATION;

use super::console;
use super::pool_call::wait_overlapped;
use super::{Fd, Foreign, PathChar, errno, file, handle, last_code, new_event, number_of_handle, transferred};
use crate::sys::{CURRENT, FileOp, IoVec, OpenFlags, OsResult, code_of, paths};

/// A path in UTF-16, ending in NUL.
pub(crate) type KernelPath = Vec<PathChar>;

/// Converts a path.
pub(crate) fn path_for_kernel(path: &Path) -> io::Result<KernelPath> {
    let mut wide: Vec<u16> = path.as_os_str().encode_wide().collect();
    if wide.contains(&0) {
        let why = "a path cannot contain a NUL character";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    wide.push(0);
    Ok(wide)
}

/// The reverse of [`path_for_kernel`].
///
/// # Safety
///
/// `path` ends in NUL.
pub(crate) unsafe fn path_of(path: *const PathChar) -> PathBuf {
    let mut len = 0;
    // SAFETY: the caller's promise: reading stops at the NUL.
    let wide = unsafe {
        while path.add(len).read() != 0 {
            len += 1;
        }
        std::slice::from_raw_parts(path, len)
    };
    PathBuf::from(OsString::from_wide(wide))
}

impl OpenFlags {
    /// The options as one number, for [`open`].
    pub(crate) fn for_kernel(&self) -> io::Result<i32> {
        self.check()?;
        let all = [
            self.read,
            self.write,
            self.append,
            self.truncate,
            self.create,
            self.create_new,
            self.direct,
        ];
        Ok(all.iter().enumerate().map(|(bit, &on)| i32::from(on) << bit).sum())
    }

    /// The reverse of [`for_kernel`](OpenFlags::for_kernel).
    fn from_kernel(flags: i32, mode: u32) -> OpenFlags {
        let has = |bit: i32| flags & (1 << bit) != 0;
        OpenFlags {
            read: has(0),
            write: has(1),
            append: has(2),
            truncate: has(3),
            create: has(4),
            create_new: has(5),
            direct: has(6),
            mode,
        }
    }

    fn open(&self, path: &Path) -> io::Result<std::fs::File> {
        let direct = if self.direct { FILE_FLAG_NO_BUFFERING } else { 0 };
        std::fs::OpenOptions::new()
            .read(self.read)
            .write(self.write)
            .append(self.append)
            .truncate(self.truncate)
            .create(self.create)
            .create_new(self.create_new)
            .custom_flags(FILE_FLAG_OVERLAPPED | direct | self.mode)
            .open(path)
    }

    /// The flags of an open file. Only `append` is known, from the right to append without the right to write; the
    /// system does not say whether a handle bypasses the cache.
    pub(crate) fn of(fd: Fd) -> OpenFlags {
        let mut known = PUBLIC_OBJECT_BASIC_INFORMATION::default();
        let len = size_of::<PUBLIC_OBJECT_BASIC_INFORMATION>() as u32;
        let place = (&raw mut known).cast();
        // SAFETY: the system fills the local, of the given length.
        let status = unsafe { NtQueryObject(handle(fd), ObjectBasicInformation, place, len, std::ptr::null_mut()) };
        let may = |right: u32| status >= 0 && known.GrantedAccess & right != 0;
        OpenFlags {
            append: may(FILE_APPEND_DATA) && !may(FILE_WRITE_DATA),
            ..OpenFlags::default()
        }
    }
}

/// Carries out a file operation. A file is opened for overlapped calls, and its number is that of its handle.
///
/// # Safety
///
/// Paths end in NUL. Buffers and slices are valid, of the given length and not used otherwise until this returns.
pub(crate) unsafe fn perform(op: FileOp) -> Option<OsResult> {
    // SAFETY: the caller's promise; the memory for a `Stat` holds nothing yet.
    let result = unsafe {
        match op {
            FileOp::Open { path, flags, mode } => {
                let opened = OpenFlags::from_kernel(flags, mode).open(&path_of(path));
                let number = opened.map(|file| number_of_handle(file.into_raw_handle()) as u32);
                return Some(number.map_err(|error| code_of(&error)));
            }
            FileOp::ReadAt { fd, ptr, len, offset } => return Some(read(fd, ptr, len, offset)),
            FileOp::ReadVectoredAt {
                fd,
                slices,
                count,
                offset,
            } => {
                let slices = std::slice::from_raw_parts(slices, count);
                return Some(one_by_one(slices, offset, |slice, at| {
                    read(fd, slice.base, slice.len, at)
                }));
            }
            FileOp::WriteAt { fd, ptr, len, offset } => return Some(write(fd, ptr, len, offset)),
            FileOp::WriteVectoredAt {
                fd,
                slices,
                count,
                offset,
            } => {
                let slices = std::slice::from_raw_parts(slices, count);
                return Some(one_by_one(slices, offset, |slice, at| {
                    write(fd, slice.base, slice.len, at)
                }));
            }
            FileOp::Sync { fd, data_only: true } => file(fd).sync_data(),
            FileOp::Sync { fd, data_only: false } => file(fd).sync_all(),
            FileOp::Stat { fd, path, follow, out } => {
                let found = match (path.is_null(), follow) {
                    (true, _) => file(fd).metadata(),
                    (false, true) => std::fs::metadata(path_of(path)),
                    (false, false) => std::fs::symlink_metadata(path_of(path)),
                };
                found.map(|found| out.write(Stat(found)))
            }
            FileOp::Truncate { fd, len } => file(fd).set_len(len),
            FileOp::Allocate { fd, offset, len } => allocate(fd, offset, len),
            FileOp::Rename { from, to } => std::fs::rename(path_of(from), path_of(to)),
            FileOp::Remove { path, is_dir: true } => std::fs::remove_dir(path_of(path)),
            FileOp::Remove { path, is_dir: false } => std::fs::remove_file(path_of(path)),
            FileOp::MakeDir { path, .. } => std::fs::create_dir(path_of(path)),
            FileOp::HardLink { from, to } => std::fs::hard_link(path_of(from), path_of(to)),
            FileOp::SymLink { target, link } => sym_link(&path_of(target), &path_of(link)),
            FileOp::SetMode { fd, path, mode } => match path.is_null() {
                true => {
                    let file = file(fd);
                    file.metadata()
                        .and_then(|found| file.set_permissions(with_mode(found.permissions(), mode)))
                }
                false => {
                    let path = path_of(path);
                    std::fs::metadata(&path)
                        .and_then(|found| std::fs::set_permissions(&path, with_mode(found.permissions(), mode)))
                }
            },
            FileOp::ReadLink { .. }
            | FileOp::ReadDir { .. }
            | FileOp::RealPath { .. }
            | FileOp::Copy { .. }
            | FileOp::RemoveAll { .. } => return Some(paths::perform(op)),
        }
    };
    Some(result.map(|()| 0).map_err(|error| code_of(&error)))
}

/// Transfers the slices one by one, until a call transfers less than its slice: handles other than sockets have no
/// vectored call.
fn one_by_one(slices: &[IoVec], offset: u64, mut call: impl FnMut(&IoVec, u64) -> OsResult) -> OsResult {
    let mut moved = 0;
    for slice in slices.iter().filter(|slice| slice.len > 0) {
        let at = match offset {
            CURRENT => CURRENT,
            offset => offset.saturating_add(u64::from(moved)),
        };
        match call(slice, at) {
            Ok(count) => {
                moved += count;
                if (count as usize) < slice.len {
                    break;
                }
            }
            Err(_) if moved > 0 => break,
            Err(code) => return Err(code),
        }
    }
    Ok(moved)
}

/// # Safety
///
/// `len` bytes from `ptr` on may be written.
pub(super) unsafe fn read(fd: Fd, ptr: *mut u8, len: usize, offset: u64) -> OsResult {
    if offset == CURRENT && console::is_console(fd) {
        // Zeroed first, since the buffer may be uninitialised.
        // SAFETY: the caller's promise.
        let room = unsafe {
            let len = len.min(console::MOST);
            ptr.write_bytes(0, len);
            std::slice::from_raw_parts_mut(ptr, len)
        };
        return console::read(fd, room);
    }
    let len = len.min(u32::MAX as usize) as u32;
    let at = if offset == CURRENT { 0 } else { offset };
    // SAFETY: the caller's promise; `waiting` keeps the OVERLAPPED until the call has ended.
    let res = waiting(fd, offset == CURRENT, at, |count, overlapped| unsafe {
        ReadFile(handle(fd), ptr, len, count, overlapped)
    });
    match res {
        Err(code) if is_end(code) => Ok(0),
        // A message that is longer than the buffer; the next read returns the rest.
        Err(code) if code == ERROR_MORE_DATA as i32 => Ok(len),
        res => res,
    }
}

/// # Safety
///
/// `len` bytes from `ptr` on may be read.
pub(super) unsafe fn write(fd: Fd, ptr: *const u8, len: usize, offset: u64) -> OsResult {
    if offset == CURRENT && console::is_console(fd) {
        // SAFETY: the caller's promise.
        return console::write(fd, unsafe { std::slice::from_raw_parts(ptr, len) });
    }
    let len = len.min(u32::MAX as usize) as u32;
    // `CURRENT` has all bits set, which means the end of the file at the time of the write.
    // SAFETY: as in `read`.
    let res = waiting(fd, offset == CURRENT, offset, |count, overlapped| unsafe {
        WriteFile(handle(fd), ptr, len, count, overlapped)
    });
    res.map_err(write_code)
}

/// The portable code of a failed write.
pub(crate) fn write_code(code: i32) -> i32 {
    match code as u32 {
        ERROR_NO_DATA | ERROR_PIPE_NOT_CONNECTED => errno::BROKEN_PIPE,
        _ => code,
    }
}

/// Whether the code of a failed read means the end of the file or pipe.
pub(crate) fn is_end(code: i32) -> bool {
    matches!(
        code as u32,
        ERROR_HANDLE_EOF | ERROR_BROKEN_PIPE | ERROR_PIPE_NOT_CONNECTED
    )
}

/// Makes a call and waits for its end. A call at the file's own position (`here`) needs no OVERLAPPED, unless the
/// handle is for overlapped calls: such a handle has no position, and a pipe would return before the call has ended.
fn waiting(fd: Fd, here: bool, offset: u64, mut call: impl FnMut(*mut u32, *mut OVERLAPPED) -> i32) -> OsResult {
    if fd < 0 {
        return Err(errno::BAD_FD);
    }
    let mut count = 0;
    if here && !is_overlapped(fd) {
        return transferred(call(&mut count, std::ptr::null_mut()), count);
    }
    // Larger offsets have special meanings: the end of the file, or its position.
    if !here && offset > i64::MAX as u64 {
        return Err(ERROR_INVALID_PARAMETER as i32);
    }
    thread_local! {
        static EVENT: Option<OwnedHandle> = new_event().ok();
    }
    EVENT.with(|event| {
        let Some(event) = event else {
            return Err(errno::NO_MEMORY);
        };
        let mut overlapped = place(offset);
        // The lowest bit keeps the packet off a completion port that the handle may be associated with.
        let event = std::os::windows::io::AsRawHandle::as_raw_handle(event);
        overlapped.hEvent = (event as usize | 1) as HANDLE;
        if call(&mut count, &mut overlapped) == 0 && last_code() != ERROR_IO_PENDING as i32 {
            return Err(last_code());
        }
        wait_overlapped(fd, &overlapped, || {
            // SAFETY: the OVERLAPPED is a local, and this waits until the system has finished with it.
            let succeeded = unsafe { GetOverlappedResult(handle(fd), &overlapped, &mut count, 1) };
            transferred(succeeded, count)
        })
    })
}

/// An OVERLAPPED with this offset.
pub(crate) fn place(offset: u64) -> OVERLAPPED {
    // SAFETY: zeroes are a valid OVERLAPPED.
    let mut overlapped: OVERLAPPED = unsafe { std::mem::zeroed() };
    overlapped.Anonymous.Anonymous.Offset = offset as u32;
    overlapped.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    overlapped
}

/// Reads from a pipe, and blocks until the read has ended.
///
/// # Safety
///
/// The memory that the slices point to may be written.
pub(super) unsafe fn read_pipe(fd: Fd, slices: &[IoVec]) -> OsResult {
    match slices.iter().find(|slice| slice.len > 0) {
        // SAFETY: the caller's promise.
        Some(slice) => unsafe { read(fd, slice.base, slice.len, 0) },
        None => Ok(0),
    }
}

/// Writes to a pipe, and blocks until the write has ended.
///
/// # Safety
///
/// The memory that the slices point to may be read.
pub(super) unsafe fn write_pipe(fd: Fd, slices: &[IoVec]) -> OsResult {
    // SAFETY: the caller's promise.
    one_by_one(slices, 0, |slice, _| unsafe { write(fd, slice.base, slice.len, 0) })
}

fn allocate(fd: Fd, offset: u64, len: u64) -> io::Result<()> {
    let too_far = || io::Error::from_raw_os_error(errno::INVALID);
    let end = offset
        .checked_add(len)
        .filter(|&end| end <= i64::MAX as u64)
        .ok_or_else(too_far)?;
    if len == 0 {
        return Err(too_far());
    }
    let file = file(fd);
    if file.metadata()?.len() >= end {
        return Ok(());
    }
    let space = FILE_ALLOCATION_INFO {
        AllocationSize: end as i64,
    };
    let size = size_of::<FILE_ALLOCATION_INFO>() as u32;
    // SAFETY: the system reads the local, of the given length.
    if unsafe { SetFileInformationByHandle(handle(fd), FileAllocationInfo, (&raw const space).cast(), size) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // As on other systems, the space is part of the file.
    file.set_len(end)
}

/// The mode for `FileOp::SetMode`.
pub(crate) fn mode_of(permissions: &std::fs::Permissions) -> u32 {
    if permissions.readonly() { 0o444 } else { 0o666 }
}

/// A mode's only meaning on Windows is whether the file may be written.
fn with_mode(mut permissions: std::fs::Permissions, mode: u32) -> std::fs::Permissions {
    permissions.set_readonly(mode & 0o222 == 0);
    permissions
}

/// Windows has separate links to files and to directories, so the target is looked up.
fn sym_link(target: &Path, link: &Path) -> io::Result<()> {
    let from_link = link.parent().unwrap_or(Path::new("")).join(target);
    match std::fs::metadata(from_link).is_ok_and(|found| found.is_dir()) {
        true => std::os::windows::fs::symlink_dir(target, link),
        false => std::os::windows::fs::symlink_file(target, link),
    }
}

/// Moves a file's position.
pub(crate) fn seek(fd: Fd, to: SeekFrom) -> io::Result<u64> {
    // SAFETY: the call touches no memory of ours.
    if unsafe { GetFileType(handle(fd)) } != FILE_TYPE_DISK {
        return Err(io::Error::from_raw_os_error(ERROR_SEEK as i32));
    }
    let too_far = |_| io::Error::from_raw_os_error(errno::INVALID);
    let (offset, method) = match to {
        SeekFrom::Start(offset) => (i64::try_from(offset).map_err(too_far)?, FILE_BEGIN),
        SeekFrom::End(offset) => (offset, FILE_END),
        SeekFrom::Current(offset) => (offset, FILE_CURRENT),
    };
    let mut position = 0;
    // SAFETY: the system fills the local and keeps no pointer to it.
    match unsafe { SetFilePointerEx(handle(fd), offset, &mut position, method) } {
        // EINVAL on other systems.
        0 if last_code() == ERROR_NEGATIVE_SEEK as i32 => Err(io::Error::from_raw_os_error(errno::INVALID)),
        0 => Err(io::Error::last_os_error()),
        _ => Ok(position as u64),
    }
}

/// Whether this number is an open handle.
pub(super) fn is_open(fd: Fd) -> bool {
    // SAFETY: the call touches no memory of ours.
    fd >= 0 && (unsafe { GetFileType(handle(fd)) } != FILE_TYPE_UNKNOWN || last_code() == 0)
}

/// Whether a handle was opened for overlapped calls; true if the system does not say.
pub(crate) fn is_overlapped(fd: Fd) -> bool {
    let mut mode = FILE_MODE_INFORMATION { Mode: 0 };
    let mut status = IO_STATUS_BLOCK::default();
    let size = size_of::<FILE_MODE_INFORMATION>() as u32;
    // SAFETY: the system fills the two locals, of the given length, and keeps no pointer to them.
    let result = unsafe {
        let mode = (&raw mut mode).cast();
        NtQueryInformationFile(handle(fd), &mut status, mode, size, FileModeInformation)
    };
    result < 0 || mode.Mode & (FILE_SYNCHRONOUS_IO_ALERT | FILE_SYNCHRONOUS_IO_NONALERT) == 0
}

/// The two ends of a new pipe: reader, writer. Anonymous pipes do not support overlapped calls, so this is a named pipe
/// with a unique name.
pub(crate) fn pipe() -> io::Result<(Foreign, Foreign)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    const BUFFER: u32 = 64 * 1024;
    let name = format!(
        r"\\.\pipe\windlass.{}.{}.{:x}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed),
        super::monotonic().since_origin().as_nanos(),
    );
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let access = PIPE_ACCESS_OUTBOUND | FILE_FLAG_FIRST_PIPE_INSTANCE | FILE_FLAG_OVERLAPPED;
    let mode = PIPE_TYPE_BYTE | PIPE_WAIT | PIPE_REJECT_REMOTE_CLIENTS;
    // SAFETY: the name ends in NUL and outlives the call; the returned handle is new and ours.
    let writer =
        owned(unsafe { CreateNamedPipeW(name.as_ptr(), access, mode, 1, BUFFER, BUFFER, 0, std::ptr::null()) })?;
    let (plain, none) = (std::ptr::null(), std::ptr::null_mut());
    // SAFETY: as above.
    let reader = owned(unsafe {
        CreateFileW(
            name.as_ptr(),
            GENERIC_READ,
            0,
            plain,
            OPEN_EXISTING,
            FILE_FLAG_OVERLAPPED,
            none,
        )
    })?;
    Ok((reader.into(), writer.into()))
}

/// Takes ownership of a new handle.
fn owned(handle: HANDLE) -> io::Result<OwnedHandle> {
    match handle {
        INVALID_HANDLE_VALUE => Err(io::Error::last_os_error()),
        // SAFETY: the handle is new, and nothing else owns it.
        handle => Ok(unsafe { OwnedHandle::from_raw_handle(handle) }),
    }
}

/// A duplicate of a standard stream, not inherited. `None` if the process has no such stream.
pub(crate) fn standard_stream(number: usize) -> io::Result<Option<Foreign>> {
    let which = [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE][number];
    // SAFETY: the call takes a number and returns a handle that belongs to the process.
    let stream = unsafe { GetStdHandle(which) };
    if stream.is_null() || stream == INVALID_HANDLE_VALUE {
        return Ok(None);
    }
    let stream = file(number_of_handle(stream));
    Ok(Some(stream.as_handle().try_clone_to_owned()?.into()))
}

/// The file types.
pub(crate) mod kind {
    pub(crate) const MASK: u32 = 0xf;
    pub(crate) const FILE: u32 = 1;
    pub(crate) const FOLDER: u32 = 2;
    pub(crate) const LINK: u32 = 3;
    // Never reported on Windows.
    pub(crate) const PIPE: u32 = 4;
    pub(crate) const SOCKET: u32 = 5;
    pub(crate) const CHARACTERS: u32 = 6;
    pub(crate) const BLOCKS: u32 = 7;
}

/// The type that std reports.
pub(crate) fn kind_of(file_type: std::fs::FileType) -> u32 {
    let kinds = [
        (file_type.is_symlink(), kind::LINK),
        (file_type.is_dir(), kind::FOLDER),
        (file_type.is_file(), kind::FILE),
    ];
    kinds.iter().find(|(is_it, _)| *is_it).map_or(0, |&(_, kind)| kind)
}

/// A file's metadata. A custom driver creates one from std's with `Stat::from`.
#[derive(Clone, Debug)]
pub struct Stat(std::fs::Metadata);

impl From<std::fs::Metadata> for Stat {
    fn from(metadata: std::fs::Metadata) -> Stat {
        Stat(metadata)
    }
}

impl Stat {
    /// The file type: see `kind`.
    pub(crate) fn mode(&self) -> u32 {
        kind_of(self.0.file_type())
    }
    /// The length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a file's length, as in std")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }
    /// When the contents last changed.
    pub fn modified(&self) -> SystemTime {
        self.0.modified().unwrap_or(SystemTime::UNIX_EPOCH)
    }
    /// When the file was last read.
    pub fn accessed(&self) -> SystemTime {
        self.0.accessed().unwrap_or(SystemTime::UNIX_EPOCH)
    }
    /// When the file was created, if that is known.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.created().ok()
    }
    pub(crate) fn permissions(&self) -> std::fs::Permissions {
        self.0.permissions()
    }
}
