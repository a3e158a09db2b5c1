//! The part of a shard that belongs to its loop: messages to other shards, and the state of the calls that
//! [it makes](calls_made) and [serves](calls_served).
//!
//! A turn's messages are collected in one outbox per target and handed over when the turn ends, with one lock and at most
//! one wake-up for each target.

mod calls_made;
mod calls_served;

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use slab::Slab;

pub(super) use self::calls_made::current_hop;
pub use self::calls_made::rooted;
use self::calls_made::{HOP, Pending};
use self::calls_served::{Served, StartRequests};
use super::defect::Defect;
use super::listen::LocalListener;
use super::packet::Packet;
use super::shared::{Shared, View};
use super::{CallError, MAX_HOPS, Shard, ShardCounters};
use crate::event_loop::callback::Callback;
use crate::event_loop::core::{ClockHold, LoopCore, RemoteEvent};
use crate::event_loop::exception::guard;
use crate::event_loop::inbox::Inbox;
use crate::on_drop::OnDrop;
use crate::peer::{PeerEvent, PeerLink, PeerMessage};
use crate::sync::{Event, Notify, Semaphore};
use crate::task::Locals;
use crate::time::Instant;

/// Waits that found a message make up for those that did not: see [`PeerLink::awaits_awake_peer`] and
/// [`PeerLink::expects_message`].
const WINDOW_COST: i32 = 4;
const MAX_WINDOW_CREDIT: i32 = 16;

/// What a shard's loop knows of its pool.
pub(super) struct ShardState {
    pub(super) index: usize,
    /// This shard's own reference to the pool: handles made here clone it, so that they share no reference count with
    /// other shards.
    view: Arc<View>,
    core: Weak<LoopCore>,
    this: Weak<ShardState>,
    inboxes: Vec<Arc<Inbox<RemoteEvent>>>,

    outboxes: RefCell<Vec<Vec<RemoteEvent>>>,
    /// The targets whose outbox is not empty.
    targets: RefCell<Vec<usize>>,
    is_sending: Cell<bool>,

    /// By target: a target has a table of its callers' places, which should be no larger than the calls to it need.
    pending: RefCell<Vec<Slab<Pending>>>,
    /// Those of them whose answer is not back.
    unanswered: Cell<usize>,
    next_generation: Cell<u32>,
    units: Vec<[OnceCell<Rc<Semaphore>>; MAX_HOPS]>,
    /// The target of the last call, while it has not been answered.
    last_target: Cell<Option<u32>>,
    window_credit: Cell<i32>,
    /// The last call's target was asleep: its answer takes a wake-up.
    has_woken: Cell<bool>,
    /// A message has arrived since the last wait.
    has_received: Cell<bool>,
    spin_credit: Cell<i32>,

    requests: RefCell<VecDeque<Box<dyn Packet>>>,
    start_requests: OnceCell<Rc<dyn Callback>>,
    is_starting: Cell<bool>,
    served: RefCell<Vec<Vec<Served>>>,
    serving: Cell<usize>,
    /// Task-locals with the hop class of a served call.
    hop_locals: Vec<Locals>,

    pub(super) services: RefCell<Vec<Option<Rc<dyn Any>>>>,
    pub(super) listeners: RefCell<Vec<Rc<LocalListener>>>,
    pub(super) stopping: Event,
    pub(super) forced: Event,
    pub(super) force_at: Cell<Option<Instant>>,
    /// No more calls: the pool waits for those in flight.
    pub(super) refuses_calls: Cell<bool>,
    /// Notified when a call ends.
    pub(super) call_ended: Notify,
    /// The shard has ended in the order of the pool's stop.
    pub(super) has_ended: Cell<bool>,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    calls: Cell<u64>,
    served: Cell<u64>,
    unit_waits: Cell<u64>,
    messages: Cell<u64>,
    batches: Cell<u64>,
    wakes: Cell<u64>,
    pub(super) handed_over: Cell<u64>,
    pub(super) accepted: Cell<u64>,
    poll_windows: Cell<u64>,
}

/// Whether earlier waits found enough. If not, the next ones are left out until the failure has been made up for.
fn take_credit(credit: &Cell<i32>) -> bool {
    let before = credit.get();
    credit.set(before + i32::from(before < 0));
    before >= 0
}

/// Records whether a wait found something.
fn record(credit: &Cell<i32>, found: bool) {
    credit.set(match found {
        true => (credit.get() + 1).min(MAX_WINDOW_CREDIT),
        false => credit.get() - WINDOW_COST,
    });
}

pub(super) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

