//! Pools of shards under faults: shards that are blocked or die, and stops under load. The bugs are in the pool itself.

mod backlog;
mod deaths;
mod flood;
mod stalled;
mod stop;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use windlass::shards::{self, Defect};
use windlass::time::sleep;

/// Counts what has ended.
#[derive(Clone, Default)]
struct Count(Rc<Cell<usize>>);

impl Count {
    fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    fn get(&self) -> usize {
        self.0.get()
    }

    /// Waits until this many have ended.
    #[track_caller]
    fn reaches(&self, expected: usize, what: &'static str) -> impl Future<Output = ()> {
        let this = self.clone();
        async move {
            for _ in 0..10_000 {
                if this.get() >= expected {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
            panic!("{what}: {} of {expected}", this.get());
        }
    }
}

fn pool(count: u64, defect: Option<Defect>) -> shards::Builder {
    shards::Builder::new().count(count as usize).defect(defect)
}
