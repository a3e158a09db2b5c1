//! An open file: how a call becomes an op, and its landing a result.
//!
//! Reading and writing at an offset needs no lane: any number of them may be under way at once. Sequential calls share a
//! position, so they go one after the other. The position of an ordinary file is kept here and moves when a result is
//! given out; so a dropped read has not happened. A pipe or terminal has no positions: there the kernel moves on whether
//! anybody waits or not, and what a dropped read received is kept for the next, as on a stream.

use std::cell::Cell;
use std::fmt;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::rc::Rc;

use super::metadata::{Metadata, of_file};
use super::options::OpenOptions;
use super::scan::Scan;
use super::{Reader, carry_out, show_path};
use crate::driver::op::{CURRENT, FileOp, MAX_LEN, Op};
use crate::driver::{Control, OsResult, Reply};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::{Descriptor, IntoStdError, OwnedDescriptor};
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::vectored::{lend_to_fill, lend_to_read, set_all_filled, set_others_empty};
use crate::io::{BufResult, IoBuf, IoBufMut, no_length, no_room, part_of, read_exact_in_parts, rest_of};
use crate::sys::{self, Fd, IoVec, OpenFlags, context, errno};

/// An open file.
///
/// Calls take `&self`: any number of reads and writes at offsets may be under way at once. **Cancelling** a read loses
/// nothing; a cancelled write may have written any part of its buffer. Dropping the file closes it when everything under
/// way is over.
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
    /// Where the next sequential call begins; `None` if the file has no positions.
    position: Option<Cell<u64>>,
    append: bool,
    direct: bool,
}

type Payload<B> = (Rc<Descriptor>, B);
type VectoredPayload<B> = (Rc<Descriptor>, Vec<B>, Vec<IoVec>);

/// The error of reading a file that got shorter meanwhile.
pub(super) fn shrank(before: u64, now: u64) -> io::Error {
    let what = format!("the file shrank from {before} to {now} bytes while it was being read");
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}

