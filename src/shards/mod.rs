//! All cores: a pool of event loops, one per thread, that share listeners and call each other.
//!
//! A *shard* is an ordinary event loop that knows its number and its peers. Tasks stay on their shard, so they need not be
//! `Send`, and nothing is locked: a shard that needs another one's data [calls](Shard::call) it.
//!
//! ```no_run
//! use windlass::shards::{self, Listener, Shard};
//! use windlass::task::JoinSet;
//!
//! fn main() -> Result<(), shards::Error> {
//!     let pool = shards::Builder::new().stop_on_signals().build()?;
//!     let listener = pool.listen("0.0.0.0:7777")?; // bound now, for every shard
//!     pool.run(move |_shard| serve(listener))?; // on every core, until a signal
//!     Ok(())
//! }
//!
//! async fn serve(listener: Listener) -> std::io::Result<()> {
//!     let mut connections = JoinSet::new();
//!     // `None`: the pool is stopping, and the backlog is empty.
//!     while let Some((stream, _peer)) = listener.accept().await? {
//!         while connections.try_join_next().is_some() {} // forget those that have ended
//!         connections.spawn(async move {
//!             loop {
//!                 let bytes = stream.read_managed().await?;
//!                 if bytes.is_empty() {
//!                     return Ok::<(), std::io::Error>(());
//!                 }
//!                 stream.write_all(bytes).await.0?;
//!             }
//!         });
//!     }
//!     connections.join_all().await; // open connections end, at the latest after the grace period
//!     Ok(())
//! }
//! ```
//!
//! | | |
//! |---|---|
//! | [`Builder`], [`Pool`] | the number of shards, their processors and settings; listeners, UDP sockets and services |
//! | [`Pool::run`] | runs a future on every shard, and stops all in order |
//! | [`Listener`], [`Accept`] | how the shards share the connections of an address |
//! | [`Shard`] | a shard by number, by [key](Shard::by_key) or by [load](Shard::idlest) |
//! | [`Shard::call`], [`Shard::ask`], [`Call`] | run a future or a function on another shard |
//! | [`Sharded`] | one value per shard, reached from all of them |
//! | `shards::simulate`, `sim::Host::start_shards` (feature `sim`) | a pool in a simulation, with faults and a seed |
//! | [`Shard::report`], [`Shard::dump`] | what every shard is doing, and which one is stuck |
//!
//! # What it is not
//!
//! Tasks do not move between shards: a shard with too much work is not helped by idle ones. Computation belongs to
//! [`spawn_blocking`](crate::spawn_blocking), a job made of plain data to [`Shard::idlest`]. A key belongs to one shard, so a
//! single popular key is limited to one core. For few long-lived connections see [`Accept::Balanced`].

mod call;
mod defect;
mod error;
mod key_hash;
mod listen;
mod packet;
mod pin;
mod pool;
mod report;
mod run;
mod service;
mod shard;
mod shared;
#[cfg(feature = "sim")]
mod simulate;
mod socket;
mod state;
mod threads;
mod udp;

pub use self::call::Call;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use self::defect::Defect;
pub use self::error::{Busy, CallError, Cause, Error};
pub use self::listen::{Accept, Listener};
pub use self::pin::Pin;
pub use self::pool::{Builder, OnFailure, Pool};
pub use self::report::{NoAnswer, ShardCounters, ShardReport};
pub use self::service::Sharded;
pub use self::shard::{Shard, Stopping};
use self::shared::Shared;
#[cfg(feature = "sim")]
pub use self::simulate::simulate;
pub use self::state::rooted;
pub use self::udp::UdpSockets;

/// A call's header has 16 bits for the number of a shard.
const MAX_SHARDS: usize = u16::MAX as usize;

/// The longest chain of calls: a call, a call that its service makes, and so on. A longer one fails with
/// [`CallError::TooDeep`].
pub const MAX_HOPS: usize = 9;
