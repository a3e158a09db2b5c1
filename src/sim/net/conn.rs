//! Connections: two ends and a byte queue towards each of them. TCP connections, Unix connections and pipes.
//!
//! The receiving side's queue holds the bytes from the moment they are sent, and `arrived` counts those that the
//! receiver can see. So bytes are copied once in and once out, and a delay on the way only delays the count.

use std::collections::VecDeque;

use super::addr::Addr;
use super::bytes::ByteQueue;
use super::segments::{Segment, SegmentKind, Segments};
use super::wire::{ConnKey, NetEvent, SocketKey, Wire};
use crate::sim::log::EventKind;
use crate::sys::{Fd, Foreign, errno};

/// How many bytes one direction of a connection holds before a send blocks.
pub(crate) const STREAM_CAPACITY: usize = 64 * 1024;

/// The smallest capacity that socket options can set.
const LEAST_CAPACITY: usize = 2 * 1024;

/// The end of a pipe that is written to.
const WRITER: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Tcp,
    Unix,
    Pipe,
}

/// A connection.
pub(super) struct Conn {
    /// Tells it from earlier connections with the same index.
    pub(super) serial: u32,
    pub(super) transport: Transport,
    /// Whether it is between hosts of a world, so that each end learns of the other's actions later.
    pub(super) is_wired: bool,
    /// The links towards the end with the same index, if it is wired.
    pub(super) links: [u32; 2],
    /// The listener that this connection is for, until it is in the backlog.
    pub(super) listener: Option<SocketKey>,
    pub(super) ends: [End; 2],
    /// The bytes towards the end with the same index.
    pub(super) flows: [Flow; 2],
}

/// An end and the other one. The mask spares the check of an index into two ends.
#[inline(always)]
pub(super) fn both(end: usize) -> [usize; 2] {
    [end & 1, (end & 1) ^ 1]
}

/// One end of a connection.
pub(super) struct End {
    /// The socket, until it is closed.
    pub(super) fd: Option<Fd>,
    pub(super) host: u16,
    /// The host has lost power and does not know the connection any more.
    pub(super) has_vanished: bool,
    /// Its last segment was answered with an RST. If that is lost, it sends again, and gets another one.
    pub(super) awaits_reset: bool,
    /// When something of the peer last arrived.
    pub(super) heard_at: u64,
    /// Keep-alive probes that were not answered.
    pub(super) probes: u32,
    /// Its own address, and the peer's address as this end sees it.
    pub(super) local: Addr,
    pub(super) remote: Addr,
    /// An error that the next call reports, once.
    pub(super) error: Option<i32>,
    /// The connection was reset or has failed: nothing is sent or received any more.
    pub(super) is_over: bool,
    pub(super) read_shut: bool,
    pub(super) write_shut: bool,
}

/// The bytes towards one end.
pub(super) struct Flow {
    pub(super) bytes: ByteQueue,
    /// How many of them the receiver can see.
    pub(super) arrived: usize,
    /// The sender has finished, and every byte before has arrived.
    pub(super) is_finished: bool,
    pub(super) capacity: usize,
    /// How many bytes were received so far: the position of the first of `bytes`. Not counted between hosts, where no
    /// descriptors are passed.
    position: u64,
    /// Descriptors passed along, in order.
    parcels: VecDeque<Parcel>,
    /// What is on its way, in order. An event is scheduled for the first of them.
    pub(super) segments: Segments,
    /// Since when the sender has got no acknowledgement for bytes that have arrived.
    pub(super) unacked_since: Option<u64>,
}

/// Descriptors that were sent with some bytes of a Unix connection.
struct Parcel {
    /// The positions of the first byte of that send, and of the first after it.
    begin: u64,
    end: u64,
    descriptors: Vec<Foreign>,
}

impl Conn {
    pub(super) fn new(serial: u32, transport: Transport, ends: [End; 2]) -> Conn {
        Conn {
            serial,
            transport,
            is_wired: false,
            links: [0; 2],
            listener: None,
            ends,
            flows: [Flow::new(), Flow::new()],
        }
    }

    pub(super) fn key(&self, index: u32) -> ConnKey {
        ConnKey {
            index,
            serial: self.serial,
        }
    }

    /// Whether a receive of this end need not wait.
    #[inline]
    pub(super) fn can_recv(&self, end: usize) -> bool {
        let [end, _] = both(end);
        let (flow, end) = (&self.flows[end], &self.ends[end]);
        flow.arrived > 0 || flow.is_finished || end.read_shut || end.is_over || end.error.is_some()
    }

    /// Whether a send of this end need not wait.
    pub(super) fn can_send(&self, end: usize) -> bool {
        let own = &self.ends[end];
        let is_closed = self.ends[1 - end].fd.is_none() && !self.is_wired;
        own.write_shut || own.is_over || own.error.is_some() || is_closed || self.flows[1 - end].room() > 0
    }

    /// Puts a segment on its way from an end to the other one, where it arrives at this time, or after those before it.
    #[inline(always)]
    pub(super) fn push_segment(
        &mut self,
        wire: &mut Wire,
        index: u32,
        from: usize,
        kind: SegmentKind,
        len: usize,
        at: u64,
    ) {
        let [from, to] = both(from);
        let key = self.key(index);
        let flow = &mut self.flows[to];
        let last = flow.segments.back().map(|last| last.at);
        let at = last.map_or(at, |last| at.max(last));
        flow.segments.push_back(Segment {
            kind,
            len,
            sent_at: wire.now,
            at,
            tries: 0,
        });
        wire.log.record_inline(
            wire.now,
            self.ends[from].host,
            match kind {
                SegmentKind::Data => EventKind::Send,
                SegmentKind::Fin => EventKind::Finish,
                SegmentKind::Established => EventKind::Connected,
            },
            self.ends[to].host.into(),
            len as u64,
        );
        if last.is_none() {
            let end = to as u8;
            wire.schedule(at, NetEvent::Segment { conn: key, end });
        }
    }

