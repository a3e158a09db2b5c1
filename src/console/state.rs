//! What the console knows: the loops of the process, their last snapshots, and their stalls. On the console's thread.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use super::process::Process;
use crate::blocking::PoolCounters;
use crate::diagnostics::dump::Waiting;
use crate::diagnostics::probe::{Entry, LoopPage, Scale, Snapshot, loops, ticks};
use crate::sync::Lock;
use crate::sync::thread::{OneshotReceiver, oneshot};
use crate::time::{self, timeout_at};

/// Snapshots are taken at most once in this time, however many viewers there are.
const FRESH: Duration = Duration::from_millis(250);

/// How long a request waits for the snapshots of all loops. A loop that does not answer is shown as it was.
const ANSWER: Duration = Duration::from_millis(200);

/// A loop whose turn lasts this long is not waited for.
const BUSY: Duration = Duration::from_millis(100);

/// Loops that have closed are shown for this long, and at most this number of them.
const SHOW_CLOSED: Duration = Duration::from_secs(60);
const MAX_CLOSED: usize = 16;

/// How old the description of the process may be: counting descriptors reads a folder.
const FRESH_PROCESS: Duration = Duration::from_secs(1);

pub(super) struct State {
    pub(super) scale: &'static Scale,
    pub(super) stall_limit: Duration,
    pub(super) max_stalls: usize,
    pub(super) started: Instant,
    loops: RefCell<Vec<Rc<KnownLoop>>>,
    /// Held while snapshots are taken.
    refreshing: Lock<Option<Instant>>,
    process: RefCell<Option<(Instant, Process)>>,
    pub(super) next_stall: Cell<u64>,
}

/// A loop, and what was learned about it.
pub(super) struct KnownLoop {
    pub(super) page: Arc<LoopPage>,
    pub(super) view: RefCell<Option<Rc<View>>>,
    /// The snapshot that was asked for.
    pending: RefCell<Option<OneshotReceiver<Snapshot>>>,
    pub(super) stalls: RefCell<VecDeque<Stall>>,
    /// All stalls so far; `stalls` has the last ones.
    pub(super) stall_count: Cell<u64>,
    /// The long turns of the page that are in `stalls`.
    pub(super) seen_long_turns: Cell<u64>,
    closed_at: Cell<Option<Instant>>,
}

/// A turn that took longer than the limit.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    pub(super) id: u64,
    /// The turn's number.
    pub(super) turn: u64,
    pub(super) began: SystemTime,
    /// When it began, in ticks.
    pub(super) began_ticks: u64,
    /// `None` while it lasts.
    pub(super) duration: Option<Duration>,
    pub(super) culprit: Option<Entry>,
    pub(super) entries: Option<usize>,
    pub(super) stack: Vec<String>,
}

/// A snapshot, and what follows from it.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    /// What each task waits for, by its index.
    pub(super) waits: Vec<Vec<Waiting>>,
    /// The indices of tasks, by their ids.
    pub(super) by_id: HashMap<u64, usize>,
    /// The tasks that wait for each of the snapshot's operations.
    pub(super) op_tasks: Vec<Option<u64>>,
    /// The first timers: their deadlines, and the tasks that wait for them.
    pub(super) timers: Vec<(time::Instant, Option<u64>)>,
}

/// Timers that are listed.
const MAX_TIMERS: usize = 100;

