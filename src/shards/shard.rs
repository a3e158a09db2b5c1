//! A handle to one shard of a pool.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::call::Call;
use super::error::{Busy, CallError};
use super::key_hash::shard_of;
use super::packet::{Ask, Header, Task};
use super::shared::{Shared, StopWaiter, View};
use super::state::{ShardState, current_hop};
use crate::event_loop::handle::LoopHandle;

/// A shard of a pool: an event loop that knows its number and its peers. `Send`, `Sync` and cheap to clone.
///
/// A closure that [`call`](Shard::call) or [`ask`](Shard::ask) sends to another shard must be `Send`, and so must its result;
/// what it creates there need not be.
///
/// ```
/// use windlass::shards::{self, Shard};
///
/// let names = shards::Builder::new().count(2).build()?.run(|shard: Shard| async move {
///     let other = shard.peer((shard.index() + 1) % shard.count());
///     let name = other.ask(|| std::thread::current().name().map(str::to_owned)).await?;
///     Ok::<_, shards::CallError>(name)
/// })?;
/// assert_eq!(names.len(), 2);
/// # Ok::<(), shards::Error>(())
/// ```
#[derive(Clone)]
pub struct Shard {
    index: u32,
    pub(super) view: Arc<View>,
}

impl Shard {
    pub(super) fn new(index: usize, view: Arc<View>) -> Shard {
        let index = index as u32;
        Shard { index, view }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.view.shared
    }

    /// The shard that this thread is running.
    pub fn current() -> Option<Shard> {
        let state = ShardState::current()?;
        Some(state.shard(state.index))
    }

    /// The shard's number, from 0.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// How many shards the pool has.
    pub fn count(&self) -> usize {
        self.shared().peers.len()
    }

    /// The name of the shard and of its thread.
    pub fn name(&self) -> &str {
        &self.shared().peers[self.index()].name
    }

    /// The shard with this number.
    ///
    /// # Panics
    ///
    /// If there is no such shard.
    #[track_caller]
    pub fn peer(&self, index: usize) -> Shard {
        assert!(index < self.count(), "shard {index} of a pool of {}", self.count());
        Shard::new(index, self.view.clone())
    }

    /// All shards of the pool, this one too, by number.
    pub fn all(&self) -> impl Iterator<Item = Shard> + use<> {
        let view = self.view.clone();
        (0..self.count()).map(move |index| Shard::new(index, view.clone()))
    }

    /// The shard that owns a key: the same for equal keys in every run and on every machine, as long as the number of shards
    /// is the same.
    pub fn by_key<K: Hash + ?Sized>(&self, key: &K) -> Shard {
        Shard::new(shard_of(key, self.count()), self.view.clone())
    }

    /// The shard with the fewest tasks, as of the end of its last turn: for work that any shard can do.
    pub fn idlest(&self) -> Shard {
        // Ties must not all go to shard 0.
        Shard::new(self.shared().idlest(self.index()), self.view.clone())
    }

    /// The handle of its loop; `None` before the pool runs.
    pub fn handle(&self) -> Option<&LoopHandle> {
        self.shared().peers[self.index()].handle()
    }

    /// Whether the shard has not ended. One whose main future has failed has, also while its services stop.
    pub fn is_alive(&self) -> bool {
        self.shared().peers[self.index()].is_alive()
    }

    /// Runs a future on the shard. `make` creates it there, so it need not be `Send`.
    ///
    /// The call is sent when it is first polled. The caller has a limited number of calls in flight to each shard
    /// ([`Builder::calls_per_peer`](super::Builder::calls_per_peer)); further ones wait, in order. Calls cannot deadlock each
    /// other: a call made while a call is served has a limit of its own. On the caller's own shard the future runs inside of
    /// the caller's task. Outside of the pool, calls have no limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the [`Call`] cancels the future on the shard, or, if it has not started, keeps it from starting.
    #[track_caller]
    pub fn call<M, F>(&self, make: M) -> Call<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let work = move || {
            let future = make();
            async move { Ok(future.await) }
        };
        self.call_with(work)
    }

    #[track_caller]
    pub(super) fn call_with<M, F, R>(&self, work: M) -> Call<R>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<R, CallError>> + 'static,
        R: Send + 'static,
    {
        let packet = Task {
            header: Header::new(Location::caller()),
            work: Some(work),
            result: None,
        };
        Call::new(self.clone(), Box::new(packet))
    }

    /// Runs a function on the shard: as [`call`](Shard::call), without a task there, so it is cheaper.
    #[track_caller]
    pub fn ask<R: Send + 'static>(&self, function: impl FnOnce() -> R + Send + 'static) -> Call<R> {
        self.ask_with(move || Ok(function()))
    }

    #[track_caller]
    pub(super) fn ask_with<R, M>(&self, work: M) -> Call<R>
    where
        R: Send + 'static,
        M: FnOnce() -> Result<R, CallError> + Send + 'static,
    {
        let packet = Ask {
            header: Header::new(Location::caller()),
            work: Some(work),
            result: None,
        };
        Call::new(self.clone(), Box::new(packet))
    }

    /// As [`call`](Shard::call) if that need not wait for other calls; otherwise returns the closure. For servers that shed
    /// load instead of queueing it.
    #[track_caller]
    pub fn try_call<M, F>(&self, make: M) -> Result<Call<F::Output>, Busy<M>>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let unit = match ShardState::current_of(self.shared()) {
            Some(state) if state.index != self.index() && usize::from(current_hop()) < super::MAX_HOPS => {
                let hop = current_hop();
                let units = state.units(self.index(), hop).clone();
                match units.try_acquire_owned() {
                    Ok(unit) => Some((unit, hop)),
                    Err(_) => return Err(Busy(make)),
                }
            }
            _ => None,
        };
        Ok(self.call(make).with_unit(unit))
    }

    /// Stops the pool: see [`Pool::run`](super::Pool::run). Calling it again has no effect.
    pub fn stop(&self) {
        self.shared().stop(false);
    }

    /// Stops the pool without a grace period: cancels the main futures.
    pub fn stop_now(&self) {
        self.shared().stop(true);
    }

    /// Completes when the pool is stopping. Works on any thread.
    pub fn stopping(&self) -> Stopping {
        Stopping {
            wait: match ShardState::current_of(self.shared()) {
                Some(state) => Wait::Local(Box::pin(wait_locally(state))),
                None => Wait::Foreign(StopWaiter::new(&self.view)),
            },
        }
    }

    /// Whether the pool is stopping.
    pub fn is_stopping(&self) -> bool {
        self.shared().is_stopping()
    }
}

async fn wait_locally(state: Rc<ShardState>) {
    state.stopping.wait().await;
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("index", &self.index)
            .field("count", &self.count())
            .field("name", &self.name())
            .finish()
    }
}

impl PartialEq for Shard {
    fn eq(&self, other: &Shard) -> bool {
        self.index == other.index && Arc::ptr_eq(self.shared(), other.shared())
    }
}

impl Eq for Shard {}

/// A future that completes when a pool is stopping: see [`Shard::stopping`].
#[must_use = "futures do nothing unless awaited"]
pub struct Stopping {
    wait: Wait,
}

enum Wait {
    /// On a shard: no lock is shared with other shards.
    Local(Pin<Box<dyn Future<Output = ()>>>),
    Foreign(StopWaiter),
}

impl Future for Stopping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.wait {
            Wait::Local(wait) => wait.as_mut().poll(cx),
            Wait::Foreign(waiter) => waiter.poll(cx),
        }
    }
}

impl fmt::Debug for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopping").finish_non_exhaustive()
    }
}
