//! A thread that reaps the children of closed loops.
//!
//! Without it they would be zombies until the process ends. One thread serves all of them. It starts with the first
//! child and ends with the last, so a program that leaves no children behind never starts it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event_loop::exception::{Exception, report};
use crate::sys;
use crate::sys::signals::{WakeReceiver, WakeSender, wake_pair};
use crate::worker_thread;

/// How often the thread checks children without a pidfd.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A child without a handle, and its pidfd if there is one.
pub(super) struct OrphanedChild {
    pub(super) child: std::process::Child,
    pub(super) descriptor: Option<OwnedFd>,
}

impl OrphanedChild {
    /// Checks whether the child still runs, and reaps it if not. An error means that other code has reaped it.
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// The state shared with the thread. One per process and never freed: a forked child creates its own, because another
/// thread of the parent may have held the lock during the fork.
struct OrphanReaper {
    /// The fork count of the process it belongs to: see `sys::count_forks`.
    forks: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Children that the thread has not taken yet.
    new: Vec<OrphanedChild>,
    /// The thread is running and will see `new`.
    has_thread: bool,
    /// Wakes the thread for new children. `None` if it could not be created: then the thread polls.
    waker: Option<WakeSender>,
}

impl OrphanReaper {
    /// The reaper of this process.
    fn current() -> &'static OrphanReaper {
        static CURRENT: AtomicPtr<OrphanReaper> = AtomicPtr::new(ptr::null_mut());
        let forks = sys::count_forks();
        loop {
            let found = CURRENT.load(Ordering::Acquire);
            // SAFETY: the pointer is null or comes from `Box::into_raw` below, and what was stored is never freed.
            if let Some(reaper) = unsafe { found.as_ref() }.filter(|reaper| reaper.forks == forks) {
                return reaper;
            }
            let state = Mutex::default();
            let new = Box::into_raw(Box::new(OrphanReaper { forks, state }));
            if CURRENT
                .compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: `new` was not stored, so this is its only pointer.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No critical section can panic in an inconsistent state, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes sure that a child is reaped.
pub(super) fn adopt(mut child: OrphanedChild) {
    if !child.is_running() {
        return;
    }
    let reaper = OrphanReaper::current();
    let failed = {
        let mut state = reaper.lock();
        state.new.push(child);
        if state.has_thread {
            if let Some(waker) = &state.waker {
                waker.wake();
            }
            None
        } else {
            start_thread(reaper, &mut state).err()
        }
    };
    if let Some(error) = failed {
        // The child stays in the list for the next attempt.
        report(Exception::error(
            "cannot start the thread that reaps orphaned child processes",
            error,
        ));
    }
}

fn start_thread(reaper: &'static OrphanReaper, state: &mut State) -> io::Result<()> {
    let (wake_receiver, waker) = match wake_pair() {
        Ok((receiver, waker)) => (Some(receiver), Some(waker)),
        // Without descriptors the thread can still poll.
        Err(_) => (None, None),
    };
    let name = "windlass-children".to_owned();
    worker_thread::spawn(name, move || reap_all(reaper, wake_receiver))?;
    state.has_thread = true;
    state.waker = waker;
    Ok(())
}

/// The thread's main function: returns when all children are reaped.
fn reap_all(reaper: &OrphanReaper, wake_receiver: Option<WakeReceiver>) {
    let mut children: Vec<OrphanedChild> = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        {
            let mut state = reaper.lock();
            children.append(&mut state.new);
            children.retain_mut(OrphanedChild::is_running);
            if children.is_empty() {
                state.has_thread = false;
                state.waker = None;
                return;
            }
        }
        descriptors.clear();
        descriptors.extend(wake_receiver.as_ref().map(WakeReceiver::number));
        descriptors.extend(
            children
                .iter()
                .filter_map(|child| child.descriptor.as_ref().map(AsRawFd::as_raw_fd)),
        );
        let has_all_descriptors = descriptors.len() == children.len() + 1;
        let timeout = (!has_all_descriptors).then_some(POLL_EVERY);
        sys::processes::wait_for_any(&descriptors, timeout);
        if let Some(receiver) = &wake_receiver {
            receiver.drain();
        }
    }
}
