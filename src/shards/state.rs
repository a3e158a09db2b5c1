//! The part of a shard that belongs to its loop: messages to other shards, calls made and calls served.
//!
//! # Calls cannot deadlock each other
//!
//! A call holds a unit from the moment it is sent until its answer is back. Units exist per target and per *hop class*: a
//! call made by a task that serves no call has class 0, one made while a call of class h is served has class h + 1. A call
//! waits only for units of its own class. Those are held by calls whose service waits only for higher classes, and the
//! service of the highest class cannot make calls at all ([`CallError::TooDeep`]). So there is no cycle of calls that wait
//! for each other's units, whatever the calls do to each other: the buffer classes of store-and-forward networks.
//!
//! The number of units bounds everything else: the calls queued at a shard, the messages in its inbox, the answers on their
//! way. Receiving depends on no task: requests are started by a callback of the loop.
//!
//! # Messages
//!
//! A turn's messages are collected in one outbox per target and handed over when the turn ends, with one lock and at most
//! one wake-up for each target.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::defect::Defect;
use super::listen::LocalListener;
use super::packet::Packet;
use super::shared::{Shared, View};
use super::{CallError, MAX_HOPS, Shard, ShardCounters};
use crate::event_loop::callback::Callback;
use crate::event_loop::core::{ClockHold, LoopCore, RemoteEvent};
use crate::event_loop::exception::{guard, wake_all};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::task_key::TaskKey;
use crate::on_drop::OnDrop;
use crate::peer::{PeerEvent, PeerLink, PeerMessage};
use crate::sync::{Event, Notify, OwnedPermit, Semaphore};
use crate::task::{Locals, RawTask, TaskId, TaskLocal};
use crate::time::Instant;

/// How many requests a shard starts in one turn, so that they do not starve its own I/O.
const REQUESTS_PER_TURN: usize = 128;

/// Waits that found a message make up for those that did not: see [`PeerLink::awaits_awake_peer`] and
/// [`PeerLink::expects_message`].
const WINDOW_COST: i32 = 4;
const MAX_WINDOW_CREDIT: i32 = 16;

/// The hop class of calls that a task makes.
static HOP: TaskLocal<u8> = TaskLocal::new();

/// Runs a future as if no call had started it: calls that it makes have hop class 0 again.
///
/// A task that is spawned while a call is served inherits the length of the chain of calls, because the call may wait for it.
/// A task that outlives the call, such as a background job, is spawned with this function; otherwise its calls may fail with
/// [`CallError::TooDeep`].
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
pub(super) fn current_hop() -> u8 {
    HOP.try_with(|hop| hop.copied().unwrap_or(0))
}

/// A call that this shard has made.
struct Pending {
    target: u32,
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

/// A call that this shard serves, by the caller's shard and the place in the caller's table. A place is used again only
/// after its answer was sent.
#[derive(Clone, Copy, Default)]
enum Served {
    /// None, or its answer was sent.
    #[default]
    Nothing,
    /// A cancel arrived before the request was started.
    Cancelled(u32),
    Running(u32, TaskKey, TaskId),
    /// The answer of the call with this number was sent: a cancel comes too late.
    Ended(u32),
}

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

    pending: RefCell<Slab<Pending>>,
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
            pending: RefCell::default(),
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

    // Calls to other shards.

    pub(super) fn units(&self, target: usize, hop: u8) -> &Rc<Semaphore> {
        let most = match self.shared().has(Defect::NoLimit) {
            true => usize::MAX >> 8,
            false => self.shared().calls_per_peer,
        };
        let hop = if self.shared().has(Defect::OneHopClass) { 0 } else { hop };
        self.units[target][usize::from(hop)].get_or_init(|| Rc::new(Semaphore::new(most)))
    }

    pub(super) fn note_unit_wait(&self) {
        add(&self.counters.unit_waits, 1);
    }