impl View {
    fn new(mut snapshot: Snapshot) -> View {
        snapshot.tasks.sort_unstable_by_key(|task| task.id);
        let by_address: HashMap<usize, usize> = snapshot
            .tasks
            .iter()
            .enumerate()
            .map(|(index, task)| (task.address, index))
            .collect();
        let by_id = snapshot
            .tasks
            .iter()
            .enumerate()
            .map(|(index, task)| (task.id, index))
            .collect();
        let mut waits: Vec<Vec<Waiting>> = snapshot
            .tasks
            .iter()
            .map(|task| task.reason.iter().cloned().collect())
            .collect();
        let id_at = |address: usize| by_address.get(&address).map(|&index| snapshot.tasks[index].id);
        let op_tasks = snapshot.ops.iter().map(|&(_, _, address)| id_at(address)).collect();
        for &(name, fd, address) in &snapshot.ops {
            if let Some(&index) = by_address.get(&address) {
                waits[index].push(Waiting::Op { name, fd });
            }
        }
        for &(when, address) in &snapshot.timers {
            if let Some(&index) = by_address.get(&address) {
                waits[index].push(Waiting::Timer(match when {
                    time::Instant::NEVER => Duration::MAX,
                    when => when - snapshot.now,
                }));
            }
        }
        for (task, waits) in snapshot.tasks.iter().zip(&mut waits) {
            if task.state != crate::TaskState::Waiting {
                waits.clear();
            }
        }
        snapshot.timers.sort_unstable();
        let first = snapshot.timers.iter().take(MAX_TIMERS);
        let timers = first.map(|&(when, address)| (when, id_at(address))).collect();
        View {
            waits,
            by_id,
            op_tasks,
            timers,
            snapshot,
        }
    }

    /// The time since the snapshot was taken.
    pub(super) fn age(&self) -> Duration {
        self.snapshot.taken.elapsed()
    }
}

/// What a loop is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopState {
    Running,
    Waiting,
    Stalled,
    Closed,
}

impl LoopState {
    pub(super) fn name(self) -> &'static str {
        match self {
            LoopState::Running => "running",
            LoopState::Waiting => "waiting",
            LoopState::Stalled => "stalled",
            LoopState::Closed => "closed",
        }
    }
}

impl State {
    pub(super) fn new(stall_limit: Duration, max_stalls: usize) -> State {
        State {
            scale: Scale::measure(),
            stall_limit,
            max_stalls,
            started: Instant::now(),
            loops: RefCell::default(),
            refreshing: Lock::new(None),
            process: RefCell::default(),
            next_stall: Cell::new(1),
        }
    }

    /// The loops that are shown, by their ids.
    pub(super) fn loops(&self) -> Vec<Rc<KnownLoop>> {
        self.loops.borrow().clone()
    }

