//! `add_reader` and `add_writer`: callbacks for the readiness of other libraries' descriptors.
//!
//! As in asyncio they are level-triggered: the callback runs once per turn as long as the descriptor is ready. A
//! watcher is a task that waits for readiness, runs the callback, and waits again. No operation is in flight while the
//! callback runs, so the callback may close the descriptor or remove the watcher.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::driver::op::{Direction, Op};
use crate::driver::{Control, OpId};
use crate::error::from_code;
use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{AsSource, Fd, context, source};
use crate::task::{JoinHandle, spawn_on};

/// A callback for one direction of a descriptor.
pub(crate) struct Watcher {
    slot: Rc<Slot>,
    task: JoinHandle<()>,
}

/// The callback, shared by the watcher's task and the table of watchers.
struct Slot {
    callback: RefCell<Option<Box<dyn FnMut()>>>,
    removed: Cell<bool>,
    location: &'static Location<'static>,
}

impl Slot {
    fn call(&self) {
        let Some(mut callback) = self.callback.take() else {
            return;
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(&mut callback)) {
            report(Exception::callback_panic(self.location, payload));
        }
        self.callback.replace(Some(callback));
        if self.removed.get() {
            self.empty();
        }
    }

    /// Disables the callback. Its captures are dropped now, or, if it is running, when it returns.
    fn empty(&self) {
        self.removed.set(true);
        let callback = self.callback.take();
        guard("a callback's destructor", || drop(callback));
    }
}

impl LoopCore {
    /// Waits until a descriptor is readable or writable. `owner` keeps it open until the operation has completed.
    pub(crate) async fn readiness<T: 'static>(&self, owner: T, fd: Fd, direction: Direction) -> io::Result<()> {
        let queue = IoQueue::default();
        let plan = |_: &mut T| Op::Readiness { fd, direction };
        let (op_result, _) = OpFuture::start_op(self, &queue, OnOrphan::Discard, owner, plan).await;
        op_result.res().map(drop).map_err(from_code)
    }

    /// As [`readiness`](LoopCore::readiness), for a wait whose operation is kept in `wait` between two polls. The owner of
    /// `wait` orphans the operation when it ends.
    pub(crate) fn poll_readiness(
        &self,
        wait: &Cell<Option<OpId>>,
        fd: Fd,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let id = wait.get().unwrap_or_else(|| {
            let queue = IoQueue::default();
            let plan = |_: &mut ()| Op::Readiness { fd, direction };
            let id = self.start_op(&queue, OnOrphan::Discard, || (), plan).id;
            wait.set(Some(id));
            self.trace(id);
            id
        });
        if self.register_waiter(id, cx) || !self.spend_budget(cx) {
            return Poll::Pending;
        }
        // A tracing subscriber or a waker, which are foreign code, may have polled and taken the result meanwhile.
        if wait.get() == Some(id) {
            wait.set(None);
        }
        let res = self.take_result(id).unwrap_or(Ok(0));
        Poll::Ready(res.map(drop).map_err(from_code))
    }

    #[track_caller]
    pub(crate) fn add_watcher(&self, fd: Fd, direction: Direction, callback: Box<dyn FnMut()>) -> io::Result<()> {
        let location = Location::caller();
        if self.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        self.control(Control::Watch { fd })
            .map_err(|error| context(format_args!("watch descriptor {fd}"), error))?;
        let slot = Rc::new(Slot {
            callback: RefCell::new(Some(callback)),
            removed: Cell::new(false),
            location,
        });
        let verb = match direction {
            Direction::Read => "reader",
            Direction::Write => "writer",
        };
        let name = format!("{verb} of descriptor {fd}").into_boxed_str();
        let future = watch(self.rc(), fd, direction, slot.clone());
        let task = spawn_on(self, future, Some(name), location);
        let watcher = Watcher { slot, task };
        let replaced = self.watchers.borrow_mut().insert((fd, direction), watcher);
        // Last, because the destructor of the old callback may add yet another watcher, which then replaces this one.
        if let Some(replaced) = replaced {
            self.end_watcher(replaced);
        }
        Ok(())
    }

    pub(crate) fn remove_watcher(&self, fd: Fd, direction: Direction) -> bool {
        let Some(watcher) = self.watchers.borrow_mut().remove(&(fd, direction)) else {
            return false;
        };
        self.end_watcher(watcher);
        let is_watched = |direction| self.watchers.borrow().contains_key(&(fd, direction));
        if !is_watched(Direction::Read) && !is_watched(Direction::Write) {
            let _ = self.control(Control::Forget { fd });
            self.pump();
        }
        true
    }

    /// Called when the loop closes, after the watchers' tasks were cancelled.
    pub(crate) fn drop_watchers(&self) {
        for watcher in self.watchers.take().into_values() {
            watcher.slot.empty();
        }
    }

    /// Ends a watcher that was removed from the table: now, or, if its task is being polled, when that poll returns.
    /// User code inside the poll, such as the callback or a tracing subscriber, may remove the watcher.
    fn end_watcher(&self, Watcher { slot, task }: Watcher) {
        let _current = self.make_current();
        slot.empty();
        task.raw().cancel_now(self);
    }
}

