//! Starts the threads that work for a loop, on the cpus of [`Builder::worker_cpus`](crate::Builder::worker_cpus).
//!
//! On Unix a thread, and a child process, inherits the affinity mask of its creator. If the thread of a loop is bound to
//! one cpu, everything that the loop starts would compete with it for that cpu.

use std::io;
use std::thread::{self, JoinHandle};

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::on_drop::OnDrop;
use crate::sys::{self, CpuSet};

/// Starts a thread; on the worker cpus of the loop that this thread runs, if there is one and it has any.
pub(crate) fn spawn(name: String, main: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name);
    match LoopCore::try_current().and_then(|core| core.settings.driver.worker_cpus.clone()) {
        None => thread.spawn(main),
        Some(cpus) => thread.spawn(move || {
            set_mask(&cpus);
            main();
        }),
    }
}

/// Calls a function that starts a process, which inherits the worker cpus of the loop.
///
/// This thread has them for that moment. The alternative, a call between `fork` and `exec`, makes std fork: see
/// `Command::spawn`.
pub(crate) fn inherit_worker_cpus<R>(core: &LoopCore, start: impl FnOnce() -> R) -> R {
    let cpus = core.settings.driver.worker_cpus.as_ref();
    let Some(cpus) = cpus.filter(|_| sys::CHILDREN_INHERIT_MASK) else {
        return start();
    };
    let own = sys::current_mask();
    let _restore = OnDrop(|| {
        if let Ok(own) = &own {
            set_mask(own);
        }
    });
    if own.is_ok() {
        set_mask(cpus);
    }
    start()
}

/// A thread on the wrong cpus still works, so an error is only reported. Some systems have no affinity.
fn set_mask(cpus: &CpuSet) {
    match sys::set_thread_mask(cpus) {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => {
            report(Exception::error(format!("cannot bind a thread to cpus {cpus}"), error));
        }
        _ => {}
    }
}
