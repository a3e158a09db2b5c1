//! Children whose loop ended before them.
//!
//! They are nobody's, and would be zombies until the process ends. One thread for all of them waits for their ends. It is
//! started with the first and ends with the last, so a program that leaves none behind never has it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event_loop::exception::{Exception, report};
use crate::sys;
use crate::sys::signals::{Hears, Rings, bell};

/// How often the thread looks after children that have no descriptor to wait for.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A child that nobody holds, and perhaps its descriptor.
pub(super) struct OrphanedChild {
    child: std::process::Child,
    descriptor: Option<OwnedFd>,
}

impl OrphanedChild {
    pub(super) fn new(child: std::process::Child, descriptor: Option<OwnedFd>) -> OrphanedChild {
        OrphanedChild { child, descriptor }
    }

    /// Whether it is still to be waited for. Asking is what takes a zombie away; an error says that somebody else has.
    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

struct OrphanReaper {
    /// Those that the thread has not taken over yet.
    arrived: Vec<OrphanedChild>,
    /// The thread is there, and rings to it are heard.
    staffed: bool,
    /// Wakes the thread for those who arrive. `None` if none could be made: then it looks every now and then.
    bell: Option<Rings>,
    /// The process that the rest is of: see `sys::forks`.
    forks: u32,
}

static ORPHAN_REAPER: Mutex<OrphanReaper> = Mutex::new(OrphanReaper {
    arrived: Vec::new(),
    staffed: false,
    bell: None,
    forks: 0,
});

fn orphan_reaper() -> MutexGuard<'static, OrphanReaper> {
    // Nothing in here panics half-way, and a list is a list.
    ORPHAN_REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that a child is waited for.
pub(super) fn inherit(mut leftover: OrphanedChild) {
    if !leftover.runs() {
        return;
    }
    let failed = {
        let mut orphan_reaper = orphan_reaper();
        let forks = sys::count_forks();
        if orphan_reaper.forks != forks {
            // The thread and the children are those of the process that this one was forked from.
            *orphan_reaper = OrphanReaper {
                arrived: Vec::new(),
                staffed: false,
                bell: None,
                forks,
            };
        }
        orphan_reaper.arrived.push(leftover);
        if orphan_reaper.staffed {
            if let Some(bell) = &orphan_reaper.bell {
                bell.ring();
            }
            None
        } else {
            staff(&mut orphan_reaper).err()
        }
    };
    if let Some(error) = failed {
        // It stays on the list for whoever comes next.
        report(Exception::error("no thread waits for the children left behind", error));
    }
}

/// Starts the thread.
fn staff(orphan_reaper: &mut OrphanReaper) -> io::Result<()> {
    let (hears, rings) = match bell() {
        Ok((hears, rings)) => (Some(hears), Some(rings)),
        // Without descriptors it can still look every now and then.
        Err(_) => (None, None),
    };
    let thread = std::thread::Builder::new().name("windlass-children".to_owned());
    thread.spawn(move || keep(hears))?;
    orphan_reaper.staffed = true;
    orphan_reaper.bell = rings;
    Ok(())
}

/// The thread: waits until each child has ended, and for none twice.
fn keep(bell: Option<Hears>) {
    let mut inmates: Vec<OrphanedChild> = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        {
            let mut orphan_reaper = orphan_reaper();
            inmates.append(&mut orphan_reaper.arrived);
            inmates.retain_mut(OrphanedChild::runs);
            if inmates.is_empty() {
                orphan_reaper.staffed = false;
                drop(mem::take(&mut orphan_reaper.bell));
                return;
            }
        }
        descriptors.clear();
        descriptors.extend(bell.as_ref().map(Hears::number));
        descriptors.extend(
            inmates
                .iter()
                .filter_map(|inmate| inmate.descriptor.as_ref().map(AsRawFd::as_raw_fd)),
        );
        let all_can_be_heard = descriptors.len() == inmates.len() + 1;
        let longest = (!all_can_be_heard).then_some(POLL_EVERY);
        sys::processes::wait_for_any(&descriptors, longest);
        if let Some(bell) = &bell {
            bell.empty();
        }
    }
}
