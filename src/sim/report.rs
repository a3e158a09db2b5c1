//! The text of a failing sweep: what failed, how to replay it, a smaller run, and the last events.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::sim::determinism::Difference;
use crate::sim::log::{EventLog, LogMode};
use crate::sim::misuse;
use crate::sim::settings::{Outcome, RunSettings};
use crate::sim::shrink::{self, Budget};

/// Lines of the timeline in a report.
const LAST_LINES: usize = 12;

/// A run with more events writes only the last of them to its file.
const MAX_FILE_EVENTS: u64 = 2_000_000;

/// The test that runs, as far as the replay line and the files need it.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// Its path within the test binary, such as `log::acknowledged_writes_survive`.
    pub(crate) name: String,
    /// What to type before the name: `cargo test --features sim --test kv`.
    pub(crate) command: String,
    /// What to type at the end: for a test that does not run by default, ` --include-ignored`.
    pub(crate) flags: &'static str,
    /// Where logs are written.
    pub(crate) folder: PathBuf,
}

impl Test {
    /// The running test. `body` is the type name of the closure with the test's code.
    pub(crate) fn current(body: &str) -> Test {
        let thread = std::thread::current();
        // libtest names the thread after the test, except for the only test thread, which is the main one.
        let name = match thread.name() {
            Some("main") | None => test_of_closure(body),
            Some(name) => name.to_owned(),
        };
        let program = std::env::current_exe().unwrap_or_default();
        let target = program
            .parent()
            .filter(|parent| parent.ends_with("deps"))
            .and_then(|parent| parent.ancestors().nth(2))
            .map_or_else(|| PathBuf::from("target"), Path::to_path_buf);
        let typed = parent_command().unwrap_or_default();
        Test {
            name,
            command: cargo_command(&program, &typed),
            flags: test_flags(std::env::args()),
            folder: target.join("sim"),
        }
    }

    /// The command that runs one seed again.
    fn replay(&self, settings: &RunSettings) -> String {
        let set = match settings.knobs.to_string() {
            set if set.is_empty() => set,
            set => format!(" WINDLASS_SIM_SET={set}"),
        };
        format!(
            "WINDLASS_SIM_SEED={:#x}{set} {} {} -- --exact --nocapture{}",
            settings.seed, self.command, self.name, self.flags
        )
    }
}

/// `kv::log::survives::{{closure}}` is the test `log::survives` of the crate `kv`.
fn test_of_closure(body: &str) -> String {
    let path = body.split("::{{closure}}").next().unwrap_or(body);
    path.split_once("::").map_or(path, |(_crate, path)| path).to_owned()
}

/// `cargo test` with the flags that select this binary, taken from the command that was typed where it is known.
fn cargo_command(program: &Path, typed: &[String]) -> String {
    let push = |command: &mut String, word: &str| {
        command.push(' ');
        command.push_str(word);
    };
    let mut command = "cargo test".to_owned();
    let mut typed = typed.iter().take_while(|word| *word != "--");
    while let Some(word) = typed.next() {
        let name = word.split('=').next().unwrap_or(word);
        match name {
            "--release" | "--all-features" | "--no-default-features" => push(&mut command, word),
            "-r" => push(&mut command, "--release"),
            "-F" | "--features" | "-p" | "--package" | "--profile" | "--manifest-path" | "--target" => {
                push(&mut command, word);
                if !word.contains('=')
                    && let Some(value) = typed.next()
                {
                    let quote = if value.contains(' ') { "'" } else { "" };
                    push(&mut command, &format!("{quote}{value}{quote}"));
                }
            }
            _ => {}
        }
    }
    let stem = program
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    // `kv-0123456789abcdef`: cargo's name for the binary of the test `kv`.
    let binary = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default().replace('-', "_");
    let is_integration = Path::new("tests").join(format!("{binary}.rs")).exists()
        || Path::new("tests").join(binary).join("main.rs").exists();
    if is_integration {
        push(&mut command, &format!("--test {binary}"));
    } else if binary == package && Path::new("src/lib.rs").exists() {
        push(&mut command, "--lib");
    } else if binary == package {
        push(&mut command, &format!("--bin {binary}"));
    } else if !binary.is_empty() {
        push(&mut command, &format!("--test {binary}"));
    }
    command
}

