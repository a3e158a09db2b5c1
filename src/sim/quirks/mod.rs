//! Faults of the seam between loop and driver.
//!
//! [`Quirks`] wraps a driver in one that behaves as badly as the [`Driver`] contract allows: it starts operations late,
//! permutes, delays and splits completions, shortens reads and writes, loses cancels and returns from polls early. A
//! program that depends on how one kernel happens to behave fails here. An [`Audit`] checks the loop from below.

mod audit;
mod driver;
pub(super) mod kind;
mod memory;
#[cfg(test)]
mod tests;

use std::fmt;

pub use self::audit::Audit;
use self::driver::{Observer, QuirkyDriver};
use super::rng::Streams;
use crate::driver::Driver;

/// Settings of a driver that does everything that the [`Driver`] contract allows, as a seed decides.
///
/// A rate is a probability between 0 and 1. Delays are counted in polls, so they take no time of a virtual clock. The same
/// seed, settings and calls give the same behaviour.
///
/// ```
/// use windlass::sim::Quirks;
/// use windlass::{Builder, DriverChoice};
///
/// let quirks = Quirks::swarm(7);
/// let event_loop = Builder::new().driver(DriverChoice::Null).wrap_driver(move |inner| quirks.wrap(inner)).build()?;
/// # drop(event_loop);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "settings do nothing until they wrap a driver"]
#[non_exhaustive]
pub struct Quirks {
    seed: u64,
    late_starts: f64,
    done_at_once: f64,
    attempts_served: Option<f64>,
    late_completions: f64,
    split_polls: f64,
    permuted: bool,
    most_polls: u32,
    late_cancels: f64,
    lost_cancels: f64,
    short_counts: f64,
    continued_sends: f64,
    empty_polls: f64,
    short_of_memory: f64,
    empty_pool: f64,
    aborted_accepts: f64,
    no_descriptors: f64,
    queue_entries: Option<u32>,
    submits_in_batches: Option<bool>,
    tries_first: Option<bool>,
    scribbles: bool,
}

impl Quirks {
    /// No quirks. The driver is only [audited](Audit).
    pub fn none(seed: u64) -> Quirks {
        Quirks {
            seed,
            late_starts: 0.0,
            done_at_once: 0.0,
            attempts_served: None,
            late_completions: 0.0,
            split_polls: 0.0,
            permuted: false,
            most_polls: 3,
            late_cancels: 0.0,
            lost_cancels: 0.0,
            short_counts: 0.0,
            continued_sends: 0.0,
            empty_polls: 0.0,
            short_of_memory: 0.0,
            empty_pool: 0.0,
            aborted_accepts: 0.0,
            no_descriptors: 0.0,
            queue_entries: None,
            submits_in_batches: None,
            tries_first: None,
            scribbles: false,
        }
    }

    /// Quirks with rates that the seed chooses, some of them zero: combinations differ from seed to seed. Programs
    /// notice none of these quirks, so [`no_descriptors`](Quirks::no_descriptors) and
    /// [`short_of_memory`](Quirks::short_of_memory) stay off.
    pub fn swarm(seed: u64) -> Quirks {
        let mut rng = Streams::new(seed).stream("quirk/swarm");
        let mut rate = |most: f64| match rng.chance(0.3) {
            true => 0.0,
            false => most * rng.range(1..=100) as f64 / 100.0,
        };
        let quirks = Quirks::none(seed)
            .late_starts(rate(0.5))
            .done_at_once(rate(0.9))
            .attempts_served(rate(1.0))
            .late_completions(rate(0.6))
            .split_polls(rate(0.5))
            .late_cancels(rate(0.8))
            .lost_cancels(rate(1.0))
            .short_counts(rate(0.5))
            .continued_sends(rate(1.0))
            .empty_polls(rate(0.4))
            .empty_pool(rate(0.3))
            .aborted_accepts(rate(0.2))
            .permuted(true)
            .scribbles(true);
        let quirks = match rng.chance(0.3) {
            true => quirks.queue_entries(rng.range(1..=4) as u32),
            false => quirks,
        };
        let mut answer = || [None, Some(false), Some(true)][rng.below(3) as usize];
        Quirks {
            submits_in_batches: answer(),
            tries_first: answer(),
            ..quirks
        }
    }

    /// Operations on sockets and simulated files that reach the inner driver only some polls later. A cancel that comes
    /// before wins.
    pub fn late_starts(self, rate: f64) -> Quirks {
        Quirks {
            late_starts: rate,
            ..self
        }
    }

    /// Operations that complete when they are started although the inner driver left them pending.
    pub fn done_at_once(self, rate: f64) -> Quirks {
        Quirks {
            done_at_once: rate,
            ..self
        }
    }

    /// Attempts ([`Driver::attempt`]) that succeed if the operation can complete now, and batches
    /// ([`Driver::recv_batch`], [`Driver::send_batch`]) that are passed on. The others are refused. Without this call the
    /// inner driver decides.
    pub fn attempts_served(self, rate: f64) -> Quirks {
        Quirks {
            attempts_served: Some(rate),
            ..self
        }
    }

    /// Completions that are reported some polls late. Also applies to operations that the inner driver completed at once.
    pub fn late_completions(self, rate: f64) -> Quirks {
        Quirks {
            late_completions: rate,
            ..self
        }
    }

    /// Polls that report only a part of the completions. The rest waits for the next poll.
    pub fn split_polls(self, rate: f64) -> Quirks {
        Quirks {
            split_polls: rate,
            ..self
        }
    }

    /// Whether the completions of one poll are reported in random order.
    pub fn permuted(self, permuted: bool) -> Quirks {
        Quirks { permuted, ..self }
    }

