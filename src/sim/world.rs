//! The world: hosts on one virtual clock, scheduled by one thread.
//!
//! The world is no event loop. It takes the next event from the heap, sets the clock, and gives a turn to the loop that
//! the event concerns. Loops are never nested, and no program code runs while the world's state is borrowed: what ends or
//! starts loops is a command, carried out between turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Range, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::ThreadId;
use std::time::Duration;

use super::driver::{OP_NAMES, SimDriver};
use super::episodes::Episodes;
use super::files::Files;
use super::host::{Crash, Host, HostInfo, Launch};
use super::kernel::{Kernel, START};
use super::link::{Dist, Link, nanos};
use super::log::{EventKind, EventLog};
use super::misuse;
use super::mount::HostFiles;
use super::names::{Lookup, Zone};
use super::net::{Network, Table, Wire};
use super::panics;
use super::quirks::Quirks;
use super::quirks::kind::NAMES as QUIRK_NAMES;
use super::report::Test;
use super::rng::Streams;
use super::run_state::RunState;
use super::schedule::{Event, HostClock, Schedule};
use super::settings::{Failure, FailureKind, Outcome, RunSettings};
use super::sweep::{Environment, Failed, Report};
use crate::driver::{Completion, Driver, Notify, Wait};
use crate::event_loop::simulated::Turned;
use crate::rand::Rng;
use crate::signal::SignalKind;
use crate::sys::lock;
use crate::{Builder, EventLoop};

/// The error that a test returns.
type BoxError = Box<dyn Error>;

/// The host of the test itself.
const TEST: u16 = 0;

/// How many blocking jobs of a loop run at a time.
const JOBS: usize = 8;

/// How long a loop takes to wake on average, and at most.
const WAKE_DELAY: u64 = 20_000;
const MOST_WAKE_DELAY: u64 = 5_000_000;

/// The state that the test's handle and the world share.
pub(super) struct WorldState {
    pub(super) kernel: Rc<RefCell<Kernel>>,
    pub(super) run: RefCell<RunState>,
    pub(super) episodes: RefCell<Episodes>,
    pub(super) settings: RunSettings,
    pub(super) streams: Streams,
    hosts: RefCell<Vec<HostInfo>>,
    commands: RefCell<VecDeque<Command>>,
    calls: RefCell<Table<Call>>,
    /// How many generators the test has asked for.
    rngs: Cell<u32>,
    /// How long a sleeping loop takes to wake when another loop of its process notifies it.
    wake_delays: RefCell<Rng>,
    /// The run fails after this many nanoseconds, or after this many events.
    time_limit: Cell<u64>,
    event_limit: Cell<u64>,
    /// The test has ended, or the run has failed.
    is_over: Cell<bool>,
    notified: Arc<Notified>,
}

/// A callback of the test.
type Call = Box<dyn FnOnce(Sim)>;

/// What the world does between turns.
enum Command {
    Start {
        host: u16,
    },
    /// A loop of a host that has crashed is dropped.
    Bury {
        loop_index: u32,
    },
    /// A loop ends, and its process continues.
    Kill {
        loop_index: u32,
    },
    /// The program of a loop has ended.
    Ended {
        loop_index: u32,
        error: Option<String>,
    },
    Signal {
        host: u16,
        number: i32,
    },
}

/// Wakes of loops from outside of their turns.
struct Notified {
    is_any: AtomicBool,
    loops: Mutex<Vec<u32>>,
    thread: ThreadId,
    /// The name of a thread that is not the world's.
    foreign: Mutex<Option<String>>,
}

struct LoopNotifier {
    loop_index: u32,
    notified: Arc<Notified>,
}

impl Notified {
    /// Remembers a thread that is not the world's. Called for every event that is sent to a loop.
    fn check_thread(&self) {
        let thread = std::thread::current();
        if thread.id() != self.thread {
            let name = thread.name().unwrap_or("without a name").to_owned();
            lock(&self.foreign).get_or_insert(name);
            self.is_any.store(true, SeqCst);
        }
    }
}

impl Notify for LoopNotifier {
    fn notify(&self) {
        self.notified.check_thread();
        lock(&self.notified.loops).push(self.loop_index);
        self.notified.is_any.store(true, SeqCst);
    }
}

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

impl WorldState {
    pub(super) fn with_clock(&self, host: u16, change: impl FnOnce(&mut HostClock)) {
        if !self.settings.knobs.off.clock {
            let mut kernel = self.kernel.borrow_mut();
            change(&mut kernel.schedule().clocks[usize::from(host)]);
        }
    }