async fn watch(core: Rc<LoopCore>, fd: Fd, direction: Direction, slot: Rc<Slot>) {
    loop {
        match core.readiness((), fd, direction).await {
            Ok(()) => {
                slot.call();
                // The code that removed it may have closed the descriptor, so its number must not be used any more.
                if slot.removed.get() {
                    return;
                }
            }
            // The watcher was removed inside this poll. The descriptor may be closed, which explains the error.
            Err(_) if slot.removed.get() => return,
            Err(error) => {
                // A new watcher may have replaced this one.
                let gone = match core.watchers.borrow_mut().entry((fd, direction)) {
                    Entry::Occupied(entry) if Rc::ptr_eq(&entry.get().slot, &slot) => Some(entry.remove()),
                    _ => None,
                };
                drop(gone);
                // Last, because the handler may remove or replace this watcher, which must not end this task.
                report(Exception::error(
                    format!("descriptor {fd} can no longer be watched"),
                    error,
                ));
                return;
            }
        }
    }
}

/// Watching descriptors of other libraries.
impl EventLoop {
    /// Calls `callback` once per turn while `fd` is readable. Replaces an earlier reader of `fd`.
    ///
    /// `fd` may be anything that the kernel can wait for: a socket, a pipe, a terminal, a timer; a file or directory,
    /// which is always ready, is an error. Remove the reader before you close `fd`. If watching fails later, the reader
    /// is removed. That error, and a panic of the callback, go to the exception handler.
    ///
    /// ```
    /// use std::{io::{Read, Write}, os::unix::net::UnixStream, rc::Rc};
    /// let event_loop = windlass::EventLoop::new()?;
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let ours = Rc::new(ours);
    /// event_loop.add_reader(&ours, {
    ///     let (ours, handle) = (ours.clone(), event_loop.handle());
    ///     move || {
    ///         let mut byte = [0];
    ///         (&*ours).read_exact(&mut byte).unwrap();
    ///         assert_eq!(byte, [7]);
    ///         handle.stop().unwrap();
    ///     }
    /// })?;
    /// theirs.write_all(&[7])?;
    /// event_loop.run_forever()?;
    /// event_loop.remove_reader(&ours);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn add_reader(&self, fd: &impl AsSource, callback: impl FnMut() + 'static) -> io::Result<()> {
        self.core().add_watcher(source(fd), Direction::Read, Box::new(callback))
    }

    /// Calls `callback` once per turn while `fd` is writable: see [`add_reader`](EventLoop::add_reader).
    #[track_caller]
    pub fn add_writer(&self, fd: &impl AsSource, callback: impl FnMut() + 'static) -> io::Result<()> {
        self.core()
            .add_watcher(source(fd), Direction::Write, Box::new(callback))
    }

    /// Removes the callback of [`add_reader`](EventLoop::add_reader). False if there was none.
    pub fn remove_reader(&self, fd: &impl AsSource) -> bool {
        self.core().remove_watcher(source(fd), Direction::Read)
    }

    /// Removes the callback of [`add_writer`](EventLoop::add_writer). False if there was none.
    pub fn remove_writer(&self, fd: &impl AsSource) -> bool {
        self.core().remove_watcher(source(fd), Direction::Write)
    }
}

/// Calls `callback` while `fd` is readable: [`EventLoop::add_reader`] on the current loop.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn add_reader(fd: &impl AsSource, callback: impl FnMut() + 'static) -> io::Result<()> {
    LoopCore::current("add_reader").add_watcher(source(fd), Direction::Read, Box::new(callback))
}

/// Calls `callback` while `fd` is writable: [`EventLoop::add_writer`] on the current loop.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn add_writer(fd: &impl AsSource, callback: impl FnMut() + 'static) -> io::Result<()> {
    LoopCore::current("add_writer").add_watcher(source(fd), Direction::Write, Box::new(callback))
}

/// Removes the callback of [`add_reader`] on the current loop. False if there was none.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn remove_reader(fd: &impl AsSource) -> bool {
    LoopCore::current("remove_reader").remove_watcher(source(fd), Direction::Read)
}

/// Removes the callback of [`add_writer`] on the current loop. False if there was none.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn remove_writer(fd: &impl AsSource) -> bool {
    LoopCore::current("remove_writer").remove_watcher(source(fd), Direction::Write)
}
