//! Captures the stack of another thread: a signal, and an unwinder inside its handler. Linux only.
//!
//! **The handler is async-signal-safe.** It neither allocates nor takes a lock of this crate: it writes return addresses to a static
//! buffer. The unwinder is `_Unwind_Backtrace`. It finds the unwind tables of a function with `_dl_find_object`, which is
//! specified to be async-signal-safe (glibc 2.35, GCC 12), or with `dl_iterate_phdr`, whose lock is recursive in glibc. What
//! it initializes on first use is initialized before the handler is installed. Two cases are left out: if the thread was
//! interrupted inside the dynamic loader or inside the unwinder, whose data may be inconsistent then, the handler captures nothing.
//!
//! **The signal** is a real-time signal whose action is the default when the first stack is captured, so that no other part of the
//! program uses it. If another handler is installed later, captures end. The handler stays installed for the life of the
//! process: the default action would end it. A signal that arrives after its request has timed out is ignored.
//!
//! Names are looked up later, on another thread.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::time::Duration;

use crate::sys::{ThreadNumber, thread_number};
use crate::time::sleep;

/// Frames of a stack that are kept.
const MAX_FRAMES: usize = 96;

/// How long a thread may take to handle the signal. It may have blocked it.
const LIMIT: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_millis(1);

/// The request to capture a stack, and its result. One at a time: see `IN_USE`.
struct Capture {
    /// The thread whose handler may write the result; 0 for none, -1 once its handler has begun.
    wanted: AtomicI32,
    is_done: AtomicBool,
    /// Where the thread was interrupted.
    interrupted: AtomicUsize,
    len: AtomicUsize,
    frames: [AtomicUsize; MAX_FRAMES],
}

static CAPTURE: Capture = Capture {
    wanted: AtomicI32::new(0),
    is_done: AtomicBool::new(false),
    interrupted: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
    frames: [const { AtomicUsize::new(0) }; MAX_FRAMES],
};

/// Whether a console uses `CAPTURE`.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether that console was stopped after a handler had begun. `CAPTURE` is free when the handler is done.
static WAS_LEFT: AtomicBool = AtomicBool::new(false);

/// The code of the dynamic loader and of the unwinder.
static UNSAFE_CODE: [(AtomicUsize, AtomicUsize); 4] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 4];

/// A captured stack: the interrupted instruction, and the return addresses of its callers.
#[derive(Debug)]
pub(super) struct Stack {
    interrupted: usize,
    frames: Vec<usize>,
}

/// Captures the stack of a thread of this process. `None` if it does not answer.
pub(super) async fn capture(thread: ThreadNumber) -> Option<Stack> {
    let signal = (*SIGNAL.get_or_init(install))?;
    let mut waited = Duration::ZERO;
    let in_use = loop {
        match InUse::begin(thread) {
            Some(in_use) => break in_use,
            None if waited > LIMIT => return None,
            None => sleep(STEP).await,
        }
        waited += STEP;
    };
    let stack = request(signal, thread).await;
    drop(in_use);
    stack
}

/// The only use of `CAPTURE`. Dropped with its future if the console is stopped.
struct InUse {
    thread: ThreadNumber,
}

impl InUse {
    fn begin(thread: ThreadNumber) -> Option<InUse> {
        let is_free = !IN_USE.swap(true, AcqRel);
        let was_left = || CAPTURE.is_done.load(Acquire) && WAS_LEFT.swap(false, AcqRel);
        (is_free || was_left()).then_some(InUse { thread })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // A handler that has not begun finds no request.
        let wanted = CAPTURE.wanted.compare_exchange(self.thread, 0, AcqRel, Acquire);
        match wanted.is_ok() || wanted == Err(0) {
            true => IN_USE.store(false, Release),
            false => WAS_LEFT.store(true, Release),
        }
    }
}

async fn request(signal: c_int, thread: ThreadNumber) -> Option<Stack> {
    CAPTURE.is_done.store(false, Relaxed);
    CAPTURE.wanted.store(thread, Release);
    if !is_ours(signal) || !send(signal, thread) {
        CAPTURE.wanted.store(0, Release);
        return None;
    }
    let mut waited = Duration::ZERO;
    while !CAPTURE.is_done.load(Acquire) && waited < LIMIT {
        sleep(STEP).await;
        waited += STEP;
    }
    // The signal may still be pending: its handler then finds no request.
    if CAPTURE.wanted.compare_exchange(thread, 0, AcqRel, Acquire).is_ok() {
        return None;
    }
    // The handler has begun, and ends when its thread gets to run.
    while !CAPTURE.is_done.load(Acquire) {
        sleep(STEP).await;
    }
    let len = CAPTURE.len.load(Relaxed);
    let stack = Stack {
        interrupted: CAPTURE.interrupted.load(Relaxed),
        frames: CAPTURE.frames[..len].iter().map(|frame| frame.load(Relaxed)).collect(),
    };
    CAPTURE.wanted.store(0, Release);
    (len > 0).then_some(stack)
}

fn send(signal: c_int, thread: ThreadNumber) -> bool {
    // SAFETY: the call takes numbers only. A thread that has ended is an error; if its number was given to another thread of
    // this process, that thread's stack is captured, which is wrong but harmless.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) == 0 }
}

