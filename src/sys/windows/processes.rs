//! Children: a wait for an end that needs no thread of ours, and pipes as they expect them.

use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent};
use windows_sys::Win32::System::Threading::{
    CREATE_NEW_PROCESS_GROUP, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEONLYONCE,
};

use super::files::{read_pipe, write_pipe};
use super::{Foreign, IoVec, number_of_handle};
use crate::sys::Direction;

/// The flag that makes a child the first of a process group.
pub(crate) const NEW_GROUP: u32 = CREATE_NEW_PROCESS_GROUP;

/// How much a relay carries at a time: as much as a pipe holds.
const PIECE: usize = 64 * 1024;

/// A wait for the end of a process, made by the system's thread pool. Dropping it ends the wait, and leaves nothing.
pub(crate) struct EndWait {
    wait: HANDLE,
    shared: Arc<Shared>,
    /// Open for as long as the wait is.
    _process: OwnedHandle,
}

/// Shared with the callback, which runs on a thread of the system's pool.
struct Shared {
    state: Mutex<State>,
    /// Wakes a waker without unwinding.
    wake: fn(Waker),
}

#[derive(Default)]
struct State {
    ended: bool,
    waker: Option<Waker>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock: wakers are cloned, woken and dropped outside of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndWait {
    /// Begins to wait. `wake` is called on another thread, and must not unwind: its caller is the system.
    pub(crate) fn of(process: BorrowedHandle<'_>, wake: fn(Waker)) -> io::Result<EndWait> {
        let process = process.try_clone_to_owned()?;
        let state = Mutex::default();
        let shared = Arc::new(Shared { state, wake });
        let mut wait = std::ptr::null_mut();
        // SAFETY: the process's handle and what the pointer points to belong to the result, whose destructor keeps both
        // until no callback runs or will run; or to this call, if it fails.
        let registered = unsafe {
            RegisterWaitForSingleObject(
                &mut wait,
                process.as_raw_handle(),
                Some(has_ended),
                Arc::as_ptr(&shared).cast(),
                INFINITE,
                WT_EXECUTEONLYONCE,
            )
        };
        match registered {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(EndWait {
                wait,
                shared,
                _process: process,
            }),
        }
    }

    /// Whether the process has ended. If not, the waker of the last call is woken then, from another thread.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let old = {
            let mut state = self.shared.state();
            if state.ended {
                return Poll::Ready(());
            }
            state.waker.replace(waker)
        };
        drop(old);
        Poll::Pending
    }

    /// Drops the waker of the last poll.
    pub(crate) fn forget_waker(&self) {
        let waker = self.shared.state().waker.take();
        drop(waker);
    }
}

impl Drop for EndWait {
    fn drop(&mut self) {
        // SAFETY: the wait was registered by us, and this is its end. With this second argument the call returns when
        // no callback runs any more; ours takes a lock for a moment and wakes, and never drops one of these.
        if unsafe { UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE) } == 0 {
            // A callback may still come. What it touches stays.
            std::mem::forget(self.shared.clone());
        }
    }
}

/// The process has ended. Runs on a thread of the system's.
unsafe extern "system" fn has_ended(shared: *mut c_void, _timed_out: bool) {
    // SAFETY: `EndWait` keeps it until no callback runs any more.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let waker = {
        let mut state = shared.state();
        state.ended = true;
        state.waker.take()
    };
    if let Some(waker) = waker {
        (shared.wake)(waker);
    }
}

/// Sends Ctrl-Break to a process group of our console.
pub(crate) fn send_ctrl_break(group: u32) -> io::Result<()> {
    // SAFETY: the call takes two numbers.
    match unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, group) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A pipe of ours as a child's standard stream, which the child uses so.
///
/// Ours knows overlapped calls only, and cannot be changed. A child makes plain calls: on such a handle they return
/// before they are done, and the system writes into memory that the child uses for something else. So the child gets an
/// end of a plain pipe, and a thread carries what goes through.
pub(crate) fn for_child(pipe: Foreign, used: Direction) -> io::Result<Stdio> {
    let ours = pipe.into_handle();
    let (reader, writer) = io::pipe()?;
    let relay = std::thread::Builder::new().name("windlass-relay".to_owned());
    match used {
        Direction::Read => {
            relay.spawn(move || carry(OverlappedPipe(ours), writer))?;
            Ok(reader.into())
        }
        Direction::Write => {
            relay.spawn(move || carry(reader, OverlappedPipe(ours)))?;
            Ok(writer.into())
        }
    }
}

/// Copies bytes until the end of the stream or until the reader is gone. Closing both ends reports that to both sides.
fn carry(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(count) => match to.write_all(&piece[..count]) {
                Ok(()) => {}
                Err(_) => return,
            },
        }
    }
}

/// A pipe for overlapped calls, each of which is waited for.
struct OverlappedPipe(OwnedHandle);

impl OverlappedPipe {
    fn number(&self) -> super::Fd {
        number_of_handle(self.0.as_raw_handle())
    }
}

impl Read for OverlappedPipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let slice = IoVec {
            base: buf.as_mut_ptr(),
            len: buf.len(),
        };
        // SAFETY: the buffer is borrowed until the call, which waits for its end, is over.
        let res = unsafe { read_pipe(self.number(), &[slice]) };
        res.map(|count| count as usize).map_err(io::Error::from_raw_os_error)
    }
}

impl Write for OverlappedPipe {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let slice = IoVec {
            base: buf.as_ptr().cast_mut(),
            len: buf.len(),
        };
        // SAFETY: as for reads; what is written is only read.
        let res = unsafe { write_pipe(self.number(), &[slice]) };
        res.map(|count| count as usize).map_err(io::Error::from_raw_os_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
