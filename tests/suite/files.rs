//! `File`: every call behaves as std's does.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;

use windlass::fs::{File, OpenOptions};

#[cfg(unix)]
use crate::bytes::Huge;
use crate::bytes::{assert_filled_in_order, numbered};
use crate::support::{
    Case, FileExt, Folder, Random, assert_same, codes, is_wine, on_every_driver, on_every_kernel_driver, read_vectored,
    rounds, write_vectored,
};

/// read, write, append
const MODES: [[bool; 3]; 4] = [
    [true, true, false],
    [true, false, true],
    [true, false, false],
    [false, true, false],
];

/// Miri sometimes makes short reads and writes; a kernel does so only when it must.
fn short_counts() -> bool {
    cfg!(miri)
}

/// A random sequence of calls has the same results and contents as with std.
#[test]
fn random_calls_behave_as_in_std() {
    on_every_driver(|case| {
        if short_counts() {
            return;
        }
        for (number, mode) in MODES.into_iter().enumerate() {
            if mode[2] && is_wine() {
                println!("-- SKIPPED: Wine ignores append mode in positional writes");
                continue;
            }
            case.run(run_random_calls(number as u64 + 1, mode));
        }
    });
}

async fn run_random_calls(seed: u64, [read, write, append]: [bool; 3]) {
    let folder = Folder::new();
    let begin = numbered(3_000);
    let (our_path, their_path) = (folder.file("ours", &begin), folder.file("theirs", &begin));
    let mut options = OpenOptions::new();
    let ours = options.read(read).write(write).append(append).open(&our_path);
    let ours = ours.await.unwrap();
    let mut options = std::fs::OpenOptions::new();
    let theirs = options.read(read).write(write).append(append).open(&their_path);
    let theirs = theirs.unwrap();
    let mut random = Random::new(seed);
    for round in 0..rounds() / 2 {
        let step = random.below(16);
        let what = (round, step, read, write, append);
        one_step(step, &mut random, &ours, &theirs, what).await;
        let position = (&theirs).stream_position();
        assert_same(what, ours.stream_position().await, position);
        let (our, their) = (std::fs::read(&our_path).unwrap(), std::fs::read(&their_path).unwrap());
        assert!(our == their, "the contents differ after {what:?}");
    }
}

