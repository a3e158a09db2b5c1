//! Child processes: waiting for the exit without a thread of our own, and pipes as a child's standard streams.

use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent};
use windows_sys::Win32::System::Threading::{
    CREATE_NEW_PROCESS_GROUP, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEONLYONCE,
};

use super::{Foreign, files, number_of_handle};
use crate::sys::{Direction, lock};

/// The creation flag that makes a child the root of a new process group.
pub(crate) const NEW_GROUP: u32 = CREATE_NEW_PROCESS_GROUP;

/// The number of bytes that a relay copies at a time: the capacity of a pipe.
const PIECE: usize = 64 * 1024;

/// A wait of the system's thread pool for the exit of a process. Dropping it unregisters the wait.
pub(crate) struct EndWait {
    wait: HANDLE,
    shared: Arc<Shared>,
    /// Keeps the process handle open while the wait is registered.
    _process: OwnedHandle,
}

/// Shared with the callback, which runs on a thread of the system's pool.
struct Shared {
    /// No code panics while it holds the lock: wakers are cloned, woken and dropped outside of it.
    state: Mutex<State>,
    /// Wakes a waker, and does not unwind.
    wake: fn(Waker),
}

#[derive(Default)]
struct State {
    ended: bool,
    waker: Option<Waker>,
}

impl EndWait {
    /// Registers the wait. `wake` is called on a thread of the system, so it must not unwind.
    pub(crate) fn of(process: BorrowedHandle<'_>, wake: fn(Waker)) -> io::Result<EndWait> {
        let process = process.try_clone_to_owned()?;
        let state = Mutex::default();
        let shared = Arc::new(Shared { state, wake });
        let mut wait = std::ptr::null_mut();
        // SAFETY: the process handle and `shared` belong to the result, whose destructor keeps both until no callback
        // runs or will run. If the call fails, no callback will run.
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

    /// Ready when the process has ended. The waker of the last call is woken then, from another thread.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let old = {
            let mut state = lock(&self.shared.state);
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
        let waker = lock(&self.shared.state).waker.take();
        drop(waker);
    }
}

impl Drop for EndWait {
    fn drop(&mut self) {
        // SAFETY: `of` registered the wait, and it is unregistered only here. With `INVALID_HANDLE_VALUE` the call
        // returns when no callback runs. The callback never drops an `EndWait`, so this cannot wait for itself.
        if unsafe { UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE) } == 0 {
            // A callback may still run, so `shared` is leaked.
            std::mem::forget(self.shared.clone());
        }
    }
}

/// The callback: the process has ended. Runs on a thread of the system's pool.
unsafe extern "system" fn has_ended(shared: *mut c_void, _timed_out: bool) {
    // SAFETY: `EndWait` keeps it alive until no callback runs.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let waker = {
        let mut state = lock(&shared.state);
        state.ended = true;
        state.waker.take()
    };
    if let Some(waker) = waker {
        (shared.wake)(waker);
    }
}

/// Sends Ctrl-Break to a process group that shares our console.
pub(crate) fn send_ctrl_break(group: u32) -> io::Result<()> {
    // SAFETY: the call takes two numbers and accesses no memory.
    match unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, group) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Turns one of our pipes into a child's standard stream; `used` is the direction in which the child uses it.
///
/// Our pipes are opened for overlapped calls, which cannot be changed. A child makes plain calls. On an overlapped
/// handle those return before they are done, and the system then writes to memory that the child has reused. So the
/// child gets one end of a plain pipe, and a thread copies between the two pipes.
pub(crate) fn for_child(pipe: Foreign, used: Direction) -> io::Result<Stdio> {
    let ours = pipe.into_handle();
    let (reader, writer) = io::pipe()?;
    let relay = std::thread::Builder::new().name("windlass-relay".to_owned());
    match used {
        Direction::Read => {
            relay.spawn(move || copy_all(OverlappedPipe(ours), writer))?;
            Ok(reader.into())
        }
        Direction::Write => {
            relay.spawn(move || copy_all(reader, OverlappedPipe(ours)))?;
            Ok(writer.into())
        }
    }
}

/// Copies bytes until the end of the stream, or until the reader is gone. Dropping both ends shows that to both sides.
fn copy_all(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..count]).is_err() {
            return;
        }
    }
}

/// An overlapped pipe with blocking reads and writes.
struct OverlappedPipe(OwnedHandle);

impl OverlappedPipe {
    fn number(&self) -> super::Fd {
        number_of_handle(self.0.as_raw_handle())
    }
}

impl Read for OverlappedPipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer is borrowed for the call, which returns only when the overlapped read has ended.
        let res = unsafe { files::read(self.number(), buf.as_mut_ptr(), buf.len(), 0) };
        res.map(|count| count as usize).map_err(io::Error::from_raw_os_error)
    }
}

impl Write for OverlappedPipe {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // SAFETY: as for `read`; the system only reads the buffer.
        let res = unsafe { files::write(self.number(), buf.as_ptr(), buf.len(), 0) };
        res.map(|count| count as usize).map_err(io::Error::from_raw_os_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
