//! The disk of a simulated host, as the test describes it.

use std::time::SystemTime;

use libc::{EDQUOT, ENOSPC};

use super::FileSystem;
use super::faults::{DiskFaults, DiskLatency};
use super::journal::{Journal, Order};

/// A description of a simulated disk: what a power loss may do to it, its size, its faults and latencies.
///
/// ```
/// use windlass::sim::{Disk, DiskFaults};
///
/// let disk = Disk::posix().capacity(64 << 20).torn(512).faults(DiskFaults::none().sync_errors(0.01));
/// ```
///
/// # What a power loss keeps
///
/// Reads see every write at once. A power loss keeps what was synced, and of the rest any combination that these rules
/// allow:
///
/// - `sync_all` makes a file's contents, size and permissions durable, `sync_data` its contents and size, and `sync_all` of
///   a directory its entries.
/// - Each sector that was written since has any of its versions, also the old one. So have the size and the permissions.
/// - A rename is atomic: the new path names the old file or the new one.
/// - With [`posix`](Disk::posix) a new file's name is durable only after a sync of its directory, and changes of entries
///   survive in any order. With [`ext4`](Disk::ext4) names, sizes and permissions survive as a prefix of their order, and
///   syncing a file makes everything durable that came before, its name included.
///
/// A crash of the process alone loses nothing.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a description does nothing until a host is given it"]
pub struct Disk {
    order: Order,
    sector: u64,
    torn: Option<u64>,
    capacity: Option<u64>,
    quota: Option<u64>,
    pub(crate) faults: DiskFaults,
    pub(crate) latency: DiskLatency,
}

impl Default for Disk {
    /// [`Disk::posix`].
    fn default() -> Disk {
        Disk::posix()
    }
}

impl Disk {
    /// A disk that keeps only what POSIX promises: the strictest test of a program.
    pub fn posix() -> Disk {
        Disk {
            order: Order::Any,
            sector: 4096,
            torn: None,
            capacity: None,
            quota: None,
            faults: DiskFaults::none(),
            latency: DiskLatency::default(),
        }
    }

    /// A disk with the guarantees of ext4 in its default mode, `data=ordered`.
    pub fn ext4() -> Disk {
        Disk {
            order: Order::Prefix,
            ..Disk::posix()
        }
    }

    /// The bytes of a sector, which a power loss keeps or loses as a whole, and the alignment of direct I/O: 512 or 4096,
    /// the default.
    ///
    /// # Panics
    ///
    /// For other values.
    pub fn sector(mut self, bytes: u64) -> Disk {
        assert!(
            matches!(bytes, 512 | 4096),
            "a sector has 512 or 4096 bytes, not {bytes}"
        );
        self.sector = bytes;
        self
    }

    /// Lets a power loss tear sectors: the first part of one version, the rest of another, cut at a multiple of `unit`.
    ///
    /// # Panics
    ///
    /// If `unit` is not a power of two of at most 4096.
    pub fn torn(mut self, unit: u64) -> Disk {
        assert!(
            unit.is_power_of_two() && unit <= 4096,
            "a torn sector is cut at multiples of a power of two, not of {unit}"
        );
        self.torn = Some(unit);
        self
    }

    /// The disk's size in bytes; writes fail with `ENOSPC` when it is full.
    pub fn capacity(mut self, bytes: u64) -> Disk {
        self.capacity = Some(bytes);
        self
    }

    /// The program's quota in bytes; writes fail with `EDQUOT` when it is used up.
    pub fn quota(mut self, bytes: u64) -> Disk {
        self.quota = Some(bytes);
        self
    }

    /// The disk's faults.
    pub fn faults(mut self, faults: DiskFaults) -> Disk {
        self.faults = faults;
        self
    }

    /// How long operations take. The default is a solid-state drive.
    pub fn latency(mut self, latency: DiskLatency) -> Disk {
        self.latency = latency;
        self
    }

    /// An empty disk with a root and `/tmp`, both durable.
    pub(crate) fn format(&self, now: SystemTime) -> FileSystem {
        let mut fs = FileSystem::new(self.sector, now);
        fs.make_path(b"/tmp", 0o1777);
        let capacity = (self.capacity.unwrap_or(u64::MAX), ENOSPC);
        let quota = (self.quota.unwrap_or(u64::MAX), EDQUOT);
        let (bytes, code) = capacity.min(quota);
        fs.capacity = (bytes / self.sector, code);
        let torn = self.torn.filter(|&unit| unit < self.sector);
        fs.journal = Some(Journal::new(self.order, torn));
        fs
    }
}
