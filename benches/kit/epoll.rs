//! An epoll set, for the load generator and the hand-written server.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) struct Epoll {
    fd: OwnedFd,
}

/// The event buffer of a wait.
pub(crate) struct Events {
    raw: [libc::epoll_event; 128],
    count: usize,
}

/// Readiness of a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The events of interest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    Write,
    Both,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
            Interest::Both => libc::EPOLLIN | libc::EPOLLOUT,
        };
        bits as u32
    }
}

impl Events {
    pub(crate) fn new() -> Events {
        Events {
            raw: [libc::epoll_event { events: 0, u64: 0 }; 128],
            count: 0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Event> {
        let failed = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        self.raw[..self.count].iter().map(move |event| Event {
            id: event.u64,
            readable: event.events & (libc::EPOLLIN as u32 | failed) != 0,
            writable: event.events & (libc::EPOLLOUT as u32 | failed) != 0,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Stores the number of events. EINTR counts as no events.
    fn told(&mut self, count: libc::c_long) -> io::Result<()> {
        self.count = count.max(0) as usize;
        match count {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and not owned elsewhere.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    /// Watches a descriptor, level-triggered.
    pub(crate) fn add(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, id, interest)
    }

    /// Changes the events of interest.
    pub(crate) fn modify(&self, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, id, interest)
    }

    fn control(&self, call: i32, fd: RawFd, id: u64, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: id,
        };
        // SAFETY: the kernel reads one local event.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), call, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for at most `millis` milliseconds; a negative number waits forever.
    pub(crate) fn wait(&self, events: &mut Events, millis: i32) -> io::Result<()> {
        let room = events.raw.len() as i32;
        // SAFETY: the kernel writes at most `room` events to the array.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.raw.as_mut_ptr(), room, millis) };
        events.told(libc::c_long::from(count))
    }

    /// Waits with a timeout in nanoseconds, for loops with short timers.
    pub(crate) fn sleep(&self, events: &mut Events, pause: Duration) -> io::Result<()> {
        let time = libc::timespec {
            tv_sec: pause.as_secs() as libc::time_t,
            tv_nsec: pause.subsec_nanos().into(),
        };
        let (epoll, room) = (self.fd.as_raw_fd(), events.raw.len());
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: the kernel reads a local timespec and writes at most `room` events to the array; there is no mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.raw.as_mut_ptr(),
                room,
                &time,
                no_mask,
                0,
            )
        };
        events.told(count)
    }
}
