//! What a bridge keeps of its reading between two polls.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use crate::byte_stream::{ByteStream, HEAP_READ_LEN, count};
use crate::descriptor::Descriptor;
use crate::driver::Landing;
use crate::error::from_code;
use crate::flight::{Airborne, Fate};
use crate::io::{DuplexStream, IncomingPipe, ManagedBuf};
use crate::lane::{Lane, SharedHold};
use crate::op::{Medium, Op};
use crate::sys::errno;

/// What is kept of a [`Bridge`](super::Bridge)'s reading between two polls: bytes that were received and not consumed, and the
/// read that is under way. For [`PollRead`](super::PollRead).
///
/// Dropped, it gives both back to the stream, for the next read.
#[derive(Default)]
pub struct Reading {
    /// Received and not consumed; empty: nothing. While it is not empty, no read is under way.
    lent: ManagedBuf,
    source: Source,
}

/// Where the bytes come from.
#[derive(Default)]
enum Source {
    #[default]
    Unknown,
    /// With the read that is under way. Without one it keeps nothing open.
    Kernel(Weak<Descriptor>, Option<Receiving>),
    Memory(IncomingPipe),
}

/// A read that is polled.
struct Receiving {
    hold: SharedHold<Descriptor>,
    flight: Option<Receive>,
}

/// The read that is in the air, by what it carries.
enum Receive {
    Managed(Airborne<Rc<Descriptor>>),
    /// The pool was empty.
    Heap(Airborne<(Rc<Descriptor>, Vec<u8>)>),
}

impl Reading {
    /// What the kernel sends next.
    pub(super) fn poll_kernel(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let descriptor = &bytes.owned.descriptor;
        let is_known =
            matches!(&self.source, Source::Kernel(of, _) if std::ptr::eq(of.as_ptr(), Rc::as_ptr(descriptor)));
        if !is_known {
            self.give_back();
            self.source = Source::Kernel(Rc::downgrade(descriptor), None);
        }
        if self.lent.is_empty()
            && let Source::Kernel(_, under_way) = &mut self.source
        {
            let receiving = under_way.get_or_insert_with(|| Receiving {
                hold: SharedHold::new(descriptor.clone(), |descriptor| &descriptor.read),
                flight: None,
            });
            let result = ready!(receiving.poll(bytes.medium(), cx));
            *under_way = None;
            self.lent = result?;
        }
        Poll::Ready(Ok(&self.lent))
    }

    /// What is written to the other end of a connection in memory.
    pub(super) fn poll_memory(&mut self, stream: &DuplexStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let is_known = matches!(&self.source, Source::Memory(pipe) if pipe.is_of(stream));
        if !is_known {
            self.give_back();
            self.source = Source::Memory(stream.incoming_pipe());
        }
        if self.lent.is_empty()
            && let Source::Memory(pipe) = &mut self.source
        {
            self.lent = ready!(pipe.poll_take(cx));
        }
        Poll::Ready(Ok(&self.lent))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.lent.advance(count);
        if self.lent.is_empty() {
            // Back to its pool.
            self.lent = ManagedBuf::default();
        }
    }

    /// What was received and not consumed is read from the stream next.
    fn give_back(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        if lent.is_empty() {
            return;
        }
        match &self.source {
            Source::Kernel(of, _) => {
                if let Some(descriptor) = of.upgrade() {
                    descriptor.read.put_in_front(&descriptor.core, &lent);
                }
            }
            Source::Memory(pipe) => pipe.put_back(&lent),
            Source::Unknown => {}
        }
    }
}

impl Receiving {
    fn poll(&mut self, medium: Medium, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        if self.flight.is_none() {
            ready!(self.hold.poll(cx));
            let (descriptor, lane) = (self.hold.of(), self.hold.lane());
            ready!(lane.poll_settle(&descriptor.core, cx));
            if ready!(lane.poll_unread(&descriptor.core, cx))
                && let Some(served) = lane.serve_all()
            {
                return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
            }
            self.flight = Some(Receive::managed(descriptor, lane, medium));
        }
        let (descriptor, lane) = (self.hold.of(), self.hold.lane());
        if let Some(Receive::Managed(flight)) = &mut self.flight {
            let (landing, _) = ready!(flight.poll(&descriptor.core, lane, cx));
            let received = landing.buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
            if lane.is_overtaken(received, None, landing.outcome)
                && let Some(served) = lane.serve_all()
            {
                self.flight = None;
                return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
            }
            match landing {
                Landing {
                    buffer: Some(buffer), ..
                } => {
                    self.flight = None;
                    return Poll::Ready(Ok(ManagedBuf::from_pool(buffer)));
                }
                Landing {
                    outcome: Err(errno::NO_BUFFERS),
                    ..
                } => self.flight = Some(Receive::to_heap(descriptor, lane, medium)),
                Landing { outcome, .. } => {
                    self.flight = None;
                    return Poll::Ready(count(outcome).map(|_| ManagedBuf::default()));
                }
            }
        }
        let Some(Receive::Heap(flight)) = &mut self.flight else {
            unreachable!("one of the two is in the air")
        };
        let (landing, (_, buf)) = ready!(flight.poll(&descriptor.core, lane, cx));
        self.flight = None;
        let received = *count(landing.outcome).as_ref().unwrap_or(&0);
        if lane.is_overtaken(&buf[..received], None, landing.outcome)
            && let Some(served) = lane.serve_all()
        {
            return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
        }
        Poll::Ready(count(landing.outcome).map(|count| {
            let mut bytes = ManagedBuf::from(buf);
            bytes.truncate(count);
            bytes
        }))
    }
}

impl Receive {
    fn managed(descriptor: &Rc<Descriptor>, lane: &Lane, medium: Medium) -> Receive {
        let fd = descriptor.fd;
        let load = descriptor.clone();
        let plan = |_: &mut _| Op::RecvManaged { fd, medium };
        Receive::Managed(Airborne::launch(&descriptor.core, lane, Fate::Keep, load, 0, plan))
    }

    fn to_heap(descriptor: &Rc<Descriptor>, lane: &Lane, medium: Medium) -> Receive {
        let fd = descriptor.fd;
        let load = (descriptor.clone(), vec![0; HEAP_READ_LEN]);
        let plan = |(_, buf): &mut (_, Vec<u8>)| {
            let (ptr, len) = (buf.as_mut_ptr(), buf.len());
            Op::Recv { fd, medium, ptr, len }
        };
        Receive::Heap(Airborne::launch(&descriptor.core, lane, Fate::Keep, load, 0, plan))
    }
}

impl Drop for Receiving {
    /// The read stays in its lane: what it receives, the next one gets.
    fn drop(&mut self) {
        let core = &self.hold.of().core;
        match &mut self.flight {
            Some(Receive::Managed(flight)) => flight.leave(core),
            Some(Receive::Heap(flight)) => flight.leave(core),
            None => {}
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
        f.debug_struct("Reading").field("unconsumed", &self.lent.len()).finish()
    }
}
