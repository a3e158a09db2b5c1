//! How many system calls a process makes, counted from outside with ptrace(2): the same for every server, whatever it is
//! written in. A traced process is slow, so nothing else is measured meanwhile.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ptr;

use super::process::Process;

/// Counts the system calls of all threads of `server` while `work` runs, which is this thread's: it is called again and
/// again and does a little of its work each time, without waiting, until it gives false.
pub(crate) fn count(server: &Process, mut work: impl FnMut() -> io::Result<bool>) -> io::Result<u64> {
    let mut traced = Traced::seize(server.id())?;
    while work()? {
        traced.attend()?;
    }
    Ok(traced.calls)
}

/// The threads of a process, each of which stops at every system call until it is told to go on.
struct Traced {
    /// Whether each is inside of a system call.
    threads: HashMap<libc::pid_t, bool>,
    calls: u64,
}

impl Traced {
    fn seize(process: u32) -> io::Result<Traced> {
        let mut threads = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let Ok(thread) = entry?.file_name().to_string_lossy().parse::<libc::pid_t>() else {
                continue;
            };
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
            ask(libc::PTRACE_SEIZE, thread, options as usize)?;
            ask(libc::PTRACE_INTERRUPT, thread, 0)?;
            threads.insert(thread, false);
        }
        Ok(Traced { threads, calls: 0 })
    }

    /// Lets every thread that has stopped go on.
    fn attend(&mut self) -> io::Result<()> {
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes one status to a local variable.
            let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::WNOHANG) };
            match thread {
                0 => return Ok(()),
                1.. if libc::WIFSTOPPED(status) => self.step(thread, status),
                1.. => drop(self.threads.remove(&thread)),
                _ => return Err(io::Error::last_os_error()),
            }
        }
    }

    fn step(&mut self, thread: libc::pid_t, status: i32) {
        // A new thread comes stopped, before or after its parent tells of it.
        let is_inside = self.threads.entry(thread).or_insert(false);
        let mut signal = 0;
        if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
            self.calls += u64::from(!*is_inside);
            *is_inside = !*is_inside;
        } else if status >> 16 == 0 {
            signal = libc::WSTOPSIG(status) as usize;
        }
        // A thread that was killed meanwhile is told of by waitpid.
        let _ = ask(libc::PTRACE_SYSCALL, thread, signal);
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        for &thread in self.threads.keys() {
            // Only a stopped thread can be let go of.
            if ask(libc::PTRACE_INTERRUPT, thread, 0).is_ok() {
                let mut status = 0;
                // SAFETY: the kernel writes one status to a local variable.
                unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
                let _ = ask(libc::PTRACE_DETACH, thread, 0);
            }
        }
    }
}

fn ask(request: libc::c_uint, thread: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests used here reads or writes memory of ours: `data` is a number.
    match unsafe { libc::ptrace(request, thread, ptr::null_mut::<()>(), data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
