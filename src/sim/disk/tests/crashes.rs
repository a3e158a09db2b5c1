//! What a power loss can leave, rule by rule.

use std::collections::BTreeSet;
use std::time::SystemTime;

use libc::{O_CREAT, O_DSYNC, O_TRUNC, O_WRONLY};

use super::Process;
use crate::sim::disk::config::Disk;
use crate::sim::disk::image::DiskImage;
use crate::sim::rng::Rng;

pub(super) fn process_on(disk: Disk) -> Process {
    Process::on(disk.mount(SystemTime::UNIX_EPOCH, Rng::from_seed(1)))
}

impl Process {
    pub(super) fn images(&self) -> Vec<DiskImage> {
        self.files.handle().crash_images(100_000).expect("few images")
    }

    /// What a file can contain after a power loss; `None`: it does not exist.
    fn outcomes(&self, path: &str) -> BTreeSet<Option<Vec<u8>>> {
        self.images().iter().map(|image| image.read(path).ok()).collect()
    }
}

fn set<const N: usize>(outcomes: [Option<&str>; N]) -> BTreeSet<Option<Vec<u8>>> {
    outcomes
        .into_iter()
        .map(|outcome| outcome.map(|text| text.as_bytes().to_vec()))
        .collect()
}

/// A file `/f` with these durable contents.
fn with_file(disk: Disk, contents: &str) -> Process {
    let process = process_on(disk);
    process.files.handle().write("/f", contents).expect("it fits");
    process
}

#[test]
fn nothing_is_lost_after_syncs() {
    for disk in [Disk::posix(), Disk::ext4()] {
        let mut process = process_on(disk);
        let fd = process.create("/f");
        process.write(fd, b"data").expect("it fits");
        process.sync(fd).expect("no faults");
        process.sync_dir("/");
        let images = process.images();
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].read("/f").expect("it is durable"), b"data");
        assert_eq!(images[0], process.files.handle().image());
    }
}

#[test]
fn a_name_needs_a_sync_of_its_directory() {
    let mut process = process_on(Disk::posix());
    let fd = process.create("/f");
    process.write(fd, b"data").expect("it fits");
    process.sync(fd).expect("no faults");
    assert_eq!(process.outcomes("/f"), set([None, Some("data")]));
    process.sync_dir("/");
    assert_eq!(process.outcomes("/f"), set([Some("data")]));
}

#[test]
fn on_ext4_a_synced_file_has_its_name() {
    let mut process = process_on(Disk::ext4());
    let fd = process.create("/f");
    process.write(fd, b"data").expect("it fits");
    process.sync(fd).expect("no faults");
    assert_eq!(process.outcomes("/f"), set([Some("data")]));
}

/// The size without the data: zeros. On ext4 the data of an extended file comes first.
#[test]
fn sizes_and_data_are_independent_on_posix_alone() {
    for (disk, expected) in [
        (Disk::posix(), set([Some("ab"), Some("abcd"), Some("ab\0\0")])),
        (Disk::ext4(), set([Some("ab"), Some("abcd")])),
    ] {
        let mut process = with_file(disk, "ab");
        let fd = process.open("/f", O_WRONLY).expect("it exists");
        process.write_at(fd, b"cd", 2).expect("it fits");
        assert_eq!(process.outcomes("/f"), expected);
    }
}

#[test]
fn a_sector_has_any_of_its_versions() {
    for disk in [Disk::posix(), Disk::ext4()] {
        let mut process = with_file(disk, "old");
        let fd = process.open("/f", O_WRONLY).expect("it exists");
        process.write_at(fd, b"one", 0).expect("it fits");
        process.write_at(fd, b"two", 0).expect("it fits");
        assert_eq!(process.outcomes("/f"), set([Some("old"), Some("one"), Some("two")]));
        process.sync_data(fd).expect("no faults");
        assert_eq!(process.outcomes("/f"), set([Some("two")]));
    }
}

