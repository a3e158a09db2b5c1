//! `ThreadBound` in a simulation, where several loops share the thread: each stands for a thread of its own.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use windlass::LoopHandle;
use windlass::compat::{ThreadBound, leaked_values};
use windlass::time::sleep;

use crate::{MS, seeds};

/// Records whether its destructor runs in its own loop.
struct Traced {
    witness: ThreadBound<()>,
    drops: Rc<RefCell<Vec<bool>>>,
}

impl Traced {
    fn new(drops: &Rc<RefCell<Vec<bool>>>) -> Traced {
        let (witness, drops) = (ThreadBound::new(()), drops.clone());
        Traced { witness, drops }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let is_in_its_loop = self.witness.is_home() && LoopHandle::current().is_some();
        self.drops.borrow_mut().push(is_in_its_loop);
    }
}

#[test]
fn a_value_belongs_to_its_loop_and_not_to_the_thread() {
    seeds(|sim| async move {
        let drops = Rc::default();
        let bound = ThreadBound::new(Traced::new(&drops));
        assert!(bound.is_home() && bound.get().is_some());
        let (shelf, seen) = (Rc::new(Cell::new(Some(bound))), drops.clone());
        let empty = shelf.clone();
        sim.host("other").start(move || {
            let (mut bound, drops) = (shelf.take().expect("started once"), seen.clone());
            async move {
                assert!(!bound.is_home() && bound.get().is_none() && bound.get_mut().is_none());
                let payload = catch_unwind(AssertUnwindSafe(|| bound.drops.borrow().len())).expect_err("another loop");
                let message = payload.downcast::<&str>().map(|text| text.to_string());
                let message = message.or_else(|payload| payload.downcast().map(|text: Box<String>| *text));
                let message = message.expect("a text");
                assert!(message.contains("in another loop of the simulation"), "{message}");
                let Err(bound) = bound.into_inner() else {
                    panic!("this is another loop");
                };
                drop(bound);
                assert!(drops.borrow().is_empty(), "dropped in another loop");
                pending::<()>().await;
                Ok::<(), std::io::Error>(())
            }
        });
        sleep(10 * MS).await;
        assert!(empty.take().is_none());
        assert_eq!(*drops.borrow(), [true]);
        Ok(())
    });
}

#[test]
fn a_value_of_a_crashed_loop_is_not_leaked() {
    seeds(|sim| async move {
        let drops = Rc::default();
        let shelf = Rc::new(Cell::new(None));
        let (theirs, counted) = (shelf.clone(), Rc::clone(&drops));
        sim.host("other").start(move || {
            theirs.set(Some(ThreadBound::new(Traced::new(&counted))));
            pending::<std::io::Result<()>>()
        });
        sleep(MS).await;
        sim.crash("other", windlass::sim::Crash::Process);
        sleep(MS).await;
        let leaked = leaked_values();
        let bound = shelf.take().expect("the host has run");
        assert!(bound.home().is_closed());
        drop(bound);
        assert_eq!((drops.borrow().len(), leaked_values()), (1, leaked));
        Ok(())
    });
}
