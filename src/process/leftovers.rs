//! Children whose loop ended before them.
//!
//! They are nobody's, and would be zombies until the process ends. One thread for all of them waits for their ends. It is
//! started with the first and ends with the last, so a program that leaves none behind never has it.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::exception::{Exception, report};
use crate::sys;
use crate::sys::signals::{Hears, Rings, bell};

/// How often the thread looks after children that have no descriptor to wait for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A child that nobody holds, and perhaps its descriptor.
pub(super) struct Leftover {
    child: std::process::Child,
    descriptor: Option<OwnedFd>,
}

impl Leftover {
    pub(super) fn new(child: std::process::Child, descriptor: Option<OwnedFd>) -> Leftover {
        Leftover { child, descriptor }
    }

    /// Whether it is still to be waited for. Asking is what takes a zombie away; an error says that somebody else has.
    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

struct Orphanage {
    /// Those that the thread has not taken over yet.
    arrived: Vec<Leftover>,
    /// The thread is there, and rings to it are heard.
    staffed: bool,
    /// Wakes the thread for those who arrive. `None` if none could be made: then it looks every now and then.
    bell: Option<Rings>,
    /// The process that the rest is of: see `sys::forks`.
    forks: u32,
}

static ORPHANAGE: Mutex<Orphanage> = Mutex::new(Orphanage {
    arrived: Vec::new(),
    staffed: false,
    bell: None,
    forks: 0,
});

fn orphanage() -> MutexGuard<'static, Orphanage> {
    // Nothing in here panics half-way, and a list is a list.
    ORPHANAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that a child is waited for.
pub(super) fn inherit(mut leftover: Leftover) {
    if !leftover.runs() {
        return;
    }
    let failed = {
        let mut orphanage = orphanage();
        let forks = sys::count_forks();
        if orphanage.forks != forks {
            // The thread and the children are those of the process that this one was forked from.
            *orphanage = Orphanage {
                arrived: Vec::new(),
                staffed: false,
                bell: None,
                forks,
            };
        }
        orphanage.arrived.push(leftover);
        if orphanage.staffed {
            if let Some(bell) = &orphanage.bell {
                bell.ring();
            }
            None
        } else {
            staff(&mut orphanage).err()
        }
    };
    if let Some(error) = failed {
        // It stays on the list for whoever comes next.
        report(Exception::error("no thread waits for the children left behind", error));
    }
}

/// Starts the thread.
fn staff(orphanage: &mut Orphanage) -> io::Result<()> {
    let (hears, rings) = match bell() {
        Ok((hears, rings)) => (Some(hears), Some(rings)),
        // Without descriptors it can still look every now and then.
        Err(_) => (None, None),
    };
    let thread = std::thread::Builder::new().name("windlass-children".to_owned());
    thread.spawn(move || keep(hears))?;
    orphanage.staffed = true;
    orphanage.bell = rings;
    Ok(())
}

/// The thread: waits until each child has ended, and for none twice.
fn keep(bell: Option<Hears>) {
    let mut inmates: Vec<Leftover> = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        {
            let mut orphanage = orphanage();
            inmates.append(&mut orphanage.arrived);
            inmates.retain_mut(Leftover::runs);
            if inmates.is_empty() {
                orphanage.staffed = false;
                drop(mem::take(&mut orphanage.bell));
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
        let longest = (!all_can_be_heard).then_some(LOOK_EVERY);
        sys::processes::wait_for_any(&descriptors, longest);
        if let Some(bell) = &bell {
            bell.empty();
        }
    }
}
