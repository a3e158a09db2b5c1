//! Waiting for events with mio.

use std::io;
use std::time::Duration;

use mio::Poll;

pub(super) use mio::Events;
pub(super) use mio::event::Event;

/// Waits for events, at most this long.
pub(super) fn poll(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    poll.poll(events, timeout)
}
