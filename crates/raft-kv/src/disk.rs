//! Records with checksums, and files that are replaced as a whole.

use std::io;
use std::path::Path;

use windlass::fs::{self, File};

/// The bytes before a record's contents: length and checksum.
const HEADER: usize = 8;

/// Appends a record to `bytes`, which will be written at `offset` of a file.
pub(crate) fn push_record(bytes: &mut Vec<u8>, offset: u64, contents: &[u8]) {
    let position = offset + bytes.len() as u64;
    bytes.extend((contents.len() as u32).to_le_bytes());
    bytes.extend(checksum(position, contents).to_le_bytes());
    bytes.extend(contents);
}

/// The contents of the record at `position`, or `None` if it is incomplete or was not written as a whole.
pub(crate) fn record_at(bytes: &[u8], position: usize) -> Option<&[u8]> {
    let header = bytes.get(position..position + HEADER)?;
    let len = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    let expected = u32::from_le_bytes(header[4..].try_into().ok()?);
    let contents = bytes.get(position + HEADER..)?.get(..len)?;
    (checksum(position as u64, contents) == expected).then_some(contents)
}

/// The bytes that a record takes.
pub(crate) fn record_len(contents: &[u8]) -> usize {
    HEADER + contents.len()
}

/// CRC-32 of a record's position and contents. A record of zeros, as in a hole of the file, is not valid.
fn checksum(position: u64, contents: &[u8]) -> u32 {
    let bytes = position.to_le_bytes().into_iter().chain(contents.iter().copied());
    !bytes.fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// Replaces a file, so that a power loss leaves the old or the new contents. Returns the new file.
pub(crate) async fn replace(path: &Path, contents: Vec<u8>) -> io::Result<File> {
    let temporary = path.with_extension("new");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&temporary)
        .await?;
    file.write_all_at(contents, 0).await.0?;
    file.sync_all().await?;
    fs::rename(&temporary, path).await?;
    sync_dir(path.parent().unwrap_or(path)).await?;
    Ok(file)
}

/// Makes the names in a directory durable. On Windows, `sync_all` of the files does.
pub(crate) async fn sync_dir(dir: &Path) -> io::Result<()> {
    match cfg!(unix) {
        true => File::open(dir).await?.sync_all().await,
        false => Ok(()),
    }
}

/// Makes a directory that is found after a power loss.
pub(crate) async fn make_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir).await?;
    let dir = fs::canonicalize(dir).await?;
    match dir.parent() {
        Some(parent) => sync_dir(parent).await,
        None => Ok(()),
    }
}

/// The contents of a file, or `None` if there is none.
pub(crate) async fn read_if_exists(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_the_usual_one() {
        let crc = !b"123456789"
            .iter()
            .fold(!0, |crc: u32, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8));
        assert_eq!(crc, 0xcbf4_3926);
    }

    #[test]
    fn records_that_are_torn_are_refused() {
        let mut bytes = Vec::new();
        push_record(&mut bytes, 0, b"first");
        let second = bytes.len();
        push_record(&mut bytes, 0, b"second");
        assert_eq!(record_at(&bytes, 0), Some(&b"first"[..]));
        assert_eq!(record_at(&bytes, second), Some(&b"second"[..]));
        assert_eq!(record_at(&bytes, bytes.len()), None);
        for cut in second..bytes.len() {
            assert_eq!(record_at(&bytes[..cut], second), None);
        }
        for index in second..bytes.len() {
            let mut torn = bytes.clone();
            torn[index] ^= 1;
            assert_eq!(record_at(&torn, second), None, "byte {index}");
        }
        // A record of another position, and a hole.
        assert_eq!(record_at(&bytes[second..], 0), None);
        assert_eq!(record_at(&[0; 64], 0), None);
    }
}