    pub(super) fn network<R>(&self, change: impl FnOnce(&mut Network) -> R) -> R {
        let mut kernel = self.kernel.borrow_mut();
        let result = change(&mut kernel.network);
        kernel.distribute();
        result
    }

    fn wire(&self, change: impl FnOnce(&mut Wire)) {
        self.network(|network| {
            if let Some(wire) = &mut network.wire {
                change(wire);
            }
        });
    }

    fn note(&self, host: u16, kind: EventKind, text: impl Into<String>) {
        self.wire(|wire| wire.log.note(wire.now, host, kind, text));
    }

    pub(super) fn add_process(&self, host: u16, launch: Launch, may_fail: bool) {
        let info = &mut self.hosts.borrow_mut()[usize::from(host)];
        (info.launch, info.may_fail) = (Some(launch), may_fail);
        if self.settings.knobs.hosts.is_none_or(|most| usize::from(host) <= most) {
            self.commands.borrow_mut().push_back(Command::Start { host });
        }
    }

    /// Adds a host to the network and to the zone.
    fn add_host(&self, name: &str) -> u16 {
        let mut kernel = self.kernel.borrow_mut();
        let host = kernel.network.add_host();
        let [high, low] = (host + 1).to_be_bytes();
        let addrs = vec![
            IpAddr::V4(Ipv4Addr::new(10, 0, high, low)),
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host + 1)),
        ];
        kernel.network.set_addrs(host, addrs.clone());
        if let Some(wire) = &mut kernel.network.wire {
            wire.log.name_host(host, name);
        }
        let clock = HostClock::default();
        kernel.schedule().clocks.push(clock);
        let shared = kernel.shared();
        shared.zone.add(name, addrs);
        shared.entropy.push(self.streams.stream_of("app/", name));
        shared.power_losses.push(self.streams.stream_of("power/", name));
        let wall = clock.wall(START.as_nanos() as u64);
        let files = HostFiles::unused(wall, self.streams.stream_of("disk/", name));
        kernel.files.push(files);
        drop(kernel);
        self.hosts.borrow_mut().push(HostInfo {
            name: name.to_owned(),
            launch: None,
            may_fail: false,
            quirks: None,
            started: 0,
            loops: Vec::new(),
            running: Vec::new(),
            closes_loops: false,
        });
        host
    }

    pub(super) fn set_quirks(&self, host: u16, quirks: Quirks) {
        self.hosts.borrow_mut()[usize::from(host)].quirks = Some(quirks);
    }

    /// The driver of a loop is wrapped, so the loop has to poll it.
    fn set_wrapped(&self, loop_index: u32) {
        self.kernel.borrow_mut().loops[loop_index as usize].is_wrapped = true;
    }

    /// Adds a host's quirks to the driver of a new loop.
    fn with_quirks(&self, host: u16, loop_index: u32, driver: Box<dyn Driver>) -> Box<dyn Driver> {
        let (quirks, stream) = {
            let info = &mut self.hosts.borrow_mut()[usize::from(host)];
            info.started += 1;
            (info.quirks.clone(), format!("quirk/{}/{}", info.name, info.started))
        };
        let Some(quirks) = quirks.filter(|_| !self.settings.knobs.off.quirks) else {
            return driver;
        };
        self.note(host, EventKind::Quirk, quirks.to_string());
        self.set_wrapped(loop_index);
        let kernel = self.kernel.clone();
        let observer = move |kind| {
            if let Some(wire) = &mut kernel.borrow_mut().network.wire {
                wire.log.record(wire.now, host, EventKind::Quirk, kind as u64, 0);
            }
        };
        quirks.wrap_in_world(driver, self.streams.stream(&stream).next_u64(), Box::new(observer))
    }

    /// The time from the wake-up of a sleeping thread to its turn: mostly some microseconds, sometimes up to
    /// milliseconds, because its processor is busy.
    fn wake_delay(&self) -> u64 {
        if self.settings.knobs.constant_latency {
            return WAKE_DELAY;
        }
        let mut rng = self.wake_delays.borrow_mut();
        match rng.chance(0.05) {
            true => rng.below(MOST_WAKE_DELAY),
            false => rng.below(2 * WAKE_DELAY),
        }
    }

    /// The loop with this number on a host that runs.
    #[track_caller]
    fn loop_of(&self, host: u16, number: usize) -> Option<u32> {
        let info = &self.hosts.borrow()[usize::from(host)];
        if info.loops.is_empty() {
            return None;
        }
        match info.loops.get(number) {
            Some(loop_index) => Some(*loop_index),
            None => panic!("host '{}' has no loop {number}", info.name),
        }
    }

    /// The true time, in nanoseconds.
    pub(super) fn clock(&self) -> u64 {
        self.kernel.borrow().clock
    }

    /// Changes the files of a host, if they are simulated.
    pub(super) fn with_files(&self, host: &str, change: impl FnOnce(&mut Files)) {
        let host = usize::from(self.host(host));
        if let Some(files) = self.kernel.borrow_mut().files[host].mount() {
            change(files);
        }
    }

    pub(super) fn name_of(&self, host: u16) -> String {
        self.hosts.borrow()[usize::from(host)].name.clone()
    }

    /// The number of a host.
    #[track_caller]
    pub(super) fn host(&self, name: &str) -> u16 {
        let hosts = self.hosts.borrow();
        let found = hosts.iter().position(|host| host.name == name);
        match found {
            Some(host) => host as u16,
            None => panic!("there is no host '{name}'"),
        }
    }

    /// The hosts that have a program, by name.
    pub(super) fn program_hosts(&self) -> Vec<String> {
        let hosts = self.hosts.borrow();
        let hosts = hosts.iter().filter(|host| host.launch.is_some());
        hosts.map(|host| host.name.clone()).collect()
    }

    pub(super) fn is_running(&self, host: &str) -> bool {
        let host = self.host(host);
        !self.hosts.borrow()[usize::from(host)].running.is_empty()
    }

    pub(super) fn is_paused(&self, host: &str) -> bool {
        let host = self.host(host);
        self.kernel.borrow_mut().schedule().clocks[usize::from(host)].is_paused
    }

    pub(super) fn set_wall_offset(&self, host: &str, offset_ns: i64) {
        self.with_clock(self.host(host), |clock| clock.wall_offset = offset_ns);
    }

    pub(super) fn note_fault(&self, text: &str) {
        self.note(TEST, EventKind::Fault, text);
    }

    /// The rates of faults on all links between hosts, except those of the test's own host.
    pub(super) fn set_lossy(&self, loss: f64, duplicate: f64, reorder: f64) {
        self.wire(|wire| wire.set_lossy(loss, duplicate, reorder));
    }

    /// Ends a cut.
    pub(super) fn mend(&self, from: &[String], to: &[String], both_ways: bool) {
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            let (from, to) = (self.host(from), self.host(to));
            self.wire(|wire| {
                wire.set_cut(from, to, false);
                if both_ways {
                    wire.set_cut(to, from, false);
                }
            });
        }
    }

    /// No link has faults any more, and no host is short of memory.
    pub(super) fn calm_network(&self) {
        self.wire(Wire::calm);
        self.network(Network::end_shortages);
    }

    fn fail(&self, failure: Failure) {
        self.run.borrow_mut().fail(failure);
        self.is_over.set(true);
    }

    /// A panic: as the panic hook has recorded it, or at least its message.
    fn fail_by_panic(&self, payload: &(dyn std::any::Any + Send)) {
        let recorded = panics::take().into_iter().next();
        self.fail(recorded.unwrap_or_else(|| Failure {
            kind: FailureKind::Panic,
            message: panics::message(payload),
            location: None,
            details: Vec::new(),
        }));
    }

    /// Ends the process of a host, or its power: from now on its loops reach nothing. Returns what its disk has lost.
    fn crash(&self, host: u16, crash: Crash) -> Option<String> {
        let loops = {
            let info = &mut self.hosts.borrow_mut()[usize::from(host)];
            info.running.clear();
            std::mem::take(&mut info.loops)
        };
        let mut kernel = self.kernel.borrow_mut();
        for loop_index in &loops {
            kernel.loops[*loop_index as usize].is_dead = true;
            kernel.schedule().end_loop(*loop_index);
        }
        match crash {
            Crash::Process => kernel.network.end_process(host),
            Crash::Power => kernel.network.power_off(host),
        }
        let lost = kernel.crash_files(host, crash == Crash::Power && !self.settings.knobs.off.disk);
        kernel.distribute();
        drop(kernel);
        let bury = |loop_index| Command::Bury { loop_index };
        let mut commands = self.commands.borrow_mut();
        // A start that was asked for in the same turn. Otherwise two restarts would start two processes.
        commands.retain(|command| !matches!(command, Command::Start { host: other } if *other == host));
        commands.extend(loops.into_iter().map(bury));
        lost
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

/// The loops, which nothing but the world touches.
struct World {
    state: Rc<WorldState>,
    loops: Vec<Option<EventLoop>>,
    /// The completions of a loop in its turn; its memory is kept between turns.
    completed: Vec<Completion>,
    /// The result of the test, once it has ended.
    result: Rc<RefCell<Option<Result<(), BoxError>>>>,
    events: u64,
}

/// Runs a test with every seed of a range, and panics with a report if one fails.
///
/// The test starts hosts, brings faults about and returns; the world ends with it. A seed that fails is replayed with
/// `WINDLASS_SIM_SEED=n`. `WINDLASS_SIM_SEEDS=n` runs more seeds, and `WINDLASS_SIM_JOBS=n` several at a time.
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// use windlass::sim;
/// sim::sweep(0..10, |sim| async move {
///     sim.host("server").start(|| async {
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
/// # Panics
///
/// If a seed fails or is not deterministic.
#[track_caller]
pub fn sweep<F>(seeds: Range<u64>, test: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    match try_sweep(seeds, test) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    }
}

