//! Channels between threads.
//!
//! Everything else in [`sync`](super) stays on its thread. These are `Send`: for two loops on two threads, for a thread
//! without a loop that feeds one, and for other runtimes, since they need nothing of a loop but wakers. Either end can
//! be awaited, tried, or waited for by a thread that has no loop.
//!
//! The state is the same plain data as that of the local primitives, the same lines and permits, in a mutex instead of
//! a cell. Wakers are woken when the mutex is free again; a task's waker goes through its loop's letterbox, which wakes
//! a sleeping loop once for a burst. loom tries every interleaving of the real code.

mod channel;
#[cfg(all(test, loom))]
mod loom_tests;
mod oneshot;
mod park;

pub use channel::{Receiver, Sender, channel, unbounded};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
