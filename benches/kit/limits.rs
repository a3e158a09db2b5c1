//! Resource limits: open files, for ten thousand connections, and locked memory, for glommio's rings and buffers. Child
//! processes inherit them.

use std::{fs, io};

/// The resource id, whose type differs between glibc and musl.
const OPEN_FILES: i32 = libc::RLIMIT_NOFILE as i32;
const LOCKED_MEMORY: i32 = libc::RLIMIT_MEMLOCK as i32;

/// A limit before and after raising it.
pub(crate) struct Raised {
    pub(crate) before: u64,
    pub(crate) now: u64,
}

/// The limit on open files.
pub(crate) fn open_files() -> io::Result<u64> {
    Ok(get(OPEN_FILES)?.rlim_cur)
}

/// Raises it to the hard limit, and returns the new limit.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    Ok(raise(OPEN_FILES)?.now)
}

/// Raises it; fails if it is still lower than `wanted`.
pub(crate) fn want_open_files(wanted: u64) -> io::Result<()> {
    let limit = raise_open_files()?;
    match limit >= wanted {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{wanted} open files are needed, but the limit is {limit}: raise it (`ulimit -Hn`) or use fewer connections"
        ))),
    }
}

/// Raises soft and hard limit to a million if permitted, otherwise the soft limit to the hard limit.
pub(crate) fn stretch_open_files() -> io::Result<Raised> {
    stretch(OPEN_FILES, 1 << 20)
}

/// The number of idle loopback connections between two processes that this machine allows, up to `wanted`; if it is lower,
/// also the reason. Raises the limit on open files.
pub(crate) fn connections(wanted: usize) -> io::Result<(usize, Option<String>)> {
    let files = stretch_open_files()?.now;
    let mut limits = vec![(
        files.saturating_sub(100),
        format!("{files} open files per process, the hard limit (`ulimit -Hn`); raising it needs CAP_SYS_RESOURCE"),
    )];
    // The first number of a file.
    let read = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        text.split_whitespace().find_map(|word| word.parse::<u64>().ok())
    };
    if let (Some(most), Some(used)) = (read("/proc/sys/fs/file-max"), read("/proc/sys/fs/file-nr")) {
        // Both ends are open files.
        let reason = format!("{most} open files in the system (fs.file-max), {used} of them in use");
        limits.push((most.saturating_sub(used) / 2, reason));
    }
    let tracked = "/proc/sys/net/netfilter/nf_conntrack_";
    if let (Some(most), Some(used)) = (read(&format!("{tracked}max")), read(&format!("{tracked}count"))) {
        let reason = format!("{most} tracked connections (net.netfilter.nf_conntrack_max), {used} of them in use");
        limits.push((most.saturating_sub(used), reason));
    }
    let available = super::machine::memory_info("MemAvailable").unwrap_or(u64::MAX);
    let reason = format!("{} of available memory", show_bytes(available));
    limits.push((available / CONNECTION_BYTES, reason));
    let (most, reason) = limits.into_iter().min_by_key(|(most, _)| *most).expect("not empty");
    match most < wanted as u64 {
        true => Ok((most as usize, Some(reason))),
        false => Ok((wanted, None)),
    }
}

/// A cautious estimate of the memory of an idle connection, both ends with their kernel memory.
const CONNECTION_BYTES: u64 = 32 * 1024;

/// Raises the limit on locked memory; unlimited for a privileged process.
pub(crate) fn stretch_locked_memory() -> io::Result<Raised> {
    stretch(LOCKED_MEMORY, libc::RLIM_INFINITY)
}

/// `8 MiB`, or `unlimited`.
pub(crate) fn show_bytes(limit: u64) -> String {
    match limit {
        libc::RLIM_INFINITY => "unlimited".into(),
        limit => super::text::bytes(limit as f64),
    }
}

fn stretch(resource: i32, wanted: u64) -> io::Result<Raised> {
    let old = get(resource)?;
    let everything = libc::rlimit {
        rlim_cur: wanted.max(old.rlim_cur),
        rlim_max: wanted.max(old.rlim_max),
    };
    if set(resource, everything).is_err() {
        return raise(resource);
    }
    Ok(Raised {
        before: old.rlim_cur,
        now: get(resource)?.rlim_cur,
    })
}

fn raise(resource: i32) -> io::Result<Raised> {
    let old = get(resource)?;
    let rlim_cur = old.rlim_max;
    set(resource, libc::rlimit { rlim_cur, ..old })?;
    Ok(Raised {
        before: old.rlim_cur,
        now: rlim_cur,
    })
}

fn get(resource: i32) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit to a local variable.
    match unsafe { libc::getrlimit(resource as _, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(resource: i32, limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads a local rlimit.
    match unsafe { libc::setrlimit(resource as _, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
