//! Linux file operations: io_uring operations and worker threads, `O_DIRECT`, and failures that need a process of their
//! own.

use std::ffi::CString;
use std::io::{ErrorKind, Seek, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use windlass::EventLoop;
use windlass::fs::{self, File, OpenOptions};
use windlass::io::AlignedBuf;

use crate::bytes::numbered;
use crate::child::in_own_process;
use crate::support::{Case, Folder, assert_same, on_every_driver, on_every_kernel_driver};

/// Every call that has an io_uring operation.
async fn use_every_operation(folder: &Path) {
    let path = folder.join("a");
    let file = File::create_new(&path).await.unwrap();
    file.write_all("hello").await.0.unwrap();
    file.write("hello").await.0.unwrap();
    file.write_at("hello", 20).await.0.unwrap();
    file.write_all_at("hello", 30).await.0.unwrap();
    file.write_vectored(vec!["a", "b"]).await.0.unwrap();
    file.write_vectored_at(vec!["a", "b"], 40).await.0.unwrap();
    file.read(vec![0; 3]).await.0.unwrap();
    file.read_at(vec![0; 3], 0).await.0.unwrap();
    file.read_exact_at(vec![0; 3], 0).await.0.unwrap();
    file.read_vectored(vec![vec![0; 3]]).await.0.unwrap();
    file.read_vectored_at(vec![vec![0; 3]], 0).await.0.unwrap();
    file.seek(std::io::SeekFrom::End(0)).await.unwrap();
    file.sync_all().await.unwrap();
    file.sync_data().await.unwrap();
    file.set_len(1_000).await.unwrap();
    file.allocate(0, 2_000).await.unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), 2_000);
    let mut scan = file.scan().chunk_len(100);
    while let Some(chunk) = scan.next().await {
        chunk.unwrap();
    }
    fs::write(&path, "hello").await.unwrap();
    assert_eq!(fs::read(&path).await.unwrap(), b"hello");
    assert_eq!(fs::read_to_string(&path).await.unwrap(), "hello");
    fs::metadata(&path).await.unwrap();
    fs::symlink_metadata(&path).await.unwrap();
    assert!(fs::try_exists(&path).await.unwrap());
    fs::hard_link(&path, folder.join("b")).await.unwrap();
    fs::symlink("a", folder.join("c")).await.unwrap();
    fs::rename(folder.join("b"), folder.join("d")).await.unwrap();
    fs::create_dir(folder.join("e")).await.unwrap();
    fs::create_dir_all(folder.join("e/f/g")).await.unwrap();
    fs::remove_dir(folder.join("e/f/g")).await.unwrap();
    for name in ["a", "c", "d"] {
        fs::remove_file(folder.join(name)).await.unwrap();
    }
    assert_eq!(fs::read(&path).await.unwrap_err().kind(), ErrorKind::NotFound);
}

fn use_everything(event_loop: &EventLoop) {
    let folder = Folder::new();
    event_loop
        .run_until_complete(use_every_operation(folder.path()))
        .unwrap();
}

/// No pool thread is started for operations that the ring supports.
#[test]
fn no_thread_is_started_for_io_uring_operations() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        let event_loop = case.event_loop();
        use_everything(&event_loop);
        let features = event_loop.describe().features;
        let has_all = features.contains(&"paths") && features.contains(&"truncate");
        let started = event_loop.counters().files.started;
        match case.has_rings() && has_all {
            true => assert_eq!(started, 0, "threads were started for file operations"),
            false => assert!(started > 0, "only a thread could have done it"),
        }
        if case.has_rings() && !has_all {
            println!("-- SKIPPED: this ring has only {features:?}");
        }
        let reading = fs::read_link("/proc/self/exe");
        event_loop.run_until_complete(reading).unwrap().unwrap();
        assert!(event_loop.counters().files.started > 0, "the counter counts");
    });
}

