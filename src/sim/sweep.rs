//! Sweeps: one test over many seeds, with checks for determinism, replay and reports.
//!
//! Everything here works on a function from [`RunSettings`] to [`Outcome`] and knows nothing of the world that runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{IsTerminal, Write as _};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sim::determinism;
use crate::sim::environment::Environment;
use crate::sim::log::{EventLog, LogMode};
use crate::sim::panics;
use crate::sim::report::{self, Test};
use crate::sim::rng::Streams;
use crate::sim::settings::{Failure, FailureKind, Outcome, RunSettings};
use crate::sim::shrink::Budget;

/// Every how many seeds one runs twice, to check that it is deterministic.
const CHECK_EVERY: u64 = 64;

/// Warnings of a sweep that are kept and printed.
const MAX_WARNINGS: usize = 8;

/// Sweeps that take less report no progress.
const QUIET: Duration = Duration::from_secs(5);

/// What a sweep that passed did. `Display` writes one line, and one per mark.
///
/// ```
/// # fn example(report: windlass::sim::Report) {
/// assert!(report.never_met().is_empty(), "{report}");
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The number of seeds that ran.
    pub seeds: u64,
    /// The events of all runs.
    pub events: u64,
    /// The time that passed on the simulated clocks.
    pub virtual_time: Duration,
    /// How many seeds met each mark of `Sim::sometimes`.
    pub marks: BTreeMap<String, u64>,
    /// The combined hash of all event logs: equal for two sweeps that did the same.
    pub hash: u64,
    /// Calls that left the simulation, with what to use instead: blocking calls (on Linux), files of the machine. They
    /// are searched for in the seeds that run twice, and printed to standard error too.
    pub warnings: BTreeSet<String>,
}

impl Report {
    /// The marks of `Sim::sometimes` that were asked about and never met: states that the sweep did not reach.
    pub fn never_met(&self) -> Vec<&str> {
        self.marks
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Keeps and prints warnings that are new.
    fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            if self.warnings.len() < MAX_WARNINGS && self.warnings.insert(warning.clone()) {
                eprintln!("sim: warning: {warning}");
            }
        }
    }

    fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.seeds += 1;
        self.events += outcome.log.len();
        self.virtual_time += outcome.elapsed;
        // The seeds finish in any order if there are several threads.
        self.hash = self
            .hash
            .wrapping_add(crate::rand::mix(outcome.log.hash() ^ crate::rand::mix(seed)));
        self.warn(&outcome.warnings);
        for (name, count) in &outcome.marks {
            *self.marks.entry(name.clone()).or_default() += u64::from(*count > 0);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sim: {} passed, {} events, {:.1} s of virtual time",
            report::count(self.seeds, "seed"),
            report::grouped(self.events),
            self.virtual_time.as_secs_f64()
        )?;
        for (name, count) in &self.marks {
            match count {
                0 => write!(f, "\n  never met: {name}")?,
                count => write!(f, "\n  {name}: in {}", report::count(*count, "seed"))?,
            }
        }
        Ok(())
    }
}

/// A sweep in which a seed failed. `Display` writes the whole report: the failure, how to replay it, the last events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The seed that failed.
    pub seed: u64,
    /// The report.
    pub report: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl std::error::Error for Failed {}

/// Runs one seed, with every panic turned into a failure of the outcome.
fn guarded(run: &Run<'_>, settings: &RunSettings) -> Outcome {
    // The runs for a report keep their whole log; all others are only judged.
    let is_for_report = !matches!(settings.log, LogMode::Tail | LogMode::Off);
    let outside = Streams::new(settings.seed).stream("outside");
    panics::capture(is_for_report, || {
        catch_unwind(AssertUnwindSafe(|| crate::rand::seeded(outside, || run(settings)))).unwrap_or_else(|payload| {
            let failure = panics::take().into_iter().next().unwrap_or_else(|| Failure {
                kind: FailureKind::Panic,
                message: panics::message(&*payload),
                location: None,
                details: Vec::new(),
            });
            // The world is gone, and its log with it.
            Outcome {
                failure: Some(failure),
                elapsed: Duration::ZERO,
                log: EventLog::new(LogMode::Tail),
                sizes: Vec::new(),
                episodes: Vec::new(),
                marks: BTreeMap::new(),
                hosts: 0,
                warnings: Vec::new(),
                missing: Vec::new(),
            }
        })
    })
}

/// A run of one seed.
pub(crate) type Run<'a> = dyn Fn(&RunSettings) -> Outcome + Sync + 'a;

