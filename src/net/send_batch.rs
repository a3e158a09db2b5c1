//! Sending several datagrams at once, and bytes that the kernel splits into datagrams (GSO).
//!
//! A batch is sent with one `sendmmsg` where the system has it, which never blocks. If the send buffer is full, an
//! ordinary send waits until the next datagram fits. A datagram leaves the batch before that send starts, so a dropped
//! call never sends one twice.
//!
//! Where the kernel does not split datagrams, these functions do. A kernel that has `UDP_SEGMENT` can still refuse it:
//! with EIO if the interface computes no checksums, which holds for the socket, or with EINVAL if a datagram is longer
//! than the interface's MTU, where an ordinary send is fragmented.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use super::addr::ToSocketAddrs;
use super::datagram::send_segments;
use super::udp::UdpSocket;
use crate::driver::Direction;
use crate::error::from_code;
use crate::io::{BufResult, IoBuf};
use crate::sys::{IoVec, MsgBatchBuf, Name, Outgoing, context, errno};

/// The most datagrams that Linux splits a message into (`UDP_MAX_SEGMENTS`; newer kernels take twice as many).
const MAX_SEGMENTS: usize = 64;

/// The largest payload of a datagram over IPv4, which is also a limit for a message that is split.
const MAX_PAYLOAD: usize = 65_507;

/// The most messages of one system call.
const MAX_MESSAGES: usize = 64;

/// Datagrams to send with [`UdpSocket::send_batch`], in memory that is reused.
///
/// ```
/// use windlass::net::{SendBatch, UdpSocket};
/// windlass::run(async {
///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
///     let here = socket.local_addr()?;
///     let mut batch = SendBatch::new();
///     batch.push(b"one", here);
///     batch.push_segmented(b"twothreefour", 3, here);
///     assert_eq!(batch.len(), 5);
///     assert_eq!(socket.send_batch(&mut batch).await?, 5);
///     for text in ["one", "two", "thr", "eef", "our"] {
///         assert_eq!(&*socket.recv_managed().await?, text.as_bytes());
///     }
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
pub struct SendBatch {
    bytes: Vec<u8>,
    items: Vec<Item>,
    next: Position,
    pieces: Vec<Piece>,
    headers: MsgBatchBuf,
    /// The bytes of a send that waits.
    waiting: Vec<u8>,
}

/// The first datagram that was not sent.
#[derive(Clone, Copy, Default)]
struct Position {
    item: usize,
    /// Where it begins in the bytes.
    at: usize,
}

/// A datagram, or bytes to split into several.
struct Item {
    range: Range<usize>,
    to: Option<Name>,
    segment_size: usize,
}

/// The part of an item that one message carries.
#[derive(Clone)]
struct Piece {
    item: usize,
    range: Range<usize>,
    /// The kernel splits the piece.
    segment_size: Option<u16>,
}

impl SendBatch {
    /// An empty batch.
    pub fn new() -> SendBatch {
        SendBatch::default()
    }

    /// Adds a datagram, which may be empty, to an address; `None` is the address that the socket is connected to. The
    /// bytes are copied.
    pub fn push(&mut self, bytes: &[u8], to: impl Into<Option<SocketAddr>>) {
        self.add(bytes, 0, to.into());
    }

    /// Adds bytes that are sent as datagrams of `segment_size` bytes; the last may be shorter. Where the system can, it
    /// splits them ([GSO](UdpSocket::max_gso_segments)).
    ///
    /// # Panics
    ///
    /// If `segment_size` is 0.
    pub fn push_segmented(&mut self, bytes: &[u8], segment_size: usize, to: impl Into<Option<SocketAddr>>) {
        assert!(segment_size > 0, "datagrams of 0 bytes cannot carry anything");
        self.add(bytes, segment_size, to.into());
    }

    fn add(&mut self, bytes: &[u8], segment_size: usize, to: Option<SocketAddr>) {
        if self.next.item == self.items.len() {
            self.clear();
        }
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.items.push(Item {
            range: begin..self.bytes.len(),
            to: to.map(Name::from),
            segment_size: match segment_size {
                0 => bytes.len().max(1),
                size => size,
            },
        });
    }

    /// The number of datagrams that were not sent yet.
    pub fn len(&self) -> usize {
        let unsent = self.items.iter().enumerate().skip(self.next.item);
        unsent
            .map(|(index, item)| item.datagrams_from(self.begin_of(index)))
            .sum()
    }

