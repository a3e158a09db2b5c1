//! The speed of file reads and writes: `cargo bench --bench files`
//!
//! Random reads of 4 KiB, from the page cache and with `O_DIRECT`, with 1, 8, 32 and 128 in flight; one pass over the
//! whole file; and 4 KiB written and synced. Both drivers are compared with one thread that repeats the plain system
//! call: the upper bound for cached data, though not for a disk that benefits from parallel requests. With `O_DIRECT`
//! they are compared with fio's io_uring engine at the same depth, if fio is installed (`apt install fio`).
//!
//!     cargo bench --bench files                               about a minute, 1 GiB of temporary space
//!     cargo bench --bench files -- --only cached --depth 1,32 --mib 256
//!     cargo bench --bench files -- --only direct --depth 32 --rounds 9 --seconds 1
//!     cargo bench --bench files -- --only sync --rounds 9 --seconds 1
//!
//! `TMPDIR` sets the folder of the file. `cargo bench --bench scan` compares the sequential pass with dd.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::random::Random;
use kit::rounds::{Way, interleave, table};
use kit::scratch::Scratch;
use kit::text::thousands;
use windlass::fs::File;
use windlass::io::AlignedBuf;

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench files -- [--only cached|direct|sequential|sync] [--depth N,..] [--mib N]
                                    [--driver proactor|reactor] [--rounds N] [--seconds S]

  --only PART     random reads of 4 KiB from the page cache or with O_DIRECT, one pass over the file, or write and fsync
  --depth N,..    reads in flight in the random reads (default 1,8,32,128)
  --mib N         size of the file (default 1024); TMPDIR sets its folder
  --driver NAME   only this driver
  --rounds N      interleaved rounds (default 3)
  --seconds S     length of one measurement (default 0.4)

The rows with O_DIRECT are compared with fio's io_uring engine: apt install fio, or dnf install fio.";

const NAMES: [&str; 6] = ["--only", "--depth", "--mib", "--driver", "--rounds", "--seconds"];
const PARTS: [&str; 4] = ["cached", "direct", "sequential", "sync"];

const BLOCK: usize = 4096;
/// The chunk size of the sequential pass.
const CHUNK: usize = 128 * 1024;
/// Reads between two clock readings.
const STRETCH: usize = 8;

/// Shared by all measurements.
struct Bench {
    file: Scratch,
    mib: usize,
    drivers: Vec<Driver>,
    rounds: usize,
    length: Duration,
}

fn main() -> ExitCode {
    kit::options::report("files", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &NAMES);
    let depths = options.numbers("--depth", &[1, 8, 32, 128]);
    let mib = options.number("--mib", 1024);
    let (rounds, length) = (options.number("--rounds", 3), options.seconds("--seconds", 0.4));
    let [cached, direct, sequential, sync] = PARTS.map(|part| options.wants("--only", part, &PARTS));
    let drivers = options.drivers();
    let bench = Bench {
        file: Scratch::write("files", mib)?,
        mib,
        drivers,
        rounds,
        length,
    };
    println!(
        "{mib} MiB in {}, blocks of 4 KiB; medians of {rounds} interleaved rounds, ratios within a round",
        std::env::temp_dir().display()
    );
    if direct && !has_fio() {
        println!("fio was not found, so O_DIRECT is compared with pread only: apt install fio, or dnf install fio");
    }
    println!();
    // Fills the page cache before the measurements.
    read_through(bench.file.path())?;

    let wanted = usize::from(cached) + usize::from(direct);
    let steps = depths.len() * wanted + usize::from(sequential) + usize::from(sync);
    let mut progress = Progress::new(steps);
    if cached {
        bench.random_reads(false, &depths, &mut progress);
    }
    if direct {
        bench.random_reads(true, &depths, &mut progress);
    }
    if sequential {
        progress.step("sequential");
        bench.sequential();
    }
    if sync {
        progress.step("write and fsync");
        bench.write_and_sync();
    }
    progress.finish();
    Ok(())
}

impl Bench {
    fn random_reads(&self, is_direct: bool, depths: &[usize], progress: &mut Progress) {
        let how = if is_direct { "O_DIRECT" } else { "cached" };
        for &depth in depths {
            let title = format!("random 4 KiB, {how}, depth {depth}");
            progress.step(&title);
            self.random_reads_at(&title, is_direct, depth);
        }
    }

    fn random_reads_at(&self, title: &str, is_direct: bool, depth: usize) {
        let blocks = (self.mib * 1024 * 1024 / BLOCK) as u64;
        let mut ways = Vec::new();
        if is_direct && has_fio() {
            ways.push(Way::new("fio", move || self.fio(depth)));
        }
        ways.push(Way::new("pread", move || {
            let file = open_plain(self.file.path(), is_direct)?;
            let (mut buf, mut random) = (AlignedBuf::zeroed(BLOCK, BLOCK), Random::new());
            repeat_for(self.length, || {
                read_at(&file, &mut buf, random.below(blocks) * BLOCK as u64)
            })
        }));
        for driver in &self.drivers {
            ways.push(Way::new(driver.name, move || {
                let work = random_reads(self.file.path(), is_direct, depth, blocks, self.length);
                driver.open()?.run_until_complete(work)?
            }));
        }
        println!("{}", table(title, "reads/s", &interleave(self.rounds, ways), thousands));
    }

