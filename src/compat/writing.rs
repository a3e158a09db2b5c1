//! What a bridge keeps of its writing between two polls.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::write_buffer::WriteBuffer;
use crate::inflight::stream::ByteStream;
use crate::io::{DuplexStream, OutgoingPipe};

/// What is kept of a [`Bridge`](super::Bridge)'s writing between two polls: bytes that were taken and are not sent yet. For
/// [`PollWrite`](super::PollWrite).
#[derive(Default)]
pub struct Writing {
    sink: Sink,
}

/// Where the bytes go to.
#[derive(Default)]
enum Sink {
    #[default]
    Unknown,
    Kernel(Rc<WriteBuffer>),
    Memory(OutgoingPipe),
}

impl Writing {
    /// The outbox of a descriptor, made at the first write.
    pub(super) fn write_buffer(&mut self, bytes: &ByteStream) -> &Rc<WriteBuffer> {
        let is_known = matches!(&self.sink, Sink::Kernel(write_buffer) if write_buffer.is_for(bytes));
        if !is_known {
            self.let_go();
            self.sink = Sink::Kernel(WriteBuffer::new(bytes));
        }
        match &self.sink {
            Sink::Kernel(write_buffer) => write_buffer,
            _ => unreachable!("it was just put there"),
        }
    }

    pub(super) fn pipe(&mut self, stream: &DuplexStream) -> &mut OutgoingPipe {
        let is_known = matches!(&self.sink, Sink::Memory(pipe) if pipe.is_of(stream));
        if !is_known {
            self.let_go();
            self.sink = Sink::Memory(stream.outgoing_pipe());
        }
        match &mut self.sink {
            Sink::Memory(pipe) => pipe,
            _ => unreachable!("it was just put there"),
        }
    }

    pub(super) fn poll_kernel(
        &mut self,
        bytes: &ByteStream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_buffer(bytes).poll_write(cx, bufs)
    }

    /// Waits until nothing is on its way to the kernel. Where nothing was ever written there is nothing to wait for.
    pub(super) fn poll_sent(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.sink {
            Sink::Kernel(write_buffer) if write_buffer.is_for(bytes) => write_buffer.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// What went wrong with what was taken.
    pub(super) fn failure(&mut self, bytes: &ByteStream) -> io::Result<()> {
        match &self.sink {
            Sink::Kernel(write_buffer) if write_buffer.is_for(bytes) => write_buffer.failure(),
            _ => Ok(()),
        }
    }

    /// Sends what is left, and ends the writing direction of a socket.
    pub(super) fn poll_end(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_buffer(bytes).poll_alone(cx))?;
        let result = bytes.owned.shutdown(Shutdown::Write);
        self.write_buffer(bytes).let_go();
        Poll::Ready(match result {
            // The other end has reset it: there is nothing left to end, and whoever reads or writes is told.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }

    /// Sends what is left, and closes the end of a pipe.
    pub(super) fn poll_close(&mut self, bytes: &mut ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_buffer(bytes).poll_alone(cx))?;
        self.let_go();
        bytes.close_now();
        Poll::Ready(Ok(()))
    }

    /// How many bytes were taken and are not with the kernel yet.
    pub(super) fn unsent(&self) -> usize {
        match &self.sink {
            Sink::Kernel(write_buffer) => write_buffer.unsent(),
            _ => 0,
        }
    }

    /// What was taken is sent all the same.
    fn let_go(&mut self) {
        if let Sink::Kernel(write_buffer) = std::mem::take(&mut self.sink) {
            write_buffer.leave();
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("unsent", &self.unsent()).finish()
    }
}