    /// Whether every datagram was sent.
    pub fn is_empty(&self) -> bool {
        self.next.item == self.items.len()
    }

    /// Discards all datagrams that were not sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.next = Position::default();
    }

    /// Discards the first datagram that was not sent, for instance one that cannot be sent: see
    /// [`UdpSocket::send_batch`]. False if there is none.
    pub fn skip_first(&mut self) -> bool {
        let Some(piece) = pieces(&self.items, self.next, 1).next() else {
            return false;
        };
        self.advance(&piece);
        true
    }

    /// Where the unsent part of an item begins.
    fn begin_of(&self, index: usize) -> usize {
        match index == self.next.item {
            true => self.next.at.max(self.items[index].range.start),
            false => self.items[index].range.start,
        }
    }

    /// A piece was sent.
    fn advance(&mut self, piece: &Piece) {
        let is_last = piece.range.end == self.items[piece.item].range.end;
        self.next = Position {
            item: piece.item + usize::from(is_last),
            at: piece.range.end,
        };
    }

    /// Frees the memory of datagrams that were sent, for use by later ones.
    fn compact(&mut self) {
        if self.is_empty() {
            return self.clear();
        }
        let sent = self.begin_of(self.next.item);
        self.items.drain(..self.next.item);
        self.bytes.drain(..sent);
        for item in &mut self.items {
            item.range = item.range.start.saturating_sub(sent)..item.range.end - sent;
        }
        self.next = Position::default();
    }
}

impl Item {
    /// How many datagrams the bytes from `begin` on are.
    fn datagrams_from(&self, begin: usize) -> usize {
        (self.range.end - begin).div_ceil(self.segment_size).max(1)
    }
}

/// Splits the items from `next` on into pieces of up to `most` datagrams each.
fn pieces(items: &[Item], next: Position, most: usize) -> impl Iterator<Item = Piece> {
    let mut next = next;
    std::iter::from_fn(move || {
        let item = items.get(next.item)?;
        let begin = next.at.max(item.range.start);
        let (len, segment_size) = piece_of(item.range.end - begin, item.segment_size, most);
        let range = begin..begin + len;
        let piece = Piece {
            item: next.item,
            segment_size,
            range,
        };
        next.at = piece.range.end;
        if piece.range.end == item.range.end {
            next.item += 1;
        }
        Some(piece)
    })
}

/// The length of the next message and, if the kernel splits it, the length of its datagrams. `len` bytes are left, and
/// the kernel splits a message into up to `most` datagrams.
fn piece_of(len: usize, segment_size: usize, most: usize) -> (usize, Option<u16>) {
    let most = most.min(MAX_PAYLOAD / segment_size);
    match len > segment_size && most > 1 {
        true => (len.min(most * segment_size), u16::try_from(segment_size).ok()),
        false => (len.min(segment_size), None),
    }
}

impl UdpSocket {
    /// Sends all datagrams of a batch, in order, and returns their number. On Linux one system call sends up to 64 of them,
    /// or more if they were [added as segments](SendBatch::push_segmented).
    ///
    /// # Errors
    ///
    /// If a datagram cannot be sent, those before it were sent and have left the batch; it is the batch's first one now.
    /// Call again to send the rest, after [`skip_first`](SendBatch::skip_first) if the error is lasting (`EMSGSIZE`).
    ///
    /// **Cancel safety:** datagrams that were sent have left the batch. If the call was waiting for space in the send
    /// buffer, the next datagram has left it too, and may or may not be sent. With GSO these are up to
    /// [`max_gso_segments`](UdpSocket::max_gso_segments) datagrams of one segmented message.
    ///
    /// See [`SendBatch`] for an example.
    #[doc(alias = "sendmmsg")]
    pub async fn send_batch(&self, batch: &mut SendBatch) -> io::Result<usize> {
        let descriptor = &self.socket().descriptor;
        let _guard = descriptor.write.begin(&descriptor.core).await;
        batch.compact();
        let count = batch.len();
        let mut most = self.max_gso_segments();
        while !batch.is_empty() {
            let failed = match self.send_waiting_none(batch, most) {
                Some(result) => result.err(),
                None => self.send_next(batch, most).await.err(),
            };
            match failed {
                None => {}
                Some((code, true)) if self.can_split_instead(code) => most = 1,
                Some((code, _)) => {
                    batch.compact();
                    let error = from_code(code);
                    return Err(match &batch.items[0].to {
                        Some(to) => context(format_args!("send to {to}"), error),
                        None => self.with_peer("send to", error),
                    });
                }
            }
        }
        batch.clear();
        Ok(count)
    }

