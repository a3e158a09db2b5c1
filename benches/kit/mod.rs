//! The measuring kit: what the comparison, the benches and the crate of peers share.
//!
//! A server under test is a process of its own ([`process`]) on one core; the load ([`load`]) comes from this process on
//! another ([`machine`] says which). Figures are medians of interleaved rounds, ratios are taken within a round
//! ([`stats`]). Two loops by hand, with nothing above them, are the limit that everybody is measured against
//! ([`hand_epoll`], [`hand_uring`]).

#![allow(dead_code, reason = "each program takes what it needs")]

pub(crate) mod epoll;
pub(crate) mod hand_epoll;
#[cfg(feature = "proactor")]
pub(crate) mod hand_uring;
pub(crate) mod histogram;
pub(crate) mod json;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod stats;
pub(crate) mod syscalls;
pub(crate) mod text;
