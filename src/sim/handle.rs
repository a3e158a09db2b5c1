//! `Sim`, the handle of a test on its world: hosts, links, faults, limits and marks.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use super::host::{Crash, Host};
use super::kernel::START;
use super::link::{Dist, Link, nanos};
use super::log::EventKind;
use super::names::Lookup;
use super::net::Wire;
use super::schedule::Event;
use super::state::{Command, TEST, WorldState};
use crate::rand::Rng;
use crate::signal::SignalKind;

/// The error that a test returns.
pub(super) type BoxError = Box<dyn Error>;

/// The handle of a test on the world that it runs in: starts hosts, and brings faults about.
///
/// A host is named by the name that it was given. A method that names a host which does not exist panics.
#[derive(Clone)]
pub struct Sim {
    pub(super) state: Rc<WorldState>,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("seed", &self.state.settings.seed)
            .field("now", &self.now())
            .finish()
    }
}

impl Sim {
    /// Adds a host. It has the addresses `10.x.x.x` and `fd00::x`, and can be looked up by its name.
    ///
    /// ```
    /// # fn example(sim: windlass::sim::Sim) {
    /// sim.host("server").start(|| async {
    ///     let listener = windlass::net::TcpListener::bind("0.0.0.0:7000").await?;
    ///     loop {
    ///         let (stream, _) = listener.accept().await?;
    ///         windlass::spawn(async move { stream.write_all("hello").await.0 });
    ///     }
    ///     # #[allow(unreachable_code)]
    ///     Ok::<(), std::io::Error>(())
    /// });
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If there is a host with this name.
    #[track_caller]
    pub fn host(&self, name: &str) -> Host {
        let is_taken = self.state.hosts.borrow().iter().any(|host| host.name == name);
        assert!(!is_taken, "there is a host '{name}' already");
        Host::new(self.state.clone(), self.state.add_host(name))
    }

    /// Sets the links between all hosts, except those set by [`link`](Sim::link).
    pub fn links(&self, link: Link) {
        self.state.wire(|wire| wire.set_default(link));
    }

    /// Sets the link from one host to another.
    #[track_caller]
    pub fn link(&self, from: &str, to: &str, link: Link) {
        let (from, to) = (self.state.host(from), self.state.host(to));
        self.state.wire(|wire| wire.set_link(from, to, link));
    }

    #[track_caller]
    fn pairs<A: AsRef<str>, B: AsRef<str>>(
        &self,
        from: impl IntoIterator<Item = A>,
        to: impl IntoIterator<Item = B>,
    ) -> Vec<(u16, u16)> {
        let from: Vec<u16> = from.into_iter().map(|name| self.state.host(name.as_ref())).collect();
        let to: Vec<u16> = to.into_iter().map(|name| self.state.host(name.as_ref())).collect();
        let pairs = from.iter().flat_map(|from| to.iter().map(|to| (*from, *to)));
        pairs.collect()
    }

    fn describe_pairs(&self, pairs: &[(u16, u16)]) -> String {
        let hosts = self.state.hosts.borrow();
        let name = |host: u16| hosts[usize::from(host)].name.clone();
        let pairs = pairs.iter().map(|(from, to)| format!("{}>{}", name(*from), name(*to)));
        pairs.collect::<Vec<_>>().join(" ")
    }

    fn fault(&self, what: &str, pairs: &[(u16, u16)]) {
        let text = format!("{what} {}", self.describe_pairs(pairs));
        self.state.note(TEST, EventKind::Fault, text);
    }

    /// Cuts the links between the hosts of two groups, in both directions. Open connections stall: TCP sends again, with
    /// longer and longer pauses, and after about 15 minutes reports a timeout.
    #[track_caller]
    pub fn cut<A: AsRef<str>, B: AsRef<str>>(
        &self,
        one: impl IntoIterator<Item = A>,
        other: impl IntoIterator<Item = B>,
    ) {
        let pairs = self.pairs(one, other);
        self.fault("cut", &pairs);
        self.state.wire(|wire| {
            for (from, to) in pairs {
                wire.set_cut(from, to, true);
                wire.set_cut(to, from, true);
            }
        });
    }

    /// Cuts the links from the hosts of one group to those of another, in this direction alone.
    #[track_caller]
    pub fn cut_one_way<A: AsRef<str>, B: AsRef<str>>(
        &self,
        from: impl IntoIterator<Item = A>,
        to: impl IntoIterator<Item = B>,
    ) {
        let pairs = self.pairs(from, to);
        self.fault("cut one way", &pairs);
        self.state.wire(|wire| {
            for (from, to) in pairs {
                wire.set_cut(from, to, true);
            }
        });
    }

