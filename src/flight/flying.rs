//! A flight as the future that waits for it.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Launched;
use super::cargo::{load_of, unload};
use super::table::{Fate, Listener};
use crate::driver::{FlightId, Landing};
use crate::lane::Lane;
use crate::loop_core::LoopCore;
use crate::op::Op;

/// A flight and the type of its load: what is needed to fetch it, for who knows the loop and the lane. To be
/// [left](Airborne::leave) if it is not fetched.
pub(crate) struct Airborne<T> {
    id: FlightId,
    fate: Fate,
    down: bool,
    load: PhantomData<fn() -> T>,
}

impl<T: 'static> Airborne<T> {
    /// Launches and remembers the flight in its lane.
    pub(crate) fn launch(
        core: &LoopCore,
        lane: &Lane,
        fate: Fate,
        load: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> Airborne<T> {
        let (airborne, launched) = Airborne::launch_untraced(core, lane, fate, load, prefix, plan);
        core.trace(launched);
        airborne
    }

    /// The same for a caller that holds a borrow: it passes the second part to [`LoopCore::trace`] when the borrow has ended.
    pub(crate) fn launch_untraced(
        core: &LoopCore,
        lane: &Lane,
        fate: Fate,
        load: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> (Airborne<T>, Launched) {
        let launched = core.launch(lane, load, prefix, plan);
        let airborne = Airborne {
            id: launched.id,
            fate,
            down: false,
            load: PhantomData,
        };
        (airborne, launched)
    }

    pub(crate) fn poll(&mut self, core: &LoopCore, lane: &Lane, cx: &mut Context<'_>) -> Poll<(Landing, T)> {
        assert!(!self.down, "polled again after it had landed");
        if core.await_landing(self.id, cx.waker()) || !core.spend_budget(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.fetch(core, lane).expect("a flight stays until it is fetched"))
    }

    /// What landed, if it has.
    pub(crate) fn fetch(&mut self, core: &LoopCore, lane: &Lane) -> Option<(Landing, T)> {
        if self.down {
            return None;
        }
        let (landing, cargo) = core.fetch(self.id)?;
        // SAFETY: `launch::<T>` loaded this flight, it has landed, and `down` makes sure that this happens once.
        let load = unsafe { unload::<T>(load_of(cargo)) };
        core.flights.borrow_mut().release(self.id);
        self.down = true;
        lane.flight.set(None);
        Some((landing, load))
    }

    /// Has the loop call `listener` when it lands. False if it has landed already.
    pub(crate) fn listen(&self, core: &LoopCore, listener: Rc<dyn Listener>) -> bool {
        core.listen(self.id, listener)
    }
}

impl<T> Airborne<T> {
    /// Nobody will fetch it: if it was not, it stays in its lane as an orphan.
    pub(crate) fn leave(&mut self, core: &LoopCore) {
        if !std::mem::replace(&mut self.down, true) {
            core.orphan(self.id, self.fate);
        }
    }
}

/// A flight's future: resolves to what landed and the load. Dropping it leaves the flight in its lane as an orphan.
#[must_use = "a flight that is not awaited is cancelled at once"]
pub(crate) struct Flying<'a, T> {
    core: &'a LoopCore,
    lane: &'a Lane,
    airborne: Airborne<T>,
}

impl<'a, T: 'static> Flying<'a, T> {
    /// Launches and remembers the flight in its lane.
    pub(crate) fn launch(
        core: &'a LoopCore,
        lane: &'a Lane,
        fate: Fate,
        load: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> Flying<'a, T> {
        let airborne = Airborne::launch(core, lane, fate, load, prefix, plan);
        Flying { core, lane, airborne }
    }
}

impl<T: 'static> Future for Flying<'_, T> {
    type Output = (Landing, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Landing, T)> {
        let Flying { core, lane, airborne } = &mut *self;
        airborne.poll(core, lane, cx)
    }
}

impl<T> Drop for Flying<'_, T> {
    fn drop(&mut self) {
        self.airborne.leave(self.core);
    }
}
