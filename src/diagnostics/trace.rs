//! `tracing` events. Without the feature `tracing` these functions are empty.
//!
//! Targets: `windlass::task` (spawned, ended: debug), `windlass::op` (started, completed, completed at once: trace),
//! `windlass::loop` (opened, closed: info; slow callbacks and exceptions: error).

#[cfg(feature = "tracing")]
mod events {
    use std::panic::Location;

    use crate::driver::op::Op;
    use crate::driver::{Description, OpId, OsResult};
    use crate::event_loop::exception::{Exception, guard};
    use crate::task::TaskId;

    /// A subscriber is foreign code: its panic must not propagate into the loop.
    fn emit(call: impl FnOnce()) {
        guard("a tracing subscriber", call);
    }

    pub(crate) fn task_spawned(id: TaskId, name: Option<&str>, at: &Location<'_>) {
        emit(|| tracing::debug!(target: "windlass::task", task = id.0, name, spawned_at = %at, "spawned"));
    }

    pub(crate) fn task_ended(id: TaskId) {
        emit(|| tracing::debug!(target: "windlass::task", task = id.0, "ended"));
    }

    pub(crate) fn op_started(id: OpId, op: &Op) {
        emit(|| tracing::trace!(target: "windlass::op", id = ?id, op = op.name(), fd = op.fd(), "started"));
    }

    pub(crate) fn op_completed(id: OpId, res: OsResult) {
        emit(|| match res {
            Ok(count) => tracing::trace!(target: "windlass::op", id = ?id, count, "completed"),
            Err(code) => tracing::trace!(target: "windlass::op", id = ?id, code, "completed"),
        });
    }

    pub(crate) fn op_done_at_once(op: &Op, res: OsResult) {
        emit(|| match res {
            Ok(count) => {
                tracing::trace!(target: "windlass::op", op = op.name(), fd = op.fd(), count, "completed at once");
            }
            Err(code) => {
                tracing::trace!(target: "windlass::op", op = op.name(), fd = op.fd(), code, "completed at once");
            }
        });
    }

    pub(crate) fn loop_opened(description: &Description) {
        emit(|| tracing::info!(target: "windlass::loop", driver = %description, "opened"));
    }

    pub(crate) fn loop_closed() {
        emit(|| tracing::info!(target: "windlass::loop", "closed"));
    }

    pub(crate) fn exception(exception: &Exception) {
        tracing::error!(target: "windlass::loop", "{exception}");
    }
}

#[cfg(not(feature = "tracing"))]
mod events {
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
    pub(crate) fn op_completed(_id: OpId, _res: OsResult) {}

    #[inline(always)]
    pub(crate) fn op_done_at_once(_op: &Op, _res: OsResult) {}

    #[inline(always)]
    pub(crate) fn loop_opened(_description: &Description) {}

    #[inline(always)]
    pub(crate) fn loop_closed() {}

    #[inline(always)]
    pub(crate) fn exception(_exception: &Exception) {}
}

pub(crate) use events::*;
