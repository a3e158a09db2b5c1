//! The standard streams.
//!
//! They are shared: with the shell, with the other end of a pipeline, with children. "Non-blocking" is a property of what is
//! shared, not of our descriptor, so setting it would make somebody else's reads fail (a shell that is left in such a terminal
//! exits). So these stay as they were found, and a read of them may block.
//!
//! Our answer: first wait until the kernel says that the stream is ready, which takes nothing and can be cancelled; then read
//! or write, as file work, which is the kernel's on io_uring and a thread's elsewhere. If somebody else is faster and takes the
//! bytes, a thread waits for more, not the loop. What cannot be waited for, a file, is always ready.
//!
//! On Windows nothing but a socket can be waited for in that way. There a thread reads and writes, and is called back when the
//! read or write is given up: see `sys/windows/brake.rs`, and `console.rs` for text.
//!
//! The loop keeps one of each, a duplicate of the descriptor: so what a dropped read received goes to the next, whichever
//! handle that is called on.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use super::{AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, no_room, rest_of, room_of};
use crate::driver::Control;
use crate::driver::op::{CURRENT, Direction, FileOp, MAX_LEN, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::{Descriptor, OwnedDescriptor};
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::{self, context, errno};

/// What a pipe takes without waiting when it is said to be ready (POSIX promises 512; every system here has 4 KiB).
const READY_FOR: usize = 4096;

/// A loop's share of the three.
pub(crate) type Streams = [RefCell<Option<Rc<Stream>>>; 3];

/// One standard stream.
pub(crate) struct Stream {
    owned: OwnedDescriptor,
    /// Whether the kernel can wait for it.
    waits: bool,
}

impl LoopCore {
    /// The loop's own descriptor of a standard stream; `None` if that is closed.
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
        let waits = self.control(Control::Watch { fd }).is_ok();
        let owned = OwnedDescriptor::new(self.rc(), sys::from_std(duplicate));
        let stream = Rc::new(Stream { owned, waits });
        self.stdio[number].replace(Some(stream.clone()));
        Ok(Some(stream))
    }

    /// The loop closes: what it held of the standard streams holds it.
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
                // Somebody made it non-blocking, and somebody was faster.
                Err(errno::AGAIN) if self.waits => {}
                Err(code) => return (Err(from_code(code)), buf),
                Ok(count) => {
                    // SAFETY: the kernel has written this many bytes, which is no more than the capacity.
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
                let (ptr, len) = room_of(buf);
                Op::File(FileOp::ReadAt {
                    fd,
                    ptr,
                    len: len.min(MAX_LEN),
                    offset: CURRENT,
                })
            },
        )
    }

    /// Writes from `buf`: a part of it, or all. Gives how much was written, also with an error.
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
                Err(errno::AGAIN) if self.waits => continue,
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
        // More could block although it was ready, and what blocks cannot be cancelled everywhere.
        let most = if self.waits { READY_FOR } else { MAX_LEN };
        let payload = (descriptor.clone(), buf);
        OpFuture::start_op(
            &descriptor.core,
            &descriptor.write,
            OnOrphan::Discard,
            payload,
            0,
            |(_, buf)| {
                let (ptr, len) = rest_of(buf, begin);
                Op::File(FileOp::WriteAt {
                    fd,
                    ptr,
                    len: len.min(most),
                    offset: CURRENT,
                })
            },
        )
    }

    async fn ready(&self, direction: Direction) -> io::Result<()> {
        if self.waits {
            self.owned.core().readiness(self.owned.fd(), direction).await?;
        }
        Ok(())
    }
}

/// The number and name of a stream, to open it and to say what failed.
#[derive(Clone, Copy)]
struct Which(usize, &'static str);

const INPUT: Which = Which(0, "standard input");
const OUTPUT: Which = Which(1, "standard output");
const ERRORS: Which = Which(2, "standard error");

impl Which {
    /// A closed stream is at its end, as in std.
    async fn read<B: IoBufMut>(self, core: &LoopCore, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_room()), buf);
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

    /// What is written to a closed stream is gone, as in std.
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

/// The process's standard input.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn stdin() -> Stdin {
    let core = LoopCore::current("stdin").rc();
    Stdin { core }
}

/// The process's standard output.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn stdout() -> Stdout {
    let core = LoopCore::current("stdout").rc();
    Stdout { core }
}

/// The process's standard error.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn stderr() -> Stderr {
    let core = LoopCore::current("stderr").rc();
    Stderr { core }
}

/// The process's standard input, made by [`stdin`].
///
/// It is not buffered, and knows nothing of what std's `stdin` has buffered: use one or the other. A pipe or terminal stays
/// blocking, since others share it; the loop is not held up by that. A closed one is at its end.
///
/// On Windows a console's input is given as UTF-8, and its lines end as they do there, in CR and LF. A line that was begun when a
/// read is given up goes to the next; a loop that ends then waits for it for some seconds.
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
    /// Reads into `buf`, from its start and up to its capacity, and gives the number of bytes; 0 is the end. A terminal gives
    /// a line at a time.
    ///
    /// Cancelling it loses nothing: the next read gets what this one received.
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        INPUT.read(&self.core, buf).await
    }
}

/// The process's standard output, made by [`stdout`].
///
/// It is not buffered: what was written is out, and `println!` may come in between. A pipe or terminal stays blocking, since
/// others share it; the loop is not held up by that. What is written to a closed one is gone, as in std. A console on Windows
/// shows what is written as UTF-8.
///
/// ```
/// windlass::run(async {
///     windlass::io::stdout().write_all("said without waiting\n").await.0
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stdout {
    core: Rc<LoopCore>,
}

impl Stdout {
    /// Writes from `buf` and gives how many bytes were taken, which may be fewer than there are.
    ///
    /// If it is cancelled, any part from the front may have been written; the next write waits until that is over.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, written, buf) = OUTPUT.write(&self.core, buf, false).await;
        (result.map(|()| written), buf)
    }

    /// Writes the whole of `buf`. No other write of this loop comes in between. Cancelled as [`write`](Stdout::write) is.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let (result, _, buf) = OUTPUT.write(&self.core, buf, true).await;
        (result, buf)
    }
}

/// The process's standard error, made by [`stderr`]: as [`Stdout`].
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
    /// Writes from `buf` and gives how many bytes were taken, which may be fewer than there are.
    ///
    /// If it is cancelled, any part from the front may have been written; the next write waits until that is over.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, written, buf) = ERRORS.write(&self.core, buf, false).await;
        (result.map(|()| written), buf)
    }

    /// Writes the whole of `buf`. No other write of this loop comes in between. Cancelled as [`write`](Stderr::write) is.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let (result, _, buf) = ERRORS.write(&self.core, buf, true).await;
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
    /// Nothing is held back: there is nothing to do.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Nothing ends: the stream is not ours alone.
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
    /// Nothing is held back: there is nothing to do.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Nothing ends: the stream is not ours alone.
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}
