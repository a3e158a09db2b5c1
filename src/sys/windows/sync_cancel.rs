//! Cancelling a blocking call of another thread.
//!
//! A plain read of a pipe or console blocks until the peer writes. `CancelSynchronousIo` ends it from another thread,
//! but finds nothing if the reader has not entered the call yet. So both threads meet under a lock: while the reader is
//! inside, only its call can be cancelled; a canceller that finds it on its way in tries again.

use std::cell::RefCell;
use std::os::windows::io::{AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windows_sys::Win32::System::IO::{CancelIoEx, CancelSynchronousIo, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, GetCurrentThread, INFINITE, ResetEvent, SetEvent, WaitForMultipleObjects,
};

use super::{Fd, errno, handle};
use crate::sys::OsResult;

/// How often a thread on its way in or out is waited for by giving it the processor, and then by a nap of a
/// millisecond.
const YIELDS: u32 = 100;
const NAPS: u32 = 20;

/// Cancels an operation that a thread carries out, if it may wait for a peer.
#[derive(Clone, Default)]
pub(crate) struct SyncCancel(Option<Arc<Mutex<Phase>>>);

#[derive(Default)]
enum Phase {
    #[default]
    NotBegun,
    /// In the call, on its way in, or on its way out.
    Inside(Call),
    /// Not to begin, or to end as soon as it can.
    Pulled,
    Over,
}

enum Call {
    /// A plain one, of this thread.
    Plain(Arc<OwnedHandle>),
    /// Not in a call: this event ends the wait for something.
    Wait(Arc<OwnedHandle>),
    /// One that must not be ended.
    Unending,
    /// One for which the thread waits with an event.
    Overlapped { fd: Fd, place: *const OVERLAPPED },
}

// SAFETY: the pointer is only handed to the system, and only while the thread that it belongs to is inside.
unsafe impl Send for Call {}

thread_local! {
    /// This thread, for others.
    static THREAD: Option<Arc<OwnedHandle>> = {
        // SAFETY: the number stands for the current thread, whatever it is.
        let thread = unsafe { BorrowedHandle::borrow_raw(GetCurrentThread()) };
        thread.try_clone_to_owned().ok().map(Arc::new)
    };
    /// What ends the operation that this thread carries.
    static CARRIED: RefCell<SyncCancel> = RefCell::default();
}

impl SyncCancel {
    /// One for an operation. Only an operation that waits for a peer can be cancelled: others take as long as they
    /// take.
    pub(crate) fn new(waits_for_peer: bool) -> SyncCancel {
        SyncCancel(waits_for_peer.then(Arc::default))
    }

    /// Makes the call, during which [`pull`](SyncCancel::pull) can end it.
    pub(crate) fn run(&self, call: impl FnOnce() -> Option<OsResult>) -> Option<OsResult> {
        let (Some(phase), Some(thread)) = (&self.0, THREAD.with(Clone::clone)) else {
            return call();
        };
        {
            let mut phase = lock(phase);
            if matches!(*phase, Phase::Pulled) {
                return Some(Err(errno::CANCELED));
            }
            *phase = Phase::Inside(Call::Plain(thread));
        }
        CARRIED.set(self.clone());
        let res = call();
        CARRIED.take();
        *lock(phase) = Phase::Over;
        res
    }

    /// Ends the operation, if that is possible. It completes all the same, with its result.
    pub(crate) fn pull(&self) {
        let Some(phase) = &self.0 else { return };
        for attempt in 0..YIELDS + NAPS {
            if !pull_once(&mut lock(phase)) {
                return;
            }
            match attempt < YIELDS {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// True if the thread is on its way into the call or out of it.
fn pull_once(phase: &mut Phase) -> bool {
    match &*phase {
        Phase::NotBegun => *phase = Phase::Pulled,
        Phase::Inside(Call::Plain(thread)) => {
            // SAFETY: the handle is a thread's, which is inside for as long as the phase is locked: so this can end no
            // other call of it.
            if unsafe { CancelSynchronousIo(thread.as_raw_handle()) } == 0 {
                return true;
            }
            *phase = Phase::Pulled;
        }
        Phase::Inside(Call::Overlapped { fd, place }) => {
            // SAFETY: the thread whose structure this is waits for the phase's lock before it leaves.
            unsafe { CancelIoEx(handle(*fd), *place) };
            *phase = Phase::Pulled;
        }
        Phase::Inside(Call::Wait(event)) => {
            // SAFETY: the event is open as long as we have a share of it.
            unsafe { SetEvent(event.as_raw_handle()) };
            *phase = Phase::Pulled;
        }
        Phase::Inside(Call::Unending) | Phase::Pulled | Phase::Over => {}
    }
    false
}

/// Waits until something is signalled, so that the wait can be ended; what follows it cannot be. False if it was ended.
pub(super) fn wait_for(fd: Fd) -> bool {
    thread_local! {
        static ENDED: Option<Arc<OwnedHandle>> = {
            // SAFETY: nothing is passed in; what comes out is new and ours.
            let event = unsafe { CreateEventW(std::ptr::null(), 1, 0, std::ptr::null()) };
            // SAFETY: as above.
            (!event.is_null()).then(|| Arc::new(unsafe { OwnedHandle::from_raw_handle(event) }))
        };
    }
    let sync_cancel = CARRIED.with_borrow(Clone::clone);
    let (Some(phase), Some(ended)) = (&sync_cancel.0, ENDED.with(Clone::clone)) else {
        return true;
    };
    // SAFETY: the event is ours.
    unsafe { ResetEvent(ended.as_raw_handle()) };
    {
        let mut phase = lock(phase);
        if matches!(*phase, Phase::Pulled) {
            return false;
        }
        *phase = Phase::Inside(Call::Wait(ended.clone()));
    }
    let either = [ended.as_raw_handle(), handle(fd)];
    // SAFETY: the system reads two handles that stay open. What cannot be waited for is an error, and taken for ready.
    unsafe { WaitForMultipleObjects(2, either.as_ptr(), 0, INFINITE) };
    let mut phase = lock(phase);
    if matches!(*phase, Phase::Pulled) {
        return false;
    }
    *phase = Phase::Inside(Call::Unending);
    true
}

/// Waits, by `wait`, for a call with an OVERLAPPED that was just begun, so that it can be ended meanwhile.
pub(super) fn waiting_inside<T>(fd: Fd, place: &OVERLAPPED, wait: impl FnOnce() -> T) -> T {
    let sync_cancel = CARRIED.with_borrow(Clone::clone);
    let Some(phase) = &sync_cancel.0 else { return wait() };
    let before = {
        let inside = Phase::Inside(Call::Overlapped { fd, place });
        let mut phase = lock(phase);
        if matches!(*phase, Phase::Pulled) {
            // SAFETY: the structure is the caller's, and the caller waits for its end.
            unsafe { CancelIoEx(handle(fd), place) };
            Phase::Pulled
        } else {
            std::mem::replace(&mut *phase, inside)
        }
    };
    let result = wait();
    let mut phase = lock(phase);
    if !matches!(*phase, Phase::Pulled) {
        *phase = before;
    }
    drop(phase);
    result
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    // Nothing panics under it.
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}
