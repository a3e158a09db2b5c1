//! Hosts of a world: how they are made, and the programs that they run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::link::nanos;
use super::quirks::Quirks;
use super::state::WorldState;
use crate::{Builder, EventLoop};

/// What ends a host's program: see [`Sim::crash`](super::Sim::crash).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Crash {
    /// The process is killed. The kernel closes its sockets: peers get a FIN, or an RST if bytes were unread. Nothing
    /// that was written to files is lost.
    Process,
    /// The host loses power. Its peers hear nothing more, and unsynced changes of files may be lost.
    Power,
}

/// The future of a loop's program, with the error that it ended with.
pub(crate) type Program = Pin<Box<dyn Future<Output = Option<String>>>>;

type MakePrograms = Box<dyn FnOnce(&[&EventLoop]) -> Result<Vec<Program>, String>>;

/// A process that starts: its loops, and what they run.
pub(crate) struct Process {
    /// The settings of each loop.
    pub(crate) loops: Vec<Box<dyn FnOnce(Builder) -> Builder>>,
    /// Makes the program of each loop, or fails before any of them runs.
    pub(crate) programs: MakePrograms,
    /// A loop closes when its program has ended, and not with the process.
    pub(crate) closes_loops: bool,
}

/// Starts a process, for the first time or again.
pub(super) type Launch = Rc<dyn Fn() -> Result<Process, String>>;

/// A host of a world.
pub(super) struct HostInfo {
    pub(super) name: String,
    /// Starts its process; `None` if it runs none.
    pub(super) launch: Option<Launch>,
    pub(super) may_fail: bool,
    /// The quirks of its loops' drivers.
    pub(super) quirks: Option<Quirks>,
    /// How many loops it has had.
    pub(super) started: u32,
    /// Its loops while it runs.
    pub(super) loops: Vec<u32>,
    /// Those of its loops whose program has not ended.
    pub(super) running: Vec<u32>,
    pub(super) closes_loops: bool,
}

/// A new host: [`Sim::host`](super::Sim::host) makes it, [`start`](Host::start) starts it.
#[must_use = "a host does nothing until it is started"]
pub struct Host {
    pub(super) state: Rc<WorldState>,
    pub(super) number: u16,
    may_fail: bool,
    configure: Rc<dyn Fn(Builder) -> Builder>,
}

impl Host {
    pub(super) fn new(state: Rc<WorldState>, number: u16) -> Host {
        Host {
            state,
            number,
            may_fail: false,
            configure: Rc::new(|builder| builder),
        }
    }

    /// An error that the host's program returns does not fail the run: the process ends with it.
    pub fn may_fail(mut self) -> Host {
        self.may_fail = true;
        self
    }

    /// Configures the host's event loops.
    pub fn builder(mut self, configure: impl Fn(Builder) -> Builder + 'static) -> Host {
        self.configure = Rc::new(configure);
        self
    }

    /// The host's monotonic clock is too fast by this many millionths, or too slow if it is negative. At most 10,000.
    pub fn drift_ppm(self, ppm: i32) -> Host {
        self.state
            .with_clock(self.number, |clock| clock.drift_ppm = ppm.clamp(-10_000, 10_000));
        self
    }

    /// The host's wall clock is ahead by this much.
    pub fn wall_ahead(self, by: Duration) -> Host {
        self.state.with_clock(self.number, |clock| {
            clock.wall_offset = nanos(by).min(i64::MAX as u64) as i64
        });
        self
    }

    /// A full backlog refuses connections with an RST (`tcp_abort_on_overflow`). By default it ignores them, and the
    /// client tries again.
    pub fn abort_on_overflow(self) -> Host {
        self.state
            .network(|network| network.set_abort_on_overflow(self.number, true));
        self
    }

    /// Limits how many sockets, pipes and files the host's process has open (`RLIMIT_NOFILE`). One more fails with `EMFILE`.
    /// A connection that cannot be accepted stays in the backlog.
    pub fn max_descriptors(self, most: usize) -> Host {
        self.state
            .network(|network| network.set_max_descriptors(self.number, most));
        self
    }

