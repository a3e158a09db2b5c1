//! `LoopThread`, a thread that runs an event loop, and `LoopLocal`, the values of a loop that other threads can reach.

use std::any::{Any, TypeId};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use crate::Builder;
use crate::error::LoopClosed;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::event_loop::handle::{LoopHandle, RemoteHandle};
use crate::worker_thread;

/// A thread that runs an event loop, for programs whose own threads are not loops. Dropping it stops the loop, which
/// cancels its tasks, and joins the thread.
///
/// ```
/// use std::time::Duration;
/// use windlass::{LoopThread, time::sleep};
///
/// let background = LoopThread::start()?;
/// let answer = background.handle().spawn_with(|| async {
///     sleep(Duration::from_millis(1)).await;
///     42
/// })?;
/// assert_eq!(answer.wait().unwrap(), 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a LoopThread stops its loop"]
pub struct LoopThread {
    handle: LoopHandle,
    /// `None` once it was joined.
    thread: Option<thread::JoinHandle<()>>,
}

impl LoopThread {
    /// Starts a thread named `windlass` and returns when its loop runs.
    ///
    /// # Errors
    ///
    /// If the thread or its loop cannot be created.
    pub fn start() -> io::Result<LoopThread> {
        LoopThread::start_with(Builder::new)
    }

    /// As [`start`](LoopThread::start); `configure` makes the loop's builder, on the new thread.
    ///
    /// ```
    /// use windlass::{Builder, DriverChoice, LoopThread};
    /// let background = LoopThread::start_with(|| Builder::new().driver(DriverChoice::Null))?;
    /// # drop(background);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn start_with(configure: impl FnOnce() -> Builder + Send + 'static) -> io::Result<LoopThread> {
        let (started, wait) = mpsc::sync_channel(1);
        let thread = worker_thread::spawn("windlass".to_owned(), move || {
            let event_loop = match configure().build() {
                Ok(event_loop) => event_loop,
                Err(error) => return drop(started.send(Err(error))),
            };
            if started.send(Ok(event_loop.handle())).is_err() {
                return;
            }
            if let Err(error) = event_loop.run_forever() {
                let context = "the loop of a LoopThread ended";
                crate::event_loop::exception::report(crate::Exception::error(context, error));
            }
        })?;
        match wait.recv() {
            Ok(Ok(handle)) => Ok(LoopThread {
                handle,
                thread: Some(thread),
            }),
            Ok(Err(error)) => {
                drop(thread.join());
                Err(error)
            }
            // `configure` panicked.
            Err(mpsc::RecvError) => match thread.join() {
                Err(payload) => std::panic::resume_unwind(payload),
                Ok(()) => Err(io::Error::other("the thread of the loop ended")),
            },
        }
    }

    /// The loop's handle. Clones of it may outlive the thread.
    pub fn handle(&self) -> &LoopHandle {
        &self.handle
    }

    /// Stops the loop and joins the thread. Returns the payload if the thread panicked.
    pub fn stop(mut self) -> thread::Result<()> {
        self.stop_and_join()
    }

    fn stop_and_join(&mut self) -> thread::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        // A loop that has closed needs no stop.
        let _ = self.handle.stop();
        // Dropped on its own thread, by a task: the thread ends by itself.
        match thread.thread().id() == thread::current().id() {
            true => Ok(()),
            false => thread.join(),
        }
    }
}

impl Drop for LoopThread {
    fn drop(&mut self) {
        // The panic message was printed by the thread.
        drop(self.stop_and_join());
    }
}

impl fmt::Debug for LoopThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopThread").field("handle", &self.handle).finish()
    }
}

/// Values that belong to a loop, one of each type, for code that other threads send to the loop: see
/// [`LoopHandle::with`]. They need not be `Send`, because they stay on the loop's thread until the loop closes.
///
/// ```
/// use std::cell::Cell;
/// use windlass::{LoopLocal, LoopThread};
///
/// #[derive(Default)]
/// struct Visits(Cell<u32>);
///
/// let background = LoopThread::start()?;
/// for _ in 0..3 {
///     let visit = |local: &LoopLocal| {
///         let visits = local.get_or_default::<Visits>();
///         visits.0.set(visits.0.get() + 1);
///     };
///     background.handle().with(visit)?.wait()?;
/// }
/// let count = background.handle().with(|local| local.get::<Visits>().unwrap().0.get())?;
/// assert_eq!(count.wait()?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LoopLocal {
    core: Rc<LoopCore>,
}

impl LoopLocal {
    /// The values of the loop that this thread is running.
    pub fn current() -> Option<LoopLocal> {
        let core = LoopCore::try_current()?.rc();
        Some(LoopLocal { core })
    }

    /// The value of type `T`, if there is one.
    pub fn get<T: 'static>(&self) -> Option<Rc<T>> {
        let value = self.core.local_values.borrow().get(&TypeId::of::<T>())?.clone();
        value.downcast().ok()
    }

    /// The value of type `T`; a new one if there is none.
    pub fn get_or_default<T: Default + 'static>(&self) -> Rc<T> {
        match self.get() {
            Some(value) => value,
            None => {
                // `default` is foreign code, which may insert a value too: the last one stays.
                let value = Rc::new(T::default());
                self.set(value.clone());
                value
            }
        }
    }

    /// Stores a value and returns the earlier value of the same type.
    pub fn insert<T: 'static>(&self, value: T) -> Option<Rc<T>> {
        self.set(Rc::new(value))?.downcast().ok()
    }

    /// Removes the value of type `T`.
    pub fn remove<T: 'static>(&self) -> Option<Rc<T>> {
        let value = self.core.local_values.borrow_mut().remove(&TypeId::of::<T>())?;
        value.downcast().ok()
    }

    fn set<T: 'static>(&self, value: Rc<T>) -> Option<Rc<dyn Any>> {
        match self.core.is_closed() {
            true => None,
            false => self.core.local_values.borrow_mut().insert(TypeId::of::<T>(), value),
        }
    }
}

impl fmt::Debug for LoopLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopLocal")
            .field("values", &self.core.local_values.borrow().len())
            .finish()
    }
}

impl LoopCore {
    /// Drops the values of the closing loop.
    pub(crate) fn drop_local_values(&self) {
        let values = self.local_values.take();
        for (_, value) in values {
            guard("the destructor of a loop's value", || drop(value));
        }
    }
}

impl LoopHandle {
    /// Runs `function` on the loop's thread, with the loop's [values](LoopLocal), and returns a handle to its result.
    ///
    /// This is how another thread reaches state that stays on the loop's thread, such as an `Rc` of a task there.
    #[track_caller]
    pub fn with<F, R>(&self, function: F) -> Result<RemoteHandle<R>, LoopClosed>
    where
        F: FnOnce(&LoopLocal) -> R + Send + 'static,
        R: Send + 'static,
    {
        self.spawn_with(move || async move {
            let local = LoopLocal::current().expect("a task runs on a loop");
            function(&local)
        })
    }
}
