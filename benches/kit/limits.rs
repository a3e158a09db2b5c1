//! How many files a process may have open.

use std::io;

/// Raises the limit as far as it goes, for this process and the children that it starts; gives what it is then.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit to a local variable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads a local rlimit.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(limit.rlim_cur),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the limit; an error if it is still short of what is wanted.
pub(crate) fn want_open_files(wanted: u64) -> io::Result<()> {
    let limit = raise_open_files()?;
    match limit >= wanted {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "that takes {wanted} open files, and the limit is {limit}: raise it (`ulimit -Hn`), or ask for less"
        ))),
    }
}
