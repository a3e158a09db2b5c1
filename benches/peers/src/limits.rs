//! The process's limits, raised as far as they may be: ten thousand connections need descriptors, glommio's rings and
//! buffers need locked memory.

use std::io;

/// What a limit was and is now.
pub(crate) struct Raised {
    pub(crate) before: u64,
    pub(crate) now: u64,
}

pub(crate) fn open_files() -> io::Result<Raised> {
    raise(libc::RLIMIT_NOFILE, 1 << 20)
}

pub(crate) fn locked_memory() -> io::Result<Raised> {
    raise(libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY)
}

/// Asks for `wanted`, hard limit included, which a privileged process gets; else takes what the hard limit allows.
fn raise(resource: libc::__rlimit_resource_t, wanted: u64) -> io::Result<Raised> {
    let old = get(resource)?;
    let everything = libc::rlimit {
        rlim_cur: wanted.max(old.rlim_cur),
        rlim_max: wanted.max(old.rlim_max),
    };
    if set(resource, everything).is_err() {
        set(
            resource,
            libc::rlimit {
                rlim_cur: old.rlim_max,
                ..old
            },
        )?;
    }
    Ok(Raised {
        before: old.rlim_cur,
        now: get(resource)?.rlim_cur,
    })
}

fn get(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one limit to a local variable.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(resource: libc::__rlimit_resource_t, limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads one local limit.
    match unsafe { libc::setrlimit(resource, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `8 MiB`, or `unlimited`.
pub(crate) fn show_bytes(limit: u64) -> String {
    match limit {
        libc::RLIM_INFINITY => "unlimited".into(),
        limit => crate::kit::text::bytes(limit as f64),
    }
}
