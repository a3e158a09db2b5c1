//! The lateness and CPU time of a sleep: one task sleeps repeatedly.

use std::io;
use std::time::{Duration, Instant};

use crate::kit::lateness::Lateness;
use crate::kit::process::own_cpu_time;
use crate::runtime::Runtime;

pub(crate) async fn measure<R: Runtime>(length: Duration, count: usize) -> io::Result<Vec<f64>> {
    let mut late = Lateness::default();
    let cpu = own_cpu_time()?;
    for _ in 0..count {
        let begin = Instant::now();
        R::sleep(length).await;
        late.add(begin.elapsed(), length);
    }
    figures(&late, cpu)
}

/// The columns of the table, given the CPU time of the process before the sleeps.
pub(crate) fn figures(late: &Lateness, cpu: Duration) -> io::Result<Vec<f64>> {
    let cpu = own_cpu_time()?.saturating_sub(cpu);
    Ok(vec![
        late.nanos(0.5),
        late.nanos(0.99),
        cpu.as_nanos() as f64 / late.len() as f64,
        late.early() as f64,
    ])
}
