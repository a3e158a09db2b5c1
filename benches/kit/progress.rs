//! How far it is: a bar that is redrawn on a terminal, plain lines elsewhere. On standard error, so that the report alone
//! goes to standard output.

use std::io::{IsTerminal, Write};

const WIDTH: usize = 16;

/// A line that wraps cannot be redrawn.
const COLUMNS: usize = 79;

pub(crate) struct Progress {
    steps: usize,
    done: usize,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Progress {
        Progress {
            steps: steps.max(1),
            done: 0,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Says what begins now.
    pub(crate) fn step(&mut self, what: &str) {
        let full = (WIDTH * self.done / self.steps).min(WIDTH);
        self.done += 1;
        // A terminal that has gone away is no reason to stop measuring.
        let _ = if self.terminal {
            let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
            let line = format!("[{bar}] {}/{} {what}", self.done, self.steps);
            write!(std::io::stderr(), "\r\x1b[2K{line:.COLUMNS$}")
        } else {
            writeln!(std::io::stderr(), "{}/{} {what}", self.done, self.steps)
        };
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