/// The flags of the test binary that a replay needs too.
fn test_flags(mut args: impl Iterator<Item = String>) -> &'static str {
    match args.any(|arg| arg == "--ignored" || arg == "--include-ignored") {
        true => " --include-ignored",
        false => "",
    }
}

/// The words of the command that started this process, if it is cargo's and the system shows it (Linux).
fn parent_command() -> Option<Vec<String>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the name, is in parentheses and may contain spaces.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
    let words = fs::read_to_string(format!("/proc/{parent}/cmdline")).ok()?;
    let words: Vec<String> = words.split('\0').map(str::to_owned).collect();
    let is_cargo = Path::new(words.first()?).file_stem()? == "cargo";
    is_cargo.then_some(words)
}

/// The report of a failing seed. Shrinks it first.
pub(crate) fn failure(
    test: &Test,
    settings: &RunSettings,
    outcome: Outcome,
    budget: Budget,
    run: &dyn Fn(&RunSettings) -> Outcome,
) -> String {
    let failure = outcome.failure.clone().expect("the outcome of a failing run");
    let mut text = format!(
        "sim: seed {:#x} failed at {:.3} s (virtual), event {}: {failure}\n  replay:  {}\n",
        settings.seed,
        outcome.elapsed.as_secs_f64(),
        grouped(outcome.log.len()),
        test.replay(settings),
    );
    let mut shown = settings.clone();
    if budget.runs > 0 {
        let shrunk = shrink::shrink(run, settings, &outcome, budget);
        shown.knobs = shrunk.knobs;
        let cost = format!(
            "({}, {:.1} s)",
            count(shrunk.runs as u64, "run"),
            shrunk.took.as_secs_f64()
        );
        if shown.knobs == settings.knobs {
            let _ = writeln!(text, "  shrunk:  nothing could be left out {cost}");
        } else {
            let _ = writeln!(text, "  shrunk:  {}  {cost}", test.replay(&shown));
        }
    }
    // Once more, with all events kept.
    let log = match outcome.log.len() {
        0..MAX_FILE_EVENTS => LogMode::All,
        len => LogMode::Window {
            from: len - MAX_FILE_EVENTS,
            len: u64::MAX,
        },
    };
    let last = run(&RunSettings { log, ..shown.clone() });
    match &last.failure {
        Some(again) if again.is_like(&failure) => {}
        Some(again) => text += &format!("  not deterministic: when it ran again, it failed with: {again}\n"),
        None => text += "  not deterministic: when it ran again, it passed\n",
    }
    for (number, episode) in last.episodes.iter().enumerate() {
        if shown.knobs.has_episode(number) && (shown.knobs.episodes.is_some() || last.episodes.len() <= LAST_LINES) {
            let _ = writeln!(text, "  episode {number}: {episode}");
        }
    }
    for line in last.log.last_lines(LAST_LINES) {
        let _ = writeln!(text, "  {line}");
    }
    for line in last.failure.as_ref().unwrap_or(&failure).details.iter() {
        let _ = writeln!(text, "  {line}");
    }
    for warning in &outcome.warnings {
        let _ = writeln!(text, "  warning: {warning}");
    }
    for (host, path) in &outcome.missing {
        if let Some(hint) = misuse::missing_file(host, path) {
            let _ = writeln!(text, "  hint: {hint}");
        }
    }
    if failure.message.contains("(os error 2)") && outcome.missing.is_empty() {
        let _ = writeln!(text, "  hint: {}", misuse::FOREIGN_FILE);
    }
    let suffix = if shown.knobs == settings.knobs { "" } else { "-shrunk" };
    let _ = writeln!(
        text,
        "  {}",
        write_files(test, settings.seed, suffix, &last.log).unwrap_or_else(|error| error)
    );
    text
}

