//! The probe of a build without the feature `console`: nothing is measured. Same items as in `probe`.

use std::io;
use std::sync::Arc;

use crate::blocking::Pool;
use crate::driver::Driver;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;

/// The loop's part.
pub(crate) struct Probe;

/// The task's part.
pub(crate) struct TaskProbe;

/// The task that created a child set.
#[derive(Default)]
pub(crate) struct Creator;

impl Probe {
    #[inline(always)]
    pub(crate) fn new(_driver: &dyn Driver, _inbox: &Arc<Inbox<RemoteEvent>>, _pools: [&Pool; 2]) -> Probe {
        Probe
    }

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn set_shard(&self, _index: usize, _name: &str) {}

    #[inline(always)]
    pub(crate) fn loop_closed(&self) {}
}

impl TaskProbe {
    #[inline(always)]
    pub(crate) fn new(_core: &LoopCore) -> TaskProbe {
        TaskProbe
    }

    #[inline(always)]
    pub(crate) fn count_nested_poll(&self, _core: &LoopCore) {}
}

impl LoopCore {
    /// Never called: the probe is never on.
    #[inline(always)]
    pub(crate) fn run_batch_probed(&self, _batch: usize) -> io::Result<()> {
        Ok(())
    }
}
