//! The driver of a loop that has closed.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::control::control;
use super::{
    Completion, Control, Description, Driver, DriverCounters, Fd, FdSpace, Job, Notify, Op, OpId, OpResult, Reply,
    Scratch, SignalSource, Start, Wait,
};
use crate::error::{LoopClosed, forked_error};
use crate::sys::{self, Instant};

/// Replaces the driver of a loop that has closed, or that belongs to the parent of a forked process. Descriptors that
/// outlive the loop can still be closed, and destructors can read the wall clock; every other call is an error.
pub(crate) struct Closed {
    counters: DriverCounters,
    description: Description,
    now: Instant,
    space: FdSpace,
    is_forked: bool,
    /// The old driver, if it has descriptor numbers of its own: it lives until its last descriptor is closed.
    driver: Option<Box<dyn Driver>>,
    /// Some operations did not complete, so their memory and the driver are leaked.
    leaks: bool,
}

impl Closed {
    /// The replacement of `driver`. The caller swaps the two and passes the old driver to [`keep`](Closed::keep) or
    /// drops it.
    pub(crate) fn after(driver: &dyn Driver, is_forked: bool) -> Closed {
        Closed {
            counters: driver.counters(),
            description: driver.describe(),
            now: driver.now(),
            space: driver.fd_space(),
            is_forked,
            driver: None,
            leaks: false,
        }
    }

    /// Keeps the old driver if its descriptor numbers are its own, to close those that are still open, and drops it
    /// otherwise. With `leaks`, it is never freed.
    pub(crate) fn keep(&mut self, driver: Box<dyn Driver>, leaks: bool) {
        match (self.space, leaks) {
            (FdSpace::Kernel, false) => drop(driver),
            (FdSpace::Kernel, true) => std::mem::forget(driver),
            (FdSpace::Own | FdSpace::Split, _) => {
                self.driver = Some(driver);
                self.leaks = leaks;
            }
        }
    }

    fn error(&self) -> io::Error {
        match self.is_forked {
            true => forked_error(),
            false => LoopClosed.into(),
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if self.leaks {
            std::mem::forget(self.driver.take());
        }
    }
}

// SAFETY: nothing is ever pending here: `start` completes at once and touches no memory.
unsafe impl Driver for Closed {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        let (Control::Close { fd } | Control::Reset { fd } | Control::Forget { fd }) = call else {
            return Err(self.error());
        };
        match (&mut self.driver, self.space.is_kernel(fd)) {
            (Some(driver), _) => driver.control(call),
            // No driver knows the descriptor, and it stays open.
            (None, _) if matches!(call, Control::Forget { .. }) => Ok(Reply::Done),
            // In a forked child only this process's copy is closed. A reset would change the socket, which is shared.
            (None, true) if self.is_forked => control(Control::Close { fd }),
            (None, true) => control(call),
            // The number is one of a driver that no longer exists: nothing is left to close.
            (None, false) => Ok(Reply::Done),
        }
    }

    fn offload(&mut self, job: Job) -> Result<(), Job> {
        match &mut self.driver {
            Some(driver) => driver.offload(job),
            None => Err(job),
        }
    }

    fn wall_clock(&self) -> SystemTime {
        match &self.driver {
            Some(driver) => driver.wall_clock(),
            None => SystemTime::now(),
        }
    }

    fn entropy(&mut self, bytes: &mut [u8]) {
        match &mut self.driver {
            Some(driver) => driver.entropy(bytes),
            None => sys::entropy(bytes),
        }
    }

    fn signals(&self) -> SignalSource {
        SignalSource::None
    }

    unsafe fn start(&mut self, _id: OpId, _op: &Op, _scratch: *mut Scratch) -> Start {
        Start::Done(OpResult::new(Err(sys::errno::CANCELED)))
    }

    fn cancel(&mut self, _id: OpId, _op: &Op) {}

    fn poll(&mut self, _completed: &mut Vec<Completion>, _wait: Wait) -> io::Result<()> {
        Err(self.error())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.is_forked {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        Err(self.error())
    }

    fn fd_space(&self) -> FdSpace {
        self.space
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        struct NoSleeper;
        impl Notify for NoSleeper {
            fn notify(&self) {}
        }
        Arc::new(NoSleeper)
    }

    fn counters(&self) -> DriverCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use super::*;

    thread_local! {
        static CALLS: RefCell<Vec<String>> = RefCell::default();
        static DROPPED: Cell<usize> = const { Cell::new(0) };
    }

    /// One of several drivers that share their descriptors. Without a size, so that leaking one leaks no memory.
    struct Sharing;

    impl Drop for Sharing {
        fn drop(&mut self) {
            DROPPED.set(DROPPED.get() + 1);
        }
    }

    // SAFETY: operations complete at once, and their memory is not used.
    unsafe impl Driver for Sharing {
        fn describe(&self) -> Description {
            Description::new("sharing", Vec::new(), "a test")
        }
        fn now(&self) -> Instant {
            Instant::from_origin(Duration::ZERO)
        }
        fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
            CALLS.with_borrow_mut(|calls| calls.push(format!("{call:?}")));
            Ok(Reply::Done)
        }
        unsafe fn start(&mut self, _id: OpId, _op: &Op, _scratch: *mut Scratch) -> Start {
            Start::Done(OpResult::new(Err(sys::errno::NOT_SUPPORTED)))
        }
        fn cancel(&mut self, _id: OpId, _op: &Op) {}
        fn poll(&mut self, _completed: &mut Vec<Completion>, _wait: Wait) -> io::Result<()> {
            Ok(())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn notifier(&self) -> Arc<dyn Notify> {
            let closed = Closed::after(self, false);
            closed.notifier()
        }
        fn counters(&self) -> DriverCounters {
            DriverCounters::default()
        }
        fn wall_clock(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }
    }

    #[test]
    fn descriptors_go_back_to_a_driver_that_shares_them() {
        for leaks in [false, true] {
            let driver = Box::new(Sharing);
            let mut closed = Closed::after(&*driver, false);
            closed.keep(driver, leaks);
            for call in [
                Control::Close { fd: 3 },
                Control::Reset { fd: 4 },
                Control::Forget { fd: 5 },
            ] {
                closed.control(call).expect("the driver takes it");
            }
            closed.control(Control::Pipe).expect_err("the loop is closed");
            assert_eq!(closed.wall_clock(), SystemTime::UNIX_EPOCH);
        }
        let once = ["Close { fd: 3 }", "Reset { fd: 4 }", "Forget { fd: 5 }"];
        assert_eq!(CALLS.take(), [once, once].concat());
        assert_eq!(DROPPED.get(), 1, "one of the two is leaked");
    }
}
