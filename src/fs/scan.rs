//! Reading a file in large chunks with several reads in flight.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use super::file::File;
use crate::inflight::queue::IoQueue;
use crate::io::{AlignedBuf, IoBufMut, impl_io_buf};
use crate::task::{JoinHandle, Value};

/// The alignment that `O_DIRECT` may require.
const ALIGN: usize = 4096;

/// Reads a whole file with several reads in flight, and returns the chunks in file order or as they complete. Created
/// by [`File::scan`].
///
/// Memory use is bounded by the reads in flight plus the chunks that you hold; the memory of a dropped chunk is reused.
/// Dropping the future of [`next`](Scan::next) loses nothing; dropping the scan cancels its reads.
///
/// # Concurrent changes
///
/// The length is read when the scan starts. If the file is shorter than that when its end is read, the scan fails with
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) and names the file; the earlier chunks are complete. If the file
/// grows, the scan continues to the new end, so the new bytes may be included. Overwritten bytes are read as they are
/// at that moment. Files without a real length, as in `/proc` and `/sys`, end where their contents end.
///
/// ```
/// use windlass::fs::File;
/// windlass::run(async {
///     let mut scan = File::open("Cargo.toml").await?.scan().chunk_len(64).depth(4);
///     let mut len = 0;
///     while let Some(chunk) = scan.next().await {
///         len += chunk?.len();
///     }
///     assert_eq!(len as u64, std::fs::metadata("Cargo.toml")?.len());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Scan {
    file: Rc<File>,
    chunk_len: usize,
    depth: usize,
    in_order: bool,
    /// The offset of the next read.
    next: u64,
    /// The length of the file when the scan started; beyond it only one read is in flight.
    expected: Option<u64>,
    ended: bool,
    /// A `Value`, because an unread `Result` would be reported when a scan ends early.
    reading: VecDeque<JoinHandle<Value<io::Result<Chunk>>>>,
    spare: Rc<Spare>,
}

/// The memory of dropped chunks.
type Spare = RefCell<Vec<AlignedBuf>>;

impl Scan {
    pub(super) fn new(file: File) -> Scan {
        Scan {
            file: Rc::new(file),
            chunk_len: 128 * 1024,
            depth: 8,
            in_order: true,
            next: 0,
            expected: None,
            ended: false,
            reading: VecDeque::new(),
            spare: Rc::default(),
        }
    }

    /// Sets the size of a chunk. The default is 128 KiB; the last chunk may be shorter. For a file opened with
    /// `O_DIRECT` it must be a multiple of the disk's block size, usually 4,096.
    ///
    /// # Panics
    ///
    /// If it is 0, or the scan has started.
    #[must_use]
    pub fn chunk_len(mut self, len: usize) -> Scan {
        assert!(len > 0, "the chunk length must not be 0");
        assert!(
            self.expected.is_none(),
            "the chunk length must be set before the first chunk is read"
        );
        self.chunk_len = len;
        self
    }

    /// Sets the number of reads in flight. The default is 8.
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Scan {
        assert!(depth > 0, "the depth must not be 0");
        self.depth = depth;
        self
    }

    /// Returns chunks as they complete and not in file order.
    #[must_use]
    pub fn unordered(mut self) -> Scan {
        self.in_order = false;
        self
    }

    /// The length of the file when the scan started; `None` before the first chunk.
    pub fn file_len(&self) -> Option<u64> {
        self.expected
    }

    /// Returns the next chunk, or `None` at the end of the file or after an error.
    pub async fn next(&mut self) -> Option<io::Result<Chunk>> {
        loop {
            if let Err(error) = self.start_reads().await {
                self.ended = true;
                return Some(Err(error));
            }
            if self.reading.is_empty() {
                return None;
            }
            let result = std::future::poll_fn(|cx| self.poll_reads(cx)).await;
            match result {
                Ok(chunk) => {
                    // The file ends in or before this chunk.
                    if chunk.len() < self.chunk_len {
                        self.ended = true;
                        // If the file has grown since, later chunks would leave a gap.
                        if self.in_order {
                            self.cancel();
                        }
                    }
                    if !chunk.is_empty() {
                        return Some(Ok(chunk));
                    }
                }
                Err(error) => {
                    self.ended = true;
                    self.cancel();
                    return Some(Err(error));
                }
            }
        }
    }

