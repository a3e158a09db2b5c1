//! Platform helpers of the tests, for Unix.

#![allow(dead_code, unused_imports, reason = "not every build of the suite uses every helper")]

use std::cell::Cell;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpStream;

use super::{Folder, variable};

/// Makes a socket send a reset when it is closed. Sockets of the null driver are left alone.
pub(crate) fn reset_on_close(socket: &impl AsRawFd) {
    let fd = socket.as_raw_fd();
    if is_null_driver_number(fd) {
        return;
    }
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the descriptor is open, and the option's value outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "SO_LINGER: {}", std::io::Error::last_os_error());
}

/// The number of open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// The CPU time of this thread.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the local timespec and keeps no pointer to it.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// With `WINDLASS_TEST_ITIMER`, a signal every millisecond without `SA_RESTART`, so that blocking system calls return
/// EINTR. The signal goes to this thread: one for the process would go to the main thread, which only waits for the
/// tests.
#[cfg(target_os = "linux")]
pub(crate) fn interrupt_if_asked() -> Option<Interrupting> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if variable::<u32>("WINDLASS_TEST_ITIMER").is_none_or(|on| on == 0) {
        return None;
    }
    ONCE.call_once(|| {
        extern "C" fn ignore(_signal: libc::c_int) {}
        // SAFETY: the handler does nothing, which is async-signal-safe; the structure is plain data.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        }
    });
    // SAFETY: the structures are plain data, and the kernel keeps no pointer to them.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let every = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let period = libc::itimerspec {
            it_interval: every,
            it_value: every,
        };
        assert_eq!(libc::timer_settime(timer, 0, &period, std::ptr::null_mut()), 0);
        Some(Interrupting(timer))
    }
}

/// Only Linux has per-thread timers.
#[cfg(not(target_os = "linux"))]
pub(crate) fn interrupt_if_asked() -> Option<()> {
    assert!(variable::<u32>("WINDLASS_TEST_ITIMER").is_none_or(|on| on == 0));
    None
}

/// The timer that interrupts a thread; dropping it stops the signals.
#[cfg(target_os = "linux")]
pub(crate) struct Interrupting(libc::timer_t);

#[cfg(target_os = "linux")]
impl Drop for Interrupting {
    fn drop(&mut self) {
        // SAFETY: this object owns the timer, which is not used afterwards.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Makes the kernel fail `io_uring_setup` on this thread from now on.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_io_uring(code: i32) {
    refuse_call(libc::SYS_io_uring_setup, code);
}

/// Makes the kernel fail a system call from now on, on this thread and on threads that it starts.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_call(number: libc::c_long, code: i32) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The system call number is the first word of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | code as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which outlives the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let result = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(result, 0, "seccomp: {}", std::io::Error::last_os_error());
    }
}

/// With `WINDLASS_TEST_REFUSE=EPERM` or `ENOSYS`, this thread and threads that it starts cannot use io_uring. True if
/// so.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_if_asked() -> bool {
    thread_local! {
        static REFUSED: Cell<bool> = const { Cell::new(false) };
    }
    let code = match std::env::var("WINDLASS_TEST_REFUSE").as_deref() {
        Ok("EPERM") => libc::EPERM,
        Ok("ENOSYS") => libc::ENOSYS,
        Ok(other) => panic!("WINDLASS_TEST_REFUSE={other} is neither EPERM nor ENOSYS"),
        Err(_) => return false,
    };
    if !REFUSED.replace(true) {
        refuse_io_uring(code);
    }
    true
}

/// Only Linux has io_uring.
#[cfg(not(target_os = "linux"))]
pub(crate) fn refuse_if_asked() -> bool {
    assert!(std::env::var_os("WINDLASS_TEST_REFUSE").is_none());
    false
}