/// As [`sweep`], with the report of a failure as an error: for a test that expects one.
///
/// ```
/// let failed = windlass::sim::try_sweep(0..10, |sim| async move {
///     assert_ne!(sim.seed(), 7, "unlucky");
///     Ok(())
/// })
/// .unwrap_err();
/// assert_eq!(failed.seed, 7);
/// assert!(failed.report.contains("unlucky"));
/// ```
///
/// # Errors
///
/// If a seed fails or is not deterministic.
#[track_caller]
pub fn try_sweep<F>(seeds: Range<u64>, test: impl Fn(Sim) -> F + Sync) -> Result<Report, Failed>
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    let name = Test::current(std::any::type_name_of_val(&test));
    let environment = Environment::read().unwrap_or_else(|error| panic!("{error}"));
    let run = |settings: &RunSettings| run_once(settings, &test);
    super::sweep::sweep(seeds, &environment, &name, &run)
}

/// Runs a test with one seed: see [`sweep`].
///
/// # Panics
///
/// If it fails or is not deterministic.
#[track_caller]
pub fn run<F>(seed: u64, test: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    sweep(seed..seed + 1, test)
}

/// Runs a test once: a function of the settings alone.
pub(crate) fn run_once<F>(settings: &RunSettings, body: impl FnOnce(Sim) -> F) -> Outcome
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    let mut world = World::new(settings);
    world.run(body);
    world.close()
}

