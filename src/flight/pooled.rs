//! Flights that a thread carries, because the driver cannot do their operation without blocking.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::table::{Carrier, unwanted};
use crate::driver::{Completion, FdSpace, FlightId, Landing};
use crate::loop_core::{LoopCore, Mail};
use crate::op::Op;
use crate::remote::Letterbox;
use crate::sys::{self, Brake, errno};

impl LoopCore {
    /// Has a thread of the loop's own pool carry a flight. If its queue is full, the flight waits here. Gives the landing of one
    /// that no thread can be had for.
    pub(super) fn give_to_pool(&self, id: FlightId, op: Op) -> Option<Landing> {
        // A thread makes system calls, which would take the driver's numbers for the kernel's.
        let is_on_descriptor = op.fd().is_some() || matches!(op, Op::Open { .. });
        if self.fd_space == FdSpace::Own && is_on_descriptor {
            return Some(Landing::last(Err(errno::NOT_SUPPORTED)));
        }
        if !self.uncarried.borrow().is_empty() {
            self.set_carrier(id, Carrier::Nobody);
            self.uncarried.borrow_mut().push_back(id);
            return None;
        }
        self.try_to_carry(id, op).err().flatten()
    }

    /// An error if the queue is full, or, with its landing, if no thread can be had. Runs no foreign code.
    fn try_to_carry(&self, id: FlightId, op: Op) -> Result<(), Option<Landing>> {
        let letterbox = self.letterbox.clone();
        let brake = Brake::of(&op);
        let pulled = brake.clone();
        let carry = move || {
            // SAFETY: the flight owns what `op` points to, in one place, until it has landed, and nobody else uses that
            // meanwhile. Its landing is sent when this call is over.
            let outcome = unsafe { brake.perform(op) };
            // No file work says that it would have to wait, except on a descriptor that somebody made non-blocking.
            let outcome = outcome.unwrap_or(Err(errno::AGAIN));
            // A loop that does not take it any more has leaked the flight, but what that opened need not stay open.
            if letterbox.send(Mail::Landed(id, outcome)).is_err()
                && let Some(ending) = unwanted(&op, outcome)
            {
                drop(sys::control(ending));
            }
        };
        match self.files.submit(Box::new(carry)) {
            Ok(job) => {
                self.set_carrier(id, Carrier::Pool(job));
                if let Some(entry) = self.flights.borrow_mut().entry(id) {
                    entry.brake = pulled;
                }
            }
            Err((_, None)) => {
                self.set_carrier(id, Carrier::Nobody);
                self.uncarried.borrow_mut().push_front(id);
                let waker = Waker::from(Arc::new(TellOfRoom(self.letterbox.clone())));
                if !self.files.wait_for_room(&waker) {
                    // It was made in the meantime.
                    waker.wake();
                }
                return Err(None);
            }
            Err((_, Some(error))) => {
                let code = crate::error::os_code(&error).unwrap_or(errno::AGAIN);
                return Err(Some(Landing::last(Err(code))));
            }
        }
        Ok(())
    }

    /// There is room in the pool's queue.
    pub(crate) fn carry_more(&self) {
        loop {
            let next = self.uncarried.borrow_mut().pop_front();
            let Some(id) = next else { return };
            let op = self.flights.borrow_mut().entry(id).map(|entry| entry.op);
            let Some(op) = op else { continue };
            match self.try_to_carry(id, op) {
                Ok(()) => {}
                Err(Some(landing)) => self.land_one(id, landing),
                Err(None) => return,
            }
        }
    }

    /// Asks whoever carries a flight to end it early.
    pub(crate) fn cancel_flight(&self, id: FlightId) {
        // In a forked child it is the parent's: neither the kernel nor a thread works for this process.
        if self.is_forked() {
            return;
        }
        let (carrier, brake) = match self.flights.borrow_mut().entry(id) {
            Some(entry) => (entry.carrier, entry.brake.clone()),
            None => return,
        };
        let taken_back = match carrier {
            Carrier::Driver => return self.driver().cancel(id),
            Carrier::Pool(job) => {
                let taken_back = self.files.take_back(job);
                if !taken_back {
                    brake.pull();
                }
                taken_back
            }
            Carrier::Nobody => {
                self.uncarried.borrow_mut().retain(|&uncarried| uncarried != id);
                true
            }
        };
        if taken_back {
            self.land_one(id, Landing::last(Err(errno::CANCELED)));
        }
    }

    pub(crate) fn land_one(&self, id: FlightId, landing: Landing) {
        self.land(&mut vec![Completion { id, landing }]);
    }

    fn set_carrier(&self, id: FlightId, carrier: Carrier) {
        self.flights.borrow_mut().set_carrier(id, carrier);
    }
}

/// Tells the loop that the pool has room.
struct TellOfRoom(Arc<Letterbox<Mail>>);

impl Wake for TellOfRoom {
    fn wake(self: Arc<Self>) {
        drop(self.0.send(Mail::PoolHasRoom));
    }
}
