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
//! On Windows only sockets have readiness. A thread reads and writes, and its call is cancelled when the operation is:
//! see `sys/windows/pool_call.rs`, and `console.rs` for text.
//!
//! All handles share one duplicate of each descriptor, so the bytes of a dropped read go to the next one on any handle.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use super::{AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, bytes_from, fill_target, no_capacity};
use crate::driver::Control;
use crate::driver::op::{CURRENT, Direction, FileOp, MAX_LEN, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{self, context, errno};

/// The number of bytes that a ready pipe accepts without blocking (POSIX guarantees 512; all supported systems have 4 KiB).
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
        let _hold = queue.hold().await;
        queue.settle(core).await;
        if queue.has_leftover(core).await
            && let Some(served) = queue.serve(&mut buf)
        {
            return (served.map_err(from_code), buf);
        }
        loop {
            if let Err(error) = self.ready(Direction::Read).await {
                return (Err(error), buf);
            }
            let op_result;
            (op_result, (_, buf)) = self.start_read(buf).await;
            match op_result.res {
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

    fn start_read<B: IoBufMut>(&self, buf: B) -> OpFuture<'_, (Rc<Descriptor>, B)> {
        let descriptor = &self.owned.descriptor;
        let fd = descriptor.fd;
        let payload = (descriptor.clone(), buf);
        OpFuture::start_op(
            &descriptor.core,
            &descriptor.read,
            OnOrphan::Keep,
            payload,
            0,
            |(_, buf)| {
                let (ptr, len) = fill_target(buf);
                Op::File(FileOp::ReadAt {
                    fd,
                    ptr,
                    len: len.min(MAX_LEN),
                    offset: CURRENT,
                })
            },
        )
    }

    /// Writes once, or until all of `buf` is written. Returns the number of bytes written, also with an error.
    async fn write<B: IoBuf>(&self, mut buf: B, all: bool) -> (io::Result<()>, usize, B) {
        let descriptor = &self.owned.descriptor;
        let queue = &descriptor.write;
        let _hold = queue.hold().await;
        queue.settle(&descriptor.core).await;
        let len = buf.len();
        let mut written = 0;
        while written < len {
            if let Err(error) = self.ready(Direction::Write).await {
                return (Err(error), written, buf);
            }
            let op_result;
            (op_result, (_, buf)) = self.start_write(buf, written).await;
            match op_result.res {
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

    fn start_write<B: IoBuf>(&self, buf: B, begin: usize) -> OpFuture<'_, (Rc<Descriptor>, B)> {
        let descriptor = &self.owned.descriptor;
        let fd = descriptor.fd;
        // A larger write could block although the stream was ready, and not every platform can cancel a blocked write.
        let max_len = if self.pollable { READY_WRITE_LEN } else { MAX_LEN };
        let payload = (descriptor.clone(), buf);
        OpFuture::start_op(
            &descriptor.core,
            &descriptor.write,
            OnOrphan::Discard,
            payload,
            0,
            |(_, buf)| {
                let (ptr, len) = bytes_from(buf, begin);
                Op::File(FileOp::WriteAt {
                    fd,
                    ptr,
                    len: len.min(max_len),
                    offset: CURRENT,
                })
            },
        )
    }

    async fn ready(&self, direction: Direction) -> io::Result<()> {
        if self.pollable {
            self.owned.core().readiness(self.owned.fd(), direction).await?;
        }
        Ok(())
    }
}

/// The number and the name of a standard stream.
#[derive(Clone, Copy)]
struct StandardStream(usize, &'static str);

const STDIN: StandardStream = StandardStream(0, "standard input");
const STDOUT: StandardStream = StandardStream(1, "standard output");
const STDERR: StandardStream = StandardStream(2, "standard error");

impl StandardStream {
    /// Reading from a closed stream returns end of stream, as in std.
    async fn read<B: IoBufMut>(self, core: &LoopCore, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let explain = |error| context(format_args!("read {}", self.1), error);
        match core.standard(self.0) {
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
    async fn write<B: IoBuf>(self, core: &LoopCore, buf: B, all: bool) -> (io::Result<()>, usize, B) {
        if buf.is_empty() {
            return (Ok(()), 0, buf);
        }
        let explain = |error| context(format_args!("write to {}", self.1), error);
        match core.standard(self.0) {
            Ok(Some(stream)) => {
                let (result, written, buf) = stream.write(buf, all).await;
                (result.map_err(explain), written, buf)
            }
            Ok(None) => (Ok(()), buf.len(), buf),
            Err(error) => (Err(explain(error)), 0, buf),
        }
    }
}

/// Returns a handle to the standard input of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stdin() -> Stdin {
    let core = LoopCore::current("stdin").rc();
    Stdin { core }
}

/// Returns a handle to the standard output of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stdout() -> Stdout {
    let core = LoopCore::current("stdout").rc();
    Stdout { core }
}

/// Returns a handle to the standard error of the process.
///
/// # Panics
///
/// Outside a loop.
#[track_caller]
pub fn stderr() -> Stderr {
    let core = LoopCore::current("stderr").rc();
    Stderr { core }
}

/// The standard input of the process, created by [`stdin`].
///
/// It is not buffered and does not see bytes that std's `stdin` has buffered: use one or the other. A pipe or terminal
/// stays in blocking mode because it is shared; the loop does not block. If it is closed, reads return end of stream.
///
/// On Windows, console input is UTF-8 with CR LF line endings. If a read is cancelled in the middle of a line, the next
/// read returns that line; a loop that is closing waits some seconds for it.
///
/// ```no_run
/// windlass::run(async {
///     let (result, line) = windlass::io::stdin().read(Vec::with_capacity(1024)).await;
///     println!("{} bytes: {:?}", result?, String::from_utf8_lossy(&line));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stdin {
    core: Rc<LoopCore>,
}

impl Stdin {
    /// Reads into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of stream. A
    /// terminal returns single lines.
    ///
    /// **Cancel safety:** no data is lost; the next read returns the bytes.
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        STDIN.read(&self.core, buf).await
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
pub struct Stdout {
    core: Rc<LoopCore>,
}

impl Stdout {
    /// Writes from `buf` and returns the number of bytes written, which may be less than the buffer's length.
    ///
    /// **Cancel safety:** any prefix may have been written; the next write waits for the cancelled one to finish.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, written, buf) = STDOUT.write(&self.core, buf, false).await;
        (result.map(|()| written), buf)
    }

    /// Writes all of `buf`; other writes of this loop do not interleave. Cancel safety: as for
    /// [`write`](Stdout::write).
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let (result, _, buf) = STDOUT.write(&self.core, buf, true).await;
        (result, buf)
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
pub struct Stderr {
    core: Rc<LoopCore>,
}

impl Stderr {
    /// Writes from `buf` and returns the number of bytes written, which may be less than the buffer's length.
    ///
    /// **Cancel safety:** any prefix may have been written; the next write waits for the cancelled one to finish.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, written, buf) = STDERR.write(&self.core, buf, false).await;
        (result.map(|()| written), buf)
    }

    /// Writes all of `buf`; other writes of this loop do not interleave. Cancel safety: as for
    /// [`write`](Stderr::write).
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let (result, _, buf) = STDERR.write(&self.core, buf, true).await;
        (result, buf)
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stdin")
    }
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stdout")
    }
}

impl fmt::Debug for Stderr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stderr")
    }
}

impl AsyncRead for Stdin {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        Stdin::read(self, buf)
    }
}

impl AsyncWrite for Stdout {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        Stdout::write(self, buf)
    }
    fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        Stdout::write_all(self, buf)
    }
    /// Does nothing, because writes are not buffered.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Does nothing, because the stream is shared with other processes.
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncWrite for Stderr {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        Stderr::write(self, buf)
    }
    fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        Stderr::write_all(self, buf)
    }
    /// Does nothing, because writes are not buffered.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Does nothing, because the stream is shared with other processes.
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}