    /// Reads per second by fio: `O_DIRECT`, the same file, block size and depth, and no clock reading per read.
    fn fio(&self, depth: usize) -> io::Result<f64> {
        let mut command = Command::new("fio");
        command.args("--name=reads --rw=randread --ioengine=io_uring --direct=1 --time_based --readonly".split(' '));
        command.args("--thread --norandommap --gtod_reduce=1 --output-format=terse --terse-version=3".split(' '));
        command.arg(format!("--filename={}", self.file.path().display()));
        command.args([format!("--bs={BLOCK}"), format!("--size={}M", self.mib)]);
        command.args([
            format!("--iodepth={depth}"),
            format!("--runtime={}ms", self.length.as_millis()),
        ]);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // The version of the format, of fio, the job, its group and error; then of reads: KiB, KiB/s, reads/s.
        let rate = text.lines().find_map(|line| line.split(';').nth(7)?.parse().ok());
        let failed = || io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned());
        rate.filter(|_| output.status.success()).ok_or_else(failed)
    }

    fn sequential(&self) {
        let gib = self.mib as f64 / 1024.0;
        let mut ways = vec![Way::new("read", move || {
            let time = read_through(self.file.path())?;
            Ok(gib / time.as_secs_f64())
        })];
        for driver in &self.drivers {
            for depth in [1, 8] {
                ways.push(Way::new(format!("{}, scan of depth {depth}", driver.name), move || {
                    let begin = Instant::now();
                    driver.open()?.run_until_complete(scan(self.file.path(), depth))??;
                    Ok(gib / begin.elapsed().as_secs_f64())
                }));
            }
        }
        let title = format!("{} MiB in chunks of 128 KiB", self.mib);
        let measured = interleave(self.rounds, ways);
        println!("{}", table(&title, "GiB/s", &measured, |speed| format!("{speed:.2}")));
    }

    fn write_and_sync(&self) {
        let mut ways = vec![Way::new("pwrite, fsync", move || {
            let file = OpenOptions::new().write(true).open(self.file.path())?;
            let block = [7; BLOCK];
            repeat_for(self.length, || {
                write_at(&file, &block, 0)?;
                file.sync_all()
            })
        })];
        for driver in &self.drivers {
            ways.push(Way::new(driver.name, move || {
                let work = writes(self.file.path(), self.length);
                driver.open()?.run_until_complete(work)?
            }));
        }
        let measured = interleave(self.rounds, ways);
        println!("{}", table("write 4 KiB, fsync", "per second", &measured, thousands));
    }
}

fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").output();
    cfg!(target_os = "linux") && found.is_ok_and(|output| output.status.success())
}

/// Sequential executions per second.
fn repeat_for(length: Duration, mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < length {
        for _ in 0..STRETCH {
            work()?;
        }
        count += STRETCH;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// Reads per second by `depth` tasks, each with its own buffer.
async fn random_reads(path: &Path, is_direct: bool, depth: usize, blocks: u64, length: Duration) -> io::Result<f64> {
    let file = Rc::new(File::options().read(true).direct(is_direct).open(path).await?);
    let (count, random) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Random::new())));
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..depth {
        let (file, count, random) = (file.clone(), count.clone(), random.clone());
        tasks.push(windlass::spawn(async move {
            let mut buf = AlignedBuf::zeroed(BLOCK, BLOCK);
            while begin.elapsed() < length {
                for _ in 0..STRETCH {
                    let offset = random.borrow_mut().below(blocks) * BLOCK as u64;
                    let result;
                    (result, buf) = file.read_exact_at(buf, offset).await;
                    result?;
                }
                count.set(count.get() + STRETCH);
            }
            io::Result::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(count.get() as f64 / begin.elapsed().as_secs_f64())
}

async fn scan(path: &Path, depth: usize) -> io::Result<()> {
    let mut scan = File::open(path).await?.scan().chunk_len(CHUNK).depth(depth);
    while let Some(chunk) = scan.next().await {
        black_box(chunk?[0]);
    }
    Ok(())
}

async fn writes(path: &Path, length: Duration) -> io::Result<f64> {
    let file = File::options().write(true).open(path).await?;
    let mut block = vec![7; BLOCK];
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < length {
        for _ in 0..STRETCH {
            let result;
            (result, block) = file.write_all_at(block, 0).await;
            result?;
            file.sync_all().await?;
        }
        count += STRETCH;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn read_through(path: &Path) -> io::Result<Duration> {
    use std::io::Read;
    let (mut file, mut buf) = (std::fs::File::open(path)?, vec![0; CHUNK]);
    let begin = Instant::now();
    while file.read(&mut buf)? > 0 {
        black_box(buf[0]);
    }
    Ok(begin.elapsed())
}

#[cfg(target_os = "linux")]
fn open_plain(path: &Path, is_direct: bool) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = if is_direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_plain(path: &Path, is_direct: bool) -> io::Result<std::fs::File> {
    match is_direct {
        true => Err(io::Error::other("this bench uses O_DIRECT on Linux only")),
        false => std::fs::File::open(path),
    }
}

#[cfg(unix)]
fn read_at(file: &std::fs::File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

#[cfg(unix)]
fn write_at(file: &std::fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &std::fs::File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset).map(drop)
}

#[cfg(windows)]
fn write_at(file: &std::fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset).map(drop)
}
