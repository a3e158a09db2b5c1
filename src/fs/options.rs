//! Options for opening files.

use std::io;
use std::path::Path;

use super::file::File;
use super::{at, run_op};
use crate::driver::op::{FileOp, Op};
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::sys::{self, Fd, OpenFlags};

/// Options for opening a file: std's `OpenOptions`, plus [`direct`](OpenOptions::direct).
///
/// ```
/// use windlass::fs::OpenOptions;
/// # let path = std::env::temp_dir().join(format!("windlass-doc-options-{}", std::process::id()));
/// windlass::run(async {
///     let log = OpenOptions::new().append(true).create(true).open(&path).await?;
///     log.write_all("started\n").await.0?;
///     windlass::fs::remove_file(&path).await
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until `open` is called"]
pub struct OpenOptions {
    flags: OpenFlags,
}

impl OpenOptions {
    /// Creates options with everything off.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens for reading.
    pub fn read(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.read = on;
        self
    }

    /// Opens for writing.
    pub fn write(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.write = on;
        self
    }

    /// Opens for writing at the end of the file.
    pub fn append(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.append = on;
        self
    }

    /// Truncates the file to length 0.
    pub fn truncate(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.truncate = on;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.create = on;
        self
    }

    /// Creates the file and fails if it exists.
    pub fn create_new(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.create_new = on;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`). Buffers, lengths and offsets must be aligned, usually to 512 or 4,096
    /// bytes: see [`AlignedBuf`](crate::io::AlignedBuf). Linux and FreeBSD only, and not on every file system.
    pub fn direct(&mut self, on: bool) -> &mut OpenOptions {
        self.flags.direct = on;
        self
    }

    /// Opens the file.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        self.open_path(path).await.map_err(at("open", path))
    }

    async fn open_path(&self, path: &Path) -> io::Result<File> {
        let core = LoopCore::current("open").rc();
        let flags = self.flags.for_kernel()?;
        let mode = self.flags.mode;
        let payload = sys::path_for_kernel(path)?;
        let plan = |payload: &mut sys::KernelPath| {
            Op::File(FileOp::Open {
                path: payload.as_ptr(),
                flags,
                mode,
            })
        };
        let (fd, _) = run_op(&core, payload, plan).await?;
        let owned = OwnedDescriptor::new(core, fd as Fd);
        Ok(File::new(owned, path, self.flags.append, self.flags.direct))
    }
}

/// Unix options.
#[cfg(unix)]
impl OpenOptions {
    /// The permissions of a new file before the umask is applied. The default is 0o666.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.flags.mode = mode;
        self
    }

    /// Additional flags for open(2).
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.flags.custom = flags;
        self
    }
}

/// Windows options.
#[cfg(windows)]
impl OpenOptions {
    /// Additional flags of `CreateFileW` (`FILE_FLAG_...`).
    pub fn custom_flags(&mut self, flags: u32) -> &mut OpenOptions {
        self.flags.mode = flags;
        self
    }
}
