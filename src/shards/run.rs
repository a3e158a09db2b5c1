//! The life of one shard: its services start, its main future runs, then all ends in the pool's order.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use super::defect::Defect;
use super::error::Cause;
use super::listen::{Leaves, LocalListener};
use super::packet::{catch, message};
use super::shard::Shard;
use super::state::ShardState;
use super::{OnFailure, Shared};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{BoxError, guard};
use crate::signal::ShutdownSignal;
use crate::task::{Either, select, spawn};
use crate::time::{sleep, sleep_until};

/// After a forced stop, a shard does not wait longer than this for others that do not arrive at a barrier.
const BARRIER_LIMIT: Duration = Duration::from_secs(1);

/// Runs a shard on the current loop, on which it is [installed](ShardState::install). Returns the output of its main future.
pub(super) async fn run_shard<T, E, F>(state: Rc<ShardState>, main: impl FnOnce(Shard) -> F) -> Option<T>
where
    T: 'static,
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>> + 'static,
{
    let shared = state.shared().clone();
    // A stop from before this shard was installed.
    if shared.is_stopping() {
        state.stop(shared.is_forced());
    }
    let run = Run { state, shared };
    let mut phase = 0;
    run.start(&mut phase).await;
    let output = match run.shared.has_start_failed() {
        true => None,
        false => run.main(main).await,
    };
    if output.is_none() && !run.shared.is_stopping() && run.shared.on_failure == OnFailure::KeepOthers {
        run.leave().await;
        return None;
    }
    run.stop(phase).await;
    output
}

struct Run {
    state: Rc<ShardState>,
    shared: std::sync::Arc<Shared>,
}

impl Run {
    fn fail(&self, cause: Cause) {
        self.shared.fail(self.state.index, cause);
    }

    fn fail_start(&self, cause: Cause) {
        self.shared.fail_start(self.state.index, cause);
    }

    /// Opens the listeners and starts the services. A failure stops the pool.
    async fn start(&self, phase: &mut u32) {
        let plan = self.shared.plan();
        for (index, listener) in plan.listeners.iter().enumerate() {
            match LocalListener::open(listener, index, &self.state) {
                Ok(local) => self.state.listeners.borrow_mut().push(local),
                Err(error) => self.shared.fail_start(self.state.index, Cause::Start(error)),
            }
        }
        // Their `Died` may have arrived when there were no listeners. One that ends from here on sends it later.
        let listeners = self.state.listeners.borrow().clone();
        for gone in (0..self.shared.peers.len()).filter(|&other| self.shared.peers[other].is_gone()) {
            for local in &listeners {
                local.note_died(&self.state, gone);
            }
        }
        self.meet(phase).await;
        for service in &plan.services {
            let value = match self.shared.has_start_failed() {
                true => None,
                false => self.make(&service.make).await,
            };
            self.state.services.borrow_mut().push(value);
            self.meet(phase).await;
        }
        if self.shared.has_start_failed() {
            self.shared.stop(false);
        }
    }

    async fn make<F, R>(&self, make: impl Fn(Shard) -> F) -> Option<R>
    where
        F: Future<Output = Result<R, BoxError>>,
    {
        let shard = self.state.shard(self.state.index);
        let made = self.until_forced(catch(async { make(shard).await })).await;
        match made {
            Some(Ok(Ok(value))) => return Some(value),
            Some(Ok(Err(error))) => self.fail_start(Cause::Failed(error)),
            Some(Err(message)) => self.fail_start(Cause::Panicked(message)),
            None => self.fail_start(Cause::Cancelled(self.shared.grace)),
        }
        None
    }

