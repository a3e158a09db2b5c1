//! Sequential reading with read-ahead.

use std::io;

use super::scan::{Chunk, Scan};
use crate::io::{BufResult, IoBufMut, read_buffered};

/// Reads a file sequentially from start to end, with read-ahead. Created by [`File::reader`](super::File::reader).
///
/// ```
/// use windlass::fs::File;
/// windlass::run(async {
///     let mut reader = File::open("Cargo.toml").await?.reader();
///     let (result, head) = reader.read(vec![0; 9]).await;
///     assert_eq!((result?, &head[..]), (9, &b"[package]"[..]));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    pub(super) scan: Scan,
    /// The current chunk, and the number of bytes consumed of it.
    pub(super) current: Option<(Chunk, usize)>,
}

impl Reader {
    /// Sets the size of a chunk. The default is 128 KiB.
    ///
    /// # Panics
    ///
    /// If it is 0, or reading has started.
    #[must_use]
    pub fn chunk_len(mut self, len: usize) -> Reader {
        self.scan = self.scan.chunk_len(len);
        self
    }

    /// Sets the number of chunks read ahead. The default is 8.
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Reader {
        self.scan = self.scan.depth(depth);
        self
    }

    /// Reads into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of file.
    ///
    /// **Cancel safety:** no data is lost.
    pub async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        read_buffered(self, buf).await
    }

    /// Returns the next bytes without a copy; empty at the end. Call [`consume`](Reader::consume) with the number used.
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|(chunk, used)| *used == chunk.len()) {
            self.current = None;
            self.current = self.scan.next().await.transpose()?.map(|chunk| (chunk, 0));
        }
        Ok(self.current.as_ref().map_or(&[], |(chunk, used)| &chunk[*used..]))
    }

    /// Removes the first `count` bytes that [`fill_buf`](Reader::fill_buf) returned.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn consume(&mut self, count: usize) {
        match &mut self.current {
            Some((chunk, used)) => {
                assert!(count <= chunk.len() - *used, "consumed more bytes than are buffered");
                *used += count;
            }
            None => assert_eq!(count, 0, "consumed more bytes than are buffered"),
        }
    }
}
