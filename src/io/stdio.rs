//! The standard streams.
//!
//! The standard streams are shared with the shell, the rest of a pipeline and child processes. `O_NONBLOCK` belongs to
//! the shared open file, not to our descriptor: setting it would make the reads of other processes fail (a shell left
//! with such a terminal exits). So the streams stay blocking.
//!
//! A read or write first waits for readiness, which consumes nothing and can be cancelled. Then it runs as a file
//! operation: in the kernel on io_uring, on a pool thread elsewhere. If another process took the bytes in between, that
//! thread blocks, not the loop. Files cannot be waited for; they are always ready.
//!
//! On Windows only sockets have readiness. A pool thread reads and writes, and cancelling the operation cancels the
//! thread's system call: see `sys/windows/pool_call.rs`, and `console.rs` for text.
//!
//! All handles share one duplicate of each descriptor, so the bytes of a dropped read go to the next one on any handle.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use super::{AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, delegate_write, no_capacity};
use crate::driver::Control;
use crate::driver::op::{CURRENT, Direction, FileOp, MAX_LEN, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::OwnedDescriptor;
use crate::inflight::transfer::Payload;
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{self, context, errno};

/// The number of bytes that a ready pipe accepts without blocking: POSIX guarantees 512, all supported systems 4 KiB.
const READY_WRITE_LEN: usize = 4096;

/// A loop's duplicates of the three descriptors, opened on first use.
pub(crate) type Streams = [RefCell<Option<Rc<Stream>>>; 3];

/// One standard stream.
pub(crate) struct Stream {
    owned: OwnedDescriptor,
    /// Whether the kernel can wait for its readiness.
    pollable: bool,
}

impl LoopCore {
    /// The loop's duplicate of a standard stream, or `None` if the stream is closed.
    fn standard(&self, number: usize) -> io::Result<Option<Rc<Stream>>> {
        if self.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        if let Some(stream) = &*self.stdio[number].borrow() {
            return Ok(Some(stream.clone()));
        }
        self.check_takes_kernel_descriptors()?;
        let Some(duplicate) = sys::standard_stream(number)? else {
            return Ok(None);
        };
        let fd = sys::number(&duplicate);
        let pollable = self.control(Control::Watch { fd }).is_ok();
        let owned = OwnedDescriptor::new(self.rc(), sys::from_std(duplicate));
        let stream = Rc::new(Stream { owned, pollable });
        self.stdio[number].replace(Some(stream.clone()));
        Ok(Some(stream))
    }

    /// Called when the loop closes: the streams hold references to the loop.
    pub(crate) fn drop_stdio(&self) {
        for stream in &self.stdio {
            drop(stream.take());
        }
    }
}

impl Stream {
    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        let descriptor = &self.owned.descriptor;
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        let _guard = queue.begin(core).await;
        if let Some(served) = queue.serve(&mut buf) {
            return (served.map_err(from_code), buf);
        }
        loop {
            if let Err(error) = self.ready(Direction::Read).await {
                return (Err(error), buf);
            }
            let op_result;
            (op_result, (_, buf)) = self.start_read(buf).await;
            match op_result.res() {
                // The open file is non-blocking, and another process took the bytes.
                Err(errno::AGAIN) if self.pollable => {}
                Err(code) => return (Err(from_code(code)), buf),
                Ok(count) => {
                    // SAFETY: the kernel has written this many bytes, which is at most the capacity.
                    unsafe { buf.set_filled(count as usize) };
                    return (Ok(count as usize), buf);
                }
            }
        }
    }

    fn start_read<B: IoBufMut>(&self, buf: B) -> OpFuture<'_, Payload<B>> {
        let (fd, offset) = (self.owned.fd(), CURRENT);
        let op = |ptr, len| Op::File(FileOp::ReadAt { fd, ptr, len, offset });
        let (queue, whole) = (&self.owned.descriptor.read, 0..buf.capacity());
        self.owned.start_read(queue, OnOrphan::Keep, buf, whole, op)
    }

    /// Writes once, or until all of `buf` is written. Returns the number of bytes written, also with an error.
    async fn write<B: IoBuf>(&self, mut buf: B, all: bool) -> (io::Result<()>, usize, B) {
        let descriptor = &self.owned.descriptor;
        let queue = &descriptor.write;
        let _guard = queue.begin(&descriptor.core).await;
        let len = buf.len();
        let mut written = 0;
        while written < len {
            if let Err(error) = self.ready(Direction::Write).await {
                return (Err(error), written, buf);
            }
            let op_result;
            (op_result, (_, buf)) = self.start_write(buf, written).await;
            match op_result.res() {
                Err(errno::AGAIN) if self.pollable => continue,
                Err(code) => return (Err(from_code(code)), written, buf),
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), written, buf),
                Ok(count) => written += count as usize,
            }
            if !all {
                break;
            }
        }
        (Ok(()), written, buf)
    }

    fn start_write<B: IoBuf>(&self, buf: B, begin: usize) -> OpFuture<'_, Payload<B>> {
        let (fd, offset) = (self.owned.fd(), CURRENT);
        // A larger write could block although the stream was ready, and not every platform can cancel a blocked write.
        let max_len = if self.pollable { READY_WRITE_LEN } else { MAX_LEN };
        let op = |ptr, len: usize| {
            let len = len.min(max_len);
            Op::File(FileOp::WriteAt { fd, ptr, len, offset })
        };
        self.owned.start_write(&self.owned.descriptor.write, buf, begin, op)
    }

    async fn ready(&self, direction: Direction) -> io::Result<()> {
        if self.pollable {
            let descriptor = self.owned.descriptor.clone();
            self.owned
                .core()
                .readiness(descriptor, self.owned.fd(), direction)
                .await?;
        }
        Ok(())
    }
}

