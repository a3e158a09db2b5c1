//! From the command line to the report.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use windlass::{Builder, DriverChoice};

use super::contender::Field;
use super::kit::load::Shape;
use super::kit::machine::Machine;
use super::kit::options::words;
use super::kit::progress::Progress;
use super::limits::Limits;
use super::options::{self, Job, Part, Plan, USUAL};
use super::python::Python;
use super::{cores, echo, json, memory, report, serve, stall, syscalls, tables, tasks, timers};

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) echo: Vec<echo::Workload>,
    pub(crate) pools: Vec<cores::Pool>,
    pub(crate) calls: Vec<syscalls::Calls>,
    pub(crate) timers: Vec<timers::Lateness>,
    pub(crate) memory: Vec<memory::Memory>,
    pub(crate) stalls: Vec<stall::Stall>,
    pub(crate) tasks: Vec<tasks::Cost>,
    /// Measurements that were not possible, and why: one line each.
    pub(crate) missing: Vec<String>,
}

impl Results {
    /// The representative load: the usual one, or the nearest if there are too few descriptors for it.
    pub(crate) fn usual(&self) -> Option<&echo::Workload> {
        let alike = |workload: &&echo::Workload| workload.shape.request_len == USUAL.request_len;
        let distance = |workload: &&echo::Workload| workload.shape.connections.abs_diff(USUAL.connections);
        self.echo.iter().filter(alike).min_by_key(distance)
    }

    /// The shape of the representative load.
    pub(crate) fn usual_shape(&self) -> Shape {
        self.usual().map_or(USUAL, |workload| workload.shape)
    }
}

/// The machine, the versions and the command of the run.
pub(crate) struct Setting {
    pub(crate) machine: Machine,
    pub(crate) limits: Limits,
    /// Each driver and its kernel features.
    pub(crate) drivers: Vec<String>,
    pub(crate) python: Option<String>,
    /// In UTC.
    pub(crate) date: String,
    /// The command line.
    pub(crate) command: String,
}

