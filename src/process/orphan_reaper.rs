//! A thread that reaps the children of closed loops.
//!
//! Without it they would be zombies until the process ends. One thread serves all of them. It starts with the first and
//! ends with the last, so a program that leaves no children behind never has it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event_loop::exception::{Exception, report};
use crate::sys;
use crate::sys::signals::{WakeReceiver, WakeSender, wake_pair};

/// How often the thread checks children without a pidfd.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A child without a handle, and its pidfd if there is one.
pub(super) struct OrphanedChild {
    child: std::process::Child,
    descriptor: Option<OwnedFd>,
}

impl OrphanedChild {
    pub(super) fn new(child: std::process::Child, descriptor: Option<OwnedFd>) -> OrphanedChild {
        OrphanedChild { child, descriptor }
    }

    /// Checks whether the child still runs, and reaps it if not. An error means that other code has reaped it.
    fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

struct OrphanReaper {
    /// Children that the thread has not taken yet.
    new: Vec<OrphanedChild>,
    /// The thread is running and will see `new`.
    has_thread: bool,
    /// Wakes the thread for new children. `None` if it could not be created: then the thread polls.
    waker: Option<WakeSender>,
    /// The fork count for which the other fields are valid: see `sys::forks`.
    forks: u32,
}

static ORPHAN_REAPER: Mutex<OrphanReaper> = Mutex::new(OrphanReaper {
    new: Vec::new(),
    has_thread: false,
    waker: None,
    forks: 0,
});

fn orphan_reaper() -> MutexGuard<'static, OrphanReaper> {
    // No critical section can panic in an inconsistent state, so a poisoned lock is usable.
    ORPHAN_REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that a child is reaped.
pub(super) fn adopt(mut child: OrphanedChild) {
    if !child.is_running() {
        return;
    }
    let failed = {
        let mut reaper = orphan_reaper();
        let forks = sys::count_forks();
        if reaper.forks != forks {
            // The thread and the children belong to the process that this one was forked from.
            *reaper = OrphanReaper {
                new: Vec::new(),
                has_thread: false,
                waker: None,
                forks,
            };
        }
        reaper.new.push(child);
        if reaper.has_thread {
            if let Some(waker) = &reaper.waker {
                waker.wake();
            }
            None
        } else {
            start_thread(&mut reaper).err()
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

fn start_thread(reaper: &mut OrphanReaper) -> io::Result<()> {
    let (wake_receiver, waker) = match wake_pair() {
        Ok((receiver, waker)) => (Some(receiver), Some(waker)),
        // Without descriptors the thread can still poll.
        Err(_) => (None, None),
    };
    let thread = std::thread::Builder::new().name("windlass-children".to_owned());
    thread.spawn(move || reap_all(wake_receiver))?;
    reaper.has_thread = true;
    reaper.waker = waker;
    Ok(())
}

/// The thread's main function: returns when all children are reaped.
fn reap_all(wake_receiver: Option<WakeReceiver>) {
    let mut children: Vec<OrphanedChild> = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        {
            let mut reaper = orphan_reaper();
            children.append(&mut reaper.new);
            children.retain_mut(OrphanedChild::is_running);
            if children.is_empty() {
                reaper.has_thread = false;
                drop(mem::take(&mut reaper.waker));
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
