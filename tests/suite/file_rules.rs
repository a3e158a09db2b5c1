//! The visible rules of the simulated disk, each on every driver and in a simulated world (`tests/sim` has this file too):
//! files in memory on the null driver, the kernel's on the others. So the model and the kernel cannot drift apart.

use std::io::{self, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use windlass::fs::{self, File, OpenOptions};
use windlass::os_code;

use crate::support::{everywhere, may_have_quirks};

/// A directory of its own for one body, in the loop's files.
struct Scratch(PathBuf);

impl Scratch {
    async fn new() -> Scratch {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-rules-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        if fs::try_exists(&path).await.unwrap() {
            fs::remove_dir_all(&path).await.unwrap();
        }
        fs::create_dir(&path).await.unwrap();
        Scratch(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    async fn write(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, contents.to_owned()).await.unwrap();
        path
    }
}

/// Runs a body in a directory of its own, everywhere.
fn with_scratch<F: AsyncFn(&Scratch) + Copy + Send + Sync + 'static>(body: F) {
    everywhere(move || async move {
        let scratch = Scratch::new().await;
        body(&scratch).await;
        fs::remove_dir_all(&scratch.0).await.unwrap();
        assert!(!fs::try_exists(&scratch.0).await.unwrap());
    });
}

/// The error code of a call that fails.
#[track_caller]
fn code<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => os_code(&error).expect("an error of the kernel's"),
    }
}

async fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path).await
}

#[test]
fn a_file_of_4_gib_with_two_bytes_is_sparse() {
    with_scratch(async |scratch| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(scratch.join("f"))
            .await
            .unwrap();
        file.write_all_at("a", 0).await.0.unwrap();
        file.write_all_at("z", 4 << 30).await.0.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!(metadata.len(), (4 << 30) + 1);
        assert!(metadata.blocks() <= 64, "{} blocks", metadata.blocks());
        let (result, bytes) = file.read_exact_at(vec![1; 3], (4 << 30) - 2).await;
        assert_eq!((result.unwrap(), &bytes[..]), ((), &b"\0\0z"[..]));
    });
}

#[test]
fn truncated_bytes_do_not_come_back() {
    with_scratch(async |scratch| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(scratch.join("f"))
            .await
            .unwrap();
        file.write_all_at(vec![7; 5_000], 0).await.0.unwrap();
        file.set_len(10).await.unwrap();
        file.set_len(5_000).await.unwrap();
        let bytes = fs::read(scratch.join("f")).await.unwrap();
        assert!(bytes[..10].iter().all(|&byte| byte == 7) && bytes[10..].iter().all(|&byte| byte == 0));
        assert_eq!(bytes.len(), 5_000);
    });
}

#[test]
fn an_open_file_outlives_its_names() {
    with_scratch(async |scratch| {
        let path = scratch.write("f", "still here").await;
        fs::hard_link(&path, scratch.join("g")).await.unwrap();
        let file = File::open(&path).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().nlink(), 2);
        fs::remove_file(&path).await.unwrap();
        // A file of another name takes the place of the last one.
        let other = scratch.write("other", "another").await;
        fs::rename(&other, scratch.join("g")).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().nlink(), 0);
        let (result, bytes) = file.read_exact_at(vec![0; 10], 0).await;
        assert_eq!((result.unwrap(), &bytes[..]), ((), &b"still here"[..]));
        assert_eq!(fs::read(scratch.join("g")).await.unwrap(), b"another");
    });
}

#[test]
fn appends_go_to_the_end_and_positions_are_per_open() {
    with_scratch(async |scratch| {
        let path = scratch.join("log");
        let one = OpenOptions::new().append(true).create(true).open(&path).await.unwrap();
        let other = OpenOptions::new().read(true).append(true).open(&path).await.unwrap();
        for (file, text) in [(&one, "1"), (&other, "2"), (&one, "3")] {
            file.write_all(text).await.0.unwrap();
        }
        let reader = File::open(&path).await.unwrap();
        let (result, bytes) = reader.read_exact(vec![0; 2]).await;
        assert_eq!((result.unwrap(), &bytes[..]), ((), &b"12"[..]));
        assert_eq!(reader.seek(SeekFrom::End(-1)).await.unwrap(), 2);
        let (count, bytes) = reader.read(vec![0; 9]).await;
        assert_eq!(&bytes[..count.unwrap()], b"3");
        assert_eq!(code(reader.seek(SeekFrom::Current(-9)).await), libc::EINVAL);
        assert_eq!(reader.stream_position().await.unwrap(), 3);
    });
}

#[test]
fn slices_are_read_and_written_in_order() {
    with_scratch(async |scratch| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(scratch.join("f"))
            .await
            .unwrap();
        let parts = vec![b"abc".to_vec(), b"defgh".to_vec()];
        let count = file.write_vectored_at(parts, 4_094).await.0.unwrap();
        // Fewer only on a driver with quirks, and whole slices.
        assert!(count == 8 || count == 3 && may_have_quirks(), "{count}");
        file.write_all_at(&b"abcdefgh"[count..], 4_094 + count as u64)
            .await
            .0
            .unwrap();
        let (result, parts) = file.read_vectored_at(vec![vec![0; 2], vec![0; 9]], 4_093).await;
        let count = result.unwrap();
        assert!(count == 9 || count == 2 && may_have_quirks(), "{count}");
        assert_eq!(parts.concat()[..count], b"\0abcdefgh"[..count]);
    });
}