    /// Holds what the hosts of one group send to those of another: it arrives after [`release`](Sim::release), in order.
    #[track_caller]
    pub fn hold<A: AsRef<str>, B: AsRef<str>>(
        &self,
        from: impl IntoIterator<Item = A>,
        to: impl IntoIterator<Item = B>,
    ) {
        let pairs = self.pairs(from, to);
        self.fault("hold", &pairs);
        self.state
            .wire(|wire| pairs.into_iter().for_each(|(from, to)| wire.hold(from, to)));
    }

    /// Ends [`hold`](Sim::hold): what was held arrives now.
    #[track_caller]
    pub fn release<A: AsRef<str>, B: AsRef<str>>(
        &self,
        from: impl IntoIterator<Item = A>,
        to: impl IntoIterator<Item = B>,
    ) {
        let pairs = self.pairs(from, to);
        self.fault("release", &pairs);
        self.state
            .wire(|wire| pairs.into_iter().for_each(|(from, to)| wire.release(from, to)));
    }

    /// Multiplies the latency between the hosts of two groups, in both directions.
    #[track_caller]
    pub fn slow<A: AsRef<str>, B: AsRef<str>>(
        &self,
        one: impl IntoIterator<Item = A>,
        other: impl IntoIterator<Item = B>,
        factor: f64,
    ) {
        let pairs = self.pairs(one, other);
        self.fault("slow", &pairs);
        self.state.wire(|wire| {
            for (from, to) in pairs {
                wire.slow(from, to, factor);
                wire.slow(to, from, factor);
            }
        });
    }

    /// Ends every cut, hold and slowdown.
    pub fn heal(&self) {
        self.state.note(TEST, EventKind::Fault, "heal");
        self.state.wire(Wire::heal);
    }

    /// Resets every TCP connection between two hosts: both ends get `ECONNRESET`.
    #[track_caller]
    pub fn reset(&self, one: &str, other: &str) {
        let (one, other) = (self.state.host(one), self.state.host(other));
        self.fault("reset", &[(one, other)]);
        if !self.state.settings.knobs.off.net {
            self.state.network(|network| network.reset_between(one, other));
        }
    }

    /// How long TCP sends again before a connection fails with `ETIMEDOUT`. By default 924.6 s, as on Linux.
    pub fn tcp_timeout(&self, timeout: Duration) {
        self.state.wire(|wire| wire.user_timeout = nanos(timeout));
    }

    /// How lookups of a name end from now on.
    pub fn lookups(&self, name: &str, outcome: Lookup) {
        self.state.kernel.borrow_mut().shared().zone.set_outcome(name, outcome);
    }

    /// How long lookups take from now on.
    pub fn lookup_time(&self, time: Dist) {
        self.state.kernel.borrow_mut().shared().zone.delay = time;
    }

    /// Ends a host's process, or its power. Its tasks are dropped without cleanup, and their destructors send nothing.
    /// Nothing happens if it does not run.
    #[track_caller]
    pub fn crash(&self, host: &str, crash: Crash) {
        let host = self.state.host(host);
        match crash {
            Crash::Process => {
                self.state.note(host, EventKind::Crash, "the process is killed");
                self.state.crash(host, crash);
            }
            // A host without power sends nothing, so no event stands before this line.
            Crash::Power => {
                let text = match self.state.crash(host, crash) {
                    Some(lost) => format!("no power; {lost}"),
                    None => "no power".to_owned(),
                };
                self.state.note(host, EventKind::Crash, text);
            }
        }
    }

    /// Starts a host again that has crashed or ended, with the same files. One that runs is killed first.
    #[track_caller]
    pub fn restart(&self, host: &str) {
        let host = self.state.host(host);
        self.state.note(host, EventKind::Restart, "");
        self.state.crash(host, Crash::Process);
        self.state.commands.borrow_mut().push_back(Command::Start { host });
    }

    /// Stops a host's process, as `SIGSTOP` does. Its kernel goes on: bytes arrive, and buffers fill up.
    #[track_caller]
    pub fn pause(&self, host: &str) {
        let host = self.state.host(host);
        self.state.note(host, EventKind::Pause, "");
        self.state.kernel.borrow_mut().schedule().clocks[usize::from(host)].is_paused = true;
    }

    /// Ends a [`pause`](Sim::pause).
    #[track_caller]
    pub fn resume(&self, host: &str) {
        let host = self.state.host(host);
        self.state.note(host, EventKind::Resume, "");
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        let schedule = kernel.schedule();
        schedule.clocks[usize::from(host)].is_paused = false;
        schedule.resume(host, now);
    }

