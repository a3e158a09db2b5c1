//! A file in large pieces, several of them under way at once.

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
use crate::io::{AlignedBuf, IoBuf, IoBufMut};
use crate::task::JoinHandle;

/// What `O_DIRECT` may ask for.
const ALIGN: usize = 4096;

/// Reads a whole file from its start: keeps several reads under way, and gives the pieces in order, or each as soon as it is
/// there.
///
/// Its memory is bounded: as many pieces as are under way, and those that you hold; a dropped piece lends its memory to the
/// next. Dropping the future of [`next`](Scan::next) loses nothing.
///
/// # A file that changes meanwhile
///
/// The length is taken when the scan begins. If the file is shorter than that when its end is read, the scan fails with
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) and names the file; chunks that came before are complete. If the file
/// grows, the scan goes on to the end that it finds, so the new bytes may be included. Bytes that are overwritten are read
/// as they are at that moment. Files without a real length, as those in `/proc` and `/sys`, end where their contents end.
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
    /// Where the next read begins.
    next: u64,
    /// How long the file was when it was last asked; beyond this only one read is under way.
    expected: Option<u64>,
    ended: bool,
    reading: VecDeque<JoinHandle<io::Result<Chunk>>>,
    spare: Rc<Spare>,
}

/// Memory of pieces that were dropped.
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

    /// How long a piece is (128 KiB). The last one may be shorter. For a file that is opened past the page cache this must
    /// be a multiple of what its disk wants, mostly 4,096.
    ///
    /// # Panics
    ///
    /// If it is 0, or the scan has begun.
    #[must_use]
    pub fn chunk_len(mut self, len: usize) -> Scan {
        assert!(len > 0, "a piece has at least one byte");
        assert!(
            self.expected.is_none(),
            "the pieces' length is set before the first is asked for"
        );
        self.chunk_len = len;
        self
    }

    /// How many reads are under way at once (8).
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Scan {
        assert!(depth > 0, "at least one read is under way");
        self.depth = depth;
        self
    }

    /// Gives each piece as soon as it is there, and not in the order of the file.
    #[must_use]
    pub fn unordered(mut self) -> Scan {
        self.in_order = false;
        self
    }

    /// How long the file was when it was last asked; `None` before the first piece.
    pub fn file_len(&self) -> Option<u64> {
        self.expected
    }

    /// The next piece; `None` at the end. After an error there are no more.
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
                    // The file ends within this piece, or has ended before it.
                    if chunk.len() < self.chunk_len {
                        self.ended = true;
                        // Should the file have grown again behind it, there would be a gap.
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
        // Where the kernel has said that the file ends, one read looks whether it does.
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
            self.reading.push_back(crate::task::spawn(fill(file, chunk, expected)));
        }
        Ok(())
    }

    fn poll_reads(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let eligible = if self.in_order { 1 } else { self.reading.len() };
        for at in 0..eligible {
            if let Poll::Ready(result) = Pin::new(&mut self.reading[at]).poll(cx) {
                self.reading.remove(at);
                return Poll::Ready(result.unwrap_or_else(|error| Err(error.into())));
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

/// Reads one piece, as much of it as there is. A file that is shorter than `expected` by now is an error.
async fn fill(file: Rc<File>, mut chunk: Chunk, expected: u64) -> io::Result<Chunk> {
    let queue = IoQueue::default();
    let mut memory = chunk.memory.take().expect("a new piece has memory");
    let len = memory.capacity();
    let mut filled = 0;
    let mut has_checked = false;
    while filled < len {
        let offset = chunk.offset + filled as u64;
        let res;
        (res, memory) = file.read_piece(&queue, memory, filled, len, offset).await;
        match file.count("read", res)? {
            // It ends too early. If it did not shrink, it has grown again since, or its length was never real: read once more.
            0 if offset < expected && !has_checked => {
                file.check_len(expected).await?;
                has_checked = true;
                continue;
            }
            0 => break,
            count => filled += count,
        }
        // Past the cache the rest of a short read cannot be asked for: it would not be aligned. It is short at the end only.
        if file.is_direct() && !filled.is_multiple_of(ALIGN) {
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

/// A piece of a file. It can be written to another as it is.
pub struct Chunk {
    offset: u64,
    memory: Option<AlignedBuf>,
    spare: Weak<Spare>,
}

impl Chunk {
    /// Where in the file it begins.
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

// SAFETY: the memory is on the heap, at the same place wherever the piece is.
unsafe impl IoBuf for Chunk {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

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
