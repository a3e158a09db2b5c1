//! The span of a task, in the form that tokio-console shows. Only with the feature `tracing`: `no_task_span.rs` is the
//! same without it.
//!
//! `console-subscriber` selects spans and events by tokio's names, so these are tokio's, all at level trace:
//!
//! - The span `runtime.spawn` (target `tokio::task`): created before the task, entered for each poll, closed when the task
//!   is done. It has no parent. A child would keep its parent's span open, and the console would show the parent as a
//!   task that has not ended.
//! - Events of the target `tokio::task::waker` for each clone, drop and wake of the task's wakers. Their field `task.id` is
//!   the id of the span; the span's own field `task.id` is the [`TaskId`].
//!
//! Operations wake a task by its key, so a task that waits for one may have no waker. The console would report that it can
//! never be woken. The loop therefore counts as the holder of one waker of each task.
//!
//! A subscriber is foreign code. It is called where user code may run: before the task exists, while the task is the current
//! one, after it is done, and where wakers are cloned, dropped and woken. Its panics do not propagate.

use std::cell::Cell;
use std::panic::Location;

use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;

use crate::event_loop::exception::guard;
use crate::task::TaskId;

const SUBSCRIBER: &str = "a tracing subscriber";

/// An operation on a waker of the task.
#[derive(Clone, Copy)]
pub(crate) enum WakerOp {
    Clone,
    Drop,
    /// A wake that drops the waker.
    Wake,
    WakeByRef,
}

/// The field of the task's header.
pub(crate) struct TaskSpan {
    /// `None` if no subscriber wants the span. Never changes, so that wakers can read it on any thread.
    id: Option<Id>,
    /// Loop's thread only. Empty while the task is polled, and once it is done, so that another thread never drops it.
    /// Boxed: it takes five words, and most programs have no subscriber that wants it.
    span: Cell<Option<Box<Span>>>,
}

impl TaskSpan {
    /// Calls the subscriber: the task does not exist yet. `size` is that of the future.
    #[inline]
    pub(crate) fn new(id: TaskId, name: Option<&str>, at: &Location<'_>, size: usize) -> TaskSpan {
        match LevelFilter::current() < LevelFilter::TRACE {
            true => TaskSpan::none(),
            false => TaskSpan::open(id, name, at, size),
        }
    }

    fn none() -> TaskSpan {
        let span = Cell::new(None);
        TaskSpan { id: None, span }
    }

    #[inline(never)]
    fn open(id: TaskId, name: Option<&str>, at: &Location<'_>, size: usize) -> TaskSpan {
        let mut span = Span::none();
        guard(SUBSCRIBER, || {
            span = tracing::trace_span!(
                target: "tokio::task",
                parent: None,
                "runtime.spawn",
                kind = "local",
                task.name = name,
                task.id = id.0,
                size.bytes = size,
                loc.file = at.file(),
                loc.line = at.line(),
                loc.col = at.column(),
            );
        });
        let Some(id) = span.id() else {
            return TaskSpan::none();
        };
        emit(&id, WakerOp::Clone);
        TaskSpan {
            id: Some(id),
            span: Cell::new(Some(Box::new(span))),
        }
    }

    /// Polls the task inside its span. It is the current task, so a subscriber that cancels it does not end it before the
    /// poll has returned. Loop's thread.
    #[inline]
    pub(crate) fn in_scope<R>(&self, poll: impl FnOnce() -> R) -> R {
        match self.id {
            None => poll(),
            Some(_) => self.in_entered(poll),
        }
    }

    #[inline(never)]
    fn in_entered<R>(&self, poll: impl FnOnce() -> R) -> R {
        let span = self.span.take();
        let mut entered = None;
        if let Some(span) = &span {
            guard(SUBSCRIBER, || entered = Some(span.enter()));
        }
        let result = poll();
        guard(SUBSCRIBER, || drop(entered));
        self.span.set(span);
        result
    }

    /// Takes the span of a task that ends, to close it once the task is done. Loop's thread.
    #[inline]
    pub(crate) fn take(&self) -> TaskSpan {
        match &self.id {
            None => TaskSpan::none(),
            id => TaskSpan {
                id: id.clone(),
                span: Cell::new(self.span.take()),
            },
        }
    }

    #[inline]
    pub(crate) fn close(self) {
        if let Some(id) = &self.id {
            emit(id, WakerOp::Drop);
            guard(SUBSCRIBER, || drop(self.span));
        }
    }

    /// Reports an operation on a waker. The caller holds a reference to the task. The span of a task that `is_done` is
    /// closed: nothing is reported. Any thread.
    #[inline]
    pub(crate) fn waker(&self, op: WakerOp, is_done: impl FnOnce() -> bool) {
        if let Some(id) = &self.id
            && !is_done()
        {
            emit(id, op);
        }
    }

    /// For a report that does not need the task.
    #[inline]
    pub(crate) fn id(&self) -> SpanId {
        SpanId(self.id.clone())
    }
}

/// The id of a task's span, if it has one.
pub(crate) struct SpanId(Option<Id>);

impl SpanId {
    /// Reports that the task was woken without a waker.
    #[inline]
    pub(crate) fn woken(self) {
        if let Some(id) = &self.0 {
            emit(id, WakerOp::WakeByRef);
        }
    }
}

#[inline(never)]
fn emit(span: &Id, op: WakerOp) {
    let op = match op {
        WakerOp::Clone => "waker.clone",
        WakerOp::Drop => "waker.drop",
        WakerOp::Wake => "waker.wake",
        WakerOp::WakeByRef => "waker.wake_by_ref",
    };
    guard(SUBSCRIBER, || {
        tracing::trace!(target: "tokio::task::waker", op, task.id = span.into_u64());
    });
}
