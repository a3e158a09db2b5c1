//! The world: hosts on one virtual clock, scheduled by one thread.
//!
//! The world is no event loop. It takes the next event, sets the clock, and gives a turn to the loop that
//! the event concerns. Loops are never nested, and no program code runs while the world's state is borrowed: what ends or
//! starts loops is a command, carried out between turns.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::driver::{OP_NAMES, SimDriver};
use super::files::Files;
use super::handle::{BoxError, Sim};
use super::kernel::{Kernel, START};
use super::link::nanos;
use super::log::{EventKind, EventLog};
use super::misuse;
use super::names::Zone;
use super::net::Wire;
use super::notified::{LoopNotifier, Notified};
use super::quirks::kind::NAMES as QUIRK_NAMES;
use super::run_state::RunState;
use super::schedule::{Event, Schedule};
use super::settings::{Failure, FailureKind, Outcome, RunSettings};
use super::state::{TEST, WorldState};
use crate::driver::{Completion, Wait};
use crate::event_loop::simulated::Turned;
use crate::{Builder, EventLoop};

/// How many blocking jobs of a loop run at a time.
const JOBS: usize = 8;

/// The loops, which nothing but the world touches.
pub(super) struct World {
    pub(super) state: Rc<WorldState>,
    pub(super) loops: Vec<Option<EventLoop>>,
    /// The completions of a loop in its turn; its memory is kept between turns.
    pub(super) completed: Vec<Completion>,
    /// The result of the test, once it has ended.
    pub(super) result: Rc<RefCell<Option<Result<(), BoxError>>>>,
    pub(super) events: u64,
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

    pub(super) fn spawn_on(&self, loop_index: u32, future: impl Future<Output = ()> + 'static) {
        if let Some(event_loop) = &self.loops[loop_index as usize] {
            drop(event_loop.spawn(future));
        }
    }

    /// Makes a loop on a host.
    pub(super) fn add_loop(&mut self, host: u16, configure: impl FnOnce(Builder) -> Builder) -> std::io::Result<u32> {
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
pub(super) async fn guarded<F: Future>(state: &WorldState, future: F) -> Option<F::Output> {
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

pub(super) fn error_failure(message: String) -> Failure {
    Failure {
        kind: FailureKind::Error,
        message,
        location: None,
        details: Vec::new(),
    }
}
