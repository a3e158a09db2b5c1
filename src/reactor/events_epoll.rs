//! Waiting for the events of mio's epoll instance without mio, on Linux.
//!
//! mio calls `epoll_wait` of libc, which costs more in a process with several threads than the system call itself does: see
//! `sys::wait_epoll`. Registrations are mio's: it stores a descriptor's token as the event's data.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use mio::{Poll, Token};

use crate::sys;

/// The events of the last poll.
pub(super) struct Events(Vec<Event>);

impl Events {
    pub(super) fn with_capacity(capacity: usize) -> Events {
        Events(Vec::with_capacity(capacity))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.0.iter()
    }
}

/// Waits for whole milliseconds at most, rounded up, or without a limit.
#[inline]
pub(super) fn poll(poll: &Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    let millis = timeout.map_or(-1, |timeout| match timeout {
        Duration::ZERO => 0,
        timeout => timeout
            .as_nanos()
            .div_ceil(1_000_000)
            .try_into()
            .unwrap_or(libc::c_int::MAX),
    });
    events.0.clear();
    let (room, capacity) = (events.0.as_mut_ptr().cast(), events.0.capacity());
    // SAFETY: the vector has room for these events, and nothing else uses it until the call returns.
    let count = unsafe { sys::wait_epoll(poll.as_raw_fd(), room, capacity, millis) }?;
    // SAFETY: the kernel has written this many.
    unsafe { events.0.set_len(count) };
    Ok(())
}

/// The readiness of a descriptor.
#[repr(transparent)]
pub(super) struct Event(libc::epoll_event);

impl Event {
    #[inline]
    pub(super) fn token(&self) -> Token {
        Token(self.0.u64 as usize)
    }

    #[inline]
    fn has(&self, flags: libc::c_int) -> bool {
        self.0.events & flags as u32 != 0
    }

    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.has(EPOLLIN | EPOLLPRI)
    }

    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        self.has(EPOLLOUT)
    }

    #[inline]
    pub(super) fn is_priority(&self) -> bool {
        self.has(EPOLLPRI)
    }

    #[inline]
    pub(super) fn is_error(&self) -> bool {
        self.has(EPOLLERR)
    }

    /// The peer sends no more, or both directions are closed.
    #[inline]
    pub(super) fn is_read_closed(&self) -> bool {
        self.has(EPOLLHUP) || self.has(EPOLLIN) && self.has(EPOLLRDHUP)
    }

    /// Both directions are closed, or the reader of a pipe is gone.
    #[inline]
    pub(super) fn is_write_closed(&self) -> bool {
        self.has(EPOLLHUP) || self.has(EPOLLERR) && (self.has(EPOLLOUT) || self.0.events == EPOLLERR as u32)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use mio::unix::SourceFd;
    use mio::{Interest, Waker};
    use std::io::Write;

    /// If mio stored tokens in another way, descriptors and events would not match.
    #[test]
    fn events_have_the_token_that_mio_registered() {
        let mio = Poll::new().expect("an epoll instance");
        let mut events = Events::with_capacity(2);
        poll(&mio, &mut events, Some(Duration::ZERO)).expect("a poll");
        assert!(events.is_empty());

        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let token = Token(0x1234_5678_9abc_def0_u64 as usize);
        let interests = Interest::READABLE | Interest::WRITABLE;
        mio.registry()
            .register(&mut SourceFd(&reader.as_raw_fd()), token, interests)
            .expect("registered");
        writer.write_all(b"a").expect("written");
        poll(&mio, &mut events, None).expect("a poll");
        let event = events.iter().next().expect("an event");
        assert!(event.token() == token && event.is_readable() && !event.is_read_closed() && !event.is_error());

        drop(writer);
        poll(&mio, &mut events, None).expect("a poll");
        let event = events.iter().next().expect("an event");
        assert!(event.token() == token && event.is_read_closed());

        let waker = Waker::new(mio.registry(), Token(usize::MAX)).expect("a waker");
        waker.wake().expect("woken");
        poll(&mio, &mut events, None).expect("a poll");
        let tokens: Vec<_> = events.iter().map(Event::token).collect();
        assert_eq!(tokens, [Token(usize::MAX)]);
    }
}