    /// Sends a call. Returns its place in the table.
    pub(super) fn send(
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
        let slot = self.pending.borrow_mut().insert(Pending {
            target: target as u32,
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
        self.last_target.set(Some(target as u32));
        self.has_woken.set(false);
        add(&self.counters.calls, 1);
        self.post(target, packet);
        slot
    }

    /// The answer to a call.
    pub(super) fn poll_answer(&self, slot: usize, cx: &mut Context<'_>) -> Poll<Box<dyn Packet>> {
        let mut pending = self.pending.borrow_mut();
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
        drop(pending);
        let waiter = Waiter::of(cx);
        let mut pending = self.pending.borrow_mut();
        let old = pending.get_mut(slot).and_then(|call| call.waiter.replace(waiter));
        drop(pending);
        drop(old);
        Poll::Pending
    }

    /// The future of a call was dropped: cancels it on the target.
    pub(super) fn abandon(&self, slot: usize) {
        let mut table = self.pending.borrow_mut();
        let Some(call) = table.get_mut(slot) else { return };
        if call.answer.is_some() {
            let call = table.remove(slot);
            drop(table);
            return guard("the destructor of a call's value", || drop(call));
        }
        call.is_abandoned = true;
        let (target, generation) = (call.target, call.generation);
        let waiter = call.waiter.take();
        drop(table);
        drop(waiter);
        if self.is_closing() && self.shared().has(Defect::LostCancels) {
            return;
        }
        let cancel = Cancel {
            caller: self.index as u32,
            slot: slot as u32,
            generation,
        };
        self.post(target as usize, Box::new(cancel));
    }

    /// The answer to a call has arrived.
    pub(super) fn complete(&self, packet: Box<dyn Packet>) {
        let slot = packet.header().slot as usize;
        let mut table = self.pending.borrow_mut();
        let Some(call) = table.get_mut(slot) else { return };
        debug_assert_eq!(call.generation, packet.header().generation);
        if self.last_target.get() == Some(call.target) {
            self.last_target.set(None);
        }
        self.has_received.set(true);
        self.unanswered.set(self.unanswered.get() - 1);
        let unit = call.unit.take();
        let clock_hold = call.clock_hold.take();
        if call.is_abandoned {
            table.remove(slot);
            drop(table);
            guard("the destructor of a call's value", || drop(packet));
            if self.shared().has(Defect::KeptUnits) {
                std::mem::forget(unit);
                return;
            }
        } else {
            call.answer = Some(packet);
            let waiter = call.waiter.take();
            drop(table);
            if let Some(waiter) = waiter {
                waiter.wake();
            }
        }
        drop(clock_hold);
        // Wakes the next caller that waits for a unit.
        drop(unit);
        self.note_call_ended();
    }

    /// Calls made and not answered, and calls served. Each end of one notifies `call_ended`.
    pub(super) fn calls_in_flight(&self) -> usize {
        self.unanswered.get() + self.serving.get() + self.requests.borrow().len()
    }

    // Calls from other shards.

    /// A request has arrived. It is started in this turn, unless there are too many.
    pub(super) fn receive(&self, mut packet: Box<dyn Packet>, core: &LoopCore) {
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

    pub(super) fn note_served(&self, caller: u32, slot: u32, generation: u32, task: RawTask) {
        self.serving.set(self.serving.get() + 1);
        self.set_served(caller, slot, Served::Running(generation, task.key(), task.id()));
    }

    /// The task of a served call has ended.
    pub(super) fn end_served(&self, caller: u32, slot: u32) {
        if let Served::Running(generation, ..) = self.served_slot(caller, slot) {
            self.set_served(caller, slot, Served::Ended(generation));
            self.serving.set(self.serving.get() - 1);
            self.note_call_ended();
        }
    }

    /// Only the pool's stop waits for calls to end.
    fn note_call_ended(&self) {
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
    pub(super) fn answer(&self, mut packet: Box<dyn Packet>) {
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
    pub(super) fn locals_of(&self, hop: u8) -> Locals {
        self.hop_locals[usize::from(hop)].clone()
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

/// Starts the requests that have arrived.
struct StartRequests(Weak<ShardState>);

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
struct Cancel {
    caller: u32,
    slot: u32,
    generation: u32,
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
