//! Thread affinity on Windows: `SetThreadGroupAffinity`. A new thread does not inherit the mask of its creator.
//!
//! Windows numbers processors within groups of at most 64 (32 in a 32-bit process). A number here is the group's number
//! times the size of a mask, plus the number within the group: so a group is a word of the set's mask. A thread that was
//! given a mask runs in one group.

use std::io;

use windows_sys::Win32::System::SystemInformation::GROUP_AFFINITY;
use windows_sys::Win32::System::Threading::{
    GetActiveProcessorCount, GetActiveProcessorGroupCount, GetCurrentProcess, GetCurrentThread, GetProcessAffinityMask,
    GetProcessGroupAffinity, GetThreadGroupAffinity, SetThreadGroupAffinity,
};

use crate::sys::{CpuSet, Topology};

/// Whether a new process gets the mask of the thread that starts it.
pub(crate) const CHILDREN_INHERIT_MASK: bool = false;

/// The mask of the calling thread, in its group.
pub(crate) fn current_mask() -> io::Result<CpuSet> {
    let GROUP_AFFINITY {
        Mask: mask,
        Group: group,
        ..
    } = current()?;
    Ok(in_group(mask, group))
}

fn current() -> io::Result<GROUP_AFFINITY> {
    let mut affinity = GROUP_AFFINITY::default();
    // SAFETY: the pseudo-handle needs no closing; the call fills the local struct and keeps no pointer to it.
    check(unsafe { GetThreadGroupAffinity(GetCurrentThread(), &mut affinity) })?;
    Ok(affinity)
}

/// The mask of the process, or all processors of all groups if it has no other than all of its own group: a process
/// starts in one group, but its threads may be moved to any.
pub(in crate::sys) fn main_mask() -> io::Result<CpuSet> {
    let (mut process, mut system) = (0, 0);
    // SAFETY: the pseudo-handle needs no closing; the call fills two local words and keeps no pointer to them.
    check(unsafe { GetProcessAffinityMask(GetCurrentProcess(), &mut process, &mut system) })?;
    if process != system {
        let (mut count, mut group) = (1, 0);
        // SAFETY: as above; one group fits. A process with a mask of its own is in one group.
        check(unsafe { GetProcessGroupAffinity(GetCurrentProcess(), &mut count, &mut group) })?;
        return Ok(in_group(process, group));
    }
    // SAFETY: it takes and returns plain numbers.
    let groups = 0..unsafe { GetActiveProcessorGroupCount() };
    let masks = groups.map(|group| {
        // SAFETY: as above.
        match unsafe { GetActiveProcessorCount(group) } {
            count @ 0..usize::BITS => (1 << count) - 1,
            _ => usize::MAX,
        }
    });
    Ok(CpuSet::from_mask(&masks.collect::<Vec<_>>()))
}

/// Sets the mask of the calling thread. Of a set of several groups, the thread gets the part in its own group, or that in
/// the first group if its own is not among them.
pub(crate) fn set_thread_mask(cpus: &CpuSet) -> io::Result<()> {
    let masks = cpus.to_mask()?;
    let own = usize::from(current()?.Group);
    let is_used = |&group: &usize| masks.get(group).is_some_and(|mask| *mask != 0);
    let group = [own].into_iter().chain(0..masks.len()).find(is_used).unwrap_or(own);
    let affinity = GROUP_AFFINITY {
        Mask: masks.get(group).copied().unwrap_or(0),
        Group: group as u16,
        ..GROUP_AFFINITY::default()
    };
    // SAFETY: the pseudo-handle needs no closing; the call reads the local struct, and null says that the earlier
    // affinity is not asked for.
    check(unsafe { SetThreadGroupAffinity(GetCurrentThread(), &affinity, std::ptr::null_mut()) })
}

/// Unknown: each processor counts as a core of its own.
pub(crate) fn topology() -> Topology {
    Topology::default()
}

fn in_group(mask: usize, group: u16) -> CpuSet {
    let mut masks = vec![0; group.into()];
    masks.push(mask);
    CpuSet::from_mask(&masks)
}

fn check(succeeded: windows_sys::core::BOOL) -> io::Result<()> {
    match succeeded {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
