//! `tracing` events. Without the feature `tracing` these functions are empty.
//!
//! Targets: `windlass::task` (spawned, ended: debug), `windlass::op` (started, completed, completed at once: trace),
//! `windlass::loop` (opened, closed: info; slow callbacks and exceptions: error). The spans of tasks are in
//! [`task_span`](super::task_span).
#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::panic::Location;

use crate::driver::op::Op;
use crate::driver::{Description, Fd, OpId, OsResult};
use crate::event_loop::exception::Exception;
use crate::task::TaskId;

/// Emits an event. A subscriber is foreign code: its panic must not propagate into the loop.
#[cfg(feature = "tracing")]
macro_rules! emit {
    ($level:ident, $($event:tt)*) => {
        crate::event_loop::exception::guard("a tracing subscriber", || tracing::$level!($($event)*))
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! emit {
    ($($event:tt)*) => {{}};
}

#[inline]
pub(crate) fn task_spawned(id: TaskId, name: Option<&str>, at: &Location<'_>) {
    emit!(debug, target: "windlass::task", task = id.0, name, spawned_at = %at, "spawned");
}

#[inline]
pub(crate) fn task_ended(id: TaskId) {
    emit!(debug, target: "windlass::task", task = id.0, "ended");
}

#[inline]
pub(crate) fn op_started(id: OpId, op: &Op) {
    emit!(trace, target: "windlass::op", id = ?id, op = op.name(), fd = op.fd(), "started");
}

#[inline]
pub(crate) fn op_completed(id: OpId, res: OsResult) {
    match res {
        Ok(count) => emit!(trace, target: "windlass::op", id = ?id, count, "completed"),
        Err(code) => emit!(trace, target: "windlass::op", id = ?id, code, "completed"),
    }
}

#[inline]
pub(crate) fn op_done_at_once(op: &Op, res: OsResult) {
    match res {
        Ok(count) => emit!(trace, target: "windlass::op", op = op.name(), fd = op.fd(), count, "completed at once"),
        Err(code) => emit!(trace, target: "windlass::op", op = op.name(), fd = op.fd(), code, "completed at once"),
    }
}

pub(crate) fn batch_done(name: &'static str, fd: Fd, messages: usize) {
    emit!(trace, target: "windlass::op", op = name, fd, count = messages, "completed at once");
}

#[inline]
pub(crate) fn loop_opened(description: &Description) {
    emit!(info, target: "windlass::loop", driver = %description, "opened");
}

#[inline]
pub(crate) fn loop_closed() {
    emit!(info, target: "windlass::loop", "closed");
}

/// Without `emit`, which would report a subscriber's panic as another exception. The caller catches that panic.
pub(crate) fn exception(exception: &Exception) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "windlass::loop", "{exception}");
}
