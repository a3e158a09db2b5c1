//! Child processes that cannot outlive this one: servers and measuring programs.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::machine;

/// A running child process. Dropping it kills the process.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a command on a core, with its output piped. The kernel kills it when this process ends, however it ends.
    pub(crate) fn start(mut command: Command, core: Option<usize>) -> io::Result<Process> {
        let parent = std::process::id();
        let prepare = move || {
            // SAFETY: prctl with these arguments touches no memory.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // If the parent has ended before the line above, the signal will not come.
            // SAFETY: getppid cannot fail.
            if unsafe { libc::getppid() } as u32 != parent {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if let Some(core) = core {
                let _ = machine::pin(core);
            }
            Ok(())
        };
        // SAFETY: `prepare` makes system calls only: it neither allocates nor locks.
        unsafe { command.pre_exec(prepare) };
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Process {
            child: command.spawn()?,
        })
    }

    /// Starts this program in another role.
    pub(crate) fn again(args: &[&str], core: Option<usize>) -> io::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args);
        Process::start(command, core)
    }

    /// The first line that it prints.
    pub(crate) fn first_line(&mut self, patience: Duration) -> io::Result<String> {
        let text = self.read(patience, |text| text.contains('\n'))?;
        match text.split_once('\n') {
            Some((line, _)) => Ok(line.to_string()),
            None => Err(self.last_words()),
        }
    }

    /// Its output until it ends.
    pub(crate) fn all_output(&mut self, patience: Duration) -> io::Result<String> {
        let text = self.read(patience, |_| false)?;
        match self.child.wait()?.success() {
            true => Ok(text),
            false => Err(self.last_words()),
        }
    }

    /// Reads standard output until `enough`, end of file, or the timeout.
    fn read(&mut self, patience: Duration, enough: impl Fn(&str) -> bool) -> io::Result<String> {
        let deadline = Instant::now() + patience;
        let output = self.child.stdout.as_mut().expect("standard output is piped");
        let mut text = String::new();
        let mut part = [0; 4096];
        while !enough(&text) {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut ready = libc::pollfd {
                fd: output.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: the kernel reads and writes one local pollfd.
            match unsafe { libc::poll(&mut ready, 1, left.as_millis() as i32) } {
                0 => return Err(io::Error::new(io::ErrorKind::TimedOut, "the child took too long")),
                1 => {}
                _ => return Err(io::Error::last_os_error()),
            }
            match output.read(&mut part)? {
                0 => break,
                count => text.push_str(&String::from_utf8_lossy(&part[..count])),
            }
        }
        Ok(text)
    }

    /// Why it failed: the last line that it wrote to standard error.
    fn last_words(&mut self) -> io::Error {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(errors) = &mut self.child.stderr {
            let _ = errors.read_to_string(&mut text);
        }
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        io::Error::other(
            line.unwrap_or("the child process ended without an error message")
                .to_string(),
        )
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its private memory in bytes: heap, stacks, and memory shared with the kernel.
    pub(crate) fn memory(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        match (field("RssAnon:"), field("RssShmem:")) {
            (Some(anonymous), Some(shared)) => Ok((anonymous + shared) * 1024),
            _ => Err(io::Error::other("the kernel does not report it")),
        }
    }

    /// Its CPU time so far: all threads, including the kernel's workers for it.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        let mut clock = 0;
        // SAFETY: the call writes one clock id to a local variable.
        let code = unsafe { libc::clock_getcpuclockid(self.child.id() as libc::pid_t, &mut clock) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        read_clock(clock)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time of this process so far.
pub(crate) fn own_cpu_time() -> io::Result<Duration> {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read_clock(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec to a local variable.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}
