//! `File`: an open file.
//!
//! Reads and writes at an offset need no queue: any number may be in flight. Sequential calls share a position, so they
//! run one at a time. The position of a regular file is stored here and advances when a call returns its result, so a
//! dropped read leaves it unchanged. A pipe or terminal has no position: the kernel consumes bytes even for a dropped
//! read, and they are kept for the next one, as on a stream.

use std::cell::Cell;
use std::fmt;
use std::io::{self, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use super::metadata::{Metadata, of_file};
use super::options::OpenOptions;
use super::scan::Scan;
use super::{Reader, debug_path, run_op};
use crate::driver::op::{CURRENT, FileOp, Op};
use crate::driver::{Control, OsResult, Reply};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::queue::IoQueue;
use crate::inflight::transfer::{Payload, VectoredPayload};
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::vectored::{read_into_first, set_all_filled};
use crate::io::{BufResult, IoBuf, IoBufMut, check_exact_len, fill_range, no_capacity, read_exact_in_parts};
use crate::sys::{self, Fd, Foreign, OpenFlags, context, errno};

/// An open file.
///
/// Methods take `&self`: any number of reads and writes at offsets may run concurrently. Dropping the file closes it
/// after the operations in flight have completed.
///
/// **Cancel safety:** a dropped read loses nothing, except for [`read_exact`](File::read_exact) on a pipe. A dropped
/// write may have written any part of its buffer, and does not advance the position.
///
/// ```
/// use windlass::fs::File;
/// # let path = std::env::temp_dir().join(format!("windlass-doc-file-{}", std::process::id()));
/// windlass::run(async {
///     let file = File::create(&path).await?;
///     file.write_all_at("hello, world", 0).await.0?;
///     file.sync_all().await?;
///
///     let file = File::open(&path).await?;
///     let (result, buf) = file.read_at(vec![0; 5], 7).await;
///     assert_eq!((result?, &buf[..]), (5, &b"world"[..]));
///     windlass::fs::remove_file(&path).await
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    owned: OwnedDescriptor,
    path: Box<Path>,
    /// Where the next sequential call starts; `None` if the file is not seekable.
    position: Option<Cell<u64>>,
    append: bool,
    pub(super) direct: bool,
}

