//! Copies from socket to socket with `splice(2)`: the bytes stay inside the kernel.
//!
//! Measured on loopback, a copy through user-space buffers takes three times the CPU time. But splicing needs two
//! system calls per piece and a pipe, that is two descriptors, so it is used for bulk data only:
//! [`copy`](super::copy()) starts it after consecutive large reads and stops it when they get small. An idle copy holds
//! no pipe.
//!
//! A copy may be dropped while bytes are in the pipe. They were taken from the socket in order, and the splice calls
//! are synchronous, so it is known exactly which bytes were sent. The rest is put back into the source's read queue,
//! like the bytes of a dropped read. Nothing is lost.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::driver::op::{Direction, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::sys::SplicePipe;
use crate::task::yield_now;

/// The number of bytes in consecutive large reads that starts splicing.
pub(super) const BULK_LEN: usize = 128 * 1024;

/// The minimum size of a large read; splicing stops when less arrives between two waits.
pub(super) const LARGE_READ: usize = 4 * 1024;

/// The number of bytes to move before the task yields: a few hundred microseconds of work.
const YIELD_EVERY: u64 = 512 * 1024;

/// The maximum number of idle pipes that a loop keeps.
const MAX_IDLE_PIPES: usize = 4;

/// A kernel socket. Only the runtime's own streams can create one.
pub struct KernelStream {
    descriptor: Rc<Descriptor>,
}

impl KernelStream {
    pub(crate) fn new(descriptor: Rc<Descriptor>) -> KernelStream {
        KernelStream { descriptor }
    }
}

impl fmt::Debug for KernelStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelStream").field(&self.descriptor.fd).finish()
    }
}

/// Moves bytes while reads are large, and adds their number to `copied`. False if the streams or the system do not
/// support it.
pub(super) async fn splice(
    reader: &KernelStream,
    writer: &KernelStream,
    copied: &mut u64,
) -> Result<bool, (&'static str, io::Error)> {
    let (source, sink) = (&reader.descriptor, &writer.descriptor);
    let mut yielded_at = *copied;
    let mut waited_at = None;
    loop {
        match move_once(source, sink, copied).await? {
            Step::Progress => {}
            Step::LowVolume => return Ok(true),
            Step::Unsupported => return Ok(false),
            Step::NoData if waited_at.is_some_and(|at| *copied - at < LARGE_READ as u64) => return Ok(true),
            Step::NoData => {
                let _reading = source.read.begin(&source.core).await;
                if source.read.is_busy() {
                    return Ok(true);
                }
                let waited = ready(source, Direction::Read).await;
                // The result says nothing about the bytes in the socket.
                source.read.forget_received();
                // A `compat` bridge of the same socket has put bytes back, and cancelled the wait.
                if source.read.has_leftover() {
                    return Ok(true);
                }
                waited.map_err(|error| ("reading", error))?;
                waited_at = Some(*copied);
                yielded_at = *copied;
            }
        }
        if *copied - yielded_at >= YIELD_EVERY {
            yield_now().await;
            yielded_at = *copied;
        }
    }
}

enum Step {
    Progress,
    /// The source has no data available.
    NoData,
    /// The stream may have ended, or bytes in user space must be read first.
    LowVolume,
    /// The streams or the system do not support splicing.
    Unsupported,
}

/// Moves the available bytes of the source into the pipe, as far as they fit, and waits until all of them are sent.
async fn move_once(
    source: &Descriptor,
    sink: &Rc<Descriptor>,
    copied: &mut u64,
) -> Result<Step, (&'static str, io::Error)> {
    let core = &*source.core;
    let _reading = source.read.begin(core).await;
    if source.read.is_busy() {
        return Ok(Step::LowVolume);
    }
    if !SplicePipe::can_serve(source.fd) || !SplicePipe::can_serve(sink.fd) {
        return Ok(Step::Unsupported);
    }
    let Some(mut pipe) = PipeGuard::new(core, &source.read) else {
        return Ok(Step::Unsupported);
    };
    match pipe.get_mut().splice_from(source.fd) {
        // End of stream; but Linux also returns 0 at an urgent byte with more data behind it. A plain read can tell.
        Ok(0) => return Ok(Step::LowVolume),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::NoData),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Step::Unsupported),
        Err(error) => return Err(("reading", error)),
    }
    let _writing = sink.write.begin(core).await;
    while pipe.get_mut().buffered() > 0 {
        // The guard puts the rest of the pipe back into the read queue.
        if !SplicePipe::can_serve(sink.fd) {
            return Ok(Step::Unsupported);
        }
        match pipe.get_mut().splice_to(sink.fd) {
            Ok(0) => return Err(("writing", io::ErrorKind::WriteZero.into())),
            Ok(count) => *copied += count as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready(sink, Direction::Write)
                    .await
                    .map_err(|error| ("writing", error))?;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Step::Unsupported),
            Err(error) => return Err(("writing", error)),
        }
    }
    Ok(Step::Progress)
}

/// Waits until a socket is readable or writable. The caller holds the queue of that direction: the operation stays in it
/// if the copy is dropped, so that `into_std` does not give away a descriptor that the kernel still uses.
async fn ready(descriptor: &Rc<Descriptor>, direction: Direction) -> io::Result<()> {
    let queue = match direction {
        Direction::Read => &descriptor.read,
        Direction::Write => &descriptor.write,
    };
    let fd = descriptor.fd;
    let plan = |_: &mut Rc<Descriptor>| Op::Readiness { fd, direction };
    let owner = descriptor.clone();
    let (op_result, _) = OpFuture::start_op(&descriptor.core, queue, OnOrphan::Discard, owner, plan).await;
    op_result.res().map(drop).map_err(from_code)
}

/// A splice pipe in use. Dropping it puts the bytes in the pipe back into the source's read queue, whose guard must
/// outlive it.
struct PipeGuard<'a> {
    core: &'a LoopCore,
    source: &'a IoQueue,
    /// `None` only during drop.
    pipe: Option<SplicePipe>,
}

impl<'a> PipeGuard<'a> {
    fn new(core: &'a LoopCore, source: &'a IoQueue) -> Option<PipeGuard<'a>> {
        let idle = core.splice_pipes.borrow_mut().pop();
        let pipe = Some(idle.or_else(SplicePipe::open)?);
        Some(PipeGuard { core, source, pipe })
    }

    fn get_mut(&mut self) -> &mut SplicePipe {
        self.pipe.as_mut().expect("the pipe is only taken on drop")
    }
}

impl Drop for PipeGuard<'_> {
    fn drop(&mut self) {
        let Some(mut pipe) = self.pipe.take() else {
            return;
        };
        if pipe.buffered() > 0 {
            self.source.put_back(&pipe.read_all());
        }
        let mut idle = self.core.splice_pipes.borrow_mut();
        // A pipe that could not be emptied is closed.
        if pipe.buffered() == 0 && idle.len() < MAX_IDLE_PIPES && !self.core.is_closed() {
            idle.push(pipe);
        }
    }
}
