//! The criterion configuration of the benches.

use std::time::Duration;

use criterion::Criterion;

/// criterion with shorter times than its default, and with the options of the command line.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .configure_from_args()
}
