//! Text to and from a console.
//!
//! A console has text in UTF-16. Bytes that are written to it or read from it pass through a code page, which is seldom
//! UTF-8; and a read through UTF-8 gives NULs for what is not ASCII. So what is moved here is text, and the bytes on our side of
//! it are UTF-8, as they are everywhere else. What is not, shows as U+FFFD.

use std::sync::{Mutex, MutexGuard, PoisonError};

use windows_sys::Win32::Foundation::{ERROR_OPERATION_ABORTED, GetLastError, SetLastError};
use windows_sys::Win32::System::Console::{CONSOLE_READCONSOLE_CONTROL, GetConsoleMode, ReadConsoleW, WriteConsoleW};

use super::{Fd, brake, errno, handle, last_code};
use crate::driver::Outcome;

/// What is moved at a time: the console has little room for it.
const PIECE: usize = 8 * 1024;

/// The most bytes that a read can give.
pub(super) const MOST: usize = 3 * PIECE + 1;

/// Ends a line of input, and means the end if it is the first in it.
const CTRL_Z: u16 = 0x1A;

/// Bytes that belong to a console's stream and have not gone further: the first part of a character that was written, or what
/// of one was read and did not fit.
struct Held(Mutex<Vec<(Fd, Vec<u8>)>>);

static WRITTEN: Held = Held(Mutex::new(Vec::new()));
static READ: Held = Held(Mutex::new(Vec::new()));

impl Held {
    fn lock(&self) -> MutexGuard<'_, Vec<(Fd, Vec<u8>)>> {
        // Nothing panics under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, fd: Fd) -> Vec<u8> {
        let mut held = self.lock();
        match held.iter().position(|(of, _)| *of == fd) {
            Some(at) => held.swap_remove(at).1,
            None => Vec::new(),
        }
    }

    fn put(&self, fd: Fd, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.lock().push((fd, bytes.to_vec()));
        }
    }

    /// The handle is closed, and its number may be another's.
    fn forget(&self, fd: Fd) {
        self.lock().retain(|(of, _)| *of != fd);
    }
}

/// Whether a console is open under this number.
pub(super) fn is_console(fd: Fd) -> bool {
    let mut mode = 0;
    // SAFETY: the system fills the local; a number that is no console's is an error.
    fd >= 0 && unsafe { GetConsoleMode(handle(fd), &mut mode) } != 0
}

/// What was held back for a handle that closes is gone.
pub(super) fn forget(fd: Fd) {
    WRITTEN.forget(fd);
    READ.forget(fd);
}

/// Writes text. The part of a character at the end waits for the rest of it.
pub(super) fn write(fd: Fd, bytes: &[u8]) -> Outcome {
    let bytes = &bytes[..bytes.len().min(PIECE)];
    let mut text = WRITTEN.take(fd);
    text.extend_from_slice(bytes);
    let (wide, rest) = to_wide(&text);
    let mut left = &wide[..];
    while !left.is_empty() {
        let mut count = 0;
        // SAFETY: the system reads so many units, and fills the local.
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
    WRITTEN.put(fd, rest);
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

/// Reads text: a line at a time, unless the console was told otherwise.
pub(super) fn read(fd: Fd, room: &mut [u8]) -> Outcome {
    let mut text = READ.take(fd);
    if text.is_empty() {
        // A unit is at most three bytes, and a pair is four.
        let units = (room.len().saturating_sub(1) / 3).clamp(1, PIECE);
        let mut wide = read_units(fd, units)?;
        if wide.last().is_some_and(|last| (0xD800..0xDC00).contains(last)) {
            // The other half is there, since they are typed together.
            wide.extend(read_units(fd, 1)?);
        }
        wide.pop_if(|last| *last == CTRL_Z);
        text = String::from_utf16_lossy(&wide).into_bytes();
    }
    let count = text.len().min(room.len());
    room[..count].copy_from_slice(&text[..count]);
    READ.put(fd, &text[count..]);
    Ok(count as u32)
}

fn read_units(fd: Fd, most: usize) -> Result<Vec<u16>, i32> {
    let mut wide = vec![0; most];
    let control = CONSOLE_READCONSOLE_CONTROL {
        nLength: size_of::<CONSOLE_READCONSOLE_CONTROL>() as u32,
        nInitialChars: 0,
        dwCtrlWakeupMask: 1 << CTRL_Z,
        dwControlKeyState: 0,
    };
    loop {
        let mut count = 0;
        // SAFETY: the system fills at most so many units, and the local, and reads the structure.
        let (read, code) = unsafe {
            SetLastError(0);
            let read = ReadConsoleW(handle(fd), wide.as_mut_ptr().cast(), most as u32, &mut count, &control);
            (read, GetLastError())
        };
        if read != 0 && (count > 0 || code != ERROR_OPERATION_ABORTED) {
            wide.truncate(count as usize);
            return Ok(wide);
        }
        if code != ERROR_OPERATION_ABORTED {
            return Err(code as i32);
        }
        // Somebody ended it; or somebody pressed Ctrl-C, which is told elsewhere.
        if brake::is_pulled() {
            return Err(errno::CANCELED);
        }
    }
}
