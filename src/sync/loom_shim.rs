//! The cross-thread primitives, so that loom can put its own in their place and try every interleaving of the real code.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU8;
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU8;
#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
