//! Deterministic simulation.

// The world will use what is not used yet.
#![allow(dead_code, reason = "used by the simulated world, which is not there yet")]

pub(crate) mod log;
pub(crate) mod rng;
pub(crate) mod settings;
