//! Thread affinity on Linux: `sched_setaffinity`. A new thread, and a new process, inherits the mask of its creator.

use std::io;
use std::path::Path;

use crate::sys::{CpuSet, Topology};

/// Whether a new process gets the mask of the thread that starts it.
pub(crate) const CHILDREN_INHERIT_MASK: bool = true;

/// The mask of the calling thread.
pub(crate) fn current_mask() -> io::Result<CpuSet> {
    mask_of(0)
}

/// The mask of the main thread: that of the process's start, until the program changes it. The kernel keeps no record.
pub(in crate::sys) fn main_mask() -> io::Result<CpuSet> {
    // SAFETY: the call takes no argument and accesses no memory.
    mask_of(unsafe { libc::getpid() })
}

fn mask_of(thread: libc::pid_t) -> io::Result<CpuSet> {
    // EINVAL: the buffer is smaller than the kernel's mask.
    CpuSet::read_mask([1 << 10, 1 << 13, 1 << 16], libc::EINVAL, |mask| {
        // SAFETY: the kernel writes at most as many bytes as the slice has, and keeps no pointer to it.
        let result = unsafe { libc::sched_getaffinity(thread, size_of_val(mask), mask.as_mut_ptr().cast()) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Sets the mask of the calling thread. The kernel ignores processors that the machine or the cpuset of the process
/// lacks, and refuses a set that contains no other.
pub(crate) fn set_thread_mask(cpus: &CpuSet) -> io::Result<()> {
    let mask = cpus.to_mask()?;
    // SAFETY: the kernel reads as many bytes as the mask has, and keeps no pointer to it.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&*mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The cores and NUMA nodes of this machine.
pub(crate) fn topology() -> Topology {
    Topology::read(Path::new("/sys/devices/system"))
}

/// The set for calls of other crates, without the processors from 1,024 on; `None` if that leaves none.
#[cfg(feature = "proactor")]
pub(crate) fn to_cpu_set(cpus: &CpuSet) -> Option<libc::cpu_set_t> {
    // SAFETY: an array of numbers, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let fitting = || cpus.iter().filter(|&cpu| cpu < libc::CPU_SETSIZE as usize);
    for cpu in fitting() {
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    fitting().next().map(|_| set)
}
