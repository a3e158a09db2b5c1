//! How a loop takes part in a pool of loops: the messages that it gets from its peers, and what it does for them in a turn.
//!
//! The pool itself is [`shards`](crate::shards), a layer above the loop. A loop outside of a pool pays one load per turn.

use std::any::Any;

use crate::event_loop::core::LoopCore;

/// A message from another loop. If the loop closes before it is delivered, or has closed, the message learns of it: a
/// caller must not wait forever.
pub(crate) struct PeerEvent(Option<Box<dyn PeerMessage>>);

pub(crate) trait PeerMessage: Send {
    /// Called on the receiving loop, between tasks.
    fn deliver(self: Box<Self>, core: &LoopCore);

    /// Called instead of `deliver` on the loop that drops the message: the closing receiver, or the sender.
    fn undelivered(self: Box<Self>);
}

impl PeerEvent {
    pub(crate) fn new(message: Box<dyn PeerMessage>) -> PeerEvent {
        PeerEvent(Some(message))
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
