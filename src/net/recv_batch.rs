//! Receiving several datagrams at once.
//!
//! A batch is received with one `recvmmsg` where the system has it. That call is synchronous and never blocks, so
//! dropping its caller cannot lose a datagram. If no datagram is waiting, an ordinary receive waits for the first one:
//! its cancellation is loss-free already (see `inflight::queue`), and it works on every driver. A second call then takes
//! the datagrams behind it. After a batch of one datagram, the next call does not ask for waiting datagrams first: with
//! little traffic that would be a system call for nothing.
//!
//! io_uring has no operation for several datagrams. Multishot receives would need a buffer ring for each length of
//! datagrams, and would take datagrams that no caller has asked for. A plain system call for up to a whole batch costs
//! less per datagram than a completion.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;

use super::datagram::{Ancillary, receive_next};
use super::udp::UdpSocket;
use crate::driver::Direction;
use crate::error::from_code;
use crate::sys::{IoVec, MsgBatchBuf, MsgMeta, Name};

/// The most messages of a batch: Linux takes no more in one call.
const MAX_MESSAGES: usize = 1024;

/// Reusable memory for [`UdpSocket::recv_batch`]: a number of buffers, and the datagrams that were received into them.
///
/// It allocates its buffers when it is first used. Afterwards it allocates only to replace the buffer of a dropped call.
///
/// ```
/// use windlass::net::{RecvBatch, SendBatch, UdpSocket};
/// windlass::run(async {
///     let server = UdpSocket::bind("127.0.0.1:0").await?;
///     let client = UdpSocket::bind("127.0.0.1:0").await?;
///     let mut queries = SendBatch::new();
///     for text in ["one", "two", "three"] {
///         queries.push(text.as_bytes(), server.local_addr()?);
///     }
///     client.send_batch(&mut queries).await?;
///
///     let mut batch = RecvBatch::new(32, 1500);
///     let mut texts = Vec::new();
///     while texts.len() < 3 {
///         server.recv_batch(&mut batch).await?;
///         for datagram in &batch {
///             assert_eq!(datagram.from(), client.local_addr()?);
///             texts.push(String::from_utf8_lossy(&datagram).into_owned());
///         }
///     }
///     assert_eq!(texts, ["one", "two", "three"]);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct RecvBatch {
    slots: Vec<Slot>,
    /// How many slots have a message.
    filled: usize,
    /// How many datagrams these messages are.
    datagrams: usize,
    buffer_len: usize,
    headers: MsgBatchBuf,
}

/// A buffer and the message in it.
struct Slot {
    /// Empty while an operation has the buffer. If its future is dropped, the buffer does not come back.
    buf: Vec<u8>,
    from: SocketAddr,
    segment_size: Option<u16>,
    is_truncated: bool,
}

impl RecvBatch {
    /// A batch of up to `messages` datagrams (between 1 and 1,024) of up to `buffer_len` bytes.
    ///
    /// With [GRO](UdpSocket::set_gro) a buffer may receive several datagrams at once: use 65,535 bytes then.
    ///
    /// # Panics
    ///
    /// If `buffer_len` is 0.
    pub fn new(messages: usize, buffer_len: usize) -> RecvBatch {
        assert!(buffer_len > 0, "a batch needs buffers of at least one byte");
        let slot = |_| Slot {
            buf: Vec::new(),
            from: unspecified(),
            segment_size: None,
            is_truncated: false,
        };
        RecvBatch {
            slots: (0..messages.clamp(1, MAX_MESSAGES)).map(slot).collect(),
            filled: 0,
            datagrams: 0,
            buffer_len,
            headers: MsgBatchBuf::default(),
        }
    }

    /// The number of datagrams that were received.
    pub fn len(&self) -> usize {
        self.datagrams
    }