    /// Sends the next messages of a batch with one call; `None` if the first of them must wait. An error is the code, and
    /// whether the kernel had to split the message.
    fn send_waiting_none(&self, batch: &mut SendBatch, most: usize) -> Option<Result<(), (i32, bool)>> {
        let SendBatch {
            bytes,
            items,
            next,
            headers,
            ..
        } = batch;
        let mut sending = std::mem::take(&mut batch.pieces);
        sending.clear();
        sending.extend(pieces(items, *next, most).take(MAX_MESSAGES));
        let outgoing = sending.iter().map(|piece| Outgoing {
            bytes: IoVec {
                base: bytes[piece.range.clone()].as_ptr().cast_mut(),
                len: piece.range.len(),
            },
            to: items[piece.item].to.as_ref(),
            segment_size: piece.segment_size,
        });
        let entries = headers.prepare_send(outgoing, sending.len());
        let descriptor = &self.socket().descriptor;
        // SAFETY: the batch, which is borrowed mutably, owns the bytes and the headers.
        let count = unsafe { descriptor.core.batch(descriptor.fd, Direction::Write, entries) };
        // A failed entry is the last.
        let failed = count.checked_sub(1).and_then(|last| batch.headers.result(last).err());
        let sent = count - usize::from(failed.is_some());
        if let Some(last) = sent.checked_sub(1) {
            batch.advance(&sending[last]);
        }
        let failed = failed.map(|code| (code, sending[sent].segment_size.is_some()));
        batch.pieces = sending;
        match (count, failed) {
            (0, _) => None,
            (_, Some(failed)) => Some(Err(failed)),
            (_, None) => Some(Ok(())),
        }
    }

    /// Sends the next message of a batch when there is space for it.
    async fn send_next(&self, batch: &mut SendBatch, most: usize) -> Result<(), (i32, bool)> {
        let Some(piece) = pieces(&batch.items, batch.next, most).next() else {
            return Ok(());
        };
        let before = batch.next;
        batch.advance(&piece);
        let mut buf = std::mem::take(&mut batch.waiting);
        buf.clear();
        buf.extend_from_slice(&batch.bytes[piece.range.clone()]);
        let to = batch.items[piece.item].to.clone();
        let sending = send_segments(self.socket(), self.msg_pool(), buf, to.as_ref(), piece.segment_size);
        let (result, buf) = sending.await;
        batch.waiting = buf;
        match result {
            Ok(_) => Ok(()),
            Err(code) => {
                batch.next = before;
                Err((code, piece.segment_size.is_some()))
            }
        }
    }

    /// Sends bytes as datagrams of `segment_size` bytes, of which the last may be shorter, to an address. Returns how many
    /// bytes were sent. That is less than all only if a datagram cannot be sent; sending the rest then returns the error.
    ///
    /// The system splits the bytes where it can (generic segmentation offload, GSO): up to
    /// [`max_gso_segments`](UdpSocket::max_gso_segments) datagrams pass through the network stack as one. Elsewhere they
    /// are sent one by one, with the same result.
    ///
    /// A `segment_size` of 0 is an error of the kind `InvalidInput`.
    ///
    /// **Cancel safety:** any number of the datagrams may have been sent, in order.
    ///
    /// ```
    /// use windlass::net::UdpSocket;
    /// windlass::run(async {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
    ///     let sent = socket.send_to_segmented("onetwothr33!", 3, socket.local_addr()?).await.0?;
    ///     assert_eq!(sent, 12);
    ///     for text in ["one", "two", "thr", "33!"] {
    ///         assert_eq!(&*socket.recv_managed().await?, text.as_bytes());
    ///     }
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[doc(alias = "UDP_SEGMENT")]
    pub async fn send_to_segmented<B: IoBuf>(
        &self,
        buf: B,
        segment_size: usize,
        to: impl ToSocketAddrs,
    ) -> BufResult<usize, B> {
        let addr = match self.destination(&to).await {
            Ok(addr) => addr,
            Err(error) => return (Err(error), buf),
        };
        let name = Name::from(addr);
        let (result, buf) = self.send_all_segments(buf, segment_size, Some(&name)).await;
        let explain = |error| context(format_args!("send to {}", to.describe()), error);
        (result.map_err(explain), buf)
    }

