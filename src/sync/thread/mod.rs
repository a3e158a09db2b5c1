//! Channels between threads.
//!
//! They connect two loops on two threads, a thread without a loop to a loop, or windlass to another runtime: they need
//! only wakers. Either end can be awaited, tried, or used blockingly on a thread without a loop.
//!
//! ```
//! use windlass::sync::thread;
//! let (sender, receiver) = thread::channel(4);
//! let producer = std::thread::spawn(move || sender.send_blocking("hello"));
//! windlass::run(async move { assert_eq!(receiver.recv().await, Ok("hello")) })?;
//! producer.join().unwrap().unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The rest of [`sync`](super) stays on one thread. The state here is the same plain data, with the same wait queues
//! and permits, in a mutex instead of a `RefCell`. Wakers are woken after the mutex is released. A task's waker goes
//! through its loop's inbox, which wakes a sleeping loop once per burst. The loom tests run the real code.

mod channel;
#[cfg(all(test, loom))]
mod loom_tests;
mod oneshot;
pub(crate) mod park;

pub use channel::{Receiver, Sender, channel, unbounded};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