    /// Whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Forgets the received datagrams.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.datagrams = 0;
    }

    /// The datagrams, in the order of their arrival. Coalesced ones are separate here.
    pub fn iter(&self) -> BatchIter<'_> {
        BatchIter {
            slots: &self.slots[..self.filled],
            at: 0,
        }
    }

    /// The received messages as they are in the buffers: with [GRO](UdpSocket::set_gro), each may be several datagrams of
    /// one sender. For protocol implementations that split them on their own.
    ///
    /// ```
    /// use windlass::net::{RecvBatch, UdpSocket};
    /// windlass::run(async {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
    ///     socket.send_to_segmented("onetwo", 3, socket.local_addr()?).await.0?;
    ///     let mut batch = RecvBatch::new(8, 65_535);
    ///     socket.recv_batch(&mut batch).await?;
    ///     let message = batch.coalesced().next().expect("at least one");
    ///     assert_eq!(message.segment_size(), 3);
    ///     assert_eq!(message.bytes().chunks(message.segment_size()).next(), Some(&b"one"[..]));
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn coalesced(&self) -> impl ExactSizeIterator<Item = Coalesced<'_>> {
        self.slots[..self.filled].iter().map(|slot| Coalesced {
            bytes: &slot.buf,
            from: slot.from,
            segment_size: slot.segment_size().max(1),
            is_truncated: slot.is_truncated,
        })
    }

    /// The memory for the next message.
    fn take_buffer(&mut self) -> Vec<u8> {
        let buf = std::mem::take(&mut self.slots[self.filled].buf);
        with_capacity(buf, self.buffer_len)
    }

    fn put_back(&mut self, buf: Vec<u8>) {
        self.slots[self.filled].buf = buf;
    }

    /// Adds a message. Its bytes are in the next slot's buffer.
    fn push(&mut self, meta: MsgMeta) {
        let slot = &mut self.slots[self.filled];
        slot.from = meta
            .sender
            .as_ref()
            .and_then(Name::as_socket)
            .unwrap_or_else(unspecified);
        slot.segment_size = meta.segment_size;
        slot.is_truncated = meta.is_truncated;
        self.datagrams += slot.buf.len().div_ceil(slot.segment_size().max(1)).max(1);
        self.filled += 1;
    }

    fn is_full(&self) -> bool {
        self.filled == self.slots.len()
    }
}

impl Slot {
    /// The length of each datagram but the last; 0 only if the message is empty.
    fn segment_size(&self) -> usize {
        self.segment_size.map_or(self.buf.len(), usize::from)
    }
}

fn unspecified() -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 0).into()
}

/// The buffer, empty and with at least this capacity.
fn with_capacity(mut buf: Vec<u8>, len: usize) -> Vec<u8> {
    buf.clear();
    buf.reserve_exact(len);
    buf
}

