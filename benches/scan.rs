//! Sequential reads of a large cached file: a scan on each driver against `dd bs=128K`.
//!
//!     cargo bench --bench scan                     1 GiB, seven rounds
//!     cargo bench --bench scan -- --mib 256 --rounds 3 --driver reactor
//!
//! Rounds are interleaved; ratios are computed within a round, then the median is taken.

use std::cell::RefCell;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::rounds::{Way, interleave, table};
use kit::scratch::Scratch;
use windlass::fs::File;

mod kit;

const USAGE: &str = "usage: cargo bench --bench scan -- [--mib N] [--rounds N] [--driver proactor|reactor]";

const CHUNK: usize = 128 * 1024;

fn main() -> ExitCode {
    kit::options::report("scan", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--mib", "--rounds", "--driver"]);
    let (mib, rounds) = (options.number("--mib", 1024), options.number("--rounds", 7));
    let drivers = options.drivers();
    let file = Scratch::write("scan", mib)?;
    let (path, bytes) = (file.path(), (mib as u64) << 20);
    // One unmeasured pass fills the page cache.
    dd(path)?;

    let progress = RefCell::new(Progress::new(rounds));
    let mut ways = vec![Way::new("dd bs=128K", || {
        progress.borrow_mut().step("dd, then the drivers");
        Ok(speed(bytes, dd(path)?))
    })];
    for driver in drivers {
        for depth in [1, 8] {
            ways.push(Way::new(format!("{}, depth {depth}", driver.name), move || {
                let begin = Instant::now();
                let read = scan(path, driver, depth)?;
                match read == bytes {
                    true => Ok(speed(bytes, begin.elapsed())),
                    false => Err(io::Error::other(format!("read {read} of {bytes} bytes"))),
                }
            }));
        }
    }
    let measured = interleave(rounds, ways);
    progress.into_inner().finish();
    let title = format!("{mib} MiB");
    print!("{}", table(&title, "GiB/s", &measured, |speed| format!("{speed:.2}")));
    Ok(())
}

fn dd(path: &Path) -> io::Result<Duration> {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", path.display()));
    command.args(["of=/dev/null", "bs=128K"]).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other("dd failed"));
    }
    Ok(begin.elapsed())
}

/// Reads the file in chunks and accesses one byte of each (dd accesses none).
fn scan(path: &Path, driver: Driver, depth: usize) -> io::Result<u64> {
    driver.open()?.run_until_complete(async {
        let mut scan = File::open(path).await?.scan().chunk_len(CHUNK).depth(depth);
        let mut read = 0;
        while let Some(chunk) = scan.next().await {
            let chunk = chunk?;
            read += chunk.len() as u64;
            black_box(chunk[0]);
        }
        Ok(read)
    })?
}

fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / (1u64 << 30) as f64
}