    async fn start_reads(&mut self) -> io::Result<()> {
        if self.ended {
            return Ok(());
        }
        let expected = match self.expected {
            Some(expected) => expected,
            None => self.file.metadata().await?.len(),
        };
        self.expected = Some(expected);
        // At the expected end, a single read checks whether the file ends there.
        while self.reading.len() < self.depth && (self.next < expected || self.reading.is_empty()) {
            let memory = self.spare.borrow_mut().pop();
            let memory = memory.unwrap_or_else(|| AlignedBuf::with_capacity(self.chunk_len, ALIGN));
            let chunk = Chunk {
                offset: self.next,
                memory: Some(memory),
                spare: Rc::downgrade(&self.spare),
            };
            self.next += self.chunk_len as u64;
            let file = self.file.clone();
            let reading = async move { Value(fill(file, chunk, expected).await) };
            self.reading.push_back(crate::task::spawn(reading));
        }
        Ok(())
    }

    fn poll_reads(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let eligible = if self.in_order { 1 } else { self.reading.len() };
        for at in 0..eligible {
            if let Poll::Ready(result) = Pin::new(&mut self.reading[at]).poll(cx) {
                self.reading.remove(at);
                return Poll::Ready(result.map_or_else(|error| Err(error.into()), |filled| filled.0));
            }
        }
        Poll::Pending
    }

    fn cancel(&mut self) {
        for reading in self.reading.drain(..) {
            reading.cancel();
        }
    }
}

/// Reads one chunk, up to the end of the file. Fails if the file has become shorter than `expected`.
async fn fill(file: Rc<File>, mut chunk: Chunk, expected: u64) -> io::Result<Chunk> {
    let queue = IoQueue::default();
    let mut memory = chunk.memory.take().expect("a new chunk has memory");
    let len = memory.capacity();
    let mut filled = 0;
    let mut has_checked = false;
    while filled < len {
        let offset = chunk.offset + filled as u64;
        let res;
        (res, memory) = file.read_piece(&queue, memory, filled, len, offset).await;
        match file.count("read", res)? {
            // The file ends early. If it has not shrunk, it has grown again or has no real length: read once more.
            0 if offset < expected && !has_checked => {
                file.check_len(expected).await?;
                has_checked = true;
                continue;
            }
            0 => break,
            count => filled += count,
        }
        // A direct read cannot continue at an unaligned offset. It is only short at the end of the file.
        if file.direct && !filled.is_multiple_of(ALIGN) {
            if chunk.offset + (filled as u64) < expected {
                file.check_len(expected).await?;
            }
            break;
        }
    }
    // SAFETY: the kernel has written this many bytes.
    unsafe { memory.set_filled(filled) };
    chunk.memory = Some(memory);
    Ok(chunk)
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("file", &self.file)
            .field("next", &self.next)
            .field("reading", &self.reading.len())
            .finish_non_exhaustive()
    }
}

/// A chunk of a file. It can be written to another file or stream without a copy.
pub struct Chunk {
    offset: u64,
    memory: Option<AlignedBuf>,
    spare: Weak<Spare>,
}

impl Chunk {
    /// The offset of the chunk in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl_io_buf!([] Chunk);

impl Drop for Chunk {
    fn drop(&mut self) {
        if let (Some(memory), Some(spare)) = (self.memory.take(), self.spare.upgrade()) {
            spare.borrow_mut().push(memory);
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("offset", &self.offset)
            .field("len", &self.len())
            .finish()
    }
}
