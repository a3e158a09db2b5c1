//! Injected faults and latencies.

use std::time::Duration;

use libc::{EDQUOT, EIO, ENOSPC};

use super::crashes::process_on;
use crate::sim::disk::config::Disk;
use crate::sim::disk::faults::{DiskFaults, DiskLatency};
use crate::sim::rng::Rng;
use crate::sys::FileOp;

/// A failed fsync loses the pages, and the next one succeeds.
#[test]
fn a_failed_sync_loses_the_pages() {
    let mut process = process_on(Disk::posix());
    let disk = process.files.handle();
    disk.write("/f", "old").expect("it fits");
    let fd = process.create("/f");
    process.write(fd, b"new").expect("it fits");
    disk.set_faults(DiskFaults::none().sync_errors(1.0));
    assert_eq!(process.sync(fd), Err(EIO));
    disk.set_faults(DiskFaults::none());
    assert_eq!(process.sync(fd), Ok(0));
    assert_eq!(disk.read("/f").expect("it exists"), b"new", "still in the page cache");
    let images = process.images();
    assert_eq!(
        (images.len(), images[0].read("/f").expect("it exists")),
        (1, b"old".to_vec())
    );
    // Written again, it is durable.
    process.write_at(fd, b"new", 0).expect("it fits");
    assert_eq!(process.sync(fd), Ok(0));
    assert_eq!(process.images()[0].read("/f").expect("it exists"), b"new");
}

#[test]
fn a_sector_that_cannot_be_read_is_cured_by_a_write() {
    let mut process = process_on(Disk::posix());
    let disk = process.files.handle();
    disk.write("/f", [1; 3 * 4096]).expect("it fits");
    let fd = process.create("/f");
    disk.break_sectors("/f", 5000..5001).expect("it exists");
    assert_eq!(process.read_at(fd, 10, 0).expect("readable"), [1; 10]);
    assert_eq!(process.read_at(fd, 5000, 0), Err(EIO));
    assert_eq!(process.read_at(fd, 10, 4096), Err(EIO));
    process.write_at(fd, &[2; 4096], 4096).expect("it fits");
    assert_eq!(process.read_at(fd, 10, 4096).expect("readable"), [2; 10]);
    disk.set_faults(DiskFaults::none().read_errors(1.0));
    assert_eq!(process.read_at(fd, 10, 0), Err(EIO));
    disk.set_faults(DiskFaults::none());
    assert_eq!(process.read_at(fd, 10, 0), Err(EIO), "it stays");
    assert_eq!(process.read_at(fd, 10, 3 * 4096).expect("the end"), []);
}

#[test]
fn writes_fail_or_are_short() {
    let mut process = process_on(Disk::posix());
    let disk = process.files.handle();
    let fd = process.create("/f");
    disk.set_faults(DiskFaults::none().write_errors(1.0));
    assert_eq!(process.write(fd, b"data"), Err(EIO));
    assert_eq!(disk.read("/f").expect("it exists"), b"");
    disk.set_faults(DiskFaults::none().short_writes(1.0).short_reads(1.0));
    let count = process.write_at(fd, &[1; 100], 0).expect("a part fits");
    assert!((1..100).contains(&count), "{count}");
    disk.set_faults(DiskFaults::none());
    process.write_at(fd, &[1; 100], 0).expect("it fits");
    disk.set_faults(DiskFaults::none().short_reads(1.0));
    let count = process.read_at(fd, 200, 0).expect("readable").len();
    assert!((1..100).contains(&count), "{count}");
}

#[test]
fn a_full_disk_and_a_used_up_quota() {
    for (disk, code) in [
        (Disk::posix().capacity(8192), ENOSPC),
        (Disk::posix().capacity(1 << 20).quota(8192), EDQUOT),
    ] {
        let mut process = process_on(disk);
        let fd = process.create("/f");
        assert_eq!(process.write(fd, &[1; 10_000]), Ok(8192));
        assert_eq!(process.write(fd, &[1; 10_000]), Err(code));
        // Overwriting needs no space.
        assert_eq!(process.write_at(fd, &[2; 8192], 0), Ok(8192));
        assert_eq!(process.open("/g", libc::O_WRONLY | libc::O_CREAT), Err(code));
        process.close(fd);
        process.remove("/f", false).expect("it exists");
        // Space is free at once, although a power loss can bring the file back.
        let fd = process.create("/g");
        assert_eq!(process.write(fd, &[1; 8192]), Ok(8192));
    }
}

