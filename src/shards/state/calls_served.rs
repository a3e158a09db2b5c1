//! The calls that a shard serves: starting requests, the state of each until its answer is sent, and cancels that arrive.

use std::panic::Location;
use std::rc::{Rc, Weak};

use super::{ShardState, add};
use crate::event_loop::callback::Callback;
use crate::event_loop::core::LoopCore;
use crate::event_loop::task_key::TaskKey;
use crate::on_drop::OnDrop;
use crate::peer::PeerMessage;
use crate::shards::CallError;
use crate::shards::packet::Packet;
use crate::task::{Locals, RawTask, TaskId};

/// How many requests a shard starts in one turn, so that they do not starve its own I/O.
const REQUESTS_PER_TURN: usize = 128;

/// A call that this shard serves, by the caller's shard and the place in the caller's table for this shard. A place is used
/// again only after its answer was sent.
#[derive(Clone, Copy, Default)]
pub(super) enum Served {
    /// None, or its answer was sent.
    #[default]
    Nothing,
    /// A cancel arrived before the request was started.
    Cancelled(u32),
    Running(u32, TaskKey, TaskId),
    /// The answer of the call with this number was sent: a cancel comes too late.
    Ended(u32),
}

impl ShardState {
    /// A request has arrived. It is started in this turn, unless there are too many.
    pub(in crate::shards) fn receive(&self, mut packet: Box<dyn Packet>, core: &LoopCore) {
        // The caller's virtual clock says nothing about this one: the time limit begins here.
        if core.has_virtual_clock
            && !self.shared().is_simulated
            && let Some(limit) = &mut packet.header_mut().limit
        {
            limit.by = core.now() + limit.within;
        }
        self.has_received.set(true);
        self.requests.borrow_mut().push_back(packet);
        if !self.is_starting.replace(true) {
            self.schedule_start();
        }
    }

    fn schedule_start(&self) {
        if let (Some(core), Some(start)) = (self.core.upgrade(), self.start_requests.get()) {
            core.ready.push_callback(start.clone());
        }
    }

    fn start_some(&self) {
        let (Some(core), Some(this)) = (self.core.upgrade(), self.this.upgrade()) else {
            return;
        };
        // Even if user code unwinds: otherwise no request would ever start again.
        let _schedule = OnDrop(|| {
            let has_more = !self.requests.borrow().is_empty();
            self.is_starting.set(has_more);
            if has_more {
                self.schedule_start();
            }
            // Most of them end here: those that need no task, and those that are refused.
            self.note_call_ended();
        });
        for _ in 0..REQUESTS_PER_TURN {
            let Some(packet) = self.requests.borrow_mut().pop_front() else {
                break;
            };
            this.start(packet, &core);
        }
    }

    fn start(self: &Rc<Self>, mut packet: Box<dyn Packet>, core: &LoopCore) {
        let header = packet.header();
        let (caller, slot, generation) = (header.caller, header.slot, header.generation);
        let refusal = match self.served_slot(caller, slot) {
            Served::Cancelled(number) if number == generation => Some(CallError::Cancelled),
            _ if header.limit.as_ref().is_some_and(|limit| core.now() > limit.by) => Some(CallError::Late),
            _ => None,
        };
        match refusal {
            Some(error) => {
                packet.fail(error);
                self.set_served(caller, slot, Served::Ended(generation));
                self.answer(packet);
            }
            None => {
                add(&self.counters.served, 1);
                self.set_served(caller, slot, Served::Ended(generation));
                packet.serve(self, core);
            }
        }
    }

    pub(in crate::shards) fn note_served(&self, caller: u32, slot: u32, generation: u32, task: RawTask) {
        self.serving.set(self.serving.get() + 1);
        self.set_served(caller, slot, Served::Running(generation, task.key(), task.id()));
    }

