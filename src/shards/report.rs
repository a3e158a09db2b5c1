//! What all shards of a pool are doing: metrics and dumps, and which shard does not answer.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::shard::Shard;
use super::state::ShardState;
use crate::Dump;
use crate::diagnostics::metrics::Metrics;
use crate::task::join_all;
use crate::time::timeout;

/// A shard that does not answer within this time is reported as stuck.
const LIMIT: Duration = Duration::from_secs(1);

/// The counters of a shard: see [`Shard::report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardCounters {
    /// Calls sent to other shards.
    pub calls: u64,
    /// Calls of other shards that were started here.
    pub served: u64,
    /// Calls that had to wait because too many were in flight.
    pub unit_waits: u64,
    /// Calls sent and not answered.
    pub in_flight: usize,
    /// Calls of other shards that are being served by a task.
    pub serving: usize,
    /// Calls of other shards that wait to be started.
    pub queued: usize,
    /// Messages sent to other shards: calls, answers, cancels, connections.
    pub messages: u64,
    /// How often messages were handed over to a shard. Those of one turn are handed over together.
    pub batches: u64,
    /// How many of the batches had to wake the other shard.
    pub wakes: u64,
    /// How often the shard busy-polled for an answer before it slept.
    pub poll_windows: u64,
    /// Connections accepted from the pool's listeners.
    pub accepted: u64,
    /// Connections passed on to other shards.
    pub handed_over: u64,
    /// Connections of the pool's listeners that are open.
    pub connections: usize,
}

/// The state of one shard: see [`Shard::report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardReport<T> {
    /// The shard's number.
    pub index: usize,
    /// The shard's name.
    pub name: String,
    /// Its answer, or why there is none.
    pub answer: Result<T, NoAnswer>,
}

/// Why a shard does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// It has ended.
    Ended,
    /// It has not answered for a second: something blocks its thread. It had completed this many turns.
    Stuck {
        /// The turns that its loop had completed.
        turns: u64,
    },
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::Ended => f.write_str("ended"),
            NoAnswer::Stuck { turns } => write!(f, "STUCK in turn {}: no answer within {LIMIT:?}", turns + 1),
        }
    }
}

impl std::error::Error for NoAnswer {}

impl Shard {
    /// The metrics and counters of all shards, by number. A shard that does not answer within a second is named as stuck.
    ///
    /// ```
    /// # use windlass::shards::{self, Shard};
    /// # shards::Builder::new().count(2).build()?.run(|shard: Shard| async move {
    /// for report in shard.report().await {
    ///     println!("{report}");
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), shards::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of an event loop.
    pub async fn report(&self) -> Vec<ShardReport<(ShardCounters, Metrics)>> {
        self.ask_all(|| {
            let counters = ShardState::current().map(|state| state.counters());
            (counters.unwrap_or_default(), crate::diagnostics::metrics::metrics())
        })
        .await
    }

    /// What the tasks of all shards wait for, by number: see [`dump`](crate::dump()). A shard that does not answer within a
    /// second is named as stuck.
    ///
    /// # Panics
    ///
    /// Outside of an event loop.
    pub async fn dump(&self) -> Vec<ShardReport<Dump>> {
        self.ask_all(crate::dump).await
    }

    async fn ask_all<T: Send + 'static>(&self, question: fn() -> T) -> Vec<ShardReport<T>> {
        // A virtual clock stands still while another thread works on the answer.
        let _hold = ShardState::current().and_then(|state| state.hold_clock());
        let answers = self.all().map(|shard| async move {
            let answer = timeout(LIMIT, shard.ask(question).unlimited()).await;
            let turns = shard.shared().peers[shard.index()].gauges.turns.load(Relaxed);
            ShardReport {
                index: shard.index(),
                name: shard.name().to_owned(),
                answer: match answer {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(_)) => Err(NoAnswer::Ended),
                    Err(_) => Err(NoAnswer::Stuck { turns }),
                },
            }
        });
        join_all(answers.collect::<Vec<_>>()).await
    }
}

impl fmt::Display for ShardReport<(ShardCounters, Metrics)> {
    /// Writes one line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} ({}): ", self.index, self.name)?;
        match &self.answer {
            Ok((counters, metrics)) => write!(
                f,
                "connections {} calls {} served {} in flight {} waits {} wakes {} | {metrics}",
                counters.connections,
                counters.calls,
                counters.served,
                counters.in_flight + counters.serving + counters.queued,
                counters.unit_waits,
                counters.wakes,
            ),
            Err(reason) => write!(f, "{reason}"),
        }
    }
}

impl fmt::Display for ShardReport<Dump> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} ({}): ", self.index, self.name)?;
        match &self.answer {
            Ok(dump) => write!(f, "\n{dump}"),
            Err(reason) => write!(f, "{reason}"),
        }
    }
}