async fn one_step<W: std::fmt::Debug>(
    step: u64,
    random: &mut Random,
    ours: &File,
    mut theirs: &std::fs::File,
    what: W,
) {
    let offset = random.below(6_000);
    let len = 1 + random.below(1_500) as usize;
    let start = random.below(4_099) as usize;
    let bytes = numbered(start + len).split_off(start);
    let mut room = vec![0; len];
    match step {
        0 | 1 => {
            let (result, buf) = ours.read_at(vec![0; len], offset).await;
            let result = result.map(|count| buf[..count].to_vec());
            let their = theirs.read_at(&mut room, offset);
            assert_same(what, result, their.map(|count| room[..count].to_vec()));
        }
        2 => {
            let (result, buf) = ours.write_at(bytes.clone(), offset).await;
            assert!(buf == bytes, "the buffer is returned");
            assert_same(what, result, theirs.write_at(&bytes, offset));
        }
        3 | 4 => {
            let (result, buf) = ours.read(vec![0; len]).await;
            let result = result.map(|count| buf[..count].to_vec());
            let their = theirs.read(&mut room);
            assert_same(what, result, their.map(|count| room[..count].to_vec()));
        }
        5 => assert_same(what, ours.write(bytes.clone()).await.0, theirs.write(&bytes)),
        6 => assert_same(what, ours.write_all(bytes.clone()).await.0, theirs.write_all(&bytes)),
        7 => assert_same(what, ours.set_len(offset).await, theirs.set_len(offset)),
        8 | 9 => {
            let by = random.below(4_000) as i64 - 2_000;
            let to = match random.below(3) {
                0 => SeekFrom::Start(offset),
                1 => SeekFrom::Current(by),
                _ => SeekFrom::End(by),
            };
            assert_same(what, ours.seek(to).await, theirs.seek(to));
        }
        10 => {
            let (result, buf) = ours.read_exact_at(vec![0; len], offset).await;
            assert_eq!(buf.len(), len);
            let their = theirs.read_exact_at(&mut room, offset);
            assert_same(what, result.map(|()| buf), their.map(|()| room));
        }
        11 => {
            let their = theirs.write_all_at(&bytes, offset);
            assert_same(what, ours.write_all_at(bytes, offset).await.0, their);
        }
        12 => match random.below(2) {
            0 => assert_same(what, ours.sync_all().await, theirs.sync_all()),
            _ => assert_same(what, ours.sync_data().await, theirs.sync_data()),
        },
        13 => {
            let half = len / 2;
            let (result, bufs) = ours.read_vectored(vec![vec![1; half], vec![2; len - half]]).await;
            if let Ok(count) = result {
                assert_filled_in_order(&bufs, count);
            }
            let (one, two) = room.split_at_mut(half);
            let their = read_vectored(theirs, &mut [IoSliceMut::new(one), IoSliceMut::new(two)]);
            let their = their.map(|count| room[..count].to_vec());
            assert_same(what, result.map(|_| bufs.concat()), their);
        }
        14 => {
            let half = len / 2;
            let parts = vec![bytes[..half].to_vec(), bytes[half..].to_vec()];
            let their = write_vectored(theirs, &[IoSlice::new(&parts[0]), IoSlice::new(&parts[1])]);
            assert_same(what, ours.write_vectored(parts).await.0, their);
        }
        _ => {
            let half = len / 2;
            let parts = vec![bytes[..half].to_vec(), bytes[half..].to_vec()];
            if random.below(2) == 0 {
                let their = theirs.write_at(&bytes, offset);
                return assert_same(what, ours.write_vectored_at(parts, offset).await.0, their);
            }
            let (result, bufs) = ours.read_vectored_at(parts, offset).await;
            if let Ok(count) = result {
                assert_filled_in_order(&bufs, count);
            }
            let their = theirs.read_at(&mut room, offset);
            let their = their.map(|count| room[..count].to_vec());
            assert_same(what, result.map(|_| bufs.concat()), their);
        }
    }
}

/// All combinations of options, on an existing file, a missing one, and a folder.
#[test]
fn open_options_behave_as_in_std() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let step = if cfg!(miri) { 5 } else { 1 };
            for bits in (0..64u32).step_by(step) {
                let is_on = |bit: u32| bits & (1 << bit) != 0;
                let mut ours = OpenOptions::new();
                ours.read(is_on(0)).write(is_on(1)).append(is_on(2));
                ours.truncate(is_on(3)).create(is_on(4)).create_new(is_on(5));
                let mut theirs = std::fs::OpenOptions::new();
                theirs.read(is_on(0)).write(is_on(1)).append(is_on(2));
                theirs.truncate(is_on(3)).create(is_on(4)).create_new(is_on(5));

                let (our_path, their_path) = (folder.file("ours", "hello"), folder.file("theirs", "hello"));
                let opened = ours.open(&our_path).await;
                assert_same(bits, opened.map(drop), theirs.open(&their_path).map(drop));
                assert_eq!(std::fs::read(&our_path).unwrap(), std::fs::read(&their_path).unwrap());

                std::fs::remove_file(&our_path).unwrap();
                std::fs::remove_file(&their_path).unwrap();
                let opened = ours.open(&our_path).await;
                assert_same(bits, opened.map(drop), theirs.open(&their_path).map(drop));
                assert_eq!(our_path.exists(), their_path.exists(), "{bits:b}");

                let opened = ours.open(folder.path()).await;
                assert_same(bits, opened.map(drop), theirs.open(folder.path()).map(drop));
                let _ = std::fs::remove_file(&our_path);
                let _ = std::fs::remove_file(&their_path);
            }
        });
    });
}