    /// [`send_to_segmented`](UdpSocket::send_to_segmented) to the connected address.
    pub async fn send_segmented<B: IoBuf>(&self, buf: B, segment_size: usize) -> BufResult<usize, B> {
        let (result, buf) = self.send_all_segments(buf, segment_size, None).await;
        (result.map_err(|error| self.with_peer("send to", error)), buf)
    }

    async fn send_all_segments<B: IoBuf>(
        &self,
        mut buf: B,
        segment_size: usize,
        to: Option<&Name>,
    ) -> BufResult<usize, B> {
        if segment_size == 0 {
            let why = "datagrams of 0 bytes cannot carry anything";
            return (Err(io::Error::new(io::ErrorKind::InvalidInput, why)), buf);
        }
        let descriptor = &self.socket().descriptor;
        let _guard = descriptor.write.begin(&descriptor.core).await;
        let (total, mut most, mut sent) = (buf.len(), self.max_gso_segments(), 0);
        loop {
            let (len, segments) = piece_of(total - sent, segment_size, most);
            let piece = buf.slice(sent..sent + len);
            let (result, piece) = send_segments(self.socket(), self.msg_pool(), piece, to, segments).await;
            buf = piece.into_inner();
            match result {
                Ok(_) => sent += len,
                Err(code) if segments.is_some() && self.can_split_instead(code) => most = 1,
                Err(code) if sent == 0 => return (Err(from_code(code)), buf),
                Err(_) => return (Ok(sent), buf),
            }
            if sent == total && result.is_ok() {
                return (Ok(sent), buf);
            }
        }
    }

    /// The most datagrams that the system makes of one segmented send (GSO): 64 on Linux since 4.18, otherwise 1. It becomes 1
    /// when the network interface refuses a segmented send. With 1, [`send_to_segmented`](UdpSocket::send_to_segmented)
    /// sends its datagrams one by one.
    pub fn max_gso_segments(&self) -> usize {
        match self.has_gso() {
            true => MAX_SEGMENTS,
            false => 1,
        }
    }

    /// Whether a segmented send that failed with this error may succeed if its datagrams are sent one by one.
    fn can_split_instead(&self, code: i32) -> bool {
        if code == errno::IO {
            self.set_no_gso();
        }
        matches!(code, errno::IO | errno::INVALID | errno::TOO_LONG)
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(batch: &SendBatch, most: usize) -> Vec<(Range<usize>, Option<u16>)> {
        let pieces = pieces(&batch.items, batch.next, most);
        pieces.map(|piece| (piece.range, piece.segment_size)).collect()
    }

    #[test]
    fn items_are_split_into_pieces() {
        let mut batch = SendBatch::new();
        batch.push(b"", None);
        batch.push_segmented(b"0123456", 3, None);
        batch.push_segmented(b"", 3, None);
        batch.push(b"ab", None);
        assert_eq!(batch.len(), 1 + 3 + 1 + 1);
        let split = [
            (0..0, None),
            (0..3, None),
            (3..6, None),
            (6..7, None),
            (7..7, None),
            (7..9, None),
        ];
        assert_eq!(ranges(&batch, 1), split);
        assert_eq!(
            ranges(&batch, 64),
            [(0..0, None), (0..7, Some(3)), (7..7, None), (7..9, None)]
        );
        assert_eq!(ranges(&batch, 2)[1..3], [(0..6, Some(3)), (6..7, None)]);
        // Half of an item was sent.
        assert!(batch.skip_first() && batch.skip_first());
        assert_eq!(batch.len(), 4);
        batch.compact();
        assert_eq!((batch.len(), &batch.bytes[..]), (4, &b"3456ab"[..]));
        assert_eq!(ranges(&batch, 64), [(0..4, Some(3)), (4..4, None), (4..6, None)]);
        while batch.skip_first() {}
        assert!(batch.is_empty());
    }

    #[test]
    fn a_message_has_at_most_the_largest_payload() {
        assert_eq!(piece_of(200_000, 1_200, 64), (54 * 1_200, Some(1_200)));
        assert_eq!(piece_of(200_000, 10, 64), (640, Some(10)));
        // Two of these do not fit into one message.
        assert_eq!(piece_of(200_000, 40_000, 64), (40_000, None));
        assert_eq!(piece_of(200_000, 100_000, 64), (100_000, None));
    }
}
