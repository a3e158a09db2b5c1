//! `Builder` and `Pool`: what is set up before the shards run.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::error::Error;
use super::listen::{Accept, Listener, ListenerPlan};
use super::pin::Pin;
use super::service::{Service, Sharded};
use super::shard::Shard;
use super::shared::{OwnLines, Plan, Shared, View};
use super::socket::{FreeListener, FreeUdp};
use super::threads;
use super::udp::{UdpPlan, UdpSockets};
use crate::event_loop::exception::BoxError;
use crate::net::{TcpBuilder, TcpListener, UdpBuilder, UdpSocket};
use crate::sys;

/// The calls that a shard may have in flight to each other shard, for each hop class.
const CALLS_PER_PEER: usize = 256;

/// The number of shards in a simulation, unless it is set.
const SIMULATED_SHARDS: usize = 4;

/// How long a stop waits before it cancels.
const GRACE: Duration = Duration::from_secs(30);

/// What a pool does when a shard fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// All shards stop, in order.
    #[default]
    StopAll,
    /// The other shards continue. Calls to the shard that failed end with [`CallError::Gone`](super::CallError::Gone) once its
    /// services have stopped. Another shard accepts the connections in its backlog, and later ones.
    KeepOthers,
}

/// Configures a pool of shards.
///
/// ```
/// use std::time::Duration;
/// use windlass::shards::{self, Pin};
///
/// let pool = shards::Builder::new()
///     .count(2)
///     .pin(Pin::OneCpuEach)
///     .grace(Duration::from_secs(10))
///     .each_loop(|_shard, builder| builder.max_blocking_threads(4))
///     .build()?;
/// # drop(pool);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    count: Option<usize>,
    name: Box<dyn Fn(usize) -> String>,
    pub(super) settings: Settings,
    calls_per_peer: usize,
    on_failure: OnFailure,
    grace: Duration,
    #[cfg(feature = "sim")]
    defect: Option<super::Defect>,
}

/// What the threads of a pool need to start.
pub(super) struct Settings {
    pub(super) pin: Pin,
    pub(super) each_loop: Arc<dyn Fn(usize, crate::Builder) -> crate::Builder + Send + Sync>,
    pub(super) stops_on_signals: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// A pool with one shard per processor that this process may use.
    pub fn new() -> Builder {
        Builder {
            count: None,
            name: Box::new(|index| format!("shard-{index}")),
            settings: Settings {
                pin: Pin::default(),
                each_loop: Arc::new(|_, builder| builder),
                stops_on_signals: false,
            },
            calls_per_peer: CALLS_PER_PEER,
            on_failure: OnFailure::default(),
            grace: GRACE,
            #[cfg(feature = "sim")]
            defect: None,
        }
    }

    /// The number of shards. By default the number of processors that the process may use, after its affinity mask and its
    /// cgroup's quota.
    pub fn count(mut self, shards: usize) -> Builder {
        self.count = Some(shards);
        self
    }

    /// The names of the shards and their threads, by number (`shard-0`). The thread that calls [`Pool::run`] keeps its name.
    pub fn name(mut self, name: impl Fn(usize) -> String + 'static) -> Builder {
        self.name = Box::new(name);
        self
    }

    /// Which processors each shard's thread may run on. By default the kernel decides.
    pub fn pin(mut self, pin: Pin) -> Builder {
        self.settings.pin = pin;
        self
    }

    /// Configures each shard's event loop, on the shard's thread.
    ///
    /// By default the pools of threads for blocking work are smaller than those of a single loop: the shards of a pool share
    /// the number of threads that one loop would have. With [`pin`](Builder::pin), threads for blocking work and io_uring's own
    /// may run on all processors. Both are settings of the builder that `configure` gets: it should return that one. A new
    /// `Builder` has the defaults of a single loop.
    pub fn each_loop(
        mut self,
        configure: impl Fn(usize, crate::Builder) -> crate::Builder + Send + Sync + 'static,
    ) -> Builder {
        self.settings.each_loop = Arc::new(configure);
        self
    }

    /// How many calls a shard may have in flight to each other shard (256), for each hop class: calls made while a call is
    /// served are limited separately, so that calls cannot deadlock. Further calls wait.
    pub fn calls_per_peer(mut self, calls: usize) -> Builder {
        self.calls_per_peer = calls;
        self
    }

    /// What happens when a shard's main future panics or returns an error, or its event loop fails.
    pub fn on_failure(mut self, what: OnFailure) -> Builder {
        self.on_failure = what;
        self
    }

    /// How long a stop waits for the main futures, and then for services and calls, before it cancels them (30 s). It begins
    /// with the stop, or when all main futures have ended.
    pub fn grace(mut self, time: Duration) -> Builder {
        self.grace = time;
        self
    }

    /// Stops the pool when the process is asked to terminate (SIGTERM, ctrl-c): see
    /// [`signal::shutdown`](crate::signal::shutdown()). A second signal ends the grace period. If a shard cannot listen to
    /// signals, the pool does not start and [`Pool::run`] returns the error.
    pub fn stop_on_signals(mut self) -> Builder {
        self.settings.stops_on_signals = true;
        self
    }

