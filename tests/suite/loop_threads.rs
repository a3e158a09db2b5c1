//! `LoopThread` and the values of a loop that other threads can reach.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use windlass::{Builder, LoopLocal, LoopThread};

use crate::support::on_every_driver;

/// Sets a flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_loop_thread_runs_futures_and_dropping_it_cancels_them() {
    on_every_driver(|case| {
        let background = LoopThread::start_with(move || case.builder()).unwrap();
        let handle = background.handle().clone();
        let sum = handle.spawn_with(|| async {
            windlass::time::sleep(Duration::from_millis(1)).await;
            40 + 2
        });
        assert_eq!(sum.unwrap().wait().unwrap(), 42);
        let dropped = Arc::new(AtomicBool::new(false));
        let (started, wait) = mpsc::channel();
        let flag = Flag(dropped.clone());
        let stuck = handle.spawn_with(move || async move {
            let _flag = flag;
            started.send(()).unwrap();
            std::future::pending::<()>().await
        });
        wait.recv().unwrap();
        drop(background);
        assert!(dropped.load(SeqCst) && handle.is_closed());
        assert!(stuck.unwrap().wait().unwrap_err().is_cancelled());
        assert!(handle.with(|_| ()).is_err());
    });
}

#[test]
fn a_loop_thread_reports_why_it_cannot_start() {
    let start = || LoopThread::start_with(|| Builder::new().wrap_driver(|_| panic!("no driver")));
    let payload = std::panic::catch_unwind(start).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"no driver"));
}

#[test]
fn a_loop_thread_may_be_dropped_on_its_own_thread() {
    on_every_driver(|case| {
        let background = LoopThread::start_with(move || case.builder()).unwrap();
        let handle = background.handle().clone();
        handle.call_soon_threadsafe(move || drop(background)).unwrap();
        while !handle.is_closed() {
            std::thread::yield_now();
        }
    });
}

#[test]
fn values_stay_on_the_loops_thread_and_are_dropped_with_the_loop() {
    #[derive(Default)]
    struct Visits(Cell<u32>);
    on_every_driver(|case| {
        let dropped = Arc::new(AtomicBool::new(false));
        let background = LoopThread::start_with(move || case.builder()).unwrap();
        let visit = |local: &LoopLocal| {
            let visits: Rc<Visits> = local.get_or_default();
            visits.0.set(visits.0.get() + 1);
            visits.0.get()
        };
        for expected in 1..4 {
            assert_eq!(background.handle().with(visit).unwrap().wait().unwrap(), expected);
        }
        let flag = Flag(dropped.clone());
        let replaced = background.handle().with(move |local| {
            assert!(local.get::<Flag>().is_none());
            local.insert(flag);
            local.remove::<Visits>().unwrap().0.get()
        });
        assert_eq!(replaced.unwrap().wait().unwrap(), 3);
        background.stop().unwrap();
        assert!(dropped.load(SeqCst));
        assert!(LoopLocal::current().is_none());
    });
}
