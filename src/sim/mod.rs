//! Deterministic simulation, on a simulated kernel: a driver without system calls, with in-memory sockets and files
//! and a virtual clock.
//!
//! [`DriverChoice::Null`](crate::DriverChoice::Null) is one host on its own: no faults and no delays.
//!
//! It is the worst case of a completion-based driver, and deterministic. An operation completes in a later poll, and
//! writes through its raw pointers then. An operation that can complete wins over its cancel, so the "cancelled, but
//! completed" race always happens. Sockets and time need no system call, so Miri can run the core.

#![cfg_attr(
    not(feature = "sim"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "a host on its own uses neither wires nor faults"
    )
)]

#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by plans of faults and by disks of hosts")]
mod chaos;
#[cfg(feature = "sim")]
mod determinism;
#[cfg(unix)]
pub(crate) mod disk;
mod driver;
#[cfg(feature = "sim")]
mod episodes;
#[cfg(unix)]
pub(crate) mod files;
#[cfg(not(unix))]
#[path = "no_files.rs"]
pub(crate) mod files;
#[cfg(feature = "sim")]
mod host;
mod kernel;
mod link;
#[allow(dead_code, reason = "kinds of events that files and driver faults will have")]
pub(crate) mod log;
mod names;
mod net;
mod ops;
#[cfg(feature = "sim")]
mod panics;
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
mod sweep;
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
pub use self::host::{Crash, Host, HostOutput};
#[cfg(feature = "sim")]
pub use self::link::{Dist, Link};
#[cfg(feature = "sim")]
pub use self::names::Lookup;
#[cfg(feature = "sim")]
pub use self::sweep::{Failed, Report};
#[cfg(feature = "sim")]
pub use self::world::{Sim, run, sweep, try_sweep};
