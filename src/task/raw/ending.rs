//! The end of a task: cancelling, becoming done, references and freeing.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::cell::Unread;
use super::header::Joiner;
use super::{DONE, REF, RawTask};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::task_key::TaskKey;
use crate::task::child_set::Membership;
use crate::task::memory;

impl RawTask {
    /// Cancels a task immediately. Inside the task's own poll or destructor the future is borrowed: the task then ends
    /// when that returns, as after [`cancel`](RawTask::cancel). Loop's thread.
    pub(crate) fn cancel_now(self, core: &LoopCore) {
        if self.is_done() {
            return;
        }
        if core.is_running(self) {
            return self.cancel();
        }
        core.run_as(self, || {
            // SAFETY: not done, not being polled, loop's thread. `run_as` keeps other code away from the stage.
            unsafe { (self.header().vtable.cancel)(self.0) }
        });
        self.finish(core);
    }

    /// Called when the future is dropped and the output stored: delists the task, sets `DONE` and wakes the joiner.
    ///
    /// No foreign code runs before `DONE` is set: it would find a task that is neither running nor done, and could end
    /// it a second time.
    pub(super) fn finish(self, core: &LoopCore) {
        let header = self.header();
        let id = self.id();
        let listed = core.tasks.remove(header.key.get().index());
        debug_assert!(listed == Some(self));
        // With orphans, the last `Owner` takes these.
        let (joiner, membership) = match header.orphans.get() {
            0 => (header.joiner.take(), header.membership.take()),
            _ => (Joiner::default(), None),
        };
        let (locals, span) = (header.locals.take(), header.span.take());
        match header.joinable.get() {
            true => self.free_if_last(self.become_done()),
            false => self.become_done_alone(),
        }
        // The task may be freed from here on.
        crate::diagnostics::trace::task_ended(id);
        span.close();
        joiner.wake(core);
        drop(membership.and_then(Membership::leave));
        locals.drop_guarded();
    }

    /// Sets `DONE` and gives up the list's reference in one step, or leaves that reference to the `Runnable` if one is
    /// queued. Returns the new state.
    #[inline]
    fn become_done(self) -> u32 {
        let header = self.header();
        let given_up = if header.is_ready.get() { 0 } else { REF };
        let done = |state: u32| state.wrapping_add(DONE).wrapping_sub(given_up);
        let ours = 2 * REF;
        if header.state.load(Acquire) == ours {
            // The only references are the list's and the handle's, both of this thread: no other can modify `state`.
            header.state.store(done(ours), Release);
            return done(ours);
        }
        done(header.state.fetch_add(done(0), AcqRel))
    }

    /// Sets `DONE` for a task without a join handle, then drops its output, then its reference. The output's
    /// destructor is foreign code: it runs after `DONE`, and while that reference keeps the memory alive.
    fn become_done_alone(self) {
        let header = self.header();
        match (header.state.load(Acquire), header.is_ready.get()) {
            // The list's is the only reference. There is no waker, so no other thread can modify `state`.
            (REF, false) => header.state.store(REF | DONE, Release),
            (_, false) => drop(header.state.fetch_add(DONE, AcqRel)),
            // The queued `Runnable` inherits the list's reference, so this function takes one of its own.
            (_, true) => drop(header.state.fetch_add(DONE + REF, AcqRel)),
        }
        self.drop_output();
        self.drop_ref();
    }

    pub(super) fn drop_output(self) {
        // SAFETY: the task is done or finishing, and this is the loop's thread.
        let unread = unsafe { (self.header().vtable.drop_output)(self.0) };
        match unread {
            None => {}
            Some(Unread::Panic(payload)) => report(Exception::task_panic(self, payload)),
            Some(Unread::Error(error)) => error.report_of_task(self),
        }
    }

    pub(super) fn clone_ref(self) {
        let old = self.header().state.fetch_add(REF, Relaxed);
        assert!(old < u32::MAX / 2, "too many wakers of one task");
    }

    /// Drops one reference. The task may be freed by this. Any thread.
    #[inline]
    pub(super) fn drop_ref(self) {
        let state = &self.header().state;
        // The holder of the last reference is alone: no other thread can modify `state`.
        let left = match state.load(Acquire) {
            last if last & !DONE == REF => last - REF,
            _ => state.fetch_sub(REF, AcqRel) - REF,
        };
        self.free_if_last(left);
    }

    /// Frees the task if `state`, the caller's new value, counts no reference.
    #[inline]
    pub(super) fn free_if_last(self, state: u32) {
        if state & !DONE == 0 {
            // SAFETY: no reference is left, so nothing else can reach the task. The stage is empty: the list's
            // reference went after the future was dropped, the join handle's after the output was.
            unsafe { self.free() }
        }
    }

    /// Frees the task. Any thread.
    ///
    /// # Safety
    ///
    /// No reference is left, and the stage is empty.
    unsafe fn free(self) {
        let header = self.0.as_ptr();
        // SAFETY: the caller's promise. Of the other fields that have a destructor, those of the loop's thread are empty: see
        // "Freeing" above.
        let (size, inbox) = unsafe {
            debug_assert!(matches!((*header).joiner.take(), Joiner::Task(TaskKey::NONE)));
            debug_assert!((*header).membership.take().is_none() && (*header).locals.take().is_empty());
            ptr::drop_in_place(&raw mut (*header).origin);
            ptr::drop_in_place(&raw mut (*header).span);
            ((*header).vtable.size, ptr::read(&raw const (*header).inbox))
        };
        let block = self.0.cast();
        match LoopCore::try_running() {
            // SAFETY: `create` took the block from this loop's memory with this size, and nothing uses it any more.
            Some(core) if Arc::ptr_eq(&core.inbox, &inbox) => unsafe { core.task_memory.keep(size, block, inbox) },
            // SAFETY: as above.
            _ => unsafe { memory::free(size, block, inbox) },
        }
    }
}
