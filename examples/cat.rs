//! Writes files to standard output, one after the other, with read-ahead.
//!
//! `cargo run --release --example cat -- [--driver auto|proactor|reactor] FILE...`

#[path = "support/mod.rs"]
mod support;

use std::io;
#[cfg(unix)]
use std::os::fd::AsFd as Standard;
#[cfg(windows)]
use std::os::windows::io::AsHandle as Standard;
use std::process::ExitCode;

use support::outln;
use windlass::fs::File;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: cat [--driver auto|proactor|reactor] FILE...";

fn main() -> ExitCode {
    let mut driver = DriverChoice::Auto;
    let mut paths = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--driver" => match arguments.next().unwrap_or_default().parse() {
                Ok(choice) => driver = choice,
                Err(error) => return refuse(&error.to_string()),
            },
            "--help" => {
                outln!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            option if option.starts_with("--") => return refuse(&format!("unknown option {option}")),
            _ => paths.push(argument),
        }
    }
    if paths.is_empty() {
        return refuse("no files given");
    }
    let run = || Builder::new().driver(driver).build()?.run_until_complete(cat(&paths))?;
    match run() {
        Ok(ExitCode::SUCCESS) => ExitCode::SUCCESS,
        Ok(code) => code,
        // The reader of our output has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n{USAGE}");
    ExitCode::from(2)
}

/// Reports a file that cannot be read and goes on with the next.
async fn cat(paths: &[String]) -> io::Result<ExitCode> {
    let stdout = duplicate(&io::stdout())?;
    let stdout = File::from_std(stdout.into());
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        if let Err(error) = copy(path, &stdout).await? {
            eprintln!("cat: {error}");
            code = ExitCode::FAILURE;
        }
    }
    // Sets the file position to the end of the output, for other processes that share it.
    drop(stdout.into_std()?);
    Ok(code)
}

#[cfg(unix)]
fn duplicate(stdout: &impl Standard) -> io::Result<std::os::fd::OwnedFd> {
    stdout.as_fd().try_clone_to_owned()
}

#[cfg(windows)]
fn duplicate(stdout: &impl Standard) -> io::Result<std::os::windows::io::OwnedHandle> {
    stdout.as_handle().try_clone_to_owned()
}

/// The inner error is of the file, the outer one of the output.
async fn copy(path: &str, stdout: &File) -> io::Result<io::Result<()>> {
    let mut scan = match File::open(path).await {
        Ok(file) => file.scan(),
        Err(error) => return Ok(Err(error)),
    };
    while let Some(chunk) = scan.next().await {
        match chunk {
            Ok(chunk) => stdout.write_all(chunk).await.0?,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}
