//! A loop's signal listeners and the socket pair that wakes the loop for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::driver::SignalSource;
use crate::driver::op::Direction;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::wake_all;
use crate::sys::context;
use crate::sys::signals::{Action, WakeReceiver, WakeSender, is_forbidden, register, unregister, wake_pair};

/// No supported system has signal numbers this high.
const LIMIT: usize = 128;

/// The state that the signal handler accesses, on whichever thread the kernel runs it.
struct Pending {
    /// Whether a signal has arrived since the hub last checked, by number.
    flags: [AtomicBool; LIMIT],
    /// Wakes the loop. The hub owns the receiving end and outlives every registered handler.
    wake: WakeSender,
}

impl Pending {
    /// Runs inside the signal handler: an atomic store and one non-blocking system call.
    fn set(&self, number: usize) {
        // The flag first: the woken loop must see it.
        self.flags[number].store(true, Ordering::SeqCst);
        self.wake.wake();
    }
}

/// What handlers of the process's signals set, and how they wake the loop.
struct ProcessSignals {
    pending: Arc<Pending>,
    wake_receiver: WakeReceiver,
}

impl ProcessSignals {
    fn new() -> io::Result<ProcessSignals> {
        let (wake_receiver, wake) = wake_pair()?;
        let flags = [const { AtomicBool::new(false) }; LIMIT];
        Ok(ProcessSignals {
            pending: Arc::new(Pending { flags, wake }),
            wake_receiver,
        })
    }
}

pub(crate) struct SignalHub {
    core: Rc<LoopCore>,
    /// `None` if the loop's driver delivers signals.
    process: Option<ProcessSignals>,
    listened: RefCell<BTreeMap<i32, ListenedSignal>>,
}

/// A signal with at least one listener.
struct ListenedSignal {
    /// The handler's, if the signals are the process's.
    action: Option<Action>,
    /// How often the hub has seen the signal; several arrivals may count as one.
    count: u64,
    listeners: Slab<Option<Waker>>,
}

