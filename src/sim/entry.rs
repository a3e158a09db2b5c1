//! `sweep`, `try_sweep` and `run`: a test over many seeds or one.

use std::future::Future;
use std::ops::Range;

use super::environment::Environment;
use super::handle::{BoxError, Sim};
use super::report::Test;
use super::settings::RunSettings;
use super::sweep::{Failed, Report};
use super::world::run_once;

/// Runs a test with every seed of a range, and panics with a report if one fails.
///
/// The test starts hosts, brings faults about and returns; the world ends with it. A seed that fails is replayed with
/// `WINDLASS_SIM_SEED=n`. `WINDLASS_SIM_SEEDS=n` runs more seeds, and `WINDLASS_SIM_JOBS=n` several at a time.
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// use windlass::sim;
/// sim::sweep(0..10, |sim| async move {
///     sim.host("server").start(|| async {
///         let listener = TcpListener::bind("0.0.0.0:7000").await?;
///         let (stream, _) = listener.accept().await?;
///         stream.write_all("hello").await.0
///     });
///     let stream = TcpStream::connect("server:7000").await?;
///     let (result, bytes) = stream.read_exact([0; 5]).await;
///     result?;
///     assert_eq!(&bytes, b"hello");
///     Ok(())
/// });
/// ```
///
/// # Panics
///
/// If a seed fails or is not deterministic.
#[track_caller]
pub fn sweep<F>(seeds: Range<u64>, test: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    match try_sweep(seeds, test) {
        Ok(report) => report,
        Err(failed) => panic!("{failed}"),
    }
}

/// As [`sweep`], with the report of a failure as an error: for a test that expects one.
///
/// ```
/// let failed = windlass::sim::try_sweep(0..10, |sim| async move {
///     assert_ne!(sim.seed(), 7, "unlucky");
///     Ok(())
/// })
/// .unwrap_err();
/// assert_eq!(failed.seed, 7);
/// assert!(failed.report.contains("unlucky"));
/// ```
///
/// # Errors
///
/// If a seed fails or is not deterministic.
#[track_caller]
pub fn try_sweep<F>(seeds: Range<u64>, test: impl Fn(Sim) -> F + Sync) -> Result<Report, Failed>
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    let name = Test::current(std::any::type_name_of_val(&test));
    let environment = Environment::read().unwrap_or_else(|error| panic!("{error}"));
    let run = |settings: &RunSettings| run_once(settings, &test);
    super::sweep::sweep(seeds, &environment, &name, &run)
}

/// Runs a test with one seed: see [`sweep`].
///
/// # Panics
///
/// If it fails or is not deterministic.
#[track_caller]
pub fn run<F>(seed: u64, test: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = Result<(), BoxError>> + 'static,
{
    sweep(seed..seed + 1, test)
}
