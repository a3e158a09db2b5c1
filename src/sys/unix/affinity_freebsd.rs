//! Thread affinity on FreeBSD: `cpuset_setaffinity`. A new thread, and a new process, inherits the mask of its creator.

use std::io;

use crate::sys::{CpuSet, Topology};

/// Whether a new process gets the mask of the thread that starts it.
pub(crate) const CHILDREN_INHERIT_MASK: bool = true;

/// The sizes of the kernel's mask: before FreeBSD 14, and since. It refuses a smaller one, and before 14 also a larger
/// one, with ERANGE.
const BITS: [usize; 2] = [256, 1024];

/// The mask of the calling thread.
pub(crate) fn current_mask() -> io::Result<CpuSet> {
    mask_of(libc::CPU_WHICH_TID)
}

/// The processors that any thread of the process may use.
pub(in crate::sys) fn main_mask() -> io::Result<CpuSet> {
    mask_of(libc::CPU_WHICH_PID)
}

/// The mask of the calling thread or process, as `which` says.
fn mask_of(which: libc::c_int) -> io::Result<CpuSet> {
    CpuSet::read_mask(BITS, libc::ERANGE, |mask| {
        // SAFETY: the kernel writes as many bytes as the slice has, and keeps no pointer to it.
        let result = unsafe {
            libc::cpuset_getaffinity(
                libc::CPU_LEVEL_WHICH,
                which,
                -1,
                size_of_val(mask),
                mask.as_mut_ptr().cast(),
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Sets the mask of the calling thread.
pub(crate) fn set_thread_mask(cpus: &CpuSet) -> io::Result<()> {
    let mut mask = cpus.to_mask()?;
    let mut result = Err(io::Error::from_raw_os_error(libc::ERANGE));
    for bits in BITS {
        let words = bits / usize::BITS as usize;
        if mask.len() > words {
            continue;
        }
        mask.resize(words, 0);
        // SAFETY: the kernel reads as many bytes as the mask has, and keeps no pointer to it.
        let code = unsafe {
            libc::cpuset_setaffinity(
                libc::CPU_LEVEL_WHICH,
                libc::CPU_WHICH_TID,
                -1,
                size_of_val(&*mask),
                mask.as_ptr().cast(),
            )
        };
        result = match code {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        if result.as_ref().err().and_then(io::Error::raw_os_error) != Some(libc::ERANGE) {
            break;
        }
    }
    result
}

/// Unknown: each processor counts as a core of its own.
pub(crate) fn topology() -> Topology {
    Topology::default()
}
