//! Text to and from a console.
//!
//! A console has text in UTF-16. Bytes that are written to it or read from it pass through a code page, which is seldom
//! UTF-8; and a read through UTF-8 gives NULs for what is not ASCII. So what is moved here is text, and the bytes on
//! our side of it are UTF-8, as they are everywhere else. What is not, shows as U+FFFD.
//!
//! A console cannot be asked for a line, only whether a key was pressed; and while it is read, the line is edited and
//! shown. So a read begins with the first key. Until then it can be ended, and takes nothing; after that it goes on to
//! the end of the line, which the next read gets. Ending it half-way would lose what was typed, and Wine 8 loses the
//! whole console.

use std::sync::{Mutex, MutexGuard, PoisonError};

use windows_sys::Win32::Foundation::{ERROR_OPERATION_ABORTED, GetLastError, SetLastError};
use windows_sys::Win32::System::Console::{
    CONSOLE_READCONSOLE_CONTROL, ENABLE_LINE_INPUT, GetConsoleMode, INPUT_RECORD, KEY_EVENT, PeekConsoleInputW,
    ReadConsoleInputW, ReadConsoleW, WriteConsoleW,
};

use super::{Fd, errno, handle, last_code, sync_cancel};
use crate::sys::OsResult;

/// What is moved at a time: the console has little room for it.
const PIECE: usize = 8 * 1024;

/// The most bytes that a read gives at a time.
pub(super) const MOST: usize = 3 * PIECE;

/// Ends a line of input, and means the end if it is the first in it.
const CTRL_Z: u16 = 0x1A;

/// The first part of a character that was written to a handle, and waits for the rest.
static WRITTEN: Mutex<Vec<(Fd, Vec<u8>)>> = Mutex::new(Vec::new());

/// Text that was read and not returned yet: a process has one console, which is read by whole lines.
static READ: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under it.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a console is open under this number.
pub(super) fn is_console(fd: Fd) -> bool {
    let mut mode = 0;
    // SAFETY: the system fills the local; a number that is no console's is an error.
    fd >= 0 && unsafe { GetConsoleMode(handle(fd), &mut mode) } != 0
}

/// The handle closes, and its number may be another's soon: what was held back is gone.
pub(super) fn forget(fd: Fd) {
    lock(&WRITTEN).retain(|(of, _)| *of != fd);
}

/// Writes text. The part of a character at the end waits for the rest of it.
pub(super) fn write(fd: Fd, bytes: &[u8]) -> OsResult {
    let bytes = &bytes[..bytes.len().min(PIECE)];
    let mut text = {
        let mut held = lock(&WRITTEN);
        let at = held.iter().position(|(of, _)| *of == fd);
        at.map_or_else(Vec::new, |at| held.swap_remove(at).1)
    };
    text.extend_from_slice(bytes);
    let (wide, rest) = to_wide(&text);
    let mut left = &wide[..];
    while !left.is_empty() {
        let mut count = 0;
        // SAFETY: the system reads `left.len()` units, and fills the local.
        let written = unsafe {
            WriteConsoleW(
                handle(fd),
                left.as_ptr(),
                left.len() as u32,
                &mut count,
                std::ptr::null(),
            )
        };
        if written == 0 || count == 0 {
            return Err(last_code());
        }
        left = &left[(count as usize).min(left.len())..];
    }
    if !rest.is_empty() {
        lock(&WRITTEN).push((fd, rest.to_vec()));
    }
    Ok(bytes.len() as u32)
}

/// The text in UTF-16, and the first part of a character at its end.
fn to_wide(mut bytes: &[u8]) -> (Vec<u16>, &[u8]) {
    let mut wide = Vec::with_capacity(bytes.len());
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => {
                wide.extend(text.encode_utf16());
                return (wide, &[]);
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        wide.extend(String::from_utf8_lossy(valid).encode_utf16());
        let Some(wrong) = error.error_len() else {
            return (wide, rest);
        };
        wide.push(char::REPLACEMENT_CHARACTER as u16);
        bytes = &rest[wrong..];
    }
}

/// Reads text: a line at a time, unless the console's mode says otherwise.
pub(super) fn read(fd: Fd, room: &mut [u8]) -> OsResult {
    let mut text = std::mem::take(&mut *lock(&READ));
    if text.is_empty() {
        text = read_text(fd)?.into_bytes();
    }
    let count = text.len().min(room.len());
    room[..count].copy_from_slice(&text[..count]);
    // Behind what another thread has left meanwhile, if it has.
    lock(&READ).extend_from_slice(&text[count..]);
    Ok(count as u32)
}

