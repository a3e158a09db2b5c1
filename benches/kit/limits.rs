//! What a process may have: open files, for ten thousand connections, and locked memory, for the rings and buffers of
//! glommio. What is raised here is raised for the children too.

use std::io;

/// Numbers of the kernel's, whose type is one in glibc and another in musl.
const OPEN_FILES: i32 = libc::RLIMIT_NOFILE as i32;
const LOCKED_MEMORY: i32 = libc::RLIMIT_MEMLOCK as i32;

/// What a limit was and is now.
pub(crate) struct Raised {
    pub(crate) before: u64,
    pub(crate) now: u64,
}

/// How many files this process may have open.
pub(crate) fn open_files() -> io::Result<u64> {
    Ok(get(OPEN_FILES)?.rlim_cur)
}

/// Raises that as far as the hard limit goes; gives what it is then.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    Ok(raise(OPEN_FILES)?.now)
}

/// Raises it; an error if it is still short of what is wanted.
pub(crate) fn want_open_files(wanted: u64) -> io::Result<()> {
    let limit = raise_open_files()?;
    match limit >= wanted {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "that takes {wanted} open files, and the limit is {limit}: raise it (`ulimit -Hn`), or ask for less"
        ))),
    }
}

/// Raises it to a million, the hard limit too, if this process may; else as far as the hard limit goes.
pub(crate) fn stretch_open_files() -> io::Result<Raised> {
    stretch(OPEN_FILES, 1 << 20)
}

/// The same for locked memory, of which a privileged process gets all.
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
