//! Reading a file in order, ahead of who asks.

use std::io;

use super::scan::{Chunk, Scan};
use crate::io::{BufResult, IoBufMut, no_room};

/// Reads a file from its start to its end, in order, while the next pieces are already on their way.
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
    scan: Scan,
    /// The piece that is being given out, and how much of it was.
    current: Option<(Chunk, usize)>,
}

impl Reader {
    pub(super) fn new(scan: Scan) -> Reader {
        Reader { scan, current: None }
    }

    /// How long a piece is that is read at once (128 KiB).
    ///
    /// # Panics
    ///
    /// If it is 0, or something was read already.
    #[must_use]
    pub fn chunk_len(self, len: usize) -> Reader {
        let Reader { scan, current } = self;
        let scan = scan.chunk_len(len);
        Reader { scan, current }
    }

    /// How many pieces are read ahead (8).
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[must_use]
    pub fn depth(self, depth: usize) -> Reader {
        let Reader { scan, current } = self;
        let scan = scan.depth(depth);
        Reader { scan, current }
    }

    /// Copies what comes next into `buf`, from its start and up to its capacity, and gives the number of bytes; 0 is the
    /// end. Dropping the future loses nothing.
    pub async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_room()), buf);
        }
        let count = match self.fill_buf().await {
            Ok(bytes) => buf.fill_from(bytes),
            Err(error) => return (Err(error), buf),
        };
        self.consume(count);
        (Ok(count), buf)
    }

    /// What comes next, without a copy; empty at the end. [`consume`](Reader::consume) tells how much of it was used.
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.as_ref().is_none_or(|(chunk, used)| *used == chunk.len()) {
            self.current = None;
            self.current = self.scan.next().await.transpose()?.map(|chunk| (chunk, 0));
        }
        Ok(self.current.as_ref().map_or(&[], |(chunk, used)| &chunk[*used..]))
    }

    /// This much of what [`fill_buf`](Reader::fill_buf) gave was used.
    ///
    /// # Panics
    ///
    /// If it was less.
    pub fn consume(&mut self, count: usize) {
        match &mut self.current {
            Some((chunk, used)) => {
                assert!(count <= chunk.len() - *used, "more was used than there was");
                *used += count;
            }
            None => assert_eq!(count, 0, "more was used than there was"),
        }
    }
}
