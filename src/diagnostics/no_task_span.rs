//! `task_span.rs` without the feature `tracing`: a field of size zero, and no code.

use std::panic::Location;

use crate::task::TaskId;

#[derive(Clone, Copy)]
pub(crate) enum WakerOp {
    Clone,
    Drop,
    Wake,
    WakeByRef,
}

pub(crate) struct TaskSpan;

impl TaskSpan {
    #[inline(always)]
    pub(crate) fn new(_: TaskId, _: Option<&str>, _: &Location<'_>, _: usize) -> TaskSpan {
        TaskSpan
    }

    #[inline(always)]
    pub(crate) fn in_scope<R>(&self, poll: impl FnOnce() -> R) -> R {
        poll()
    }

    #[inline(always)]
    pub(crate) fn take(&self) -> TaskSpan {
        TaskSpan
    }

    #[inline(always)]
    pub(crate) fn close(self) {}

    #[inline(always)]
    pub(crate) fn waker(&self, _: WakerOp, _: impl FnOnce() -> bool) {}

    #[inline(always)]
    pub(crate) fn id(&self) -> SpanId {
        SpanId
    }
}

pub(crate) struct SpanId;

impl SpanId {
    #[inline(always)]
    pub(crate) fn woken(self) {}
}