/// On an old kernel the ring leaves some operations to the thread pool, with the same results.
#[test]
fn an_old_ring_leaves_operations_to_the_pool() {
    on_every_kernel_driver(|case| {
        let event_loop = case.builder().plain_ring(true).build().unwrap();
        use_everything(&event_loop);
        assert!(event_loop.counters().files.started > 0);
    });
}

/// The kernel's io-wq threads stay within the configured limit.
#[test]
fn worker_threads_stay_under_their_limit() {
    let test = "files_linux::worker_threads_stay_under_their_limit";
    in_own_process(test, &[], || {
        on_every_kernel_driver(|case| {
            if !case.has_rings() {
                return;
            }
            let free = most_workers(case, None);
            if free <= 2 {
                println!("-- SKIPPED: this kernel needs no more than {free} threads for 64 calls");
            }
            for most in [1, 2] {
                let seen = most_workers(case, Some(most));
                assert!(seen >= 1, "no call used a worker thread");
                assert!(seen <= most as usize, "{seen} threads, the limit is {most}");
            }
        });
    });
}

/// The number of io-wq threads while many operations need them.
fn most_workers(case: Case, limit: Option<u32>) -> usize {
    // The workers and their limit belong to the thread that owns the ring.
    let seen = std::thread::spawn(move || {
        let builder = case.builder();
        let builder = match limit {
            Some(most) => builder.max_io_workers(most),
            None => builder,
        };
        count_workers(&builder.build().unwrap())
    });
    let seen = seen.join().unwrap();
    while workers() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    seen
}

fn count_workers(event_loop: &EventLoop) -> usize {
    let (most, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let watcher = std::thread::spawn({
        let (most, done) = (most.clone(), done.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(workers(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let folder = Folder::new();
    let work = async {
        let mut calls = Vec::new();
        for number in 0..64 {
            let path = folder.join(&number.to_string());
            calls.push(windlass::spawn(async move {
                let file = File::create_new(path).await.unwrap();
                file.write_all(numbered(100_000)).await.0.unwrap();
                file.sync_all().await.unwrap();
            }));
        }
        for call in calls {
            call.await.unwrap();
        }
    };
    event_loop.run_until_complete(work).unwrap();
    done.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    most.load(Ordering::Relaxed)
}

fn workers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let is_worker = |name: String| name.starts_with("iou-wrk");
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .filter(|name| is_worker(name.clone()))
        .count()
}

/// `O_DIRECT`: aligned buffers work; the kernel refuses others.
#[test]
fn direct_files_need_aligned_buffers() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(64 * 4096 + 100);
            let path = folder.file("a", &whole);
            let file = match OpenOptions::new().read(true).write(true).direct(true).open(&path).await {
                Ok(file) => Rc::new(file),
                Err(error) => return println!("-- SKIPPED: {error}"),
            };
            let buf = AlignedBuf::zeroed(8192, 4096);
            let (result, buf) = file.read_at(buf, 4096).await;
            assert_eq!(result.unwrap(), 8192);
            assert!(buf[..] == whole[4096..][..8192]);
            let reads = (0..64).map(|number| {
                let file = file.clone();
                windlass::spawn(async move { file.read_at(AlignedBuf::with_capacity(4096, 4096), number * 4096).await })
            });
            for (number, read) in reads.collect::<Vec<_>>().into_iter().enumerate() {
                let (result, buf) = read.await.unwrap();
                assert_eq!(result.unwrap(), 4096);
                assert!(buf[..] == whole[number * 4096..][..4096], "read {number}");
            }
            let (result, mut buf) = file.read_at(buf, 64 * 4096).await;
            assert_eq!((result.unwrap(), buf.len()), (100, 100));
            buf.set_len(4096);
            buf.fill(7);
            file.write_all_at(buf, 0).await.0.unwrap();
            assert!(std::fs::read(&path).unwrap()[..4096] == [7; 4096]);

            // Some file systems accept any buffer.
            let (result, _) = file.read_at(vec![0; 5_001], 1).await;
            match result {
                Err(error) => assert_eq!(windlass::os_code(&error), Some(libc::EINVAL), "{error}"),
                Ok(count) => println!("-- this file system accepts any buffer: {count} bytes"),
            }

            for (chunk_len, depth) in [(4096, 8), (16384, 1), (128 << 10, 8)] {
                let mut options = OpenOptions::new();
                let file = options.read(true).direct(true).open(&path).await.unwrap();
                let mut scan = file.scan().chunk_len(chunk_len).depth(depth);
                let mut got = Vec::new();
                while let Some(chunk) = scan.next().await {
                    let chunk = chunk.unwrap();
                    assert_eq!(chunk.offset(), got.len() as u64);
                    got.extend_from_slice(&chunk);
                }
                assert_eq!(got.len(), whole.len());
                assert!(got[4096..] == whole[4096..]);
            }
            // A std file keeps its flag.
            let mut options = std::fs::OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
            let file = File::from_std(options.read(true).open(&path).unwrap());
            let (result, buf) = file.read_at(AlignedBuf::with_capacity(4096, 4096), 4096).await;
            assert_eq!(result.unwrap(), 4096);
            assert!(buf[..] == whole[4096..8192]);
        });
    });
}

