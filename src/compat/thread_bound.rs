//! `ThreadBound`: a value that stays on its loop's thread, in a wrapper that is `Send`.
//!
//! Libraries for work-stealing executors require `Send` of values that a single-threaded loop never moves. The wrapper makes the
//! promise with a check at run time:
//!
//! 1. The value is reached only on its own thread: every access compares thread ids, which are never used twice.
//! 2. Nothing is structurally pinned: no method returns a `Pin<&mut T>`, so the value may move inside its wrapper. A future
//!    is wrapped as a `Pin<Box<F>>`, of which only the pointer moves.
//! 3. Dropped on another thread, the value travels home through the loop's inbox, in a [`Parcel`] whose destructor compares
//!    the threads again: the inbox of a closed loop returns the parcel to its sender, which must not drop the value.
//! 4. If the loop has closed, the value still works at home. Dropped on another thread then, it is leaked and counted.
//! 5. On other threads the value's bytes are moved but never read: they are a `MaybeUninit`, so that the compiler may not
//!    assume anything about them either. The inbox's mutex orders the moves.

use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::thread::{self, Thread, ThreadId};

use futures_core::Stream;

use super::{PollRead, PollWrite, Reading, Writing};
use crate::LoopHandle;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, report};

/// A value of this thread in a wrapper that is `Send`, `Sync` and `Unpin`, for libraries that require these of values that a
/// single-threaded loop never moves.
///
/// The value can be used only on the thread of the loop in which it was wrapped. Elsewhere [`get`](ThreadBound::get) returns
/// `None`, and access through `Deref`, as well as every trait that is forwarded to the value, panics. Moving the wrapper to
/// another thread and back is harmless. So is dropping it there: the value is sent home, and the loop drops it between tasks.
///
/// ```
/// use std::rc::Rc;
/// use windlass::compat::ThreadBound;
///
/// fn library_call<T: Send + 'static>(value: T) -> T {
///     value // a library that requires `Send`, but runs on this loop
/// }
///
/// windlass::run(async {
///     let shared = Rc::new(5);
///     let bound = library_call(ThreadBound::new(shared.clone()));
///     assert_eq!(**bound, 5);
///
///     let elsewhere = windlass::spawn_blocking(move || bound.get().is_none()); // dropped there
///     assert!(elsewhere.await?);
///     while Rc::strong_count(&shared) > 1 {
///         windlass::task::yield_now().await; // the clone is on its way home
///     }
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// If the value implements it, the wrapper implements `Clone`, `Debug`, [`Future`], [`Stream`], [`PollRead`] and [`PollWrite`], and
/// with the features `compat-futures`, `compat-tokio` and `hyper` the I/O traits of these libraries. The value must be `Unpin`
/// for them; [`ThreadBound::future`] wraps any future. For streams see [`Bridge::into_send`](super::Bridge::into_send).
///
/// Prefer to create the value on its thread in the first place: [`LoopHandle::spawn_with`] needs no wrapper.
///
/// # Leaks
///
/// The loop drops values that are on their way when it closes. Once it has closed, a wrapper that is dropped on another thread
/// leaks its value, since no code may run for it there: an `Rc` would race with its clones. [`leaked_values`] counts them, and
/// in debug builds the first one of a process is reported to the exception handler.
///
/// # Simulation
///
/// The loops of a simulation share one thread, although they stand for several. There the value can be used only in its own
/// loop, or while no loop runs.
pub struct ThreadBound<T: 'static> {
    /// Taken by `drop` and `into_inner`, which end the wrapper.
    parcel: ManuallyDrop<Parcel<T>>,
    home: LoopHandle,
}

/// The value with the thread that owns it. Its destructor drops the value on that thread and leaks it on any other.
struct Parcel<T: 'static> {
    /// Initialized until the parcel is dropped or opened. Only read on `thread`.
    value: MaybeUninit<T>,
    thread: ThreadId,
}

// SAFETY: `thread` owns the value until it is dropped or taken out, and only code that has compared `thread` with the running
// thread reads it, drops it or refers to it. Other threads move its bytes, which are a `MaybeUninit` to the compiler. The
// parcel passes between threads by moves that the caller synchronizes, or through the inbox, whose mutex does.
unsafe impl<T> Send for Parcel<T> {}

// SAFETY: as above: through a shared reference, other threads reach only the thread id.
unsafe impl<T> Sync for Parcel<T> {}

/// Nothing in it is structurally pinned.
impl<T> Unpin for ThreadBound<T> {}