/// A handle to a standard stream of the process, on one loop.
struct StandardStream {
    core: Rc<LoopCore>,
    number: usize,
    name: &'static str,
}

impl StandardStream {
    #[track_caller]
    fn new(call: &str, number: usize, name: &'static str) -> StandardStream {
        let core = LoopCore::current(call).rc();
        StandardStream { core, number, name }
    }

    /// Reading from a closed stream returns end of stream, as in std.
    async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let explain = |error| context(format_args!("read {}", self.name), error);
        match self.core.standard(self.number) {
            Ok(Some(stream)) => {
                let (result, buf) = stream.read(buf).await;
                (result.map_err(explain), buf)
            }
            Ok(None) => {
                buf.fill_from(&[]);
                (Ok(0), buf)
            }
            Err(error) => (Err(explain(error)), buf),
        }
    }

    /// Writing to a closed stream discards the bytes, as in std.
    async fn write_bytes<B: IoBuf>(&self, buf: B, all: bool) -> (io::Result<()>, usize, B) {
        if buf.is_empty() {
            return (Ok(()), 0, buf);
        }
        let explain = |error| context(format_args!("write to {}", self.name), error);
        match self.core.standard(self.number) {
            Ok(Some(stream)) => {
                let (result, written, buf) = stream.write(buf, all).await;
                (result.map_err(explain), written, buf)
            }
            Ok(None) => (Ok(()), buf.len(), buf),
            Err(error) => (Err(explain(error)), 0, buf),
        }
    }
}

impl fmt::Debug for StandardStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns a handle to the standard input of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stdin() -> Stdin {
    Stdin(StandardStream::new("stdin", 0, "standard input"))
}

/// Returns a handle to the standard output of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stdout() -> Stdout {
    Stdout(StandardStream::new("stdout", 1, "standard output"))
}

/// Returns a handle to the standard error of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stderr() -> Stderr {
    Stderr(StandardStream::new("stderr", 2, "standard error"))
}

/// The standard input of the process, created by [`stdin`].
///
/// It is not buffered and does not see bytes that std's `stdin` has buffered: use one or the other. A pipe or terminal
/// stays in blocking mode because it is shared; the loop does not block. If it is closed, reads return end of stream.
///
/// On Windows, console input is UTF-8 with CR LF line endings. If a read is cancelled in the middle of a line, the next
/// read returns that line, and closing the loop waits up to 5 seconds for its end.
///
/// ```no_run
/// windlass::run(async {
///     let (result, line) = windlass::io::stdin().read(Vec::with_capacity(1024)).await;
///     println!("{} bytes: {:?}", result?, String::from_utf8_lossy(&line));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stdin(StandardStream);

impl Stdin {
    /// Reads into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of stream. A
    /// terminal returns one line at a time.
    ///
    /// **Cancel safety:** no data is lost; the next read returns the bytes.
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.0.read(buf).await
    }
}

/// The standard output of the process, created by [`stdout`].
///
/// It is not buffered, and output of `println!` may appear between two writes. A pipe or terminal stays in blocking
/// mode because it is shared; the loop does not block. Writes to a closed stream are discarded. A Windows console
/// expects UTF-8.
///
/// ```
/// windlass::run(async {
///     windlass::io::stdout().write_all("written without blocking\n").await.0
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stdout(StandardStream);

impl Stdout {
    /// Writes from `buf` and returns the number of bytes written, which may be less than the buffer's length.
    ///
    /// **Cancel safety:** any prefix may have been written; the next write waits for the cancelled one to finish.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        (&self.0).write(buf).await
    }

    /// Writes all of `buf`; other writes of this loop do not interleave. Cancel safety is as for
    /// [`write`](Stdout::write).
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        (&self.0).write_all(buf).await
    }
}

/// The standard error of the process, created by [`stderr`]. It behaves like [`Stdout`].
///
/// ```
/// windlass::run(async {
///     windlass::io::stderr().write_all("nothing is wrong\n").await.0
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stderr(StandardStream);

impl Stderr {
    /// Writes from `buf`: see [`Stdout::write`].
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        (&self.0).write(buf).await
    }

    /// Writes all of `buf`: see [`Stdout::write_all`].
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        (&self.0).write_all(buf).await
    }
}

impl AsyncRead for Stdin {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        Stdin::read(self, buf)
    }
}

impl AsyncWrite for &StandardStream {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let (result, written, buf) = self.write_bytes(buf, false).await;
        (result.map(|()| written), buf)
    }
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        let (result, _, buf) = self.write_bytes(buf, true).await;
        (result, buf)
    }
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `flush` and `shutdown` do nothing: writes are not buffered, and the stream is shared with other processes.
impl AsyncWrite for Stdout {
    delegate_write!(self => &self.0);
}

/// As for [`Stdout`].
impl AsyncWrite for Stderr {
    delegate_write!(self => &self.0);
}