    /// Switches a bug on, for a test that must find it. Simulated pools alone have bugs.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn defect(mut self, defect: Option<super::Defect>) -> Builder {
        self.defect = defect;
        self
    }

    /// Makes the pool. No thread runs yet.
    ///
    /// # Errors
    ///
    /// If there are no shards, or more than 65,535, or no calls between them, or a name contains a NUL.
    pub fn build(self) -> io::Result<Pool> {
        self.build_for(false)
    }

    pub(super) fn build_for(self, is_simulated: bool) -> io::Result<Pool> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = self.count.unwrap_or_else(|| match is_simulated {
            // A run must not depend on the machine.
            true => SIMULATED_SHARDS,
            false => available(),
        });
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if count == 0 {
            return refuse("a pool needs at least one shard");
        }
        if count > super::MAX_SHARDS {
            return refuse("a pool has at most 65535 shards");
        }
        if self.calls_per_peer == 0 {
            return refuse("a pool needs at least one call per peer");
        }
        let names: Vec<String> = (0..count).map(|index| (self.name)(index)).collect();
        if names.iter().any(|name| name.contains('\0')) {
            return refuse("the name of a thread contains no NUL");
        }
        let shared = Shared::new(names, self.calls_per_peer, is_simulated, self.grace, self.on_failure);
        #[cfg(feature = "sim")]
        if let (true, Some(defect)) = (is_simulated, self.defect) {
            let _ = shared.defect.set(defect);
        }
        Ok(Pool {
            view: View::new(&shared),
            settings: self.settings,
            plan: RefCell::default(),
            end: End(Some(shared)),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("count", &self.count)
            .field("pin", &self.settings.pin)
            .field("calls_per_peer", &self.calls_per_peer)
            .field("on_failure", &self.on_failure)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// A pool of shards that does not run yet: sockets and services are added to it, then [`run`](Pool::run) runs it. If it is
/// dropped instead, its sockets are closed and [`Shard::stopping`] completes.
#[must_use = "a pool does nothing until `run` is called"]
pub struct Pool {
    pub(super) view: Arc<View>,
    pub(super) settings: Settings,
    pub(super) plan: RefCell<Plan>,
    pub(super) end: End,
}

/// Ends the pool when it is dropped: after the run, or without one.
pub(super) struct End(Option<Arc<Shared>>);

impl End {
    /// Something else ends the pool.
    #[cfg(feature = "sim")]
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.ended();
        }
    }
}

impl Pool {
    /// The number of shards.
    pub fn count(&self) -> usize {
        self.view.shared.peers.len()
    }

    /// The shard with this number: to call it from outside of the pool, or to stop the pool.
    ///
    /// # Panics
    ///
    /// If there is no such shard.
    #[track_caller]
    pub fn shard(&self, index: usize) -> Shard {
        assert!(index < self.count(), "shard {index} of a pool of {}", self.count());
        Shard::new(index, self.view.clone())
    }

    /// Binds a listener for all shards, now. With port 0 the system chooses one.
    ///
    /// # Errors
    ///
    /// An address in use is an error here. But with `SO_REUSEPORT` ([`Accept::ReusePort`] and [`Accept::Balanced`]), Linux also
    /// lets other processes of the same user bind it in that way: a second instance of the program gets no error, and some of
    /// the connections. With [`Accept::HandOver`] it gets an error.
    pub fn listen(&self, addr: impl std::net::ToSocketAddrs) -> io::Result<Listener> {
        self.listen_with(TcpListener::builder(), addr, Accept::default())
    }

    /// As [`listen`](Pool::listen), with socket options and a choice of how the shards share the connections.
    pub fn listen_with(
        &self,
        builder: TcpBuilder,
        addr: impl std::net::ToSocketAddrs,
        mode: Accept,
    ) -> io::Result<Listener> {
        if mode != Accept::HandOver && !sys::BALANCES_REUSED_PORTS && !self.view.shared.is_simulated {
            let why =
                "this system does not distribute connections over sockets that share a port: use `Accept::HandOver`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let sockets = match mode {
            Accept::HandOver => 1,
            Accept::ReusePort | Accept::Balanced => self.count(),
        };
        let builder = match mode {
            Accept::HandOver => builder,
            Accept::ReusePort | Accept::Balanced => builder.reuse_port(true),
        };
        let is_simulated = self.view.shared.is_simulated;
        let (addr, bound) = try_addrs(addr, |addr| {
            bind_all(sockets, addr, |addr| FreeListener::bind(&builder, addr, is_simulated))
        })?;
        let mut plan = self.plan.borrow_mut();
        plan.listeners.push(Arc::new(ListenerPlan {
            builder,
            mode,
            sockets: bound.into_iter().map(|socket| Mutex::new(Some(socket))).collect(),
            handed: (0..self.count()).map(|_| OwnLines::default()).collect(),
        }));
        let index = plan.listeners.len() as u32 - 1;
        let pool = self.view.shared.id;
        Ok(Listener { pool, index, addr })
    }

