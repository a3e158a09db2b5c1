//! Notices a stall while it lasts, and captures the stack of the loop's thread.
//!
//! A loop that runs a turn publishes when the turn began and what it runs. The watchdog is a task of the console's loop, so it
//! runs while the other loop is stalled. A turn that ended between two looks of the watchdog is taken from the loop's list of
//! long turns, without a stack.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use super::stack;
use super::state::{KnownLoop, Stall, State};
use crate::diagnostics::probe::{Entry, LongTurn, ticks};
use crate::spawn_blocking;
use crate::time::sleep;

/// How often the loops are checked: a fraction of the limit, within these bounds.
const MIN_PERIOD: Duration = Duration::from_millis(5);
const MAX_PERIOD: Duration = Duration::from_millis(50);

/// When a stack that could not be captured is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

pub(super) async fn watch(state: Rc<State>, captures: bool) {
    let period = (state.stall_limit / 5).clamp(MIN_PERIOD, MAX_PERIOD);
    loop {
        sleep(period).await;
        state.sync_loops();
        for known in state.loops() {
            state.record_ended(&known);
            if let Some(stall) = state.find_stall(&known)
                && captures
            {
                let capturing = capture(known.clone(), stall);
                // Another loop may stall meanwhile.
                crate::spawn(capturing).detach();
            }
        }
    }
}

/// Prepares for the first stack, on a thread of its own. Called for the first viewer: without one, the memory is not spent.
pub(super) fn warm_up() {
    static WARMED: std::sync::Once = std::sync::Once::new();
    WARMED.call_once(|| drop(spawn_blocking(stack::warm_up)));
}

async fn capture(known: Rc<KnownLoop>, stall: u64) {
    let lasts = || {
        known
            .stalls
            .borrow()
            .iter()
            .any(|known| known.id == stall && known.duration.is_none())
    };
    let stack = loop {
        match stack::capture(known.page.thread).await {
            Some(stack) => break stack,
            // On a busy machine the thread may not have run to handle the signal.
            None if lasts() => sleep(RETRY_AFTER).await,
            None => return,
        }
    };
    // Reading debug information may take a second.
    if let Ok(names) = spawn_blocking(move || stack.resolve()).await
        && let Some(stall) = known.stalls.borrow_mut().iter_mut().find(|known| known.id == stall)
    {
        stall.stack = names;
    }
}

impl State {
    /// Adds the turn that the loop is running, if it has just become a stall. Returns the stall's id.
    fn find_stall(&self, known: &KnownLoop) -> Option<u64> {
        let (turn, time) = self.turn_time(known)?;
        if time <= self.stall_limit || known.is_closed() {
            return None;
        }
        if known.stalls.borrow().back().is_some_and(|last| last.turn == turn) {
            self.update_culprit(known, turn);
            return None;
        }
        let began_ticks = known.page.current_turn().filter(|&(current, _)| current == turn)?.1;
        Some(self.add_stall(
            known,
            Stall {
                id: 0,
                turn,
                began: SystemTime::now() - time,
                began_ticks,
                duration: None,
                culprit: self.culprit_now(known, began_ticks),
                entries: None,
                stack: Vec::new(),
            },
        ))
    }

    /// The entry that runs, if it has taken most of the turn.
    fn culprit_now(&self, known: &KnownLoop, turn_began: u64) -> Option<Entry> {
        let entry = known.page.current_entry()?;
        let now = ticks();
        let (entry_time, turn_time) = (now.saturating_sub(entry.began), now.saturating_sub(turn_began));
        (entry_time > turn_time / 2).then(|| name_in_full(known, entry))
    }

    /// At first no entry may have taken most of the turn.
    fn update_culprit(&self, known: &KnownLoop, turn: u64) {
        let mut stalls = known.stalls.borrow_mut();
        if let Some(stall) = stalls
            .back_mut()
            .filter(|stall| stall.turn == turn && stall.culprit.is_none())
        {
            stall.culprit = self.culprit_now(known, stall.began_ticks);
        }
    }

    fn add_stall(&self, known: &KnownLoop, stall: Stall) -> u64 {
        let id = self.next_stall.get();
        self.next_stall.set(id + 1);
        known.stall_count.set(known.stall_count.get() + 1);
        let mut stalls = known.stalls.borrow_mut();
        stalls.push_back(Stall { id, ..stall });
        if stalls.len() > self.max_stalls {
            stalls.pop_front();
        }
        id
    }

    /// Completes the stalls that have ended, and adds those that the watchdog has missed.
    pub(super) fn record_ended(&self, known: &KnownLoop) {
        let (long_turns, count) = known.page.long_turns_after(known.seen_long_turns.get());
        known.seen_long_turns.set(count);
        for long in long_turns {
            let duration = self.scale.duration(long.ended.saturating_sub(long.began));
            // Another console may have a shorter limit.
            if duration > self.stall_limit {
                self.record_long_turn(known, long, duration);
            }
        }
        if known.is_closed() {
            for stall in known
                .stalls
                .borrow_mut()
                .iter_mut()
                .filter(|stall| stall.duration.is_none())
            {
                stall.duration = Some(stall.began.elapsed().unwrap_or_default());
            }
        }
    }

    fn record_long_turn(&self, known: &KnownLoop, long: LongTurn, duration: Duration) {
        let culprit = long.culprit.map(|entry| name_in_full(known, entry));
        if let Some(stall) = known
            .stalls
            .borrow_mut()
            .iter_mut()
            .find(|stall| stall.turn == long.turn)
        {
            stall.duration = Some(duration);
            stall.culprit = culprit.or(stall.culprit.take());
            stall.entries = Some(long.entries);
            return;
        }
        let ago = self.scale.duration(ticks().saturating_sub(long.began));
        self.add_stall(
            known,
            Stall {
                id: 0,
                turn: long.turn,
                began: SystemTime::now() - ago,
                began_ticks: long.began,
                duration: Some(duration),
                culprit,
                entries: Some(long.entries),
                stack: Vec::new(),
            },
        );
    }
}

/// A loop publishes only the beginning of a long name.
fn name_in_full(known: &KnownLoop, mut entry: Entry) -> Entry {
    let view = known.view.borrow();
    let task = view
        .as_ref()
        .and_then(|view| Some(&view.snapshot.tasks[*view.by_id.get(&entry.task)?]));
    if let Some(name) = task.and_then(|task| task.name.as_deref()) {
        entry.name = Some(name.to_owned());
    }
    entry
}