    /// The probability that the host's kernel has no memory for a socket: accepts and new sockets fail with `ENOBUFS`, until
    /// [`Sim::calm`](super::Sim::calm). A connection that cannot be accepted stays in the backlog.
    pub fn socket_shortage(self, probability: f64) -> Host {
        if !self.state.settings.knobs.off.net {
            let name = self.state.name_of(self.number);
            let rng = self.state.streams.stream(&format!("shortage/{name}"));
            self.state
                .network(|network| network.set_shortage(self.number, probability, rng));
        }
        self
    }

    /// Adds quirks to the drivers of the host's event loops. The seed of the run decides when they occur; the seed of
    /// `quirks` is ignored. Every loop behaves differently, also after a restart.
    ///
    /// [`Quirks::swarm`] chooses the rates, here by the seed of the run:
    ///
    /// ```
    /// use windlass::net::{TcpListener, TcpStream};
    /// use windlass::sim::{self, Quirks};
    /// sim::sweep(0..10, |sim| async move {
    ///     let quirks = Quirks::swarm(sim.seed());
    ///     sim.host("server").quirks(quirks).start(|| async {
    ///         let listener = TcpListener::bind("0.0.0.0:7000").await?;
    ///         let (stream, _) = listener.accept().await?;
    ///         stream.write_all("hello").await.0
    ///     });
    ///     let stream = TcpStream::connect("server:7000").await?;
    ///     let (result, bytes) = stream.read_exact([0; 5]).await;
    ///     result?;
    ///     assert_eq!(&bytes, b"hello");
    ///     Ok(())
    /// });
    /// ```
    ///
    /// Each quirk is an event of the timeline. Shrinking tries to switch all of them off: `WINDLASS_SIM_SET=quirks=off`.
    pub fn quirks(self, quirks: Quirks) -> Host {
        self.state.set_quirks(self.number, quirks);
        self
    }

    /// Starts the host: it runs this program on an event loop of its own, and again after each
    /// [`restart`](super::Sim::restart).
    ///
    /// When the program ends, the process ends as by [`Crash::Process`]. A panic fails the run, and so does an error that
    /// it returns, unless it [may fail](Host::may_fail).
    pub fn start<F>(self, program: impl Fn() -> F + 'static)
    where
        F: Future + 'static,
        F::Output: HostOutput,
    {
        self.start_loops(1, move |_| program());
    }

    /// Starts the host with several event loops, as a thread-per-core server has: `program` gets the loop's number. For a pool
    /// of [`shards`](crate::shards) see [`start_shards`](Host::start_shards).
    pub fn start_loops<F>(self, loops: usize, program: impl Fn(usize) -> F + 'static)
    where
        F: Future + 'static,
        F::Output: HostOutput,
    {
        let program = Rc::new(program);
        self.launch(move |configure| {
            let configs = (0..loops).map(|_| {
                let configure = configure.clone();
                Box::new(move |builder| configure(builder)) as Box<dyn FnOnce(Builder) -> Builder>
            });
            let program = program.clone();
            let programs = (0..loops).map(move |number| {
                let program = program.clone();
                Box::pin(async move { program(number).await.into_error() }) as Program
            });
            Ok(Process {
                loops: configs.collect(),
                programs: Box::new(|_| Ok(programs.collect())),
                closes_loops: false,
            })
        });
    }

    /// Starts the host with a process that `launch` makes, also after each restart. It gets the settings of the host's loops.
    pub(crate) fn launch(self, launch: impl Fn(&Rc<dyn Fn(Builder) -> Builder>) -> Result<Process, String> + 'static) {
        let configure = self.configure;
        let launch = Rc::new(move || launch(&configure));
        self.state.add_process(self.number, launch, self.may_fail);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("number", &self.number).finish()
    }
}

/// What a host's program returns: nothing, or a result whose error fails the run.
pub trait HostOutput {
    /// The error, as text.
    fn into_error(self) -> Option<String>;
}

impl HostOutput for () {
    fn into_error(self) -> Option<String> {
        None
    }
}

impl<T, E: fmt::Display> HostOutput for Result<T, E> {
    fn into_error(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}