#[cfg(unix)]
#[test]
fn new_files_have_the_permissions_of_std() {
    on_every_driver(|case| {
        case.run(async {
            use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
            let folder = Folder::new();
            let permissions = |name: &str| std::fs::metadata(folder.join(name)).unwrap().permissions().mode();
            File::create(folder.join("a")).await.unwrap();
            std::fs::File::create(folder.join("b")).unwrap();
            assert_eq!(permissions("a"), permissions("b"));
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(0o640);
            options.open(folder.join("c")).await.unwrap();
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o640);
            options.open(folder.join("d")).unwrap();
            assert_eq!(permissions("c"), permissions("d"));

            let opened = File::create_new(folder.join("a")).await;
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::AlreadyExists);
            let flags = libc::O_NOFOLLOW;
            std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(folder.join("link"))
                .await;
            let mut options = std::fs::OpenOptions::new();
            let theirs = options.read(true).custom_flags(flags).open(folder.join("link"));
            assert_same("a link", opened.map(drop), theirs.map(drop));
        });
    });
}

/// A std file converts to ours and back, with its position and append mode.
#[test]
fn files_convert_from_std_and_back() {
    on_every_driver(|case| {
        if short_counts() {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", "0123456789");
            let mut theirs = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            theirs.seek(SeekFrom::Start(3)).unwrap();
            let ours = File::from_std(theirs);
            assert_eq!(ours.stream_position().await.unwrap(), 3);
            let (result, buf) = ours.read(vec![0; 2]).await;
            assert_eq!((result.unwrap(), &buf[..]), (2, &b"34"[..]));
            let mut theirs = ours.into_std().unwrap();
            assert_eq!(theirs.stream_position().unwrap(), 5);
            let mut rest = String::new();
            theirs.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "56789");

            // Append mode is kept, and the position is known.
            let theirs = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
            let ours = File::from_std(theirs);
            ours.write_all("ab").await.0.unwrap();
            assert_eq!(ours.stream_position().await.unwrap(), 12);
            assert_eq!(std::fs::read(&path).unwrap(), b"0123456789ab");
        });
    });
}

#[test]
fn metadata_matches_std() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", "hello");
            std::fs::hard_link(&path, folder.join("b")).unwrap();
            let names = known_names(&folder);
            std::fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(20_000)
                .unwrap();
            for name in names {
                let path = folder.join(name);
                assert_metadata(&windlass::fs::metadata(&path).await.unwrap(), &path, true);
                assert_metadata(&windlass::fs::symlink_metadata(&path).await.unwrap(), &path, false);
                let file = File::open(&path).await.unwrap();
                assert_metadata(&file.metadata().await.unwrap(), &path, true);
            }
            if cfg!(target_os = "linux") && !cfg!(miri) {
                for path in ["/dev/null", "/proc/self/status"] {
                    assert_metadata(&windlass::fs::metadata(path).await.unwrap(), Path::new(path), true);
                }
            }
        });
    });
}

fn assert_metadata(ours: &windlass::fs::Metadata, path: &Path, follow: bool) {
    let theirs = match follow {
        true => std::fs::metadata(path).unwrap(),
        false => std::fs::symlink_metadata(path).unwrap(),
    };
    assert_eq!(ours.len(), theirs.len());
    assert_eq!(
        [ours.is_file(), ours.is_dir(), ours.is_symlink()],
        [theirs.is_file(), theirs.is_dir(), theirs.is_symlink()]
    );
    // The kernel generates the times of these files on each call.
    if !path.starts_with("/proc") {
        assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
        assert_eq!(ours.accessed().unwrap(), theirs.accessed().unwrap());
        assert_same("created", ours.created(), theirs.created());
    }
    if cfg!(miri) {
        // Miri invents these.
        return;
    }
    assert_eq!(ours.permissions(), theirs.permissions());
    assert_same_to_the_system(ours, &theirs);
}

/// The names to query: files, also a link where any user may create one, and the folder where it can be opened.
#[cfg(unix)]
fn known_names(folder: &Folder) -> &'static [&'static str] {
    std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
    // In Miri a folder has no position.
    if cfg!(miri) {
        &["a", "b", "link"]
    } else {
        &["a", "b", "link", "."]
    }
}

