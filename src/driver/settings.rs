//! The settings of a driver: ring sizes, buffer pool, kernel workers.

use std::io;
use std::sync::Arc;

use super::NullFiles;
use crate::sys::CpuSet;

/// The settings that a driver is opened with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ring_entries: u32,
    pub(crate) completion_entries: Option<u32>,
    pub(crate) plain_ring: bool,
    pub(crate) managed_count: u16,
    pub(crate) managed_len: usize,
    pub(crate) io_workers: Option<u32>,
    /// The cpus of the threads that work for the loop; by default those of the thread that starts them.
    pub(crate) worker_cpus: Option<Arc<CpuSet>>,
    pub(crate) null_files: NullFiles,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ring_entries: 256,
            completion_entries: None,
            plain_ring: false,
            managed_count: 256,
            managed_len: 8 * 1024,
            io_workers: None,
            worker_cpus: None,
            null_files: NullFiles::default(),
        }
    }
}

impl Settings {
    /// Refuses settings that no driver can serve.
    pub(crate) fn check(&self) -> io::Result<()> {
        let completions = self.completion_entries.unwrap_or(u32::MAX);
        let why = if self.ring_entries == 0 {
            "ring_entries must be at least 1"
        } else if completions < self.ring_entries {
            "completion_entries must be at least ring_entries"
        } else if self.managed_count == 0 || self.managed_count > 1 << 15 {
            "managed_buffers needs between 1 and 32768 buffers"
        } else if self.managed_len == 0 || self.managed_len > 1 << 30 {
            "managed_buffers needs buffers of 1 byte to 1 GiB"
        } else if self.io_workers == Some(0) {
            "max_io_workers must be at least 1: to the kernel, 0 means no limit"
        } else if self.worker_cpus.as_ref().is_some_and(|cpus| cpus.is_empty()) {
            "worker_cpus must contain at least one cpu"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}