impl UdpSocket {
    /// Receives the datagrams that are waiting, at least one and at most as many as the batch has space for, and returns
    /// their number. The earlier contents of the batch are discarded.
    ///
    /// On Linux, a socket that keeps receiving several datagrams at a time needs one system call per batch. A datagram that is
    /// longer than a buffer is [truncated](DatagramRef::is_truncated), which is not an error here, because an error would
    /// lose the other datagrams.
    ///
    /// **Cancel safety:** a dropped call loses nothing: the next receive, in a batch or not, returns the datagram.
    ///
    /// See [`RecvBatch`] for an example.
    #[doc(alias = "recvmmsg")]
    pub async fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.clear();
        let descriptor = &self.socket().descriptor;
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        let _guard = queue.begin(core).await;
        let explain = |code| self.with_peer("receive from", from_code(code));
        if queue.has_leftover() {
            let mut buf = batch.take_buffer();
            let served = queue.serve_message(&mut buf, false);
            batch.put_back(buf);
            match served {
                Some(Ok((_, meta))) => batch.push(meta),
                Some(Err(code)) => return Err(explain(code)),
                None => {}
            }
        }
        if self.expects_more() || !batch.is_empty() {
            self.drain(batch).map_err(explain)?;
        }
        if batch.is_empty() {
            let ancillary = match self.is_gro() {
                true => Ancillary::SegmentSize,
                false => Ancillary::Descriptors(0),
            };
            let buf = batch.take_buffer();
            let (result, buf) = receive_next(self.socket(), self.msg_pool(), buf, ancillary, false).await;
            batch.put_back(buf);
            let (_, meta) = result.map_err(|error| self.with_peer("receive from", error))?;
            batch.push(meta);
            self.drain(batch).map_err(explain)?;
        }
        self.set_expects_more(batch.filled > 1);
        Ok(batch.len())
    }

    /// Receives datagrams that are waiting, without blocking, behind those that are in the batch. An error behind a
    /// datagram is kept for the next receive. The caller holds the queue.
    fn drain(&self, batch: &mut RecvBatch) -> Result<(), i32> {
        let descriptor = &self.socket().descriptor;
        if batch.is_full() || descriptor.read.has_leftover() {
            return Ok(());
        }
        let len = batch.buffer_len;
        let RecvBatch {
            slots, filled, headers, ..
        } = batch;
        let free = &mut slots[*filled..];
        for slot in free.iter_mut() {
            slot.buf = with_capacity(std::mem::take(&mut slot.buf), len);
        }
        let buffers = free.iter_mut().map(|slot| IoVec {
            base: slot.buf.as_mut_ptr(),
            len,
        });
        let entries = headers.prepare_receive(buffers, self.is_gro());
        // SAFETY: the batch, which is borrowed mutably, owns the buffers and the headers.
        let count = unsafe { descriptor.core.batch(descriptor.fd, Direction::Read, entries) };
        for index in 0..count {
            match batch.headers.result(index) {
                Ok(received) => {
                    let meta = batch.headers.open(index);
                    let buf = &mut batch.slots[batch.filled].buf;
                    // SAFETY: the driver has written this many bytes, which is at most the capacity.
                    unsafe { buf.set_len((received as usize).min(len)) };
                    batch.push(meta);
                }
                Err(code) if batch.is_empty() => return Err(code),
                Err(code) => descriptor.read.put_error(code),
            }
        }
        Ok(())
    }
}

/// The datagrams of a [`RecvBatch`].
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    slots: &'a [Slot],
    /// How many bytes of the first slot were returned.
    at: usize,
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = DatagramRef<'a>;

    fn next(&mut self) -> Option<DatagramRef<'a>> {
        let slot = self.slots.first()?;
        let end = (self.at + slot.segment_size()).min(slot.buf.len());
        let bytes = &slot.buf[self.at..end];
        let is_last = end == slot.buf.len();
        self.at = end;
        if is_last {
            self.slots = &self.slots[1..];
            self.at = 0;
        }
        Some(DatagramRef {
            bytes,
            from: slot.from,
            is_truncated: is_last && slot.is_truncated,
        })
    }
}

impl<'a> IntoIterator for &'a RecvBatch {
    type Item = DatagramRef<'a>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

/// A datagram of a [`RecvBatch`]. It dereferences to `[u8]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRef<'a> {
    bytes: &'a [u8],
    from: SocketAddr,
    is_truncated: bool,
}

impl<'a> DatagramRef<'a> {
    /// The bytes, for as long as the batch is borrowed.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The address of the sender.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Whether the datagram was longer than the buffer; the rest is lost.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

impl Deref for DatagramRef<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// One or more datagrams of one sender in one buffer: see [`RecvBatch::coalesced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesced<'a> {
    bytes: &'a [u8],
    from: SocketAddr,
    segment_size: usize,
    is_truncated: bool,
}

impl<'a> Coalesced<'a> {
    /// The bytes of all datagrams.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The address of the sender.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// The length of each datagram; the last may be shorter. At least 1.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Whether the buffer was too small for the last datagram.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {}", self.buf.len(), self.from)
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("len", &self.datagrams)
            .field("messages", &self.slots.len())
            .field("buffer_len", &self.buffer_len)
            .finish()
    }
}
