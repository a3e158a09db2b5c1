//! Bugs that a test can switch on in a simulated pool: the scenarios must find each of them.

use super::shared::Shared;

/// A bug in the shards of a simulated pool.
#[doc(hidden)]
#[cfg_attr(
    not(feature = "sim"),
    allow(dead_code, unreachable_pub, reason = "nothing switches them on")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A cancelled call keeps its unit.
    KeptUnits,
    /// Calls of all hops share the units of the first.
    OneHopClass,
    /// There are more units than `calls_per_peer`.
    NoLimit,
    /// A shard that ends does not answer the calls that it has not started.
    LostAnswers,
    /// The calls that a shard which ends has made are not cancelled on their targets.
    LostCancels,
    /// No shard accepts from the sockets of one that has ended.
    NoAdoption,
    /// At a stop the listeners close with connections in their backlog.
    NoDrain,
    /// Services stop without waiting for the main futures of other shards.
    NoBarrier,
}

impl Shared {
    /// Whether a bug is switched on.
    #[inline(always)]
    pub(super) fn has(&self, defect: Defect) -> bool {
        #[cfg(feature = "sim")]
        return self.defect.get() == Some(&defect);
        #[cfg(not(feature = "sim"))]
        {
            let _ = defect;
            false
        }
    }
}