impl File {
    /// Opens a file for reading.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file for writing: makes it, or drops what is in it.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .await
    }

    /// Makes a file for reading and writing, and fails if it is there already.
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .await
    }

    /// How a file is opened otherwise.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    pub(super) fn new(owned: OwnedDescriptor, path: &Path, append: bool, direct: bool) -> File {
        let begin = kernel_position(owned.core(), owned.fd(), SeekFrom::Current(0));
        File {
            path: path.into(),
            position: begin.ok().map(Cell::new),
            append,
            direct,
            owned,
        }
    }

    /// Makes a file of one of std's. Its position is kept.
    ///
    /// # Panics
    ///
    /// Outside of a loop, and on a driver that takes no descriptors of the kernel's
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

    /// Makes it one of std's, with the same position. Refused, with the file, while something is under way.
    pub fn into_std(self) -> Result<std::fs::File, IntoStdError<File>> {
        let refuse = |inner, error| Err(IntoStdError { inner, error });
        if Rc::strong_count(&self.owned.descriptor) > 1 {
            let why = "something is under way on the file: await it first";
            return refuse(self, io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        if let Some(position) = &self.position {
            let moved = kernel_position(self.core(), self.owned.fd(), SeekFrom::Start(position.get()));
            if let Err(error) = moved {
                return refuse(self, error);
            }
        }
        let File {
            owned,
            path,
            position,
            append,
            direct,
        } = self;
        match owned.release() {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, owned)) => Err(IntoStdError {
                error,
                inner: File {
                    owned,
                    path,
                    position,
                    append,
                    direct,
                },
            }),
        }
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

    /// Says what was being done, and to which file if that is known.
    fn explain(&self, what: &str, error: io::Error) -> io::Error {
        match self.path.as_os_str().is_empty() {
            true => error,
            false => context(format_args!("{what} {}", self.path.display()), error),
        }
    }

    /// Fails if the file is shorter than it was.
    pub(super) async fn check_len(&self, before: u64) -> io::Result<()> {
        let now = self.metadata().await?.len();
        match now < before {
            true => Err(self.explain("read", shrank(before, now))),
            false => Ok(()),
        }
    }

    /// How many bytes an operation moved.
    pub(super) fn count(&self, what: &str, res: OsResult) -> io::Result<usize> {
        match res {
            Ok(count) => Ok(count as usize),
            Err(code) => Err(self.explain(what, from_code(code))),
        }
    }

    // At an offset.

    /// Reads into `buf`, from its start and up to its capacity, beginning at `offset` in the file. Gives the number of bytes;
    /// 0 is the end of the file. A `Vec` then has just that length.
    pub async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let capacity = buf.capacity();
        if capacity == 0 {
            return (Err(no_room()), buf);
        }
        let queue = IoQueue::default();
        let (res, mut buf) = self.read_piece(&queue, buf, 0, capacity, in_file(offset)).await;
        let result = self.count("read", res);
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
            unsafe { buf.set_filled(count) };
        }
        (result, buf)
    }

    /// Fills `buf` up to its length (not its capacity), beginning at `offset` in the file. If that ends first, the error is
    /// `UnexpectedEof`.
    pub async fn read_exact_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<(), B> {
        let len = buf.len();
        if len == 0 {
            return match buf.capacity() {
                0 => (Ok(()), buf),
                _ => (Err(no_length()), buf),
            };
        }
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

    /// Writes from `buf`, beginning at `offset` in the file, and gives how many bytes were taken. On a file that was opened
    /// to append, Linux writes at the end whatever the offset is.
    pub async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let queue = IoQueue::default();
        let (op_result, (_, buf)) = self.start_write(&queue, buf, 0, in_file(offset)).await;
        (self.count("write", op_result.res), buf)
    }

    /// Writes the whole of `buf`, beginning at `offset` in the file.
    pub async fn write_all_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<(), B> {
        let queue = IoQueue::default();
        let offset = |written| in_file(offset.saturating_add(written));
        let (result, _, buf) = self.write_whole(&queue, buf, offset).await;
        (result, buf)
    }

    /// Reads into several buffers, each filled to its capacity before the next, beginning at `offset` in the file.
    pub async fn read_vectored_at<B: IoBufMut>(&self, bufs: Vec<B>, offset: u64) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(|buf| buf.capacity() == 0) {
            return (Err(no_room()), bufs);
        }
        let queue = IoQueue::default();
        let (op_result, (_, mut bufs, slices)) = self
            .start_read_vectored(&queue, OnOrphan::Discard, bufs, in_file(offset))
            .await;
        let result = self.count("read", op_result.res);
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, in order.
            unsafe { set_all_filled(&mut bufs, &slices, count) };
        }
        (result, bufs)
    }

    /// Writes from several buffers, one after the other, beginning at `offset` in the file, and gives how many bytes were
    /// taken. At most 1,024 buffers are looked at in one call.
    pub async fn write_vectored_at<B: IoBuf>(&self, bufs: Vec<B>, offset: u64) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let queue = IoQueue::default();
        let (op_result, (_, bufs, _)) = self.start_write_vectored(&queue, bufs, in_file(offset)).await;
        (self.count("write", op_result.res), bufs)
    }

    // At the position.

    /// Reads into `buf` from the file's position, and moves that on. 0 bytes are the end of the file.
    pub async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        let queue = &self.owned.descriptor.read;
        let _hold = queue.hold().await;
        if let Some(position) = &self.position {
            let (result, buf) = self.read_at(buf, position.get()).await;
            if let Ok(count) = result {
                position.set(position.get() + count as u64);
            }
            return (result, buf);
        }
        let capacity = buf.capacity();
        if capacity == 0 {
            return (Err(no_room()), buf);
        }
        queue.settle(self.core()).await;
        if queue.has_leftover(self.core()).await
            && let Some(served) = queue.serve(&mut buf)
        {
            return (served.map_err(|code| self.explain("read", from_code(code))), buf);
        }
        let (op_result, (_, mut buf)) = self.start_read(queue, OnOrphan::Keep, buf, 0, capacity, CURRENT).await;
        let result = self.count("read", op_result.res);
        if let Ok(count) = result {
            // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
            unsafe { buf.set_filled(count) };
        }
        (result, buf)
    }

    /// Fills `buf` up to its length (not its capacity) from the file's position, and moves that on. If the file ends first the
    /// error is `UnexpectedEof`. Then, and when the future is dropped, the position stays where it was; only where there are no
    /// positions, as in a pipe, what was read is in the buffer, or lost with the future.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        let Some(position) = &self.position else {
            return read_exact_in_parts(&mut &*self, buf).await;
        };
        let _hold = self.owned.descriptor.read.hold().await;
        let len = buf.len() as u64;
        let (result, buf) = self.read_exact_at(buf, position.get()).await;
        if result.is_ok() {
            position.set(position.get() + len);
        }
        (result, buf)
    }

    /// Writes from `buf` at the file's position, and moves that on. Gives how many bytes were taken.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let _position = self.owned.descriptor.read.hold().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (op_result, (_, buf)) = self.start_write(queue, buf, 0, self.write_offset(0)).await;
        let result = self.count("write", op_result.res);
        if let Ok(count) = result {
            self.wrote(count as u64);
        }
        (result, buf)
    }

    /// Writes the whole of `buf` at the file's position, and moves that on.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let _position = self.owned.descriptor.read.hold().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (result, written, buf) = self.write_whole(queue, buf, |written| self.write_offset(written)).await;
        // What was written before an error was written.
        self.wrote(written);
        (result, buf)
    }

    /// Reads into several buffers from the file's position, and moves that on.
    pub async fn read_vectored<B: IoBufMut>(&self, mut bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if let Some(position) = &self.position {
            let _hold = self.owned.descriptor.read.hold().await;
            let (result, bufs) = self.read_vectored_at(bufs, position.get()).await;
            if let Ok(count) = result {
                position.set(position.get() + count as u64);
            }
            return (result, bufs);
        }
        let Some(first) = bufs.iter().position(|buf| buf.capacity() > 0) else {
            return (Err(no_room()), bufs);
        };
        // Where there are no positions a read of one buffer says the same, one buffer at a time.
        let buf = bufs.remove(first);
        let (result, buf) = self.read(buf).await;
        bufs.insert(first, buf);
        if result.is_ok() {
            set_others_empty(&mut bufs, first);
        }
        (result, bufs)
    }

    /// Writes from several buffers at the file's position, and moves that on. Gives how many bytes were taken.
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let _position = self.owned.descriptor.read.hold().await;
        let queue = &self.owned.descriptor.write;
        queue.settle(self.core()).await;
        let (op_result, (_, bufs, _)) = self.start_write_vectored(queue, bufs, self.write_offset(0)).await;
        let result = self.count("write", op_result.res);
        if let Ok(count) = result {
            self.wrote(count as u64);
        }
        (result, bufs)
    }

    /// Moves the file's position, and gives it. Past the end is legal; before the beginning is an error.
    pub async fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let _hold = self.owned.descriptor.read.hold().await;
        let Some(position) = &self.position else {
            let refused = kernel_position(self.core(), self.fd(), to);
            return refused.map_err(|error| self.explain("seek in", error));
        };
        let moved = match to {
            SeekFrom::Start(offset) => kernel_position(self.core(), self.fd(), SeekFrom::Start(offset)),
            SeekFrom::End(_) => kernel_position(self.core(), self.fd(), to),
            SeekFrom::Current(by) => match position.get().checked_add_signed(by) {
                Some(offset) => kernel_position(self.core(), self.fd(), SeekFrom::Start(offset)),
                // As the kernel says it of what lies before the beginning.
                None => Err(from_code(errno::INVALID)),
            },
        };
        let moved = moved.map_err(|error| self.explain("seek in", error))?;
        position.set(moved);
        Ok(moved)
    }

    /// The file's position.
    pub async fn stream_position(&self) -> io::Result<u64> {
        self.seek(SeekFrom::Current(0)).await
    }

    /// Reads from the position to the end of the file.
    pub(super) async fn read_whole(&self) -> io::Result<Vec<u8>> {
        let expected = match self.position {
            Some(_) => self.metadata().await?.len(),
            None => 0,
        };
        // One more than expected: the read that fills it would not say that it was the last.
        let mut bytes = Vec::new();
        let room = usize::try_from(expected)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .max(SMALLEST_ROOM);
        bytes
            .try_reserve_exact(room)
            .map_err(|error| self.explain("read", error.into()))?;
        let queue = IoQueue::default();
        let mut filled = 0;
        loop {
            if filled == bytes.capacity() {
                bytes
                    .try_reserve(bytes.capacity())
                    .map_err(|error| self.explain("read", error.into()))?;
            }
            let (begin, end) = (filled, bytes.capacity());
            let offset = self
                .position
                .as_ref()
                .map_or(CURRENT, |position| position.get() + filled as u64);
            let res;
            (res, bytes) = self.read_piece(&queue, bytes, begin, end, offset).await;
            match self.count("read", res)? {
                0 => return Ok(bytes),
                count => filled += count,
            }
            // SAFETY: the kernel has written this many bytes.
            unsafe { bytes.set_len(filled) };
        }
    }

    /// Where a sequential write goes.
    fn write_offset(&self, written: u64) -> u64 {
        match &self.position {
            Some(position) if !self.append => position.get().saturating_add(written),
            // The kernel knows the end.
            _ => CURRENT,
        }
    }

    /// Moves the position on behind a sequential write.
    fn wrote(&self, count: u64) {
        let Some(position) = &self.position else { return };
        let moved = match self.append {
            true => kernel_position(self.core(), self.fd(), SeekFrom::Current(0)).ok(),
            false => Some(position.get() + count),
        };
        position.set(moved.unwrap_or(position.get()));
    }

    // About the file.

    /// Waits until everything that was written, and everything known of the file, is on its disk.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(false).await
    }

    /// The same for the contents alone.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(true).await
    }

    async fn sync(&self, data_only: bool) -> io::Result<()> {
        let fd = self.fd();
        self.run("sync", Op::File(FileOp::Sync { fd, data_only })).await
    }

    /// What the kernel knows of the file.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let descriptor = self.owned.descriptor.clone();
        let asked = of_file(self.core(), descriptor, self.fd()).await;
        asked.map_err(|error| self.explain("metadata of", error))
    }

    /// Cuts the file off, or lengthens it with zeroes. The position stays.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let fd = self.fd();
        self.run("truncate", Op::File(FileOp::Truncate { fd, len })).await
    }

    /// Reserves space on the disk for `len` bytes from `offset` on, and lengthens the file if it ends before that
    /// (`fallocate`). Linux and FreeBSD.
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let fd = self.fd();
        self.run("allocate", Op::File(FileOp::Allocate { fd, offset, len }))
            .await
    }

    async fn run(&self, what: &str, op: Op) -> io::Result<()> {
        let descriptor = self.owned.descriptor.clone();
        let done = carry_out(self.core(), descriptor, |_| op).await;
        done.map(drop).map_err(|error| self.explain(what, error))
    }

    // In large pieces.

    /// Reads the whole file from its start in large pieces, several of them under way at once.
    pub fn scan(self) -> Scan {
        Scan::new(self)
    }

    /// Reads the file from its start, in order, ahead of who asks.
    pub fn reader(self) -> Reader {
        Reader::new(self.scan())
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    // From a call to an op.

    /// One read into `buf[begin..end]`: of what is in the page cache, here and now, or by a flight.
    pub(super) async fn read_piece<B: IoBufMut>(
        &self,
        queue: &IoQueue,
        mut buf: B,
        begin: usize,
        end: usize,
        offset: u64,
    ) -> (OsResult, B) {
        // What goes past the cache is not there, and what has no positions is not cached. A large piece would be copied for
        // longer than others should wait.
        if !self.direct && offset != CURRENT && end - begin <= AT_ONCE {
            self.core().yield_if_exhausted().await;
            let op = read_into(&mut buf, begin, end, self.fd(), offset);
            // SAFETY: what `op` points to is the buffer's, which nobody else uses until this returns.
            if let Some(res) = unsafe { self.core().attempt(op) } {
                return (res, buf);
            }
        }
        let (op_result, (_, buf)) = self.start_read(queue, OnOrphan::Discard, buf, begin, end, offset).await;
        (op_result.res, buf)
    }

    /// One read into `buf[begin..end]`, by a flight.
    fn start_read<'a, B: IoBufMut>(
        &'a self,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        buf: B,
        begin: usize,
        end: usize,
        offset: u64,
    ) -> OpFuture<'a, Payload<B>> {
        let (core, fd) = (self.core(), self.fd());
        let payload = (self.owned.descriptor.clone(), buf);
        OpFuture::start_op(core, queue, on_orphan, payload, 0, move |(_, buf)| {
            read_into(buf, begin, end, fd, offset)
        })
    }

    fn start_read_vectored<'a, B: IoBufMut>(
        &'a self,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        bufs: Vec<B>,
        offset: u64,
    ) -> OpFuture<'a, VectoredPayload<B>> {
        let (core, fd) = (self.core(), self.fd());
        let payload = (self.owned.descriptor.clone(), bufs, Vec::new());
        OpFuture::start_op(core, queue, on_orphan, payload, 0, move |(_, bufs, slices)| {
            lend_to_fill(bufs, slices);
            Op::File(FileOp::ReadVectoredAt {
                fd,
                slices: slices.as_ptr(),
                count: slices.len(),
                offset,
            })
        })
    }

    /// One write from `buf[begin..]`.
    fn start_write<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        buf: B,
        begin: usize,
        offset: u64,
    ) -> OpFuture<'a, Payload<B>> {
        let (core, fd) = (self.core(), self.fd());
        let payload = (self.owned.descriptor.clone(), buf);
        OpFuture::start_op(core, queue, OnOrphan::Discard, payload, 0, move |(_, buf)| {
            let (ptr, len) = rest_of(buf, begin);
            let len = len.min(MAX_LEN);
            Op::File(FileOp::WriteAt { fd, ptr, len, offset })
        })
    }

    fn start_write_vectored<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        bufs: Vec<B>,
        offset: u64,
    ) -> OpFuture<'a, VectoredPayload<B>> {
        let (core, fd) = (self.core(), self.fd());
        let payload = (self.owned.descriptor.clone(), bufs, Vec::new());
        OpFuture::start_op(core, queue, OnOrphan::Discard, payload, 0, move |(_, bufs, slices)| {
            lend_to_read(bufs, 0, slices);
            Op::File(FileOp::WriteVectoredAt {
                fd,
                slices: slices.as_ptr(),
                count: slices.len(),
                offset,
            })
        })
    }

    /// Writes until nothing is left; `offset` tells where the rest goes. Gives how much was written, also with an error.
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
            match self.count("write", op_result.res) {
                Ok(0) => result = Err(self.explain("write", io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) => result = Err(error),
            }
        }
        (result, written as u64, buf)
    }
}

fn read_into<B: IoBufMut>(buf: &mut B, begin: usize, end: usize, fd: Fd, offset: u64) -> Op {
    let (ptr, len) = part_of(buf, begin, end);
    let len = len.min(MAX_LEN);
    Op::File(FileOp::ReadAt { fd, ptr, len, offset })
}

/// The most that is copied out of the page cache here and now: some ten microseconds.
const AT_ONCE: usize = 64 * 1024;

/// What `read_whole` begins with when the kernel does not know how long a file is.
const SMALLEST_ROOM: usize = 4096;

/// An offset that somebody gave. The largest of all would mean the kernel's position; the one below it is the error that both
/// should be.
fn in_file(offset: u64) -> u64 {
    offset.min(CURRENT - 1)
}

/// Moves the kernel's position of a file.
fn kernel_position(core: &LoopCore, fd: Fd, to: SeekFrom) -> io::Result<u64> {
    match core.control(Control::Seek { fd, to })? {
        Reply::Position(position) => Ok(position),
        other => unreachable!("a seek answered {other:?}"),
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("File");
        debug.field("fd", &self.fd());
        show_path(&mut debug, &self.path);
        debug.field("position", &self.position.as_ref().map(Cell::get)).finish()
    }
}
