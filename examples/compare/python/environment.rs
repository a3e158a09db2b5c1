//! A virtual environment with uvloop, for a Python without it. It is in the report's folder, and the next run reuses
//! it. Nothing is written anywhere else: no cache, no compiled modules, no temporary files.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::kit::process::Process;
use super::super::kit::progress::Progress;

/// The time limit for creating it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Estimates for the progress bar.
pub(crate) const SECONDS_TO_MAKE: f64 = 4.0;
pub(crate) const SECONDS_TO_INSTALL: f64 = 3.0;

/// The interpreter of the environment in a folder.
pub(crate) fn interpreter(folder: &Path) -> PathBuf {
    folder.join("python/bin/python")
}

/// Creates the environment, installs uvloop, and returns the interpreter.
pub(crate) fn make(python: &str, folder: &Path, progress: &mut Progress) -> io::Result<PathBuf> {
    let (deadline, home) = (Instant::now() + PATIENCE, folder.join("python"));
    std::fs::create_dir_all(&home)?;
    // Absolute, so that the child processes do not depend on the working directory.
    let home = home.canonicalize()?;
    progress.step_of(SECONDS_TO_MAKE, "creating a virtual environment for uvloop");
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(&home);
    run(venv, &home, deadline)?;
    let own = home.join("bin/python");
    progress.step_of(SECONDS_TO_INSTALL, "pip install uvloop");
    let mut pip = Command::new(&own);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir"]);
    // Fail soon if there is no network.
    pip.args(["--retries", "1", "--timeout", "20"]);
    // Compiling uvloop would take minutes.
    pip.args(["--disable-pip-version-check", "--only-binary", ":all:", "uvloop"]);
    run(pip, &home, deadline)?;
    Ok(own)
}

fn run(mut command: Command, home: &Path, deadline: Instant) -> io::Result<()> {
    command.env("TMPDIR", home);
    super::keep_to_ourselves(&mut command);
    let left = deadline.saturating_duration_since(Instant::now());
    let ended = Process::start(command, None).and_then(|mut child| child.all_output(left));
    match ended {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(io::Error::other(format!(
            "the virtual environment was not ready after {} s",
            PATIENCE.as_secs()
        ))),
        other => other.map(drop),
    }
}
