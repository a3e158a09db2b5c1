//! Random calls give the same results here and in the kernel.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Process;
use crate::rand::Rng;
use crate::sys::{CURRENT, Fd, FileOp, OsResult, Stat, files};

/// Both worlds: the same calls go to each.
struct Both {
    here: Process,
    /// The files that are open: their number here and in the kernel.
    open: Vec<(Fd, Fd)>,
    /// What was done, for the report.
    log: Vec<String>,
}

impl Both {
    /// Executes an operation in both; `kernel` is the same one with the kernel's memory and descriptor.
    ///
    /// # Safety
    ///
    /// The pointers are valid.
    unsafe fn perform(&mut self, here: FileOp, kernel: FileOp, what: String) -> (OsResult, OsResult) {
        // SAFETY: the caller's promise.
        let (here, kernel) = unsafe {
            let kernel = files::perform(kernel).expect("files do not wait");
            (self.here.perform(here), kernel)
        };
        self.log.push(format!("{what} = {here:?}, in the kernel {kernel:?}"));
        (here, kernel)
    }

    /// Executes an operation without descriptors and results.
    ///
    /// # Safety
    ///
    /// The pointers are valid.
    unsafe fn same(&mut self, op: FileOp, what: String) {
        // SAFETY: the caller's promise.
        let (here, kernel) = unsafe { self.perform(op, op, what) };
        self.check(here == kernel);
    }

    #[track_caller]
    fn check(&self, is_same: bool) {
        assert!(is_same, "differs:\n{}", self.log.join("\n"));
    }

    fn open(&mut self, path: &CString, flags: i32, mode: u32) {
        let op = FileOp::Open {
            path: path.as_ptr(),
            flags,
            mode,
        };
        // SAFETY: the path lives until the call has returned.
        let (here, kernel) = unsafe { self.perform(op, op, format!("open {path:?} {flags:o} {mode:o}")) };
        self.check(here.is_ok() == kernel.is_ok() && here.err() == kernel.err());
        if let (Ok(here), Ok(kernel)) = (here, kernel) {
            self.open.push((here as Fd, kernel as Fd));
        }
    }

    fn close(&mut self, index: usize) {
        let (here, kernel) = self.open.swap_remove(index);
        self.here.close(here);
        crate::sys::close(kernel);
        self.log.push(format!("close {here}"));
    }

    fn read(&mut self, (fd, kernel_fd): (Fd, Fd), len: usize, offset: u64) {
        let (mut one, mut other) = (vec![0xaa; len], vec![0xaa; len]);
        let op = |fd, ptr| FileOp::ReadAt { fd, ptr, len, offset };
        let what = format!("read {fd} {len} at {offset}");
        // SAFETY: the buffers live until the calls have returned.
        let (here, kernel) = unsafe { self.perform(op(fd, one.as_mut_ptr()), op(kernel_fd, other.as_mut_ptr()), what) };
        self.check(here == kernel && one == other);
    }

    fn write(&mut self, (fd, kernel_fd): (Fd, Fd), bytes: &[u8], offset: u64) {
        let (ptr, len) = (bytes.as_ptr(), bytes.len());
        let op = |fd| FileOp::WriteAt { fd, ptr, len, offset };
        let what = format!("write {fd} {len} at {offset}");
        // SAFETY: the bytes live until the calls have returned.
        let (here, kernel) = unsafe { self.perform(op(fd), op(kernel_fd), what) };
        self.check(here == kernel);
    }

    fn stat(&mut self, fds: (Fd, Fd), path: Option<&CString>, follow: bool) {
        let (mut one, mut other) = (MaybeUninit::<Stat>::uninit(), MaybeUninit::<Stat>::uninit());
        let op = |fd, out| FileOp::Stat {
            fd,
            path: path.map_or(std::ptr::null(), |path| path.as_ptr()),
            follow,
            out,
        };
        let what = format!("stat {path:?} {} {follow}", fds.0);
        // SAFETY: path and results live until the calls have returned, which fill the results if they succeed.
        unsafe {
            let (here, kernel) = self.perform(op(fds.0, one.as_mut_ptr()), op(fds.1, other.as_mut_ptr()), what);
            self.check(here == kernel);
            if here.is_ok() {
                let (one, other) = (one.assume_init(), other.assume_init());
                let is_dir = one.mode() & libc::S_IFMT == libc::S_IFDIR;
                self.check(one.mode() == other.mode());
                // Directories have other sizes on every file system, and some do not count their subdirectories.
                self.check(is_dir || (one.len() == other.len() && one.links() == other.links()));
            }
        }
    }

