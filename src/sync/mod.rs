//! What tasks wait for each other with: asyncio's queues and locks, and channels.
//!
//! | | |
//! |---|---|
//! | [`Queue`], [`PriorityQueue`], [`LifoQueue`] | items from task to task, with room for so many, `join` and `task_done` |
//! | [`Lock`], [`RwLock`] | a value that is used across awaits, by one task or by many readers |
//! | [`Semaphore`] | so many at a time |
//! | [`Event`], [`Notify`], [`Condition`], [`Barrier`] | "it has happened", "look again", "look again, with a lock", "all are there" |
//! | [`OnceCell`] | a value that is made once, by whoever needs it first |
//! | [`oneshot`], [`broadcast`], [`watch`] | one value, once; every value to everybody; the latest value to everybody |
//! | [`thread`] | channels between threads: the only ones here that threads can share |
//!
//! All but [`thread`] stay on their thread and use no atomics. All are **fair**: who came first is served first, and
//! nobody slips in between a wake-up and the one who is woken. All are **cancel-safe**: dropping a future that waits,
//! by a timeout or a cancelled task, loses no item, no permit and no wake-up; what had just been handed to it goes to
//! the next. What each method does when its future is dropped is said there. None needs a loop to be made, used or
//! dropped.
//!
//! A task that could go on without waiting for ever, on a queue that is never empty for instance, lets others run after
//! 64 results.
//!
//! ```
//! use std::rc::Rc;
//! use std::time::Duration;
//! use windlass::sync::{Queue, Semaphore};
//! use windlass::time::timeout;
//! windlass::run(async {
//!     let results = Queue::unbounded();
//!     let few = Rc::new(Semaphore::new(3));
//!     for i in 0..10u64 {
//!         let (results, few) = (results.clone(), few.clone());
//!         windlass::spawn(async move {
//!             let _permit = few.acquire().await.unwrap();
//!             windlass::time::sleep(Duration::from_millis(i % 3)).await;
//!             results.put(i).await.unwrap();
//!         });
//!     }
//!     let mut sum = 0;
//!     for _ in 0..10 {
//!         // A timeout loses no item: the next `get` gives it.
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
mod lock;
pub(crate) mod loom_shim;
mod notify;
mod once_cell;
pub mod oneshot;
mod order;
mod permits;
mod queue;
mod rwlock;
mod semaphore;
pub mod thread;
mod wait;
mod wait_queue;
pub mod watch;

pub use barrier::{Barrier, BarrierWaitResult, BrokenBarrier};
pub use condition::{Condition, Guard};
pub use error::{Closed, SendError, TryRecvError, TrySendError};
pub use event::Event;
pub use lock::{Lock, LockGuard, OwnedLockGuard, TryLockError};
pub use notify::{Notified, Notify};
pub use once_cell::OnceCell;
pub use order::{Fifo, Lifo, Order, SmallestFirst};
pub use queue::{LifoQueue, OrderedQueue, PriorityQueue, Queue};
pub use rwlock::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedPermit, Permit, Semaphore, TryAcquireError};