impl ShardState {
    /// Makes the current loop a shard of the pool, whose loops have all been registered.
    pub(super) fn install(shared: &Arc<Shared>, index: usize) -> Rc<ShardState> {
        let core = LoopCore::current("a shard");
        let count = shared.peers.len();
        let hop_locals = (1..=MAX_HOPS as u8).map(|hop| HOP.context(hop));
        let state = Rc::new_cyclic(|this: &Weak<ShardState>| ShardState {
            index,
            view: View::new(shared),
            core: Rc::downgrade(&core.rc()),
            this: this.clone(),
            inboxes: shared.peers.iter().map(|peer| peer.inbox().clone()).collect(),
            outboxes: RefCell::new((0..count).map(|_| Vec::new()).collect()),
            targets: RefCell::default(),
            is_sending: Cell::new(false),
            pending: RefCell::new((0..count).map(|_| Slab::new()).collect()),
            unanswered: Cell::new(0),
            next_generation: Cell::new(0),
            units: (0..count).map(|_| Default::default()).collect(),
            last_target: Cell::new(None),
            window_credit: Cell::new(WINDOW_COST),
            has_woken: Cell::new(false),
            has_received: Cell::new(false),
            spin_credit: Cell::new(0),
            requests: RefCell::default(),
            start_requests: OnceCell::new(),
            is_starting: Cell::new(false),
            served: RefCell::new(vec![Vec::new(); count]),
            serving: Cell::new(0),
            hop_locals: hop_locals.collect(),
            services: RefCell::default(),
            listeners: RefCell::default(),
            stopping: Event::new(),
            forced: Event::new(),
            force_at: Cell::new(None),
            refuses_calls: Cell::new(false),
            call_ended: Notify::new(),
            has_ended: Cell::new(false),
            counters: Counters::default(),
        });
        let start: Rc<dyn Callback> = Rc::new(StartRequests(Rc::downgrade(&state)));
        // Not set before.
        let _ = state.start_requests.set(start);
        if core.peers.set(state.clone()).is_err() {
            panic!("windlass: this event loop is a shard of a pool already");
        }
        core.probe.set_shard(index, &shared.peers[index].name);
        state
    }

    /// The shard whose loop this is.
    #[inline]
    pub(super) fn of(core: &LoopCore) -> Option<&ShardState> {
        let link: &dyn Any = &**core.peers.get()?;
        link.downcast_ref()
    }

    /// The shard that this thread is running.
    #[inline]
    pub(super) fn current() -> Option<Rc<ShardState>> {
        ShardState::of(LoopCore::try_current()?)?.this.upgrade()
    }

    /// As [`current`](ShardState::current), if it belongs to this pool.
    #[inline]
    pub(super) fn current_of(shared: &Arc<Shared>) -> Option<Rc<ShardState>> {
        ShardState::current().filter(|state| Arc::ptr_eq(state.shared(), shared))
    }

    /// As [`current`](ShardState::current), if it belongs to the pool with this number.
    #[inline]
    pub(super) fn current_in(pool: u32) -> Option<Rc<ShardState>> {
        ShardState::current().filter(|state| state.shared().id == pool)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.view.shared
    }

    pub(super) fn shard(&self, index: usize) -> Shard {
        Shard::new(index, self.view.clone())
    }

    pub(super) fn rc(&self) -> Rc<ShardState> {
        self.this.upgrade().expect("a borrowed shard is alive")
    }

    /// Stops the virtual clock of a loop while it waits for other shards. A simulation has one clock for all.
    pub(super) fn hold_clock(&self) -> Option<ClockHold> {
        match self.shared().is_simulated {
            true => None,
            false => self.core.upgrade()?.hold_clock(),
        }
    }

    /// Whether its loop is closing, so that calls end because the shard does.
    pub(super) fn is_closing(&self) -> bool {
        self.core.upgrade().is_none_or(|core| core.is_closed())
    }

    // Messages.

    /// Sends a message to a shard when the turn ends.
    pub(super) fn post(&self, target: usize, message: Box<dyn PeerMessage>) {
        let mut outboxes = self.outboxes.borrow_mut();
        let outbox = &mut outboxes[target];
        if outbox.is_empty() {
            self.targets.borrow_mut().push(target);
        }
        outbox.push(RemoteEvent::Peer(PeerEvent::new(message)));
    }

    /// Sends a message to each other shard when the turn ends.
    pub(super) fn post_to_others(&self, message: impl Fn() -> Box<dyn PeerMessage>) {
        let others = (0..self.inboxes.len()).filter(|&other| other != self.index);
        others.for_each(|other| self.post(other, message()));
    }

