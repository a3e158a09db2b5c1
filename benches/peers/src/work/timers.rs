//! How late a sleep ends: one task sleeps, again and again.

use std::time::{Duration, Instant};

use crate::kit::histogram::Histogram;
use crate::runtime::Runtime;

pub(crate) async fn measure<R: Runtime>(length: Duration, count: usize) -> Vec<f64> {
    let mut late = Histogram::default();
    for _ in 0..count {
        let begin = Instant::now();
        R::sleep(length).await;
        late.add(begin.elapsed().saturating_sub(length));
    }
    figures(&late)
}

/// The columns of the table.
pub(crate) fn figures(late: &Histogram) -> Vec<f64> {
    vec![late.nanos(0.5), late.nanos(0.99)]
}
