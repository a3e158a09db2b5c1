//! Opening a ring: tries the best setup flags first and steps down to those that this kernel accepts. If it accepts
//! none, the error names the cause: a sysctl, a seccomp filter, a limit or an old kernel.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::driver::Settings;
use crate::sys::{self, context};

/// Optional features of this kernel, with the version that introduced each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Features {
    /// 6.1: the kernel posts completions only during our own `enter`.
    pub(super) defer_taskrun: bool,
    /// 5.19: a flag in shared memory says that an `enter` would post completions.
    pub(super) taskrun_flag: bool,
    /// 6.12: absolute timeouts, so the clock need not be read before a wait.
    pub(super) absolute_timeout: bool,
    /// 6.15: a thread blocked in the ring is not accounted as waiting for a disk (iowait).
    pub(super) no_iowait: bool,
    /// 5.17: an operation can post no completion if it succeeds.
    pub(super) skip_success: bool,
    /// 5.19: provided-buffer rings, and receives that poll the socket before their first attempt.
    pub(super) buffer_ring: bool,
    /// 5.11 to 5.15: rename, unlink, link, symlink, mkdir.
    pub(super) paths: bool,
    /// 6.9: ftruncate.
    pub(super) truncate: bool,
}

impl Features {
    pub(super) fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.defer_taskrun, "SINGLE_ISSUER"),
            (self.defer_taskrun, "DEFER_TASKRUN"),
            (self.taskrun_flag, "TASKRUN_FLAG"),
            (self.absolute_timeout, "ABS_TIMER"),
            (self.no_iowait, "NO_IOWAIT"),
            (self.skip_success, "CQE_SKIP"),
            (self.buffer_ring, "buffer ring"),
            (self.buffer_ring, "poll first"),
            (self.paths, "paths"),
            (self.truncate, "truncate"),
        ];
        all.iter().filter(|(has, _)| *has).map(|&(_, name)| name).collect()
    }
}

/// Opens a ring with every feature that this kernel has.
pub(super) fn open(settings: &Settings) -> io::Result<(IoUring, Features)> {
    let (ring, defer_taskrun, taskrun_flag) = build(settings).map_err(explain)?;
    if let Some(most) = settings.io_workers {
        // Bounded workers serve regular files, unbounded workers operations that may block forever.
        let mut most = [most, most];
        ring.submitter().register_iowq_max_workers(&mut most).map_err(explain)?;
    }
    if let Some(cpus) = settings.worker_cpus.as_deref().and_then(sys::to_cpu_set) {
        // Not needed for correct results, and kernels before 5.14 refuse it.
        let _ = ring.submitter().register_iowq_aff(&cpus);
    }
    let params = ring.params();
    if !params.is_feature_nodrop() || !params.is_feature_ext_arg() {
        return Err(too_old("it lacks the feature NODROP or EXT_ARG"));
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
        return Err(too_old(&format!("it lacks the {name} operation")));
    }
    if settings.plain_ring {
        return Ok((ring, Features::default()));
    }
    let paths = [
        opcode::RenameAt::CODE,
        opcode::UnlinkAt::CODE,
        opcode::MkDirAt::CODE,
        opcode::SymlinkAt::CODE,
        opcode::LinkAt::CODE,
    ];
    let features = Features {
        defer_taskrun,
        taskrun_flag,
        // Absolute timeouts have no feature bit of their own; MIN_TIMEOUT came with the same version.
        absolute_timeout: params.is_feature_min_timeout(),
        no_iowait: params.is_feature_no_iowait(),
        skip_success: params.is_feature_skip_cqe_on_success(),
        // Likewise: the SOCKET opcode came with the same version as these two. Whether a buffer ring can really be
        // registered shows at the first managed read.
        buffer_ring: probe.is_supported(opcode::Socket::CODE),
        paths: paths.into_iter().all(|code| probe.is_supported(code)),
        truncate: probe.is_supported(opcode::Ftruncate::CODE),
    };
    Ok((ring, features))
}

/// Tries the setups from best to plain. A kernel that does not know a flag returns EINVAL.
fn build(settings: &Settings) -> io::Result<(IoUring, bool, bool)> {
    let entries = settings.ring_entries;
    let completions = settings.completion_entries.unwrap_or(entries.saturating_mul(4));
    let mut builder = IoUring::builder();
    builder.setup_clamp().setup_cqsize(completions).dontfork();
    let better: &[bool] = if settings.plain_ring { &[] } else { &[true, false] };
    for &defer_taskrun in better {
        let mut builder = builder.clone();
        builder.setup_submit_all().setup_taskrun_flag();
        match defer_taskrun {
            true => builder.setup_single_issuer().setup_defer_taskrun(),
            false => builder.setup_coop_taskrun(),
        };
        match builder.build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => return result.map(|ring| (ring, defer_taskrun, true)),
        }
    }
    builder.build(entries).map(|ring| (ring, false, false))
}

fn too_old(missing: &str) -> io::Error {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "the io_uring of this kernel ({}) is too old: {missing}; Linux 5.11 or later is required",
            release.trim()
        ),
    )
}

/// Adds the likely cause to the kernel's error.
fn explain(error: io::Error) -> io::Error {
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let why = match (error.raw_os_error(), sysctl.trim()) {
        (Some(libc::EPERM), "2") => "io_uring is disabled by the sysctl kernel.io_uring_disabled = 2",
        (Some(libc::EPERM), "1") => {
            "io_uring is for privileged processes only (sysctl kernel.io_uring_disabled = 1), or refused by seccomp"
        }
        (Some(libc::EPERM | libc::EACCES), _) => "io_uring is refused by a seccomp filter or a security module",
        (Some(libc::ENOSYS), _) => "this kernel has no io_uring (it came with 5.1), or a seccomp filter hides it",
        (Some(libc::ENOMEM), _) => "no memory for an io_uring of this size, or RLIMIT_MEMLOCK is reached",
        (Some(libc::EMFILE | libc::ENFILE), _) => "no descriptor is left for an io_uring",
        _ => "cannot open an io_uring",
    };
    context(why, error)
}
