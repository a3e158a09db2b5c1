//! From the command line to the report.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::contender::Contender;
use crate::kit::limits;
use crate::kit::machine::Machine;
use crate::kit::options::words;
use crate::kit::progress::Progress;
use crate::kit::rounds::take_turns;
use crate::kit::scratch::Scratch;
use crate::kit::text::{cells, lay_out};
use crate::options::{self, Job, Options};
use crate::plan::{self, Workload};
use crate::results::Group;
use crate::work::files::FILE_LEN;
use crate::{json, measure, summary, table, targets};

pub(crate) fn main() -> ExitCode {
    let job = match options::parse(words()) {
        Ok(job) => job,
        Err(wrong) => {
            eprintln!("{wrong}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let result = match job {
        Job::Help => {
            say(options::USAGE);
            Ok(())
        }
        Job::Serve(contender, connections) => contender.serve(connections),
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

/// The output of a child process.
fn print(figures: &[f64]) -> io::Result<()> {
    let lines: Vec<String> = figures.iter().map(f64::to_string).collect();
    writeln!(io::stdout(), "{}", lines.join("\n"))
}

fn compare(options: &Options) -> io::Result<()> {
    let machine = Machine::look();
    // Writing the file puts it into the page cache.
    let file = match options.wants(Workload::Files, "files") {
        true => Some(Scratch::write("peers", (FILE_LEN >> 20) as usize)?),
        false => None,
    };
    let path = file.as_ref().map(|file| file.path().to_owned()).unwrap_or_default();
    let mut groups = plan::groups(options, &machine, &path).map_err(io::Error::other)?;
    say(&machine.to_string());
    say(&describe_limits()?);
    if cfg!(debug_assertions) {
        say("this is a debug build: the figures mean little; add --release");
    }
    say(&format!("\nContenders\n{}", describe_contenders(options)));

    let mut missing = Vec::new();
    let weight = |group: &Group| group.job.seconds() * (group.rounds * group.contenders.len()) as f64;
    let mut progress = Progress::weighing(groups.iter().map(weight).sum());
    for group in &mut groups {
        run(group, &machine, &mut progress, &mut missing);
    }
    progress.finish();

    let verdicts = targets::verdicts(&groups);
    // Written before the tables are printed, because the reader may close the output early; an error is reported after
    // them.
    let written = options.json.as_ref().map(|path| {
        std::fs::write(path, json::document(options, &machine, &groups, &verdicts, &missing))
            .map(|()| format!("\nevery round's figures: {}", path.display()))
            .map_err(|error| io::Error::new(error.kind(), format!("{} was not written: {error}", path.display())))
    });
    let summary = options.markdown.as_ref().map(|path| {
        std::fs::write(path, summary::markdown(&groups))
            .map(|()| format!("\nthe summary of the echo tables: {}", path.display()))
            .map_err(|error| io::Error::new(error.kind(), format!("{} was not written: {error}", path.display())))
    });
    say(table::report(&groups, &verdicts, &missing).trim_end());
    for written in written.into_iter().chain(summary) {
        say(&written?);
    }
    Ok(())
}

/// Prints a line. A closed standard output does not stop the measurement.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Interleaves the contenders of a group. A contender that fails once is left out of the group.
fn run(group: &mut Group, machine: &Machine, progress: &mut Progress, missing: &mut Vec<String>) {
    let mut contenders = group.contenders.clone();
    take_turns(group.rounds, &mut contenders, |round, &mut contender| {
        let (title, rounds) = (contender.title(), group.rounds);
        progress.step_of(
            group.job.seconds(),
            &format!("{}, {round}/{rounds}: {title}", group.key),
        );
        let figures = measure::measure(contender, &group.job, machine);
        match figures {
            Ok(figures) if figures.len() == group.figures.len() => {
                group.add(contender, figures);
                true
            }
            Ok(_) => {
                missing.push(format!(
                    "{title}, {}: the child process printed too few figures",
                    group.key
                ));
                false
            }
            Err(error) => {
                missing.push(format!("{title}, {}: {error}", group.key));
                false
            }
        }
    });
}

fn describe_limits() -> io::Result<String> {
    let (files, memory) = (limits::stretch_open_files()?, limits::stretch_locked_memory()?);
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

/// The settings; for windlass also the driver's kernel features.
fn settings(contender: Contender) -> String {
    let Some(driver) = contender.driver() else {
        return contender.settings().into();
    };
    match windlass::Builder::new().driver(driver).build() {
        Ok(event_loop) => format!("{}; on {}", contender.settings(), event_loop.describe().name),
        Err(error) => format!("not available: {error}"),
    }
}