#[test]
fn access_modes_are_checked() {
    with_scratch(async |scratch| {
        let path = scratch.write("f", "data").await;
        let reader = File::open(&path).await.unwrap();
        let writer = OpenOptions::new().write(true).open(&path).await.unwrap();
        assert_eq!(code(reader.write_at("x", 0).await.0), libc::EBADF);
        assert_eq!(code(writer.read_at(vec![0; 1], 0).await.0), libc::EBADF);
        assert_eq!(code(reader.set_len(0).await), libc::EINVAL);
        let dir = File::open(&scratch.0).await.unwrap();
        assert_eq!(code(dir.read_at(vec![0; 1], 0).await.0), libc::EISDIR);
        dir.sync_all().await.unwrap();
        assert_eq!(
            code(OpenOptions::new().write(true).open(&scratch.0).await),
            libc::EISDIR
        );
        assert_eq!(code(File::create_new(&path).await), libc::EEXIST);
        assert_eq!(code(open_with(&path, libc::O_DIRECTORY).await), libc::ENOTDIR);
        assert_eq!(code(File::open(scratch.join("f/below")).await), libc::ENOTDIR);
        assert_eq!(code(File::open(scratch.join("f/")).await), libc::ENOTDIR);
        assert_eq!(code(File::create(scratch.join("new/")).await), libc::EISDIR);
        assert_eq!(
            code(File::open(scratch.join(&"n".repeat(256))).await),
            libc::ENAMETOOLONG
        );
        assert_eq!(code(File::open("").await), libc::ENOENT);
    });
}

#[test]
fn links_are_followed_up_to_a_limit() {
    with_scratch(async |scratch| {
        fs::create_dir(scratch.join("d")).await.unwrap();
        scratch.write("d/f", "data").await;
        fs::symlink("d", scratch.join("link")).await.unwrap();
        fs::symlink("loop", scratch.join("loop")).await.unwrap();
        fs::symlink("nowhere", scratch.join("broken")).await.unwrap();
        assert_eq!(fs::read(scratch.join("link/f")).await.unwrap(), b"data");
        assert_eq!(code(fs::metadata(scratch.join("loop")).await), libc::ELOOP);
        assert_eq!(
            code(open_with(&scratch.join("link"), libc::O_NOFOLLOW).await),
            libc::ELOOP
        );
        assert_eq!(fs::read_link(scratch.join("link")).await.unwrap(), Path::new("d"));
        assert_eq!(code(fs::read_link(scratch.join("d")).await), libc::EINVAL);
        let real = fs::canonicalize(scratch.join("link/../link/f")).await.unwrap();
        assert_eq!(real, fs::canonicalize(&scratch.0).await.unwrap().join("d/f"));
        assert_eq!(code(fs::canonicalize(scratch.join("broken")).await), libc::ENOENT);
        // Creating through a broken link creates its target.
        File::create(scratch.join("broken")).await.unwrap();
        assert!(fs::metadata(scratch.join("nowhere")).await.unwrap().is_file());
        for number in 0..41 {
            let target = if number == 0 {
                "d/f".to_owned()
            } else {
                format!("chain{}", number - 1)
            };
            fs::symlink(target, scratch.join(&format!("chain{number}")))
                .await
                .unwrap();
        }
        fs::metadata(scratch.join("chain39")).await.unwrap();
        assert_eq!(code(fs::metadata(scratch.join("chain40")).await), libc::ELOOP);
    });
}

#[test]
fn renames_replace_what_may_be_replaced() {
    with_scratch(async |scratch| {
        let file = scratch.write("file", "data").await;
        let (empty, full) = (scratch.join("empty"), scratch.join("full"));
        fs::create_dir(&empty).await.unwrap();
        fs::create_dir(&full).await.unwrap();
        scratch.write("full/inner", "inner").await;
        assert_eq!(code(fs::rename(&file, &empty).await), libc::EISDIR);
        assert_eq!(code(fs::rename(&empty, &file).await), libc::ENOTDIR);
        assert_eq!(code(fs::rename(&empty, &full).await), libc::ENOTEMPTY);
        assert_eq!(code(fs::rename(&full, full.join("below")).await), libc::EINVAL);
        assert_eq!(code(fs::rename(&file, scratch.join("new/")).await), libc::ENOTDIR);
        assert_eq!(code(fs::rename(full.join("."), scratch.join("new")).await), libc::EBUSY);
        assert_eq!(code(fs::rename(scratch.join("missing"), &file).await), libc::ENOENT);
        fs::rename(&full, &empty).await.unwrap();
        assert_eq!(fs::read(empty.join("inner")).await.unwrap(), b"inner");
        // Two names of one file: nothing happens.
        fs::hard_link(&file, scratch.join("same")).await.unwrap();
        fs::rename(&file, scratch.join("same")).await.unwrap();
        assert_eq!(fs::metadata(&file).await.unwrap().nlink(), 2);
        assert_eq!(code(fs::hard_link(&empty, scratch.join("x")).await), libc::EPERM);
        assert_eq!(code(fs::remove_dir(&empty).await), libc::ENOTEMPTY);
        assert_eq!(code(fs::remove_dir(&file).await), libc::ENOTDIR);
        assert_eq!(code(fs::remove_file(&empty).await), libc::EISDIR);
        assert_eq!(code(fs::create_dir(&empty).await), libc::EEXIST);
    });
}

