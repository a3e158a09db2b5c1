//! The part of a pool that all its shards share: their inboxes and gauges, the plan, and how far each has come.

use std::ops::Deref;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::error::Cause;
use super::listen::{Died, ListenerPlan};
use super::service::Service;
use super::state::ShardState;
use super::udp::UdpPlan;
use super::{Error, OnFailure};
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::wake_all;
use crate::event_loop::handle::LoopHandle;
use crate::event_loop::inbox::Inbox;
use crate::peer::{PeerEvent, PeerMessage};
use crate::sys::lock;

/// What the shards of a pool share.
pub(super) struct Shared {
    /// Tells pools apart, for handles that are `Copy`.
    pub(super) id: u32,
    pub(super) peers: Box<[Peer]>,
    /// Units per target and hop class: see `state.rs`.
    pub(super) calls_per_peer: usize,
    /// Whether every shard can have a processor, so that one that busy-polls takes no time from the one that is to answer.
    pub(super) may_spin: bool,
    /// All shards run on one thread and one clock.
    pub(super) is_simulated: bool,
    pub(super) grace: Duration,
    pub(super) on_failure: OnFailure,
    /// Set when the pool runs.
    pub(super) plan: OnceLock<Plan>,
    pub(super) progress: Progress,
    #[cfg(feature = "sim")]
    pub(super) defect: OnceLock<super::Defect>,
    stage: AtomicU8,
    failures: Mutex<Vec<(usize, Cause)>>,
    /// A shard could not start, so no main future runs. Unlike `failures`, it does not change while the pool runs.
    start_failed: AtomicBool,
    /// Tasks outside of the pool that wait for its stop.
    stop_wakers: Mutex<Slab<Waker>>,
}

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

const RUNNING: u8 = 0;
const STOPPING: u8 = 1;
const FORCED: u8 = 2;

/// What was registered before the pool runs.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) services: Vec<Service>,
    pub(super) listeners: Vec<Arc<ListenerPlan>>,
    pub(super) sockets: Vec<Arc<UdpPlan>>,
}

/// One shard, as the others see it.
pub(super) struct Peer {
    pub(super) name: String,
    handle: OnceLock<LoopHandle>,
    /// Nothing new is sent to it once this is false.
    is_alive: AtomicBool,
    /// It has sent its last message, and the others know that it has ended.
    is_gone: AtomicBool,
    pub(super) gauges: OwnLines<Gauges>,
}

/// On cache lines of its own: 128 bytes, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct OwnLines<T>(T);

impl<T> Deref for OwnLines<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Written by their shard alone, read by others when they accept a connection or look for an idle shard.
#[derive(Default)]
pub(super) struct Gauges {
    pub(super) turns: AtomicU64,
    pub(super) tasks: AtomicU32,
    pub(super) connections: AtomicU32,
}

impl Peer {
    pub(super) fn new(name: String) -> Peer {
        Peer {
            name,
            handle: OnceLock::new(),
            is_alive: AtomicBool::new(true),
            is_gone: AtomicBool::new(false),
            gauges: OwnLines::default(),
        }
    }

    /// The handle of its loop, once it has started.
    pub(super) fn handle(&self) -> Option<&LoopHandle> {
        self.handle.get()
    }

    pub(super) fn inbox(&self) -> &Arc<Inbox<RemoteEvent>> {
        &self.handle().expect("every loop of a running pool is registered").inbox
    }

    pub(super) fn register(&self, handle: LoopHandle) {
        // A shard has one loop.
        let _ = self.handle.set(handle);
    }

    pub(super) fn is_alive(&self) -> bool {
        self.is_alive.load(SeqCst)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(SeqCst)
    }
}

/// A reference to the pool with a reference count of its own. Handles clone it, and those of one shard share no cache line
/// with those of another.
pub(super) struct View {
    pub(super) shared: Arc<Shared>,
}

impl View {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<View> {
        Arc::new(View { shared: shared.clone() })
    }
}

