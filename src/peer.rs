//! How a loop takes part in a pool of loops: the messages that it gets from its peers, and what it does for them in a turn.
//!
//! The pool itself is [`shards`](crate::shards), a layer above the loop. A loop outside of a pool pays one load per turn.

use std::any::Any;
use std::ptr::{self, NonNull};

use crate::event_loop::core::LoopCore;

/// A message from another loop. If the loop closes before it is delivered, or has closed, the message learns of it: a
/// caller must not wait forever.
pub(crate) struct PeerEvent(Option<Box<dyn PeerMessage>>);

pub(crate) trait PeerMessage: Send {
    /// Where the message keeps its own address, if it can travel as one.
    fn link(&mut self) -> Option<&mut Link> {
        None
    }

    /// Called on the receiving loop, between tasks.
    fn deliver(self: Box<Self>, core: &LoopCore);

    /// Called instead of `deliver` on the loop that drops the message: the closing receiver, or the sender.
    fn undelivered(self: Box<Self>);
}

/// The address of the message that contains it, with its type: so that the address of the link alone suffices.
#[derive(Default)]
#[repr(align(8))]
pub(crate) struct Link(Option<NonNull<dyn PeerMessage>>);

// SAFETY: it owns the message that it is a part of, which is `Send`, and only while that travels as an address.
unsafe impl Send for Link {}

impl PeerEvent {
    pub(crate) fn new(message: Box<dyn PeerMessage>) -> PeerEvent {
        PeerEvent(Some(message))
    }

    /// As the address of its link, which owns the message.
    #[inline]
    pub(crate) fn into_raw(mut self) -> Result<*mut (), PeerEvent> {
        let Some(message) = self.0.take().map(|message| NonNull::from(Box::leak(message))) else {
            return Err(self);
        };
        let mut owned = message;
        // SAFETY: the message was leaked above, so this is the only reference to it.
        match unsafe { owned.as_mut() }.link() {
            Some(link) => {
                link.0 = Some(message);
                Ok(ptr::from_mut(link).cast())
            }
            // SAFETY: as above: the box is made again.
            None => Err(PeerEvent(Some(unsafe { Box::from_raw(message.as_ptr()) }))),
        }
    }

    /// # Safety
    ///
    /// The address is from [`into_raw`](PeerEvent::into_raw), and is used once.
    #[inline]
    pub(crate) unsafe fn from_raw(address: *mut ()) -> PeerEvent {
        // SAFETY: `into_raw` leaked the message, and this is the only use of the address, so the link is in place and nothing
        // else refers to it.
        let message = unsafe { (*address.cast::<Link>()).0.take() };
        // SAFETY: as above: the box is made again.
        PeerEvent(message.map(|message| unsafe { Box::from_raw(message.as_ptr()) }))
    }

    /// Where the message is.
    pub(crate) fn address(&self) -> *const () {
        self.0
            .as_ref()
            .map_or(ptr::null(), |message| ptr::from_ref(&**message).cast())
    }

    pub(crate) fn deliver(mut self, core: &LoopCore) {
        if let Some(message) = self.0.take() {
            message.deliver(core);
        }
    }
}

impl Drop for PeerEvent {
    fn drop(&mut self) {
        if let Some(message) = self.0.take() {
            message.undelivered();
        }
    }
}

/// A loop's place in its pool.
pub(crate) trait PeerLink: Any {
    /// Called after the last task of a turn: sends the messages that the turn has produced.
    fn end_turn(&self, core: &LoopCore);

    /// Whether a message of another loop is likely to arrive within a microsecond, so that the loop should wait for it before
    /// anything else.
    fn expects_message(&self) -> bool;

    /// Whether such a wait ended with an event.
    fn spun_for_message(&self, found: bool);

    /// Whether the loop should busy-poll before it sleeps, because a loop that is running will answer soon.
    fn awaits_awake_peer(&self) -> bool;

    /// Whether such a poll window ended with an event.
    fn polled_for_peer(&self, found: bool);

    /// A counted connection was closed or given away.
    fn connection_closed(&self);

    /// Called when the loop closes: its tasks are gone and its operations complete, but its descriptors are open.
    fn loop_closing(&self);

    /// Called when the loop has closed: sends the last messages.
    fn loop_closed(&self);
}