impl World {
    fn new(settings: &RunSettings) -> World {
        let run = RunState::new(settings);
        let (streams, knobs) = (run.streams, &settings.knobs);
        let mut log = EventLog::new(settings.log);
        log.name_ops(OP_NAMES);
        log.name_quirks(&QUIRK_NAMES);
        log.set_origin(START.as_nanos() as u64);
        let ties = (!knobs.fifo_ties).then(|| streams.stream("tie"));
        let schedule = Schedule::new(ties, streams.stream("turn"));
        let mut wire = Wire::new(streams, log, schedule);
        wire.restrict(knobs.constant_latency, knobs.fixed_buffers, knobs.off.net);
        let zone = Zone::new(streams.stream("names"));
        let kernel = Kernel::world(wire, zone, streams.stream("jobs"));
        let state = Rc::new(WorldState {
            kernel: Rc::new(RefCell::new(kernel)),
            run: RefCell::new(run),
            episodes: RefCell::default(),
            settings: settings.clone(),
            streams,
            hosts: RefCell::default(),
            commands: RefCell::default(),
            calls: RefCell::default(),
            rngs: Cell::new(0),
            wake_delays: RefCell::new(streams.stream("wake")),
            time_limit: Cell::new(nanos(settings.time_limit)),
            event_limit: Cell::new(settings.event_limit),
            is_over: Cell::new(false),
            notified: Arc::new(Notified {
                is_any: AtomicBool::new(false),
                loops: Mutex::default(),
                thread: std::thread::current().id(),
                foreign: Mutex::default(),
            }),
        });
        state.add_host("sim");
        World {
            state,
            loops: Vec::new(),
            completed: Vec::new(),
            result: Rc::default(),
            events: 0,
        }
    }