/// The signal, once its handler is installed; `None` if all are in use.
static SIGNAL: OnceLock<Option<c_int>> = OnceLock::new();

fn install() -> Option<c_int> {
    // The unwinder's first use, and the tables that its handler reads.
    backtrace::trace(|_| true);
    find_unsafe_code();
    let is_free = |&signal: &c_int| action(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL);
    let signal = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(is_free)?;
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe, see the module, and part of the program, so it is valid until the process ends.
    let result = unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
    (result == 0).then_some(signal)
}

fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes to the local, for which all zeros is a valid value.
    unsafe { (libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

fn is_ours(signal: c_int) -> bool {
    action(signal).is_some_and(|action| action.sa_sigaction == on_signal as *const () as usize)
}

/// The handler. Async-signal-safe: see the module.
extern "C" fn on_signal(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the address of this thread's `errno`, which the interrupted code may be about to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    if CAPTURE
        .wanted
        .compare_exchange(thread_number(), -1, AcqRel, Relaxed)
        .is_ok()
    {
        let interrupted = interrupted_at(context);
        CAPTURE.interrupted.store(interrupted, Relaxed);
        let len = match is_unsafe_code(interrupted) {
            true => 0,
            false => unwind(),
        };
        CAPTURE.len.store(len, Relaxed);
        CAPTURE.is_done.store(true, Release);
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Writes the return addresses of this thread to the buffer. Returns how many there are.
fn unwind() -> usize {
    let mut len = 0;
    // SAFETY: unsynchronized means that symbols are not looked up here; on Linux, unwinding itself needs no synchronization.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            CAPTURE.frames[len].store(frame.ip() as usize, Relaxed);
            len += 1;
            len < MAX_FRAMES
        });
    }
    len
}

#[cfg(target_arch = "x86_64")]
fn interrupted_at(context: *mut c_void) -> usize {
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO; it is on this stack while the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

#[cfg(target_arch = "aarch64")]
fn interrupted_at(context: *mut c_void) -> usize {
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO; it is on this stack while the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.pc as usize
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn interrupted_at(_context: *mut c_void) -> usize {
    0
}

fn is_unsafe_code(address: usize) -> bool {
    let contains = |(from, to): &(AtomicUsize, AtomicUsize)| (from.load(Relaxed)..to.load(Relaxed)).contains(&address);
    UNSAFE_CODE.iter().any(contains)
}

/// Finds the code of the dynamic loader and of the unwinder.
fn find_unsafe_code() {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description for the time of this call, and `found` is the local below.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<usize>()) };
        if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: a string of the loader.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        let is_named = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
        if !is_named(b"/ld-") && !is_named(b"libgcc_s") && !is_named(b"libunwind") {
            return 0;
        }
        // SAFETY: the loader's array of this length.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let code = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
        for header in code {
            let Some((from, to)) = UNSAFE_CODE.get(*found) else {
                return 1;
            };
            let begin = info.dlpi_addr as usize + header.p_vaddr as usize;
            from.store(begin, Relaxed);
            to.store(begin + header.p_memsz as usize, Relaxed);
            *found += 1;
        }
        0
    }
    let mut found = 0usize;
    // SAFETY: `add` keeps no pointer, and `found` lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
}

impl Stack {
    /// The names of the functions, innermost first, down to the runtime's code. Takes long when called for the first time: it
    /// reads the program's debug information.
    pub(super) fn resolve(&self) -> Vec<String> {
        // The frames of the handler come first.
        let from = self.frames.iter().position(|&frame| frame == self.interrupted);
        let frames = &self.frames[from.unwrap_or(0)..];
        let mut names = Vec::new();
        for &frame in frames {
            // The lookup subtracts one, as is right for a return address.
            let address = if frame == self.interrupted { frame + 1 } else { frame };
            let mut is_found = false;
            backtrace::resolve(address as *mut c_void, |symbol| {
                is_found = true;
                names.push(describe(symbol));
            });
            if !is_found {
                names.push(format!("{frame:#x}"));
            }
        }
        let is_runtime =
            |name: &String| name.contains("windlass::task::raw::") || name.contains("windlass::event_loop::");
        let users = names.iter().position(is_runtime).unwrap_or(names.len());
        if users > 0 {
            names.truncate(users);
        }
        names
    }
}

/// Reads the program's debug information, which takes long, so that the first stack need not wait for it.
pub(super) fn warm_up() {
    backtrace::resolve(warm_up as *mut c_void, |_| {});
}

/// A source file: relative to the current directory, and for std to its repository, if it is there.
fn shorten(path: &Path) -> String {
    let current = std::env::current_dir().ok();
    let relative = current.and_then(|current| path.strip_prefix(current).ok());
    let path = relative.unwrap_or(path).to_string_lossy();
    // `/rustc/<commit>/library/std/src/...`
    let of_std = path.strip_prefix("/rustc/").and_then(|path| path.split_once('/'));
    of_std.map_or(&*path, |(_, path)| path).to_owned()
}

fn describe(symbol: &backtrace::Symbol) -> String {
    let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
    let mut text: String = name.chars().take(300).collect();
    if let Some(file) = symbol.filename() {
        text.push_str(&format!(" at {}", shorten(file)));
        if let Some(line) = symbol.lineno() {
            text.push_str(&format!(":{line}"));
        }
    }
    text
}