    /// Sends from the parts in order to another host, as much as there is room for; `None` if there is none.
    #[inline(always)]
    pub(super) fn send<'a>(
        &mut self,
        wire: &mut Wire,
        index: u32,
        end: usize,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<u32> {
        let [end, peer] = both(end);
        let flow = &mut self.flows[peer];
        let room = flow.room();
        if room == 0 {
            return None;
        }
        let len: usize = parts.clone().map(<[u8]>::len).sum();
        let (count, at) = wire.send(self.links[peer], len.min(room));
        let mut left = count;
        for part in parts {
            let part = &part[..part.len().min(left)];
            // No descriptors: these are passed within a host.
            flow.bytes.push(part);
            left -= part.len();
        }
        self.push_segment(wire, index, end, SegmentKind::Data, count, at);
        Some(count as u32)
    }

    /// What a receive returns if no bytes have arrived. As on Linux, bytes that arrived before an error are received before
    /// it.
    pub(super) fn recv_nothing(&mut self, end: usize) -> Option<Result<u32, i32>> {
        let (flow, end) = (&self.flows[end], &mut self.ends[end]);
        if flow.is_finished {
            return Some(Ok(0));
        }
        if let Some(code) = end.error.take() {
            return Some(Err(code));
        }
        (end.read_shut || end.is_over).then_some(Ok(0))
    }

    /// Whether this is the end of a pipe from which nothing is read.
    #[inline]
    pub(super) fn is_writer(&self, end: usize) -> bool {
        self.transport == Transport::Pipe && end == WRITER
    }

    /// The error of a send that cannot transfer bytes any more.
    #[inline]
    pub(super) fn send_error(&mut self, end: usize) -> Option<i32> {
        let own = &mut self.ends[end];
        if let Some(code) = own.error.take() {
            return Some(code);
        }
        if own.is_over || own.write_shut {
            return Some(errno::BROKEN_PIPE);
        }
        let is_closed = self.ends[1 - end].fd.is_none();
        match self.transport {
            Transport::Pipe if end != WRITER => Some(errno::BAD_FD),
            Transport::Unix | Transport::Pipe if is_closed => Some(errno::BROKEN_PIPE),
            Transport::Tcp | Transport::Unix | Transport::Pipe => None,
        }
    }

    /// An end gets an RST. As on Linux, an end that has received the peer's FIN reports EPIPE instead of ECONNRESET.
    pub(super) fn reset(&mut self, end: usize) {
        let code = match self.flows[end].is_finished {
            true => errno::BROKEN_PIPE,
            false => errno::RESET,
        };
        self.fail(end, code);
    }

    /// The connection is over for this end, and its next call reports `code`.
    pub(super) fn fail(&mut self, end: usize, code: i32) {
        let end = &mut self.ends[end];
        if !end.is_over {
            end.is_over = true;
            end.error = Some(code);
        }
    }
}

impl End {
    /// Whether the end has neither failed nor finished.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        self.error.is_none() && !self.is_over && !self.write_shut
    }

    pub(super) fn new(fd: Fd, host: u16, local: Addr, remote: Addr) -> End {
        End {
            fd: Some(fd),
            host,
            has_vanished: false,
            awaits_reset: false,
            heard_at: 0,
            probes: 0,
            local,
            remote,
            error: None,
            is_over: false,
            read_shut: false,
            write_shut: false,
        }
    }
}

impl Flow {
    fn new() -> Flow {
        Flow {
            bytes: ByteQueue::default(),
            arrived: 0,
            is_finished: false,
            capacity: STREAM_CAPACITY,
            position: 0,
            parcels: VecDeque::new(),
            segments: Segments::default(),
            unacked_since: None,
        }
    }

    /// Sets the capacity: half of the sender's and of the receiver's buffer size.
    pub(super) fn set_buffers(&mut self, send: usize, recv: usize) {
        self.capacity = (send / 2 + recv / 2).max(LEAST_CAPACITY);
    }

    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// Adds bytes, of which there is room for, and the descriptors that are passed with them.
    #[inline(always)]
    pub(super) fn push(&mut self, bytes: &[u8], descriptors: Vec<Foreign>) {
        if !descriptors.is_empty() {
            let begin = self.position + self.bytes.len() as u64;
            self.parcels.push_back(Parcel {
                begin,
                end: begin + bytes.len() as u64,
                descriptors,
            });
        }
        self.bytes.push(bytes);
    }

    /// Drops everything: the receiver is gone.
    pub(super) fn discard(&mut self) {
        self.bytes.clear();
        self.arrived = 0;
        self.parcels.clear();
    }

    /// How many bytes the next receive gets at most. As on Linux, it ends with the last byte that was sent with
    /// descriptors.
    #[inline]
    pub(super) fn available(&self) -> usize {
        match self.parcels.front() {
            Some(parcel) => self.arrived.min((parcel.end - self.position) as usize),
            None => self.arrived,
        }
    }

    /// `count` bytes were taken from the queue. Adds the descriptors that came with them to `descriptors`.
    #[inline]
    pub(super) fn took(&mut self, count: u32, descriptors: &mut Vec<Foreign>) {
        self.arrived -= count as usize;
        self.position += u64::from(count);
        if let Some(parcel) = self.parcels.front_mut()
            && parcel.begin < self.position
        {
            descriptors.append(&mut parcel.descriptors);
            if parcel.end <= self.position {
                self.parcels.pop_front();
            }
        }
    }
}