    /// Adds the loops that were made, and removes those that closed some time ago.
    pub(super) fn sync_loops(&self) {
        let mut known = self.loops.borrow_mut();
        for page in loops() {
            if !known.iter().any(|known| Arc::ptr_eq(&known.page, &page)) {
                known.push(Rc::new(KnownLoop::new(page)));
            }
        }
        let now = Instant::now();
        for known in known
            .iter()
            .filter(|known| known.is_closed() && known.closed_at.get().is_none())
        {
            known.closed_at.set(Some(now));
            // It may be large, and describes nothing any more.
            known.view.take();
            known.pending.take();
        }
        known.retain(|known| known.closed_at.get().is_none_or(|at| now - at < SHOW_CLOSED));
        let closed = known.iter().filter(|known| known.is_closed()).count();
        let mut surplus = closed.saturating_sub(MAX_CLOSED);
        known.retain(|known| {
            let goes = surplus > 0 && known.is_closed();
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// Takes new snapshots, unless the last ones are fresh.
    pub(super) async fn refresh(&self) {
        let mut refreshed = self.refreshing.lock().await;
        if refreshed.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        self.sync_loops();
        let deadline = time::Instant::now() + ANSWER;
        let loops = self.loops();
        let asked: Vec<_> = loops.iter().filter(|known| self.ask(known)).collect();
        for known in asked {
            known.receive(deadline).await;
        }
        *refreshed = Some(Instant::now());
    }

    /// Asks a loop for a snapshot if anything has run since the last one. Returns whether to wait for the answer.
    fn ask(&self, known: &KnownLoop) -> bool {
        if known.is_closed() {
            return false;
        }
        // An answer that came too late for the request before.
        let is_unanswered = known.pending.borrow().is_some() && !known.try_receive();
        if is_unanswered || !known.has_changed() {
            return false;
        }
        let (sender, receiver) = oneshot();
        let page = known.page.clone();
        let call = move || {
            if let Some(snapshot) = Snapshot::of_current(&page) {
                // The console may have ended.
                drop(sender.send(snapshot));
            }
        };
        if known.page.handle.call_soon_threadsafe(call).is_err() {
            return false;
        }
        known.pending.replace(Some(receiver));
        self.turn_time(known).is_none_or(|(_, time)| time < BUSY)
    }

    /// The number of the turn that the loop is running, and how long it has taken.
    pub(super) fn turn_time(&self, known: &KnownLoop) -> Option<(u64, Duration)> {
        let (turn, began) = known.page.current_turn()?;
        Some((turn, self.scale.duration(ticks().saturating_sub(began))))
    }

    pub(super) fn state_of(&self, known: &KnownLoop) -> LoopState {
        if known.is_closed() {
            return LoopState::Closed;
        }
        match self.turn_time(known) {
            None => LoopState::Waiting,
            Some((_, time)) if time > self.stall_limit => LoopState::Stalled,
            Some(_) => LoopState::Running,
        }
    }

    pub(super) fn process(&self) -> Process {
        let mut cached = self.process.borrow_mut();
        match &*cached {
            Some((at, process)) if at.elapsed() < FRESH_PROCESS => process.clone(),
            _ => {
                let process = Process::read();
                *cached = Some((Instant::now(), process.clone()));
                process
            }
        }
    }

    /// Changes when anything has run, or a stall has begun or ended.
    pub(super) fn version(&self) -> Version {
        let loops = self.loops.borrow();
        let each = loops.iter().map(|known| {
            let activity = known.view.borrow().as_ref().map_or(0, |view| view.snapshot.activity);
            let state = self.state_of(known);
            let stalls = known.stalls.borrow();
            let ongoing = stalls.iter().filter(|stall| stall.duration.is_none()).count();
            let frames = stalls.iter().map(|stall| stall.stack.len()).sum();
            LoopVersion {
                id: known.page.id,
                activity,
                is_stalled: state == LoopState::Stalled,
                is_closed: state == LoopState::Closed,
                stalls: (known.stall_count.get(), ongoing, frames),
                pools: known
                    .page
                    .pools
                    .iter()
                    .filter_map(|pool| pool.read())
                    .map(|(_, counters, _)| counters)
                    .collect(),
            }
        });
        Version(each.collect())
    }
}

/// Compares equal if nothing has changed.
#[derive(PartialEq, Eq)]
pub(super) struct Version(Vec<LoopVersion>);

#[derive(PartialEq, Eq)]
struct LoopVersion {
    id: u64,
    activity: u64,
    is_stalled: bool,
    is_closed: bool,
    /// How many there were, how many last, and the frames of their stacks.
    stalls: (u64, usize, usize),
    pools: Vec<PoolCounters>,
}

impl Version {
    pub(super) fn has_stall(&self) -> bool {
        self.0.iter().any(|each| each.is_stalled)
    }
}

impl KnownLoop {
    fn new(page: Arc<LoopPage>) -> KnownLoop {
        KnownLoop {
            page,
            view: RefCell::default(),
            pending: RefCell::default(),
            stalls: RefCell::default(),
            stall_count: Cell::new(0),
            seen_long_turns: Cell::new(0),
            closed_at: Cell::new(None),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.page.is_closed.load(Relaxed)
    }

    /// Whether anything has run since the last snapshot.
    fn has_changed(&self) -> bool {
        let view = self.view.borrow();
        view.as_ref()
            .is_none_or(|view| view.snapshot.activity != self.page.activity())
    }

    /// Whether the snapshot that was asked for has come.
    fn try_receive(&self) -> bool {
        let received = self.pending.borrow_mut().as_mut().map(|pending| pending.try_recv());
        match received {
            Some(Ok(snapshot)) => {
                self.set_snapshot(snapshot);
                true
            }
            Some(Err(crate::sync::TryRecvError::Closed)) => {
                self.pending.take();
                true
            }
            _ => false,
        }
    }

    async fn receive(&self, deadline: time::Instant) {
        let Some(mut pending) = self.pending.take() else { return };
        match timeout_at(deadline, &mut pending).await {
            Ok(Ok(snapshot)) => self.set_snapshot(snapshot),
            Ok(Err(_)) => {}
            Err(_) => drop(self.pending.replace(Some(pending))),
        }
    }

    fn set_snapshot(&self, snapshot: Snapshot) {
        self.pending.take();
        self.view.replace(Some(Rc::new(View::new(snapshot))));
    }
}
