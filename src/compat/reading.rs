//! The read state of a bridge between two polls.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use crate::inflight::descriptor::Descriptor;
use crate::inflight::stream::{ByteStream, ManagedRead};
use crate::io::{DuplexStream, IncomingPipe, ManagedBuf};

/// The read state of a [`Bridge`](super::Bridge) between two polls, for [`PollRead`](super::PollRead): unconsumed
/// bytes, and the read in flight. Dropping it returns both to the stream for the next read.
#[derive(Default)]
pub struct Reading {
    /// Received but not consumed. While it is not empty, no read is in flight.
    unconsumed: ManagedBuf,
    backend: ReadBackend,
}

#[derive(Default)]
enum ReadBackend {
    #[default]
    Unbound,
    /// With the pending read, if any. Without one, this does not keep the descriptor open.
    Kernel(Weak<Descriptor>, Option<PendingRead>),
    Memory(IncomingPipe),
}

/// A read waiting in the queue or in flight.
struct PendingRead {
    descriptor: Rc<Descriptor>,
    read: ManagedRead,
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        self.read.give_up(&self.descriptor);
    }
}

impl Reading {
    /// Reads from a socket or pipe.
    pub(super) fn poll_kernel(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let descriptor = &bytes.owned.descriptor;
        let is_bound =
            matches!(&self.backend, ReadBackend::Kernel(of, _) if std::ptr::eq(of.as_ptr(), Rc::as_ptr(descriptor)));
        if !is_bound {
            self.give_back();
            self.backend = ReadBackend::Kernel(Rc::downgrade(descriptor), None);
        }
        if self.unconsumed.is_empty()
            && let ReadBackend::Kernel(_, pending) = &mut self.backend
        {
            let pending_read = pending.get_or_insert_with(|| PendingRead {
                descriptor: descriptor.clone(),
                read: ManagedRead::default(),
            });
            let result = ready!(pending_read.read.poll(descriptor, bytes.medium(), cx));
            *pending = None;
            self.unconsumed = result?;
        }
        Poll::Ready(Ok(&self.unconsumed))
    }

    /// Reads from an in-memory stream.
    pub(super) fn poll_memory(&mut self, stream: &DuplexStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let is_bound = matches!(&self.backend, ReadBackend::Memory(pipe) if pipe.is_of(stream));
        if !is_bound {
            self.give_back();
            self.backend = ReadBackend::Memory(stream.incoming_pipe());
        }
        if self.unconsumed.is_empty()
            && let ReadBackend::Memory(pipe) = &mut self.backend
        {
            self.unconsumed = ready!(pipe.poll_take(cx));
        }
        Poll::Ready(Ok(&self.unconsumed))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.unconsumed.advance(count);
        if self.unconsumed.is_empty() {
            // Return it to its pool.
            self.unconsumed = ManagedBuf::default();
        }
    }

    /// Returns unconsumed bytes to the stream for the next read.
    fn give_back(&mut self) {
        let unconsumed = std::mem::take(&mut self.unconsumed);
        if unconsumed.is_empty() {
            return;
        }
        match &self.backend {
            ReadBackend::Kernel(of, _) => {
                if let Some(descriptor) = of.upgrade() {
                    descriptor.read.put_front(&descriptor.core, &unconsumed);
                }
            }
            ReadBackend::Memory(pipe) => pipe.put_back(&unconsumed),
            ReadBackend::Unbound => {}
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("unconsumed", &self.unconsumed.len())
            .finish()
    }
}