/// A full disk is an error of std's kind that names the file, and the bytes that fitted are counted as in std.
#[test]
fn a_full_disk_is_an_error() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let file = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
            let errors = [
                file.write("a").await.0.unwrap_err(),
                file.write_all_at("a", 0).await.0.unwrap_err(),
                file.write_vectored(vec!["a"]).await.0.unwrap_err(),
                fs::write("/dev/full", "a").await.unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::StorageFull);
                assert_eq!(windlass::os_code(&error), Some(libc::ENOSPC));
                assert!(error.to_string().contains("/dev/full"), "{error}");
            }
        });
    });
    in_own_process("files_linux::a_full_disk_is_an_error", &[], || {
        let folder = Folder::new();
        let Err(error) = mount_small_disk(folder.path()) else {
            return on_every_driver({
                let path = folder.path().to_owned();
                move |case| fill_up(case, &path)
            });
        };
        println!("-- SKIPPED: no file system can be mounted here: {error}");
    });
}

fn fill_up(case: Case, disk: &Path) {
    case.run(async {
        let len = 150_000;
        let (our_path, their_path) = (disk.join("ours"), disk.join("theirs"));
        let ours = File::create(&our_path).await.unwrap();
        let our_result = ours.write_all(numbered(len)).await.0;
        let our_position = ours.stream_position().await.unwrap();
        let error = fs::write(disk.join("another"), numbered(len)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().contains("another"), "{error}");
        fs::remove_file(disk.join("another")).await.unwrap();
        fs::remove_file(&our_path).await.unwrap();
        drop(ours);
        let mut theirs = std::fs::File::create(&their_path).unwrap();
        let their_result = theirs.write_all(&numbered(len));
        assert_eq!(their_result.as_ref().unwrap_err().kind(), ErrorKind::StorageFull);
        assert_same("write_all", our_result, their_result);
        assert_eq!(our_position, theirs.stream_position().unwrap());
        drop(theirs);
        // It works again when there is room.
        std::fs::remove_file(&their_path).unwrap();
        fs::write(&our_path, numbered(50_000)).await.unwrap();
        assert!(fs::read(&our_path).await.unwrap() == numbered(50_000));
        fs::remove_file(&our_path).await.unwrap();
    });
}

/// For this thread and the threads that it starts.
fn mount_small_disk(folder: &Path) -> std::io::Result<()> {
    let folder = CString::new(folder.to_str().unwrap()).unwrap();
    let check = |result: i32| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let none = std::ptr::null();
    // SAFETY: the strings end in NUL and outlive the calls.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(
            none,
            c"/".as_ptr(),
            none,
            libc::MS_REC | libc::MS_PRIVATE,
            none.cast(),
        ))?;
        let (name, size) = (c"tmpfs".as_ptr(), c"size=100k".as_ptr());
        check(libc::mount(name, folder.as_ptr(), name, 0, size.cast()))
    }
}