/// Runs the seeds.
pub(crate) fn sweep(
    seeds: Range<u64>,
    environment: &Environment,
    test: &Test,
    run: &Run<'_>,
) -> Result<Report, Failed> {
    let run = &|settings: &RunSettings| guarded(run, settings);
    let settings = |seed| RunSettings {
        knobs: environment.knobs.clone(),
        log: match environment.no_log {
            true => LogMode::Off,
            false => LogMode::Tail,
        },
        ..RunSettings::new(seed)
    };
    if let Some(seed) = environment.seed {
        return replay(&settings(seed), environment, test, run);
    }
    let seeds = match environment.seeds {
        Some(count) => seeds.start..seeds.start.saturating_add(count),
        None => seeds,
    };
    let progress = Mutex::new(Progress::new(&seeds));
    let next = Mutex::new(seeds.clone());
    // The first seed that failed, with its outcomes: two of them if they differ.
    let failed: Mutex<Option<(u64, Outcome, Option<Outcome>)>> = Mutex::new(None);
    let work = || {
        loop {
            let seed = match (lock(&next).next(), &*lock(&failed)) {
                (Some(seed), None) => seed,
                _ => return,
            };
            let settings = settings(seed);
            let switches = crate::sys::voluntary_switches();
            let outcome = run(&settings);
            let is_checked = environment.check || (seed - seeds.start).is_multiple_of(CHECK_EVERY);
            let second = is_checked.then(|| {
                run(&RunSettings {
                    watches_entries: crate::sys::voluntary_switches() != switches,
                    ..settings.clone()
                })
            });
            if let Some(second) = &second {
                lock(&progress).report.warn(&second.warnings);
            }
            let second = second.filter(|second| second.log.hash() != outcome.log.hash());
            if outcome.failure.is_some() || second.is_some() {
                let mut failed = lock(&failed);
                if failed.as_ref().is_none_or(|(other, ..)| seed < *other) {
                    *failed = Some((seed, outcome, second));
                }
                return;
            }
            lock(&progress).passed(seed, &outcome);
        }
    };
    match environment.jobs.unwrap_or(1) {
        0 | 1 => work(),
        jobs => std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(work);
            }
        }),
    }
    let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    match failed {
        None => Ok(progress
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .report),
        Some((seed, first, Some(second))) => {
            let difference = determinism::find(run, &settings(seed), first, second);
            let report = report::nondeterminism(test, &settings(seed), &difference);
            Err(Failed { seed, report })
        }
        Some((seed, outcome, None)) => {
            let report = report::failure(test, &settings(seed), outcome, environment.budget(), run);
            Err(Failed { seed, report })
        }
    }
}

/// One seed, checked and with its whole log written.
fn replay(
    settings: &RunSettings,
    environment: &Environment,
    test: &Test,
    run: &dyn Fn(&RunSettings) -> Outcome,
) -> Result<Report, Failed> {
    let outcome = run(&RunSettings {
        log: LogMode::All,
        ..settings.clone()
    });
    let second = run(settings);
    if outcome.log.hash() != second.log.hash() {
        let difference = determinism::find(run, settings, outcome, second);
        let report = report::nondeterminism(test, settings, &difference);
        return Err(Failed {
            seed: settings.seed,
            report,
        });
    }
    if outcome.failure.is_some() {
        // The knobs of a replay are those that the user wants to see: they are not shrunk any further.
        let runs = environment.shrink.unwrap_or(0) as usize;
        let budget = Budget {
            runs,
            ..Budget::default()
        };
        let report = report::failure(test, settings, outcome, budget, run);
        return Err(Failed {
            seed: settings.seed,
            report,
        });
    }
    let mut report = Report::default();
    report.add(settings.seed, &outcome);
    let files = report::write_files(test, settings.seed, "", &outcome.log);
    eprintln!(
        "sim: seed {:#x} passed\n  {}",
        settings.seed,
        files.unwrap_or_else(|error| error)
    );
    Ok(report)
}

/// A thread that panicked while it held the lock reports that itself.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What has passed so far, printed now and then.
struct Progress {
    report: Report,
    total: u64,
    started: Instant,
    printed_at: Instant,
    every: Duration,
}

impl Progress {
    fn new(seeds: &Range<u64>) -> Progress {
        let now = Instant::now();
        // A log file gets a line per minute.
        let every = if std::io::stderr().is_terminal() {
            QUIET
        } else {
            Duration::from_secs(60)
        };
        Progress {
            report: Report::default(),
            total: seeds.end.saturating_sub(seeds.start),
            started: now,
            printed_at: now,
            every,
        }
    }