/// How many values of [`ThreadBound`] this process has leaked: dropped on another thread after their loop had closed.
pub fn leaked_values() -> usize {
    LEAKED.load(Relaxed)
}

static LEAKED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The id of this thread, once it has wrapped a value: a thread without one is home to none. Has no destructor, so that
    /// it can be read until the thread has ended.
    static THIS_THREAD: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

impl<T> Parcel<T> {
    fn new(value: T) -> Parcel<T> {
        let thread = THIS_THREAD.get().unwrap_or_else(|| thread::current().id());
        THIS_THREAD.set(Some(thread));
        Parcel {
            value: MaybeUninit::new(value),
            thread,
        }
    }

    /// Whether this is the value's thread.
    #[inline]
    fn is_on_its_thread(&self) -> bool {
        THIS_THREAD.get() == Some(self.thread)
    }

    #[inline]
    fn get(&self) -> Option<&T> {
        // SAFETY: the value is initialized until the parcel ends, which the borrow prevents; and this is its thread.
        self.is_on_its_thread().then(|| unsafe { self.value.assume_init_ref() })
    }

    #[inline]
    fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: as in `get`, and the borrow is exclusive.
        self.is_on_its_thread().then(|| unsafe { self.value.assume_init_mut() })
    }

    /// Returns the value, or the parcel on another thread.
    fn open(self) -> Result<T, Parcel<T>> {
        if !self.is_on_its_thread() {
            return Err(self);
        }
        let parcel = ManuallyDrop::new(self);
        // SAFETY: this is the value's thread, and the parcel ends here without its destructor: the caller owns the value.
        Ok(unsafe { parcel.value.assume_init_read() })
    }
}

impl<T> Drop for Parcel<T> {
    fn drop(&mut self) {
        if !self.is_on_its_thread() {
            return leaked::<T>(self.thread);
        }
        // SAFETY: this is the value's thread. The parcel owns the value, and a destructor runs once.
        unsafe { self.value.assume_init_drop() };
    }
}

#[cold]
fn leaked<T>(home: ThreadId) {
    let before = LEAKED.fetch_add(1, Relaxed);
    if cfg!(debug_assertions) && before == 0 {
        report(Exception::note(format!(
            "a `ThreadBound<{}>` of {home:?} was dropped on {} after its loop had closed: its value is leaked. Drop it on its \
             own thread, or before the loop closes. Later leaks are only counted: see `compat::leaked_values`",
            type_name::<T>(),
            Named(&thread::current()),
        )));
    }
}

/// A thread in messages: its name and its id.
struct Named<'a>(&'a Thread);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.name() {
            Some(name) => write!(f, "thread '{name}' ({:?})", self.0.id()),
            None => write!(f, "an unnamed thread ({:?})", self.0.id()),
        }
    }
}

impl<T> ThreadBound<T> {
    /// Wraps a value that belongs to the current loop.
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn new(value: T) -> ThreadBound<T> {
        let core = LoopCore::current("ThreadBound::new");
        let inbox = core.inbox.clone();
        ThreadBound::with_home(value, LoopHandle { inbox })
    }

    fn with_home(value: T, home: LoopHandle) -> ThreadBound<T> {
        ThreadBound {
            parcel: ManuallyDrop::new(Parcel::new(value)),
            home,
        }
    }

    /// Whether the value can be used here: this is its thread.
    #[inline]
    pub fn is_home(&self) -> bool {
        self.parcel.is_on_its_thread() && !self.is_in_another_simulated_loop()
    }

    /// The loops of a simulation stand for threads.
    #[inline]
    fn is_in_another_simulated_loop(&self) -> bool {
        self.home.inbox.is_simulated() && LoopCore::try_current().is_some_and(|core| !self.home.is_of(core))
    }