/// As an unprivileged user: std's error kind, the code, and the path.
#[test]
fn permission_denied_is_an_error() {
    in_own_process("files_linux::permission_denied_is_an_error", &[], || {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new();
        folder.file("secret", "secret");
        std::fs::create_dir(folder.join("closed")).unwrap();
        folder.file("closed/file", "hello");
        for (name, mode) in [("secret", 0o000), ("closed", 0o000), (".", 0o555)] {
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        // SAFETY: neither call touches memory of ours.
        let was_root = unsafe { libc::geteuid() } == 0;
        if was_root && !become_user(65_534) {
            return println!("-- SKIPPED: root cannot change its user");
        }
        on_every_driver({
            let folder = folder.path().to_owned();
            move |case| case.run(assert_denied(&folder))
        });
        if was_root {
            assert!(become_user(0));
        }
        for name in [".", "closed"] {
            std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    });
}

/// Changes the user of all threads of this process.
fn become_user(user: libc::uid_t) -> bool {
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::seteuid(user) == 0 }
}

async fn assert_denied(folder: &Path) {
    let (secret, inside, new) = (folder.join("secret"), folder.join("closed/file"), folder.join("new"));
    let denied = [
        (File::open(&secret).await.map(drop), &secret),
        (fs::read(&secret).await.map(drop), &secret),
        (fs::write(&secret, "x").await, &secret),
        (fs::write(&new, "x").await, &new),
        (fs::create_dir(&new).await, &new),
        (fs::create_dir_all(new.join("deep")).await, &new),
        (fs::remove_file(&secret).await, &secret),
        (fs::rename(&secret, &new).await, &new),
        (fs::symlink("x", &new).await, &new),
        (fs::copy(&secret, &new).await.map(drop), &secret),
        (fs::metadata(&inside).await.map(drop), &inside),
        (fs::try_exists(&inside).await.map(drop), &inside),
        (fs::read_link(&inside).await.map(drop), &inside),
        (fs::canonicalize(&inside).await.map(drop), &inside),
        (
            fs::read_dir(folder.join("closed")).await.map(drop),
            &folder.join("closed"),
        ),
    ];
    for (number, (result, path)) in denied.into_iter().enumerate() {
        let error = result.expect_err(&format!("call {number} on {}", path.display()));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "call {number}: {error}");
        assert_eq!(windlass::os_code(&error), Some(libc::EACCES), "call {number}: {error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "call {number}: {error}"
        );
    }
}

/// The destination is a full pipe, which blocks the copy while its source is truncated.
#[test]
fn copying_a_file_that_shrinks_is_an_error() {
    use std::io::Read;
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        let source = folder.file("source", vec![7; 4 << 20]);
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().expect("text")).expect("a path");
        // SAFETY: mkfifo(3) reads the path, which lives on.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let reading = std::thread::spawn({
            let (source, pipe) = (source.clone(), pipe.clone());
            move || {
                let mut reader = std::fs::File::open(pipe).expect("the other end opens");
                let mut first = [0; 100];
                reader.read_exact(&mut first).expect("the copy has begun");
                let file = std::fs::File::options().write(true).open(source).expect("open");
                file.set_len(1000).expect("cut");
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).expect("the rest");
                first.len() + rest.len()
            }
        });
        let copied = case.run(fs::copy(&source, &pipe));
        assert!(reading.join().expect("no panic") < 4 << 20, "the copy was not blocked");
        let error = copied.expect_err("the source has shrunk");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
        let message = error.to_string();
        assert!(
            message.contains(source.to_str().expect("text")) && message.contains("shrank"),
            "{message}"
        );
    });
}