    /// The task of a served call has ended.
    pub(in crate::shards) fn end_served(&self, caller: u32, slot: u32) {
        if let Served::Running(generation, ..) = self.served_slot(caller, slot) {
            self.set_served(caller, slot, Served::Ended(generation));
            self.serving.set(self.serving.get() - 1);
            self.note_call_ended();
        }
    }

    /// Only the pool's stop waits for calls to end. A waiter looks at [`calls_in_flight`](ShardState::calls_in_flight) again, so
    /// one notification may stand for many calls.
    pub(super) fn note_call_ended(&self) {
        if self.refuses_calls.get() {
            self.call_ended.notify_waiters();
        }
    }

    fn served_slot(&self, caller: u32, slot: u32) -> Served {
        let served = self.served.borrow();
        served[caller as usize].get(slot as usize).copied().unwrap_or_default()
    }

    fn set_served(&self, caller: u32, slot: u32, to: Served) {
        let mut served = self.served.borrow_mut();
        let (slots, slot) = (&mut served[caller as usize], slot as usize);
        if slots.len() <= slot {
            slots.resize(slot + 1, Served::Nothing);
        }
        slots[slot] = to;
    }

    /// Returns a packet with its result to the caller.
    pub(in crate::shards) fn answer(&self, mut packet: Box<dyn Packet>) {
        let header = packet.header_mut();
        header.is_answer = true;
        match header.caller as usize {
            // The request never left.
            caller if caller == self.index => self.complete(packet),
            caller => self.post(caller, packet),
        }
    }

    fn cancel(&self, cancel: &Cancel) {
        match self.served_slot(cancel.caller, cancel.slot) {
            Served::Ended(generation) if generation == cancel.generation => {}
            Served::Running(generation, key, id) if generation == cancel.generation => {
                if let Some(core) = self.core.upgrade()
                    && let Some(task) = core.task_of(key).filter(|task| task.id() == id)
                {
                    task.cancel();
                }
            }
            _ => self.set_served(cancel.caller, cancel.slot, Served::Cancelled(cancel.generation)),
        }
    }

    /// The task-locals of the service of a call with this hop class.
    pub(in crate::shards) fn locals_of(&self, hop: u8) -> Locals {
        self.hop_locals[usize::from(hop)].clone()
    }
}

/// Starts the requests that have arrived.
pub(super) struct StartRequests(pub(super) Weak<ShardState>);

impl Callback for StartRequests {
    fn run(&self) {
        if let Some(state) = self.0.upgrade() {
            state.start_some();
        }
    }

    fn cancel(&self) {}

    fn location(&self) -> &'static Location<'static> {
        Location::caller()
    }
}

/// Cancels a call on its target.
pub(super) struct Cancel {
    pub(super) caller: u32,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl PeerMessage for Cancel {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        if let Some(state) = ShardState::of(core) {
            state.cancel(&self);
        }
    }

    // The request failed as well.
    fn undelivered(self: Box<Self>) {}
}

#[cfg(test)]
mod tests {
    use crate::DriverChoice;
    use crate::shards::state::ShardState;
    use crate::shards::{Builder, CallError, Shard};
    use crate::task::join_all;

    #[test]
    fn a_shard_has_as_many_places_as_a_caller_has_calls_to_it() {
        let pool = Builder::new().count(3).calls_per_peer(8);
        let pool = pool.each_loop(|_, builder| builder.driver(DriverChoice::Null));
        let run = pool.build().unwrap().run(|shard: Shard| async move {
            if shard.index() != 0 {
                return Ok(());
            }
            let places = || ShardState::current().map(|state| state.served.borrow()[0].len());
            let calls = (0..16).map(|number| shard.peer(1 + number / 8).ask(places));
            // All are sent in one poll.
            let last = join_all(calls.collect::<Vec<_>>()).await.pop();
            assert_eq!(last, Some(Ok(Some(8))));
            Ok::<_, CallError>(())
        });
        run.unwrap();
    }
}