    fn run<F>(&mut self, body: impl FnOnce(Sim) -> F)
    where
        F: Future<Output = Result<(), BoxError>> + 'static,
    {
        let sim = Sim {
            state: self.state.clone(),
        };
        let result = self.result.clone();
        let state = self.state.clone();
        let body = match catch_unwind(AssertUnwindSafe(|| body(sim))) {
            Ok(body) => body,
            Err(payload) => return self.state.fail_by_panic(&*payload),
        };
        let test = async move {
            if let Some(ended) = guarded(&state, body).await {
                result.replace(Some(ended));
                state.is_over.set(true);
            }
        };
        match self.add_loop(TEST, |builder| builder) {
            Ok(loop_index) => self.spawn_on(loop_index, test),
            Err(error) => return self.state.fail(error_failure(format!("the test's loop: {error}"))),
        }
        while !self.state.is_over.get() {
            self.step();
        }
    }

    fn spawn_on(&self, loop_index: u32, future: impl Future<Output = ()> + 'static) {
        if let Some(event_loop) = &self.loops[loop_index as usize] {
            drop(event_loop.spawn(future));
        }
    }

    /// Makes a loop on a host.
    fn add_loop(&mut self, host: u16, configure: impl FnOnce(Builder) -> Builder) -> std::io::Result<u32> {
        let loop_index = self.state.kernel.borrow_mut().add_loop(host);
        self.loops.push(None);
        let notified = self.state.notified.clone();
        let notifier = Arc::new(LoopNotifier { loop_index, notified });
        let driver = SimDriver::in_world(&self.state.kernel, host, loop_index, notifier);
        let driver = self.state.with_quirks(host, loop_index, Box::new(driver));
        // The default depends on the machine, and a run must not.
        let builder = Builder::new().max_blocking_threads(JOBS).max_file_threads(JOBS);
        let builder = configure(builder).watch_entries(self.state.settings.watches_entries);
        if builder.wraps_driver() {
            self.state.set_wrapped(loop_index);
        }
        let event_loop = builder.with_driver(driver).build()?;
        let notified = self.state.notified.clone();
        event_loop.core().inbox.watch(move || notified.check_thread());
        let state = self.state.clone();
        event_loop.set_exception_handler(move |exception| match exception.panic_payload() {
            Some(payload) => state.fail_by_panic(payload),
            None => state.note(host, EventKind::Note, exception.to_string()),
        });
        self.loops[loop_index as usize] = Some(event_loop);
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        kernel.schedule().run(loop_index, now);
        Ok(loop_index)
    }

    /// Carries out the next event, with those before it that run no code of the program's.
    fn step(&mut self) {
        let mut kernel = self.state.kernel.borrow_mut();
        let turned = loop {
            let Some((at, event)) = kernel.schedule().pop() else {
                drop(kernel);
                return self.out_of_events();
            };
            self.events += 1;
            let elapsed = at.saturating_sub(START.as_nanos() as u64);
            if elapsed > self.state.time_limit.get() || self.events > self.state.event_limit.get() {
                drop(kernel);
                return self.limit_reached(elapsed);
            }
            kernel.set_clock(at);
            let due = match event {
                Event::Net(event) => {
                    let due = kernel.happen(event, &mut self.completed);
                    // The loop's turn is an event too.
                    self.events += u64::from(due.is_some());
                    due
                }
                Event::Run { loop_index } => kernel.begin_turn(loop_index),
                Event::Op { loop_index, id } => {
                    kernel.op_due(loop_index, Event::op_id(id));
                    None
                }
                Event::Job { .. } | Event::Call { .. } => {
                    drop(kernel);
                    self.run_callback(event);
                    break None;
                }
            };
            if let Some((loop_index, is_reaped)) = due {
                drop(kernel);
                self.turn(loop_index, is_reaped);
                break Some(loop_index);
            }
        };
        // A load is cheaper than a swap, and nearly always enough.
        if !self.state.commands.borrow().is_empty() || self.state.notified.is_any.load(SeqCst) {
            self.carry_out_commands();
            self.collect_notifications(turned);
        }
    }

    #[cold]
    fn out_of_events(&mut self) {
        match self.state.notified.is_any.load(SeqCst) {
            true => self.collect_notifications(None),
            false => self.state.fail(self.deadlock()),
        }
    }

    /// Runs code of the program's outside of its loops.
    #[inline(never)]
    fn run_callback(&mut self, event: Event) {
        match event {
            Event::Job { job } => self.run_job(job),
            Event::Call { call } => self.call(call),
            Event::Net(_) | Event::Run { .. } | Event::Op { .. } => {}
        }
    }

