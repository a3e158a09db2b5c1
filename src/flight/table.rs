//! The table: which flights there are, and what has landed.

use std::rc::Rc;
use std::task::Waker;

use super::cargo::{Cargo, load_of};
use crate::blocking::JobId;
use crate::driver::{Completion, Control, FlightId, Landing, Outcome};
use crate::exception::guard;
use crate::op::Op;
use crate::sys::{Brake, Fd};
use crate::task::Owner;

/// What becomes of a flight whose future is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays in its lane when it lands: the next read serves from it.
    Keep,
    /// Its load is dropped as soon as it lands.
    Discard,
}

pub(super) enum Phase {
    /// Nobody's.
    Free,
    /// Handed to the driver; the last completion has not landed.
    InAir,
    /// The last completion is here; the load has not been fetched.
    Landed(Landing),
}

/// Who carries a flight in the air.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Driver,
    /// A thread, under this number.
    Pool(JobId),
    /// Nobody yet: the pool's queue was full.
    Nobody,
}

/// Who is told of a landing in the place of a task. Called when nothing is borrowed, once per flight.
pub(crate) trait Listener {
    fn landed(self: Rc<Self>);
}

pub(super) struct Entry {
    pub(super) generation: u64,
    pub(super) phase: Phase,
    pub(super) waker: Option<Waker>,
    pub(super) listener: Option<Rc<dyn Listener>>,
    /// Set when the future is gone.
    pub(super) orphan: Option<Fate>,
    /// The task that cannot be joined before this orphan has landed.
    pub(super) owner: Option<Owner>,
    pub(super) op: Op,
    /// Bytes in front of the op's buffer that were received for the same call by earlier flights.
    pub(super) prefix: usize,
    /// Whether its cancel was asked for.
    pub(super) cancelling: bool,
    pub(super) carrier: Carrier,
    /// Ends what a thread does for it.
    pub(super) brake: Brake,
    pub(super) drop_load: Option<unsafe fn(*mut u8)>,
    /// Owned by this entry, never moved; while the phase is `InAir`, used by the kernel.
    pub(super) cargo: *mut Cargo,
}

/// What landing a completion asks the loop to do once the table is no longer borrowed.
#[derive(Default)]
pub(crate) struct Touchdown {
    pub(crate) waker: Option<Waker>,
    pub(crate) listener: Option<Rc<dyn Listener>>,
    pub(crate) owner: Option<Owner>,
    /// Nobody will fetch this flight: drop its load.
    pub(crate) discard: Option<FlightId>,
    /// How to end a connection that nobody will serve, or a file that nobody will use.
    pub(crate) unwanted: Option<Control<'static>>,
    pub(crate) stale: bool,
}

#[derive(Default)]
pub(crate) struct FlightTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    in_air: usize,
    /// Those of them that the driver does not carry.
    off_driver: usize,
}

impl FlightTable {
    /// How many flights the driver has.
    pub(crate) fn in_air(&self) -> usize {
        self.in_air
    }

    /// Whether threads carry some of them, or will.
    pub(crate) fn threads_carry(&self) -> bool {
        self.off_driver > 0
    }

    /// Says who carries a flight that the driver has given back.
    pub(super) fn set_carrier(&mut self, id: FlightId, carrier: Carrier) {
        let Some(entry) = self.entry(id) else { return };
        let before = std::mem::replace(&mut entry.carrier, carrier);
        self.off_driver += usize::from(before == Carrier::Driver);
    }

    /// How many places are taken: in the air, or landed and not fetched.
    pub(crate) fn taken(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    pub(super) fn entry(&mut self, id: FlightId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation && !matches!(entry.phase, Phase::Free)).then_some(entry)
    }

