//! The rules of calls without crashes that random calls do not cover.

use libc::{EBADF, EFBIG, EINVAL, EIO, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};
use libc::{O_APPEND, O_CREAT, O_DIRECTORY, O_NOFOLLOW, O_RDONLY, O_RDWR, O_WRONLY};

use super::Process;
use crate::sys::{CURRENT, DIRECT, FileOp, IoVec};

/// A file of 4 GiB with two bytes takes two sectors.
#[test]
fn contents_are_sparse() {
    let mut process = Process::new();
    let fd = process.create("/f");
    process.write_at(fd, b"a", 0).expect("it fits");
    process.write_at(fd, b"z", 4 << 30).expect("it fits");
    let stat = process.stat("/f", true).expect("it exists");
    assert_eq!((stat.len(), stat.blocks()), ((4 << 30) + 1, 16));
    assert_eq!(process.read_at(fd, 3, (4 << 30) - 2).expect("readable"), b"\0\0z");
    process.truncate(fd, 1).expect("writable");
    process.truncate(fd, 4 << 30).expect("writable");
    let stat = process.stat_file(fd).expect("it is open");
    assert_eq!((stat.len(), stat.blocks()), (4 << 30, 8));
    assert_eq!(process.read_at(fd, 3, 0).expect("readable"), b"a\0\0");
}

/// Bytes beyond the end are zero after the file was truncated and extended, also within a sector.
#[test]
fn truncating_erases() {
    let mut process = Process::new();
    let fd = process.create("/f");
    process.write_at(fd, &[7; 5000], 0).expect("it fits");
    process.truncate(fd, 10).expect("writable");
    process.truncate(fd, 5000).expect("writable");
    let bytes = process.read_at(fd, 5000, 0).expect("readable");
    assert!(bytes[..10].iter().all(|&byte| byte == 7) && bytes[10..].iter().all(|&byte| byte == 0));
}

#[test]
fn an_open_file_outlives_its_names() {
    let mut process = Process::new();
    let fd = process.create("/f");
    process.write(fd, b"still here").expect("it fits");
    process.hard_link("/f", "/g").expect("a new name");
    process.remove("/f", false).expect("it exists");
    assert_eq!(process.stat_file(fd).expect("it is open").links(), 1);
    process.rename("/g", "/h").expect("it exists");
    process.remove("/h", false).expect("it exists");
    assert_eq!(process.stat("/h", true).map(drop), Err(ENOENT));
    assert_eq!(process.stat_file(fd).expect("it is open").links(), 0);
    assert_eq!(process.read_at(fd, 100, 0).expect("readable"), b"still here");
    let inodes = process.files.volume.borrow().fs.inodes.len();
    process.close(fd);
    assert_eq!(process.files.volume.borrow().fs.inodes.len(), inodes - 1);
    assert_eq!(process.read_at(fd, 1, 0), Err(EBADF));
}

#[test]
fn appends_go_to_the_end() {
    let mut process = Process::new();
    let one = process
        .open("/log", O_WRONLY | O_CREAT | O_APPEND)
        .expect("it can be created");
    let other = process.open("/log", O_RDWR | O_APPEND).expect("it exists");
    process.write(one, b"1").expect("it fits");
    process.write(other, b"2").expect("it fits");
    process.write(one, b"3").expect("it fits");
    // As on Linux, an offset makes no difference.
    process.write_at(other, b"4", 0).expect("it fits");
    assert_eq!(process.read_at(other, 10, 0).expect("readable"), b"1234");
    assert_eq!(process.read_at(other, 10, CURRENT).expect("readable"), b"34");
}

#[test]
fn slices_are_used_in_order() {
    let mut process = Process::new();
    let fd = process.create("/f");
    let (mut one, mut other) = (*b"abc", *b"defgh");
    let slices = |one: &mut [u8], other: &mut [u8]| {
        [
            IoVec {
                base: one.as_mut_ptr(),
                len: one.len(),
            },
            IoVec::EMPTY,
            IoVec {
                base: other.as_mut_ptr(),
                len: other.len(),
            },
        ]
    };
    let list = slices(&mut one, &mut other);
    let op = FileOp::WriteVectoredAt {
        fd,
        slices: list.as_ptr(),
        count: list.len(),
        offset: 4094,
    };
    // SAFETY: the slices and their bytes live until the call has returned.
    assert_eq!(unsafe { process.perform(op) }, Ok(8));
    let (mut one, mut other) = ([0; 2], [0; 9]);
    let list = slices(&mut one, &mut other);
    let op = FileOp::ReadVectoredAt {
        fd,
        slices: list.as_ptr(),
        count: list.len(),
        offset: 4093,
    };
    // SAFETY: as above.
    assert_eq!(unsafe { process.perform(op) }, Ok(9));
    assert_eq!((&one, &other), (b"\0a", b"bcdefgh\0\0"));
}

