//! The measuring kit: what the comparison, the benches and the crate of peers share.
//!
//! A server under test is a process of its own ([`process`]) on one core; the load ([`load`]) comes from this process
//! on another ([`machine`] says which). Figures are medians of interleaved rounds, ratios are taken within a round
//! ([`stats`], [`rounds`]). Two loops by hand, with nothing above them, are the limit that everybody is measured
//! against ([`hand_epoll`], [`hand_uring`]). A bench reads its command line with [`options`], and learns from
//! [`drivers`] what it can measure.

#![allow(dead_code, reason = "each program takes what it needs")]

pub(crate) mod clock;
pub(crate) mod drivers;
#[cfg(target_os = "linux")]
pub(crate) mod epoll;
#[cfg(target_os = "linux")]
pub(crate) mod hand_epoll;
#[cfg(all(target_os = "linux", feature = "proactor"))]
pub(crate) mod hand_uring;
pub(crate) mod heap;
pub(crate) mod histogram;
pub(crate) mod json;
pub(crate) mod lateness;
#[cfg(target_os = "linux")]
pub(crate) mod limits;
#[cfg(target_os = "linux")]
pub(crate) mod load;
#[cfg(target_os = "linux")]
pub(crate) mod machine;
pub(crate) mod options;
#[cfg(target_os = "linux")]
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod random;
pub(crate) mod rounds;
pub(crate) mod scratch;
#[cfg(target_os = "linux")]
pub(crate) mod server;
pub(crate) mod stats;
#[cfg(target_os = "linux")]
pub(crate) mod syscalls;
pub(crate) mod text;