    fn passed(&mut self, seed: u64, outcome: &Outcome) {
        self.report.add(seed, outcome);
        if self.printed_at.elapsed() < self.every {
            return;
        }
        self.printed_at = Instant::now();
        let line = self.line(self.started.elapsed());
        // Written to the stream itself: `cargo test` holds back what `eprintln` prints until the test has ended.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    fn line(&self, elapsed: Duration) -> String {
        let done = self.report.seeds;
        let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
        let left = self.total.saturating_sub(done) as f64 / rate.max(1e-9);
        format!(
            "sim: {} of {} seeds passed, {} per second, {:.0} s left",
            report::grouped(done),
            report::grouped(self.total),
            report::grouped(rate as u64),
            left
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::sim::log::EventKind;
    use crate::sim::settings::Size;

    fn test() -> Test {
        let name = std::thread::current().name().unwrap_or("sweep").replace("::", "-");
        let folder = std::env::temp_dir().join(format!("windlass-sim-{}-{name}", std::process::id()));
        Test {
            name: "kv::survives".into(),
            flags: "",
            command: "cargo test --test kv".into(),
            folder,
        }
    }

    /// A run of 3,000 events, which the seed determines, with `odd` as the second word of event 2,500.
    fn outcome(settings: &RunSettings, odd: u64, failure: Option<&str>) -> Outcome {
        let mut log = EventLog::new(settings.log);
        log.name_host(0, "a");
        for index in 0..3_000 {
            let b = if index == 2_500 { odd } else { settings.seed };
            log.record(index * 1_000, 0, EventKind::Send, 0, b);
        }
        log.note(3_000_000, 0, EventKind::Crash, "power");
        Outcome {
            failure: failure.map(|message| Failure {
                kind: FailureKind::Panic,
                message: message.into(),
                location: Some("tests/kv.rs:27:5".into()),
                details: vec!["loop a: 1 task".into()],
            }),
            elapsed: Duration::from_millis(3),
            log,
            sizes: vec![Size {
                name: "keys".into(),
                value: settings.knobs.size("keys").unwrap_or(200),
                least: 1,
            }],
            episodes: vec!["0.1-0.2 s: a loses power".into()],
            marks: [("leader changed".into(), settings.seed % 2), ("never".into(), 0)].into(),
            hosts: 1,
            warnings: Vec::new(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_clean_sweep_counts_seeds_events_and_marks() {
        let runs = AtomicU64::new(0);
        let run = |settings: &RunSettings| {
            runs.fetch_add(1, Ordering::Relaxed);
            outcome(settings, 0, None)
        };
        let report = sweep(10..110, &Environment::default(), &test(), &run).unwrap();
        assert_eq!((report.seeds, report.events), (100, 100 * 3_001));
        assert_eq!(report.virtual_time, Duration::from_millis(300));
        assert_eq!(report.marks["leader changed"], 50);
        assert_eq!(report.never_met(), ["never"]);
        assert!(report.to_string().contains("never met: never"), "{report}");
        // The first seed and every 64th run twice.
        assert_eq!(runs.load(Ordering::Relaxed), 102);

        let two = Environment {
            jobs: Some(2),
            ..Environment::default()
        };
        let again = sweep(10..110, &two, &test(), &run).unwrap();
        assert_eq!((again.hash, again.seeds), (report.hash, report.seeds));

        let checked = Environment {
            check: true,
            seeds: Some(7),
            ..Environment::default()
        };
        runs.store(0, Ordering::Relaxed);
        assert_eq!(sweep(10..110, &checked, &test(), &run).unwrap().seeds, 7);
        assert_eq!(runs.load(Ordering::Relaxed), 14);
    }

    #[test]
    fn a_failure_is_shrunk_and_reported_with_what_replays_it() {
        let test = test();
        let run = |settings: &RunSettings| {
            let keys = settings.knobs.size("keys").unwrap_or(200);
            let fails = settings.seed == 0x1f && keys >= 43 && settings.knobs.has_episode(0);
            outcome(settings, 0, fails.then_some("acknowledged write lost"))
        };
        let report = sweep(0..100, &Environment::default(), &test, &run)
            .unwrap_err()
            .to_string();
        for part in [
            "sim: seed 0x1f failed at 0.003 s (virtual), event 3,001: acknowledged write lost (tests/kv.rs:27:5)\n",
            "replay:  WINDLASS_SIM_SEED=0x1f cargo test --test kv kv::survives -- --exact --nocapture\n",
            "shrunk:  WINDLASS_SIM_SEED=0x1f WINDLASS_SIM_SET=keys=43,net=off,disk=off,clock=off,quirks=off,tie=fifo,\
             latency=constant,buffers=fixed cargo test --test kv kv::survives -- --exact --nocapture  (",
            "episode 0: 0.1-0.2 s: a loses power\n",
            "0.003000  a               crash: power\n",
            "loop a: 1 task\n",
            "kv-survives-0x1f-shrunk.log",
        ] {
            assert!(report.contains(part), "{part}\n{report}");
        }
        assert!(!report.contains("not deterministic"), "{report}");
        let file = std::fs::read_to_string(test.folder.join("kv-survives-0x1f-shrunk.log")).unwrap();
        assert_eq!(file.lines().count(), 3_001);
        assert!(test.folder.join("kv-survives-0x1f-shrunk.json").exists());

        // The printed line fails in the same way, and is not shrunk again.
        let get = |name: &str| match name {
            "WINDLASS_SIM_SEED" => Some("0x1f".to_owned()),
            "WINDLASS_SIM_SET" => Some("keys=43,net=off".to_owned()),
            _ => None,
        };
        let again = sweep(0..100, &Environment::parse(get).unwrap(), &test, &run)
            .unwrap_err()
            .to_string();
        assert!(
            again.contains("seed 0x1f failed") && !again.contains("shrunk:"),
            "{again}"
        );
        std::fs::remove_dir_all(&test.folder).unwrap();
    }

    #[test]
    fn a_panic_of_the_run_itself_is_a_failure() {
        let test = test();
        let run = |settings: &RunSettings| match settings.seed {
            3 => panic!("broken world"),
            _ => outcome(settings, 0, None),
        };
        let report = sweep(0..10, &Environment::default(), &test, &run)
            .unwrap_err()
            .to_string();
        assert!(
            report.contains("seed 0x3 failed") && report.contains("broken world (") && report.contains("sweep.rs"),
            "{report}"
        );
        std::fs::remove_dir_all(&test.folder).unwrap();
    }

    #[test]
    fn the_lowest_failing_seed_is_reported_with_several_threads() {
        let test = test();
        let no_shrinking = Environment {
            jobs: Some(3),
            shrink: Some(0),
            ..Environment::default()
        };
        let run = |settings: &RunSettings| outcome(settings, 0, (settings.seed % 20 == 19).then_some("lost"));
        let report = sweep(0..1_000, &no_shrinking, &test, &run).unwrap_err().to_string();
        assert!(report.contains("seed 0x13 failed"), "{report}");
        std::fs::remove_dir_all(&test.folder).unwrap();
    }

    #[test]
    fn runs_that_differ_are_named_with_the_event() {
        let runs = AtomicU64::new(0);
        let run = |settings: &RunSettings| outcome(settings, 700 + runs.fetch_add(1, Ordering::Relaxed), None);
        let report = sweep(0..10, &Environment::default(), &test(), &run)
            .unwrap_err()
            .to_string();
        for part in [
            "sim: seed 0x0 is not deterministic: two runs differ from event 2,500 on\n",
            "before:  0.002499  a               send to a bytes=0\n",
            "run 1:   0.002500  a               send to a bytes=702\n",
            "run 2:   0.002500  a               send to a bytes=703\n",
            "host:    a\n",
            "suspect: the iteration order of a `HashMap`",
            "replay:  WINDLASS_SIM_SEED=0x0 ",
        ] {
            assert!(report.contains(part), "{part}\n{report}");
        }
        assert_eq!(runs.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn state_that_outlives_a_run_is_suspected() {
        let runs = AtomicU64::new(0);
        let run = |settings: &RunSettings| {
            let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            outcome(settings, if is_first { 1 } else { 2 }, None)
        };
        let report = sweep(0..10, &Environment::default(), &test(), &run)
            .unwrap_err()
            .to_string();
        assert!(report.contains("suspect: state that survives a run"), "{report}");
        assert!(report.contains("differ from event 2,048 on"), "{report}");
    }

    #[test]
    fn progress_says_how_long_it_will_take() {
        let mut progress = Progress::new(&(0..1_000));
        progress.report.seeds = 250;
        let line = progress.line(Duration::from_secs(5));
        assert_eq!(line, "sim: 250 of 1,000 seeds passed, 50 per second, 15 s left");
    }
}
