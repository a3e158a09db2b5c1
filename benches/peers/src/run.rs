//! From the command line to the report.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::contender::Contender;
use crate::kit::machine::Machine;
use crate::kit::progress::Progress;
use crate::kit::text::{cells, lay_out};
use crate::options::{self, Job, Options};
use crate::plan::{self, Workload};
use crate::results::Group;
use crate::work::files::FILE_LEN;
use crate::{json, limits, measure, table, targets};

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
        Job::Serve(contender) => contender.serve(),
        Job::Work(contender, task) => contender.work(&task).and_then(|figures| print(&figures)),
        Job::Compare(options) => compare(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A child's answer.
fn print(figures: &[f64]) -> io::Result<()> {
    let lines: Vec<String> = figures.iter().map(f64::to_string).collect();
    writeln!(io::stdout(), "{}", lines.join("\n"))
}

fn compare(options: &Options) -> io::Result<()> {
    let machine = Machine::look();
    let mut out = io::stdout();
    writeln!(out, "{machine}")?;
    writeln!(out, "{}", describe_limits()?)?;
    if cfg!(debug_assertions) {
        writeln!(out, "this is a debug build: its figures say little; add --release")?;
    }
    writeln!(out, "\nContenders\n{}", describe_contenders(options))?;

    let file = match options.workloads.contains(&Workload::Files) {
        true => Some(Scratch::new()?),
        false => None,
    };
    let path = file.as_ref().map(|file| file.path.clone()).unwrap_or_default();
    let mut groups = plan::groups(options, &machine, &path);
    let mut missing = Vec::new();
    let steps = groups.iter().map(|group| group.rounds * group.contenders.len()).sum();
    let mut progress = Progress::new(steps);
    for group in &mut groups {
        run(group, &machine, &mut progress, &mut missing);
    }
    progress.finish();

    let verdicts = targets::verdicts(&groups);
    write!(out, "{}", table::report(&groups, &verdicts, &missing))?;
    if let Some(path) = &options.json {
        std::fs::write(path, json::document(options, &machine, &groups, &verdicts, &missing))
            .map_err(|error| io::Error::new(error.kind(), format!("{} was not written: {error}", path.display())))?;
        writeln!(out, "\nevery round's figures: {}", path.display())?;
    }
    Ok(())
}

/// The contenders of a group take turns, round by round. Who fails once is out of the group.
fn run(group: &mut Group, machine: &Machine, progress: &mut Progress, missing: &mut Vec<String>) {
    let mut contenders = group.contenders.clone();
    for round in 1..=group.rounds {
        contenders.retain(|&contender| {
            let (title, rounds) = (contender.title(), group.rounds);
            progress.step(&format!("{}, {round}/{rounds}: {title}", group.key));
            let figures = measure::measure(contender, &group.job, machine);
            match figures {
                Ok(figures) if figures.len() == group.figures.len() => {
                    group.add(contender, figures);
                    true
                }
                Ok(_) => {
                    missing.push(format!("{title}, {}: the child gave too few figures", group.key));
                    false
                }
                Err(error) => {
                    missing.push(format!("{title}, {}: {error}", group.key));
                    false
                }
            }
        });
    }
}

fn describe_limits() -> io::Result<String> {
    let (files, memory) = (limits::open_files()?, limits::locked_memory()?);
    Ok(format!(
        "limits: {} open files (were {}), {} of locked memory (was {}; glommio needs 512 KiB by its documentation)",
        files.now,
        files.before,
        limits::show_bytes(memory.now),
        limits::show_bytes(memory.before)
    ))
}

fn describe_contenders(options: &Options) -> String {
    let rows: Vec<Vec<String>> = options
        .contenders
        .iter()
        .map(|contender| cells([contender.title(), contender.version(), &settings(*contender)]))
        .collect();
    lay_out(&rows, &[0, 1, 2])
}

/// For windlass also what the driver found in this kernel.
fn settings(contender: Contender) -> String {
    let driver = match contender {
        Contender::Proactor => windlass::DriverChoice::Proactor,
        Contender::Reactor => windlass::DriverChoice::Reactor,
        _ => return contender.settings().into(),
    };
    match windlass::Builder::new().driver(driver).build() {
        Ok(event_loop) => format!("{} on {}", contender.settings(), event_loop.describe().name),
        Err(error) => format!("none here: {error}"),
    }
}

/// The file that is read; gone when the run is over.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Writing it puts it into the page cache.
    fn new() -> io::Result<Scratch> {
        let name = format!("windlass-peers-{}.data", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![0x5a; FILE_LEN as usize])
            .map_err(|error| io::Error::new(error.kind(), format!("{} was not written: {error}", path.display())))?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