impl SignalHub {
    /// Returns the loop's hub, and creates it if there is none.
    #[track_caller]
    pub(super) fn of(core: &LoopCore, number: i32) -> io::Result<Rc<SignalHub>> {
        check(number)?;
        if core.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        if let Some(hub) = core.signals.borrow().upgrade() {
            return Ok(hub);
        }
        // Not in the `match`: the driver is borrowed.
        let source = core.driver.borrow().signals();
        let process = match source {
            SignalSource::Process => Some(ProcessSignals::new().map_err(explain)?),
            SignalSource::Driver => None,
            SignalSource::None => {
                let message = "this loop's driver has no signals";
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        };
        let hub = Rc::new(SignalHub {
            core: core.rc(),
            process,
            listened: RefCell::default(),
        });
        if let Some(process) = &hub.process {
            let watcher = Watcher(Rc::downgrade(&hub));
            let on_readable = Box::new(move || watcher.dispatch());
            core.add_watcher(process.wake_receiver.number(), Direction::Read, on_readable)
                .map_err(explain)?;
        }
        core.signals.replace(Rc::downgrade(&hub));
        Ok(hub)
    }

    /// Adds a listener. Returns its key, and the count after which signals are new to it.
    pub(super) fn join(&self, number: i32) -> io::Result<(usize, u64)> {
        // The new listener must not see earlier signals.
        self.collect();
        let is_known = self.listened.borrow().contains_key(&number);
        if !is_known {
            let action = self.register(number)?;
            self.listened.borrow_mut().insert(
                number,
                ListenedSignal {
                    action,
                    count: 0,
                    listeners: Slab::new(),
                },
            );
        }
        let mut listened = self.listened.borrow_mut();
        let signal = listened.get_mut(&number).expect("it exists or was just inserted");
        Ok((signal.listeners.insert(None), signal.count))
    }

    /// Registers a handler for a signal of the process.
    fn register(&self, number: i32) -> io::Result<Option<Action>> {
        let Some(process) = &self.process else { return Ok(None) };
        let pending = process.pending.clone();
        // May be set by a signal for earlier listeners.
        pending.flags[number as usize].store(false, Ordering::SeqCst);
        // SAFETY: the action is async-signal-safe: it stores to an atomic and writes to a socket. It does not
        // allocate, lock or panic: `check` guarantees that the number is below `LIMIT`.
        let action = unsafe { register(number, move || pending.set(number as usize)) };
        let explain = |error| context(format_args!("listen to signal {number}"), error);
        action.map(Some).map_err(explain)
    }

    /// Removes a listener, and with the last one the hub's signal handler.
    pub(super) fn leave(&self, number: i32, key: usize) {
        let waker;
        let mut action = None;
        {
            let mut listened = self.listened.borrow_mut();
            let Some(signal) = listened.get_mut(&number) else {
                return;
            };
            waker = signal.listeners.try_remove(key);
            if signal.listeners.is_empty() {
                action = listened.remove(&number).and_then(|signal| signal.action);
            }
        }
        drop(waker);
        if let Some(action) = action {
            unregister(action);
        }
    }

    /// Returns the signal's count when it differs from `seen`, or `None` once the loop is closed.
    pub(super) fn poll_count(&self, number: i32, key: usize, seen: u64, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        // The listener may be polled while the hub's loop does not run.
        self.collect();
        let count = self.listened.borrow().get(&number).map_or(seen, |signal| signal.count);
        if count != seen {
            return match self.core.spend_budget(cx) {
                true => Poll::Ready(Some(count)),
                false => Poll::Pending,
            };
        }
        if self.core.is_closed() {
            return Poll::Ready(None);
        }
        // A waker's clone and drop are user code, so neither runs under the borrow.
        let waker = Some(cx.waker().clone());
        drop(self.replace_waker(number, key, waker));
        // That code may have collected a signal or closed the loop, which woke only the old waker.
        let count = self.listened.borrow().get(&number).map_or(seen, |signal| signal.count);
        if count != seen || self.core.is_closed() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    pub(super) fn forget_waker(&self, number: i32, key: usize) {
        drop(self.replace_waker(number, key, None));
    }

    fn replace_waker(&self, number: i32, key: usize, waker: Option<Waker>) -> Option<Waker> {
        let mut listened = self.listened.borrow_mut();
        let listener = listened.get_mut(&number)?.listeners.get_mut(key)?;
        std::mem::replace(listener, waker)
    }

    /// Clears the pending flags, counts the signals and wakes their listeners.
    fn collect(&self) {
        let Some(process) = &self.process else { return };
        self.wake(|number, signal| {
            let is_pending = process.pending.flags[number as usize].swap(false, Ordering::SeqCst);
            signal.count += u64::from(is_pending);
            is_pending
        });
    }

    /// Wakes every listener: its `recv` returns `None`.
    fn loop_closed(&self) {
        self.wake(|_, _| true);
    }

    /// Wakes the listeners of the signals for which `select` returns true.
    fn wake(&self, select: impl Fn(i32, &mut ListenedSignal) -> bool) {
        let mut wakers: Vec<Waker> = Vec::new();
        for (&number, signal) in self.listened.borrow_mut().iter_mut() {
            if select(number, signal) {
                wakers.extend(signal.listeners.iter_mut().filter_map(|(_, waker)| waker.take()));
            }
        }
        wake_all(wakers);
    }
}

impl LoopCore {
    /// Delivers a signal to the loop's listeners, on a driver that answers [`SignalSource::Driver`]. False if nothing
    /// listens to it: the simulated process then does what the signal does by default.
    #[cfg(any(feature = "sim", test))]
    pub(crate) fn deliver_signal(&self, number: i32) -> bool {
        let Some(hub) = self.signals.borrow().upgrade().filter(|hub| hub.process.is_none()) else {
            return false;
        };
        let is_listened = hub.listened.borrow().contains_key(&number);
        hub.wake(|listened, signal| {
            let is_it = listened == number;
            signal.count += u64::from(is_it);
            is_it
        });
        is_listened
    }

    /// Ends the listeners of a loop that closes, if its driver delivers the signals: no watcher does.
    pub(crate) fn end_signals(&self) {
        let hub = self.signals.borrow().upgrade().filter(|hub| hub.process.is_none());
        if let Some(hub) = hub {
            hub.loop_closed();
        }
    }
}

impl Drop for SignalHub {
    /// All listeners have left, so no handler is registered any more.
    fn drop(&mut self) {
        debug_assert!(self.listened.borrow().is_empty());
        if let Some(process) = &self.process {
            self.core
                .remove_watcher(process.wake_receiver.number(), Direction::Read);
        }
    }
}

/// The callback of the watcher of `wake_receiver`. Dropped with the hub or when the loop closes.
struct Watcher(Weak<SignalHub>);

impl Watcher {
    fn dispatch(&self) {
        let Some(hub) = self.0.upgrade() else { return };
        // Drain it before reading the flags: a signal that arrives in between wakes the loop again.
        if let Some(process) = &hub.process {
            process.wake_receiver.drain();
        }
        hub.collect();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(hub) = self.0.upgrade() {
            hub.loop_closed();
        }
    }
}

/// Refuses invalid numbers, and signals that cannot or must not be handled.
fn check(number: i32) -> io::Result<()> {
    let refuse = |message: String| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    if number <= 0 || number as usize >= LIMIT {
        return refuse(format!("{number} is not a signal number"));
    }
    if is_forbidden(number) {
        return refuse(format!(
            "cannot listen to signal {number}: it cannot be caught, or the program cannot continue after it"
        ));
    }
    Ok(())
}

fn explain(error: io::Error) -> io::Error {
    context("listen to signals", error)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::driver::{
        BufferPool, Completion, Control, Description, Driver, DriverCounters, FdSpace, Notify, Op, OpId, Reply,
        Scratch, Start, Wait,
    };
    use crate::signal::{SignalKind, signal};
    use crate::sys::Instant;
    use crate::{Builder, DriverChoice};

    /// The null driver, with signals of its own.
    struct Signalling(Box<dyn Driver>);

    // SAFETY: every call is forwarded to a driver that keeps the contract.
    unsafe impl Driver for Signalling {
        fn signals(&self) -> SignalSource {
            SignalSource::Driver
        }
        fn describe(&self) -> Description {
            self.0.describe()
        }
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn has_virtual_clock(&self) -> bool {
            self.0.has_virtual_clock()
        }
        fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
            self.0.control(call)
        }
        unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
            // SAFETY: the caller's promise.
            unsafe { self.0.start(id, op, scratch) }
        }
        fn cancel(&mut self, id: OpId, op: &Op) {
            self.0.cancel(id, op);
        }
        fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
            self.0.provide_buffers(pool)
        }
        fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
            self.0.poll(completed, wait)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
        fn notifier(&self) -> Arc<dyn Notify> {
            self.0.notifier()
        }
        fn counters(&self) -> DriverCounters {
            self.0.counters()
        }
        fn fd_space(&self) -> FdSpace {
            self.0.fd_space()
        }
    }

    #[test]
    fn a_driver_delivers_signals() {
        let builder = Builder::new().driver(DriverChoice::Null);
        let event_loop = builder
            .wrap_driver(|inner| Box::new(Signalling(inner)))
            .build()
            .expect("a loop");
        let core = event_loop.core().rc();
        let (terminate, hangup) = (SignalKind::terminate(), SignalKind::hangup());
        assert!(!core.deliver_signal(terminate.as_raw()), "nothing listens yet");
        let task = event_loop.spawn(async move {
            let mut signals = signal(terminate).expect("the driver has signals");
            let mut count = 0;
            while signals.recv().await.is_some() {
                count += 1;
            }
            count
        });
        let turns = || (0..5).for_each(|_| event_loop.turn_nowait().expect("a turn"));
        turns();
        assert!(!core.deliver_signal(hangup.as_raw()), "nothing listens to this one");
        for _ in 0..2 {
            assert!(core.deliver_signal(terminate.as_raw()));
            turns();
        }
        assert!(!task.is_finished());
        drop(task);
    }

    #[test]
    fn closing_the_loop_ends_the_listeners_of_a_drivers_signals() {
        let builder = Builder::new().driver(DriverChoice::Null);
        let event_loop = builder
            .wrap_driver(|inner| Box::new(Signalling(inner)))
            .build()
            .expect("a loop");
        let listening = event_loop.run_until_complete(async { signal(SignalKind::terminate()) });
        let mut signals = listening.expect("the loop runs").expect("the driver has signals");
        event_loop.close();
        let other = Builder::new().driver(DriverChoice::Null).build().expect("a loop");
        assert!(
            other
                .run_until_complete(signals.recv())
                .expect("the loop runs")
                .is_none()
        );
    }
}
