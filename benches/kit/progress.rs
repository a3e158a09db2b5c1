//! Progress: a bar on a terminal, plain lines elsewhere. On standard error, so that standard output has only the
//! report.
//!
//! A step's weight is its expected duration; the remaining time is extrapolated from the steps done.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const WIDTH: usize = 16;

/// A line that wraps cannot be redrawn.
const COLUMNS: usize = 79;

/// The minimum interval between lines in a log.
const BETWEEN_LINES: Duration = Duration::from_secs(2);

/// Before this share, the remaining time is not shown: the estimate is bad.
const TOO_EARLY: f64 = 0.04;

pub(crate) struct Progress {
    total: f64,
    /// The weight of the finished steps.
    done: f64,
    /// The weight of the current step.
    running: f64,
    begin: Instant,
    last_line: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// For `steps` steps of equal weight.
    pub(crate) fn new(steps: usize) -> Progress {
        Progress::weighing(steps as f64)
    }

    /// For steps with this total weight.
    pub(crate) fn weighing(total: f64) -> Progress {
        Progress {
            total: total.max(f64::MIN_POSITIVE),
            done: 0.0,
            running: 0.0,
            begin: Instant::now(),
            last_line: None,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Starts the next step.
    pub(crate) fn step(&mut self, what: &str) {
        self.step_of(1.0, what);
    }

    /// Starts the next step, with a weight.
    pub(crate) fn step_of(&mut self, weight: f64, what: &str) {
        self.done += self.running;
        self.running = weight;
        let share = (self.done / self.total).clamp(0.0, 1.0);
        let percent = share * 100.0;
        // Errors are ignored: a closed terminal does not stop the measurement.
        if self.is_terminal {
            let full = (WIDTH as f64 * share) as usize;
            let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
            let line = format!("[{bar}] {percent:3.0}% {}{what}", self.time_left(share));
            let _ = write!(std::io::stderr(), "\r\x1b[2K{line:.COLUMNS$}");
            return;
        }
        if self.last_line.is_none_or(|last| last.elapsed() >= BETWEEN_LINES) {
            self.last_line = Some(Instant::now());
            let _ = writeln!(std::io::stderr(), "{percent:3.0}% {}{what}", self.time_left(share));
        }
    }

    fn time_left(&self, share: f64) -> String {
        if share < TOO_EARLY {
            return String::new();
        }
        let left = self.begin.elapsed().as_secs_f64() / share * (1.0 - share);
        format!("{left:3.0} s left: ")
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