#[cfg(windows)]
fn known_names(_folder: &Folder) -> &'static [&'static str] {
    &["a", "b"]
}

#[cfg(unix)]
fn assert_same_to_the_system(ours: &windlass::fs::Metadata, theirs: &std::fs::Metadata) {
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        [ours.dev(), ours.ino(), ours.nlink(), ours.blocks(), ours.blksize()],
        [
            theirs.dev(),
            theirs.ino(),
            theirs.nlink(),
            theirs.blocks(),
            theirs.blksize()
        ]
    );
    assert_eq!(
        [ours.uid(), ours.gid(), ours.mode()],
        [theirs.uid(), theirs.gid(), theirs.mode()]
    );
}

#[cfg(windows)]
fn assert_same_to_the_system(_ours: &windlass::fs::Metadata, _theirs: &std::fs::Metadata) {}

/// Reading into an empty buffer is an error, not EOF; writing an empty buffer writes nothing.
#[test]
fn an_empty_buffer_is_not_the_end_of_a_file() {
    on_every_driver(|case| {
        if short_counts() {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", "hello");
            let file = OpenOptions::new().read(true).write(true).open(&path).await.unwrap();
            let kinds = [
                file.read(Vec::new()).await.0.unwrap_err().kind(),
                file.read_at(Vec::new(), 2).await.0.unwrap_err().kind(),
                file.read_at([0; 0], 9).await.0.unwrap_err().kind(),
                file.read_vectored(vec![Vec::new(); 3]).await.0.unwrap_err().kind(),
                file.read_vectored_at(Vec::<Vec<u8>>::new(), 0)
                    .await
                    .0
                    .unwrap_err()
                    .kind(),
                file.read_exact_at(Vec::with_capacity(9), 0).await.0.unwrap_err().kind(),
            ];
            assert_eq!(kinds, [ErrorKind::InvalidInput; 6]);
            file.read_exact_at(Vec::new(), 100).await.0.unwrap();
            assert_eq!(file.write("").await.0.unwrap(), 0);
            assert_eq!(file.write_at("", 1_000).await.0.unwrap(), 0);
            file.write_all("").await.0.unwrap();
            file.write_all_at("", 1_000).await.0.unwrap();
            assert_eq!(file.write_vectored(vec!["", ""]).await.0.unwrap(), 0);
            assert_eq!(file.write_vectored_at(Vec::<Vec<u8>>::new(), 1_000).await.0.unwrap(), 0);
            assert_eq!(file.stream_position().await.unwrap(), 0);
            assert_eq!(std::fs::read(&path).unwrap(), b"hello");
            assert_eq!(file.read(vec![0; 9]).await.0.unwrap(), 5);
            assert_eq!(file.read(vec![0; 9]).await.0.unwrap(), 0);
        });
    });
}

/// A `Vec` gets the length of what was read, from its start, and keeps its allocation.
#[test]
fn file_buffers_are_returned_with_the_right_length() {
    on_every_driver(|case| {
        if short_counts() {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", "hello world");
            let file = File::open(&path).await.unwrap();
            let mut buf = Vec::with_capacity(5);
            buf.push(9);
            let at = buf.as_ptr();
            let (result, buf) = file.read_at(buf, 6).await;
            assert_eq!((result.unwrap(), &buf[..], buf.as_ptr()), (5, &b"world"[..], at));
            let mut buf = Vec::with_capacity(100);
            buf.extend([0; 4]);
            let (result, buf) = file.read_exact_at(buf, 1).await;
            result.unwrap();
            assert_eq!((&buf[..], buf.capacity()), (&b"ello"[..], 100));
            let (result, buf) = file.read_exact_at(vec![7; 9], 6).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(buf.len(), 9);
            let (result, buf) = file.read(vec![1, 2, 3]).await;
            assert_eq!((result.unwrap(), &buf[..]), (3, &b"hel"[..]));
        });
    });
}

