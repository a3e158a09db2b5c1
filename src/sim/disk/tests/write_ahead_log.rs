//! All crash images of a small write-ahead log and of a file that is replaced, at every point of their history: correct
//! programs survive each, and each of the classical bugs is found.

use libc::{O_APPEND, O_CREAT, O_WRONLY};

use super::Process;
use super::crashes::process_on;
use crate::sim::disk::config::Disk;
use crate::sim::disk::image::DiskImage;

/// What a program leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// The directory is not synced after the log was created.
    NoDirectorySync,
    /// An entry is acknowledged before it is synced.
    NoDataSync,
    /// A torn or zero entry is taken for a good one.
    NoChecksum,
    /// The new file is renamed before it is synced.
    RenameBeforeSync,
    /// The directory is not synced after the rename.
    NoSyncAfterRename,
}

const ENTRY: usize = 600;

fn entry(number: u8) -> Vec<u8> {
    let mut bytes = vec![number; ENTRY];
    bytes[0] = checksum(&bytes[1..]);
    bytes
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes
        .iter()
        .fold(1, |sum: u8, &byte| sum.wrapping_mul(31).wrapping_add(byte))
}

/// The entries that the program finds after a restart: up to the first bad one.
fn recover(image: &DiskImage, bug: Bug) -> Vec<u8> {
    let log = image.read("/log").unwrap_or_default();
    let is_good = |entry: &&[u8]| entry.len() == ENTRY && (bug == Bug::NoChecksum || entry[0] == checksum(&entry[1..]));
    log.chunks(ENTRY).take_while(is_good).map(|entry| entry[1]).collect()
}

/// After each call, everything acknowledged is recovered, and nothing that was never written. Returns what went wrong.
fn run_log(disk: Disk, bug: Bug) -> Result<(), String> {
    let mut process = process_on(disk.sector(512));
    let check = |process: &Process, acknowledged: u8| {
        for image in process.images() {
            let found = recover(&image, bug);
            let expected = (1..).take(found.len()).eq(found.iter().copied());
            if found.len() < acknowledged.into() || !expected {
                return Err(format!("{acknowledged} acknowledged, {found:?} found in {image:?}"));
            }
        }
        Ok(())
    };
    let fd = process
        .open("/log", O_WRONLY | O_CREAT | O_APPEND)
        .expect("it can be created");
    check(&process, 0)?;
    if bug != Bug::NoDirectorySync {
        process.sync_dir("/");
    }
    check(&process, 0)?;
    for number in 1..=3 {
        process.write(fd, &entry(number)).expect("it fits");
        check(&process, number - 1)?;
        if bug != Bug::NoDataSync {
            process.sync_data(fd).expect("no faults");
        }
        check(&process, number)?;
    }
    Ok(())
}

#[test]
fn a_correct_log_survives_every_crash() {
    assert_eq!(run_log(Disk::posix(), Bug::None), Ok(()));
    assert_eq!(run_log(Disk::ext4(), Bug::None), Ok(()));
}

#[test]
fn every_bug_of_a_log_is_found() {
    for bug in [Bug::NoDirectorySync, Bug::NoDataSync, Bug::NoChecksum] {
        run_log(Disk::posix(), bug).expect_err("a bug");
    }
    run_log(Disk::ext4(), Bug::NoDataSync).expect_err("a bug");
    // ext4 makes a name durable with its file, and data before its size.
    assert_eq!(run_log(Disk::ext4(), Bug::NoDirectorySync), Ok(()));
}

/// A file is replaced as a whole: write a new one, sync it, rename it, sync the directory.
fn run_replace(disk: Disk, bug: Bug) -> Result<(), String> {
    let mut process = process_on(disk);
    process.files.handle().write("/settings", "version 1").expect("it fits");
    let check = |process: &Process, allowed: &[&str]| {
        for image in process.images() {
            let found = String::from_utf8_lossy(&image.read("/settings").unwrap_or_default()).into_owned();
            if !allowed.contains(&found.as_str()) {
                return Err(format!("{found:?} instead of one of {allowed:?}"));
            }
        }
        Ok(())
    };
    let both = ["version 1", "version 2"];
    let fd = process.create("/settings.new");
    check(&process, &both[..1])?;
    process.write(fd, b"version 2").expect("it fits");
    check(&process, &both[..1])?;
    if bug != Bug::RenameBeforeSync {
        process.sync(fd).expect("no faults");
    }
    process.rename("/settings.new", "/settings").expect("it exists");
    check(&process, &both)?;
    if bug == Bug::RenameBeforeSync {
        process.sync(fd).expect("no faults");
    }
    if bug != Bug::NoSyncAfterRename {
        process.sync_dir("/");
    }
    check(&process, &both[1..])
}

#[test]
fn replacing_a_file_needs_both_syncs() {
    for disk in [Disk::posix(), Disk::ext4()] {
        assert_eq!(run_replace(disk.clone(), Bug::None), Ok(()));
        run_replace(disk, Bug::NoSyncAfterRename).expect_err("a bug");
    }
    run_replace(Disk::posix(), Bug::RenameBeforeSync).expect_err("a bug");
}