    /// Hands all messages over.
    fn flush(&self) {
        // A message that cannot be delivered may produce another one.
        if self.is_sending.replace(true) {
            return;
        }
        let _sent = OnDrop(|| self.is_sending.set(false));
        while let Some(target) = { self.targets.borrow_mut().pop() } {
            let mut batch = std::mem::take(&mut self.outboxes.borrow_mut()[target]);
            add(&self.counters.messages, batch.len() as u64);
            add(&self.counters.batches, 1);
            let has_woken = self.inboxes[target].send_all(&mut batch);
            add(&self.counters.wakes, has_woken.into());
            self.has_woken.set(self.has_woken.get() || has_woken);
            // The target has ended: dropping the messages makes them fail.
            batch.clear();
            let mut outboxes = self.outboxes.borrow_mut();
            match outboxes[target].is_empty() {
                // Keeps its memory.
                true => outboxes[target] = batch,
                false => drop(outboxes),
            }
        }
    }

    pub(super) fn counters(&self) -> ShardCounters {
        let counters = &self.counters;
        ShardCounters {
            calls: counters.calls.get(),
            served: counters.served.get(),
            unit_waits: counters.unit_waits.get(),
            in_flight: self.unanswered.get(),
            serving: self.serving.get(),
            queued: self.requests.borrow().len(),
            messages: counters.messages.get(),
            batches: counters.batches.get(),
            wakes: counters.wakes.get(),
            accepted: counters.accepted.get(),
            handed_over: counters.handed_over.get(),
            connections: self.shared().peers[self.index].gauges.connections.load(Relaxed) as usize,
            poll_windows: counters.poll_windows.get(),
        }
    }

    /// Counts a connection until it is closed.
    pub(super) fn count_connection(&self, stream: &crate::net::TcpStream) {
        if stream.socket().descriptor.is_counted.replace(true) {
            return;
        }
        let connections = &self.shared().peers[self.index].gauges.connections;
        // This thread alone writes it.
        connections.store(connections.load(Relaxed) + 1, Relaxed);
    }
}

impl PeerLink for ShardState {
    fn end_turn(&self, core: &LoopCore) {
        let gauges = &self.shared().peers[self.index].gauges;
        gauges.turns.store(core.counters.turns.get(), Relaxed);
        gauges.tasks.store(core.tasks.len() as u32, Relaxed);
        if !self.targets.borrow().is_empty() {
            self.flush();
        }
    }

    fn expects_message(&self) -> bool {
        let is_likely = self.has_received.replace(false) || self.last_target.get().is_some() && !self.has_woken.get();
        is_likely && self.shared().may_spin && take_credit(&self.spin_credit)
    }

    fn spun_for_message(&self, found: bool) {
        record(&self.spin_credit, found);
    }

    fn awaits_awake_peer(&self) -> bool {
        let Some(target) = self.last_target.get().filter(|_| self.shared().may_spin) else {
            return false;
        };
        // A sleeping peer answers after a wake-up, which takes longer than the window.
        !self.inboxes[target as usize].is_asleep() && take_credit(&self.window_credit)
    }

    fn polled_for_peer(&self, found: bool) {
        add(&self.counters.poll_windows, 1);
        record(&self.window_credit, found);
    }

    fn connection_closed(&self) {
        let connections = &self.shared().peers[self.index].gauges.connections;
        connections.store(connections.load(Relaxed).saturating_sub(1), Relaxed);
    }

    fn loop_closing(&self) {
        // An orderly stop has emptied the backlogs, and no shard takes connections any more.
        if self.shared().is_stopping() {
            return;
        }
        self.shared().mark_dead(self.index);
        let listeners = self.listeners.borrow().clone();
        for listener in listeners {
            listener.leave(self);
        }
        // The loop's own copies are closed: with the pool's, the system sends their datagrams to the other shards.
        for sockets in &self.shared().plan().sockets {
            sockets.close(self.index);
        }
    }

    fn loop_closed(&self) {
        // Before the last messages: a shard that ends at the same time must not return them.
        self.shared().mark_dead(self.index);
        // Requests that were never started fail.
        let mut requests = self.requests.take();
        if self.shared().has(Defect::LostAnswers) {
            requests.clear();
        }
        for mut packet in requests {
            packet.fail(CallError::Gone);
            self.answer(packet);
        }
        self.flush();
        if !self.has_ended.replace(true) {
            self.shared().shard_died(self.index);
        }
        // The values may hold streams, which hold the loop, which holds this.
        let values = (self.services.take(), self.listeners.take());
        guard("the destructor of a service", || drop(values));
    }
}