#[test]
fn sectors_are_independent() {
    let mut process = process_on(Disk::posix().sector(512));
    process.files.handle().write("/f", [1; 1536]).expect("it fits");
    let fd = process.open("/f", O_WRONLY).expect("it exists");
    process.write_at(fd, &[2; 1536], 0).expect("it fits");
    let images = process.images();
    assert_eq!(images.len(), 8);
    for image in images {
        let bytes = image.read("/f").expect("it exists");
        assert!(bytes.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
    }
}

#[test]
fn sectors_tear_only_if_asked() {
    let mut process = process_on(Disk::posix().torn(1024));
    process.files.handle().write("/f", [1; 4096]).expect("it fits");
    let fd = process.open("/f", O_WRONLY).expect("it exists");
    process.write_at(fd, &[2; 4096], 0).expect("it fits");
    // Two whole versions, and each of three cuts both ways.
    assert_eq!(process.images().len(), 8);
}

#[test]
fn a_rename_is_atomic() {
    for disk in [Disk::posix(), Disk::ext4()] {
        let mut process = with_file(disk, "old");
        process.files.handle().write("/new", "new").expect("it fits");
        process.rename("/new", "/f").expect("it exists");
        let images = process.images();
        assert_eq!(images.len(), 2);
        for image in &images {
            let contents = image.read("/f").expect("one of both is there");
            assert_eq!(image.exists("/new"), contents == b"old");
        }
        process.sync_dir("/");
        assert_eq!(process.outcomes("/f"), set([Some("new")]));
    }
}

/// The classical bug: rename before fsync.
#[test]
fn a_renamed_file_can_be_empty() {
    let mut process = with_file(Disk::posix(), "old");
    let fd = process.create("/new");
    process.write(fd, b"new").expect("it fits");
    process.rename("/new", "/f").expect("it exists");
    assert_eq!(
        process.outcomes("/f"),
        set([Some("old"), Some(""), Some("\0\0\0"), Some("new")])
    );
}

#[test]
fn changes_of_entries_survive_as_any_subset_or_as_a_prefix() {
    for (disk, count) in [(Disk::posix(), 8), (Disk::ext4(), 4)] {
        let mut process = process_on(disk);
        for name in ["/a", "/b", "/c"] {
            process.create(name);
        }
        assert_eq!(process.images().len(), count);
    }
}

/// Create, remove and create again: the name has one of its versions, in order.
#[test]
fn changes_of_one_entry_survive_in_order() {
    let mut process = process_on(Disk::posix());
    process.files.handle().write("/f", "first").expect("it fits");
    process.remove("/f", false).expect("it exists");
    let fd = process.create("/f");
    process.write(fd, b"second").expect("it fits");
    process.sync(fd).expect("no faults");
    assert_eq!(process.outcomes("/f"), set([Some("first"), None, Some("second")]));
    process.sync_dir("/");
    assert_eq!(process.outcomes("/f"), set([Some("second")]));
}

/// A file that was moved into a new directory is never lost under both names.
#[test]
fn a_rename_into_a_new_directory_keeps_the_file() {
    let mut process = with_file(Disk::posix(), "data");
    process.make_dir("/d").expect("a new name");
    process.rename("/f", "/d/f").expect("it exists");
    for image in process.images() {
        assert!(image.exists("/f") != image.exists("/d/f"), "{image:?}");
    }
    process.sync_dir("/d");
    assert_eq!(process.outcomes("/d/f"), set([Some("data")]));
}

/// Renames of directories survive in order: a subset of these would put each into the other.
#[test]
fn directories_do_not_contain_themselves() {
    let mut process = process_on(Disk::posix());
    process.files.handle().write("/a/f", "a").expect("it fits");
    process.files.handle().write("/b/g", "b").expect("it fits");
    process.rename("/a", "/b/a").expect("it exists");
    process.rename("/b/a", "/c").expect("it exists");
    process.rename("/b", "/c/b").expect("it exists");
    let images = process.images();
    assert_eq!(images.len(), 4);
    for image in images {
        let both = [["/a/f", "/b/a/f", "/c/f"], ["/b/g", "/c/b/g", "/c/b/g"]];
        assert!(
            both.iter().all(|paths| paths.iter().any(|path| image.exists(path))),
            "{image:?}"
        );
    }
}

/// A removed directory comes back with its files.
#[test]
fn removals_can_be_undone() {
    let mut process = process_on(Disk::posix());
    process.files.handle().write("/d/f", "data").expect("it fits");
    process.remove("/d/f", false).expect("it exists");
    process.remove("/d", true).expect("it is empty");
    assert_eq!(process.outcomes("/d/f"), set([None, Some("data")]));
    assert_eq!(process.images().len(), 3);
    process.sync_dir("/");
    assert_eq!(process.images().len(), 1);
    let volume = process.files.volume.borrow();
    assert_eq!(volume.fs.inodes.len(), 2, "the root and /tmp");
    assert!(
        volume
            .fs
            .journal
            .as_ref()
            .is_some_and(|journal| journal.changes.is_empty())
    );
}

#[test]
fn permissions_need_more_than_a_data_sync() {
    let mut process = with_file(Disk::posix(), "data");
    let fd = process.open("/f", O_WRONLY).expect("it exists");
    let chmod = crate::sys::FileOp::SetMode {
        fd,
        path: std::ptr::null(),
        mode: 0o600,
    };
    // SAFETY: there is no path.
    unsafe { process.perform(chmod) }.expect("it is open");
    process.sync_data(fd).expect("no faults");
    assert_eq!(process.images().len(), 2);
    process.sync(fd).expect("no faults");
    assert_eq!(process.images().len(), 1);
}

#[test]
fn synchronous_writes_are_durable() {
    let mut process = with_file(Disk::posix(), "old");
    let fd = process.open("/f", O_WRONLY | O_DSYNC).expect("it exists");
    process.write(fd, b"newer").expect("it fits");
    assert_eq!(process.outcomes("/f"), set([Some("newer")]));
}

#[test]
fn truncation_is_lost_or_kept() {
    let mut process = with_file(Disk::posix(), "old");
    let fd = process.open("/f", O_WRONLY | O_CREAT | O_TRUNC).expect("it exists");
    process.write(fd, b"n").expect("it fits");
    let outcomes = process.outcomes("/f");
    assert_eq!(
        outcomes,
        set([
            Some("old"),
            Some(""),
            Some("o"),
            Some("n"),
            Some("\0"),
            Some("\0\0\0"),
            Some("n\0\0")
        ])
    );
    process.sync(fd).expect("no faults");
    assert_eq!(process.outcomes("/f"), set([Some("n")]));
}

#[test]
fn too_many_images_are_an_error() {
    let mut process = process_on(Disk::posix());
    for name in 0..20 {
        process.create(&format!("/{name}"));
    }
    let error = process.files.handle().crash_images(1000).expect_err("a million images");
    assert!(error.to_string().contains("more than 1000"), "{error}");
    let fd = process.create("/f");
    process.sync_dir("/");
    process.write(fd, &[1; 64 * 4096]).expect("it fits");
    process
        .files
        .handle()
        .crash_images(1000)
        .expect_err("2 to the 64 images");
}

/// Every random outcome is one of the enumerated ones, and each of these happens.
#[test]
fn random_losses_are_the_enumerated_images() {
    for disk in [Disk::posix(), Disk::ext4(), Disk::posix().torn(2048)] {
        let build = || {
            let mut process = with_file(disk.clone(), "old");
            let fd = process.open("/f", O_WRONLY).expect("it exists");
            process.write_at(fd, b"new", 0).expect("it fits");
            process.create("/g");
            process.rename("/g", "/h").expect("it exists");
            process.write_at(fd, b"longer", 4096).expect("it fits");
            process
        };
        let images = build().images();
        let mut met = vec![false; images.len()];
        for seed in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let mut process = build();
            process.files.power_loss(&mut Rng::from_seed(seed));
            let left = process.files.handle().image();
            let found = images.iter().position(|image| *image == left);
            met[found.unwrap_or_else(|| panic!("seed {seed} leaves {left:?}"))] = true;
            // Nothing more is lost.
            assert_eq!(process.images().len(), 1);
        }
        assert!(cfg!(miri) || met.iter().all(|&met| met), "{met:?} of {disk:?}");
    }
}

