//! What a simulation does to a host's disk: latencies, crashes, and the handle for the test.

use std::time::{Duration, SystemTime};

use super::FileSystem;
use super::config::Disk;
use super::crash::Loss;
use super::faults::{Class, Faults};
use super::image::DiskHandle;
use crate::sim::files::{Files, Volume};
use crate::sim::rng::Rng;
use crate::sys::FileOp;

impl Disk {
    /// The open files, none, of a host with a new disk like this. The faults draw from `rng`.
    pub(crate) fn mount(&self, now: SystemTime, rng: Rng) -> Files {
        let faults = Faults::new(self.faults.clone(), self.latency.clone(), rng);
        Files::new(Volume::new(self.format(now), Some(faults)))
    }
}

impl Files {
    /// When an operation that starts now is done, in nanoseconds as `now_ns`.
    pub(crate) fn done_at(&self, op: &FileOp, now_ns: u64) -> u64 {
        let volume = &mut *self.volume.borrow_mut();
        match &mut volume.faults {
            Some(faults) => faults.done_at(class(op), now_ns),
            None => now_ns,
        }
    }

    /// The process crashes: its files are closed, and nothing is lost.
    pub(crate) fn process_crash(&mut self) {
        while let Some(&fd) = self.open.keys().next() {
            self.close(fd);
        }
    }

    /// The power fails: of what is not durable, `rng` decides what survives. No file is open afterwards.
    pub(crate) fn power_loss(&mut self, rng: &mut Rng) -> Loss {
        self.open.clear();
        self.volume.borrow_mut().fs.power_loss(rng)
    }

    /// The test's access to the disk.
    pub(crate) fn handle(&self) -> DiskHandle {
        DiskHandle::new(self.volume.clone())
    }
}

impl Volume {
    /// Replaces everything on the disk. Open files fail from now on.
    pub(super) fn replace(&mut self, fs: FileSystem) {
        self.fs = fs;
        self.generation += 1;
        if let Some(faults) = &mut self.faults {
            faults.replaced();
        }
    }

    pub(super) fn stall(&mut self, length: Duration) {
        if let Some(faults) = &mut self.faults {
            faults.delay_next(length);
        }
    }
}

/// Which latency an operation has.
fn class(op: &FileOp) -> Class {
    match op {
        FileOp::ReadAt { .. } | FileOp::ReadVectoredAt { .. } => Class::Read,
        FileOp::WriteAt { .. } | FileOp::WriteVectoredAt { .. } | FileOp::Truncate { .. } | FileOp::Allocate { .. } => {
            Class::Write
        }
        FileOp::Sync { .. } => Class::Sync,
        FileOp::Open { .. }
        | FileOp::Stat { .. }
        | FileOp::Rename { .. }
        | FileOp::Remove { .. }
        | FileOp::MakeDir { .. }
        | FileOp::HardLink { .. }
        | FileOp::SymLink { .. }
        | FileOp::ReadLink { .. }
        | FileOp::SetMode { .. }
        | FileOp::ReadDir { .. }
        | FileOp::RealPath { .. }
        | FileOp::Copy { .. }
        | FileOp::RemoveAll { .. } => Class::Metadata,
    }
}
