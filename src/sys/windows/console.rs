//! Console input and output as UTF-8.
//!
//! A Windows console works in UTF-16. Byte calls convert through a code page, which is rarely UTF-8, and with the UTF-8
//! code page a read returns NUL for each non-ASCII character. So this module uses the UTF-16 calls and converts to and
//! from UTF-8. Invalid sequences become U+FFFD.
//!
//! The console reports key presses, not complete lines, and it echoes and edits a line only while a read is pending. So
//! a read starts with the first key. Until then it can be cancelled and consumes nothing. After that it continues to
//! the end of the line, which goes to the next read if this one was dropped: cancelling half-way would lose the typed
//! text, and under Wine 8 the whole console.

use std::sync::Mutex;

use windows_sys::Win32::Foundation::{ERROR_OPERATION_ABORTED, GetLastError, SetLastError};
use windows_sys::Win32::System::Console::{
    CONSOLE_MODE, CONSOLE_READCONSOLE_CONTROL, ENABLE_LINE_INPUT, GetConsoleMode, INPUT_RECORD, KEY_EVENT,
    PeekConsoleInputW, ReadConsoleInputW, ReadConsoleW, WriteConsoleW,
};

use super::{Fd, errno, handle, last_code, pool_call};
use crate::sys::{OsResult, lock};

/// UTF-16 units or bytes per call: the console's own buffer is small.
const PIECE: usize = 8 * 1024;

/// The maximum number of bytes that a read returns: a UTF-16 unit is at most three bytes of UTF-8.
pub(super) const MOST: usize = 3 * PIECE;

/// Ends a line of input; at the start of a line, it means end of file.
const CTRL_Z: u16 = 0x1A;

/// The incomplete UTF-8 sequence at the end of the last write to each handle, completed by the next write.
static WRITTEN: Mutex<Vec<(Fd, Vec<u8>)>> = Mutex::new(Vec::new());

/// Text that was read but not returned yet. One for the process, because it has one console.
static READ: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Whether the handle is a console.
pub(super) fn is_console(fd: Fd) -> bool {
    fd >= 0 && mode(fd).is_some()
}

/// The console's mode; `None` for any other handle.
fn mode(fd: Fd) -> Option<CONSOLE_MODE> {
    let mut mode = 0;
    // SAFETY: the system fills the local.
    (unsafe { GetConsoleMode(handle(fd), &mut mode) } != 0).then_some(mode)
}

/// Discards the incomplete sequence of a handle that is being closed, because its number may be reused.
pub(super) fn forget(fd: Fd) {
    lock(&WRITTEN).retain(|(of, _)| *of != fd);
}

/// Writes UTF-8 text. An incomplete sequence at the end is kept for the next write.
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
        let (mut count, len, none) = (0, left.len() as u32, std::ptr::null());
        // SAFETY: the system reads `len` units and fills the local.
        let written = unsafe { WriteConsoleW(handle(fd), left.as_ptr(), len, &mut count, none) };
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

/// The text as UTF-16, and the incomplete UTF-8 sequence at its end.
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

/// Reads UTF-8 text, by lines unless the console is in raw mode.
pub(super) fn read(fd: Fd, room: &mut [u8]) -> OsResult {
    let mut text = std::mem::take(&mut *lock(&READ));
    if text.is_empty() {
        text = read_text(fd)?.into_bytes();
    }
    let count = text.len().min(room.len());
    room[..count].copy_from_slice(&text[..count]);
    // Appended, because another thread may have stored text meanwhile.
    lock(&READ).extend_from_slice(&text[count..]);
    Ok(count as u32)
}

/// Reads a whole line, or in raw mode the available text. No key press would announce the rest of a partial line.
fn read_text(fd: Fd) -> Result<String, i32> {
    let mut wide = Vec::new();
    loop {
        let (count, code) = match wide.is_empty() && !wait_for_key(fd) {
            true => return Err(errno::CANCELED),
            false => read_units(fd, &mut wide)?,
        };
        if count == 0 && code == ERROR_OPERATION_ABORTED {
            // Ctrl-C was pressed; the signal handler reports it.
            continue;
        }
        let is_truncated = wide.last().is_some_and(|last| (0xD800..0xDC00).contains(last));
        if !is_truncated && (count < PIECE || wide.ends_with(&[b'\n'.into()]) || !gives_lines(fd)) {
            wide.pop_if(|last| *last == CTRL_Z);
            return Ok(String::from_utf16_lossy(&wide));
        }
    }
}

/// Whether the console is in line mode, in which a read returns whole lines.
fn gives_lines(fd: Fd) -> bool {
    mode(fd).is_some_and(|mode| mode & ENABLE_LINE_INPUT != 0)
}

/// Makes one read. Returns the number of units and the last error: after Ctrl-C the call may succeed and still set one.
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
    // SAFETY: the system fills at most `PIECE` units and the local, and reads the structure.
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

/// Waits until a key is pressed that a read would process. False if the wait was cancelled.
fn wait_for_key(fd: Fd) -> bool {
    const SOME: usize = 32;
    // SAFETY: zeroes are valid records.
    let mut records: [INPUT_RECORD; SOME] = unsafe { std::mem::zeroed() };
    while pool_call::wait_for(fd) {
        let mut count = 0;
        // SAFETY: the system fills at most `SOME` records and the local.
        let peeked = unsafe { PeekConsoleInputW(handle(fd), records.as_mut_ptr(), SOME as u32, &mut count) };
        if peeked == 0 || count == 0 || records[..count as usize].iter().any(is_typed) {
            return true;
        }
        // Key releases, mouse and window events: a read would discard them and then block, so they are discarded here.
        // SAFETY: as above; the array has room for the `count` records.
        unsafe { ReadConsoleInputW(handle(fd), records.as_mut_ptr(), count, &mut count) };
    }
    false
}

/// Whether the event is a key press that produces a character or edits the line.
fn is_typed(record: &INPUT_RECORD) -> bool {
    // Shift, Control, Alt, Caps Lock, Num Lock, Scroll Lock.
    const MODIFIERS: [u16; 6] = [0x10, 0x11, 0x12, 0x14, 0x90, 0x91];
    if u32::from(record.EventType) != KEY_EVENT {
        return false;
    }
    // SAFETY: the event type selects the union's field, and every field is plain data.
    let (key, unit) = unsafe { (record.Event.KeyEvent, record.Event.KeyEvent.uChar.UnicodeChar) };
    // A character entered by its number (Alt and digits) is reported when Alt is released.
    unit != 0 && (key.bKeyDown != 0 || key.wVirtualKeyCode == MODIFIERS[2])
        || key.bKeyDown != 0 && !MODIFIERS.contains(&key.wVirtualKeyCode)
}
