//! The limits on the number of descriptors.

use std::fs;

use super::kit::limits;

/// Descriptors that a process needs besides its connections: output, pipes to its children, an epoll set.
const BESIDES: u64 = 100;

pub(crate) struct Limits {
    /// The hard RLIMIT_NOFILE. This process has raised its soft limit to it.
    pub(crate) descriptors: u64,
    /// fs.nr_open, the maximum even for root.
    pub(crate) nr_open: Option<u64>,
    /// fs.epoll.max_user_watches, the maximum for all epoll sets of a user.
    pub(crate) epoll_watches: Option<u64>,
}

impl Limits {
    pub(crate) fn raise() -> Limits {
        let raised = limits::raise_open_files().or_else(|_| limits::open_files());
        Limits {
            descriptors: raised.unwrap_or(1024),
            nr_open: read("/proc/sys/fs/nr_open"),
            epoll_watches: read("/proc/sys/fs/epoll/max_user_watches"),
        }
    }

    /// `wanted` connections, or as many as the limit allows.
    pub(crate) fn connections(&self, wanted: usize) -> usize {
        let room = self.descriptors.saturating_sub(BESIDES).max(1);
        wanted.min(usize::try_from(room).unwrap_or(usize::MAX))
    }
}

fn read(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
