//! Copies of files on a disk that fails, is full, and reads and writes less than asked for.
//!
//! The program copies a file in each way that the crate offers, and repeats a copy that has failed. A copy that succeeded
//! has the contents of its source, also after a power loss.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::fs::{self, File};
use windlass::io::{AsyncWrite, BufWriter};
use windlass::os_code;
use windlass::rand::Rng;
use windlass::sim::{Crash, Disk, DiskFaults, DiskHandle, Sim};
use windlass::time::sleep;

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// A write is taken for complete, whatever its count is.
    ignores_counts: bool,
    /// The result of the last flush is not looked at.
    ignores_flush: bool,
    /// A scan that fails is taken for one that has ended.
    stops_at_errors: bool,
    /// A sync that fails is repeated alone, without the writes that it has lost.
    syncs_again: bool,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Whole,
    Stream,
    Scan,
    Unordered,
    Reader,
}

const WAYS: [Way; 5] = [Way::Whole, Way::Stream, Way::Scan, Way::Unordered, Way::Reader];

/// Copies the source to a new file, and returns how many bytes it has.
async fn copy(way: Way, to: &str, rng: &mut Rng, bugs: Bugs) -> io::Result<u64> {
    let source = File::open("/source").await?;
    let chunk_len = rng.range(1..4_000) as usize;
    let (target, copied) = match way {
        Way::Whole => {
            let copied = fs::copy("/source", to).await?;
            (File::options().write(true).open(to).await?, copied)
        }
        Way::Stream => {
            let mut writer = BufWriter::with_capacity(chunk_len, File::create(to).await?);
            let copied = windlass::io::copy(&mut { source }, &mut writer).await?;
            (finish(writer, bugs).await?, copied)
        }
        Way::Scan => {
            let mut scan = source.scan().chunk_len(chunk_len).depth(3);
            let mut writer = BufWriter::with_capacity(1_000, File::create(to).await?);
            let mut copied = 0;
            while let Some(chunk) = scan.next().await {
                let chunk = match chunk {
                    Err(_) if bugs.stops_at_errors => break,
                    chunk => chunk?,
                };
                copied += chunk.len() as u64;
                writer.write_all(chunk).await.0?;
            }
            (finish(writer, bugs).await?, copied)
        }
        Way::Unordered => {
            let mut scan = source.scan().chunk_len(chunk_len).depth(3).unordered();
            let target = File::create(to).await?;
            let mut copied = 0;
            while let Some(chunk) = scan.next().await {
                let chunk = chunk?;
                let (at, len) = (chunk.offset(), chunk.len() as u64);
                match bugs.ignores_counts {
                    true => drop(target.write_at(chunk, at).await.0?),
                    false => target.write_all_at(chunk, at).await.0?,
                }
                copied += len;
            }
            (target, copied)
        }
        Way::Reader => {
            let mut reader = source.reader().chunk_len(chunk_len).depth(2);
            let target = File::create(to).await?;
            let mut copied = 0;
            loop {
                let bytes = reader.fill_buf().await?.to_vec();
                if bytes.is_empty() {
                    break;
                }
                reader.consume(bytes.len());
                copied += bytes.len() as u64;
                target.write_all(bytes).await.0?;
            }
            (target, copied)
        }
    };
    if target.sync_all().await.is_err() {
        match bugs.syncs_again {
            true => target.sync_all().await?,
            false => return Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
    File::open("/").await?.sync_all().await?;
    Ok(copied)
}

async fn finish(mut writer: BufWriter<File>, bugs: Bugs) -> io::Result<File> {
    if bugs.ignores_flush {
        let _ = writer.flush().await;
        return Ok(writer.into_parts().0);
    }
    Ok(writer.into_inner().await?)
}

/// What the program has done.
#[derive(Default)]
struct Done {
    copies: Vec<String>,
    failed: u64,
    has_ended: bool,
}

async fn copy_all(copies: u64, source: Rc<Vec<u8>>, disk: DiskHandle, done: Rc<RefCell<Done>>, bugs: Bugs) {
    let mut rng = Rng::new();
    for number in 0..copies {
        let way = *rng.pick(&WAYS).expect("there are ways");
        let to = format!("/copy{number}");
        loop {
            match copy(way, &to, &mut rng, bugs).await {
                Ok(copied) => {
                    assert_eq!(copied, source.len() as u64, "{way:?} counts wrong");
                    let is_same = disk.read(&to).expect("the copy exists") == *source;
                    assert!(is_same, "{way:?} succeeded with the wrong contents");
                    done.borrow_mut().copies.push(to);
                    break;
                }
                Err(error) => {
                    let code = os_code(&error);
                    assert!(
                        matches!(code, Some(libc::EIO | libc::ENOSPC)),
                        "{way:?} failed with another error: {error}"
                    );
                    done.borrow_mut().failed += 1;
                    let _ = fs::remove_file(&to).await;
                    sleep(Duration::from_millis(rng.range(1..50))).await;
                }
            }
        }
    }
    done.borrow_mut().has_ended = true;
    std::future::pending().await
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let mut rng = sim.rng();
    let mut source = vec![0; sim.size("bytes", 0..=20_000) as usize];
    rng.fill(&mut source);
    let copies = sim.size("copies", 1..=6);
    let faults = DiskFaults::none()
        .short_reads(0.3 * rng.unit())
        .short_writes(0.3 * rng.unit())
        .read_errors(0.03 * rng.unit())
        .write_errors(0.03 * rng.unit())
        .sync_errors(0.3 * rng.unit());
    let has_space = rng.chance(0.7);
    // The source, and a part of the copies.
    let sectors = (source.len() as u64).div_ceil(512) * (copies + 1);
    let capacity = if has_space { 1 << 30 } else { 512 * sectors * 3 / 4 };
    let host = sim.host("a").disk(Disk::posix().sector(512).faults(faults));
    let disk = sim.disk("a");
    disk.write("/source", &source)?;
    disk.set_capacity(Some(capacity.max(source.len() as u64 + 512)));
    let (source, done) = (Rc::new(source), Rc::new(RefCell::new(Done::default())));
    host.start({
        let (source, disk, done) = (source.clone(), disk.clone(), done.clone());
        move || copy_all(copies, source.clone(), disk.clone(), done.clone(), bugs)
    });
    sleep(Duration::from_millis(rng.range(0..2_000))).await;
    sim.sometimes("a copy has failed", done.borrow().failed > 0);
    sim.sometimes("all copies were made in spite of the faults", done.borrow().has_ended);
    sim.calm();
    disk.set_capacity(None);
    sim.within(Duration::from_secs(60), async {
        while !done.borrow().has_ended {
            sleep(Duration::from_millis(10)).await;
        }
        TestResult::Ok(())
    })
    .await?;
    sim.crash("a", Crash::Power);
    for copy in &done.borrow().copies {
        let is_same = disk.read(copy).ok().as_ref() == Some(&source);
        assert!(is_same, "the power loss has changed {copy}");
    }
    assert!(disk.read("/source")? == *source, "the source was changed");
    Ok(())
}

#[test]
fn a_copy_that_succeeds_is_complete() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn ignored_counts_are_found() {
    finds("succeeded with the wrong contents", |sim| {
        let bugs = Bugs {
            ignores_counts: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn an_ignored_flush_is_found() {
    finds("succeeded with the wrong contents", |sim| {
        let bugs = Bugs {
            ignores_flush: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn an_error_taken_for_the_end_is_found() {
    finds("Scan counts wrong", |sim| {
        let bugs = Bugs {
            stops_at_errors: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_sync_that_is_repeated_alone_is_found() {
    finds("the power loss has changed", |sim| {
        let bugs = Bugs {
            syncs_again: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}
