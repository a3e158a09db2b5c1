//! A blocking call of a pool thread, and how it is cancelled.
//!
//! A plain read of a pipe or console blocks until the peer writes. `CancelSynchronousIo` ends it from another thread,
//! but finds nothing if the reader has not entered the call yet. So each call has a phase under a lock: a cancel holds
//! the lock, so that it cannot hit a later call of the thread, and tries again if the thread is entering or leaving the
//! call. A table holds the phases of the calls that can be cancelled, by operation.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windows_sys::Win32::System::IO::{CancelIoEx, CancelSynchronousIo, OVERLAPPED};
use windows_sys::Win32::System::Threading::{GetCurrentThread, INFINITE, ResetEvent, SetEvent, WaitForMultipleObjects};

use super::{Fd, errno, handle, new_event};
use crate::sys::{OsResult, lock};

/// How often a cancel yields the processor to a thread that is entering or leaving a call, and how often it then
/// sleeps for a millisecond.
const YIELDS: u32 = 100;
const SLEEPS: u32 = 20;

/// The phases of calls that can be cancelled, from submission until the call has returned.
static CALLS: Mutex<BTreeMap<(usize, u64), SharedPhase>> = Mutex::new(BTreeMap::new());

type SharedPhase = Arc<Mutex<Phase>>;

#[derive(Default)]
enum Phase {
    #[default]
    NotStarted,
    /// In the call, entering or leaving it.
    Inside(Call),
    /// The call must not start, or was asked to end.
    Cancelled,
    Over,
}

enum Call {
    /// A synchronous call of this thread.
    Plain(Arc<OwnedHandle>),
    /// A wait before the call, which this event ends.
    Wait(Arc<OwnedHandle>),
    /// A call that must not be cancelled.
    Uncancellable,
    /// An overlapped call that the thread waits for.
    Overlapped { fd: Fd, overlapped: *const OVERLAPPED },
}

// SAFETY: the pointer is only passed to the system, and only while the thread that it belongs to is inside.
unsafe impl Send for Call {}

thread_local! {
    /// A handle to this thread, for other threads.
    static THREAD: Option<Arc<OwnedHandle>> = {
        // SAFETY: the pseudo handle stands for the current thread, and is always valid.
        let thread = unsafe { BorrowedHandle::borrow_raw(GetCurrentThread()) };
        thread.try_clone_to_owned().ok().map(Arc::new)
    };
    /// The phase of the call that this thread makes.
    static CURRENT: RefCell<Option<SharedPhase>> = const { RefCell::new(None) };
}

/// A call that a pool thread will make.
pub(crate) struct PoolCall {
    key: (usize, u64),
    /// `None` if the call cannot be cancelled.
    phase: Option<SharedPhase>,
}

impl PoolCall {
    /// Registers a call under a key that no other call has. Only a call that waits for a peer can be cancelled: other
    /// calls end without one.
    pub(crate) fn new(key: (usize, u64), waits_for_peer: bool) -> PoolCall {
        let phase = waits_for_peer.then(SharedPhase::default);
        if let Some(phase) = &phase {
            lock(&CALLS).insert(key, phase.clone());
        }
        PoolCall { key, phase }
    }

    /// Makes the call, which [`cancel`](PoolCall::cancel) can end.
    pub(crate) fn run(self, call: impl FnOnce() -> Option<OsResult>) -> Option<OsResult> {
        let (Some(phase), Some(thread)) = (&self.phase, THREAD.with(Clone::clone)) else {
            return call();
        };
        if !enter(phase, Call::Plain(thread)) {
            return Some(Err(errno::CANCELED));
        }
        CURRENT.set(Some(phase.clone()));
        let res = call();
        CURRENT.take();
        *lock(phase) = Phase::Over;
        res
    }

    /// Ends the call, if that is possible. The operation still completes, with the call's result.
    pub(crate) fn cancel(key: (usize, u64)) {
        let phase = lock(&CALLS).get(&key).cloned();
        let Some(phase) = phase else { return };
        for attempt in 0..YIELDS + SLEEPS {
            if !try_cancel(&mut lock(&phase)) {
                return;
            }
            match attempt < YIELDS {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for PoolCall {
    fn drop(&mut self) {
        if self.phase.is_some() {
            lock(&CALLS).remove(&self.key);
        }
    }
}

/// Notes that the thread is about to make this call. False if it was cancelled.
fn enter(phase: &Mutex<Phase>, call: Call) -> bool {
    let mut phase = lock(phase);
    let is_cancelled = matches!(*phase, Phase::Cancelled);
    if !is_cancelled {
        *phase = Phase::Inside(call);
    }
    !is_cancelled
}

/// Requests the cancel. True if it must be tried again: the thread is entering or leaving the call.
fn try_cancel(phase: &mut Phase) -> bool {
    match &*phase {
        Phase::NotStarted => {}
        Phase::Inside(Call::Plain(thread)) => {
            // SAFETY: the handle is a thread's. The thread stays inside while the phase is locked, so this can end no
            // other call of that thread.
            if unsafe { CancelSynchronousIo(thread.as_raw_handle()) } == 0 {
                return true;
            }
        }
        Phase::Inside(Call::Overlapped { fd, overlapped }) => {
            // SAFETY: the thread that owns the structure waits for the phase's lock before it leaves.
            unsafe { CancelIoEx(handle(*fd), *overlapped) };
        }
        Phase::Inside(Call::Wait(event)) => {
            // SAFETY: the `Arc` keeps the event open.
            unsafe { SetEvent(event.as_raw_handle()) };
        }
        Phase::Inside(Call::Uncancellable) | Phase::Cancelled | Phase::Over => return false,
    }
    *phase = Phase::Cancelled;
    false
}

/// Waits until a handle is signalled. The wait can be cancelled, but not the call that follows it. False if the wait
/// was cancelled.
pub(super) fn wait_for(fd: Fd) -> bool {
    thread_local! {
        static CANCEL_EVENT: Option<Arc<OwnedHandle>> = new_event().ok().map(Arc::new);
    }
    let phase = CURRENT.with_borrow(Clone::clone);
    let (Some(phase), Some(event)) = (&phase, CANCEL_EVENT.with(Clone::clone)) else {
        return true;
    };
    // SAFETY: the event is ours.
    unsafe { ResetEvent(event.as_raw_handle()) };
    if !enter(phase, Call::Wait(event.clone())) {
        return false;
    }
    let either = [event.as_raw_handle(), handle(fd)];
    // SAFETY: the system reads two handles that stay open. An error means that the handle cannot be waited for; it then
    // counts as signalled.
    unsafe { WaitForMultipleObjects(2, either.as_ptr(), 0, INFINITE) };
    enter(phase, Call::Uncancellable)
}

/// Waits with `wait` for an overlapped call that has started. The call can be cancelled meanwhile.
pub(super) fn wait_overlapped<T>(fd: Fd, overlapped: &OVERLAPPED, wait: impl FnOnce() -> T) -> T {
    let phase = CURRENT.with_borrow(Clone::clone);
    let Some(phase) = &phase else { return wait() };
    let before = {
        let mut phase = lock(phase);
        if matches!(*phase, Phase::Cancelled) {
            // SAFETY: the structure is the caller's, and the caller waits for the end of the call.
            unsafe { CancelIoEx(handle(fd), overlapped) };
            Phase::Cancelled
        } else {
            std::mem::replace(&mut *phase, Phase::Inside(Call::Overlapped { fd, overlapped }))
        }
    };
    let result = wait();
    let mut phase = lock(phase);
    if !matches!(*phase, Phase::Cancelled) {
        *phase = before;
    }
    drop(phase);
    result
}
