//! Pools in a simulation: one simulated loop per shard, all on one thread and one virtual clock.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::error::Cause;
use super::pool::{Builder, Pool};
use super::run::{run_shard, stop_on_signals};
use super::shard::Shard;
use super::shared::Shared;
use super::state::ShardState;
use crate::EventLoop;
use crate::event_loop::exception::BoxError;
use crate::on_drop::OnDrop;
use crate::sim::{self, Host, Process, Program, Sim};

/// The host of [`simulate`].
const HOST: &str = "pool";

/// Runs a pool in a simulation of its own, and panics with a report if it fails: for tests of what shards do together.
///
/// The seed decides which shard runs next, how long each turn takes, and how long a sleeping shard takes to wake when another
/// one calls it. The same seed is the same run; [`sim::sweep`] explains how to replay one. `builder` and `setup` are as
/// for [`Host::start_shards`].
///
/// ```
/// use windlass::shards::{self, CallError, Shard};
///
/// for seed in 0..20 {
///     let pool = || shards::Builder::new().count(3).calls_per_peer(1);
///     shards::simulate(seed, pool, |_pool| {
///         Ok(|shard: Shard| async move {
///             for peer in shard.all() {
///                 let index = peer.ask(|| Shard::current().map(|shard| shard.index())).await?;
///                 assert_eq!(index, Some(peer.index()));
///             }
///             Ok::<(), CallError>(())
///         })
///     });
/// }
/// ```
///
/// For faults, clients and several hosts, write a test with [`sim::sweep`] and [`Host::start_shards`].
///
/// # Panics
///
/// If a main future panics or returns an error, if the pool does not end, or if two runs with this seed differ.
#[track_caller]
pub fn simulate<M, F, T, E>(
    seed: u64,
    builder: impl Fn() -> Builder + Clone + Sync + 'static,
    setup: impl Fn(&Pool) -> io::Result<M> + Clone + Sync + 'static,
) -> sim::Report
where
    M: Fn(Shard) -> F + 'static,
    F: Future<Output = Result<T, E>> + 'static,
    T: 'static,
    E: Into<BoxError>,
{
    sim::run(seed, move |sim: Sim| {
        let (builder, setup) = (builder.clone(), setup.clone());
        async move {
            let ended = Rc::new(Ended::default());
            start(sim.host(HOST), builder, setup, ended.clone());
            ended.wait().await;
            Ok(())
        }
    })
}

/// Completes when every shard has ended.
#[derive(Default)]
struct Ended {
    shards: Cell<Option<usize>>,
    waker: RefCell<Option<Waker>>,
}

impl Ended {
    async fn wait(&self) {
        poll_fn(|cx| match self.shards.get() {
            Some(0) => Poll::Ready(()),
            _ => {
                let waker = cx.waker().clone();
                self.waker.replace(Some(waker));
                Poll::Pending
            }
        })
        .await;
    }

