//! `FutureSet`: futures polled by one task; only futures that were woken are polled.
//!
//! Each future has its own waker, which appends the future's index to a ready list and wakes the task. So `n` futures
//! cost one poll per wake, not `n` polls per wake.
//!
//! One `poll_next` polls at most one batch: the ready list as it was when the batch was taken. A future that is woken
//! meanwhile, perhaps by itself, waits for the next batch, so a future that yields cannot starve the others. Wakers may
//! be used on any thread; hence the mutex.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use super::Leftovers;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;

pub(super) struct FutureSet<F> {
    /// The futures are pinned: this box is never moved out of, and each future is dropped in place.
    slots: Box<[Slot<F>]>,
    /// The futures added later, each in a box of its own, with their numbers. An index here counts from `slots.len()` and
    /// is used again.
    pushed: Slab<(usize, Box<Slot<F>>)>,
    /// The number of futures that were ever in the set.
    count: usize,
    running: usize,
    /// Indices to poll, in the order of their wakes.
    batch: VecDeque<usize>,
    ready_list: Arc<Mutex<ReadyList>>,
}

/// The futures are boxed.
impl<F> Unpin for FutureSet<F> {}

struct Slot<F> {
    future: Option<F>,
    /// Created at the first poll: the flag and a waker that sets it.
    ready_flag: Option<(Arc<ReadyFlag>, Waker)>,
}

#[derive(Default)]
struct ReadyList {
    /// The indices of woken futures.
    ready: Vec<usize>,
    /// The task to wake when the next index is added.
    task_waker: Option<Waker>,
}

fn lock(ready_list: &Mutex<ReadyList>) -> MutexGuard<'_, ReadyList> {
    ready_list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct ReadyFlag {
    ready_list: Arc<Mutex<ReadyList>>,
    index: usize,
    /// Whether the index is in the list, or about to be added.
    is_queued: AtomicBool,
}

impl Wake for ReadyFlag {
    fn wake(self: Arc<ReadyFlag>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<ReadyFlag>) {
        if self.is_queued.swap(true, AcqRel) {
            return;
        }
        let task_waker = {
            let mut ready_list = lock(&self.ready_list);
            ready_list.ready.push(self.index);
            ready_list.task_waker.take()
        };
        if let Some(task_waker) = task_waker {
            task_waker.wake();
        }
    }
}

impl<F: Future> FutureSet<F> {
    pub(super) fn new(futures: impl IntoIterator<Item = F>) -> FutureSet<F> {
        let slot = |future| Slot {
            future: Some(future),
            ready_flag: None,
        };
        let slots: Box<[_]> = futures.into_iter().map(slot).collect();
        FutureSet {
            running: slots.len(),
            count: slots.len(),
            batch: (0..slots.len()).collect(),
            ready_list: Arc::default(),
            pushed: Slab::new(),
            slots,
        }
    }

    /// Adds a future and returns its number. Wakes the task that waits for the set.
    pub(super) fn push(&mut self, future: F) -> usize {
        let number = self.count;
        let slot = Slot {
            future: Some(future),
            ready_flag: None,
        };
        let index = self.slots.len() + self.pushed.insert((number, Box::new(slot)));
        self.count += 1;
        self.running += 1;
        let task_waker = {
            let mut ready_list = lock(&self.ready_list);
            ready_list.ready.push(index);
            ready_list.task_waker.take()
        };
        if let Some(task_waker) = task_waker {
            task_waker.wake();
        }
        number
    }

    /// The number of futures that were ever in the set.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The number of futures that have not completed.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// For the `Debug` of the futures built on a set.
    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("running", &self.running)
            .field("of", &self.len())
            .finish()
    }

    /// The next completed future's number and output; `None` when all have completed. If a future panics, the panic
    /// propagates; that future is dropped, and the others can still be polled.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, F::Output)>> {
        if self.running == 0 {
            return Poll::Ready(None);
        }
        self.register(cx);
        while let Some(index) = self.batch.pop_front() {
            if let Some(completed) = self.poll_one(index) {
                return Poll::Ready(Some(completed));
            }
            // With the budget spent, the next future would only wake itself: the rest waits for the next poll.
            if LoopCore::try_current().is_some_and(LoopCore::is_spent) {
                break;
            }
        }
        // A future woken while an earlier batch was polled may have woken a task that no longer polls this set.
        if !self.batch.is_empty() || !lock(&self.ready_list).ready.is_empty() {
            cx.waker().wake_by_ref();
        }
        super::set_wait_reason(super::WaitReason::Named(&"several futures"));
        Poll::Pending
    }

    /// Registers the task's waker. Takes the ready list as the batch if the batch is empty.
    fn register(&mut self, cx: &mut Context<'_>) {
        let waker = cx.waker().clone();
        let old = {
            let mut ready_list = lock(&self.ready_list);
            if self.batch.is_empty() {
                self.batch.extend(ready_list.ready.drain(..));
            }
            ready_list.task_waker.replace(waker)
        };
        drop(old);
    }

    fn poll_one(&mut self, index: usize) -> Option<(usize, F::Output)> {
        let initial = self.slots.len();
        let (number, slot) = match index.checked_sub(initial) {
            None => (index, &mut self.slots[index]),
            // `None`: woken after its future had completed.
            Some(key) => self.pushed.get_mut(key).map(|(number, slot)| (*number, &mut **slot))?,
        };
        let future = slot.future.as_mut()?;
        let (ready_flag, waker) = slot.ready_flag.get_or_insert_with(|| {
            let ready_flag = Arc::new(ReadyFlag {
                ready_list: self.ready_list.clone(),
                index,
                is_queued: AtomicBool::new(true),
            });
            (ready_flag.clone(), Waker::from(ready_flag))
        });
        // From here on a wake counts for the next poll. `AcqRel`: this poll sees what the waking thread wrote.
        ready_flag.is_queued.swap(false, AcqRel);
        // SAFETY: the future is in a box, which is never moved out of while pinned: `take_rest` requires `Unpin`.
        let future = unsafe { Pin::new_unchecked(future) };
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(&mut Context::from_waker(waker)))) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(payload),
        };
        self.running -= 1;
        guard("a finished future's destructor", || slot.future = None);
        if let Some(key) = index.checked_sub(initial) {
            let slot = self.pushed.remove(key);
            guard("a waker's destructor", || drop(slot));
        }
        Some((number, result.unwrap_or_else(|payload| resume_unwind(payload))))
    }

    /// Drops the futures that have not completed. A panicking destructor affects neither the others nor the caller.
    pub(super) fn clear(&mut self) -> Leftovers {
        self.running = 0;
        let pushed = std::mem::take(&mut self.pushed);
        Leftovers::of(|| {
            for slot in &mut self.slots {
                if slot.future.is_some() {
                    guard("a dropped future's destructor", || slot.future = None);
                }
            }
            for (_, slot) in pushed {
                guard("a dropped future's destructor", || drop(slot));
            }
        })
    }

    /// Removes the futures that have not completed, with their indices. Not for a set that grows.
    pub(super) fn take_rest(&mut self) -> Vec<(usize, F)>
    where
        F: Unpin,
    {
        debug_assert!(self.pushed.is_empty());
        self.running = 0;
        let slots = self.slots.iter_mut().enumerate();
        slots
            .filter_map(|(index, slot)| Some((index, slot.future.take()?)))
            .collect()
    }
}
