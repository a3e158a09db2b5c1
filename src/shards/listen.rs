//! Listeners of a pool: how connections reach the shards.
//!
//! The sockets belong to the pool, not to a shard. A shard that ends must not reset the connections in its backlog, as
//! closing one of several sockets with `SO_REUSEPORT` would: another shard accepts them. At a stop, each backlog is emptied
//! before its socket is closed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::defect::Defect;
use super::shared::{OwnLines, Shared};
use super::socket::{FreeListener, FreeSocket, FreeStream};
use super::state::{ShardState, add};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::net::{TcpBuilder, TcpListener, TcpStream};
use crate::peer::PeerMessage;
use crate::sync::Notify;
use crate::sys::{self, lock};
use crate::time::{sleep, timeout};

/// How the shards of a pool share the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accept {
    /// One socket per shard with `SO_REUSEPORT`: the kernel chooses by a hash of the addresses. Fair for many connections;
    /// with few, some shards get several times as many as others. The default on Linux and FreeBSD.
    ReusePort,
    /// Shard 0 accepts and passes the connections on, in turn. The default elsewhere, where the kernel does not distribute
    /// connections.
    HandOver,
    /// As `ReusePort`, but a shard that has clearly more connections than another one passes a new connection on: for few,
    /// long-lived connections, such as HTTP/2.
    Balanced,
}

impl Default for Accept {
    fn default() -> Accept {
        match sys::BALANCES_REUSED_PORTS {
            true => Accept::ReusePort,
            false => Accept::HandOver,
        }
    }
}

/// Connections that are passed to a shard before the shard accepts them; further ones go to other shards, or stay.
const MAX_HANDED: u32 = 64;

/// How long `HandOver` waits when every shard has that many.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(1);

/// In a simulation, a backlog without a connection for this long is taken to be empty.
const EMPTY_AFTER: Duration = Duration::from_millis(1);

/// A connection and the address of its peer.
type Accepted = (TcpStream, SocketAddr);

/// What a shard's accept waits for.
enum Event {
    Accepted(io::Result<Accepted>),
    /// A connection was passed to this shard, or a socket was added.
    Changed,
    Stopping,
}

/// A listener as the pool has planned and bound it.
pub(super) struct ListenerPlan {
    pub(super) builder: TcpBuilder,
    pub(super) mode: Accept,
    /// The pool's sockets, by shard, until they are closed at the stop.
    pub(super) sockets: Vec<Mutex<Option<FreeListener>>>,
    /// Connections that were passed to a shard and not accepted there. Shards that pass one on write it, too.
    pub(super) handed: Vec<OwnLines<AtomicU32>>,
}

impl ListenerPlan {
    fn handed_to(&self, shard: usize) -> u32 {
        self.handed[shard].load(Relaxed)
    }
}

/// A listener of a pool, which every shard accepts from: [`Pool::listen`](super::Pool::listen) makes it. A plain handle:
/// `Copy`, `Send` and `Sync`.
#[derive(Clone, Copy)]
pub struct Listener {
    pub(super) pool: u32,
    pub(super) index: u32,
    pub(super) addr: SocketAddr,
}

impl Listener {
    /// The next connection of this shard, or `None` when the pool is stopping and the backlog is empty.
    ///
    /// # Errors
    ///
    /// As [`TcpListener::accept`].
    ///
    /// # Cancel safety
    ///
    /// A dropped `accept` loses no connection.
    ///
    /// # Panics
    ///
    /// Outside of a shard of its pool.
    pub async fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let state = ShardState::current_in(self.pool)
            .expect("windlass: `shards::Listener::accept` was called outside of a shard of its pool");
        let local = state.listeners.borrow()[self.index as usize].clone();
        local.accept(&state).await
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("addr", &self.addr).finish()
    }
}

