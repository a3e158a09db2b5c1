//! A loop's room for signals: its bell, and who listens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::driver::op::Direction;
use crate::event_loop::core::LoopCore;
use crate::sys::context;
use crate::sys::signals::{Action, Hears, Rings, bell, is_forbidden, register, unregister};

/// No system that this runs on has a signal of this number or above.
const LIMIT: usize = 128;

/// What the handler touches, from whatever thread the kernel has chosen to run it on.
struct Arrivals {
    /// Whether a signal has come since the room last looked, by its number.
    come: [AtomicBool; LIMIT],
    /// One end of the bell; the other is the room's, which outlives every handler that rings.
    bell: Rings,
}

impl Arrivals {
    /// Runs inside the signal handler: an atomic store and one system call that does not wait.
    fn ring(&self, number: usize) {
        // First the flag: whoever hears the bell must find it.
        self.come[number].store(true, Ordering::SeqCst);
        self.bell.ring();
    }
}

pub(crate) struct SignalHub {
    core: Rc<LoopCore>,
    arrivals: Arc<Arrivals>,
    bell: Hears,
    kinds: RefCell<HashMap<i32, Kind>>,
}

/// A signal that somebody listens to.
struct Kind {
    action: Action,
    /// How often the room has found that it came.
    count: u64,
    listeners: Slab<Option<Waker>>,
}