impl File {
    /// Opens a file for reading.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file for writing: creates it, or truncates it.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .await
    }

    /// Creates a file for reading and writing; fails if it exists.
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .await
    }

    /// Options for opening a file.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    pub(super) fn new(owned: OwnedDescriptor, path: &Path, append: bool, direct: bool) -> File {
        File {
            path: path.into(),
            position: kernel_position(&owned, SeekFrom::Current(0)).ok().map(Cell::new),
            append,
            direct,
            owned,
        }
    }

    /// Converts a std file. The position is kept.
    ///
    /// # Panics
    ///
    /// Outside a loop, and on a driver that does not accept kernel descriptors
    /// ([`FdSpace::Own`](crate::driver::FdSpace::Own)).
    #[track_caller]
    pub fn from_std(file: std::fs::File) -> File {
        let core = LoopCore::current("from_std").rc();
        if let Err(error) = core.check_takes_kernel_descriptors() {
            panic!("{error}");
        }
        let owned = OwnedDescriptor::new(core, sys::from_std(file));
        let flags = OpenFlags::of(owned.fd());
        File::new(owned, Path::new(""), flags.append, flags.direct)
    }

    /// Converts to a std file with the same position. Fails while an operation is in flight; the error has the file.
    pub fn into_std(self) -> Result<std::fs::File, IntoStdError<File>> {
        let released = self.release();
        IntoStdError::convert(self, released)
    }

    fn release(&self) -> io::Result<Foreign> {
        if Rc::strong_count(&self.owned.descriptor) > 1 {
            let message = "an operation on the file is in flight: await it first";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        if let Some(position) = &self.position {
            kernel_position(&self.owned, SeekFrom::Start(position.get()))?;
        }
        self.owned.release()
    }

    fn core(&self) -> &LoopCore {
        self.owned.core()
    }

    fn fd(&self) -> Fd {
        self.owned.fd()
    }

    pub(crate) fn descriptor(&self) -> &OwnedDescriptor {
        &self.owned
    }

    /// Adds the action, and the path if it is known, to an error.
    fn explain(&self, action: &str, error: io::Error) -> io::Error {
        match self.path.as_os_str().is_empty() {
            true => error,
            false => context(format_args!("{action} {}", self.path.display()), error),
        }
    }

    /// Fails if the file is shorter than it was.
    pub(super) async fn check_len(&self, before: u64) -> io::Result<()> {
        let now = self.metadata().await?.len();
        match now < before {
            true => Err(self.explain("read", sys::shrank(before, now))),
            false => Ok(()),
        }
    }

    /// The number of bytes that an operation transferred.
    pub(super) fn count(&self, action: &str, res: OsResult) -> io::Result<usize> {
        let explain = |code| self.explain(action, from_code(code));
        res.map(|count| count as usize).map_err(explain)
    }

    // Reads and writes at an offset.

    /// Reads at `offset` into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of
    /// file. The length of a `Vec` is set to that number.
    pub async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let capacity = buf.capacity();
        if capacity == 0 {
            return (Err(no_capacity()), buf);
        }
        let queue = IoQueue::default();
        let (res, buf) = self.read_piece(&queue, buf, 0, capacity, in_file(offset)).await;
        self.finish_read(res, buf)
    }

    /// Reads at `offset` and fills `buf` to its length (not capacity); `UnexpectedEof` if the file ends first.
    pub async fn read_exact_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<(), B> {
        if let Some(result) = check_exact_len(&buf) {
            return (result, buf);
        }
        let len = buf.len();
        let queue = IoQueue::default();
        let mut filled = 0;
        while filled < len {
            let from = in_file(offset.saturating_add(filled as u64));
            let res;
            (res, buf) = self.read_piece(&queue, buf, filled, len, from).await;
            match self.count("read", res) {
                Ok(0) => {
                    let end = io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the file ended before the buffer was full",
                    );
                    return (Err(self.explain("read", end)), buf);
                }
                Ok(count) => filled += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes from `buf` at `offset` and returns the number of bytes written. If the file was opened with `append`,
    /// Linux ignores the offset and writes at the end.
    pub async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let queue = IoQueue::default();
        let (op_result, (_, buf)) = self.start_write(&queue, buf, 0, in_file(offset)).await;
        (self.count("write", op_result.res()), buf)
    }

    /// Writes all of `buf` at `offset`.
    pub async fn write_all_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<(), B> {
        let queue = IoQueue::default();
        let offset = |written| in_file(offset.saturating_add(written));
        let (result, _, buf) = self.write_whole(&queue, buf, offset).await;
        (result, buf)
    }

    /// Reads at `offset` into several buffers, filling each to its capacity before the next; 0 means end of file.
    pub async fn read_vectored_at<B: IoBufMut>(&self, bufs: Vec<B>, offset: u64) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(|buf| buf.capacity() == 0) {
            return (Err(no_capacity()), bufs);
        }
        let queue = IoQueue::default();
        let (fd, offset) = (self.fd(), in_file(offset));
        let op = |slices, count| {
            Op::File(FileOp::ReadVectoredAt {
                fd,
                slices,
                count,
                offset,
            })
        };
        let op_future = self.owned.start_read_vectored(&queue, OnOrphan::Discard, bufs, op);
        let (op_result, (_, mut bufs, slices)) = op_future.await;
        let result = self.count("read", op_result.res());
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, in order.
            unsafe { set_all_filled(&mut bufs, &slices, count) };
        }
        (result, bufs)
    }

    /// Writes from several buffers, at most 1,024, in order at `offset` and returns the number of bytes written.
    pub async fn write_vectored_at<B: IoBuf>(&self, bufs: Vec<B>, offset: u64) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let queue = IoQueue::default();
        let (op_result, (_, bufs, _)) = self.start_write_vectored(&queue, bufs, in_file(offset)).await;
        (self.count("write", op_result.res()), bufs)
    }

    // Sequential reads and writes.

    /// Reads into `buf` at the file's position, advances it and returns the number of bytes; 0 means end of file.
    pub async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        let queue = &self.owned.descriptor.read;
        let _guard = queue.acquire().await;
        if let Some(position) = &self.position {
            let (result, buf) = self.read_at(buf, position.get()).await;
            if let Ok(count) = result {
                position.set(position.get() + count as u64);
            }
            return (result, buf);
        }
        let capacity = buf.capacity();
        if capacity == 0 {
            return (Err(no_capacity()), buf);
        }
        queue.settle(self.core()).await;
        if let Some(served) = queue.serve(&mut buf) {
            return (served.map_err(|code| self.explain("read", from_code(code))), buf);
        }
        let op_future = self.start_read(queue, OnOrphan::Keep, buf, 0..capacity, CURRENT);
        let (op_result, (_, buf)) = op_future.await;
        self.finish_read(op_result.res(), buf)
    }

    /// Fills `buf` to its length (not capacity) and advances the position; `UnexpectedEof` if the file ends first.
    ///
    /// **Cancel safety:** on cancellation or an error the position does not change. On a file without positions, such
    /// as a pipe, an error returns the partial data in the buffer, and cancellation loses it.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        let Some(position) = &self.position else {
            return read_exact_in_parts(&mut &*self, buf).await;
        };
        let _guard = self.owned.descriptor.read.acquire().await;
        let len = buf.len() as u64;
        let (result, buf) = self.read_exact_at(buf, position.get()).await;
        if result.is_ok() {
            position.set(position.get() + len);
        }
        (result, buf)
    }

    /// Writes from `buf` at the file's position, advances it and returns the number of bytes written.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let _position = self.owned.descriptor.read.acquire().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (op_result, (_, buf)) = self.start_write(queue, buf, 0, self.write_offset(0)).await;
        let result = self.count("write", op_result.res());
        if let Ok(count) = result {
            self.advance_position(count as u64);
        }
        (result, buf)
    }

    /// Writes all of `buf` at the file's position and advances it.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let _position = self.owned.descriptor.read.acquire().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (result, written, buf) = self.write_whole(queue, buf, |written| self.write_offset(written)).await;
        // Also after an error: some bytes may have been written.
        self.advance_position(written);
        (result, buf)
    }

    /// Reads into several buffers at the file's position, advances it and returns the number of bytes.
    pub async fn read_vectored<B: IoBufMut>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if let Some(position) = &self.position {
            let _guard = self.owned.descriptor.read.acquire().await;
            let (result, bufs) = self.read_vectored_at(bufs, position.get()).await;
            if let Ok(count) = result {
                position.set(position.get() + count as u64);
            }
            return (result, bufs);
        }
        read_into_first(bufs, async |buf| self.read(buf).await).await
    }

    /// Writes from several buffers at the file's position, advances it and returns the number of bytes written.
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let _position = self.owned.descriptor.read.acquire().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (op_result, (_, bufs, _)) = self.start_write_vectored(queue, bufs, self.write_offset(0)).await;
        let result = self.count("write", op_result.res());
        if let Ok(count) = result {
            self.advance_position(count as u64);
        }
        (result, bufs)
    }

    /// Moves the file's position and returns it. It may be past the end, but not before the start.
    pub async fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let _guard = self.owned.descriptor.read.acquire().await;
        let Some(position) = &self.position else {
            return kernel_position(&self.owned, to).map_err(|error| self.explain("seek in", error));
        };
        let moved = match to {
            SeekFrom::Start(_) | SeekFrom::End(_) => kernel_position(&self.owned, to),
            SeekFrom::Current(by) => match position.get().checked_add_signed(by) {
                Some(offset) => kernel_position(&self.owned, SeekFrom::Start(offset)),
                // The error that the kernel returns for a position before the start.
                None => Err(from_code(errno::INVALID)),
            },
        };
        let moved = moved.map_err(|error| self.explain("seek in", error))?;
        position.set(moved);
        Ok(moved)
    }

    /// Returns the file's position.
    pub async fn stream_position(&self) -> io::Result<u64> {
        self.seek(SeekFrom::Current(0)).await
    }

    /// Reads from the position to the end of the file.
    pub(super) async fn read_whole(&self) -> io::Result<Vec<u8>> {
        let expected = match self.position {
            Some(_) => self.metadata().await?.len(),
            None => 0,
        };
        // One byte more than expected, so that the read of the last byte does not fill the buffer.
        let mut bytes = Vec::new();
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        let mut more = expected.saturating_add(1).max(MIN_CAPACITY);
        let queue = IoQueue::default();
        let mut filled = 0;
        loop {
            if filled == bytes.capacity() {
                let reserved = bytes.try_reserve(more);
                reserved.map_err(|error| self.explain("read", error.into()))?;
                more = bytes.capacity();
            }
            let end = bytes.capacity();
            let offset = match &self.position {
                Some(position) => position.get() + filled as u64,
                None => CURRENT,
            };
            let res;
            (res, bytes) = self.read_piece(&queue, bytes, filled, end, offset).await;
            match self.count("read", res)? {
                0 => return Ok(bytes),
                count => filled += count,
            }
            // SAFETY: the kernel has written this many bytes.
            unsafe { bytes.set_len(filled) };
        }
    }

    /// The offset of a sequential write.
    fn write_offset(&self, written: u64) -> u64 {
        match &self.position {
            Some(position) if !self.append => position.get().saturating_add(written),
            // The kernel appends at the end.
            _ => CURRENT,
        }
    }

    /// Advances the position after a sequential write.
    fn advance_position(&self, count: u64) {
        let Some(position) = &self.position else { return };
        let moved = match self.append {
            true => kernel_position(&self.owned, SeekFrom::Current(0)).ok(),
            false => Some(position.get() + count),
        };
        position.set(moved.unwrap_or(position.get()));
    }

    // Operations on the whole file.

    /// Writes all data and metadata of the file to the disk (`fsync`).
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(false).await
    }

    /// Writes all data of the file to the disk, with only the metadata needed to read it (`fdatasync`).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(true).await
    }

    async fn sync(&self, data_only: bool) -> io::Result<()> {
        let fd = self.fd();
        self.run("sync", Op::File(FileOp::Sync { fd, data_only })).await
    }

    /// Returns the metadata of the file.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let descriptor = self.owned.descriptor.clone();
        let asked = of_file(self.core(), descriptor, self.fd()).await;
        asked.map_err(|error| self.explain("metadata of", error))
    }

    /// Sets the permissions of the file.
    pub async fn set_permissions(&self, permissions: std::fs::Permissions) -> io::Result<()> {
        let (fd, path, mode) = (self.fd(), std::ptr::null(), sys::mode_of(&permissions));
        let op = Op::File(FileOp::SetMode { fd, path, mode });
        self.run("set permissions of", op).await
    }

    /// Truncates the file, or extends it with zeroes. The position does not change.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let fd = self.fd();
        self.run("truncate", Op::File(FileOp::Truncate { fd, len })).await
    }

    /// Reserves disk space for `len` bytes from `offset` on, extending the file (`fallocate`). Linux and FreeBSD only.
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let fd = self.fd();
        self.run("allocate", Op::File(FileOp::Allocate { fd, offset, len }))
            .await
    }

    async fn run(&self, action: &str, op: Op) -> io::Result<()> {
        let descriptor = self.owned.descriptor.clone();
        let done = run_op(self.core(), descriptor, |_| op).await;
        done.map(drop).map_err(|error| self.explain(action, error))
    }

    // Reading ahead.

    /// Reads the whole file from its start in large chunks, several of them concurrently.
    pub fn scan(self) -> Scan {
        Scan::new(self)
    }

    /// Reads the file sequentially from its start with read-ahead.
    pub fn reader(self) -> Reader {
        let scan = self.scan();
        Reader { scan, current: None }
    }

    // Starting operations.

    /// One read into `buf[begin..end]`: synchronously from the page cache if possible, else by an operation. One of many
    /// small reads in a turn is an operation too, where operations are submitted together.
    pub(super) async fn read_piece<B: IoBufMut>(
        &self,
        queue: &IoQueue,
        mut buf: B,
        begin: usize,
        end: usize,
        offset: u64,
    ) -> (OsResult, B) {
        let len = end - begin;
        // Direct and unseekable files are not cached, and the copy of a large read would delay other tasks.
        let may_be_cached = !self.direct && offset != CURRENT && len <= MAX_INLINE_READ;
        if may_be_cached && !(len <= MAX_QUEUED_READ && self.core().queues_read()) {
            self.core().yield_if_exhausted().await;
            let (ptr, len) = fill_range(&mut buf, begin, end);
            let fd = self.fd();
            let op = Op::File(FileOp::ReadAt { fd, ptr, len, offset });
            // SAFETY: `op` points into `buf`, which this function owns and does not touch until `attempt` returns.
            if let Some(res) = unsafe { self.core().attempt(&op) } {
                return (res, buf);
            }
        }
        let op_future = self.start_read(queue, OnOrphan::Discard, buf, begin..end, offset);
        if self.direct {
            self.core().direct_read_started();
        }
        let (op_result, (_, buf)) = op_future.await;
        (op_result.res(), buf)
    }

    /// The result of a read into the whole of `buf`, whose length it sets.
    fn finish_read<B: IoBufMut>(&self, res: OsResult, mut buf: B) -> BufResult<usize, B> {
        let result = self.count("read", res);
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, which is at most the capacity.
            unsafe { buf.set_filled(count) };
        }
        (result, buf)
    }

    /// One read into a range of `buf` by an operation.
    fn start_read<'a, B: IoBufMut>(
        &'a self,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        buf: B,
        range: Range<usize>,
        offset: u64,
    ) -> OpFuture<'a, Payload<B>> {
        let fd = self.fd();
        let op = |ptr, len| Op::File(FileOp::ReadAt { fd, ptr, len, offset });
        self.owned.start_read(queue, on_orphan, buf, range, op)
    }

    /// One write from `buf[begin..]`.
    fn start_write<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        buf: B,
        begin: usize,
        offset: u64,
    ) -> OpFuture<'a, Payload<B>> {
        let fd = self.fd();
        let op = |ptr, len| Op::File(FileOp::WriteAt { fd, ptr, len, offset });
        self.owned.start_write(queue, buf, begin, op)
    }

    fn start_write_vectored<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        bufs: Vec<B>,
        offset: u64,
    ) -> OpFuture<'a, VectoredPayload<B>> {
        let fd = self.fd();
        let op = |slices, count| {
            Op::File(FileOp::WriteVectoredAt {
                fd,
                slices,
                count,
                offset,
            })
        };
        self.owned.start_write_vectored(queue, bufs, 0, Vec::new(), op)
    }

    /// Writes all of `buf`; `offset` maps the bytes written so far to an offset. Returns their number, also on an
    /// error.
    async fn write_whole<B: IoBuf>(
        &self,
        queue: &IoQueue,
        mut buf: B,
        offset: impl Fn(u64) -> u64,
    ) -> (io::Result<()>, u64, B) {
        let len = buf.len();
        let mut written = 0;
        let mut result = Ok(());
        while written < len && result.is_ok() {
            let op_result;
            (op_result, (_, buf)) = self.start_write(queue, buf, written, offset(written as u64)).await;
            match self.count("write", op_result.res()) {
                Ok(0) => result = Err(self.explain("write", io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) => result = Err(error),
            }
        }
        (result, written as u64, buf)
    }
}

/// The largest read that is copied out of the page cache inline: some ten microseconds.
const MAX_INLINE_READ: usize = 64 * 1024;

/// The largest read that is queued with others instead. A queue saves a tenth of a microsecond per read, which is little
/// next to a longer copy, and the bytes of a read that was queued are no longer in the nearest cache when the task runs.
const MAX_QUEUED_READ: usize = 8 * 1024;

/// The initial capacity of `read_whole` if the kernel does not know the length of the file.
const MIN_CAPACITY: usize = 4096;

/// Clamps a user's offset: `u64::MAX` would mean the kernel's position (`CURRENT`); the value below it is an error.
fn in_file(offset: u64) -> u64 {
    offset.min(CURRENT - 1)
}

/// Sets or reads the kernel's position of a file.
fn kernel_position(file: &OwnedDescriptor, to: SeekFrom) -> io::Result<u64> {
    match file.core().control(Control::Seek { fd: file.fd(), to })? {
        Reply::Position(position) => Ok(position),
        other => unreachable!("unexpected reply to a seek: {other:?}"),
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("File");
        debug.field("fd", &self.fd());
        debug_path(&mut debug, &self.path);
        debug.field("position", &self.position.as_ref().map(Cell::get)).finish()
    }
}
