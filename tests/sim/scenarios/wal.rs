//! A write-ahead log, started again on every image that a power loss can leave.
//!
//! A record is its length, a checksum, and its payload. The log acknowledges a record after a sync. When a log has become
//! long, the program writes a new one with the last records only, and renames it over the old one. Recovery takes the valid
//! records from the beginning, and truncates the rest.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::fs::{self, File};
use windlass::rand::Rng;
use windlass::sim::{Crash, Disk, DiskLatency, Sim};
use windlass::time::sleep;

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// A record is acknowledged before it is synced.
    no_sync: bool,
    /// The name of a new log is not made durable.
    no_dir_sync: bool,
    /// Recovery trusts the length of a record.
    no_checksum: bool,
    /// Recovery leaves an invalid rest in place, and new records follow behind it.
    no_truncation: bool,
    /// The new log replaces the old one before it is synced.
    early_rename: bool,
}

const LOG: &str = "/log";
const NEW: &str = "/new";

/// A log is replaced when it has this many records.
const MOST: usize = 5;

/// Replacing it keeps this many.
const KEPT: usize = 2;

/// Length and checksum, before the payload.
const HEADER: usize = 12;

fn checksum(payload: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    payload.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn encode(payload: &[u8]) -> Vec<u8> {
    let mut record = (payload.len() as u32).to_le_bytes().to_vec();
    record.extend(checksum(payload).to_le_bytes());
    record.extend(payload);
    record
}

/// The payload of record `number`: the number, and bytes that follow from it.
fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend((0..len).map(|at| (number as usize * 31 + at * 7) as u8 | 1));
    payload
}

fn number_of(payload: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(payload.get(..8)?.try_into().ok()?);
    (payload == self::payload(number, payload.len() - 8)).then_some(number)
}

struct Wal {
    file: File,
    end: u64,
    payloads: Vec<Vec<u8>>,
    bugs: Bugs,
}

impl Wal {
    async fn open(bugs: Bugs) -> io::Result<Wal> {
        // What is left of a replacement that was interrupted.
        let _ = fs::remove_file(NEW).await;
        let is_new = !fs::try_exists(LOG).await?;
        let file = File::options().read(true).write(true).create(true).open(LOG).await?;
        if is_new && !bugs.no_dir_sync {
            sync_dir().await?;
        }
        let mut wal = Wal {
            file,
            end: 0,
            payloads: Vec::new(),
            bugs,
        };
        wal.recover().await?;
        Ok(wal)
    }

    async fn recover(&mut self) -> io::Result<()> {
        let bytes = fs::read(LOG).await?;
        while let Some(payload) = self.valid(&bytes[self.end as usize..]) {
            self.end += (HEADER + payload.len()) as u64;
            self.payloads.push(payload);
        }
        match self.bugs.no_truncation {
            true => self.end = bytes.len() as u64,
            false => {
                self.file.set_len(self.end).await?;
                self.file.sync_all().await?;
            }
        }
        Ok(())
    }

    /// The first record, if it is valid.
    fn valid(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let sum = u64::from_le_bytes(bytes.get(4..HEADER)?.try_into().ok()?);
        let payload = bytes.get(HEADER..HEADER.checked_add(len)?)?;
        let is_valid = self.bugs.no_checksum || checksum(payload) == sum;
        (is_valid && len > 0).then(|| payload.to_vec())
    }

    async fn append(&mut self, payload: Vec<u8>) -> io::Result<()> {
        if self.payloads.len() >= MOST {
            self.replace().await?;
        }
        let record = encode(&payload);
        let len = record.len() as u64;
        self.file.write_all_at(record, self.end).await.0?;
        if !self.bugs.no_sync {
            self.file.sync_data().await?;
        }
        self.end += len;
        self.payloads.push(payload);
        Ok(())
    }

    /// Replaces the log by one with the last records.
    async fn replace(&mut self) -> io::Result<()> {
        self.payloads.drain(..self.payloads.len() - KEPT);
        let contents: Vec<u8> = self.payloads.iter().flat_map(|payload| encode(payload)).collect();
        let file = File::options().read(true).write(true).create(true).open(NEW).await?;
        self.end = contents.len() as u64;
        file.write_all_at(contents, 0).await.0?;
        if !self.bugs.early_rename {
            file.sync_all().await?;
        }
        fs::rename(NEW, LOG).await?;
        if !self.bugs.no_dir_sync {
            sync_dir().await?;
        }
        self.file = file;
        Ok(())
    }
}

async fn sync_dir() -> io::Result<()> {
    File::open("/").await?.sync_all().await
}

