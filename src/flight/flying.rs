//! A flight as the future that waits for it.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::cargo::{load_of, unload};
use super::table::Fate;
use crate::driver::{FlightId, Landing};
use crate::lane::Lane;
use crate::loop_core::LoopCore;
use crate::op::Op;

/// A flight's future: resolves to what landed and the load. Dropping it leaves the flight in its lane as an orphan.
#[must_use = "a flight that is not awaited is cancelled at once"]
pub(crate) struct Flying<'a, T> {
    core: &'a LoopCore,
    lane: &'a Lane,
    id: FlightId,
    fate: Fate,
    down: bool,
    load: PhantomData<fn() -> T>,
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
        let id = core.launch(load, prefix, plan);
        lane.flight.set(Some(id));
        Flying {
            core,
            lane,
            id,
            fate,
            down: false,
            load: PhantomData,
        }
    }
}

impl<T: 'static> Future for Flying<'_, T> {
    type Output = (Landing, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Landing, T)> {
        assert!(!self.down, "polled again after it had landed");
        if self.core.await_landing(self.id, cx.waker()) {
            return Poll::Pending;
        }
        if !self.core.spend_budget(cx) {
            return Poll::Pending;
        }
        let (landing, cargo) = self.core.fetch(self.id).expect("a flight stays until it is fetched");
        // SAFETY: `launch::<T>` loaded this flight, it has landed, and `down` makes sure that this happens once.
        let load = unsafe { unload::<T>(load_of(cargo)) };
        self.core.flights.borrow_mut().release(self.id);
        self.down = true;
        self.lane.flight.set(None);
        Poll::Ready((landing, load))
    }
}

impl<T> Drop for Flying<'_, T> {
    fn drop(&mut self) {
        if !self.down {
            self.core.orphan(self.id, self.fate);
        }
    }
}