    /// Runs the main future to its end, or cancels it when the grace period is over.
    async fn main<T, E, F>(&self, main: impl FnOnce(Shard) -> F) -> Option<T>
    where
        T: 'static,
        E: Into<BoxError>,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let listeners = self.state.listeners.borrow().clone();
        for listener in listeners {
            listener.start(self.state.clone());
        }
        let shard = self.state.shard(self.state.index);
        let future = match catch_unwind(AssertUnwindSafe(|| main(shard))) {
            Ok(future) => future,
            Err(payload) => {
                self.failed(Cause::Panicked(message(payload)));
                return None;
            }
        };
        let mut task = crate::task::Builder::new().name("shard main").spawn(async move {
            // Not a `Result`, whose error would be reported if it is not read.
            match catch(future).await {
                Ok(Ok(output)) => Ended::Ok(output),
                Ok(Err(error)) => Ended::Failed(error.into()),
                Err(message) => Ended::Panicked(message),
            }
        });
        let ended = match select(&mut task, self.forced()).await {
            Either::Left(ended) => ended,
            Either::Right(()) => {
                task.cancel();
                task.await
            }
        };
        match ended {
            Ok(Ended::Ok(output)) => return Some(output),
            Ok(Ended::Failed(error)) => self.failed(Cause::Failed(error)),
            Ok(Ended::Panicked(message)) => self.failed(Cause::Panicked(message)),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => self.failed(Cause::Panicked(message(payload))),
                Err(_) => self.failed(Cause::Cancelled(self.shared.grace)),
            },
        }
        None
    }

    /// The main future has failed.
    fn failed(&self, cause: Cause) {
        self.fail(cause);
        if self.shared.on_failure == OnFailure::StopAll {
            self.shared.stop(false);
        }
    }

    /// The shard leaves a pool that continues.
    async fn leave(&self) {
        // First, as services may take long to stop: from here on no shard passes a connection to this one, or finds it idle.
        self.shared.mark_dead(self.state.index);
        let listeners = self.state.listeners.borrow().clone();
        for listener in &listeners {
            listener.end_accepts().await;
        }
        for listener in &listeners {
            listener.leave(&self.state);
        }
        // After the connections.
        self.state.post_to_others(|| Box::new(Leaves));
        // Calls are still served, as at a stop.
        for index in (0..self.shared.plan().services.len()).rev() {
            self.stop_service(index).await;
        }
        self.state.refuses_calls.set(true);
        self.drop_services();
    }

    fn drop_services(&self) {
        while let Some(value) = { self.state.services.borrow_mut().pop() } {
            guard("the destructor of a service", || drop(value));
        }
    }

    /// The ordered stop, once the main future has ended.
    async fn stop(&self, mut phase: u32) {
        match self.shared.has(Defect::NoBarrier) {
            true => phase += 1,
            false => self.meet(&mut phase).await,
        }
        // Also if all main futures have ended by themselves: the grace period limits the rest.
        self.shared.stop(false);
        for index in (0..self.shared.plan().services.len()).rev() {
            self.stop_service(index).await;
            self.meet(&mut phase).await;
            let value = self.state.services.borrow_mut()[index].take();
            guard("the destructor of a service", || drop(value));
        }
        self.state.refuses_calls.set(true);
        self.until_forced(async {
            while self.state.calls_in_flight() > 0 {
                self.state.call_ended.notified().await;
            }
        })
        .await;
        self.meet(&mut phase).await;
        self.state.has_ended.set(true);
        self.shared.progress.leave(self.state.index);
    }

    async fn stop_service(&self, index: usize) {
        let value = self.state.services.borrow()[index].clone();
        if let (Some(value), Some(stop)) = (value, &self.shared.plan().services[index].stop)
            && let Some(Err(message)) = self.until_forced(catch(async { stop(value).await })).await
        {
            self.fail(Cause::Panicked(message));
        }
    }

    /// Waits until every shard has come this far.
    async fn meet(&self, phase: &mut u32) {
        *phase += 1;
        let _hold = self.state.hold_clock();
        self.shared.progress.reach(self.state.index, *phase);
        let all = self.shared.progress.all(*phase);
        let overdue = async {
            self.forced().await;
            sleep(BARRIER_LIMIT).await;
        };
        select(all, overdue).await;
    }

    /// Completes when the grace period is over, or was ended by a second signal.
    async fn forced(&self) {
        let state = &self.state;
        state.stopping.wait().await;
        let force_at = state.force_at.get();
        let grace = async {
            match force_at {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        if let Either::Right(()) = select(state.forced.wait(), grace).await {
            self.shared.stop(true);
            state.forced.set();
        }
    }

    async fn until_forced<R>(&self, future: impl Future<Output = R>) -> Option<R> {
        match select(future, self.forced()).await {
            Either::Left(output) => Some(output),
            Either::Right(()) => None,
        }
    }
}

enum Ended<T> {
    Ok(T),
    Failed(BoxError),
    Panicked(String),
}

impl ShardState {
    /// The pool stops: see [`Pool::run`](super::Pool::run).
    pub(super) fn stop(&self, force: bool) {
        if self.force_at.get().is_none()
            && let Some(core) = LoopCore::try_current()
        {
            self.force_at.set(Some(core.now() + self.shared().grace));
        }
        self.stopping.set();
        if force {
            self.forced.set();
        }
    }
}

/// Listens to requests to terminate: the first one stops the pool, the second one ends the grace period. If it cannot, the
/// pool does not start: the failure would otherwise show only when the pool must stop.
pub(super) fn stop_on_signals(state: &ShardState) {
    match crate::signal::shutdown() {
        Ok(signals) => spawn(stop_at(signals, state.shard(state.index))).detach(),
        Err(error) => state.shared().fail_start(state.index, Cause::Start(error)),
    }
}

async fn stop_at(mut signals: ShutdownSignal, shard: Shard) {
    if signals.recv().await.is_some() {
        shard.stop();
    }
    if signals.recv().await.is_some() {
        shard.stop_now();
    }
}
