//! The write state of a bridge between two polls.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::sender::Sender;
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
    Kernel(Rc<Sender>),
    Memory(OutgoingPipe),
}

impl Writing {
    /// The sender of a descriptor, created by the first write.
    pub(super) fn sender(&mut self, bytes: &ByteStream) -> &Rc<Sender> {
        if self.started_sender(bytes).is_none() {
            self.detach();
            self.backend = WriteBackend::Kernel(Sender::new(bytes));
        }
        match &self.backend {
            WriteBackend::Kernel(sender) => sender,
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

    /// The sender of a descriptor, if anything was written to it.
    fn started_sender(&self, bytes: &ByteStream) -> Option<&Rc<Sender>> {
        match &self.backend {
            WriteBackend::Kernel(sender) if sender.is_for(bytes) => Some(sender),
            _ => None,
        }
    }

    /// Waits until all accepted bytes are sent.
    pub(super) fn poll_sent(&self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sender = self.started_sender(bytes);
        sender.map_or(Poll::Ready(Ok(())), |sender| sender.poll_flush(cx))
    }

    /// The error of a failed send.
    pub(super) fn failure(&self, bytes: &ByteStream) -> io::Result<()> {
        self.started_sender(bytes).map_or(Ok(()), |sender| sender.failure())
    }

    /// Sends the rest, then shuts down the write direction of a socket.
    pub(super) fn poll_shutdown(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.sender(bytes).poll_alone(cx))?;
        let result = bytes.owned.shutdown(Shutdown::Write);
        self.sender(bytes).release_queue();
        Poll::Ready(match result {
            // The peer has reset the connection, so there is nothing to shut down; reads and writes report the reset.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }

    /// Sends the rest, then closes the write end of a pipe.
    pub(super) fn poll_close(&mut self, bytes: &mut ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.sender(bytes).poll_alone(cx))?;
        self.detach();
        bytes.close_now();
        Poll::Ready(Ok(()))
    }

    /// The number of accepted bytes that the kernel does not have yet.
    pub(super) fn unsent(&self) -> usize {
        match &self.backend {
            WriteBackend::Kernel(sender) => sender.unsent(),
            _ => 0,
        }
    }

    /// Detaches from the backend, which still sends the accepted bytes.
    fn detach(&mut self) {
        if let WriteBackend::Kernel(sender) = std::mem::take(&mut self.backend) {
            sender.detach();
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
