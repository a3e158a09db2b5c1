//! From the command line to the report.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Measured, table, take_turns};
use crate::kit::stats::{Spread, paired_ratio};
use crate::kit::text::{cells, lay_out, ratio};
use crate::options::{self, Job, Options};
use crate::parts::{Contender, Table};
use crate::work::Work;
use crate::{turmoil, windlass};

/// A process that takes longer hangs: CPU time is limited to less.
const PATIENCE: Duration = Duration::from_secs(900);

pub(crate) fn main() -> io::Result<()> {
    match options::parse(std::env::args().skip(1)) {
        Ok(Job::Help) => say(options::USAGE),
        Ok(Job::Work(contender, work)) => say(&measure_here(contender, work)?.to_string()),
        Ok(Job::Compare(options)) => compare(&options)?,
        Err(wrong) => return Err(io::Error::other(format!("{wrong}\n{}", options::USAGE))),
    }
    Ok(())
}

/// Prints a line. A closed standard output does not stop the measurement.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// The work of a child process.
fn measure_here(contender: Contender, work: Work) -> io::Result<f64> {
    let link = match contender {
        Contender::Turmoil => return work.measure(&turmoil::simulate),
        Contender::Madsim => return Err(io::Error::other("madsim needs a build of its own")),
        Contender::Windlass | Contender::WindlassNoLog => windlass::with_faults(),
        Contender::WindlassNoFaults => windlass::without_faults(),
    };
    work.measure(&|seeds, scenario| windlass::simulate(seeds, scenario, link))
}

/// Starts a process that measures.
fn measure(contender: Contender, work: Work, machine: &Machine, madsim: &PathBuf) -> io::Result<f64> {
    let mut command = match contender {
        Contender::Madsim => Command::new(madsim),
        _ => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--work", contender.name()]);
            command
        }
    };
    // None of the caller's settings, such as a seed.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WINDLASS_SIM_")) {
        command.env_remove(name);
    }
    if contender == Contender::WindlassNoLog {
        command.env("WINDLASS_SIM_LOG", "0");
    }
    command.args(work.to_args());
    let output = Process::start(command, machine.server_core())?.all_output(PATIENCE)?;
    output
        .trim()
        .parse()
        .map_err(|_| io::Error::other("the child process printed no figure"))
}

/// Builds this program with `--cfg madsim`; returns the path of the result.
fn build_madsim() -> io::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    // .../TARGET/release/NAME
    let target = exe
        .ancestors()
        .nth(2)
        .ok_or_else(|| io::Error::other("the program is not in a target directory"))?;
    let target = target.join("madsim");
    eprintln!("building with --cfg madsim in {}", target.display());
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", "--cfg madsim")
        .status()?;
    match status.success() {
        true => Ok(target.join("release").join(env!("CARGO_PKG_NAME"))),
        false => Err(io::Error::other("the build with --cfg madsim failed")),
    }
}

fn compare(options: &Options) -> io::Result<()> {
    let madsim = build_madsim()?;
    let machine = Machine::look();
    say(&machine.to_string());
    if cfg!(debug_assertions) {
        say("this is a debug build: the figures mean little; add --release");
    }
    let rows = Contender::ALL.map(|contender| cells([contender.name(), contender.settings()]));
    say(&format!("\nSimulators\n{}", lay_out(&rows, &[0, 1])));
    say(
        "A message is 64 bytes that one host has written and another has read; an echo is two. Times are CPU times. Every figure is a new process.",
    );

    let tables: Vec<Table> = options
        .parts
        .iter()
        .flat_map(|part| part.tables(options.rounds, options.quick))
        .collect();
    let mut progress = Progress::new(tables.iter().map(|table| table.rounds * table.contenders.len()).sum());
    let mut results = Vec::new();
    for table in &tables {
        results.push(run(table, &machine, &madsim, &mut progress));
    }
    progress.finish();
    for (plan, measured) in tables.iter().zip(&results) {
        say(&format!(
            "\n{}",
            table(plan.title, plan.unit.name(), measured, |figure| plan.unit.show(figure)).trim_end()
        ));
    }
    let verdicts = verdicts(&tables, &results);
    if !verdicts.is_empty() {
        say(&format!("\nTargets\n{}", lay_out(&verdicts, &[0, 3]).trim_end()));
    }
    Ok(())
}

/// Interleaves the simulators. One that fails, or is not done in time, is left out of the later rounds.
fn run(table: &Table, machine: &Machine, madsim: &PathBuf, progress: &mut Progress) -> Vec<Measured> {
    let empty = |contender: &Contender| Measured {
        name: contender.name().into(),
        figures: Ok(Vec::new()),
    };
    let mut measured: Vec<Measured> = table.contenders.iter().map(empty).collect();
    let mut contenders: Vec<_> = table.contenders.iter().zip(&mut measured).collect();
    take_turns(table.rounds, &mut contenders, |round, (contender, row)| {
        progress.step(&format!(
            "{}, {round}/{}: {}",
            table.title,
            table.rounds,
            contender.name()
        ));
        let Ok(figures) = &mut row.figures else { return false };
        match measure(**contender, table.work, machine, madsim) {
            Ok(figure) => figures.push(figure),
            Err(error) => row.figures = Err(error.to_string()),
        }
        row.figures.is_ok()
    });
    measured
}

/// The figures of a simulator.
fn figures(measured: &[Measured], contender: Contender) -> Option<&Vec<f64>> {
    let row = measured.iter().find(|row| row.name == contender.name())?;
    row.figures.as_ref().ok().filter(|figures| !figures.is_empty())
}

/// Which targets this run has reached.
fn verdicts(tables: &[Table], results: &[Vec<Measured>]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut add = |what: String, target: String, value: String, is_reached: bool| {
        let verdict = if is_reached { "reached" } else { "missed" };
        rows.push(vec![what, target, value, verdict.to_string()]);
    };
    let mut idle_hour = None;
    for (plan, measured) in tables.iter().zip(results) {
        let Some(ours) = figures(measured, Contender::Windlass) else {
            continue;
        };
        match plan.work {
            Work::Echo { .. } | Work::Seeds => {
                for (peer, target) in [(Contender::Turmoil, 10.0), (Contender::Madsim, 2.0)] {
                    if let Some(theirs) = figures(measured, peer) {
                        let times = paired_ratio(ours.iter().copied(), theirs.iter().copied()).median;
                        let what = format!("{}: x {}", plan.title, peer.name());
                        add(what, format!("at least {target}"), ratio(times), times >= target);
                    }
                }
                let median = Spread::of(ours.iter().copied()).median;
                if matches!(plan.work, Work::Echo { .. }) {
                    let what = format!("{}: log and faults on", plan.title);
                    add(what, "at least 0.7M/s".into(), plan.unit.show(median), median >= 0.7e6);
                }
            }
            Work::Heartbeats { seconds: 3_600 } => {
                let median = Spread::of(ours.iter().copied()).median;
                add(
                    plan.title.into(),
                    "below 60 s".into(),
                    plan.unit.show(median),
                    median < 60.0,
                );
            }
            Work::Heartbeats { .. } => {}
            Work::Idle { seconds: 3_600 } => idle_hour = Some(ours),
            Work::Idle { .. } => {
                if let Some(hour) = idle_hour {
                    let times = Spread::of(ours.iter().copied()).median / Spread::of(hour.iter().copied()).median;
                    let what = "Idle: time of the day, x the hour".to_string();
                    add(what, "at most 1.1".into(), ratio(times), times <= 1.1);
                }
            }
        }
    }
    rows
}
