//! Many futures polled by one task, and of those only the ones that were woken.
//!
//! Each future has a waker of its own, a bell, which notes its number in a list and wakes the task. The task polls whom the
//! list names. So the cost of ten thousand futures is that of their wakes, and not ten thousand polls for each of them.
//!
//! A poll takes the list as it is and stops at its end: who is woken meanwhile, by itself perhaps, waits for the next one,
//! so that a future which yields lets everybody else run. Bells may ring on any thread, as wakers may.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;

pub(super) struct FutureSet<F> {
    /// The futures are pinned: this box is never moved out of, and each is dropped where it lies.
    slots: Box<[Slot<F>]>,
    running: usize,
    /// Whom to poll, in the order in which they were woken.
    batch: VecDeque<usize>,
    board: Arc<ReadyList>,
}

/// The futures lie in a box of their own.
impl<F> Unpin for FutureSet<F> {}

struct Slot<F> {
    future: Option<F>,
    /// Made for the first poll: the bell, and a waker that rings it.
    ready_flag: Option<(Arc<ReadyFlag>, Waker)>,
}

/// Where bells leave their numbers.
#[derive(Default)]
struct ReadyList {
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    rung: Vec<usize>,
    /// Whom the next ring wakes.
    parent: Option<Waker>,
}

impl ReadyList {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct ReadyFlag {
    board: Arc<ReadyList>,
    number: usize,
    /// It stands in the list, or is about to.
    is_rung: AtomicBool,
}

impl Wake for ReadyFlag {
    fn wake(self: Arc<ReadyFlag>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<ReadyFlag>) {
        if self.is_rung.swap(true, AcqRel) {
            return;
        }
        let parent = {
            let mut notes = self.board.notes();
            notes.rung.push(self.number);
            notes.parent.take()
        };
        if let Some(parent) = parent {
            parent.wake();
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
            batch: (0..slots.len()).collect(),
            board: Arc::default(),
            slots,
        }
    }

    /// How many futures there were at the beginning.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many are not done.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// The next one that is done, with its number; `None` when all are. If a future panics, so does this; that one is gone
    /// then, and the others can be polled on.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, F::Output)>> {
        if self.running == 0 {
            return Poll::Ready(None);
        }
        self.register(cx);
        while let Some(number) = self.batch.pop_front() {
            if let Some(output) = self.poll_one(number) {
                return Poll::Ready(Some((number, output)));
            }
            // Who comes now finds no budget, and would only ring its bell to come again: the rest waits for the next turn.
            if LoopCore::try_current().is_some_and(LoopCore::is_spent) {
                break;
            }
        }
        // Who was woken while an earlier batch was finished, may have woken a task that no longer polls this.
        if !self.batch.is_empty() || !self.board.notes().rung.is_empty() {
            cx.waker().wake_by_ref();
        }
        super::waits_for(super::Reason::Named("several futures"));
        Poll::Pending
    }

    /// The next bell wakes this poll's waker. Those that have rung become the batch, if there is none.
    fn register(&mut self, cx: &mut Context<'_>) {
        let waker = cx.waker().clone();
        let old = {
            let mut notes = self.board.notes();
            if self.batch.is_empty() {
                self.batch.extend(notes.rung.drain(..));
            }
            notes.parent.replace(waker)
        };
        drop(old);
    }

    fn poll_one(&mut self, number: usize) -> Option<F::Output> {
        let slot = &mut self.slots[number];
        let future = slot.future.as_mut()?;
        let (ready_flag, waker) = slot.ready_flag.get_or_insert_with(|| {
            let ready_flag = Arc::new(ReadyFlag {
                board: self.board.clone(),
                number,
                is_rung: AtomicBool::new(true),
            });
            (ready_flag.clone(), Waker::from(ready_flag))
        });
        // From here on a ring counts for the next poll. It takes what the bell's ringer did before.
        ready_flag.is_rung.swap(false, AcqRel);
        // SAFETY: the future lies in the bundle's box, which is never moved out of while it is pinned: `take_rest` is for
        // futures that are `Unpin`.
        let future = unsafe { Pin::new_unchecked(future) };
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut Context::from_waker(waker))));
        if let Ok(Poll::Pending) = polled {
            return None;
        }
        self.running -= 1;
        guard("a finished future's destructor", || slot.future = None);
        match polled {
            Ok(Poll::Ready(output)) => Some(output),
            Ok(Poll::Pending) => None,
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Drops those that are not done; a panicking destructor harms neither the others nor the caller.
    pub(super) fn clear(&mut self) {
        for slot in &mut self.slots {
            if slot.future.is_some() {
                guard("a dropped future's destructor", || slot.future = None);
            }
        }
        self.running = 0;
    }

    /// Takes those that are not done, with their numbers.
    pub(super) fn take_rest(&mut self) -> Vec<(usize, F)>
    where
        F: Unpin,
    {
        self.running = 0;
        let slots = self.slots.iter_mut().enumerate();
        slots
            .filter_map(|(number, slot)| Some((number, slot.future.take()?)))
            .collect()
    }
}
