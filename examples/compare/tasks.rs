//! What the loop itself costs, with no kernel in the way.

use std::io;
use std::time::Instant;

use windlass::task::yield_now;
use windlass::{Builder, DriverChoice, EventLoop};

use crate::options::Plan;
use crate::progress::Progress;

/// Interruptions only ever add time, so of several batches the best is nearest to the truth.
const BATCHES: usize = 12;

/// A cost in nanoseconds, batch by batch.
pub(crate) struct Cost {
    pub(crate) what: &'static str,
    pub(crate) nanos: Vec<f64>,
}

impl Cost {
    pub(crate) fn best(&self) -> f64 {
        self.nanos.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

pub(crate) fn steps() -> usize {
    3
}

pub(crate) fn measure(plan: &Plan, progress: &mut Progress) -> io::Result<Vec<Cost>> {
    let event_loop = Builder::new().driver(DriverChoice::Proactor).build()?;
    let batch = if plan.quick { 20_000 } else { 100_000 };
    let mut costs = Vec::new();

    let what = "one task yields: a whole turn of the loop and one poll";
    progress.step(what);
    costs.push(repeat(&event_loop, what, batch, async || {
        for _ in 0..batch {
            yield_now().await;
        }
    })?);

    let what = "100 tasks yield: one wake and one poll";
    progress.step(what);
    costs.push(repeat(&event_loop, what, batch, async || {
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                windlass::spawn(async move {
                    for _ in 0..batch / 100 {
                        yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task that only yields");
        }
    })?);

    let what = "spawn and join an empty task";
    progress.step(what);
    costs.push(repeat(&event_loop, what, batch, async || {
        for _ in 0..batch {
            windlass::spawn(async {}).await.expect("an empty task");
        }
    })?);
    Ok(costs)
}

fn repeat(event_loop: &EventLoop, what: &'static str, batch: usize, work: impl AsyncFn()) -> io::Result<Cost> {
    let mut nanos = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let begin = Instant::now();
        event_loop.run_until_complete(work())?;
        nanos.push(begin.elapsed().as_nanos() as f64 / batch as f64);
    }
    Ok(Cost { what, nanos })
}
