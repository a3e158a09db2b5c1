//! The cost of the loop itself on each driver, with few or no system calls.

use std::io;
use std::time::Instant;

use windlass::task::yield_now;
use windlass::{Builder, DriverChoice, EventLoop};

use super::kit::progress::Progress;
use super::options::Plan;

/// Interruptions only add time, so the best of several batches is the most accurate.
pub(crate) const BATCHES: usize = 12;

pub(crate) const DRIVERS: [DriverChoice; 2] = [DriverChoice::Reactor, DriverChoice::Proactor];

/// A cost in nanoseconds on one driver, batch by batch.
pub(crate) struct Cost {
    pub(crate) what: &'static str,
    pub(crate) driver: DriverChoice,
    pub(crate) nanos: Vec<f64>,
}

impl Cost {
    pub(crate) fn best(&self) -> f64 {
        self.nanos.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Estimate for each of the three measurements: 12 batches on 2 drivers at about 80 ns.
fn weight_of_one(plan: &Plan) -> f64 {
    (BATCHES * DRIVERS.len() * plan.turns) as f64 * 80e-9
}

pub(crate) fn weight(plan: &Plan) -> f64 {
    3.0 * weight_of_one(plan)
}

pub(crate) fn measure(plan: &Plan, progress: &mut Progress) -> io::Result<Vec<Cost>> {
    // Missing drivers were recorded when the contenders were probed.
    let built = |driver| Some((driver, Builder::new().driver(driver).build().ok()?));
    let loops: Vec<_> = DRIVERS.into_iter().filter_map(built).collect();
    let batch = plan.turns;
    let mut costs = Vec::new();

    let what = "one task yields: a whole turn of the loop and one poll";
    progress.step_of(weight_of_one(plan), what);
    costs.extend(repeat(&loops, what, batch, async || {
        for _ in 0..batch {
            yield_now().await;
        }
    })?);

    let what = "100 tasks yield: one wake and one poll";
    progress.step_of(weight_of_one(plan), what);
    costs.extend(repeat(&loops, what, batch, async || {
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
    progress.step_of(weight_of_one(plan), what);
    costs.extend(repeat(&loops, what, batch, async || {
        for _ in 0..batch {
            windlass::spawn(async {}).await.expect("an empty task");
        }
    })?);
    Ok(costs)
}

/// The batches of the drivers are interleaved, as the rounds of the servers are.
fn repeat(
    loops: &[(DriverChoice, EventLoop)],
    what: &'static str,
    batch: usize,
    work: impl AsyncFn(),
) -> io::Result<Vec<Cost>> {
    let cost = |&(driver, _): &(DriverChoice, _)| Cost {
        what,
        driver,
        nanos: Vec::with_capacity(BATCHES),
    };
    let mut costs: Vec<Cost> = loops.iter().map(cost).collect();
    for _ in 0..BATCHES {
        for ((_, event_loop), cost) in loops.iter().zip(&mut costs) {
            let begin = Instant::now();
            event_loop.run_until_complete(work())?;
            cost.nanos.push(begin.elapsed().as_nanos() as f64 / batch as f64);
        }
    }
    Ok(costs)
}
