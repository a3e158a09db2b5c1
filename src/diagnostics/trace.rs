//! What the loop tells a `tracing` subscriber, if the crate is built with the feature `tracing`; else nothing.
//!
//! Targets, to filter by: `windlass::task` (spawned, ended: debug), `windlass::op` (started, landed, done at once: trace),
//! `windlass::loop` (opened, closed: info; slow callbacks and exceptions: error).

#[cfg(feature = "tracing")]
mod told {
    use std::panic::Location;

    use crate::driver::op::Op;
    use crate::driver::{Description, OpId, OsResult};
    use crate::event_loop::exception::{Exception, guard};
    use crate::task::TaskId;

    /// A subscriber is foreign code: its panic must not end what the loop is about.
    fn tell(call: impl FnOnce()) {
        guard("a tracing subscriber", call);
    }

    pub(crate) fn task_spawned(id: TaskId, name: Option<&str>, at: &Location<'_>) {
        tell(|| tracing::debug!(target: "windlass::task", task = id.0, name, spawned_at = %at, "spawned"));
    }

    pub(crate) fn task_ended(id: TaskId) {
        tell(|| tracing::debug!(target: "windlass::task", task = id.0, "ended"));
    }

    pub(crate) fn op_started(id: OpId, op: &Op) {
        tell(|| tracing::trace!(target: "windlass::op", op = ?id, op = op.name(), fd = op.fd(), "started"));
    }

    pub(crate) fn op_completed(id: OpId, res: OsResult) {
        tell(|| match res {
            Ok(count) => tracing::trace!(target: "windlass::op", op = ?id, count, "landed"),
            Err(code) => tracing::trace!(target: "windlass::op", op = ?id, code, "landed"),
        });
    }

    pub(crate) fn op_done_at_once(op: &Op, res: OsResult) {
        tell(|| match res {
            Ok(count) => {
                tracing::trace!(target: "windlass::op", op = op.name(), fd = op.fd(), count, "done at once");
            }
            Err(code) => tracing::trace!(target: "windlass::op", op = op.name(), fd = op.fd(), code, "done at once"),
        });
    }

    pub(crate) fn loop_opened(description: &Description) {
        tell(|| tracing::info!(target: "windlass::loop", driver = %description, "opened"));
    }

    pub(crate) fn loop_closed() {
        tell(|| tracing::info!(target: "windlass::loop", "closed"));
    }

    pub(crate) fn exception(exception: &Exception) {
        tracing::error!(target: "windlass::loop", "{exception}");
    }
}

#[cfg(not(feature = "tracing"))]
mod told {
    use std::panic::Location;

    use crate::driver::op::Op;
    use crate::driver::{Description, OpId, OsResult};
    use crate::event_loop::exception::Exception;
    use crate::task::TaskId;

    #[inline(always)]
    pub(crate) fn task_spawned(_id: TaskId, _name: Option<&str>, _at: &Location<'_>) {}

    #[inline(always)]
    pub(crate) fn task_ended(_id: TaskId) {}

    #[inline(always)]
    pub(crate) fn op_started(_id: OpId, _op: &Op) {}

    #[inline(always)]
    pub(crate) fn op_completed(_id: OpId, _outcome: OsResult) {}

    #[inline(always)]
    pub(crate) fn op_done_at_once(_op: &Op, _outcome: OsResult) {}

    #[inline(always)]
    pub(crate) fn loop_opened(_description: &Description) {}

    #[inline(always)]
    pub(crate) fn loop_closed() {}

    #[inline(always)]
    pub(crate) fn exception(_exception: &Exception) {}
}

pub(crate) use told::*;
