//! Scenarios: small programs on the public API, under faults.
//!
//! The correct version of a program passes all its seeds. Bugs can be switched on, and must be found within
//! [`BUG_SEEDS`] seeds; otherwise the faults do not reach what they should. The tests of bugs end in `_found`.
//!
//! `cargo test --release --all-features --test sim scenarios:: -- --skip _found --nocapture` runs the correct versions alone;
//! `WINDLASS_SIM_SEEDS=100000 WINDLASS_SIM_JOBS=2` before it runs more seeds. `.ci/sim-seeds` counts them.

mod cancel;
#[cfg(unix)]
mod copies;
mod echo;
#[cfg(feature = "hyper")]
mod http;
mod retry;
mod shards;
mod shutdown;
#[cfg(unix)]
mod storm;
#[cfg(all(feature = "tls", target_os = "linux"))]
mod tls;
#[cfg(unix)]
mod wal;

use std::future::Future;

use windlass::sim::{self, Report, Sim};

use crate::TestResult;

/// Seeds of the correct version of a scenario.
const SEEDS: u64 = 100;

/// Seeds within which each bug of a scenario must be found.
const BUG_SEEDS: u64 = 1_000;

/// Runs the correct version of a scenario, and prints how many seeds have passed. Each mark of the scenario must be met
/// by some seed, unless there are too few seeds.
#[track_caller]
pub(crate) fn passes<F>(scenario: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = TestResult> + 'static,
{
    let report = sim::sweep(0..SEEDS, scenario);
    println!("{report}");
    if report.seeds >= SEEDS {
        assert!(report.never_met().is_empty(), "{report}");
    }
    report
}

/// Checks that a bug is found, by a failure whose report contains `expected`.
#[track_caller]
pub(crate) fn finds<F>(expected: &str, scenario: impl Fn(Sim) -> F + Sync)
where
    F: Future<Output = TestResult> + 'static,
{
    match sim::try_sweep(0..BUG_SEEDS, scenario) {
        Ok(report) => panic!("the bug was not found: {report}"),
        Err(failed) => {
            println!("{failed}");
            let found = failed.report.contains(expected);
            assert!(found, "another failure than {expected:?}: {failed}");
        }
    }
}
