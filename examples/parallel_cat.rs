//! Joins files into one, all read and written concurrently: chunks arrive in any order, and each is written at its
//! offset. A file whose length changes meanwhile is an error, because its range in the output is already fixed.
//!
//! `cargo run --release --example parallel_cat -- [--driver auto|proactor|reactor] [--depth 8] -o OUT FILE...`

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use windlass::fs::File;
use windlass::time::interval;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: parallel_cat [--driver auto|proactor|reactor] [--depth N] -o OUT FILE...";
const CHUNK: usize = 256 * 1024;

#[derive(Default)]
struct Options {
    driver: DriverChoice,
    depth: usize,
    out: String,
    files: Vec<String>,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let run = || {
        let event_loop = Builder::new().driver(options.driver).build()?;
        eprintln!("driver: {}", event_loop.describe());
        event_loop.run_until_complete(join(&options))?
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parallel_cat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        depth: 8,
        ..Options::default()
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--driver" => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--depth" => {
                let depth = value()?.parse().ok().filter(|depth| (1..=1024).contains(depth));
                options.depth = depth.ok_or("--depth needs a number from 1 to 1024")?;
            }
            "-o" => options.out = value()?,
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            _ => options.files.push(argument),
        }
    }
    match (options.files.is_empty(), options.out.is_empty()) {
        (true, _) => Err("no files given".into()),
        (_, true) => Err("no output given: use -o OUT".into()),
        _ => Ok(options),
    }
}

async fn join(options: &Options) -> io::Result<()> {
    // The offset of each file in the output.
    let mut sources = Vec::new();
    let mut total = 0;
    for path in &options.files {
        let file = File::open(path).await?;
        let len = file.metadata().await?.len();
        sources.push(Source {
            path: path.clone(),
            file,
            begin: total,
            len,
        });
        total += len;
    }
    let out = Rc::new(File::create(&options.out).await?);
    out.set_len(total).await?;

    let done = Rc::new(Cell::new(0));
    let bar = windlass::spawn(show_progress(done.clone(), total));
    let begin = Instant::now();
    let copies: Vec<_> = sources
        .into_iter()
        .map(|source| windlass::spawn(copy(source, options.depth, out.clone(), done.clone())))
        .collect();
    for copy in copies {
        copy.await??;
    }
    out.sync_data().await?;
    bar.cancel();
    let seconds = begin.elapsed().as_secs_f64();
    let mib = total as f64 / f64::from(1 << 20);
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[2K");
    }
    eprintln!("{mib:.1} MiB in {seconds:.2} s, {:.0} MiB/s", mib / seconds);
    Ok(())
}

/// A file and its range in the output.
struct Source {
    path: String,
    file: File,
    begin: u64,
    len: u64,
}

/// Copies one file to its range in the output, each chunk as soon as it is read.
async fn copy(source: Source, depth: usize, out: Rc<File>, done: Rc<Cell<u64>>) -> io::Result<()> {
    let Source { path, file, begin, len } = source;
    let mut scan = file.scan().chunk_len(CHUNK).depth(depth).unordered();
    let mut copied = 0;
    while let Some(chunk) = scan.next().await {
        let chunk = chunk?;
        let (offset, count) = (chunk.offset(), chunk.len() as u64);
        // More data would overwrite the range of the next file.
        if offset + count > len {
            return Err(io::Error::other(format!("{path} grew while it was being read")));
        }
        out.write_all_at(chunk, begin + offset).await.0?;
        copied += count;
        done.set(done.get() + count);
    }
    match copied == len {
        true => Ok(()),
        // The file shrank before the scan started and took its length, or its length is not real, as in /sys. The rest
        // of its range would stay zero.
        false => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{path} ended early: read {copied} bytes of {len}"),
        )),
    }
}

/// Draws a progress bar on a terminal; does nothing elsewhere.
async fn show_progress(done: Rc<Cell<u64>>, total: u64) {
    const WIDTH: u64 = 30;
    let mut tick = interval(Duration::from_millis(100));
    while io::stderr().is_terminal() {
        tick.tick().await;
        let full = (WIDTH * done.get() / total.max(1)).min(WIDTH);
        let bar = "#".repeat(full as usize) + &".".repeat((WIDTH - full) as usize);
        eprint!("\r\x1b[2K[{bar}] {}/{} MiB", done.get() >> 20, total >> 20);
        let _ = io::stderr().flush();
    }
}