    /// Binds one UDP socket per shard to an address, now.
    ///
    /// # Errors
    ///
    /// `Unsupported` where the system does not distribute datagrams over sockets that share a port (macOS, Windows).
    pub fn udp(&self, addr: impl std::net::ToSocketAddrs) -> io::Result<UdpSockets> {
        self.udp_with(UdpSocket::builder(), addr)
    }

    /// As [`udp`](Pool::udp), with socket options.
    pub fn udp_with(&self, builder: UdpBuilder, addr: impl std::net::ToSocketAddrs) -> io::Result<UdpSockets> {
        if !sys::BALANCES_REUSED_PORTS && !self.view.shared.is_simulated && self.count() > 1 {
            let why = "this system does not distribute datagrams over sockets that share a port";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let builder = match sys::BALANCES_REUSED_PORTS || self.view.shared.is_simulated {
            true => builder.reuse_port(true),
            false => builder,
        };
        let is_simulated = self.view.shared.is_simulated;
        let (addr, sockets) = try_addrs(addr, |addr| {
            bind_all(self.count(), addr, |addr| FreeUdp::bind(&builder, addr, is_simulated))
        })?;
        let mut plan = self.plan.borrow_mut();
        let sockets = sockets.into_iter().map(|socket| Mutex::new(Some(socket))).collect();
        plan.sockets.push(Arc::new(UdpPlan { sockets }));
        let index = plan.sockets.len() as u32 - 1;
        let pool = self.view.shared.id;
        Ok(UdpSockets { pool, index, addr })
    }

    /// Adds a service: `make` makes its value on every shard before the main futures start, after the services that were added
    /// before it. Its values are dropped when the pool has stopped, in the opposite order.
    pub fn service<T, E, F>(&self, make: impl Fn(Shard) -> F + Send + Sync + 'static) -> Sharded<T>
    where
        T: 'static,
        E: Into<BoxError>,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let mut plan = self.plan.borrow_mut();
        plan.services.push(Service::new(make));
        Sharded::new(self.view.shared.id, plan.services.len() - 1)
    }

    /// Runs `stop` with the value of a service on every shard, when the main futures and the services added after it have
    /// ended. The service still answers calls meanwhile.
    pub fn on_stop<T, F>(&self, service: Sharded<T>, stop: impl Fn(Rc<T>) -> F + Send + Sync + 'static)
    where
        T: 'static,
        F: Future<Output = ()> + 'static,
    {
        self.plan.borrow_mut().services[service.index()].on_stop(stop);
    }

    /// Runs the pool: `main` on every shard, shard 0 on this thread. Returns their outputs, by number.
    ///
    /// The pool ends when all main futures have ended. A stop ([`Shard::stop`], a signal, the first failure) asks them to:
    ///
    /// 1. [`Shard::stopping`] completes on every shard, and [`Listener::accept`] returns `None` once the backlog is empty.
    /// 2. The main futures end. Their shards serve calls until all have ended. Those that have not ended after the [grace
    ///    period](Builder::grace) are cancelled.
    /// 3. The services stop, the last added first, each on every shard before the next.
    /// 4. When no call is in flight, the event loops close, which cancels the tasks that are left.
    ///
    /// # Errors
    ///
    /// The first failure: a shard could not start, its main future panicked, returned an error or was cancelled after the
    /// grace period, or its event loop failed. See [`OnFailure`].
    pub fn run<T, E, F>(self, main: impl Fn(Shard) -> F + Send + Sync + 'static) -> Result<Vec<T>, Error>
    where
        T: Send + 'static,
        E: Into<BoxError>,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let Pool {
            view,
            settings,
            plan,
            end: _end,
        } = self;
        // Not set before: the pool is consumed here.
        let _ = view.shared.plan.set(plan.into_inner());
        threads::run(&view.shared, settings, main)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

/// Calls `attempt` with each address of a name until it succeeds.
fn try_addrs<S>(
    addr: impl std::net::ToSocketAddrs,
    attempt: impl Fn(SocketAddr) -> io::Result<(SocketAddr, Vec<S>)>,
) -> io::Result<(SocketAddr, Vec<S>)> {
    let mut result = Err(io::Error::new(io::ErrorKind::InvalidInput, "the name has no address"));
    for addr in addr.to_socket_addrs()? {
        result = attempt(addr);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Binds several sockets to one address. If its port is 0, the first one decides.
fn bind_all<S>(
    count: usize,
    mut addr: SocketAddr,
    bind: impl Fn(SocketAddr) -> io::Result<(S, SocketAddr)>,
) -> io::Result<(SocketAddr, Vec<S>)> {
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let (socket, bound_to) = bind(addr)?;
        addr = bound_to;
        sockets.push(socket);
    }
    Ok((addr, sockets))
}
