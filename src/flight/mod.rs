//! Flights: operations between their start and their last completion.
//!
//! The kernel writes to a flight's memory while nobody looks, so that memory must not move and must not be freed, come
//! what may: the future that wanted the result can be dropped, forgotten or unwound, the whole loop can go. Hence the
//! split:
//!
//! - The **cargo** is one heap box per place in the table: the driver's scratch and the load, which is whatever has to
//!   live as long as the kernel works (the buffer and a share of the descriptor). A load of up to 64 bytes lies
//!   inline, a larger one is boxed. While the flight is in the air nobody makes a reference into the cargo; there are only
//!   raw pointers.
//! - The **entry** in the table is the header: who waits, what landed, who inherited it. It may move; nothing points to
//!   it. Completions find it by index and generation.
//!
//! Places are recycled, so after warm-up an operation allocates nothing. A place that is still in the air when the table
//! is dropped is leaked: closing a ring is no barrier, and a leak is harmless where a write to freed memory is not.
//!
//! A flight is carried by the driver, or, if that has no way to do it without blocking, by a thread of the loop's own pool
//! (`pooled`). The thread gets a copy of the plain op, never the flight.
//!
//! Nothing in this file runs foreign code (wakers, destructors) while the table is borrowed: what is to be woken or
//! dropped is handed out, and the caller does it afterwards.

mod cargo;
mod flying;
mod pooled;
mod table;

use std::rc::Rc;
use std::task::{Poll, Waker};

use self::cargo::{Cargo, drop_load, load_of, load_up};
pub(crate) use self::flying::{Airborne, Flying};
use self::table::Phase;
pub(crate) use self::table::{Fate, FlightTable, Listener};
use crate::driver::{Completion, FlightId, Landing, Outcome, Start};
use crate::exception::guard;
use crate::lane::Lane;
use crate::loop_core::LoopCore;
use crate::op::Op;
use crate::sys::{Envelope, errno};

impl LoopCore {
    /// Starts an operation: moves its load to the final address, lets `plan` take the pointers there, and hands the
    /// plain op to the driver. Its id is in `lane` from the moment on when the driver has it.
    ///
    /// It calls no tracing subscriber, which is foreign code: the caller calls [`trace`](LoopCore::trace) once the operation can be
    /// found and no borrow is held.
    pub(crate) fn launch<T: 'static>(
        &self,
        lane: &Lane,
        load: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> Launched {
        let (id, cargo) = self.flights.borrow_mut().reserve();
        // SAFETY: the place is reserved and empty.
        let load = unsafe { load_up(load_of(cargo), load) };
        // SAFETY: the load was just written and nobody else has a pointer to it. This is the last reference made into
        // it before it lands. If `plan` panics (a foreign buffer type), the load and its place are leaked.
        let op = plan(unsafe { &mut *load });
        {
            let mut flights = self.flights.borrow_mut();
            flights.take_off(id, op, prefix, drop_load::<T>);
        }
        lane.flight.set(Some(id));
        // SAFETY: `cargo` is allocated until the flight has landed; this only computes an address.
        let scratch = unsafe { &raw mut (*cargo).scratch };
        // SAFETY: the flight `id` owns the load that `op` points into and the scratch. Both stay in place, and nobody
        // touches them, until the flight's last completion has landed: `Flying::poll` and `discard` ask the phase.
        let start = unsafe { self.driver().start(id, op, scratch) };
        let landing = match start {
            Start::Done(landing) => Some(landing),
            Start::Pending => None,
            Start::Blocking => self.give_to_pool(id, op),
        };
        let outcome = landing.as_ref().map(|landing| landing.outcome);
        if let Some(landing) = landing {
            let touchdown = self.flights.borrow_mut().land(Completion { id, landing });
            debug_assert!(touchdown.waker.is_none() && !touchdown.stale);
        }
        Launched { id, op, outcome }
    }

