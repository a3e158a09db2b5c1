//! The options of an open. Each OS converts them to its own flags in `files.rs`.

use std::io;

/// The options of an open.
#[derive(Clone, Debug)]
pub(crate) struct OpenFlags {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    /// Bypasses the page cache.
    pub(crate) direct: bool,
    /// On Unix the permissions of a new file, on Windows further flags of `CreateFileW`.
    pub(crate) mode: u32,
    /// Further flags of open(2).
    #[cfg(unix)]
    pub(crate) custom: i32,
}

impl Default for OpenFlags {
    fn default() -> OpenFlags {
        OpenFlags {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            direct: false,
            mode: if cfg!(unix) { 0o666 } else { 0 },
            #[cfg(unix)]
            custom: 0,
        }
    }
}

impl OpenFlags {
    /// Rejects combinations that contradict themselves, as std does.
    pub(super) fn check(&self) -> io::Result<()> {
        let writes = self.write || self.append;
        let why = if !self.read && !writes {
            "a file is opened to read, to write or to append: ask for one of them"
        } else if !writes && (self.truncate || self.create || self.create_new) {
            "creating or truncating a file needs write or append"
        } else if self.append && self.truncate && !self.create_new {
            "a file is opened to append or truncated, not both"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}