#[test]
fn modes_are_kept_and_reported() {
    with_scratch(async |scratch| {
        let path = scratch.write("f", "data").await;
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640))
            .await
            .unwrap();
        assert_eq!(fs::metadata(&path).await.unwrap().mode(), 0o100_640);
        let file = File::open(&path).await.unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o4755))
            .await
            .unwrap();
        assert_eq!(file.metadata().await.unwrap().mode(), 0o104_755);
        fs::symlink("f", scratch.join("link")).await.unwrap();
        assert_eq!(
            fs::symlink_metadata(scratch.join("link")).await.unwrap().mode(),
            0o120_777
        );
        // A copy has the permissions of its source.
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .await
            .unwrap();
        assert_eq!(fs::copy(&path, scratch.join("copy")).await.unwrap(), 4);
        assert_eq!(fs::metadata(scratch.join("copy")).await.unwrap().mode(), 0o100_600);
    });
}

#[test]
fn directories_list_their_entries() {
    with_scratch(async |scratch| {
        for number in 0..300 {
            scratch.write(&format!("{number}"), "").await;
        }
        fs::create_dir(scratch.join("dir")).await.unwrap();
        fs::symlink("dir", scratch.join("link")).await.unwrap();
        let mut entries = fs::read_dir(&scratch.0).await.unwrap();
        let mut names = std::collections::BTreeMap::new();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            names.insert(
                entry.file_name().into_string().unwrap(),
                entry.file_type().await.unwrap(),
            );
        }
        assert_eq!(names.len(), 302);
        assert!(names["dir"].is_dir() && names["link"].is_symlink() && names["299"].is_file());
        assert_eq!(code(fs::read_dir(scratch.join("7")).await), libc::ENOTDIR);
        assert_eq!(code(fs::read_dir(scratch.join("missing")).await), libc::ENOENT);
    });
}

#[test]
fn times_follow_the_changes() {
    with_scratch(async |scratch| {
        let path = scratch.write("f", "data").await;
        let before = fs::metadata(&path).await.unwrap();
        assert!(before.created().unwrap() <= before.modified().unwrap());
        // The kernel's clock for files has steps of milliseconds.
        let is_later = async || {
            fs::write(&path, "more").await.unwrap();
            fs::metadata(&path).await.unwrap().modified().unwrap() > before.modified().unwrap()
        };
        while !is_later().await {}
        assert_eq!(
            fs::metadata(&path).await.unwrap().created().unwrap(),
            before.created().unwrap()
        );
    });
}

#[test]
fn reserved_space_extends_a_file() {
    with_scratch(async |scratch| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(scratch.join("f"))
            .await
            .unwrap();
        if let Err(error) = file.allocate(4_096, 8_192).await {
            assert_eq!(os_code(&error), Some(libc::EOPNOTSUPP), "{error}");
            println!("-- SKIPPED: the file system cannot reserve space");
            return;
        }
        let metadata = file.metadata().await.unwrap();
        assert_eq!(metadata.len(), 12_288);
        assert!(metadata.blocks() >= 16, "{}", metadata.blocks());
        assert_eq!(code(file.allocate(0, 0).await), libc::EINVAL);
    });
}

/// Random writes and reads of a large file, also through the calls that work on whole files.
#[test]
fn contents_are_what_was_written() {
    with_scratch(async |scratch| {
        let path = scratch.join("f");
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(31) >> 7) as u8).collect();
        fs::write(&path, bytes.clone()).await.unwrap();
        assert!(fs::read(&path).await.unwrap() == bytes);
        assert_eq!(fs::copy(&path, scratch.join("copy")).await.unwrap(), 300_000);
        assert!(fs::read(scratch.join("copy")).await.unwrap() == bytes);
        let mut scan = File::open(&path).await.unwrap().scan();
        let mut scanned = Vec::new();
        while let Some(chunk) = scan.next().await {
            let chunk = chunk.unwrap();
            scanned.extend_from_slice(&chunk);
        }
        assert!(scanned == bytes);
        let synced = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DSYNC)
            .open(&path)
            .await
            .unwrap();
        synced.write_all_at("new", 299_999).await.0.unwrap();
        synced.sync_all().await.unwrap();
        synced.sync_data().await.unwrap();
        assert_eq!(fs::metadata(&path).await.unwrap().len(), 300_002);
    });
}
