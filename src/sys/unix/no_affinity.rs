//! Thread affinity on an OS that has none: macOS only takes hints, which Apple silicon ignores.

use std::io;

use crate::sys::{CpuSet, Topology};

/// Whether a new process gets the mask of the thread that starts it.
pub(crate) const CHILDREN_INHERIT_MASK: bool = false;

pub(crate) fn current_mask() -> io::Result<CpuSet> {
    Err(unsupported())
}

pub(in crate::sys) fn main_mask() -> io::Result<CpuSet> {
    Err(unsupported())
}

pub(crate) fn set_thread_mask(_cpus: &CpuSet) -> io::Result<()> {
    Err(unsupported())
}

pub(crate) fn topology() -> Topology {
    Topology::default()
}

fn unsupported() -> io::Error {
    let why = format!("{} cannot bind a thread to cpus", std::env::consts::OS);
    io::Error::new(io::ErrorKind::Unsupported, why)
}
