//! The state behind the drivers of a simulation: the clock, the network, and the operations of each loop.

use super::net::Network;
use super::ops::LoopOps;
use crate::driver::Completion;
use crate::sys::Instant;

/// The kernel that the loops of a simulation share.
pub(super) struct Kernel {
    pub(super) clock: Instant,
    pub(super) network: Network,
    /// The operations of each loop, by its index.
    pub(super) loops: Vec<LoopOps>,
}

impl Kernel {
    pub(super) fn new(clock: Instant) -> Kernel {
        Kernel {
            clock,
            network: Network::default(),
            loops: Vec::new(),
        }
    }

    /// Adds a loop, and returns its index.
    pub(super) fn add_loop(&mut self) -> u32 {
        let index = self.loops.len() as u32;
        self.loops.push(LoopOps::new(index));
        index
    }

    /// The operations of a loop, and the network on which they are carried out.
    pub(super) fn parts(&mut self, index: u32) -> (&mut LoopOps, &mut Network) {
        (&mut self.loops[index as usize], &mut self.network)
    }

    /// Queues the operations whose sockets have changed with their loops, to be tried again.
    pub(super) fn distribute(&mut self) {
        for waiter in self.network.woken.drain(..) {
            self.loops[waiter.loop_index as usize].try_again(waiter.slot);
        }
    }

    /// Tries the queued operations of a loop, and pushes the completions of those that are done. An operation that one
    /// of them enables is tried in a later call. True if others are queued already.
    pub(super) fn advance(&mut self, index: u32, completed: &mut Vec<Completion>) -> bool {
        self.distribute();
        let (ops, network) = self.parts(index);
        ops.advance(network, completed);
        self.distribute();
        self.loops[index as usize].has_queued()
    }
}