/// A shard's part of a listener.
pub(super) struct LocalListener {
    plan: Arc<ListenerPlan>,
    index: u32,
    /// The shard's own socket, and those of shards that have ended, with their number.
    sockets: RefCell<Vec<(usize, Rc<TcpListener>)>>,
    /// Connections from other shards, and the last ones at a stop.
    queue: RefCell<VecDeque<Accepted>>,
    /// Notified when anything that an accept waits for has changed.
    changed: Notify,
    /// The pool stops: the sockets are closed, and what was in their backlogs is in the queue.
    is_drained: Cell<bool>,
    /// The shards that may still pass a connection to this one. In the mode `HandOver` one entry stands for the shard that
    /// accepts, whichever it is.
    senders: RefCell<Vec<usize>>,
    /// In the mode `HandOver`: this shard accepts for all.
    is_distributing: Cell<bool>,
    /// Its [task](LocalListener::run) exists.
    has_task: Cell<bool>,
    /// Where the search for a less loaded shard begins.
    next: Cell<usize>,
    /// The socket that is polled first: by turns, so that none is starved.
    first: Cell<usize>,
}

impl LocalListener {
    /// The listener of this shard.
    pub(super) fn open(plan: &Arc<ListenerPlan>, index: usize, state: &ShardState) -> io::Result<Rc<LocalListener>> {
        let local = Rc::new(LocalListener {
            plan: plan.clone(),
            index: index as u32,
            sockets: RefCell::default(),
            queue: RefCell::default(),
            changed: Notify::new(),
            is_drained: Cell::new(false),
            senders: RefCell::default(),
            is_distributing: Cell::new(false),
            has_task: Cell::new(false),
            next: Cell::new(state.index),
            first: Cell::new(0),
        });
        *local.senders.borrow_mut() = match plan.mode {
            Accept::ReusePort => Vec::new(),
            Accept::HandOver => vec![0],
            Accept::Balanced => (0..state.shared().peers.len())
                .filter(|&other| other != state.index)
                .collect(),
        };
        local.is_distributing.set(local.is_handed() && state.index == 0);
        local.add_socket(state.index)?;
        Ok(local)
    }

    /// Accepts from the socket of a shard, if it has one.
    fn add_socket(&self, shard: usize) -> io::Result<()> {
        let Some(socket) = self.plan.sockets.get(shard) else {
            return Ok(());
        };
        let Some(listener) = lock(socket).as_ref().map(FreeListener::share) else {
            return Ok(());
        };
        let listener = listener?;
        self.plan.builder.configure(&listener);
        self.sockets.borrow_mut().push((shard, Rc::new(listener)));
        self.changed.notify_waiters();
        Ok(())
    }

    /// Whether another task of the shard takes the connections from the sockets.
    fn is_handed(&self) -> bool {
        self.plan.mode == Accept::HandOver
    }

    /// Whether no connection will be added to the queue any more.
    fn has_all(&self) -> bool {
        self.is_drained.get() && self.senders.borrow().is_empty()
    }

    async fn accept(&self, state: &Rc<ShardState>) -> io::Result<Option<Accepted>> {
        loop {
            let changed = self.changed.notified();
            let next = self.queue.borrow_mut().pop_front();
            if let Some(accepted) = next {
                self.took_handed(state.index);
                state.count_connection(&accepted.0);
                add(&state.counters.accepted, 1);
                return Ok(Some(accepted));
            }
            if self.has_all() {
                return Ok(None);
            }
            // Another task of the shard takes the connections from the sockets.
            if self.is_handed() || state.stopping.is_set() {
                changed.await;
                continue;
            }
            if let Event::Accepted(accepted) = self.next_event(state).await
                && let Some((stream, peer)) = self.keep_or_pass_on(state, accepted?)
            {
                state.count_connection(&stream);
                add(&state.counters.accepted, 1);
                return Ok(Some((stream, peer)));
            }
        }
    }

