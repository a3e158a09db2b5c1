//! The files of a host: a simulated disk that is formatted on first use, or the real files of this machine.

#[cfg(feature = "sim")]
use std::time::SystemTime;

use super::files::Files;
#[cfg(feature = "sim")]
use crate::rand::Rng;

/// Where the files of a host are.
pub(super) enum HostFiles {
    /// On this machine.
    Real,
    /// On a disk that nothing has used yet, with the time of its format and the random numbers of its faults. Many hosts
    /// of many runs use no files.
    #[cfg(feature = "sim")]
    Unused(SystemTime, Rng),
    Mounted(Files),
}

impl HostFiles {
    /// An empty disk, where the simulated kernel has files.
    #[cfg(feature = "sim")]
    pub(super) fn unused(now: SystemTime, rng: Rng) -> HostFiles {
        match cfg!(unix) {
            true => HostFiles::Unused(now, rng),
            false => HostFiles::Real,
        }
    }

    pub(super) fn is_simulated(&self) -> bool {
        !matches!(self, HostFiles::Real)
    }

    /// The files of a disk that has been used.
    pub(super) fn used(&self) -> Option<&Files> {
        match self {
            HostFiles::Mounted(files) => Some(files),
            _ => None,
        }
    }

    /// The files of the disk, which is formatted now if it has not been used; `None` for real files.
    pub(super) fn mount(&mut self) -> Option<&mut Files> {
        #[cfg(feature = "sim")]
        if let HostFiles::Unused(now, rng) = self {
            *self = Files::of_host(*now, rng.clone()).into();
        }
        match self {
            HostFiles::Mounted(files) => Some(files),
            _ => None,
        }
    }
}

impl From<Option<Files>> for HostFiles {
    fn from(files: Option<Files>) -> HostFiles {
        files.map_or(HostFiles::Real, HostFiles::Mounted)
    }
}