/// Silent faults show when the page cache is gone.
#[test]
fn silent_faults_are_on_the_disk_alone() {
    let faults = DiskFaults::none();
    for (faults, old) in [
        (faults.clone().lost_writes(1.0), true),
        (faults.clone().misdirected_writes(1.0), false),
        (faults.bit_rot(1.0), false),
    ] {
        let mut process = process_on(Disk::posix());
        let disk = process.files.handle();
        disk.write("/f", [1; 2 * 4096]).expect("it fits");
        let fd = process.create("/f");
        process.write_at(fd, &[2; 4096], 0).expect("it fits");
        disk.set_faults(faults);
        assert_eq!(process.sync(fd), Ok(0));
        disk.set_faults(DiskFaults::none());
        let written = [[2; 4096], [1; 4096]].concat();
        assert_eq!(disk.read("/f").expect("it exists"), written);
        let images = process.images();
        assert_eq!(images.len(), 1);
        let stored = images[0].read("/f").expect("it exists");
        assert_ne!(stored, written);
        assert_eq!(stored == [1; 2 * 4096], old);
        disk.drop_caches();
        assert_eq!(disk.read("/f").expect("it exists"), stored);
    }
}

#[test]
fn a_flipped_bit_is_on_the_disk() {
    let process = process_on(Disk::posix());
    let disk = process.files.handle();
    disk.write("/f", [0; 5000]).expect("it fits");
    disk.flip_bit("/f", 4500, 3).expect("it exists");
    assert_eq!(disk.read("/f").expect("it exists"), [0; 5000]);
    disk.drop_caches();
    assert_eq!(disk.read("/f").expect("it exists")[4500], 8);
}

#[test]
fn latencies_limits_and_stalls() {
    let least = Duration::from_micros(100);
    let sync = FileOp::Sync {
        fd: 3,
        data_only: false,
    };
    let process = process_on(Disk::posix().latency(DiskLatency::none().sync(least, Duration::ZERO)));
    assert_eq!(process.files.done_at(&sync, 5_000), 105_000);
    let truncate = FileOp::Truncate { fd: 3, len: 0 };
    assert_eq!(process.files.done_at(&truncate, 5_000), 5_000);
    // A stall holds up what is behind it.
    process.files.handle().stall(Duration::from_secs(1));
    assert_eq!(process.files.done_at(&truncate, 5_000), 1_000_005_000);
    assert_eq!(process.files.done_at(&truncate, 6_000), 1_000_005_000);

    let process = process_on(Disk::posix().latency(DiskLatency::none().iops(1000)));
    let times: Vec<u64> = (0..3).map(|_| process.files.done_at(&truncate, 7)).collect();
    assert_eq!(times, [7, 1_000_007, 2_000_007]);

    let (every, length) = (Duration::from_secs(10), Duration::from_secs(1));
    let disk = Disk::posix().latency(DiskLatency::none().sync(least, Duration::ZERO));
    for faults in [
        DiskFaults::none().stalls(every, length),
        DiskFaults::none().throttles(every, length, 10),
    ] {
        let process = process_on(disk.clone().faults(faults));
        let starts = (0..10_000).map(|number| number * 100_000_000);
        let slow = starts
            .filter(|&start| process.files.done_at(&sync, start) > start + 100_000)
            .count();
        // 1,000 s with episodes of 1 s every 11 s.
        assert!((500..1500).contains(&slow), "{slow} of 10,000 are slow");
    }
}

#[test]
fn swarms_differ() {
    let swarm = |seed| DiskFaults::swarm(&mut Rng::from_seed(seed));
    assert_eq!(swarm(1), swarm(1));
    assert!((0..20).any(|seed| swarm(seed) != swarm(1)));
}
