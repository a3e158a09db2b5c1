//! The processors of this process, from the calls of each OS.

use std::io;
use std::sync::OnceLock;

use super::{CpuSet, main_mask};

/// The processors that the process may use: those of its main thread when this was first called. Call it before any
/// thread is pinned.
pub(crate) fn process_mask() -> io::Result<&'static CpuSet> {
    static MASK: OnceLock<CpuSet> = OnceLock::new();
    match MASK.get() {
        Some(mask) => Ok(mask),
        None => {
            let mask = main_mask()?;
            Ok(MASK.get_or_init(|| mask))
        }
    }
}

#[cfg(test)]
#[cfg(all(any(target_os = "linux", target_os = "freebsd", windows), not(miri)))]
mod tests {
    use super::process_mask;
    use crate::sys::{CpuSet, current_mask, set_thread_mask, topology};

    /// The masks belong to the thread, so each test uses one of its own.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(test);
        if let Err(payload) = thread.join() {
            std::panic::resume_unwind(payload);
        }
    }

    #[test]
    fn a_thread_is_pinned_and_unpinned() {
        on_a_thread(|| {
            let process = process_mask().expect("the mask of the process");
            let before = current_mask().expect("the mask of the thread");
            assert!(!before.is_empty());
            assert_eq!(before.difference(process), CpuSet::default(), "not in {process}");
            for cpu in before.iter() {
                let one = CpuSet::from_iter([cpu]);
                set_thread_mask(&one).expect("an allowed cpu");
                assert_eq!(current_mask().expect("the mask"), one);
                assert_eq!(process_mask().expect("the mask of the process"), process);
            }
            set_thread_mask(&before).expect("the earlier mask");
            assert_eq!(current_mask().expect("the mask"), before);
        });
    }

    #[test]
    fn a_set_without_a_cpu_of_this_machine_is_refused() {
        on_a_thread(|| {
            let before = current_mask().expect("the mask of the thread");
            for cpus in [vec![], vec![60_000], vec![usize::MAX]] {
                let refused = set_thread_mask(&CpuSet::from_iter(cpus)).expect_err("no such cpu");
                assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{refused}");
            }
            assert_eq!(current_mask().expect("the mask"), before);
        });
    }

    #[test]
    fn every_allowed_cpu_is_in_one_group() {
        let process = process_mask().expect("the mask of the process");
        let grouped = topology().grouped(process);
        let cpus: Vec<usize> = grouped.iter().flatten().flat_map(|core| core.iter()).collect();
        assert_eq!(cpus.len(), process.len(), "{grouped:?}");
        assert_eq!(CpuSet::from_iter(cpus), *process);
    }
}