/// As std; but a seek before the start is `InvalidInput` also where the system has another code for it.
fn assert_same_seek(what: impl std::fmt::Debug, ours: std::io::Result<u64>, theirs: std::io::Result<u64>) {
    match (&ours, &theirs) {
        (Err(our), Err(_)) if cfg!(windows) => assert_eq!(our.kind(), ErrorKind::InvalidInput, "{what:?}"),
        _ => assert_same(what, ours, theirs),
    }
}

/// Offsets near the numeric limits are errors, as in std. None of them means "the current position".
#[test]
fn offsets_beyond_the_limit_are_errors() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let (our_path, their_path) = (folder.file("ours", "hello"), folder.file("theirs", "hello"));
            let ours = OpenOptions::new().read(true).write(true).open(&our_path).await.unwrap();
            let theirs = std::fs::File::options()
                .read(true)
                .write(true)
                .open(&their_path)
                .unwrap();
            let end = i64::MAX as u64;
            let beyond = [u64::MAX, u64::MAX - 1, u64::MAX - 8, end + 1];
            // On Windows, and so in std there, the first means the end of the file and the second the current position.
            let beyond = &beyond[if cfg!(windows) { 2 } else { 0 }..];
            // Miri passes valid offsets to the host system, which may accept them.
            let within = [end, end - 3, end - 8];
            let all = beyond.iter().chain(within.iter().filter(|_| !cfg!(miri)));
            for &offset in all {
                let what = format!("at {offset:#x}");
                let mut room = [0; 4];
                assert_same(
                    &what,
                    ours.read_at([0; 4], offset).await.0,
                    theirs.read_at(&mut room, offset),
                );
                assert_same(
                    &what,
                    ours.write_at("abcd", offset).await.0,
                    theirs.write_at(b"abcd", offset),
                );
                let their = theirs.read_exact_at(&mut room, offset);
                assert_same(&what, ours.read_exact_at([0; 4], offset).await.0, their);
                let their = theirs.write_all_at(b"abcd", offset);
                assert_same(&what, ours.write_all_at("abcd", offset).await.0, their);
                assert_same(&what, ours.set_len(offset).await, theirs.set_len(offset));
                let (our, their) = (
                    ours.seek(SeekFrom::Start(offset)).await,
                    (&theirs).seek(SeekFrom::Start(offset)),
                );
                assert_same_seek(&what, our, their);
                ours.seek(SeekFrom::Start(0)).await.unwrap();
                (&theirs).seek(SeekFrom::Start(0)).unwrap();
                if cfg!(miri) {
                    continue;
                }
                if cfg!(windows) {
                    // Windows has no such call: the slices are read and written one by one.
                    continue;
                }
                let read = ours.read_vectored_at(vec![[0; 2]; 2], offset).await.0;
                assert_same(&what, read, theirs.read_at(&mut room, offset));
                let written = ours.write_vectored_at(vec!["ab", "cd"], offset).await.0;
                assert_same(&what, written, theirs.write_at(b"abcd", offset));
            }
            for by in [i64::MIN, -1, i64::MAX] {
                for to in [SeekFrom::Current(by), SeekFrom::End(by)] {
                    assert_same_seek(to, ours.seek(to).await, (&theirs).seek(to));
                    ours.seek(SeekFrom::Start(0)).await.unwrap();
                    (&theirs).seek(SeekFrom::Start(0)).unwrap();
                }
            }
            assert_eq!(std::fs::read(&our_path).unwrap(), b"hello");
        });
    });
}

/// Lengths that do not fit in 32 bits, whose low 32 bits are small or zero, or that are negative as an `i32`.
#[cfg(unix)]
#[test]
fn huge_buffers_for_files_do_not_wrap_around() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let folder = Folder::new();
            let path = folder.file("a", "hello world");
            let file = File::open(&path).await.unwrap();
            let sink = OpenOptions::new().write(true).open("/dev/null").await.unwrap();
            for len in [(4 << 30) + 3, 4 << 30, 2 << 30, 5 << 30] {
                let (result, mut huge) = file.read_at(Huge::new(len), 0).await;
                assert_eq!(result.unwrap(), 11, "into {len} bytes");
                assert_eq!(huge.head(11), b"hello world");
                // A queued read, not one from the page cache.
                let (result, mut bufs) = file.read_vectored_at(vec![huge, Huge::new(len)], 6).await;
                assert_eq!(result.unwrap(), 5, "into twice {len} bytes");
                assert_eq!(bufs[0].head(5), b"world");
                // One call writes a part; the next calls write the rest.
                let (result, huge) = sink.write_at(bufs.pop().unwrap(), 0).await;
                let taken = result.unwrap();
                assert!(taken > 1 << 30, "{taken} bytes of {len} were written");
                sink.write_all_at(huge, 0).await.0.unwrap();
                let written = sink.write_vectored(bufs).await.0.unwrap();
                assert!(written > 1 << 30, "{written} bytes of {len} were written");
            }
        });
    });
}

