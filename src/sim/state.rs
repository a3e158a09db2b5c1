//! The state that a test's handle and the world share: hosts, commands, limits.
//!
//! Methods of `Sim` change the network, the clocks and the files here at once. Whatever starts or ends loops is a command,
//! which the world carries out between turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use super::episodes::Episodes;
use super::files::Files;
use super::handle::Sim;
use super::host::{Crash, HostInfo, Launch};
use super::kernel::{Kernel, START};
use super::log::EventKind;
use super::mount::HostFiles;
use super::net::{Network, Table, Wire};
use super::notified::Notified;
use super::panics;
use super::quirks::Quirks;
use super::rng::Streams;
use super::run_state::RunState;
use super::schedule::HostClock;
use super::settings::{Failure, FailureKind, RunSettings};
use crate::driver::Driver;
use crate::rand::Rng;

/// The host of the test itself.
pub(super) const TEST: u16 = 0;

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
    pub(super) hosts: RefCell<Vec<HostInfo>>,
    pub(super) commands: RefCell<VecDeque<Command>>,
    pub(super) calls: RefCell<Table<Call>>,
    /// How many generators the test has asked for.
    pub(super) rngs: Cell<u32>,
    /// How long a sleeping loop takes to wake when another loop of its process notifies it.
    pub(super) wake_delays: RefCell<Rng>,
    /// The run fails after this many nanoseconds, or after this many events.
    pub(super) time_limit: Cell<u64>,
    pub(super) event_limit: Cell<u64>,
    /// The test has ended, or the run has failed.
    pub(super) is_over: Cell<bool>,
    pub(super) notified: Arc<Notified>,
}

/// A callback of the test.
pub(super) type Call = Box<dyn FnOnce(Sim)>;

/// What the world does between turns.
pub(super) enum Command {
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

    pub(super) fn wire(&self, change: impl FnOnce(&mut Wire)) {
        self.network(|network| {
            if let Some(wire) = &mut network.wire {
                change(wire);
            }
        });
    }

    pub(super) fn note(&self, host: u16, kind: EventKind, text: impl Into<String>) {
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
    pub(super) fn add_host(&self, name: &str) -> u16 {
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
    pub(super) fn set_wrapped(&self, loop_index: u32) {
        self.kernel.borrow_mut().loops[loop_index as usize].is_wrapped = true;
    }

    /// Adds a host's quirks to the driver of a new loop.
    pub(super) fn with_quirks(&self, host: u16, loop_index: u32, driver: Box<dyn Driver>) -> Box<dyn Driver> {
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
    pub(super) fn wake_delay(&self) -> u64 {
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
    pub(super) fn loop_of(&self, host: u16, number: usize) -> Option<u32> {
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

    pub(super) fn fail(&self, failure: Failure) {
        self.run.borrow_mut().fail(failure);
        self.is_over.set(true);
    }

    /// A panic: as the panic hook has recorded it, or at least its message.
    pub(super) fn fail_by_panic(&self, payload: &(dyn std::any::Any + Send)) {
        let recorded = panics::take().into_iter().next();
        self.fail(recorded.unwrap_or_else(|| Failure {
            kind: FailureKind::Panic,
            message: panics::message(payload),
            location: None,
            details: Vec::new(),
        }));
    }

    /// Ends the process of a host, or its power: from now on its loops reach nothing. Returns what its disk has lost.
    pub(super) fn crash(&self, host: u16, crash: Crash) -> Option<String> {
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