    #[inline]
    pub(super) fn reserve(&mut self) -> (FlightId, *mut Cargo) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let entry = &self.entries[index as usize];
        let generation = entry.generation;
        (FlightId { index, generation }, entry.cargo)
    }

    /// Makes one more place.
    #[cold]
    fn grow(&mut self) -> u32 {
        self.entries.push(Entry {
            generation: 0,
            phase: Phase::Free,
            waker: None,
            listener: None,
            orphan: None,
            owner: None,
            op: Op::Accept { fd: -1 },
            prefix: 0,
            cancelling: false,
            carrier: Carrier::Driver,
            brake: Brake::default(),
            drop_load: None,
            cargo: Cargo::new(),
        });
        let index = (self.entries.len() - 1) as u32;
        assert!(index < FlightId::MAX_INDEX, "more than 16 million operations at once");
        index
    }

    /// The reserved flight is about to be handed to the driver.
    #[inline]
    pub(super) fn take_off(&mut self, id: FlightId, op: Op, prefix: usize, drop_load: unsafe fn(*mut u8)) {
        self.in_air += 1;
        let entry = &mut self.entries[id.index as usize];
        entry.phase = Phase::InAir;
        entry.op = op;
        entry.prefix = prefix;
        entry.drop_load = Some(drop_load);
    }

    /// Frees a landed place for the next flight. The load must be gone already.
    #[inline]
    pub(super) fn release(&mut self, id: FlightId) {
        let Some(entry) = self.entry(id) else { return };
        assert!(
            matches!(entry.phase, Phase::Landed(_)),
            "a flight in the air is never released"
        );
        entry.phase = Phase::Free;
        entry.generation = (entry.generation + 1) & ((1 << 40) - 1);
        entry.orphan = None;
        entry.drop_load = None;
        entry.prefix = 0;
        entry.cancelling = false;
        self.free.push(id.index);
    }

    /// Takes in the last completion of a flight that is wanted by whoever waits for it and by nobody else, which is what most
    /// are, and gives who is to be woken. Gives others back.
    #[inline]
    pub(crate) fn land_wanted(&mut self, completion: Completion) -> Result<Option<Waker>, Completion> {
        let Some(entry) = self.entries.get_mut(completion.id.index as usize) else {
            return Err(completion);
        };
        let is_plain = entry.generation == completion.id.generation
            && matches!(entry.phase, Phase::InAir)
            && entry.orphan.is_none()
            && entry.listener.is_none()
            && entry.owner.is_none()
            && entry.carrier == Carrier::Driver;
        if !is_plain {
            return Err(completion);
        }
        entry.phase = Phase::Landed(completion.landing);
        self.in_air -= 1;
        Ok(entry.waker.take())
    }

    /// Takes in one completion.
    pub(crate) fn land(&mut self, completion: Completion) -> Touchdown {
        let Completion { id, landing } = completion;
        let mut touchdown = Touchdown::default();
        let Some(entry) = self.entry(id) else {
            touchdown.stale = true;
            return touchdown;
        };
        if !matches!(entry.phase, Phase::InAir) {
            touchdown.stale = true;
            return touchdown;
        }
        touchdown.waker = entry.waker.take();
        touchdown.listener = entry.listener.take();
        touchdown.owner = entry.owner.take();
        if entry.orphan == Some(Fate::Discard) {
            touchdown.discard = Some(id);
            touchdown.unwanted = unwanted(&entry.op, landing.outcome);
        }
        entry.phase = Phase::Landed(landing);
        let carrier = std::mem::replace(&mut entry.carrier, Carrier::Driver);
        entry.brake = Brake::default();
        self.in_air -= 1;
        self.off_driver -= usize::from(carrier != Carrier::Driver);
        touchdown
    }

    /// How many connections were accepted that the program has not been given.
    pub(crate) fn accepted_waiting(&self) -> usize {
        let is_connection = |entry: &&Entry| {
            matches!(&entry.phase, Phase::Landed(landing) if landing.outcome.is_ok())
                && matches!(entry.op, Op::Accept { .. })
        };
        self.entries.iter().filter(is_connection).count()
    }

    /// How many operations of each kind are under way.
    pub(crate) fn ops_in_air(&self) -> Vec<(&'static str, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for (entry, _) in self.waiting() {
            *counts.entry(entry.name()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// The operations that are under way, and who waits for each.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&Op, Option<&Waker>)> {
        let in_air = |entry: &&Entry| matches!(entry.phase, Phase::InAir);
        self.entries
            .iter()
            .filter(in_air)
            .map(|entry| (&entry.op, entry.waker.as_ref()))
    }

    /// Every flight that the driver still has.
    pub(crate) fn ids_in_air(&self) -> Vec<FlightId> {
        let in_air = |(_, entry): &(usize, &Entry)| matches!(entry.phase, Phase::InAir);
        self.entries
            .iter()
            .enumerate()
            .filter(in_air)
            .map(|(index, entry)| FlightId {
                index: index as u32,
                generation: entry.generation,
            })
            .collect()
    }
}

/// How to end what an operation has opened for somebody who is gone.
pub(super) fn unwanted(op: &Op, outcome: Outcome) -> Option<Control<'static>> {
    let fd = outcome.ok()? as Fd;
    match op {
        Op::Accept { .. } => Some(Control::Reset { fd }),
        Op::Open { .. } => Some(Control::Close { fd }),
        _ => None,
    }
}

impl Drop for FlightTable {
    fn drop(&mut self) {
        for entry in &mut self.entries {
            if matches!(entry.phase, Phase::InAir) {
                continue;
            }
            if let Some(drop_load) = entry.drop_load {
                // SAFETY: the flight has landed, so the kernel is done with the load, and nobody fetched it.
                guard("a buffer's destructor", || unsafe { drop_load(load_of(entry.cargo)) });
            }
            // SAFETY: `reserve` made this box, this entry owns it, and the kernel does not use it.
            drop(unsafe { Box::from_raw(entry.cargo) });
        }
    }
}