/// The report of a seed whose runs differ.
pub(crate) fn nondeterminism(test: &Test, settings: &RunSettings, difference: &Difference) -> String {
    let mut text = format!(
        "sim: seed {:#x} is not deterministic: two runs differ from event {} on\n",
        settings.seed,
        grouped(difference.index)
    );
    match &difference.event {
        Some(event) => {
            if let Some(before) = &event.before {
                let _ = writeln!(text, "  before:  {}", before.trim_start());
            }
            let _ = writeln!(text, "  run 1:   {}", event.lines[0].trim_start());
            let _ = writeln!(text, "  run 2:   {}", event.lines[1].trim_start());
            if let Some(host) = &event.host {
                let _ = writeln!(text, "  host:    {host}");
            }
            match &event.tasks {
                [Some(one), Some(two)] if one != two => {
                    let _ = writeln!(text, "  task:    {one} in run 1, {two} in run 2");
                }
                [Some(task), _] | [None, Some(task)] => {
                    let _ = writeln!(text, "  task:    {}", task.trim_end_matches(','));
                }
                [None, None] => text += "  task:    none has run shortly before\n",
            }
        }
        None => text.push_str("  the runs that followed did not differ: the exact event is not known\n"),
    }
    for suspect in &difference.suspects {
        let _ = writeln!(text, "  suspect: {suspect}");
    }
    let _ = writeln!(text, "  replay:  {}", test.replay(settings));
    text
}

/// Writes the timeline and the trace, and says where; or says why not.
pub(crate) fn write_files(test: &Test, seed: u64, suffix: &str, log: &EventLog) -> Result<String, String> {
    let name = format!("{}-{seed:#x}{suffix}", test.name.replace("::", "-"));
    let base = test.folder.join(name);
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&test.folder)?;
        let mut file = BufWriter::new(fs::File::create(base.with_extension("log"))?);
        log.write_timeline(&mut file)?;
        file.flush()?;
        let mut file = BufWriter::new(fs::File::create(base.with_extension("json"))?);
        log.write_json(&mut file)?;
        file.flush()
    };
    let current = std::env::current_dir().unwrap_or_default();
    let shown = base.strip_prefix(&current).unwrap_or(&base).display();
    match write() {
        Ok(()) => Ok(format!(
            "(whole timeline: {shown}.log; {shown}.json for ui.perfetto.dev)"
        )),
        Err(error) => Err(format!("(the timeline could not be written to {shown}.log: {error})")),
    }
}

/// 88412 as `88,412`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 run", "2 runs".
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_command_is_what_the_user_typed() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let command = |typed: &str| cargo_command(Path::new("/x/target/debug/deps/kv-0123456789abcdef"), &words(typed));
        assert_eq!(command(""), "cargo test --test kv");
        assert_eq!(
            command("cargo test -q --features sim,tls --release -F=a some_filter -- --nocapture --release"),
            "cargo test --features sim,tls --release -F=a --test kv"
        );
        assert_eq!(
            command("cargo test -p kv --lib -r"),
            "cargo test -p kv --release --test kv"
        );
        // These tests' own binary.
        let own = std::env::current_exe().unwrap();
        let command = cargo_command(&own, &[]);
        assert!(
            command == "cargo test --lib" || std::env::var("CARGO_PKG_NAME").is_err(),
            "{command}"
        );
    }

    #[test]
    fn a_replay_of_an_ignored_test_asks_for_it() {
        let flags = |args: &[&str]| test_flags(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(flags(&["kv", "survives", "--exact"]), "");
        assert_eq!(flags(&["kv", "--ignored", "survives"]), " --include-ignored");
        assert_eq!(flags(&["kv", "--include-ignored"]), " --include-ignored");
    }

    #[test]
    fn the_name_comes_from_the_thread_or_the_closure() {
        assert_eq!(test_of_closure("kv::log::survives::{{closure}}"), "log::survives");
        assert_eq!(test_of_closure("kv::survives::{{closure}}::{{closure}}"), "survives");
        assert_eq!(test_of_closure("kv"), "kv");
        let test = Test::current("kv::main::{{closure}}");
        assert!(
            test.folder.ends_with("target/sim") || test.folder.ends_with("sim"),
            "{test:?}"
        );
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0, 999, 1_000, 88_412, 1_234_567].map(grouped),
            ["0", "999", "1,000", "88,412", "1,234,567"]
        );
        assert_eq!([count(1, "run"), count(2_000, "run")], ["1 run", "2,000 runs"]);
    }
}
