//! From the command line to the report.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use windlass::{Builder, DriverChoice};

use crate::kit::machine::Machine;
use crate::kit::progress::Progress;
use crate::options::{self, Job, Plan};
use crate::python::Python;
use crate::{echo, json, serve, table, tasks, timers};

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) echo: Vec<echo::Workload>,
    pub(crate) timers: Vec<timers::Lateness>,
    pub(crate) tasks: Vec<tasks::Cost>,
    /// What could not be measured, and why: one line each.
    pub(crate) missing: Vec<String>,
}

pub(crate) fn main() -> ExitCode {
    let job = match options::parse(std::env::args().skip(1)) {
        Ok(job) => job,
        Err(wrong) => {
            eprintln!("{wrong}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let result = match job {
        Job::Help => {
            println!("{}", options::USAGE);
            Ok(())
        }
        Job::Serve(kind) => serve::serve(kind),
        Job::Sleep(sleeper, pause, count) => timers::measure_sleeps(sleeper, pause, count),
        Job::Compare(plan) => compare(&plan),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(plan: &Plan) -> io::Result<()> {
    let machine = Machine::look();
    let mut out = io::stdout();
    writeln!(out, "{machine}")?;
    for driver in [DriverChoice::Proactor, DriverChoice::Reactor] {
        writeln!(out, "windlass {driver:?}: {}", describe(driver))?;
    }
    if cfg!(debug_assertions) {
        writeln!(out, "this is a debug build: its figures say little; add --release")?;
    }
    let mut results = Results::default();
    let python = (plan.echo || plan.timers).then(|| Python::find(&mut results.missing));
    let python = python.flatten();
    machine.pin_to_load();

    let steps = [
        (plan.echo, echo::steps(plan, python.as_ref())),
        (plan.timers, timers::steps(python.as_ref())),
        (plan.tasks, tasks::steps()),
    ];
    let mut progress = Progress::new(steps.iter().filter(|(on, _)| *on).map(|(_, steps)| steps).sum());
    if plan.echo {
        results.echo = echo::measure(plan, &machine, python.as_ref(), &mut progress, &mut results.missing)?;
    }
    if plan.timers {
        results.timers = timers::measure(plan, &machine, python.as_ref(), &mut progress, &mut results.missing);
    }
    if plan.tasks {
        results.tasks = tasks::measure(plan, &mut progress, &mut results.missing)?;
    }
    progress.finish();

    let path = json_path();
    let written = match std::fs::write(&path, json::document(plan, &machine, &results)) {
        Ok(()) => format!("raw results: {}", path.display()),
        Err(error) => format!("raw results were not written to {}: {error}", path.display()),
    };
    writeln!(out, "{}\n{written}", table::report(plan, &results))
}

/// What a driver has of this kernel, or why there is none.
fn describe(driver: DriverChoice) -> String {
    match Builder::new().driver(driver).build() {
        Ok(event_loop) => {
            let described = event_loop.describe();
            format!("{} [{}]", described.name, described.features.join(", "))
        }
        Err(error) => format!("none here: {error}"),
    }
}

/// `compare.json` in cargo's target directory: this program lies in `target/release/examples`.
fn json_path() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let is_example = |dir: &&std::path::Path| dir.file_name().is_some_and(|name| name == "examples");
    match exe.parent().filter(is_example).and_then(|dir| dir.ancestors().nth(2)) {
        Some(target) => target.join("compare.json"),
        None => PathBuf::from("compare.json"),
    }
}