/// More slices than one system call accepts (1,024), some of them empty.
#[test]
fn file_calls_with_more_slices_than_one_system_call_accepts() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(3_000 * 3);
            let mut parts: Vec<Vec<u8>> = whole.chunks(3).map(<[u8]>::to_vec).collect();
            for at in (0..3_000).step_by(7) {
                parts.insert(at, Vec::new());
            }
            let file = File::create_new(folder.join("a")).await.unwrap();
            assert_eq!(file.write_vectored(parts.clone()).await.0.unwrap(), 1024 * 3);
            assert_eq!(file.stream_position().await.unwrap(), 1024 * 3);
            assert_eq!(file.write_vectored_at(parts, 0).await.0.unwrap(), 1024 * 3);
            file.write_all_at(whole.clone(), 0).await.0.unwrap();
            let bufs: Vec<Vec<u8>> = (0..3_000).map(|at| Vec::with_capacity((at % 2) * 3)).collect();
            let (result, bufs) = file.read_vectored_at(bufs, 1).await;
            assert_eq!(result.unwrap(), 1024 * 3);
            assert!(bufs.concat() == whole[1..][..1024 * 3]);
        });
    });
}

/// The space is allocated and the file is extended to cover it.
#[test]
fn allocate_extends_a_file() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", "hello");
            let file = OpenOptions::new().write(true).open(&path).await.unwrap();
            match file.allocate(100, 50_000).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Unsupported => return println!("-- SKIPPED: {error}"),
                Err(error) => panic!("{error}"),
            }
            let metadata = file.metadata().await.unwrap();
            assert_eq!(metadata.len(), 50_100);
            assert!(crate::support::has_space(&metadata, 50_000));
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes[..5] == *b"hello" && bytes[5..].iter().all(|&byte| byte == 0));
            for (offset, len) in [(0, 0), (u64::MAX, 1), (1, u64::MAX)] {
                let error = file.allocate(offset, len).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
            let read_only = File::open(&path).await.unwrap();
            let error = read_only.allocate(0, 10).await.unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(codes::BAD_FD), "{error}");
        });
    });
}