    /// Gives one loop of a host no turns, as if its thread were blocked or had no processor. Loops have the numbers of
    /// [`Host::start_loops`] and of shards. Nothing happens if the host does not run.
    ///
    /// # Panics
    ///
    /// If the host runs and has no such loop.
    #[track_caller]
    pub fn pause_loop(&self, host: &str, number: usize) {
        self.set_loop_paused(host, number, true);
    }

    /// Ends a [`pause_loop`](Sim::pause_loop).
    #[track_caller]
    pub fn resume_loop(&self, host: &str, number: usize) {
        self.set_loop_paused(host, number, false);
    }

    #[track_caller]
    fn set_loop_paused(&self, host: &str, number: usize, is_paused: bool) {
        let host = self.state.host(host);
        let Some(loop_index) = self.state.loop_of(host, number) else {
            return;
        };
        let kind = if is_paused { EventKind::Pause } else { EventKind::Resume };
        self.state.note(host, kind, format!("loop {number}"));
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        kernel.schedule().pause_loop(loop_index, is_paused, now);
    }

    /// Ends one loop of a host, as if its driver had failed: its tasks are dropped and their sockets closed. The other loops
    /// continue; with the last one, the process ends. Nothing happens if the host or the loop does not run.
    ///
    /// # Panics
    ///
    /// If the host runs and has no such loop.
    #[track_caller]
    pub fn kill_loop(&self, host: &str, number: usize) {
        let host = self.state.host(host);
        if let Some(loop_index) = self.state.loop_of(host, number) {
            self.state
                .note(host, EventKind::Crash, format!("loop {number} is killed"));
            self.state.commands.borrow_mut().push_back(Command::Kill { loop_index });
        }
    }

    /// Sends a signal to a host. If nothing there listens to it, it ends the process, unless it is one that does nothing by
    /// default.
    #[track_caller]
    pub fn signal(&self, host: &str, kind: SignalKind) {
        let host = self.state.host(host);
        let number = kind.as_raw();
        self.state
            .commands
            .borrow_mut()
            .push_back(Command::Signal { host, number });
    }

    /// Sets a host's wall clock forward by this many seconds, or back if it is negative.
    #[track_caller]
    pub fn jump_wall(&self, host: &str, seconds: f64) {
        let host = self.state.host(host);
        let by = (seconds * 1e9) as i64;
        self.state
            .wire(|wire| wire.log.record(wire.now, host, EventKind::WallJump, by as u64, 0));
        self.state
            .with_clock(host, |clock| clock.wall_offset = clock.wall_offset.saturating_add(by));
    }

    /// How long the test may take in virtual time before the run fails. By default one hour.
    pub fn time_limit(&self, limit: Duration) {
        self.state.time_limit.set(nanos(limit));
    }

    /// How many events may happen before the run fails. By default 100 million.
    pub fn event_limit(&self, limit: u64) {
        self.state.event_limit.set(limit);
    }

    /// Calls `call` after this time, between the turns of all loops.
    pub fn after(&self, delay: Duration, call: impl FnOnce(Sim) + 'static) {
        let call = self.state.calls.borrow_mut().insert(Box::new(call));
        let mut kernel = self.state.kernel.borrow_mut();
        let at = kernel.clock.saturating_add(nanos(delay));
        kernel.schedule().push(at, Event::Call { call });
    }

    /// Awaits a result, for this time at most.
    pub async fn within<T, E: Into<BoxError>>(
        &self,
        limit: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BoxError> {
        match crate::time::timeout(limit, future).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(format!("not done within {limit:?}").into()),
        }
    }

    /// A size of the test, chosen by the seed. Shrinking makes it smaller.
    ///
    /// # Panics
    ///
    /// If the range is empty.
    #[track_caller]
    pub fn size(&self, name: &str, range: RangeInclusive<u64>) -> u64 {
        self.state.run.borrow_mut().size(name, range)
    }

    /// A generator of random numbers for the test. Each call returns another one.
    pub fn rng(&self) -> Rng {
        let number = self.state.rngs.get();
        self.state.rngs.set(number + 1);
        self.state.run.borrow().rng(&number.to_string())
    }

    /// The time since the start of the run.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.state.kernel.borrow().clock) - START
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.state.settings.seed
    }

    /// Counts how often a state was met that a sweep should reach sometimes. The report of the sweep names those that were
    /// never met.
    pub fn sometimes(&self, name: &str, is_met: bool) {
        self.state.run.borrow_mut().sometimes(name, is_met);
        if is_met {
            self.state.note(TEST, EventKind::Mark, name);
        }
    }

    /// Writes a line to the timeline of the run.
    pub fn log(&self, text: impl Into<String>) {
        self.state.note(TEST, EventKind::Note, text);
    }
}
