//! The operations of a join handle; all on the loop's thread.

use std::task::{Context, Poll};

use super::RawTask;
use super::header::{Joiner, WaitReason};
use crate::event_loop::core::LoopCore;
use crate::task::join::JoinError;

impl RawTask {
    #[inline]
    pub(crate) fn poll_join<T>(self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        if !self.is_finished() && self.register_joiner(cx) {
            return Poll::Pending;
        }
        let mut out: Option<Result<T, JoinError>> = None;
        // SAFETY: the handle's `T` is the future's output type, and the task is done.
        unsafe { (self.header().vtable.take_output)(self.0, (&raw mut out).cast()) };
        self.header().joinable.set(false);
        Poll::Ready(out.expect("JoinHandle polled after it returned its result"))
    }

    /// Makes the current task, or the waker, wait for this task. False if this task is finished.
    fn register_joiner(self, cx: &mut Context<'_>) -> bool {
        let core = LoopCore::try_current();
        let joiner = core
            .filter(|core| self.is_of(core))
            .and_then(|core| core.task_polled_with(cx));
        let joiner = match joiner {
            Some(joiner) => {
                joiner.set_wait_reason(WaitReason::Task(self.id()));
                Joiner::Task(joiner.key())
            }
            None => {
                crate::task::set_wait_reason(WaitReason::Task(self.id()));
                // Foreign code: the task may finish inside it, and then there is nothing to wait for.
                let waker = cx.waker().clone();
                if self.is_finished() {
                    return false;
                }
                Joiner::Waker(waker)
            }
        };
        // A waker's destructor, if there was one, is foreign code: the task may finish inside it, and wakes the new joiner.
        drop(self.header().joiner.replace(joiner));
        true
    }

    /// Drops the join handle's reference, and the output if it was not taken.
    pub(crate) fn detach(self) {
        let header = self.header();
        let is_output_here = header.joinable.replace(false) && self.is_done();
        drop(header.joiner.take());
        if is_output_here {
            self.drop_output();
        }
        self.drop_ref();
    }
}
