//! The calls that a shard makes: their units, the table of those whose answer is not taken, and cancelling.
//!
//! # Calls cannot deadlock each other
//!
//! A call holds a unit from the moment it is sent until its answer is back. Units exist per target and per *hop class*: a
//! call made by a task that serves no call has class 0, one made while a call of class h is served has class h + 1. A call
//! waits only for units of its own class. Those are held by calls whose service waits only for higher classes, and the
//! service of the highest class cannot make calls at all ([`TooDeep`](crate::shards::CallError::TooDeep)). So there is no
//! cycle of calls that wait for each other's units, whatever the calls do to each other: the buffer classes of
//! store-and-forward networks.
//!
//! The number of units bounds everything else: the calls queued at a shard, the messages in its inbox, the answers on their
//! way. Receiving depends on no task: requests are started by a callback of the loop.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::calls_served::Cancel;
use super::{ShardState, add};
use crate::event_loop::core::{ClockHold, LoopCore};
use crate::event_loop::exception::{guard, wake_all};
use crate::event_loop::task_key::TaskKey;
use crate::shards::defect::Defect;
use crate::shards::packet::Packet;
use crate::sync::{OwnedPermit, Semaphore};
use crate::task::TaskLocal;

/// The hop class of calls that a task makes.
pub(super) static HOP: TaskLocal<u8> = TaskLocal::new();

/// Runs a future as if no call had started it: calls that it makes have hop class 0 again.
///
/// A task that is spawned while a call is served inherits the length of the chain of calls, because the call may wait for it.
/// A task that outlives the call, such as a background job, is spawned with this function; otherwise its calls may fail with
/// [`CallError::TooDeep`](crate::shards::CallError::TooDeep).
///
/// ```no_run
/// # use windlass::shards::{self, Shard};
/// # async fn example(shard: Shard, compact: impl std::future::Future<Output = ()> + 'static) {
/// windlass::spawn(shards::rooted(compact));
/// # }
/// ```
pub async fn rooted<F: Future>(future: F) -> F::Output {
    HOP.scope(0, future).await
}

/// The hop class of the calls that the running code makes.
pub(in crate::shards) fn current_hop() -> u8 {
    HOP.try_with(|hop| hop.copied().unwrap_or(0))
}

/// A call that this shard has made.
pub(super) struct Pending {
    generation: u32,
    waiter: Option<Waiter>,
    /// `None` once the answer is back.
    unit: Option<OwnedPermit>,
    answer: Option<Box<dyn Packet>>,
    /// The future was dropped: the answer is dropped too.
    is_abandoned: bool,
    /// On a virtual clock of its own, a loop does not let time pass while another thread works for it.
    clock_hold: Option<ClockHold>,
}

/// What waits for an answer. A task of this loop needs no waker, which would be a counted reference to it.
enum Waiter {
    Task(TaskKey),
    Waker(Waker),
}

impl Waiter {
    /// Cloning a foreign waker is foreign code.
    fn of(cx: &Context<'_>) -> Waiter {
        match LoopCore::running_task() {
            Some(task) if task.owns(cx.waker()) => Waiter::Task(task.key()),
            _ => Waiter::Waker(cx.waker().clone()),
        }
    }

    fn is(&self, cx: &Context<'_>) -> bool {
        match self {
            Waiter::Task(key) => {
                LoopCore::running_task().is_some_and(|task| task.owns(cx.waker()) && task.key() == *key)
            }
            Waiter::Waker(waker) => waker.will_wake(cx.waker()),
        }
    }

    fn wake(self) {
        match (self, LoopCore::try_current()) {
            (Waiter::Task(key), Some(core)) => core.wake_task(key),
            (Waiter::Task(_), None) => {}
            (Waiter::Waker(waker), _) => wake_all([waker]),
        }
    }
}

impl ShardState {
    pub(in crate::shards) fn units(&self, target: usize, hop: u8) -> &Rc<Semaphore> {
        let most = match self.shared().has(Defect::NoLimit) {
            true => usize::MAX >> 8,
            false => self.shared().calls_per_peer,
        };
        let hop = if self.shared().has(Defect::OneHopClass) { 0 } else { hop };
        self.units[target][usize::from(hop)].get_or_init(|| Rc::new(Semaphore::new(most)))
    }