impl Folder {
    /// Creates a named pipe in the folder.
    pub(crate) fn pipe(&self, name: &str) -> std::path::PathBuf {
        let path = self.join(name);
        let text = std::ffi::CString::new(path.to_str().expect("a path of text")).expect("no NUL");
        // SAFETY: the path ends in NUL and outlives the call.
        let made = unsafe { libc::mkfifo(text.as_ptr(), 0o600) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        path
    }
}

/// The error codes that the tests provoke.
pub(crate) mod codes {
    pub(crate) const RESET: i32 = libc::ECONNRESET;
    pub(crate) const REFUSED: i32 = libc::ECONNREFUSED;
    pub(crate) const TOO_LONG: i32 = libc::EMSGSIZE;
    pub(crate) const IN_USE: i32 = libc::EADDRINUSE;
    pub(crate) const INVALID: i32 = libc::EINVAL;
    pub(crate) const BAD_FD: i32 = libc::EBADF;
    pub(crate) const BROKEN_PIPE: i32 = libc::EPIPE;
}

/// The raw descriptor type of sources that the loop can watch.
pub(crate) type RawSource = std::os::fd::RawFd;

/// A raw descriptor that can be watched, for callbacks that must not own it.
pub(crate) struct Number(pub(crate) RawSource);

impl AsRawFd for Number {
    fn as_raw_fd(&self) -> RawSource {
        self.0
    }
}

/// The raw descriptor of a source.
pub(crate) fn number_of(source: &impl AsRawFd) -> RawSource {
    source.as_raw_fd()
}

/// Whether the descriptor belongs to the null driver.
pub(crate) fn is_null_driver_number(number: RawSource) -> bool {
    !windlass::driver::FdSpace::Split.is_kernel(number)
}

/// The trait that socket2 needs to set options.
pub(crate) use std::os::fd::AsFd as AsSocketRef;

pub(crate) use std::os::unix::fs::FileExt;

/// Restores the default action of SIGPIPE: a write to a closed peer then kills the process, unless the call suppresses
/// it.
pub(crate) fn let_signals_kill() {
    // SAFETY: the default disposition runs no code of this program.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Limits the number of descriptors of this process.
pub(crate) fn limit_descriptors(soft: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads and writes the local structure only.
    let result = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = (soft as libc::rlim_t).min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
    };
    assert_eq!(result, 0, "setrlimit: {}", std::io::Error::last_os_error());
}

/// Opens descriptors until only `left` are free. The limit itself stays the same after the first call: an accept in
/// flight uses the limit of its start.
pub(crate) fn hoard(left: usize) -> Vec<std::fs::File> {
    limit_descriptors(1_000);
    let mut hoard = Vec::new();
    let error = loop {
        match std::fs::File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    hoard.truncate(hoard.len() - left);
    hoard
}

/// Raises the descriptor limit to its maximum and returns it.
pub(crate) fn allow_all_descriptors() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads and writes the local structure only.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// A stream with several watchers.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Rc<TcpStream>);

impl Deref for Shared {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRawFd for Shared {
    fn as_raw_fd(&self) -> RawSource {
        self.0.as_raw_fd()
    }
}

/// Descriptors that are not open: no process here has a million of them.
pub(crate) const CLOSED_NUMBERS: [RawSource; 2] = [-1, 1_000_000];

/// The error codes for them.
pub(crate) const NOT_OPEN: &[i32] = &[libc::EBADF];

/// A pipe of std: (receiver of the loop, sender for a thread).
pub(crate) fn pipe_from_std() -> (windlass::io::pipe::Receiver, impl Write + Send + 'static) {
    let (ours, theirs) = std::io::pipe().expect("a pipe");
    (windlass::io::pipe::Receiver::from_fd(ours).expect("a receiver"), theirs)
}

/// Whether the file system has allocated the file's blocks.
pub(crate) fn has_space(metadata: &windlass::fs::Metadata, bytes: u64) -> bool {
    metadata.blocks() * 512 >= bytes
}

/// Asserts that SO_REUSEPORT is not set.
pub(crate) fn assert_shares_no_port(listener: &socket2::SockRef<'_>) {
    assert!(!listener.reuse_port().expect("an option"));
}

/// socket2 can read these only on some systems.
pub(crate) fn assert_keepalive(socket: &socket2::SockRef<'_>, idle: Duration, interval: Duration) {
    assert_eq!(socket.tcp_keepalive_time().expect("an option"), idle);
    assert_eq!(socket.tcp_keepalive_interval().expect("an option"), interval);
}

/// Whether a reset is returned by every later call, not only once.
pub(crate) const REPEATS_RESETS: bool = false;

/// Wine exists only on Windows targets.
pub(crate) fn is_wine() -> bool {
    false
}

/// As std does.
pub(crate) fn write_vectored(mut file: &std::fs::File, slices: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
    file.write_vectored(slices)
}

/// As std does.
pub(crate) fn read_vectored(
    mut file: &std::fs::File,
    slices: &mut [std::io::IoSliceMut<'_>],
) -> std::io::Result<usize> {
    file.read_vectored(slices)
}

/// A descriptor as messages show it.
pub(crate) fn shown(number: RawSource) -> i32 {
    number
}