    /// Emits the events of an operation that was started, and perhaps completed at once.
    #[inline]
    pub(crate) fn trace(&self, launched: Launched) {
        crate::trace::op_started(launched.id, &launched.op);
        if let Some(outcome) = launched.outcome {
            crate::trace::op_landed(launched.id, outcome);
        }
    }

    /// Registers `waker` with a flight. False if there is nothing to wait for: it has landed, or it is gone.
    #[inline]
    pub(crate) fn await_landing(&self, id: FlightId, waker: &Waker) -> bool {
        {
            let mut flights = self.flights.borrow_mut();
            let Some(entry) = flights.entry(id) else { return false };
            if !matches!(entry.phase, Phase::InAir) {
                return false;
            }
            if entry.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                return true;
            }
        }
        self.register(id, waker)
    }

    fn register(&self, id: FlightId, waker: &Waker) -> bool {
        // Cloning and dropping wakers is foreign code, so neither happens under the borrow. The flight may land or be fetched
        // inside of the clone, so its phase is asked for again.
        let mut waker = Some(waker.clone());
        let in_air = match self.flights.borrow_mut().entry(id) {
            Some(entry) if matches!(entry.phase, Phase::InAir) => {
                std::mem::swap(&mut entry.waker, &mut waker);
                true
            }
            _ => false,
        };
        drop(waker);
        in_air
    }

    /// Has `listener` called when a flight lands. False if there is nothing to wait for: it has landed, or it is gone.
    fn listen(&self, id: FlightId, listener: Rc<dyn Listener>) -> bool {
        let mut flights = self.flights.borrow_mut();
        let in_air = flights.entry(id).filter(|entry| matches!(entry.phase, Phase::InAir));
        let Some(entry) = in_air else {
            drop(flights);
            return false;
        };
        debug_assert!(entry.listener.is_none(), "a flight has one listener");
        entry.listener = Some(listener);
        true
    }

    /// Asks for the end of a flight that is still wanted until then.
    pub(crate) fn ask_to_end(&self, id: FlightId) {
        let cancel = match self.flights.borrow_mut().entry(id) {
            Some(entry) => matches!(entry.phase, Phase::InAir) && !std::mem::replace(&mut entry.cancelling, true),
            None => false,
        };
        if cancel {
            self.cancel_flight(id);
        }
    }

    /// Asks for the end of a flight that has a listener, which sees to the rest; the current task waits for it before it counts
    /// as finished. False if it has none.
    pub(crate) fn ask_listened_to_end(&self, id: FlightId) -> bool {
        {
            let mut flights = self.flights.borrow_mut();
            let Some(entry) = flights.entry(id) else { return false };
            if entry.listener.is_none() {
                return false;
            }
            if entry.owner.is_none() {
                entry.owner = self.current_owner();
            }
        }
        self.ask_to_end(id);
        true
    }

    /// The outcome of a flight that has landed and was not taken.
    pub(crate) fn outcome_of(&self, id: FlightId) -> Option<Outcome> {
        match &self.flights.borrow_mut().entry(id)?.phase {
            Phase::Landed(landing) => Some(landing.outcome),
            Phase::InAir | Phase::Free => None,
        }
    }

    /// Takes the outcome of a flight that has landed, and frees its place.
    pub(crate) fn take_outcome(&self, id: FlightId) -> Option<Outcome> {
        let (landing, cargo) = self.fetch(id)?;
        self.drop_load(id, cargo);
        Some(landing.outcome)
    }

    /// Nobody waits for this flight any more, though it goes on.
    pub(crate) fn forget_waker(&self, id: FlightId) {
        let waker = match self.flights.borrow_mut().entry(id) {
            Some(entry) => entry.waker.take(),
            None => None,
        };
        drop(waker);
    }

    /// Waits until an orphan in a lane is down.
    pub(crate) async fn landed(&self, id: FlightId) {
        std::future::poll_fn(|cx| match self.await_landing(id, cx.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await
    }

    /// Whether a flight has landed, or is gone.
    pub(crate) fn is_down(&self, id: FlightId) -> bool {
        let mut flights = self.flights.borrow_mut();
        flights
            .entry(id)
            .is_none_or(|entry| !matches!(entry.phase, Phase::InAir))
    }

    /// Takes what landed; the load stays until it is unloaded or dropped, and the flight released.
    #[inline]
    fn fetch(&self, id: FlightId) -> Option<(Landing, *mut Cargo)> {
        let mut flights = self.flights.borrow_mut();
        let entry = flights.entry(id)?;
        let Phase::Landed(landing) = &mut entry.phase else {
            return None;
        };
        let landing = std::mem::replace(landing, Landing::last(Err(errno::CANCELED)));
        Some((landing, entry.cargo))
    }

    /// Drops a landed flight's load, with the table not borrowed, and frees its place.
    fn drop_load(&self, id: FlightId, cargo: *mut Cargo) {
        let drop_load = self
            .flights
            .borrow_mut()
            .entry(id)
            .and_then(|entry| entry.drop_load.take());
        if let Some(drop_load) = drop_load {
            // SAFETY: the flight has landed, its load was not fetched, and taking `drop_load` out of the entry makes this
            // the only place that will drop it.
            guard("a buffer's destructor", || unsafe { drop_load(load_of(cargo)) });
        }
        self.flights.borrow_mut().release(id);
    }

    /// Whether the future of the flight in a lane is gone and what it received is to be read: the bytes of a landed
    /// orphan, in order, or its error. Frees the flight.
    pub(crate) fn harvest(&self, id: FlightId) -> Harvest {
        let mut harvest = Harvest::default();
        let Some((landing, cargo)) = self.fetch(id) else {
            return harvest;
        };
        let (op, prefix) = match self.flights.borrow_mut().entry(id) {
            Some(entry) => (entry.op, entry.prefix),
            None => return harvest,
        };
        let received = landing.outcome.unwrap_or(0) as usize;
        match op {
            Op::Recv { ptr, .. } | Op::ReadAt { ptr, .. } => {
                // SAFETY: the load owns `prefix` bytes in front of `ptr`, all received by earlier flights of this call,
                // and `received` bytes from it on. The flight has landed, so nobody writes there any more.
                harvest.bytes = unsafe { std::slice::from_raw_parts(ptr.sub(prefix), prefix + received) }.to_vec();
            }
            Op::RecvVectored { slices, count, .. } | Op::ReadVectoredAt { slices, count, .. } => {
                // SAFETY: the load owns the slices and what they point to; the flight has landed.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let mut left = received;
                for slice in slices {
                    let part = left.min(slice.len);
                    // SAFETY: as above; the kernel filled the slices in order, so these bytes are initialised.
                    let bytes = unsafe { std::slice::from_raw_parts(slice.base, part) };
                    harvest.bytes.extend_from_slice(bytes);
                    left -= part;
                }
            }
            Op::RecvManaged { .. } => {
                if let Some(buffer) = &landing.buffer {
                    harvest.bytes = buffer.filled().to_vec();
                }
            }
            Op::RecvMessage { message, .. } => {
                // SAFETY: the load owns the message and what it points to; the flight has landed.
                let message = unsafe { &mut *message };
                if landing.outcome.is_ok() {
                    // SAFETY: as above; the kernel has filled this many bytes.
                    let bytes = unsafe { message.bytes() };
                    // SAFETY: as above.
                    harvest.bytes = unsafe { std::slice::from_raw_parts(bytes.base, received) }.to_vec();
                    // SAFETY: as above.
                    harvest.envelope = Some(unsafe { message.open() });
                }
            }
            Op::RecvMessageManaged { message, .. } => {
                if landing.outcome.is_ok() {
                    harvest.bytes = landing
                        .buffer
                        .as_ref()
                        .map_or_else(Vec::new, |buffer| buffer.filled().to_vec());
                    // SAFETY: the load owns the message and what it points to; the flight has landed.
                    harvest.envelope = Some(unsafe { (*message).open() });
                }
            }
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Send { .. }
            | Op::SendMessage { .. }
            | Op::SendVectored { .. }
            | Op::Readiness { .. }
            | Op::Open { .. }
            | Op::WriteAt { .. }
            | Op::WriteVectoredAt { .. }
            | Op::Sync { .. }
            | Op::Stat { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::Rename { .. }
            | Op::Remove { .. }
            | Op::MakeFolder { .. }
            | Op::HardLink { .. }
            | Op::SymLink { .. } => {}
        }
        harvest.error = lasting_error(landing.outcome);
        drop(landing);
        self.drop_load(id, cargo);
        harvest
    }

    /// The future of this flight is gone. Asks for its cancel, makes the current task wait for it before it counts as
    /// finished, and decides what happens when it lands.
    pub(crate) fn orphan(&self, id: FlightId, fate: Fate) {
        let (waker, listener);
        let cancel;
        let mut unwanted = None;
        let mut landed = None;
        {
            let mut flights = self.flights.borrow_mut();
            let Some(entry) = flights.entry(id) else { return };
            waker = entry.waker.take();
            listener = entry.listener.take();
            entry.orphan = Some(fate);
            match &entry.phase {
                Phase::InAir => {
                    cancel = !std::mem::replace(&mut entry.cancelling, true);
                    // Its first owner, if it had one, keeps it.
                    if entry.owner.is_none() {
                        entry.owner = self.current_owner();
                    }
                }
                Phase::Landed(landing) => {
                    cancel = false;
                    if fate == Fate::Discard {
                        unwanted = table::unwanted(&entry.op, landing.outcome);
                        landed = Some(entry.cargo);
                    }
                }
                Phase::Free => return,
            }
        }
        drop((waker, listener));
        if let Some(ending) = unwanted {
            let _ = self.control(ending);
        }
        if cancel {
            self.cancel_flight(id);
        }
        if let Some(cargo) = landed {
            self.drop_load(id, cargo);
        }
    }

    /// Delivers completions: wakes who waits, drops what nobody will fetch.
    pub(crate) fn land(&self, landed: &mut Vec<Completion>) {
        for completion in landed.drain(..) {
            crate::trace::op_landed(completion.id, completion.landing.outcome);
            let landed = self.flights.borrow_mut().land_wanted(completion);
            let completion = match landed {
                Ok(waker) => {
                    if let Some(waker) = waker {
                        guard("a waker", || waker.wake());
                    }
                    continue;
                }
                Err(completion) => completion,
            };
            let touchdown = self.flights.borrow_mut().land(completion);
            if touchdown.stale {
                self.counters
                    .stale_completions
                    .set(self.counters.stale_completions.get() + 1);
                continue;
            }
            if let Some(waker) = touchdown.waker {
                guard("a waker", || waker.wake());
            }
            if let Some(listener) = touchdown.listener {
                guard("a landing's listener", || listener.landed());
            }
            if let Some(ending) = touchdown.unwanted {
                let _ = self.control(ending);
            }
            if let Some(id) = touchdown.discard
                && let Some((_, cargo)) = self.fetch(id)
            {
                self.drop_load(id, cargo);
            }
            drop(touchdown.owner);
        }
    }
}

/// The error of a read, if the next reader has to be told: a cancel that worked, or an empty pool, took nothing from the stream.
/// Any other error is told only once by the kernel.
pub(crate) fn lasting_error(outcome: Outcome) -> Option<i32> {
    outcome
        .err()
        .filter(|&code| code != errno::CANCELED && code != errno::NO_BUFFERS && code != errno::INTERRUPTED)
}

/// An operation that was handed to the driver, for [`LoopCore::trace`].
#[derive(Clone, Copy)]
pub(crate) struct Launched {
    pub(crate) id: FlightId,
    op: Op,
    /// How it went, if it is over already.
    outcome: Option<Outcome>,
}

/// What a dropped read had received.
#[derive(Default)]
pub(crate) struct Harvest {
    pub(crate) bytes: Vec<u8>,
    /// What came with them, if they are a message.
    pub(crate) envelope: Option<Envelope>,
    pub(crate) error: Option<i32>,
}

impl Harvest {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.envelope.is_none() && self.error.is_none()
    }
}
