//! The cost of a task, without system calls.

use std::time::Instant;

use crate::runtime::Runtime;

/// Interruptions only add time, so the best of several batches is the most accurate.
const BATCHES: usize = 5;

const CROWD: usize = 100;

pub(crate) async fn measure<R: Runtime>(batch: usize) -> Vec<f64> {
    let spawn = best(batch, async || {
        for _ in 0..batch {
            R::spawn(async {}).await;
        }
    });
    let spawn = spawn.await;
    let alone = best(batch, async || yield_often::<R>(batch).await).await;
    let crowd = best(batch / CROWD * CROWD, async || {
        let tasks: Vec<_> = (0..CROWD).map(|_| R::spawn(yield_often::<R>(batch / CROWD))).collect();
        for task in tasks {
            task.await;
        }
    });
    vec![spawn, alone, crowd.await]
}

async fn yield_often<R: Runtime>(count: usize) {
    for _ in 0..count {
        R::yield_now().await;
    }
}

/// Nanoseconds per step of the best batch.
async fn best(steps: usize, work: impl AsyncFn()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        let begin = Instant::now();
        work().await;
        best = best.min(begin.elapsed().as_nanos() as f64 / steps.max(1) as f64);
    }
    best
}