impl SignalHub {
    /// The loop's room, made if there is none.
    #[track_caller]
    pub(super) fn of(core: &LoopCore, number: i32) -> io::Result<Rc<SignalHub>> {
        check(number)?;
        if core.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        if core.has_virtual_clock {
            let why = "the null driver hears no signals: they come in real time, and its clock is virtual";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        if let Some(hub) = core.signals.borrow().upgrade() {
            return Ok(hub);
        }
        let (bell, ringing) = bell().map_err(explain)?;
        let hub = Rc::new(SignalHub {
            core: core.rc(),
            arrivals: Arc::new(Arrivals {
                come: [const { AtomicBool::new(false) }; LIMIT],
                bell: ringing,
            }),
            bell,
            kinds: RefCell::default(),
        });
        let hearing = Hearing(Rc::downgrade(&hub));
        let on_ring = Box::new(move || hearing.listen());
        core.add_watcher(hub.bell.number(), Direction::Read, on_ring, Location::caller())
            .map_err(explain)?;
        core.signals.replace(Rc::downgrade(&hub));
        Ok(hub)
    }

    /// Adds a listener: its place, and the count from which on signals are new to it.
    pub(super) fn join(&self, number: i32) -> io::Result<(usize, u64)> {
        // What came before it is not for the new one.
        self.collect();
        let is_known = self.kinds.borrow().contains_key(&number);
        if !is_known {
            let arrivals = self.arrivals.clone();
            // A leftover of earlier listeners to this signal.
            arrivals.come[number as usize].store(false, Ordering::SeqCst);
            // SAFETY: the action stores to an atomic and writes to a socket, which is all that a handler may do here; it
            // does not allocate, lock or panic: `check` has seen that the number is below `LIMIT`.
            let action = unsafe { register(number, move || arrivals.ring(number as usize)) }
                .map_err(|error| context(format_args!("listen to signal {number}"), error))?;
            self.kinds.borrow_mut().insert(
                number,
                Kind {
                    action,
                    count: 0,
                    listeners: Slab::new(),
                },
            );
        }
        let mut kinds = self.kinds.borrow_mut();
        let kind = kinds.get_mut(&number).expect("it was just looked for");
        Ok((kind.listeners.insert(None), kind.count))
    }

    /// Takes a listener away, and with the last one the room's part of the handler.
    pub(super) fn leave(&self, number: i32, place: usize) {
        let waker;
        let mut action = None;
        {
            let mut kinds = self.kinds.borrow_mut();
            let Some(kind) = kinds.get_mut(&number) else { return };
            waker = kind.listeners.try_remove(place);
            if kind.listeners.is_empty() {
                action = kinds.remove(&number).map(|kind| kind.action);
            }
        }
        drop(waker);
        if let Some(action) = action {
            unregister(action);
        }
    }

    /// The room's count, if it is not the one that the listener knows. `None` once the loop is closed.
    pub(super) fn poll_heard(&self, number: i32, place: usize, heard: u64, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        // Also when this is polled while the loop that listens for it does not turn.
        self.collect();
        let count = self.kinds.borrow().get(&number).map_or(heard, |kind| kind.count);
        if count != heard {
            return match self.core.spend_budget(cx) {
                true => Poll::Ready(Some(count)),
                false => Poll::Pending,
            };
        }
        if self.core.is_closed() {
            return Poll::Ready(None);
        }
        // Cloning and dropping wakers is foreign code, so neither happens under the borrow.
        let waker = Some(cx.waker().clone());
        let old = self.replace_waker(number, place, waker);
        drop(old);
        // Inside of that a signal may have been taken, or the loop closed, and then only the waker from before was woken.
        let count = self.kinds.borrow().get(&number).map_or(heard, |kind| kind.count);
        if count != heard || self.core.is_closed() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    pub(super) fn forget_waker(&self, number: i32, place: usize) {
        let waker = self.replace_waker(number, place, None);
        drop(waker);
    }

    fn replace_waker(&self, number: i32, place: usize, waker: Option<Waker>) -> Option<Waker> {
        let mut kinds = self.kinds.borrow_mut();
        let listener = kinds.get_mut(&number)?.listeners.get_mut(place)?;
        std::mem::replace(listener, waker)
    }

    /// Takes what has come, and wakes who listens to it.
    fn collect(&self) {
        let come = &self.arrivals.come;
        let has_come = |number: i32| come[number as usize].swap(false, Ordering::SeqCst);
        let mut wakers: Vec<Waker> = Vec::new();
        for (&number, kind) in self.kinds.borrow_mut().iter_mut() {
            if has_come(number) {
                kind.count += 1;
                wakers.extend(kind.listeners.iter_mut().filter_map(|(_, waker)| waker.take()));
            }
        }
        wake_all(wakers);
    }

    /// The loop is closed: who waits hears that.
    fn fd_closed(&self) {
        let mut wakers = Vec::new();
        for kind in self.kinds.borrow_mut().values_mut() {
            wakers.extend(kind.listeners.iter_mut().filter_map(|(_, waker)| waker.take()));
        }
        wake_all(wakers);
    }
}

impl Drop for SignalHub {
    /// Every listener has left, so no handler rings any more.
    fn drop(&mut self) {
        debug_assert!(self.kinds.borrow().is_empty());
        self.core.remove_watcher(self.bell.number(), Direction::Read);
    }
}

/// The room's ear: what the watcher of the bell calls. Goes when the room does, or the loop.
struct Hearing(Weak<SignalHub>);

impl Hearing {
    fn listen(&self) {
        let Some(hub) = self.0.upgrade() else { return };
        // The bell first: a signal that comes after it was emptied rings again, one that came before has set its flag.
        hub.bell.empty();
        hub.collect();
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        if let Some(hub) = self.0.upgrade() {
            hub.fd_closed();
        }
    }
}

fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        crate::event_loop::exception::guard("a waker", || waker.wake());
    }
}

/// Refuses what is no signal, and those that no program can or should handle.
fn check(number: i32) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if number <= 0 || number as usize >= LIMIT {
        return refuse(format!("{number} is not the number of a signal"));
    }
    if is_forbidden(number) {
        return refuse(format!(
            "signal {number} cannot be listened to: it cannot be caught, or the program cannot go on after it"
        ));
    }
    Ok(())
}

fn explain(error: io::Error) -> io::Error {
    context("listen to signals", error)
}