/// What the test knows of the program.
#[derive(Default)]
struct Known {
    /// The number of the last record that was acknowledged.
    acknowledged: Option<u64>,
    /// The numbers that the last start has found.
    recovered: Option<Vec<u64>>,
    /// The program appends this many records after a start.
    appends: u64,
}

async fn program(known: Rc<RefCell<Known>>, most_len: u64, bugs: Bugs) -> io::Result<()> {
    let mut rng = Rng::new();
    let mut wal = Wal::open(bugs).await?;
    let numbers = wal.payloads.iter().map(|payload| number_of(payload));
    let numbers: Option<Vec<u64>> = numbers.collect();
    let numbers = numbers.expect("recovery has accepted a damaged record");
    let next = numbers.last().map_or(0, |last| last + 1);
    let appends = {
        let mut known = known.borrow_mut();
        known.recovered = Some(numbers);
        known.appends
    };
    for number in next..next + appends {
        let len = rng.range(0..=most_len) as usize;
        wal.append(payload(number, len)).await?;
        known.borrow_mut().acknowledged = Some(number);
    }
    std::future::pending().await
}

async fn recovered(known: &RefCell<Known>) -> Vec<u64> {
    loop {
        if let Some(recovered) = known.borrow_mut().recovered.take() {
            return recovered;
        }
        sleep(Duration::from_micros(100)).await;
    }
}

/// A log that the program recovers has consecutive records, and all that were acknowledged.
fn check(recovered: &[u64], acknowledged: Option<u64>) {
    let is_consecutive = recovered.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(is_consecutive, "records are missing in between: {recovered:?}");
    let last = recovered.last().copied();
    assert!(
        last >= acknowledged,
        "an acknowledged record is lost: {acknowledged:?} of {recovered:?}"
    );
    assert!(
        last <= acknowledged.map_or(Some(0), |last| Some(last + 1)),
        "more than one record that was not acknowledged: {recovered:?}"
    );
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let mut rng = sim.rng();
    let known = Rc::new(RefCell::new(Known {
        appends: sim.size("records", 1..=12),
        ..Known::default()
    }));
    let most_len = sim.size("length", 0..=1_500);
    let latency = DiskLatency::none()
        .write(Duration::from_micros(50), Duration::from_micros(50))
        .sync(Duration::from_micros(50), Duration::from_micros(50))
        .metadata(Duration::from_micros(20), Duration::from_micros(20));
    sim.host("a").disk(Disk::posix().sector(512).latency(latency)).start({
        let known = known.clone();
        move || program(known.clone(), most_len, bugs)
    });
    let records = known.borrow().appends;
    let last = rng.below(records);
    while last > 0 && known.borrow().acknowledged < Some(last - 1) {
        sleep(Duration::from_micros(10)).await;
    }
    sleep(Duration::from_micros(rng.range(0..400))).await;
    let disk = sim.disk("a");
    let images = disk.crash_images(2_000)?;
    let before = known.borrow().acknowledged;
    sim.sometimes("there is one image alone", images.len() == 1);
    sim.sometimes("there are more than 8 images", images.len() > 8);
    for image in &images {
        sim.crash("a", Crash::Power);
        disk.load(image);
        *known.borrow_mut() = Known {
            acknowledged: before,
            appends: 1,
            ..Known::default()
        };
        sim.restart("a");
        check(&recovered(&known).await, before);
        // What is written after the recovery survives too.
        let first = known.borrow().acknowledged;
        while known.borrow().acknowledged == first {
            sleep(Duration::from_micros(100)).await;
        }
        let acknowledged = known.borrow().acknowledged;
        sim.crash("a", Crash::Power);
        known.borrow_mut().appends = 0;
        sim.restart("a");
        check(&recovered(&known).await, acknowledged);
    }
    Ok(())
}

#[test]
fn acknowledged_records_survive_in_every_image() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_missing_sync_is_found() {
    finds("an acknowledged record is lost", |sim| {
        let bugs = Bugs {
            no_sync: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_name_that_is_not_durable_is_found() {
    finds("an acknowledged record is lost", |sim| {
        let bugs = Bugs {
            no_dir_sync: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_missing_checksum_is_found() {
    finds("recovery has accepted a damaged record", |sim| {
        let bugs = Bugs {
            no_checksum: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_rest_that_is_not_truncated_is_found() {
    finds("an acknowledged record is lost", |sim| {
        let bugs = Bugs {
            no_truncation: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_rename_before_the_sync_is_found() {
    finds("an acknowledged record is lost", |sim| {
        let bugs = Bugs {
            early_rename: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}