    /// The value, or `None` on another thread.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.parcel.get().filter(|_| !self.is_in_another_simulated_loop())
    }

    /// The value, or `None` on another thread.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let is_elsewhere = self.is_in_another_simulated_loop();
        self.parcel.get_mut().filter(|_| !is_elsewhere)
    }

    /// Returns the value, or the wrapper on another thread.
    ///
    /// ```
    /// use windlass::compat::ThreadBound;
    /// # windlass::run(async {
    /// let bound = ThreadBound::new(String::from("here"));
    /// let bound = windlass::spawn_blocking(move || bound.into_inner().unwrap_err()).await?;
    /// assert_eq!(bound.into_inner().unwrap(), "here");
    /// # Ok::<(), std::io::Error>(())
    /// # })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_inner(self) -> Result<T, ThreadBound<T>> {
        if !self.is_home() {
            return Err(self);
        }
        let mut bound = ManuallyDrop::new(self);
        // SAFETY: the wrapper is never used again, and its destructor does not run: the parcel and the handle are moved out
        // once each.
        let (parcel, home) = unsafe { (ManuallyDrop::take(&mut bound.parcel), ptr::read(&raw const bound.home)) };
        parcel.open().map_err(|parcel| ThreadBound {
            parcel: ManuallyDrop::new(parcel),
            home,
        })
    }

    /// The loop in which the value was wrapped. A future that is sent there with [`LoopHandle::spawn_with`] can use the value.
    pub fn home(&self) -> &LoopHandle {
        &self.home
    }

    #[cold]
    #[track_caller]
    fn panic_elsewhere(&self) -> ! {
        let (home, here) = (self.home.inbox.thread(), thread::current());
        let value = type_name::<T>();
        if self.parcel.is_on_its_thread() {
            panic!("windlass: a `ThreadBound<{value}>` was used in another loop of the simulation than its own");
        }
        panic!(
            "windlass: a `ThreadBound<{value}>` of {} was used on {}: move it into a future that `ThreadBound::home` spawns with \
             `spawn_with`, or check `ThreadBound::is_home` first",
            Named(home),
            Named(&here),
        );
    }
}

impl<F: Future> ThreadBound<Pin<Box<F>>> {
    /// Wraps a future that belongs to the current loop. The wrapper is a future itself, to be polled on this thread.
    ///
    /// ```
    /// use std::rc::Rc;
    /// use windlass::compat::ThreadBound;
    ///
    /// async fn library_call<F: Future<Output = i32> + Send>(future: F) -> i32 {
    ///     future.await
    /// }
    ///
    /// # windlass::run(async {
    /// let shared = Rc::new(5); // not `Send`
    /// let future = ThreadBound::future(async move {
    ///     windlass::task::yield_now().await;
    ///     *shared
    /// });
    /// assert_eq!(library_call(future).await, 5);
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn future(future: F) -> ThreadBound<Pin<Box<F>>> {
        ThreadBound::new(Box::pin(future))
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        let is_home = self.is_home();
        // SAFETY: the destructor runs once, `into_inner` prevents it, and nothing uses the field after this.
        let parcel = unsafe { ManuallyDrop::take(&mut self.parcel) };
        if is_home {
            return drop(parcel);
        }
        let call = RemoteEvent::Call(Box::new(move || drop(parcel)));
        // A closed loop returns the parcel. Its destructor then leaks the value, unless a simulated loop has the same thread.
        drop(self.home.inbox.send(call));
    }
}

impl<T> Deref for ThreadBound<T> {
    type Target = T;

    #[inline]
    #[track_caller]
    fn deref(&self) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.panic_elsewhere(),
        }
    }
}

impl<T> DerefMut for ThreadBound<T> {
    #[inline]
    #[track_caller]
    fn deref_mut(&mut self) -> &mut T {
        if !self.is_home() {
            self.panic_elsewhere();
        }
        self.get_mut().expect("this is the value's thread")
    }
}

/// Panics on another thread.
impl<T: Clone> Clone for ThreadBound<T> {
    #[track_caller]
    fn clone(&self) -> ThreadBound<T> {
        ThreadBound::with_home((**self).clone(), self.home.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for ThreadBound<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(value) => f.debug_tuple("ThreadBound").field(value).finish(),
            None => f.write_str("ThreadBound(elsewhere)"),
        }
    }
}

impl<T: Future + Unpin> Future for ThreadBound<T> {
    type Output = T::Output;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        Pin::new(&mut **self).poll(cx)
    }
}

impl<T: Stream + Unpin> Stream for ThreadBound<T> {
    type Item = T::Item;

    #[track_caller]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T::Item>> {
        Pin::new(&mut **self).poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.get().map_or((0, None), Stream::size_hint)
    }
}

impl<T: PollRead> PollRead for ThreadBound<T> {
    fn poll_fill_buf<'a>(&'a mut self, state: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>> {
        (**self).poll_fill_buf(state, cx)
    }

    fn consume(&mut self, state: &mut Reading, count: usize) {
        (**self).consume(state, count);
    }
}

impl<T: PollWrite> PollWrite for ThreadBound<T> {
    fn poll_write(
        &mut self,
        state: &mut Writing,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        (**self).poll_write(state, cx, bufs)
    }

    fn poll_flush(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_flush(state, cx)
    }

    fn poll_started(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_started(state, cx)
    }

    fn poll_shutdown(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_shutdown(state, cx)
    }
}
