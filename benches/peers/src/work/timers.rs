//! How late a sleep ends, and what it costs: one task sleeps, again and again.

use std::io;
use std::time::{Duration, Instant};

use crate::kit::lateness::Lateness;
use crate::kit::process::own_cpu_time;
use crate::event_loop::builder::Runtime;

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

/// The columns of the table, of sleeps that began when this process had used so much processor time.
pub(crate) fn figures(late: &Lateness, cpu: Duration) -> io::Result<Vec<f64>> {
    let cpu = own_cpu_time()?.saturating_sub(cpu);
    Ok(vec![
        late.nanos(0.5),
        late.nanos(0.99),
        cpu.as_nanos() as f64 / late.len() as f64,
        late.early() as f64,
    ])
}