    /// One random call.
    fn step(&mut self, root: &str, rng: &mut Rng) {
        let path = random_path(root, rng);
        let fds = match self.open.len() {
            0 => None,
            count => Some(self.open[rng.below(count as u64) as usize]),
        };
        let offset = match rng.below(3) {
            0 => CURRENT,
            1 => rng.below(3) * 4096,
            _ => rng.below(20_000),
        };
        match (rng.below(24), fds) {
            (0..=4, _) => {
                let flags = random_flags(rng);
                self.open(&path, flags, [0o666, 0o777, 0o600, 0o4755][rng.below(4) as usize]);
            }
            (5..=6, _) => {
                let op = FileOp::MakeDir {
                    path: path.as_ptr(),
                    mode: [0o777, 0o700, 0o1777][rng.below(3) as usize],
                };
                // SAFETY: the path lives until the call has returned.
                unsafe { self.same(op, format!("mkdir {path:?}")) };
            }
            (7..=8, _) => {
                let is_dir = rng.chance(0.5);
                let op = FileOp::Remove {
                    path: path.as_ptr(),
                    is_dir,
                };
                // SAFETY: as above.
                unsafe { self.same(op, format!("remove {path:?} {is_dir}")) };
            }
            (9..=11, _) => {
                let to = random_path(root, rng);
                let op = FileOp::Rename {
                    from: path.as_ptr(),
                    to: to.as_ptr(),
                };
                // SAFETY: as above.
                unsafe { self.same(op, format!("rename {path:?} {to:?}")) };
            }
            (12, _) => {
                let to = random_path(root, rng);
                let op = FileOp::HardLink {
                    from: path.as_ptr(),
                    to: to.as_ptr(),
                };
                // SAFETY: as above.
                unsafe { self.same(op, format!("link {path:?} {to:?}")) };
            }
            (13, _) => {
                let target = random_target(root, rng);
                let op = FileOp::SymLink {
                    target: target.as_ptr(),
                    link: path.as_ptr(),
                };
                // SAFETY: as above.
                unsafe { self.same(op, format!("symlink {target:?} {path:?}")) };
            }
            (14, _) => self.stat((-1, -1), Some(&path), rng.chance(0.5)),
            (15, Some(fds)) => self.stat(fds, None, true),
            (16..=17, Some(fds)) => self.read(fds, 1 + rng.below(10_000) as usize, offset),
            (18..=20, Some(fds)) => {
                let mut bytes = vec![0; 1 + rng.below(10_000) as usize];
                rng.fill(&mut bytes);
                self.write(fds, &bytes, offset);
            }
            (21, Some((fd, kernel_fd))) => {
                let len = rng.below(20_000);
                let op = |fd| FileOp::Truncate { fd, len };
                // SAFETY: there is no pointer.
                let (here, kernel) = unsafe { self.perform(op(fd), op(kernel_fd), format!("truncate {fd} {len}")) };
                self.check(here == kernel);
            }
            (22, Some(fds)) => self.seek(fds, rng),
            (23, Some(_)) => self.close(rng.below(self.open.len() as u64) as usize),
            _ => {}
        }
    }

    fn seek(&mut self, (fd, kernel_fd): (Fd, Fd), rng: &mut Rng) {
        // SAFETY: a descriptor of this test's; the result says whether it is a directory, whose positions differ.
        let is_dir = unsafe {
            let mut stat = MaybeUninit::<libc::stat>::zeroed();
            libc::fstat(kernel_fd, stat.as_mut_ptr()) == 0 && stat.assume_init().st_mode & libc::S_IFMT == libc::S_IFDIR
        };
        if is_dir {
            return;
        }
        let to = match rng.below(4) {
            0 => std::io::SeekFrom::Start(rng.below(30_000)),
            1 => std::io::SeekFrom::End(rng.below(10_000) as i64 - 8_000),
            2 => std::io::SeekFrom::Current(rng.below(10_000) as i64 - 5_000),
            _ => std::io::SeekFrom::Start(u64::MAX),
        };
        let here = self.here.files.seek(fd, to);
        let kernel = files::seek(kernel_fd, to).map_err(|error| error.raw_os_error().unwrap_or(0));
        self.log
            .push(format!("seek {fd} {to:?} = {here:?}, in the kernel {kernel:?}"));
        self.check(here == kernel);
    }