    fn shard_ended(&self) {
        self.shards.set(self.shards.get().map(|shards| shards - 1));
        if self.shards.get() == Some(0)
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

impl Host {
    /// Starts the host with a pool of shards as its program, and with a new pool after each [restart](Sim::restart).
    ///
    /// `builder` configures the pool as in production. `setup` binds listeners, adds services and returns the main future's
    /// constructor: what production code passes to [`Pool::run`](crate::shards::Pool::run). Without
    /// [`count`](Builder::count) the pool has four shards.
    ///
    /// ```
    /// use std::io;
    /// use std::time::Duration;
    /// use windlass::net::TcpStream;
    /// use windlass::shards::{self, Listener};
    /// use windlass::sim;
    ///
    /// async fn serve(listener: Listener) -> io::Result<()> {
    ///     while let Some((stream, _peer)) = listener.accept().await? {
    ///         stream.write_all("hello").await.0?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// sim::sweep(0..10, |sim| async move {
    ///     sim.host("server").start_shards(
    ///         || shards::Builder::new().count(2),
    ///         |pool| {
    ///             let listener = pool.listen("0.0.0.0:7000")?;
    ///             Ok(move |_shard| serve(listener))
    ///         },
    ///     );
    ///     // The thread of one shard is blocked for 5 seconds.
    ///     sim.after(Duration::from_millis(5), |sim| sim.pause_loop("server", 1));
    ///     sim.after(Duration::from_secs(5), |sim| sim.resume_loop("server", 1));
    ///     for _ in 0..10 {
    ///         let stream = TcpStream::connect("server:7000").await?;
    ///         let (result, bytes) = stream.read_exact([0; 5]).await;
    ///         result?;
    ///         assert_eq!(&bytes, b"hello");
    ///     }
    ///     Ok(())
    /// });
    /// ```
    ///
    /// The loops of the shards have the shards' numbers: see [`Sim::pause_loop`] and [`Sim::kill_loop`]. A shard that is killed
    /// ends as after a failure of its event loop, but is itself no failure of the pool. A panic of a main future or a
    /// service fails the run, and so does an error, unless the host [may fail](Host::may_fail).
    ///
    /// # Differences to production
    ///
    /// Pinning and busy-polling have no effect. Names in addresses of listeners are resolved by this machine. A
    /// `thread_local!` is shared by all shards: use [`Sharded`](crate::shards::Sharded). Cleanups of
    /// [`on_cancel`](crate::task::on_cancel) that are still pending when a shard ends do not run.
    pub fn start_shards<M, F, T, E>(
        self,
        builder: impl Fn() -> Builder + 'static,
        setup: impl Fn(&Pool) -> io::Result<M> + 'static,
    ) where
        M: Fn(Shard) -> F + 'static,
        F: Future<Output = Result<T, E>> + 'static,
        T: 'static,
        E: Into<BoxError>,
    {
        start(self, builder, setup, Rc::default());
    }
}

fn start<M, F, T, E>(
    host: Host,
    builder: impl Fn() -> Builder + 'static,
    setup: impl Fn(&Pool) -> io::Result<M> + 'static,
    ended: Rc<Ended>,
) where
    M: Fn(Shard) -> F + 'static,
    F: Future<Output = Result<T, E>> + 'static,
    T: 'static,
    E: Into<BoxError>,
{
    let setup = Rc::new(setup);
    host.launch(move |configure| {
        let pool = builder().build_for(true).map_err(describe)?;
        let count = pool.view.shared.peers.len();
        let loops = (0..count).map(|index| {
            let (configure, each_loop) = (configure.clone(), pool.settings.each_loop.clone());
            let configure = move |builder| each_loop(index, configure(builder));
            Box::new(configure) as Box<dyn FnOnce(crate::Builder) -> crate::Builder>
        });
        let loops = loops.collect();
        let (setup, ended) = (setup.clone(), ended.clone());
        ended.shards.set(Some(count));
        Ok(Process {
            loops,
            programs: Box::new(move |loops| programs(pool, loops, &*setup, &ended).map_err(describe)),
            closes_loops: true,
        })
    });
}

/// Sets up the pool on its loops, and makes the program of each shard.
fn programs<M, F, T, E>(
    pool: Pool,
    loops: &[&EventLoop],
    setup: &dyn Fn(&Pool) -> io::Result<M>,
    ended: &Rc<Ended>,
) -> io::Result<Vec<Program>>
where
    M: Fn(Shard) -> F + 'static,
    F: Future<Output = Result<T, E>> + 'static,
    T: 'static,
    E: Into<BoxError>,
{
    let shared = pool.view.shared.clone();
    for (peer, event_loop) in shared.peers.iter().zip(loops) {
        peer.register(event_loop.handle());
    }
    let main = {
        // The pool's sockets are made by a loop, and belong to none.
        let _current = loops[0].core().make_current();
        Rc::new(setup(&pool)?)
    };
    let stops_on_signals = pool.settings.stops_on_signals;
    // Not set before: the pool is consumed here.
    let _ = shared.plan.set(pool.plan.into_inner());
    // Its shards do.
    pool.end.disarm();
    let programs = (0..loops.len()).map(|index| {
        let (shared, main, ended) = (shared.clone(), main.clone(), ended.clone());
        let (has_begun, dead) = (Rc::new(Cell::new(false)), shared.clone());
        let begun = has_begun.clone();
        // Also if the loop is killed, even before its first turn: then there is no state that tells the other shards.
        let on_end = OnDrop(move || {
            if !has_begun.get() {
                dead.shard_died(index);
            }
            ended.shard_ended();
        });
        Box::pin(async move {
            let _on_end = on_end;
            begun.set(true);
            let state = ShardState::install(&shared, index);
            if index == 0 && stops_on_signals {
                stop_on_signals(&state);
            }
            run_shard(state, &*main).await;
            take_failure(&shared)
        }) as Program
    });
    Ok(programs.collect())
}

/// The failures of a pool so far, as text. A panic of a main future continues here.
fn take_failure(shared: &Arc<Shared>) -> Option<String> {
    let error = shared.take_error()?;
    let panicked = |cause: &Cause| matches!(cause, Cause::Panicked(_));
    if panicked(&error.cause) || error.others.iter().any(|(_, cause)| panicked(cause)) {
        std::panic::resume_unwind(Box::new(error.to_string()));
    }
    Some(error.to_string())
}

fn describe(error: impl fmt::Display) -> String {
    error.to_string()
}