    /// Runs a callback of the test.
    fn call(&self, call: u32) {
        let call = self.state.calls.borrow_mut().remove(call);
        let sim = Sim {
            state: self.state.clone(),
        };
        if let Some(call) = call
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| call(sim)))
        {
            self.state.fail_by_panic(&*payload);
        }
    }

    /// The test has taken too long.
    #[cold]
    fn limit_reached(&self, elapsed: u64) {
        let (time_limit, event_limit) = (self.state.time_limit.get(), self.state.event_limit.get());
        let limit = Duration::from_nanos(time_limit);
        let message = match elapsed > time_limit {
            true => format!("the test has not ended after {limit:?} of virtual time"),
            false => format!("the test has not ended after {event_limit} events"),
        };
        self.state.fail(Failure {
            kind: FailureKind::Limit,
            message,
            location: None,
            details: self.dumps(),
        });
    }

    /// Gives a loop a turn, then plans its next one. `is_reaped` if its completions have been taken already.
    fn turn(&mut self, loop_index: u32, is_reaped: bool) {
        let Some(event_loop) = &self.loops[loop_index as usize] else {
            return;
        };
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        let result = if kernel.loops[loop_index as usize].is_wrapped {
            drop(kernel);
            turn_polled(event_loop)
        } else {
            if !is_reaped {
                kernel.reap(loop_index, &mut self.completed);
            }
            let host = kernel.schedule().host_of(loop_index);
            let local_now = kernel.now(host);
            drop(kernel);
            event_loop.turn_in_world(local_now, &mut self.completed)
        };
        let Turned { entries, wait } = match result {
            Ok(turned) => turned,
            Err(error) => return self.state.fail(error_failure(format!("a loop failed: {error}"))),
        };
        let mut kernel = self.state.kernel.borrow_mut();
        let kernel = &mut *kernel;
        let is_pending = kernel.submit(loop_index);
        let Some(wire) = &mut kernel.network.wire else { return };
        let schedule = &mut wire.schedule;
        let cost = schedule.end_turn(loop_index, now, entries);
        let host = schedule.host_of(loop_index);
        match wait {
            _ if is_pending => schedule.run(loop_index, now),
            Wait::No | Wait::Poll => schedule.run(loop_index, now),
            Wait::Until(deadline) | Wait::Between(_, deadline) => schedule.run_at_deadline(loop_index, deadline),
            Wait::Forever => {}
        }
        wire.log.record_between_turns(now, host, EventKind::Turn, entries, cost);
        if self.state.settings.watches_entries {
            wire.log.describe_turn(misuse::take_ran());
        }
    }

    fn run_job(&mut self, job: u32) {
        let mut kernel = self.state.kernel.borrow_mut();
        let Some((loop_index, work)) = kernel.shared().jobs.remove(job) else {
            return;
        };
        let is_dead = kernel.schedule().is_dead(loop_index);
        let (now, host) = (kernel.clock, kernel.schedule().host_of(loop_index));
        if let Some(wire) = &mut kernel.network.wire {
            wire.log.record(now, host, EventKind::Job, job.into(), 0);
        }
        drop(kernel);
        match is_dead {
            true => drop(work),
            false => work(),
        }
    }

    #[inline(never)]
    fn carry_out_commands(&mut self) {
        loop {
            let Some(command) = self.state.commands.borrow_mut().pop_front() else {
                return;
            };
            match command {
                Command::Start { host } => self.start(host),
                Command::Bury { loop_index } => {
                    if let Some(event_loop) = self.loops[loop_index as usize].take() {
                        event_loop.abandon();
                    }
                }
                Command::Kill { loop_index } => self.kill(loop_index),
                Command::Ended { loop_index, error } => self.ended(loop_index, error),
                Command::Signal { host, number } => self.signal(host, number),
            }
        }
    }

    fn start(&mut self, host: u16) {
        let launch = self.state.hosts.borrow()[usize::from(host)].launch.clone();
        self.state.network(|network| network.power_on(host));
        let Some(launch) = launch else { return };
        match catch_unwind(AssertUnwindSafe(|| self.launch(host, &launch))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed_to_start(host, error),
            Err(payload) => self.state.fail_by_panic(&*payload),
        }
    }

    /// Makes the loops of a process, then their programs.
    fn launch(&mut self, host: u16, launch: &Launch) -> Result<(), String> {
        let process = launch()?;
        let mut added = Vec::new();
        for configure in process.loops {
            match self.add_loop(host, configure) {
                Ok(loop_index) => added.push(loop_index),
                Err(error) => return Err(format!("an event loop: {error}")),
            }
        }
        {
            let info = &mut self.state.hosts.borrow_mut()[usize::from(host)];
            (info.loops, info.running) = (added.clone(), added.clone());
            info.closes_loops = process.closes_loops;
        }
        let loops: Vec<&EventLoop> = added
            .iter()
            .filter_map(|loop_index| self.loops[*loop_index as usize].as_ref())
            .collect();
        let programs = (process.programs)(&loops)?;
        for (loop_index, program) in added.into_iter().zip(programs) {
            let state = self.state.clone();
            self.spawn_on(loop_index, async move {
                if let Some(error) = guarded(&state, program).await {
                    let mut commands = state.commands.borrow_mut();
                    commands.push_back(Command::Ended { loop_index, error });
                }
            });
        }
        Ok(())
    }

    fn failed_to_start(&mut self, host: u16, error: String) {
        self.report_error(host, error);
        self.state.crash(host, Crash::Process);
    }

    /// A program has returned an error.
    fn report_error(&self, host: u16, error: String) {
        let (may_fail, name) = {
            let info = &self.state.hosts.borrow()[usize::from(host)];
            (info.may_fail, info.name.clone())
        };
        match may_fail {
            true => self.state.note(host, EventKind::Note, format!("ended: {error}")),
            false => self.state.fail(error_failure(format!("host {name}: {error}"))),
        }
    }

    /// The program of a loop has ended; with the last one, the process ends.
    fn ended(&mut self, loop_index: u32, error: Option<String>) {
        let Some(host) = self.end_program(loop_index) else {
            return;
        };
        if let Some(error) = error {
            self.report_error(host, error);
        }
        if self.state.hosts.borrow()[usize::from(host)].closes_loops {
            self.close_loop(loop_index);
        }
        self.end_if_idle(host);
    }

    /// The host of a loop whose program ends now.
    fn end_program(&self, loop_index: u32) -> Option<u16> {
        let mut hosts = self.state.hosts.borrow_mut();
        let host = hosts.iter().position(|host| host.running.contains(&loop_index))?;
        hosts[host].running.retain(|other| *other != loop_index);
        Some(host as u16)
    }

    fn end_if_idle(&self, host: u16) {
        if self.state.hosts.borrow()[usize::from(host)].running.is_empty() {
            self.state.crash(host, Crash::Process);
        }
    }

    /// Ends a loop as if its driver had failed.
    fn kill(&mut self, loop_index: u32) {
        let host = self.end_program(loop_index);
        self.close_loop(loop_index);
        if let Some(host) = host {
            self.end_if_idle(host);
        }
    }

    /// Closes a loop whose process continues: its sockets are closed, and its operations fail.
    fn close_loop(&mut self, loop_index: u32) {
        let Some(event_loop) = self.loops[loop_index as usize].take() else {
            return;
        };
        {
            let mut kernel = self.state.kernel.borrow_mut();
            kernel.loops[loop_index as usize].fails_ops = true;
            kernel.schedule().end_loop(loop_index);
        }
        event_loop.abandon();
        let mut kernel = self.state.kernel.borrow_mut();
        kernel.loops[loop_index as usize].is_dead = true;
        kernel.distribute();
    }

    fn signal(&mut self, host: u16, number: i32) {
        self.state
            .wire(|wire| wire.log.record(wire.now, host, EventKind::Signal, number as u64, 0));
        let loops = self.state.hosts.borrow()[usize::from(host)].loops.clone();
        let mut is_heard = false;
        for loop_index in &loops {
            if let Some(event_loop) = &self.loops[*loop_index as usize] {
                is_heard |= event_loop.core().deliver_signal(number);
                let mut kernel = self.state.kernel.borrow_mut();
                let now = kernel.clock;
                kernel.schedule().run(*loop_index, now);
            }
        }
        if !is_heard && !crate::sys::is_ignored_by_default(number) {
            self.state.note(host, EventKind::Crash, format!("signal {number}"));
            self.state.crash(host, Crash::Process);
        }
    }

    /// Plans turns for loops that were woken from outside of their turns; `turned` is the loop that has just run.
    #[inline(never)]
    fn collect_notifications(&mut self, turned: Option<u32>) {
        let notified = &self.state.notified;
        if !notified.is_any.swap(false, SeqCst) {
            return;
        }
        if let Some(name) = lock(&notified.foreign).take() {
            self.state.fail(Failure {
                kind: FailureKind::Misuse,
                message: misuse::foreign_thread(&name),
                location: None,
                details: Vec::new(),
            });
        }
        let mut kernel = self.state.kernel.borrow_mut();
        let now = kernel.clock;
        for loop_index in lock(&notified.loops).drain(..) {
            let schedule = kernel.schedule();
            let host = schedule.host_of(loop_index);
            // A loop that notifies itself is awake. Nothing but a loop of its process can wake another one.
            let wakes_peer = turned.is_some_and(|turned| turned != loop_index);
            let has_peers = || self.state.hosts.borrow()[usize::from(host)].loops.len() > 1;
            let delay = match wakes_peer && has_peers() {
                true => self.state.wake_delay(),
                false => 0,
            };
            schedule.run(loop_index, now + delay);
        }
    }

    fn deadlock(&self) -> Failure {
        Failure {
            kind: FailureKind::Deadlock,
            message: "deadlock: no event is left, and the test has not ended".to_owned(),
            location: None,
            details: self
                .dumps()
                .into_iter()
                .chain([format!("hint: {}", misuse::DEADLOCK)])
                .collect(),
        }
    }

    /// What every loop is waiting for.
    fn dumps(&self) -> Vec<String> {
        let mut dumps = Vec::new();
        for (index, event_loop) in self.loops.iter().enumerate() {
            let Some(event_loop) = event_loop else { continue };
            let host = self.state.kernel.borrow_mut().schedule().host_of(index as u32);
            let name = self.state.hosts.borrow()[usize::from(host)].name.clone();
            dumps.push(format!("loop {index} on {name}:"));
            dumps.extend(event_loop.dump().to_string().lines().map(str::to_owned));
        }
        dumps
    }

    /// Ends the run: all hosts crash, the test's own loop last.
    fn close(mut self) -> Outcome {
        if let Some(Err(error)) = self.result.take() {
            self.state.fail(error_failure(error.to_string()));
        }
        let elapsed = Duration::from_nanos(self.state.kernel.borrow().clock) - START;
        for ops in &mut self.state.kernel.borrow_mut().loops {
            ops.is_dead = true;
        }
        for event_loop in self.loops.drain(..).rev().flatten() {
            event_loop.abandon();
        }
        self.collect_misuse();
        let jobs = std::mem::take(&mut self.state.kernel.borrow_mut().shared().jobs);
        drop(jobs);
        let calls = self.state.calls.take();
        drop(calls);
        let hosts = self.state.hosts.take();
        let started = hosts.iter().filter(|host| host.launch.is_some()).count();
        drop(hosts);
        self.state.commands.take();
        let wire = self.state.kernel.borrow_mut().network.wire.take();
        let ended = RunState::new(&self.state.settings);
        let run = self.state.run.replace(ended);
        run.into_outcome(wire.expect("the world has wires").log, elapsed, started)
    }
}

