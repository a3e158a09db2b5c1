//! Resource limits: open files, for ten thousand connections, and locked memory, for glommio's rings and buffers. Child
//! processes inherit them.

use std::io;

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

/// The same for locked memory; unlimited for a privileged process.
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