impl Shared {
    pub(super) fn new(
        names: Vec<String>,
        calls_per_peer: usize,
        is_simulated: bool,
        grace: Duration,
        on_failure: OnFailure,
    ) -> Arc<Shared> {
        let count = names.len();
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Relaxed),
            peers: names.into_iter().map(Peer::new).collect(),
            calls_per_peer,
            may_spin: count <= available && !is_simulated,
            is_simulated,
            grace,
            on_failure,
            plan: OnceLock::new(),
            progress: Progress::new(count),
            #[cfg(feature = "sim")]
            defect: OnceLock::new(),
            stage: AtomicU8::new(RUNNING),
            failures: Mutex::default(),
            start_failed: AtomicBool::new(false),
            stop_wakers: Mutex::default(),
        })
    }

    pub(super) fn plan(&self) -> &Plan {
        self.plan.get().expect("the pool runs")
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stage.load(SeqCst) >= STOPPING
    }

    pub(super) fn is_forced(&self) -> bool {
        self.stage.load(SeqCst) >= FORCED
    }

    /// Begins the stop, or with `force` ends the grace period.
    pub(super) fn stop(&self, force: bool) {
        let stage = if force { FORCED } else { STOPPING };
        if self.stage.fetch_max(stage, SeqCst) >= stage {
            return;
        }
        for peer in &self.peers {
            if let Some(handle) = peer.handle() {
                send(handle, Box::new(Stop { force }));
            }
        }
        let wakers = std::mem::take(&mut *lock(&self.stop_wakers));
        wake_all(wakers.into_iter().map(|(_, waker)| waker));
    }

    /// All shards have ended, or none will run: closes the sockets, also if handles to the shards live on.
    pub(super) fn ended(&self) {
        self.stop(false);
        let Some(plan) = self.plan.get() else { return };
        for socket in plan.listeners.iter().flat_map(|listener| &listener.sockets) {
            drop(lock(socket).take());
        }
        for socket in plan.sockets.iter().flat_map(|sockets| &sockets.sockets) {
            drop(lock(socket).take());
        }
    }

    /// Records why a shard failed.
    pub(super) fn fail(&self, shard: usize, cause: Cause) {
        lock(&self.failures).push((shard, cause));
    }

    /// As [`fail`](Shared::fail), before the main futures run: none of them starts.
    pub(super) fn fail_start(&self, shard: usize, cause: Cause) {
        self.fail(shard, cause);
        self.start_failed.store(true, SeqCst);
    }

    pub(super) fn has_start_failed(&self) -> bool {
        self.start_failed.load(SeqCst)
    }

    /// The first failure, and the others.
    pub(super) fn take_error(&self) -> Option<Error> {
        let mut failures = std::mem::take(&mut *lock(&self.failures)).into_iter();
        let (shard, cause) = failures.next()?;
        let others = failures.collect();
        Some(Error { shard, cause, others })
    }

    /// A shard takes no more calls and connections.
    pub(super) fn mark_dead(&self, index: usize) {
        self.peers[index].is_alive.store(false, SeqCst);
    }

    /// A shard has sent its last message: the others go on without it.
    pub(super) fn shard_died(&self, index: usize) {
        self.mark_dead(index);
        if self.peers[index].is_gone.swap(true, SeqCst) {
            return;
        }
        self.progress.leave(index);
        if self.on_failure == OnFailure::StopAll {
            self.stop(false);
        }
        for (other, peer) in self.peers.iter().enumerate() {
            if let Some(handle) = peer.handle().filter(|_| other != index) {
                send(handle, Box::new(Died { shard: index }));
            }
        }
    }

    /// The shard that accepts from the sockets of this one: itself, or the next one that has not ended.
    pub(super) fn heir_of(&self, index: usize) -> Option<usize> {
        let count = self.peers.len();
        let order = (0..count).map(|step| (index + step) % count);
        order.into_iter().find(|&other| self.peers[other].is_alive())
    }

    /// The shard with the fewest tasks at the end of its last turn, starting the search at `start`.
    pub(super) fn idlest(&self, start: usize) -> usize {
        let count = self.peers.len();
        let order = (0..count).map(|step| (start + step) % count);
        let alive = order.filter(|&index| self.peers[index].is_alive());
        let idlest = alive.min_by_key(|&index| self.peers[index].gauges.tasks.load(Relaxed));
        idlest.unwrap_or(start)
    }
}

/// Sends a message at once, from any thread. Returns whether the loop is open.
pub(super) fn send(handle: &LoopHandle, message: Box<dyn PeerMessage>) -> bool {
    handle.inbox.send(RemoteEvent::Peer(PeerEvent::new(message))).is_ok()
}

/// The pool stops.
struct Stop {
    force: bool,
}

impl PeerMessage for Stop {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        if let Some(state) = ShardState::of(core) {
            state.stop(self.force);
        }
    }

    fn undelivered(self: Box<Self>) {}
}

/// How far each shard has come in the start and the stop of the pool: a barrier for each phase, which a shard that has
/// ended passes.
pub(super) struct Progress {
    state: Mutex<Reached>,
}

struct Reached {
    phases: Vec<u32>,
    waiting: Vec<Waker>,
}

impl Progress {
    fn new(count: usize) -> Progress {
        Progress {
            state: Mutex::new(Reached {
                phases: vec![0; count],
                waiting: Vec::new(),
            }),
        }
    }

    pub(super) fn reach(&self, shard: usize, phase: u32) {
        let mut state = lock(&self.state);
        state.phases[shard] = state.phases[shard].max(phase);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        wake_all(waiting);
    }

    /// The shard has ended: nothing waits for it.
    pub(super) fn leave(&self, shard: usize) {
        self.reach(shard, u32::MAX);
    }

    /// Waits until every shard has reached the phase.
    pub(super) fn all(&self, phase: u32) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(move |cx| {
            let waker = cx.waker().clone();
            let mut state = lock(&self.state);
            if state.phases.iter().all(|&reached| reached >= phase) {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|other| other.will_wake(&waker)) {
                state.waiting.push(waker);
            }
            Poll::Pending
        })
    }
}

/// Waits for the stop of a pool outside of it.
pub(super) struct StopWaiter {
    view: Arc<View>,
    key: Option<usize>,
}

impl StopWaiter {
    pub(super) fn new(view: &Arc<View>) -> StopWaiter {
        let view = view.clone();
        StopWaiter { view, key: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.view.shared;
        let waker = cx.waker().clone();
        let mut wakers = lock(&shared.stop_wakers);
        // Under the lock: a stop takes the wakers after it has changed the stage.
        if shared.is_stopping() {
            return Poll::Ready(());
        }
        let old = match self.key.and_then(|key| wakers.get_mut(key)) {
            Some(place) => Some(std::mem::replace(place, waker)),
            None => {
                self.key = Some(wakers.insert(waker));
                None
            }
        };
        drop(wakers);
        drop(old);
        Poll::Pending
    }
}

impl Drop for StopWaiter {
    fn drop(&mut self) {
        let mut wakers = lock(&self.view.shared.stop_wakers);
        // The wakers of a pool that stops are taken, and no others come.
        let waker = self.key.and_then(|key| wakers.try_remove(key));
        drop(wakers);
        drop(waker);
    }
}
