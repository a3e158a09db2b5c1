//! The loops of the process, and whether a console runs.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::page::LoopPage;
use super::ticks::Scale;
use crate::blocking::PoolObserver;
use crate::driver::Description;
use crate::event_loop::handle::LoopHandle;
use crate::sys::{self, PerProcess};

/// Whether a console runs. Read in every turn of every loop, and written only when a console starts or ends.
static ON: AtomicBool = AtomicBool::new(false);

/// The shortest stall limit of the running consoles, in ticks.
static STALL_LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

#[derive(Default)]
struct State {
    loops: Vec<Arc<LoopPage>>,
    next_id: u64,
    /// The stall limits of the running consoles, in ticks.
    limits: Vec<u64>,
}

static STATE: PerProcess<Mutex<State>> = PerProcess::new(Mutex::default);

thread_local! {
    static IS_HIDDEN: Cell<bool> = const { Cell::new(false) };
}

fn state() -> MutexGuard<'static, State> {
    // The parent's console does not run in a forked child.
    sys::lock(STATE.get_or_replace(|| ON.store(false, Relaxed)))
}

#[inline]
pub(super) fn is_on() -> bool {
    ON.load(Relaxed)
}

#[inline]
pub(super) fn stall_limit() -> u64 {
    STALL_LIMIT.load(Relaxed)
}

/// The loops that this thread makes from now on are not shown.
pub(crate) fn hide_this_thread() {
    IS_HIDDEN.set(true);
}

/// Whether the loops of this thread are not shown.
pub(crate) fn is_hidden_thread() -> bool {
    IS_HIDDEN.get()
}

/// Adds a loop of this thread, unless the thread is hidden.
pub(super) fn add(driver: Description, handle: LoopHandle, pools: [PoolObserver; 2]) -> Option<Arc<LoopPage>> {
    if IS_HIDDEN.get() {
        return None;
    }
    let mut state = state();
    let page = Arc::new(LoopPage::new(state.next_id, driver, handle, pools));
    state.next_id += 1;
    state.loops.push(page.clone());
    Some(page)
}

/// Removes a loop that has closed.
pub(super) fn remove(page: &Arc<LoopPage>) {
    if !page.is_closed.swap(true, Relaxed) {
        let removed = {
            let mut state = state();
            let index = state.loops.iter().position(|known| Arc::ptr_eq(known, page));
            index.map(|index| state.loops.remove(index))
        };
        drop(removed);
    }
}

/// The loops that have not closed, by their ids.
pub(crate) fn loops() -> Vec<Arc<LoopPage>> {
    state().loops.clone()
}

/// While one exists, loops are measured.
pub(crate) struct Enabled {
    limit: u64,
}

/// Starts the measurements, for a console that takes a turn of more than `limit` for a stall.
pub(crate) fn enable(limit: Duration) -> Enabled {
    let limit = Scale::measure().ticks(limit);
    let mut state = state();
    state.limits.push(limit);
    state.apply();
    Enabled { limit }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let mut state = state();
        if let Some(index) = state.limits.iter().position(|&limit| limit == self.limit) {
            state.limits.swap_remove(index);
        }
        state.apply();
    }
}

impl State {
    fn apply(&self) {
        STALL_LIMIT.store(self.limits.iter().copied().min().unwrap_or(u64::MAX), Relaxed);
        ON.store(!self.limits.is_empty(), Relaxed);
    }
}
