//! The command line of a bench.
//!
//! `cargo bench` passes `--bench`. `cargo test --benches` runs the same program without it: then it prints a line and
//! exits, so that tests do not wait for measurements.

use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use super::drivers::{self, Driver};

/// The given options and their values.
pub(crate) struct Options {
    usage: &'static str,
    given: Vec<(String, String)>,
}

impl Options {
    /// Parses the command line; `names` are the options with a value. Exits for `--help`, for an unknown option, and
    /// outside of `cargo bench`.
    pub(crate) fn read(usage: &'static str, names: &[&str]) -> Options {
        end_unless_bench(Some(usage));
        let mut options = Options {
            usage,
            given: Vec::new(),
        };
        let mut args = words().filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            if !names.contains(&name.as_str()) {
                options.refuse(&format!("unknown option {name}"));
            }
            match args.next() {
                Some(value) => options.given.push((name, value)),
                None => options.refuse(&format!("{name} needs a value")),
            }
        }
        options
    }

    /// A whole number above zero.
    pub(crate) fn number(&self, name: &str, default: usize) -> usize {
        match self.value(name) {
            Some(value) => self.positive(name, value),
            None => default,
        }
    }

    /// One or more comma-separated numbers.
    pub(crate) fn numbers(&self, name: &str, default: &[usize]) -> Vec<usize> {
        match self.value(name) {
            Some(values) => values.split(',').map(|value| self.positive(name, value)).collect(),
            None => default.to_vec(),
        }
    }

    pub(crate) fn seconds(&self, name: &str, default: f64) -> Duration {
        let seconds = match self.value(name) {
            Some(value) => value.parse().unwrap_or(f64::NAN),
            None => default,
        };
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if !duration.is_zero() => duration,
            _ => self.refuse(&format!("{name} needs a number of seconds above 0")),
        }
    }

    /// Whether a part is selected: all are, unless the option names one.
    pub(crate) fn wants(&self, name: &str, part: &str, parts: &[&str]) -> bool {
        let Some(only) = self.value(name) else {
            return true;
        };
        if !parts.contains(&only) {
            self.refuse(&format!("{name} takes one of {}, not '{only}'", parts.join(", ")));
        }
        only == part
    }

    /// The available drivers, or the one that `--driver` names.
    pub(crate) fn drivers(&self) -> Vec<Driver> {
        let only = self.value("--driver");
        if let Some(name) = only
            && Driver::named(name).is_none()
        {
            self.refuse(&format!("--driver takes proactor or reactor, not '{name}'"));
        }
        let mut drivers = drivers::available();
        drivers.retain(|driver| only.is_none_or(|name| driver.name == name));
        drivers
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        // The last one counts, as usual.
        let given = self.given.iter().rfind(|(given, _)| given == name);
        given.map(|(_, value)| value.as_str())
    }

    fn positive(&self, name: &str, value: &str) -> usize {
        match usize::from_str(value.trim()) {
            Ok(number) if number > 0 => number,
            _ => self.refuse(&format!("{name} needs a whole number above 0, not '{value}'")),
        }
    }

    fn refuse(&self, why: &str) -> ! {
        eprintln!("{why}\n{}", self.usage);
        std::process::exit(2);
    }
}

/// Exits with a message unless cargo runs the program as a bench. Handles `--help` before that.
pub(crate) fn end_unless_bench(usage: Option<&str>) {
    let has = |name: &str| words().any(|arg| arg == name);
    if let Some(usage) = usage
        && (has("--help") || has("-h"))
    {
        say(usage);
        std::process::exit(0);
    }
    if !has("--bench") {
        say("nothing to do: run this with `cargo bench`");
        std::process::exit(0);
    }
}

/// The command line without the program's name. Invalid UTF-8 is replaced: it is not an option either.
pub(crate) fn words() -> impl Iterator<Item = String> {
    std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
}

/// Prints a line. Ignores a closed standard output.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// The arguments after `--role`, for a program that starts itself as a child process.
pub(crate) fn role() -> Option<Vec<String>> {
    let mut args = words();
    match args.next().as_deref() {
        Some("--role") => Some(args.collect()),
        _ => None,
    }
}

/// The exit code of a bench; prints an error in one line.
pub(crate) fn report(bench: &str, result: io::Result<()>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{bench}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