    /// Waits for a connection on one of this shard's sockets, for a change, or for the stop.
    async fn next_event(&self, state: &ShardState) -> Event {
        let mut stopping = pin!(state.stopping.wait());
        let mut changed = pin!(self.changed.notified());
        let sockets = self.sockets.borrow().clone();
        let mut accepts: Vec<_> = sockets
            .iter()
            .map(|(_, listener)| Box::pin(listener.accept()))
            .collect();
        let first = self.first.replace(self.first.get().wrapping_add(1));
        // The stop first: an accept that is not polled starts no operation.
        poll_fn(|cx| {
            if stopping.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Stopping);
            }
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Changed);
            }
            let count = accepts.len();
            for step in 0..count {
                if let Poll::Ready(result) = accepts[first.wrapping_add(step) % count].as_mut().poll(cx) {
                    return Poll::Ready(Event::Accepted(result));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Passes a new connection to a shard that has clearly fewer, in the mode `Balanced`.
    fn keep_or_pass_on(&self, state: &Rc<ShardState>, accepted: Accepted) -> Option<Accepted> {
        if self.plan.mode != Accept::Balanced {
            return Some(accepted);
        }
        match self.less_loaded(state) {
            Some(target) => self.pass_to(state, target, accepted),
            None => Some(accepted),
        }
    }

    /// The lesser loaded of two other shards, if this one has more than 1.25 x + 4 as many connections. Two and not all:
    /// counts are stale, and every shard would choose the same least loaded one. One that does not accept what it was given
    /// gets no more.
    fn less_loaded(&self, state: &ShardState) -> Option<usize> {
        let peers = &state.shared().peers;
        let load = |index: usize| load_of(state.shared(), index);
        let mut candidates = [None; 2];
        for candidate in &mut candidates {
            self.next.set((self.next.get() + 1) % peers.len());
            let next = self.next.get();
            let is_open = peers[next].is_alive() && self.plan.handed_to(next) < MAX_HANDED;
            *candidate = Some(next).filter(|&next| next != state.index && is_open);
        }
        let target = candidates.into_iter().flatten().min_by_key(|&index| load(index))?;
        let (own, other) = (load(state.index), load(target));
        (own * 4 > other * 5 + 16).then_some(target)
    }

    /// Sends a connection to another shard, or returns it if it cannot leave its loop.
    fn pass_to(&self, state: &ShardState, target: usize, (stream, peer): Accepted) -> Option<Accepted> {
        match FreeStream::release(stream) {
            Ok(stream) => {
                self.plan.handed[target].fetch_add(1, Relaxed);
                add(&state.counters.handed_over, 1);
                let handed = Handed {
                    listener: self.index,
                    target: target as u32,
                    stream,
                    peer,
                };
                state.post(target, Box::new(handed));
                None
            }
            Err(stream) => Some((stream, peer)),
        }
    }

    /// A connection from another shard, to this one.
    fn receive(&self, shard: usize, stream: FreeStream, peer: SocketAddr) {
        match stream.adopt() {
            // It is counted when it is accepted. Until then `handed` contains it.
            Ok(stream) => {
                self.queue.borrow_mut().push_back((stream, peer));
                self.changed.notify_waiters();
            }
            Err(error) => {
                self.took_handed(shard);
                report(Exception::error("a connection from another shard", error));
            }
        }
    }

    fn took_handed(&self, shard: usize) {
        let handed = &self.plan.handed[shard];
        // Connections of the stop were not counted.
        let _ = handed.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }

    /// Takes all connections from the backlogs, and closes the sockets.
    async fn drain(&self, state: &ShardState) -> Vec<Accepted> {
        let mut all = Vec::new();
        // One by one: a socket may be added meanwhile.
        while let Some((shard, listener)) = { self.sockets.borrow_mut().pop() } {
            all.extend(listener.drain().await);
            if state.shared().is_simulated && !state.shared().has(Defect::NoDrain) {
                while let Ok(Ok(next)) = timeout(EMPTY_AFTER, listener.accept()).await {
                    all.push(next);
                }
            }
            let socket = lock(&self.plan.sockets[shard]).take();
            if let Some(FreeSocket::Kernel(socket)) = &socket {
                all.extend(drain_backlog(socket));
            }
            if let Some(socket) = socket {
                socket.close();
            }
        }
        all
    }

    /// Starts the listener's own task on this shard, once the main futures run.
    pub(super) fn start(self: Rc<Self>, state: Rc<ShardState>) {
        self.has_task.set(true);
        crate::task::spawn(self.run(state)).detach();
    }

    /// The shard's part of the listener while the pool runs, and at the stop: a task of its own, so that no connection
    /// depends on whether the program accepts on every shard, or drops an `accept`.
    async fn run(self: Rc<Self>, state: Rc<ShardState>) {
        match self.is_distributing.get() {
            true => self.hand_over(&state).await,
            false => state.stopping.wait().await,
        }
        let last = self.drain(&state).await;
        match self.is_distributing.get() {
            true => {
                for accepted in last {
                    self.distribute(&state, accepted).await;
                }
            }
            false => {
                last.iter().for_each(|(stream, _)| state.count_connection(stream));
                self.queue.borrow_mut().extend(last);
            }
        }
        self.is_drained.set(true);
        if self.is_distributing.get() {
            self.senders.take();
        }
        if self.is_distributing.get() || self.plan.mode == Accept::Balanced {
            let (listener, from) = (self.index, state.index);
            state.post_to_others(|| Box::new(HasAll { listener, from }));
        }
        self.changed.notify_waiters();
    }

    /// Another shard has passed on its last connection.
    fn end_sender(&self, from: usize) {
        match self.plan.mode {
            Accept::HandOver => drop(self.senders.take()),
            _ => self.senders.borrow_mut().retain(|&sender| sender != from),
        }
        self.changed.notify_waiters();
    }

    /// In the mode `HandOver`: accepts and passes the connections on, until the pool stops.
    async fn hand_over(&self, state: &Rc<ShardState>) {
        loop {
            match self.next_event(state).await {
                Event::Accepted(Ok(accepted)) => self.distribute(state, accepted).await,
                Event::Accepted(Err(error)) => {
                    report(Exception::error("accept", error));
                    sleep(Duration::from_millis(50)).await;
                }
                Event::Changed => {}
                Event::Stopping => return,
            }
        }
    }

    async fn distribute(&self, state: &Rc<ShardState>, mut accepted: Accepted) {
        let peers = &state.shared().peers;
        loop {
            for _ in 0..peers.len() {
                self.next.set((self.next.get() + 1) % peers.len());
                let target = self.next.get();
                let is_open = peers[target].is_alive() && self.plan.handed_to(target) < MAX_HANDED;
                if !is_open {
                    continue;
                }
                if target == state.index {
                    self.plan.handed[target].fetch_add(1, Relaxed);
                    self.queue.borrow_mut().push_back(accepted);
                    return self.changed.notify_waiters();
                }
                match self.pass_to(state, target, accepted) {
                    None => return,
                    Some(back) => accepted = back,
                }
            }
            sleep(HAND_OVER_PAUSE).await;
        }
    }

    /// Ends the accepts in flight, because this shard ends. The connections that they have accepted join the queue; those in
    /// the backlog are for the shard that adopts the socket.
    pub(super) async fn end_accepts(&self) {
        // Its successor says when it has passed on its last connection.
        self.is_distributing.set(false);
        let sockets = self.sockets.take();
        self.changed.notify_waiters();
        for (_, listener) in sockets {
            let accepted = listener.drain().await;
            self.queue.borrow_mut().extend(accepted);
        }
    }

    /// Passes the connections that no task has taken on to another shard, because this one ends.
    pub(super) fn leave(&self, state: &ShardState) {
        let Some(target) = state.shared().heir_of(state.index) else {
            return;
        };
        let mut waiting = self.queue.take();
        for (_, listener) in self.sockets.borrow().iter() {
            waiting.extend(listener.take_accepted());
        }
        for accepted in waiting {
            drop(self.pass_to(state, target, accepted));
        }
    }

    /// A shard has ended. Called once or more for each.
    pub(super) fn note_died(self: &Rc<Self>, state: &ShardState, shard: usize) {
        // In the mode `HandOver`, its successor still passes connections on.
        if self.plan.mode == Accept::Balanced {
            self.end_sender(shard);
        }
        self.adopt(state);
    }

    /// Accepts from the sockets of shards that have ended, if this shard is the one to do so.
    fn adopt(self: &Rc<Self>, state: &ShardState) {
        let shared = state.shared();
        if shared.has(Defect::NoAdoption) {
            return;
        }
        let mut has_changed = false;
        for shard in (0..self.plan.sockets.len()).filter(|&shard| shard != state.index) {
            let is_known = self.sockets.borrow().iter().any(|&(known, _)| known == shard);
            if is_known || shared.heir_of(shard) != Some(state.index) {
                continue;
            }
            match self.add_socket(shard) {
                Ok(()) => has_changed = true,
                Err(error) => report(Exception::error("adopting a listener", error)),
            }
        }
        // Its own task waits for the stop, or has ended with it. Or it starts later, with the main future.
        let must_run = match self.is_handed() {
            true => has_changed && !self.is_distributing.replace(true),
            false => has_changed && self.is_drained.get(),
        };
        if must_run && self.has_task.get() {
            self.clone().start(state.rc());
        }
    }
}

/// The connections of a shard: those that it has, and those that were passed to it and wait to be accepted.
fn load_of(shared: &Shared, shard: usize) -> u64 {
    let own = shared.peers[shard].gauges.connections.load(Relaxed);
    let plans = &shared.plan().listeners;
    let handed = plans.iter().map(|plan| u64::from(plan.handed_to(shard)));
    u64::from(own) + handed.sum::<u64>()
}

/// All connections that wait in the backlog of a kernel socket.
fn drain_backlog(socket: &std::net::TcpListener) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    if socket.set_nonblocking(true).is_err() {
        return accepted;
    }
    loop {
        match socket.accept() {
            Ok((stream, peer)) => accepted.extend(TcpStream::from_std(stream).ok().map(|stream| (stream, peer))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(_) => return accepted,
        }
    }
}

/// A connection on its way to another shard.
struct Handed {
    listener: u32,
    target: u32,
    stream: FreeStream,
    peer: SocketAddr,
}

impl PeerMessage for Handed {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        if let Some(state) = ShardState::of(core) {
            // It was sent before the sender knew.
            if !state.shared().peers[state.index].is_alive() {
                return self.undelivered();
            }
            let local = state.listeners.borrow().get(self.listener as usize).cloned();
            if let Some(local) = local {
                local.receive(state.index, self.stream, self.peer);
            }
        }
    }

    fn undelivered(mut self: Box<Self>) {
        let Some(state) = ShardState::current() else { return };
        let Some(local) = state.listeners.borrow().get(self.listener as usize).cloned() else {
            return;
        };
        local.took_handed(self.target as usize);
        // Back at the sender, or on the shard that ends: another one takes it.
        let target = match state.is_closing() {
            // At a stop no shard takes connections any more.
            true if state.shared().is_stopping() => None,
            true => state.shared().heir_of(state.index),
            false => state.shared().heir_of(state.index).or(Some(state.index)),
        };
        let Some(target) = target else {
            return self.stream.close();
        };
        local.plan.handed[target].fetch_add(1, Relaxed);
        if target == state.index {
            return local.receive(target, self.stream, self.peer);
        }
        self.target = target as u32;
        state.post(target, self);
    }
}

/// The shard has passed on its last connection, because the pool stops.
struct HasAll {
    listener: u32,
    from: usize,
}

impl PeerMessage for HasAll {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        if let Some(state) = ShardState::of(core) {
            let local = state.listeners.borrow().get(self.listener as usize).cloned();
            if let Some(local) = local {
                local.end_sender(self.from);
            }
        }
    }

    fn undelivered(self: Box<Self>) {}
}

/// A shard has failed and no longer accepts. It may still serve calls.
pub(super) struct Leaves;

impl PeerMessage for Leaves {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        let Some(state) = ShardState::of(core) else { return };
        let listeners = state.listeners.borrow().clone();
        for local in listeners {
            local.adopt(state);
        }
    }

    fn undelivered(self: Box<Self>) {}
}

/// A shard has ended.
pub(super) struct Died {
    pub(super) shard: usize,
}

impl PeerMessage for Died {
    fn deliver(self: Box<Self>, core: &LoopCore) {
        let Some(state) = ShardState::of(core) else { return };
        let listeners = state.listeners.borrow().clone();
        for local in listeners {
            local.note_died(state, self.shard);
        }
    }

    fn undelivered(self: Box<Self>) {}
}
