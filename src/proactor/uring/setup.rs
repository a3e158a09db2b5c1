//! Opening a ring: asking for the best this kernel has, stepping down to what it takes, and saying why if it takes
//! nothing.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::driver::Settings;
use crate::sys::context;

/// What this kernel can do beyond what we cannot go without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    /// 6.1: completions are deferred to our own `enter`.
    pub(super) defer_taskrun: bool,
    /// 5.19: a flag tells when there is something to `enter` for.
    pub(super) taskrun_flag: bool,
    /// 6.12: a timeout may be a point in time, so the clock need not be read before sleeping.
    pub(super) absolute_timeout: bool,
    /// 6.15: a sleeping ring does not look like a process that waits for its disk.
    pub(super) no_iowait: bool,
    /// 5.19: the kernel picks a receive buffer when bytes arrive.
    pub(super) buffer_ring: bool,
    /// 5.19: a receive can wait for the socket before it is tried.
    pub(super) poll_first: bool,
    /// 5.11 to 5.15: renaming, removing, linking, making folders.
    pub(super) paths: bool,
    /// 6.9: cutting files off.
    pub(super) truncate: bool,
}

impl Abilities {
    pub(super) fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.defer_taskrun, "SINGLE_ISSUER"),
            (self.defer_taskrun, "DEFER_TASKRUN"),
            (self.taskrun_flag, "TASKRUN_FLAG"),
            (self.absolute_timeout, "ABS_TIMER"),
            (self.no_iowait, "NO_IOWAIT"),
            (self.buffer_ring, "buffer ring"),
            (self.poll_first, "poll first"),
            (self.paths, "paths"),
            (self.truncate, "truncate"),
        ];
        all.iter().filter(|(has, _)| *has).map(|&(_, name)| name).collect()
    }
}

/// Opens a ring with the most that this kernel accepts.
pub(super) fn open(settings: &Settings) -> io::Result<(IoUring, Abilities)> {
    let (ring, defer_taskrun, taskrun_flag) = build(settings).map_err(explain)?;
    if let Some(most) = settings.io_workers {
        // Bounded ones work on files, unbounded ones on what may wait for ever.
        let mut most = [most, most];
        ring.submitter().register_iowq_max_workers(&mut most).map_err(explain)?;
    }
    let params = ring.params();
    if !params.is_feature_nodrop() || !params.is_feature_ext_arg() {
        return Err(too_old("a ring without completion overflow or wait timeouts"));
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(explain)?;
    let needed = [
        (opcode::Accept::CODE, "ACCEPT"),
        (opcode::Connect::CODE, "CONNECT"),
        (opcode::Recv::CODE, "RECV"),
        (opcode::Send::CODE, "SEND"),
        (opcode::RecvMsg::CODE, "RECVMSG"),
        (opcode::SendMsg::CODE, "SENDMSG"),
        (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
        (opcode::Read::CODE, "READ"),
        (opcode::PollAdd::CODE, "POLL_ADD"),
        (opcode::Write::CODE, "WRITE"),
        (opcode::Readv::CODE, "READV"),
        (opcode::Writev::CODE, "WRITEV"),
        (opcode::OpenAt::CODE, "OPENAT"),
        (opcode::Statx::CODE, "STATX"),
        (opcode::Fsync::CODE, "FSYNC"),
        (opcode::Fallocate::CODE, "FALLOCATE"),
    ];
    if let Some((_, name)) = needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        return Err(too_old(&format!("no {name} operation")));
    }
    if settings.plain_ring {
        return Ok((ring, Abilities::default()));
    }
    let abilities = Abilities {
        defer_taskrun,
        taskrun_flag,
        // No feature bit of its own; it came with this one.
        absolute_timeout: params.is_feature_min_timeout(),
        no_iowait: params.is_feature_no_iowait(),
        // Likewise: the SOCKET opcode came with these two. Whether a buffer ring really can be registered shows when the first
        // managed read asks for it.
        buffer_ring: probe.is_supported(opcode::Socket::CODE),
        poll_first: probe.is_supported(opcode::Socket::CODE),
        paths: path_opcodes().into_iter().all(|code| probe.is_supported(code)),
        truncate: probe.is_supported(opcode::Ftruncate::CODE),
    };
    Ok((ring, abilities))
}

fn path_opcodes() -> [u8; 5] {
    [
        opcode::RenameAt::CODE,
        opcode::UnlinkAt::CODE,
        opcode::MkDirAt::CODE,
        opcode::SymlinkAt::CODE,
        opcode::LinkAt::CODE,
    ]
}

/// Steps down through the setups. A kernel that does not know a flag says EINVAL.
fn build(settings: &Settings) -> io::Result<(IoUring, bool, bool)> {
    let entries = settings.ring_entries;
    let completions = settings.completion_entries.unwrap_or(entries.saturating_mul(4));
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(completions).dontfork();
    if settings.plain_ring {
        return builder.build(entries).map(|ring| (ring, false, false));
    }
    let unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);

    let mut best = builder.clone();
    best.setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    match best.build(entries) {
        Err(error) if unknown(&error) => {}
        result => return result.map(|ring| (ring, true, true)),
    }
    let mut middling = builder.clone();
    middling.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    match middling.build(entries) {
        Err(error) if unknown(&error) => {}
        result => return result.map(|ring| (ring, false, true)),
    }
    builder.build(entries).map(|ring| (ring, false, false))
}

fn too_old(what: &str) -> io::Error {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "io_uring of this kernel ({}) is too old: {what}; 5.11 or later is needed",
            release.trim()
        ),
    )
}

/// Says why the kernel refused.
fn explain(error: io::Error) -> io::Error {
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let why = match (error.raw_os_error(), sysctl.trim()) {
        (Some(libc::EPERM), "2") => "io_uring is switched off by the sysctl kernel.io_uring_disabled = 2",
        (Some(libc::EPERM), "1") => {
            "io_uring is for privileged processes only, by the sysctl kernel.io_uring_disabled = 1, or refused by seccomp"
        }
        (Some(libc::EPERM | libc::EACCES), _) => "io_uring is refused by a seccomp filter or a security module",
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring (it came with 5.1), or a seccomp filter hides it",
        (Some(libc::ENOMEM), _) => "no memory for an io_uring of this size, or the limit of locked memory is reached",
        (Some(libc::EMFILE | libc::ENFILE), _) => "no descriptor is left for an io_uring",
        _ => "io_uring could not be opened",
    };
    context(why, error)
}
