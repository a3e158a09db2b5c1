//! The write state of a bridge between two polls.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::write_buffer::WriteBuffer;
use crate::inflight::stream::ByteStream;
use crate::io::{DuplexStream, OutgoingPipe};

/// The write state of a [`Bridge`](super::Bridge) between two polls, for [`PollWrite`](super::PollWrite): accepted
/// bytes that are not sent yet.
#[derive(Default)]
pub struct Writing {
    backend: WriteBackend,
}

#[derive(Default)]
enum WriteBackend {
    #[default]
    Unbound,
    Kernel(Rc<WriteBuffer>),
    Memory(OutgoingPipe),
}

impl Writing {
    /// The write buffer of a descriptor, created by the first write.
    pub(super) fn write_buffer(&mut self, bytes: &ByteStream) -> &Rc<WriteBuffer> {
        let is_bound = matches!(&self.backend, WriteBackend::Kernel(write_buffer) if write_buffer.is_for(bytes));
        if !is_bound {
            self.detach();
            self.backend = WriteBackend::Kernel(WriteBuffer::new(bytes));
        }
        match &self.backend {
            WriteBackend::Kernel(write_buffer) => write_buffer,
            _ => unreachable!("just bound"),
        }
    }

    pub(super) fn pipe(&mut self, stream: &DuplexStream) -> &mut OutgoingPipe {
        let is_bound = matches!(&self.backend, WriteBackend::Memory(pipe) if pipe.is_of(stream));
        if !is_bound {
            self.detach();
            self.backend = WriteBackend::Memory(stream.outgoing_pipe());
        }
        match &mut self.backend {
            WriteBackend::Memory(pipe) => pipe,
            _ => unreachable!("just bound"),
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

    /// Waits until all accepted bytes are sent; ready at once if nothing was written.
    pub(super) fn poll_sent(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.backend {
            WriteBackend::Kernel(write_buffer) if write_buffer.is_for(bytes) => write_buffer.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// The error of a failed send.
    pub(super) fn failure(&mut self, bytes: &ByteStream) -> io::Result<()> {
        match &self.backend {
            WriteBackend::Kernel(write_buffer) if write_buffer.is_for(bytes) => write_buffer.failure(),
            _ => Ok(()),
        }
    }

    /// Sends the rest, then shuts down the write direction of a socket.
    pub(super) fn poll_shutdown(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_buffer(bytes).poll_alone(cx))?;
        let result = bytes.owned.shutdown(Shutdown::Write);
        self.write_buffer(bytes).release_queue();
        Poll::Ready(match result {
            // The peer has reset the connection, so there is nothing to shut down; reads and writes report the reset.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }

    /// Sends the rest, then closes the write end of a pipe.
    pub(super) fn poll_close(&mut self, bytes: &mut ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_buffer(bytes).poll_alone(cx))?;
        self.detach();
        bytes.close_now();
        Poll::Ready(Ok(()))
    }

    /// The number of accepted bytes that the kernel does not have yet.
    pub(super) fn unsent(&self) -> usize {
        match &self.backend {
            WriteBackend::Kernel(write_buffer) => write_buffer.unsent(),
            _ => 0,
        }
    }

    /// Detaches from the backend, which still sends the accepted bytes.
    fn detach(&mut self) {
        if let WriteBackend::Kernel(write_buffer) = std::mem::take(&mut self.backend) {
            write_buffer.detach();
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.detach();
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("unsent", &self.unsent()).finish()
    }
}
