//! Deterministic simulation: runs whole clusters in one thread, under faults, and replays them from a seed.
//!
//! The hosts of a simulation run the production code, unchanged: [`net`](crate::net), [`fs`](crate::fs) and
//! [`time`](crate::time) work on a simulated kernel. [`sweep`] runs a test with many seeds. The seed decides on everything
//! that is left to chance: latencies, losses, the order of simultaneous events, the sizes of reads. The same seed is the
//! same run.
//!
//! ```
//! # #[cfg(feature = "sim")] {
//! use std::time::Duration;
//! use windlass::net::{TcpListener, TcpStream};
//! use windlass::sim::{self, Crash, Link};
//!
//! async fn serve() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("0.0.0.0:7000").await?;
//!     loop {
//!         let (stream, _) = listener.accept().await?;
//!         windlass::spawn(async move { stream.write_all("hello").await.0 });
//!     }
//! }
//!
//! sim::sweep(0..20, |sim| async move {
//!     sim.links(Link::new().loss(0.01));
//!     sim.host("server").start(serve);
//!     windlass::time::sleep(Duration::from_secs(1)).await;
//!     sim.crash("server", Crash::Power);
//!     sim.after(Duration::from_secs(5), |sim| sim.restart("server"));
//!     // The request is sent again until the server is back.
//!     let stream = TcpStream::connect("server:7000").await?;
//!     let (result, bytes) = stream.read_exact([0; 5]).await;
//!     result?;
//!     assert_eq!(&bytes, b"hello");
//!     Ok(())
//! });
//! # }
//! ```
//!
//! # Rules
//!
//! - Time is virtual: an hour of sleeps takes no time, and each turn of a loop takes a microsecond or more.
//! - A run must depend on nothing but its seed. Take random numbers from [`rand`](crate::rand), times from
//!   [`Instant::now`](crate::time::Instant::now) and [`wall_now`](crate::time::wall_now), and blocking work from
//!   [`spawn_blocking`](crate::spawn_blocking), which runs on the simulation's thread. A thread of the program's own that
//!   wakes a loop fails the run. Statics keep their values over crashes and seeds.
//! - TCP is modelled by its visible effects. Its timeouts are Linux's.
//!
//! # The null driver
//!
//! [`DriverChoice::Null`](crate::DriverChoice::Null) is one host of this kernel on its own: no faults and no delays. It is
//! the worst case of a completion-based driver. An operation completes in a later poll, and writes through its raw pointers
//! only before that. An operation that can complete wins over its cancel, so the "cancelled, but completed" race always
//! happens. It makes no system call for sockets, files and time, so Miri can run the core.

#![cfg_attr(
    not(feature = "sim"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "a host on its own uses neither wires nor faults"
    )
)]

#[cfg(feature = "sim")]
mod chaos;
#[cfg(feature = "sim")]
mod determinism;
#[cfg(unix)]
pub(crate) mod disk;
mod driver;
#[cfg(feature = "sim")]
mod entry;
#[cfg(feature = "sim")]
mod environment;
#[cfg(feature = "sim")]
mod episodes;
mod events;
#[cfg(unix)]
pub(crate) mod files;
#[cfg(not(unix))]
#[path = "no_files.rs"]
pub(crate) mod files;
#[cfg(feature = "sim")]
mod handle;
#[cfg(feature = "sim")]
mod host;
mod kernel;
mod link;
pub(crate) mod log;
#[cfg(feature = "sim")]
pub(crate) mod misuse;
mod mount;
mod names;
mod net;
#[cfg(feature = "sim")]
mod notified;
mod ops;
#[cfg(feature = "sim")]
mod panics;
#[cfg(feature = "sim")]
mod processes;
#[cfg(feature = "sim")]
mod quirks;
#[cfg(feature = "sim")]
mod report;
pub(crate) mod rng;
#[cfg(feature = "sim")]
mod run_state;
mod schedule;
#[cfg(feature = "sim")]
pub(crate) mod settings;
#[cfg(feature = "sim")]
mod shrink;
#[cfg(feature = "sim")]
mod state;
#[cfg(feature = "sim")]
mod sweep;
#[cfg(all(test, feature = "sim", unix))]
mod tests;
#[cfg(feature = "sim")]
mod world;

#[cfg(feature = "sim")]
pub use self::chaos::{Chaos, FaultKind};
#[cfg(all(feature = "sim", unix))]
pub use self::disk::config::Disk;
#[cfg(all(feature = "sim", unix))]
pub use self::disk::crash::TooManyImages;
#[cfg(all(feature = "sim", unix))]
pub use self::disk::faults::{DiskFaults, DiskLatency};
#[cfg(all(feature = "sim", unix))]
pub use self::disk::image::{DiskHandle, DiskImage};
pub(crate) use self::driver::SimDriver;
#[cfg(feature = "sim")]
pub use self::entry::{run, sweep, try_sweep};
#[cfg(feature = "sim")]
pub use self::handle::Sim;
#[cfg(feature = "sim")]
pub use self::host::{Crash, Host, HostOutput};
#[cfg(feature = "sim")]
pub(crate) use self::host::{Process, Program};
#[cfg(feature = "sim")]
pub use self::link::{Dist, Link};
#[cfg(feature = "sim")]
pub use self::names::Lookup;
#[cfg(feature = "sim")]
pub use self::quirks::{Audit, Quirks};
#[cfg(feature = "sim")]
pub use self::sweep::{Failed, Report};