    /// The longest delay of a start, a completion or a cancel, in polls (3).
    pub fn most_polls(self, polls: u32) -> Quirks {
        Quirks {
            most_polls: polls.max(1),
            ..self
        }
    }

    /// Cancels that reach the inner driver only some polls later.
    pub fn late_cancels(self, rate: f64) -> Quirks {
        Quirks {
            late_cancels: rate,
            ..self
        }
    }

    /// Cancels of operations that have not been started yet, and that start them first: the operation can still succeed.
    pub fn lost_cancels(self, rate: f64) -> Quirks {
        Quirks {
            lost_cancels: rate,
            ..self
        }
    }

    /// Reads and writes of byte streams and files that are started with a shorter length, and batches that are passed on
    /// with fewer datagrams.
    pub fn short_counts(self, rate: f64) -> Quirks {
        Quirks {
            short_counts: rate,
            ..self
        }
    }

    /// Shortened sends that go on with the rest, as a kernel does that fills its send buffer in several steps. A cancel in
    /// between completes with the count of the bytes that were sent.
    pub fn continued_sends(self, rate: f64) -> Quirks {
        Quirks {
            continued_sends: rate,
            ..self
        }
    }

    /// Polls that return at once and without completions, as after `EINTR`.
    pub fn empty_polls(self, rate: f64) -> Quirks {
        Quirks {
            empty_polls: rate.min(0.9),
            ..self
        }
    }

    /// Polls that fail because the kernel is short of memory. The loop reports this to its exception handler, and polls
    /// again after a pause.
    pub fn short_of_memory(self, rate: f64) -> Quirks {
        Quirks {
            short_of_memory: rate.min(0.9),
            ..self
        }
    }

    /// Managed receives that fail with `ENOBUFS`, as if the buffer pool were empty. The loop then reads into the heap.
    pub fn empty_pool(self, rate: f64) -> Quirks {
        Quirks {
            empty_pool: rate,
            ..self
        }
    }

    /// Accepts that fail with `ECONNABORTED`, for a connection that is gone. Listeners skip these.
    pub fn aborted_accepts(self, rate: f64) -> Quirks {
        Quirks {
            aborted_accepts: rate.min(0.9),
            ..self
        }
    }

    /// Accepts, new sockets and opens that fail with `EMFILE` or `ENFILE`. Accepts are retried after a pause; sockets and
    /// opens report the error to their caller.
    pub fn no_descriptors(self, rate: f64) -> Quirks {
        Quirks {
            no_descriptors: rate.min(0.9),
            ..self
        }
    }

    /// A submission queue of this size: further operations and cancels of the same turn wait for the next poll.
    pub fn queue_entries(self, entries: u32) -> Quirks {
        Quirks {
            queue_entries: Some(entries.max(1)),
            ..self
        }
    }

    /// The answer of [`Driver::submits_in_batches`], instead of the inner driver's.
    pub fn submits_in_batches(self, answer: bool) -> Quirks {
        Quirks {
            submits_in_batches: Some(answer),
            ..self
        }
    }

    /// The answer of [`Driver::tries_first`], instead of the inner driver's.
    pub fn tries_first(self, answer: bool) -> Quirks {
        Quirks {
            tries_first: Some(answer),
            ..self
        }
    }

    /// Whether reads that fail or are cancelled first overwrite their whole buffer.
    pub fn scribbles(self, scribbles: bool) -> Quirks {
        Quirks { scribbles, ..self }
    }

    /// Wraps a driver. A violation of the contract by the loop or by the inner driver is a panic.
    pub fn wrap(&self, inner: Box<dyn Driver>) -> Box<dyn Driver> {
        self.wrap_audited(inner, &Audit::new())
    }

    /// As [`wrap`](Quirks::wrap). `audit` also collects the violations, because a program can catch the panics, and counts
    /// the quirks.
    pub fn wrap_audited(&self, inner: Box<dyn Driver>, audit: &Audit) -> Box<dyn Driver> {
        Box::new(QuirkyDriver::new(self.clone(), inner, audit, None))
    }

    /// The driver of a loop in a world: with a seed of the world's, and each quirk is logged.
    pub(super) fn wrap_in_world(&self, inner: Box<dyn Driver>, seed: u64, observer: Observer) -> Box<dyn Driver> {
        let quirks = Quirks { seed, ..self.clone() };
        Box::new(QuirkyDriver::new(quirks, inner, &Audit::new(), Some(observer)))
    }
}

/// The quirks that are on, as `late starts 0.3, queue entries 2`.
impl fmt::Display for Quirks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [
            ("late starts", self.late_starts),
            ("done at once", self.done_at_once),
            ("attempts served", self.attempts_served.unwrap_or(0.0)),
            ("late completions", self.late_completions),
            ("split polls", self.split_polls),
            ("permuted", f64::from(u8::from(self.permuted))),
            ("late cancels", self.late_cancels),
            ("lost cancels", self.lost_cancels),
            ("short counts", self.short_counts),
            ("continued sends", self.continued_sends),
            ("empty polls", self.empty_polls),
            ("short of memory", self.short_of_memory),
            ("empty pool", self.empty_pool),
            ("aborted accepts", self.aborted_accepts),
            ("no descriptors", self.no_descriptors),
            ("queue entries", f64::from(self.queue_entries.unwrap_or(0))),
            ("scribbles", f64::from(u8::from(self.scribbles))),
        ];
        let on = rates.iter().filter(|(_, rate)| *rate > 0.0);
        let on: Vec<String> = on.map(|(name, rate)| format!("{name} {rate}")).collect();
        f.write_str(if on.is_empty() { "none" } else { "" })?;
        f.write_str(&on.join(", "))
    }
}