#[test]
fn direct_io_is_aligned() {
    let Some(direct) = DIRECT else { return };
    let mut process = Process::new();
    let fd = process
        .open("/f", O_RDWR | O_CREAT | direct)
        .expect("it can be created");
    let memory = vec![7_u8; 3 * 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    assert_eq!(process.write_at(fd, &memory[aligned..aligned + 4096], 4096), Ok(4096));
    assert_eq!(process.write_at(fd, &memory[aligned..aligned + 4096], 512), Err(EINVAL));
    assert_eq!(process.write_at(fd, &memory[aligned..aligned + 512], 0), Err(EINVAL));
    assert_eq!(
        process.write_at(fd, &memory[aligned + 1..aligned + 4097], 0),
        Err(EINVAL)
    );
}

#[test]
fn access_modes_are_checked() {
    let mut process = Process::new();
    let fd = process.create("/f");
    let reader = process.open("/f", O_RDONLY).expect("it exists");
    let writer = process.open("/f", O_WRONLY).expect("it exists");
    assert_eq!(process.write(reader, b"x"), Err(EBADF));
    assert_eq!(process.read_at(writer, 1, 0), Err(EBADF));
    assert_eq!(process.truncate(reader, 0), Err(EINVAL));
    assert_eq!(process.allocate(reader, 0, 1), Err(EBADF));
    assert_eq!(process.truncate(fd, u64::MAX), Err(EINVAL));
    assert_eq!(process.allocate(fd, 0, 0), Err(EINVAL));
    assert_eq!(process.allocate(fd, i64::MAX as u64, 2), Err(EFBIG));
    assert_eq!(process.read_at(fd, 1, u64::MAX - 1), Err(EINVAL));
    let dir = process.open("/", O_RDONLY | O_DIRECTORY).expect("it exists");
    assert_eq!(process.read_at(dir, 1, 0), Err(EISDIR));
    assert_eq!(process.sync(dir), Ok(0));
}

#[test]
fn links_are_followed_and_counted() {
    let mut process = Process::new();
    process.make_dir("/d").expect("a new name");
    process.create("/d/f");
    process.symlink("d", "/link").expect("a new name");
    process.symlink("loop", "/loop").expect("a new name");
    assert!(process.stat("/link/f", true).is_ok());
    assert_eq!(process.stat("/loop", true).map(drop), Err(ELOOP));
    assert_eq!(process.open("/link", O_RDONLY | O_NOFOLLOW), Err(ELOOP));
    assert_eq!(process.open("/link", O_RDONLY | O_NOFOLLOW | O_DIRECTORY), Err(ENOTDIR));
    assert_eq!(process.hard_link("/d", "/e"), Err(EPERM));
    assert_eq!(process.remove("/d", true), Err(ENOTEMPTY));
    // A chain of 40 links is followed, one of 41 is not.
    for number in 0..41 {
        let target = if number == 0 {
            "d/f".to_owned()
        } else {
            format!("/chain{}", number - 1)
        };
        process
            .symlink(&target, &format!("/chain{number}"))
            .expect("a new name");
    }
    assert!(process.stat("/chain39", true).is_ok());
    assert_eq!(process.stat("/chain40", true).map(drop), Err(ELOOP));
    let fs = &process.files.volume.borrow().fs;
    assert_eq!(fs.real_path(b"/link/../link/f"), Ok(b"/d/f".to_vec()));
    assert_eq!(
        (fs.real_path(b"//"), fs.real_path(b"/chain3")),
        (Ok(b"/".to_vec()), Ok(b"/d/f".to_vec()))
    );
    assert_eq!(fs.real_path(b"/chain3/"), Err(ENOTDIR));
    assert_eq!(fs.read_link(b"/d"), Err(EINVAL));
}

/// The parent of the current directory can be removed after it.
#[test]
fn a_removed_directory_is_empty() {
    let mut process = Process::new();
    process.files.volume.borrow_mut().fs.enter(b"/a/b");
    process.create("f");
    assert!(process.stat("/a/b/f", true).is_ok());
    process.remove("f", false).expect("it exists");
    process.remove("/a/b", true).expect("it is empty");
    process.remove("/a", true).expect("it is empty");
    assert_eq!(process.open("f", O_WRONLY | O_CREAT), Err(ENOENT));
    assert_eq!(process.stat("..", true).map(drop), Err(ENOENT));
    assert_eq!(process.stat("../x", true).map(drop), Err(ENOENT));
    assert!(process.stat(".", true).is_ok());
}

#[test]
fn times_are_the_callers() {
    let mut process = Process::new();
    let fd = process.create("/f");
    let created = process.now;
    process.write(fd, b"x").expect("it fits");
    let modified = process.now;
    process.read_at(fd, 1, 0).expect("readable");
    let accessed = process.now;
    process.read_at(fd, 1, 0).expect("readable");
    let stat = process.stat_file(fd).expect("it is open");
    assert_eq!(
        (stat.created(), stat.modified(), stat.accessed()),
        (Some(created), modified, accessed)
    );
}

#[test]
fn reserved_space_counts() {
    let mut process = Process::new();
    process.files.volume.borrow_mut().fs.capacity = (4, libc::ENOSPC);
    let fd = process.create("/f");
    assert_eq!(process.allocate(fd, 0, 5 * 4096), Err(libc::ENOSPC));
    assert_eq!(process.allocate(fd, 0, 3 * 4096), Ok(0));
    assert_eq!(process.stat_file(fd).expect("it is open").len(), 3 * 4096);
    let other = process.create("/g");
    // Short, then full: one sector is left.
    assert_eq!(process.write_at(other, &[1; 9000], 0), Ok(4096));
    assert_eq!(process.write_at(other, &[1; 9000], 4096), Err(libc::ENOSPC));
    assert_eq!(process.write_at(fd, &[1; 3 * 4096], 0), Ok(3 * 4096));
    process.truncate(fd, 0).expect("writable");
    assert_eq!(process.write_at(other, &[1; 3 * 4096], 4096), Ok(3 * 4096));
    process.close(other);
    process.remove("/g", false).expect("it exists");
    assert_eq!(process.files.volume.borrow().fs.used, 0);
}

/// A file that was open when the disk was replaced.
#[test]
fn files_of_a_replaced_disk_fail() {
    let mut process = Process::new();
    let fd = process.create("/f");
    process.files.volume.borrow_mut().generation += 1;
    assert_eq!(
        (process.write(fd, b"x"), process.read_at(fd, 1, 0)),
        (Err(EIO), Err(EIO))
    );
    process.close(fd);
}
