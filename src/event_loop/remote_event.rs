//! What other threads send to a loop.

use crate::driver::{OpId, OsResult};
use crate::event_loop::inbox::Item;
use crate::event_loop::timers::TimerId;
use crate::peer::PeerEvent;
use crate::sys;
use crate::task::{RemoteWake, Unclaimed};

/// An event sent to the loop from another thread.
pub(crate) enum RemoteEvent {
    Wake(RemoteWake),
    Call(Box<dyn FnOnce() + Send>),
    Stop,
    /// A pool thread has finished an operation.
    OpDone(OpId, OsResult),
    /// The pool has capacity for operations in `waiting_for_pool`.
    PoolHasCapacity,
    /// Passed to the exception handler, even while the loop closes.
    Unclaimed(Box<Unclaimed>),
    /// A [`ClockHold`](crate::event_loop::core::ClockHold) has ended.
    ReleaseClock,
    /// From another loop of the same pool.
    Peer(PeerEvent),
    /// A timer's future was dropped on another thread.
    CancelTimer(TimerId),
}

/// The lowest bit of a word: a wake, not a message of a peer.
const WAKE: usize = 1;

impl Item for RemoteEvent {
    #[inline]
    fn into_word(self) -> Result<*mut (), RemoteEvent> {
        match self {
            // Not on all processors with 32 bits.
            RemoteEvent::Wake(wake) if RemoteWake::ALIGNMENT >= 8 => {
                Ok(wake.into_raw().map_addr(|address| address | WAKE))
            }
            RemoteEvent::Peer(event) => event.into_raw().map_err(RemoteEvent::Peer),
            event => Err(event),
        }
    }

    #[inline]
    unsafe fn from_word(word: *mut ()) -> RemoteEvent {
        // SAFETY: the caller's promise: `into_word` made it, and the bit says from what.
        unsafe {
            match word.addr() & WAKE {
                0 => RemoteEvent::Peer(PeerEvent::from_raw(word)),
                _ => RemoteEvent::Wake(RemoteWake::from_raw(word.map_addr(|address| address & !WAKE))),
            }
        }
    }

    #[inline]
    fn prefetch(&self) {
        if let RemoteEvent::Peer(event) = self {
            sys::prefetch(event.address());
        }
    }
}
