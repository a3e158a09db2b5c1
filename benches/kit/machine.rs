//! The machine: cores, kernel, and the assignment of cores.

use std::fmt;
use std::fs;
use std::io;
use std::mem::{MaybeUninit, size_of};

pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) model: String,
    /// The core of the servers and the core of the load; none if there is only one.
    pub(crate) pinned: Option<(usize, usize)>,
    /// Whether those two are hyper-threads of one core.
    pub(crate) are_siblings: bool,
}

impl Machine {
    pub(crate) fn look() -> Machine {
        let allowed = allowed_cores();
        let server = allowed.first().copied().unwrap_or(0);
        let siblings = siblings_of(server);
        let others = || allowed.iter().copied().filter(|&core| core != server);
        let apart = others().find(|core| !siblings.contains(core));
        let load = apart.or(others().next());
        Machine {
            cores: allowed.len().max(1),
            kernel: read_line("/proc/sys/kernel/osrelease"),
            model: processor(),
            pinned: load.map(|load| (server, load)),
            are_siblings: apart.is_none() && load.is_some(),
        }
    }

    /// Pins this process, the load generator, to its core.
    pub(crate) fn pin_to_load(&self) {
        if let Some((_, load)) = self.pinned {
            // A failure (in a container, for example) only makes the figures noisier.
            let _ = pin(load);
        }
    }

    /// The core for servers.
    pub(crate) fn server_core(&self) -> Option<usize> {
        self.pinned.map(|(server, _)| server)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.cores == 1 { "" } else { "s" };
        write!(
            f,
            "{} core{plural} ({}), Linux {}; ",
            self.cores, self.model, self.kernel
        )?;
        match self.pinned {
            Some((server, load)) => write!(f, "servers on core {server}, load on core {load}")?,
            None => write!(f, "servers and load share all cores")?,
        }
        if self.are_siblings {
            write!(f, ", hyper-threads of one core")?;
        }
        Ok(())
    }
}

/// Pins the calling thread to a core. Safe to call between fork and exec: it allocates nothing.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    // SAFETY: zeroes are a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: CPU_SET checks its index against the set's size.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the kernel reads a local set of the size given.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn allowed_cores() -> Vec<usize> {
    // SAFETY: zeroes are a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes at most the size given to a local set.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Vec::new();
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the index is below the set's size.
        .filter(|&core| unsafe { libc::CPU_ISSET(core, &set) })
        .collect()
}

/// The hyper-threads of a core, including itself: a list such as `0,4` or `0-1`.
fn siblings_of(core: usize) -> Vec<usize> {
    let list = read_line(&format!(
        "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    ));
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// A field of `/proc/meminfo`, in bytes.
pub(crate) fn memory_info(field: &str) -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let name = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or(std::env::consts::ARCH).to_string()
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}
