//! A file to measure with, which goes when the bench does.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Writes a file of so many MiB where temporary files go. Nothing of it is left to be written to the disk: that
    /// would happen during the measurement.
    pub(crate) fn write(bench: &str, mib: usize) -> io::Result<Scratch> {
        let name = format!("windlass-bench-{bench}-{}", std::process::id());
        let scratch = Scratch {
            path: std::env::temp_dir().join(name),
        };
        eprintln!("writing {mib} MiB to {}", scratch.path.display());
        let mut file = File::create(&scratch.path)?;
        let block: Vec<u8> = (0..1u32 << 20)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for _ in 0..mib {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
