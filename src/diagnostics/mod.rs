//! Diagnostics: metrics, task dumps, debug mode and `tracing` events.

pub(crate) mod debug;
pub(crate) mod dump;
pub mod metrics;
pub(crate) mod trace;