impl World {
    /// What the report says about calls that left the simulation.
    fn collect_misuse(&self) {
        let mut kernel = self.state.kernel.borrow_mut();
        let mut run = self.state.run.borrow_mut();
        run.warnings = misuse::take_blocked();
        let real_files = std::mem::take(&mut kernel.shared().real_files);
        run.warnings.extend(real_files.into_iter().map(misuse::real_file));
        for (host, files) in kernel.files.iter().enumerate() {
            let missing = files.used().into_iter().flat_map(Files::missing);
            let name = self.state.name_of(host as u16);
            run.missing.extend(missing.map(|path| (name.clone(), path)));
        }
    }
}

/// A turn of a loop whose driver is wrapped: the wrapper decides what the loop learns, and when.
fn turn_polled(event_loop: &EventLoop) -> std::io::Result<Turned> {
    let core = event_loop.core();
    let before = core.counters.ran.get();
    event_loop.turn_nowait()?;
    event_loop.flush()?;
    Ok(Turned {
        entries: core.counters.ran.get() - before,
        wait: core.next_wait(),
    })
}

/// Awaits a future; `None` if it panics, which fails the run.
async fn guarded<F: Future>(state: &WorldState, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(payload) => {
            state.fail_by_panic(&*payload);
            Poll::Ready(None)
        }
    })
    .await
}

fn error_failure(message: String) -> Failure {
    Failure {
        kind: FailureKind::Error,
        message,
        location: None,
        details: Vec::new(),
    }
}
