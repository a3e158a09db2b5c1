//! The log of a node on its disk: a text file with a checksum and an entry per line.
//!
//! A power loss may keep any part of what was written after the last sync, such as the third sector without the second.
//! The log ends before the first line that is incomplete or whose checksum is wrong: nothing behind it was synced.

use std::io;
use std::path::Path;

use windlass::fs::{self, File, OpenOptions};

/// The name of the file in the node's directory.
pub(crate) const FILE: &str = "log";

pub(crate) struct Log {
    file: File,
    /// Where the next line begins.
    end: u64,
    /// The number of entries.
    len: usize,
}

impl Log {
    /// Opens the log in a directory, or makes an empty one. Returns its entries too; they are synced.
    pub(crate) async fn open(dir: &Path) -> io::Result<(Log, Vec<String>)> {
        fs::create_dir_all(dir).await?;
        let path = dir.join(FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(&path)
            .await?;
        let (entries, end) = parse(&fs::read(&path).await?);
        file.set_len(end).await?;
        file.sync_all().await?;
        // On Unix a file is found after a power loss only if its directory was synced, and the directory if its parent was.
        if cfg!(unix) {
            let dir = fs::canonicalize(dir).await?;
            for dir in dir.ancestors().take(2) {
                File::open(dir).await?.sync_all().await?;
            }
        }
        let len = entries.len();
        Ok((Log { file, end, len }, entries))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes entries to the end. They are durable after [`sync`](Log::sync).
    pub(crate) async fn append(&mut self, entries: &[String]) -> io::Result<()> {
        let numbered = (self.len..).zip(entries);
        let lines: String = numbered.map(|(index, entry)| line(index, entry)).collect();
        let written = lines.len() as u64;
        self.file.write_all_at(lines, self.end).await.0?;
        self.end += written;
        self.len += entries.len();
        Ok(())
    }

    pub(crate) async fn sync(&self) -> io::Result<()> {
        self.file.sync_data().await
    }
}

fn line(index: usize, entry: &str) -> String {
    format!("{:08x} {entry}\n", checksum(index, entry))
}

/// The valid entries of a log's bytes, and where they end.
pub(crate) fn parse(bytes: &[u8]) -> (Vec<String>, u64) {
    let (mut entries, mut end) = (Vec::new(), 0);
    for bytes in bytes.split_inclusive(|byte| *byte == b'\n') {
        let entry = std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.get(9..)?.strip_suffix('\n'));
        match entry {
            Some(entry) if line(entries.len(), entry).as_bytes() == bytes => entries.push(entry.to_owned()),
            _ => break,
        }
        end += bytes.len() as u64;
    }
    (entries, end)
}

/// FNV-1a of an entry and its index.
fn checksum(index: usize, entry: &str) -> u32 {
    let bytes = (index as u64).to_le_bytes().into_iter().chain(entry.bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
