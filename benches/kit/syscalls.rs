//! Counts the system calls of a process with ptrace(2), in the same way for servers in any language. A traced process
//! is slow, so nothing else is measured meanwhile.
//!
//! Only the thread that seized a process may control it, and that thread blocks until the process stops. So the tracer
//! is a separate thread, and the load runs on the caller's. When the load has ended, the process is blocked and makes
//! no system call that would wake the tracer. So the tracer is woken by a signal to the process. The default action of
//! that signal is to be ignored, so only the tracer sees it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use super::process::Process;

/// Ignored by default, and rarely used.
const ENOUGH: i32 = libc::SIGURG;

/// Counts the system calls of all threads of `server` while `work` runs.
pub(crate) fn count<T>(server: &Process, work: impl FnOnce() -> io::Result<T>) -> io::Result<(T, u64)> {
    let process = server.id();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tell, seized) = mpsc::channel();
        let tracer = scope.spawn({
            let is_over = &is_over;
            move || {
                let traced = Traced::seize(process);
                let _ = tell.send(traced.as_ref().map(drop).map_err(|error| error.raw_os_error()));
                traced?.run(is_over)
            }
        });
        let done = match seized.recv() {
            Ok(Ok(())) => Some(work()),
            _ => None,
        };
        is_over.store(true, Ordering::Release);
        // SAFETY: kill(2) takes two numbers; the child was not waited for, so its id is still its own.
        unsafe { libc::kill(process as libc::pid_t, ENOUGH) };
        let calls = tracer.join().map_err(|_| io::Error::other("the tracer failed"))??;
        match done {
            Some(done) => Ok((done?, calls)),
            None => Err(io::Error::other("the process could not be traced")),
        }
    })
}

/// The threads of a traced process. Each stops at every system call until it is resumed.
struct Traced {
    /// Whether each thread is inside a system call.
    threads: HashMap<libc::pid_t, bool>,
    calls: u64,
}

impl Traced {
    fn seize(process: u32) -> io::Result<Traced> {
        let process = process as libc::pid_t;
        let mut traced = Traced {
            threads: HashMap::new(),
            calls: 0,
        };
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let Ok(thread) = entry?.file_name().to_string_lossy().parse::<libc::pid_t>() else {
                continue;
            };
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
            match ask(libc::PTRACE_SEIZE, thread, options as usize) {
                Ok(()) => {}
                Err(error) if thread == process => {
                    let why = format!("tracing a server with ptrace(2) is not allowed here ({error})");
                    return Err(io::Error::new(error.kind(), why));
                }
                // A kernel worker, which makes no system calls, or a thread that has ended.
                Err(_) => continue,
            }
            ask(libc::PTRACE_INTERRUPT, thread, 0)?;
            traced.threads.insert(thread, false);
        }
        Ok(traced)
    }

    /// Counts until the signal arrives.
    fn run(mut self, is_over: &AtomicBool) -> io::Result<u64> {
        while !self.threads.is_empty() {
            let (thread, status) = wait(-1)?;
            if !libc::WIFSTOPPED(status) {
                self.threads.remove(&thread);
                continue;
            }
            if is_over.load(Ordering::Acquire) && status >> 16 == 0 && libc::WSTOPSIG(status) == ENOUGH {
                // This thread is stopped already; the others are stopped on drop.
                self.threads.remove(&thread);
                let _ = ask(libc::PTRACE_DETACH, thread, 0);
                return Ok(self.calls);
            }
            self.step(thread, status);
        }
        Err(io::Error::other("the server ended"))
    }

    /// Resumes a stopped thread.
    fn step(&mut self, thread: libc::pid_t, status: i32) {
        // A new thread starts stopped, before or after the event of its parent.
        let is_inside = self.threads.entry(thread).or_insert(false);
        let mut signal = 0;
        if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            self.calls += u64::from(!*is_inside);
            *is_inside = !*is_inside;
        } else if status >> 16 == 0 {
            signal = libc::WSTOPSIG(status) as usize;
        }
        // waitpid reports a thread that was killed meanwhile.
        let _ = ask(libc::PTRACE_SYSCALL, thread, signal);
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        for &thread in self.threads.keys() {
            // Only a stopped thread can be detached.
            if ask(libc::PTRACE_INTERRUPT, thread, 0).is_ok() && wait(thread).is_ok() {
                let _ = ask(libc::PTRACE_DETACH, thread, 0);
            }
        }
    }
}

/// Waits for a tracee of this thread. Other threads wait for their own children.
fn wait(thread: libc::pid_t) -> io::Result<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: the kernel writes one status to a local variable.
    match unsafe { libc::waitpid(thread, &mut status, libc::__WALL | libc::__WNOTHREAD) } {
        -1 => Err(io::Error::last_os_error()),
        thread => Ok((thread, status)),
    }
}

fn ask(request: libc::c_uint, thread: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests used here reads or writes memory of ours: `data` is a number.
    match unsafe { libc::ptrace(request, thread, ptr::null_mut::<()>(), data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
