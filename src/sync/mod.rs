//! Synchronization between tasks: asyncio's queues and locks, and channels.
//!
//! | | |
//! |---|---|
//! | [`Queue`], [`PriorityQueue`], [`LifoQueue`] | bounded or unbounded queues with `join` and `task_done` |
//! | [`Lock`], [`RwLock`] | exclusive or shared access to a value across awaits |
//! | [`Semaphore`] | limits concurrency |
//! | [`Event`], [`Notify`], [`Condition`], [`Barrier`] | a flag; a wake-up; a wake-up with a lock; a rendezvous |
//! | [`OnceCell`] | a value initialized asynchronously, once |
//! | [`oneshot`], [`broadcast`], [`watch`] | one value; every value to all receivers; only the latest value |
//! | [`thread`] | channels between threads |
//!
//! - Only [`thread`] crosses threads. All others stay on one thread and use no atomics.
//! - **Fair**: waiters are served in FIFO order, and no other task can take the grant of a woken waiter (no barging).
//! - **Cancel-safe**: if a waiting future is dropped, an item, permit or wake-up already granted to it goes to the next
//!   waiter. Each method documents the details.
//! - None needs a loop to be created, used or dropped.
//! - After 64 immediate results in one poll, for example from a queue that is never empty, the task must yield.
//!
//! ```
//! use std::rc::Rc;
//! use std::time::Duration;
//! use windlass::sync::{Queue, Semaphore};
//! use windlass::time::timeout;
//! windlass::run(async {
//!     let results = Queue::unbounded();
//!     let limit = Rc::new(Semaphore::new(3));
//!     for i in 0..10u64 {
//!         let (results, limit) = (results.clone(), limit.clone());
//!         windlass::spawn(async move {
//!             let _permit = limit.acquire().await.unwrap();
//!             windlass::time::sleep(Duration::from_millis(i % 3)).await;
//!             results.put(i).await.unwrap();
//!         });
//!     }
//!     let mut sum = 0;
//!     for _ in 0..10 {
//!         // A timeout loses no item: the next `get` returns it.
//!         sum += timeout(Duration::from_secs(5), results.get()).await.unwrap().unwrap();
//!     }
//!     assert_eq!(sum, 45);
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod barrier;
pub mod broadcast;
mod condition;
mod error;
mod event;
mod guard;
mod lock;
pub(crate) mod loom_shim;
mod notify;
mod once_cell;
pub mod oneshot;
mod order;
mod permits;
mod queue;
mod queue_stream;
mod rwlock;
mod semaphore;
pub mod thread;
mod wait;
pub(crate) mod wait_queue;
pub mod watch;

pub use barrier::{Barrier, BarrierWaitResult, BrokenBarrier};
pub use condition::{Condition, Guard};
pub use error::{Closed, SendError, TryRecvError, TrySendError};
pub use event::Event;
pub use guard::{AccessGuard, Exclusive, Shared};
pub use lock::{Lock, LockGuard, OwnedLockGuard, TryLockError};
pub use notify::{Notified, Notify};
pub use once_cell::OnceCell;
pub use order::{Fifo, Lifo, Order, SmallestFirst};
pub use queue::{LifoQueue, OrderedQueue, PriorityQueue, Queue};
pub use queue_stream::{QueueSink, QueueStream};
pub use rwlock::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedPermit, Permit, PermitGuard, Semaphore, TryAcquireError};
