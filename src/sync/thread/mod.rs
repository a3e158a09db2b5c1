//! Channels between threads.
//!
//! They connect loops on different threads, a loop and a thread without one, or windlass and another runtime. Either
//! end can be awaited, tried without waiting, or, on a thread without a loop, used with blocking calls.
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
//! and permits, in a mutex instead of a `RefCell`. Wakers are woken after the mutex is released. Waking a task goes
//! through its loop's inbox, which wakes a sleeping loop once per burst. The loom tests run the real code.

mod channel;
mod channel_stream;
#[cfg(all(test, loom))]
mod loom_tests;
mod oneshot;
pub(crate) mod park;

pub use channel::{Receiver, Sender, channel, unbounded};
pub use channel_stream::{ReceiverStream, SenderSink};
pub use oneshot::{OneshotReceiver, OneshotSender, oneshot};
