//! Copies from socket to socket that the bytes take inside of the kernel.
//!
//! Measured on loopback, a copy through our buffers keeps the processor busy three times as long. But it takes two system calls
//! per piece and a pipe, which is two descriptors, so it is for bulk alone: [`copy`](super::copy()) changes over when large
//! pieces come one after the other, and back when little comes at a time. While nothing comes no pipe is held.
//!
//! The trap is a copy that is dropped while bytes are in the pipe. They were taken from the socket in order, nobody else has
//! seen them, and the calls are plain ones that are over when they return: so it is known exactly which were sent, and the
//! rest goes back to where a dropped read's bytes go, the reader's lane. Nothing is lost.

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

/// How much must have come in large pieces before splicing begins.
pub(super) const BULK: usize = 128 * 1024;

/// What is a large piece, and what is too little to go on for.
pub(super) const LARGE: usize = 4 * 1024;

/// How much is moved before others may run: a few hundred microseconds' worth.
const STRETCH: u64 = 512 * 1024;

/// How many pipes a loop keeps.
const SPARE_SPLICE_PIPES: usize = 4;

/// A socket of the kernel's. Only the runtime's own streams can make one.
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

/// Why splicing has stopped.
pub(super) enum Stop {
    /// Little comes at a time, or nothing more, or something has to be read first that is not in the kernel.
    Slack,
    /// These streams, or this system, cannot.
    Unable,
}

/// Moves bytes as long as many come; `copied` counts them.
pub(super) async fn splice(
    reader: &KernelStream,
    writer: &KernelStream,
    copied: &mut u64,
) -> Result<Stop, (&'static str, io::Error)> {
    let (source, sink) = (&reader.descriptor, &writer.descriptor);
    let mut rested_at = *copied;
    let mut waited_at = None;
    loop {
        match move_once(source, sink, copied).await {
            Ok(Moved::Some) => {}
            Ok(Moved::Stop(stop)) => return Ok(stop),
            Ok(Moved::None) if waited_at.is_some_and(|at| *copied - at < LARGE as u64) => return Ok(Stop::Slack),
            Ok(Moved::None) => {
                ready(source, Direction::Read)
                    .await
                    .map_err(|error| ("reading", error))?;
                waited_at = Some(*copied);
                rested_at = *copied;
            }
            Err(error) => return Err(error),
        }
        if *copied - rested_at >= STRETCH {
            yield_now().await;
            rested_at = *copied;
        }
    }
}

enum Moved {
    Some,
    /// Nothing has come.
    None,
    Stop(Stop),
}

/// Moves what the reader has now, as far as it fits into the pipe, and waits until all of it is sent.
async fn move_once(
    source: &Descriptor,
    sink: &Rc<Descriptor>,
    copied: &mut u64,
) -> Result<Moved, (&'static str, io::Error)> {
    let core = &*source.core;
    let _reading = source.read.hold().await;
    source.read.settle(core).await;
    if source.read.is_busy() {
        return Ok(Moved::Stop(Stop::Slack));
    }
    if !SplicePipe::can_serve(source.fd) || !SplicePipe::can_serve(sink.fd) {
        return Ok(Moved::Stop(Stop::Unable));
    }
    let Some(mut payload) = Payload::new(core, &source.read) else {
        return Ok(Moved::Stop(Stop::Unable));
    };
    match payload.splice_pipe().draw(source.fd) {
        // The end; but Linux says so at an urgent byte too, with more behind it. An ordinary read knows.
        Ok(0) => return Ok(Moved::Stop(Stop::Slack)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Moved::Stop(Stop::Unable)),
        Err(error) => return Err(("reading", error)),
    }
    let _writing = sink.write.hold().await;
    sink.write.settle(core).await;
    while payload.splice_pipe().held() > 0 {
        // What is in the pipe goes back, and is read from there.
        if !SplicePipe::can_serve(sink.fd) {
            return Ok(Moved::Stop(Stop::Unable));
        }
        match payload.splice_pipe().pour(sink.fd) {
            Ok(0) => return Err(("writing", io::ErrorKind::WriteZero.into())),
            Ok(count) => *copied += count as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready(sink, Direction::Write)
                    .await
                    .map_err(|error| ("writing", error))?;
            }
            // What is in the pipe goes back, and is read from there.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Moved::Stop(Stop::Unable)),
            Err(error) => return Err(("writing", error)),
        }
    }
    Ok(Moved::Some)
}

/// Waits until a socket is ready.
async fn ready(descriptor: &Rc<Descriptor>, direction: Direction) -> io::Result<()> {
    let queue = IoQueue::default();
    let fd = descriptor.fd;
    let plan = |_: &mut Rc<Descriptor>| Op::Readiness { fd, direction };
    let op_future = OpFuture::start_op(&descriptor.core, &queue, OnOrphan::Discard, descriptor.clone(), 0, plan);
    let (op_result, _) = op_future.await;
    op_result.res.map(drop).map_err(from_code)
}

/// A duct in use. Whatever happens, what is in it when this is dropped is the reader's again. To be dropped while the
/// reader's lane is held.
struct Payload<'a> {
    core: &'a LoopCore,
    source: &'a IoQueue,
    /// Empty only while it is being dropped.
    splice_pipe: Option<SplicePipe>,
}

impl<'a> Payload<'a> {
    fn new(core: &'a LoopCore, source: &'a IoQueue) -> Option<Payload<'a>> {
        let spare = core.splice_pipes.borrow_mut().pop();
        let splice_pipe = Some(spare.or_else(SplicePipe::open)?);
        Some(Payload {
            core,
            source,
            splice_pipe,
        })
    }

    fn splice_pipe(&mut self) -> &mut SplicePipe {
        self.splice_pipe.as_mut().expect("there is one until this is dropped")
    }
}

impl Drop for Payload<'_> {
    fn drop(&mut self) {
        let Some(mut splice_pipe) = self.splice_pipe.take() else {
            return;
        };
        if splice_pipe.held() > 0 {
            self.source.put_back(&splice_pipe.take_back());
        }
        let mut spare = self.core.splice_pipes.borrow_mut();
        // One that could not be emptied is of no use.
        if splice_pipe.held() == 0 && spare.len() < SPARE_SPLICE_PIPES && !self.core.is_closed() {
            spare.push(splice_pipe);
        }
    }
}
