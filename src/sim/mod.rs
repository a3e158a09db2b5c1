//! Deterministic simulation, on a simulated kernel: a driver without system calls, with in-memory sockets and a virtual
//! clock.
//!
//! [`DriverChoice::Null`](crate::DriverChoice::Null) is one host on its own: no faults and no delays.
//!
//! It is the worst case of a completion-based driver, and deterministic. An operation completes in a later poll, and
//! writes through its raw pointers then. An operation that can complete wins over its cancel, so the "cancelled, but
//! completed" race always happens. Sockets and time need no system call, so Miri can run the core.

#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod chaos;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod determinism;
#[cfg(unix)]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
pub(crate) mod disk;
mod driver;
#[cfg(unix)]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
pub(crate) mod files;
mod kernel;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
pub(crate) mod log;
mod net;
mod ops;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod panics;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod report;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
pub(crate) mod rng;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod run_state;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
pub(crate) mod settings;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod shrink;
#[cfg(feature = "sim")]
#[allow(dead_code, reason = "used by the simulated world, which is not there yet")]
mod sweep;

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
pub use self::sweep::{Failed, Report};
