//! Copies and removals composed of other operations, for a driver that has no single operation for them.

use std::io;
use std::path::Path;

use super::{File, canonicalize, read_dir, remove_dir, remove_file, symlink_metadata};
use crate::error::from_code;
use crate::sys::errno;

/// How many bytes one read and one write of a copy transfer.
const CHUNK: usize = 64 * 1024;

/// Copies the contents and permissions of a file.
pub(super) async fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let source = File::open(from).await?;
    let found = source.metadata().await?;
    if !found.is_file() {
        let why = "the source path is neither a regular file nor a symlink to a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let target = File::create(to).await?;
    let (mut count, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let (read, mut chunk) = source.read_at(buffer, count).await;
        let read = read?;
        if read == 0 {
            break;
        }
        chunk.truncate(read);
        let (written, chunk) = target.write_all_at(chunk, count).await;
        written?;
        count += read as u64;
        buffer = chunk;
        buffer.resize(CHUNK, 0);
    }
    target.set_permissions(found.permissions()).await?;
    // Copying a file onto itself truncates it first: std returns 0 for that, not an error.
    if count < found.len() && canonicalize(from).await? != canonicalize(to).await? {
        source.check_len(found.len()).await?;
    }
    Ok(count)
}

/// Removes a directory with everything in it, or a link.
pub(super) async fn remove_all(path: &Path) -> io::Result<()> {
    let found = symlink_metadata(path).await?;
    if found.is_symlink() {
        return remove_file(path).await;
    }
    if !found.is_dir() {
        // Listing it would fail too, on Wine with another error.
        return Err(from_code(errno::NOT_A_DIRECTORY));
    }
    // The directories to remove, with whether their contents are gone.
    let mut dirs = vec![(path.to_owned(), false)];
    while let Some((dir, is_emptied)) = dirs.pop() {
        if is_emptied {
            remove_dir(&dir).await?;
            continue;
        }
        let mut entries = read_dir(&dir).await?;
        dirs.push((dir, true));
        while let Some(entry) = entries.next_entry().await? {
            match entry.file_type().await?.is_dir() {
                true => dirs.push((entry.path(), false)),
                false => match remove_file(entry.path()).await {
                    // Another process was faster.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                },
            }
        }
    }
    Ok(())
}
