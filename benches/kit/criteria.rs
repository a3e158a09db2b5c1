//! criterion as the benches use it.

use std::time::Duration;

use criterion::Criterion;

/// criterion with less patience than its default, and what the command line says.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args()
}