    /// All files below a directory in the kernel.
    fn compare_tree(&mut self, dir: &Path) {
        let mut names = BTreeMap::new();
        for entry in std::fs::read_dir(dir).expect("it exists") {
            let entry = entry.expect("an entry");
            names.insert(entry.file_name(), entry.path());
        }
        let listed = self.here.list(dir);
        self.log
            .push(format!("{dir:?}: here {listed:?}, in the kernel {:?}", names.keys()));
        self.check(listed.len() == names.len() && listed.iter().zip(names.keys()).all(|(one, other)| one == other));
        for path in names.values() {
            let c_path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
            self.stat((-1, -1), Some(&c_path), false);
            let metadata = std::fs::symlink_metadata(path).expect("it exists");
            if metadata.is_dir() {
                self.compare_tree(path);
            } else if metadata.is_file() {
                self.open(&c_path, libc::O_RDONLY, 0);
                if let Some(&fds) = self.open.last() {
                    self.read(fds, metadata.size() as usize + 1, 0);
                    self.close(self.open.len() - 1);
                }
            }
        }
    }
}

impl Process {
    fn list(&mut self, dir: &Path) -> Vec<PathBuf> {
        let volume = self.files.volume.borrow();
        let ino = volume.fs.look_up(dir.as_os_str().as_bytes(), true).expect("it exists");
        let entries = volume.fs.entries(ino).expect("a directory");
        entries
            .map(|(name, _)| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
            .collect()
    }
}

fn random_component(rng: &mut Rng) -> String {
    match rng.below(30) {
        0 => ".".into(),
        1 => "..".into(),
        2 => "n".repeat(255 + rng.below(2) as usize),
        _ => ["a", "b", "c", "d"][rng.below(4) as usize].into(),
    }
}

fn random_relative(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(3);
    let mut path = random_component(rng);
    for _ in 1..depth {
        path.push_str(if rng.chance(0.1) { "//" } else { "/" });
        path.push_str(&random_component(rng));
    }
    if rng.chance(0.1) {
        path.push('/');
    }
    path
}

fn random_path(root: &str, rng: &mut Rng) -> CString {
    let path = match rng.below(100) {
        0 => String::new(),
        1 => format!("{root}/{}", "a/".repeat(2_100)),
        _ => format!("{root}/{}", random_relative(rng)),
    };
    CString::new(path).expect("no NUL")
}

/// Links lead down or to the root of the test, never up: nothing outside of it can be reached.
fn random_target(root: &str, rng: &mut Rng) -> CString {
    let target = random_relative(rng).replace("..", "a");
    CString::new(if rng.chance(0.3) {
        format!("{root}/{target}")
    } else {
        target
    })
    .expect("no NUL")
}

fn random_flags(rng: &mut Rng) -> i32 {
    let mut flags = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR][rng.below(3) as usize];
    for (flag, probability) in [
        (libc::O_CREAT, 0.6),
        (libc::O_EXCL, 0.2),
        (libc::O_TRUNC, 0.2),
        (libc::O_APPEND, 0.2),
        (libc::O_DIRECTORY, 0.1),
        (libc::O_NOFOLLOW, 0.1),
    ] {
        if rng.chance(probability) {
            flags |= flag;
        }
    }
    // Without O_CREAT the effect of O_EXCL is undefined.
    if flags & libc::O_CREAT == 0 {
        flags &= !libc::O_EXCL;
    }
    flags
}

/// Names are few, so that calls meet the results of earlier ones. The tree is four levels deep in directories of its own,
/// and a path has at most three components, so that `..` stays within them.
#[test]
fn random_calls_give_the_kernels_results() {
    // In memory if possible: thousands of trees are created and removed.
    let memory = Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let base = memory.unwrap_or_else(std::env::temp_dir);
    let base = base.join(format!("windlass-disk-model-{}", std::process::id()));
    // SAFETY: the call touches no memory. This is the usual mask, and the one of the simulated file system.
    unsafe { libc::umask(0o022) };
    for seed in 0..3_000 {
        let mut rng = Rng::from_seed(seed);
        let here = Process::new();
        let root = base.join("1/2/3/4");
        std::fs::create_dir_all(&root).expect("the temporary directory can be written");
        let root = root.to_str().expect("UTF-8");
        assert!(here.files.volume.borrow_mut().fs.make_path(root.as_bytes(), 0o755));
        let mut both = Both {
            here,
            open: Vec::new(),
            log: vec![format!("seed {seed}")],
        };
        for _ in 0..60 {
            both.step(root, &mut rng);
        }
        while !both.open.is_empty() {
            both.close(0);
        }
        both.compare_tree(&base);
        std::fs::remove_dir_all(&base).expect("it can be removed");
    }
}
