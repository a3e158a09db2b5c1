//! How fast a large file in the page cache can be read: `dd bs=128K` against a scan on each driver.
//!
//!     cargo bench --bench scan                     1 GiB, seven rounds
//!     cargo bench --bench scan -- --mib 256 --rounds 3
//!
//! The runs are interleaved, each round's ratio is taken within the round, and the median of the rounds counts.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use windlass::fs::File;
use windlass::{Builder, DriverChoice};

const CHUNK: usize = 128 * 1024;

fn main() -> io::Result<()> {
    let Options { mib, rounds } = options();
    let folder = std::env::temp_dir();
    let path = folder.join(format!("windlass-bench-scan-{}", std::process::id()));
    let _remove = Remove(&path);
    println!("writing {mib} MiB to {}", path.display());
    write_file(&path, mib)?;

    let drivers: Vec<_> = [DriverChoice::Proactor, DriverChoice::Reactor]
        .into_iter()
        .filter(|&driver| match Builder::new().driver(driver).build() {
            Ok(_) => true,
            Err(error) => {
                println!("{driver:?} is left out: {error}");
                false
            }
        })
        .collect();
    let ways: Vec<_> = drivers
        .iter()
        .flat_map(|&driver| [1, 8].map(|depth| (driver, depth)))
        .collect();

    // Once unmeasured, so that every page is in the cache.
    dd(&path)?;
    let mut ratios = vec![Vec::new(); ways.len()];
    let mut speeds = vec![Vec::new(); ways.len() + 1];
    let bytes = mib << 20;
    for round in 1..=rounds {
        let limit = speed(bytes, dd(&path)?);
        speeds[ways.len()].push(limit);
        let mut line = format!("round {round}/{rounds}: dd {limit:.2} GiB/s");
        for (at, &(driver, depth)) in ways.iter().enumerate() {
            let begin = Instant::now();
            let (read, sum) = scan(&path, driver, depth)?;
            let reached = speed(bytes, begin.elapsed());
            assert_eq!(read, bytes, "the whole file is read");
            std::hint::black_box(sum);
            ratios[at].push(reached / limit);
            speeds[at].push(reached);
            line += &format!(", {driver:?} depth {depth} {reached:.2}");
        }
        println!("{line}");
    }

    println!("\n{:<22}{:>10}{:>10}{:>16}", "", "GiB/s", "x dd", "(of the rounds)");
    println!(
        "{:<22}{:>10.2}{:>10.2}",
        "dd bs=128K",
        median(&mut speeds[ways.len()]),
        1.0
    );
    for (at, (driver, depth)) in ways.iter().enumerate() {
        let name = format!("{driver:?}, depth {depth}");
        let ratio = median(&mut ratios[at]);
        let (low, high) = (ratios[at][0], ratios[at][ratios[at].len() - 1]);
        let speed = median(&mut speeds[at]);
        println!(
            "{name:<22}{speed:>10.2}{ratio:>10.2}{:>16}",
            format!("{low:.2} to {high:.2}")
        );
    }
    Ok(())
}

struct Options {
    mib: u64,
    rounds: usize,
}

fn options() -> Options {
    let mut options = Options { mib: 1024, rounds: 7 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            arguments
                .next()
                .and_then(|text| text.parse::<u64>().ok())
                .filter(|&n| n > 0)
        };
        match argument.as_str() {
            // What cargo passes to every bench.
            "--bench" => {}
            "--mib" => options.mib = number().unwrap_or_else(|| usage()),
            "--rounds" => options.rounds = number().unwrap_or_else(|| usage()) as usize,
            _ => usage(),
        }
    }
    options
}

fn usage() -> ! {
    eprintln!("usage: cargo bench --bench scan -- [--mib N] [--rounds N]");
    std::process::exit(2);
}

/// The file goes when the bench does, however that ends.
struct Remove<'a>(&'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn write_file(path: &Path, mib: u64) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let block: Vec<u8> = (0..1u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    // What is still to be written would be written during the measurement.
    file.sync_all()
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

/// Reads the file in pieces, looking at one byte of each, as dd looks at none.
fn scan(path: &Path, driver: DriverChoice, depth: usize) -> io::Result<(u64, u64)> {
    let event_loop = Builder::new().driver(driver).build()?;
    event_loop.run_until_complete(async {
        let mut scan = File::open(path).await?.scan().chunk_len(CHUNK).depth(depth);
        let (mut read, mut sum) = (0, 0);
        while let Some(chunk) = scan.next().await {
            let chunk = chunk?;
            read += chunk.len() as u64;
            sum += u64::from(chunk[0]);
        }
        Ok((read, sum))
    })?
}

fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / (1u64 << 30) as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