/// What there is, or a whole line: the rest of one would not be told of like a new one.
fn read_text(fd: Fd) -> Result<String, i32> {
    let mut wide = Vec::new();
    loop {
        let (count, code) = match wide.is_empty() && !wait_for_key(fd) {
            true => return Err(errno::CANCELED),
            false => read_units(fd, &mut wide)?,
        };
        if count == 0 && code == ERROR_OPERATION_ABORTED {
            // Ctrl-C was pressed, which the signal handler reports.
            continue;
        }
        let is_truncated = wide.last().is_some_and(|last| (0xD800..0xDC00).contains(last));
        if !is_truncated && (count < PIECE || wide.ends_with(&[b'\n'.into()]) || !gives_lines(fd)) {
            wide.pop_if(|last| *last == CTRL_Z);
            return Ok(String::from_utf16_lossy(&wide));
        }
    }
}

/// Whether a read lasts to the end of a line.
fn gives_lines(fd: Fd) -> bool {
    let mut mode = 0;
    // SAFETY: the system fills the local.
    unsafe { GetConsoleMode(handle(fd), &mut mode) != 0 && mode & ENABLE_LINE_INPUT != 0 }
}

/// Reads once. Gives how many units came, and the code that was set, which says more than the result.
fn read_units(fd: Fd, wide: &mut Vec<u16>) -> Result<(usize, u32), i32> {
    let control = CONSOLE_READCONSOLE_CONTROL {
        nLength: size_of::<CONSOLE_READCONSOLE_CONTROL>() as u32,
        nInitialChars: 0,
        dwCtrlWakeupMask: 1 << CTRL_Z,
        dwControlKeyState: 0,
    };
    let before = wide.len();
    wide.resize(before + PIECE, 0);
    let (place, mut count) = (wide[before..].as_mut_ptr().cast(), 0);
    // SAFETY: the system fills at most `PIECE` units, and the local, and reads the structure.
    let (read, code) = unsafe {
        SetLastError(0);
        let read = ReadConsoleW(handle(fd), place, PIECE as u32, &mut count, &control);
        (read, GetLastError())
    };
    wide.truncate(before + count as usize);
    match read != 0 || code == ERROR_OPERATION_ABORTED {
        true => Ok((count as usize, code)),
        false => Err(code as i32),
    }
}

/// Waits until a read would have something to do. False if the wait was ended.
fn wait_for_key(fd: Fd) -> bool {
    const SOME: usize = 32;
    loop {
        if !sync_cancel::wait_for(fd) {
            return false;
        }
        // SAFETY: zeroes are valid records; the system fills at most `SOME` of them, and the local.
        let (records, count) = unsafe {
            let mut records: [INPUT_RECORD; SOME] = std::mem::zeroed();
            let mut count = 0;
            if PeekConsoleInputW(handle(fd), records.as_mut_ptr(), SOME as u32, &mut count) == 0 || count == 0 {
                return true;
            }
            (records, count)
        };
        if records[..count as usize].iter().any(is_typed) {
            return true;
        }
        // A key let go, the mouse, the window: a read throws these away, and would then wait for others.
        // SAFETY: as above; `count` records were there.
        unsafe {
            let mut records: [INPUT_RECORD; SOME] = std::mem::zeroed();
            let mut taken = 0;
            ReadConsoleInputW(handle(fd), records.as_mut_ptr(), count, &mut taken);
        }
    }
}

/// Whether something was typed that a line is made or edited with.
fn is_typed(record: &INPUT_RECORD) -> bool {
    // Shift, Control, Alt, and the three locks.
    const MODIFIERS: [u16; 6] = [0x10, 0x11, 0x12, 0x14, 0x90, 0x91];
    if u32::from(record.EventType) != KEY_EVENT {
        return false;
    }
    // SAFETY: the type says which of the union's parts it is, and each of them is plain data.
    let (key, unit) = unsafe { (record.Event.KeyEvent, record.Event.KeyEvent.uChar.UnicodeChar) };
    // A character that was entered by its number comes when Alt is let go.
    unit != 0 && (key.bKeyDown != 0 || key.wVirtualKeyCode == MODIFIERS[2])
        || key.bKeyDown != 0 && !MODIFIERS.contains(&key.wVirtualKeyCode)
}