#[test]
fn a_process_crash_loses_nothing() {
    let mut process = process_on(Disk::posix());
    let fd = process.create("/f");
    process.write(fd, b"data").expect("it fits");
    let open = process.create("/removed");
    process.remove("/removed", false).expect("it exists");
    process.files.process_crash();
    assert!(process.files.open.is_empty() && fd != open);
    assert_eq!(process.files.handle().read("/f").expect("it exists"), b"data");
    assert_eq!(process.files.handle().list("/").expect("it exists").len(), 2);
}

/// A program that never syncs: the journal stays short, and what it keeps is legal. No unsafe code, and an hour under Miri.
#[cfg(not(miri))]
#[test]
fn old_changes_are_written_back() {
    for disk in [Disk::posix(), Disk::ext4()] {
        let mut process = process_on(disk);
        let fd = process.create("/log");
        for number in 0..5_000 {
            process.write(fd, b"0123456789").expect("it fits");
            let name = format!("/{number}");
            let file = process.create(&name);
            process.close(file);
            process.remove(&name, false).expect("it exists");
        }
        let volume = process.files.volume.borrow();
        let journal = volume.fs.journal.as_ref().expect("it has one");
        assert!(journal.changes.len() <= 1025, "{}", journal.changes.len());
        assert!(journal.inodes.values().all(|log| log.sizes.len() <= 1025));
        assert!(volume.fs.inodes.len() < 1100, "{}", volume.fs.inodes.len());
        drop(volume);
        process.files.power_loss(&mut Rng::from_seed(1));
        assert!(process.files.handle().read("/log").is_ok(), "it was written back");
    }
}

#[test]
fn images_can_be_loaded() {
    let mut process = with_file(Disk::posix(), "one");
    let disk = process.files.handle();
    let image = disk.image();
    let fd = process.open("/f", O_WRONLY).expect("it exists");
    process.write(fd, b"two").expect("it fits");
    disk.load(&image);
    assert_eq!(process.write(fd, b"x"), Err(libc::EIO));
    process.close(fd);
    assert_eq!(disk.read("/f").expect("it exists"), b"one");
    disk.wipe();
    assert!(!disk.exists("/f") && disk.exists("/tmp"));
    assert_eq!(process.images().len(), 1);
}
