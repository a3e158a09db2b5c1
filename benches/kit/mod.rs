//! The measuring kit, shared by the comparison, the benches and the peer benchmarks.
//!
//! A server under test is a separate process ([`process`]) on one core; the load ([`load`]) comes from this process on
//! another ([`machine`]). Figures are medians of interleaved rounds; ratios are computed within a round ([`stats`],
//! [`rounds`]). Minimal hand-written loops are the lower bound ([`hand_epoll`], [`hand_uring`]). A bench parses its
//! command line with [`options`], and gets the available drivers from [`drivers`].

#![allow(dead_code, reason = "no program uses all of it")]

pub(crate) mod clock;
pub(crate) mod drivers;
pub(crate) mod echo_thread;
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