    pub(in crate::shards) fn note_unit_wait(&self) {
        add(&self.counters.unit_waits, 1);
    }

    /// Sends a call. Returns its place in the target's table.
    pub(in crate::shards) fn send(
        &self,
        target: usize,
        mut packet: Box<dyn Packet>,
        unit: OwnedPermit,
        cx: &mut Context<'_>,
    ) -> usize {
        let generation = self.next_generation.get().wrapping_add(1);
        self.next_generation.set(generation);
        let waiter = Some(Waiter::of(cx));
        self.unanswered.set(self.unanswered.get() + 1);
        let slot = self.pending.borrow_mut()[target].insert(Pending {
            generation,
            waiter,
            unit: Some(unit),
            answer: None,
            is_abandoned: false,
            clock_hold: self.hold_clock(),
        });
        let header = packet.header_mut();
        header.caller = self.index as u32;
        header.slot = slot as u32;
        header.generation = generation;
        header.target = target as u16;
        self.last_target.set(Some(target as u32));
        self.has_woken.set(false);
        add(&self.counters.calls, 1);
        self.post(target, packet);
        slot
    }

    /// The answer to a call.
    pub(in crate::shards) fn poll_answer(
        &self,
        target: usize,
        slot: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Box<dyn Packet>> {
        let mut tables = self.pending.borrow_mut();
        let pending = &mut tables[target];
        let Some(call) = pending.get_mut(slot) else {
            unreachable!("a call's place is kept until its answer is taken");
        };
        if let Some(answer) = call.answer.take() {
            pending.remove(slot);
            return Poll::Ready(answer);
        }
        if call.waiter.as_ref().is_some_and(|waiter| waiter.is(cx)) {
            return Poll::Pending;
        }
        drop(tables);
        let waiter = Waiter::of(cx);
        let mut tables = self.pending.borrow_mut();
        let call = tables[target].get_mut(slot);
        let old = call.and_then(|call| call.waiter.replace(waiter));
        drop(tables);
        drop(old);
        Poll::Pending
    }

    /// The future of a call was dropped: cancels it on the target.
    pub(in crate::shards) fn abandon(&self, target: usize, slot: usize) {
        let mut tables = self.pending.borrow_mut();
        let table = &mut tables[target];
        let Some(call) = table.get_mut(slot) else { return };
        if call.answer.is_some() {
            let call = table.remove(slot);
            drop(tables);
            return guard("the destructor of a call's value", || drop(call));
        }
        call.is_abandoned = true;
        let generation = call.generation;
        let waiter = call.waiter.take();
        drop(tables);
        drop(waiter);
        if self.is_closing() && self.shared().has(Defect::LostCancels) {
            return;
        }
        let cancel = Cancel {
            caller: self.index as u32,
            slot: slot as u32,
            generation,
        };
        self.post(target, Box::new(cancel));
    }

    /// The answer to a call has arrived.
    pub(in crate::shards) fn complete(&self, packet: Box<dyn Packet>) {
        let (target, slot) = (packet.header().target, packet.header().slot as usize);
        let mut tables = self.pending.borrow_mut();
        let table = &mut tables[usize::from(target)];
        let Some(call) = table.get_mut(slot) else { return };
        debug_assert_eq!(call.generation, packet.header().generation);
        if self.last_target.get() == Some(target.into()) {
            self.last_target.set(None);
        }
        self.has_received.set(true);
        self.unanswered.set(self.unanswered.get() - 1);
        let unit = call.unit.take();
        let clock_hold = call.clock_hold.take();
        if call.is_abandoned {
            table.remove(slot);
            drop(tables);
            guard("the destructor of a call's value", || drop(packet));
            if self.shared().has(Defect::KeptUnits) {
                std::mem::forget(unit);
                return;
            }
        } else {
            call.answer = Some(packet);
            let waiter = call.waiter.take();
            drop(tables);
            if let Some(waiter) = waiter {
                waiter.wake();
            }
        }
        drop(clock_hold);
        // Wakes the next caller that waits for a unit.
        drop(unit);
        self.note_call_ended();
    }

    /// Calls made and not answered, requests not started, and calls served. Each decrease notifies `call_ended`.
    pub(in crate::shards) fn calls_in_flight(&self) -> usize {
        self.unanswered.get() + self.serving.get() + self.requests.borrow().len()
    }
}