/// Any number of reads and writes of one file, each with its own offset.
#[test]
fn concurrent_calls_on_one_file_do_not_interfere() {
    on_every_driver(|case| {
        case.run(async {
            let count = if cfg!(miri) { 8 } else { 200 };
            const LEN: usize = 1_001;
            let folder = Folder::new();
            let whole = numbered(count * LEN);
            let file = Rc::new(File::create_new(folder.join("a")).await.unwrap());
            let both = |write: bool| {
                let (file, whole) = (file.clone(), whole.clone());
                let calls = (0..count).map(move |number| {
                    let (file, at) = (file.clone(), number * LEN);
                    let part = whole[at..at + LEN].to_vec();
                    windlass::spawn(async move {
                        if write {
                            return file.write_all_at(part, at as u64).await.0.unwrap();
                        }
                        let (result, buf) = file.read_exact_at(vec![0; LEN], at as u64).await;
                        result.unwrap();
                        assert!(buf == part, "read {number} got other bytes");
                        if !cfg!(miri) {
                            let (result, bufs) = file
                                .read_vectored_at(vec![vec![0; 1], vec![0; LEN - 1]], at as u64)
                                .await;
                            assert_eq!(result.unwrap(), LEN);
                            assert!(bufs.concat() == part, "read {number} got other bytes");
                        }
                    })
                });
                calls.collect::<Vec<_>>()
            };
            for call in both(true) {
                call.await.unwrap();
            }
            for call in both(false) {
                call.await.unwrap();
            }
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

/// Sequential calls of several tasks share one position and run one after the other.
#[test]
fn sequential_calls_keep_their_order() {
    on_every_driver(|case| {
        if short_counts() {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let count = if cfg!(miri) { 4u8 } else { 100 };
            for append in [false, true] {
                let path = folder.file("a", "");
                let mut options = OpenOptions::new();
                let file = Rc::new(options.read(true).write(true).append(append).open(&path).await.unwrap());
                let writers = (0..count).map(|number| {
                    let file = file.clone();
                    windlass::spawn(async move { file.write_all(vec![number; 7]).await.0.unwrap() })
                });
                for writer in writers.collect::<Vec<_>>() {
                    writer.await.unwrap();
                }
                let expected: Vec<u8> = (0..count).flat_map(|number| [number; 7]).collect();
                assert_eq!(std::fs::read(&path).unwrap(), expected, "append: {append}");
                file.seek(SeekFrom::Start(0)).await.unwrap();
                let readers = (0..count).map(|number| {
                    let file = file.clone();
                    windlass::spawn(async move { assert_eq!(file.read([0; 7]).await.1, [number; 7]) })
                });
                for reader in readers.collect::<Vec<_>>() {
                    reader.await.unwrap();
                }
            }
        });
    });
}

/// Errors of a file contain its path and the failed operation.
#[test]
fn errors_of_an_open_file_name_it() {
    on_every_driver(|case: Case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("some name", "hello");
            let readable = File::open(&path).await.unwrap();
            let writable = OpenOptions::new().write(true).open(&path).await.unwrap();
            let mut errors = vec![
                readable.write("a").await.0.unwrap_err(),
                readable.write_all_at("a", 0).await.0.unwrap_err(),
                readable.set_len(1).await.unwrap_err(),
                readable.read_exact_at([0; 9], 0).await.0.unwrap_err(),
                readable.seek(SeekFrom::Current(-1)).await.unwrap_err(),
                writable.read([0; 1]).await.0.unwrap_err(),
                writable.read_at([0; 1], 0).await.0.unwrap_err(),
            ];
            if !cfg!(miri) {
                errors.push(readable.write_vectored_at(vec!["a"], 0).await.0.unwrap_err());
                errors.push(writable.read_vectored(vec![[0; 1]]).await.0.unwrap_err());
            }
            for error in errors {
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            }
            assert!(format!("{readable:?}").contains("some name"));
        });
    });
}

/// A virtual clock does not advance during file operations, which take real time.
#[test]
fn a_long_timeout_does_not_expire_during_file_operations() {
    on_every_driver(|case| {
        case.run(async {
            let folder = crate::support::Folder::new();
            let hour = std::time::Duration::from_secs(3600);
            for round in 0..20 {
                let path = folder.join(&round.to_string());
                let written = windlass::time::timeout(hour, windlass::fs::write(&path, "here")).await;
                written.expect("in time").expect("written");
                let read = windlass::time::timeout(hour, windlass::fs::read(&path)).await;
                assert_eq!(read.expect("in time").expect("read"), b"here");
            }
        });
    });
}

#[cfg(unix)]
#[test]
fn the_null_drivers_files_are_in_memory() {
    on_every_driver(|case| {
        let path = std::env::temp_dir().join(format!("windlass-files-memory-{}-{}", case.name, std::process::id()));
        case.run_on_own_files(async {
            windlass::fs::write(&path, "x").await.unwrap();
            assert_eq!(path.exists(), case.is_kernel());
            // The current directory exists, too.
            assert!(windlass::fs::metadata(".").await.unwrap().is_dir());
            let here = windlass::fs::canonicalize(".").await.unwrap();
            assert_eq!(here, std::env::current_dir().unwrap());
            windlass::fs::remove_file(&path).await.unwrap();
        });
    });
}
