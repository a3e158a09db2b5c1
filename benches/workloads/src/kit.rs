//! The parts of the measuring kit that this program uses.

#![allow(dead_code, reason = "no program uses all of it")]

#[path = "../../kit/machine.rs"]
pub(crate) mod machine;
#[path = "../../kit/process.rs"]
pub(crate) mod process;
#[path = "../../kit/progress.rs"]
pub(crate) mod progress;
#[path = "../../kit/stats.rs"]
pub(crate) mod stats;