pub(crate) fn main() -> ExitCode {
    let job = match options::parse(words()) {
        Ok(job) => job,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let result = match job {
        Job::Help => {
            say(options::USAGE);
            Ok(())
        }
        Job::Serve(kind) => serve::serve(kind),
        Job::ServePool(kind, count) => cores::serve(kind, count),
        Job::Sleep(kind, pause, count) => timers::measure_sleeps(kind, pause, count),
        Job::Stall(kind, before, after) => stall::measure_stalls(kind, before, after),
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
    let folder = plan.out.clone().unwrap_or_else(usual_folder);
    let wrong = |error: io::Error| io::Error::new(error.kind(), format!("--out {}: {error}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(wrong)?;
    let mut setting = Setting {
        machine: Machine::look(),
        limits: Limits::raise(),
        drivers: [DriverChoice::Reactor, DriverChoice::Proactor].map(describe).into(),
        python: None,
        date: today(),
        command: command(),
    };
    say(&setting.machine.to_string());
    say(&setting.drivers.join("\n"));
    if cfg!(debug_assertions) {
        say("this is a debug build: the figures mean little; add --release");
    }
    let results = measure(plan, &folder, &mut setting)?;

    let tables = tables::all(plan, &setting, &results);
    for table in &tables {
        say(&format!("\n{}", table.text().trim_end()));
    }
    if !results.missing.is_empty() {
        say(&format!("\nNot measured\n  {}", results.missing.join("\n  ")));
    }
    let sentences = report::summary(&results);
    if !sentences.is_empty() {
        say(&format!("\nSummary\n  {}", sentences.join("\n  ")));
    }
    // The results have been printed by now, even if the files cannot be written.
    let page = report::page(plan, &setting, &results, &tables);
    let html = write(&folder.join("report.html"), &page);
    let raw = write(&folder.join("report.json"), &json::document(plan, &setting, &results));
    say("");
    let mut failures = Vec::new();
    for (what, written) in [("the report", html), ("raw figures", raw)] {
        match written {
            Ok(path) => say(&format!("{what}: {path}")),
            Err(error) => failures.push(error.to_string()),
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(failures.join("\n"))),
    }
}

/// Writes a file and returns its path.
fn write(path: &Path, text: &str) -> io::Result<String> {
    match std::fs::write(path, text) {
        Ok(()) => Ok(shown(path)),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{} was not written: {error}", path.display()),
        )),
    }
}

fn measure(plan: &Plan, folder: &Path, setting: &mut Setting) -> io::Result<Results> {
    let mut results = Results::default();
    let missing = &mut results.missing;
    let needs_python = plan.only != Some(Part::Tasks);
    let mut looking = Progress::weighing(Python::weight(!plan.quick));
    let python = needs_python.then(|| Python::find(folder, !plan.quick, &mut looking, missing));
    looking.finish();
    let field = Field::probe(python.flatten(), missing);
    setting.python = field.python.as_ref().map(|python| match &python.uvloop {
        Some(uvloop) => format!("Python {}, uvloop {uvloop}", python.version),
        None => format!("Python {}", python.version),
    });
    if let Some(python) = &setting.python {
        say(python);
    }
    let (machine, limits) = (&setting.machine, &setting.limits);
    if machine.cores == 1 && plan.only != Some(Part::Tasks) {
        missing.push("servers on separate cores: there is only one core, shared with the load and the threads".into());
    }
    let (servers, runtimes) = (field.servers().count() as f64, field.runtimes().count() as f64);
    let weights = [
        (Part::Stall, runtimes * stall::weight_of_one(plan)),
        (
            Part::Echo,
            echo::weight(plan, limits, &field)
                + servers * syscalls::weight_of_one(plan)
                + cores::weight(plan, machine, &field),
        ),
        (Part::Timers, timers::weight(plan, &field)),
        (Part::Memory, servers * memory::weight_of_one(plan)),
        (Part::Tasks, tasks::weight(plan)),
    ];
    let wanted = weights.iter().filter(|(part, _)| plan.has(*part));
    let mut progress = Progress::weighing(wanted.map(|(_, weight)| weight).sum());
    // Before this process is pinned to a core.
    if plan.has(Part::Stall) {
        results.stalls = stall::measure(plan, &field, &mut progress, missing);
    }
    if plan.has(Part::Echo) {
        results.pools = cores::measure(plan, machine, limits, &field, &mut progress, missing);
    }
    machine.pin_to_load();
    if plan.has(Part::Echo) {
        results.echo = echo::measure(plan, machine, limits, &field, &mut progress, missing);
        results.calls = syscalls::measure(plan, machine, limits, &field, &mut progress, missing);
    }
    if plan.has(Part::Timers) {
        results.timers = timers::measure(plan, machine, &field, &mut progress, missing);
    }
    if plan.has(Part::Memory) {
        results.memory = memory::measure(plan, machine, limits, &field, &mut progress, missing);
    }
    if plan.has(Part::Tasks) {
        results.tasks = tasks::measure(plan, &mut progress)?;
    }
    progress.finish();
    Ok(results)
}

/// Prints a line. A closed standard output does not stop the measurement.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// A driver's kernel features, or why it is not available.
fn describe(driver: DriverChoice) -> String {
    match Builder::new().driver(driver).build() {
        Ok(event_loop) => {
            let described = event_loop.describe();
            let features = described.features.join(", ");
            format!("windlass {driver:?}: {} [{features}]", described.name)
        }
        Err(error) => format!("windlass {driver:?}: not available: {error}"),
    }
}

/// `compare` in cargo's target directory: this program is in `target/release/examples`, or as a bench in `deps`.
fn usual_folder() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let is_cargos = |dir: &&Path| dir.file_name().is_some_and(|name| name == "examples" || name == "deps");
    let target = exe.parent().filter(is_cargos).and_then(|dir| dir.ancestors().nth(2));
    target.unwrap_or(Path::new("target")).join("compare")
}

/// The absolute path.
fn shown(path: &Path) -> String {
    path.canonicalize()
        .unwrap_or_else(|_| path.to_owned())
        .display()
        .to_string()
}

fn command() -> String {
    let args: Vec<String> = words().collect();
    let (is_bench, args) = match args.iter().position(|arg| arg == "--bench") {
        Some(at) => (true, [&args[..at], &args[at + 1..]].concat()),
        None => (false, args),
    };
    let cargo = match is_bench {
        true => "cargo bench --bench comparison",
        false => "cargo run --release --example compare",
    };
    match args.is_empty() {
        true => cargo.into(),
        false => format!("{cargo} -- {}", args.join(" ")),
    }
}

/// The date in UTC.
fn today() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let (mut days, minutes) = (since / 86_400, since % 86_400 / 60);
    let mut year = 1970;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    format!(
        "{year}-{month:02}-{:02} {:02}:{:02} UTC",
        days + 1,
        minutes / 60,
        minutes % 60
    )
}
