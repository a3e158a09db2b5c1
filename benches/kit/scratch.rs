//! A temporary file for a bench, deleted when it ends.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) struct Scratch {
    path: PathBuf,
    /// On Linux the file is already unlinked and exists while it is open, so nothing is left behind however the bench
    /// ends. Readers, including child processes, open it through `/proc`.
    #[cfg(target_os = "linux")]
    _file: File,
}

impl Scratch {
    /// Writes a temporary file of `mib` MiB and syncs it, so that no write-back happens during the measurement.
    pub(crate) fn write(bench: &str, mib: usize) -> io::Result<Scratch> {
        let name = format!("windlass-bench-{bench}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        eprintln!("writing {mib} MiB to {}", path.display());
        let told =
            |error: io::Error| io::Error::new(error.kind(), format!("{} was not written: {error}", path.display()));
        let file = File::create_new(&path).map_err(told)?;
        let scratch = Scratch::of(file, &path).map_err(told)?;
        fill(&scratch.path, mib).map_err(told)?;
        Ok(scratch)
    }

    #[cfg(target_os = "linux")]
    fn of(file: File, name: &Path) -> io::Result<Scratch> {
        use std::os::fd::AsRawFd;

        std::fs::remove_file(name)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
        Ok(Scratch { path, _file: file })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_file: File, name: &Path) -> io::Result<Scratch> {
        Ok(Scratch { path: name.into() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn fill(path: &Path, mib: usize) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    let block: Vec<u8> = (0..1u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()
}

#[cfg(not(target_os = "linux"))]
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
