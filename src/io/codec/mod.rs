//! Framing: streams of messages over byte streams.
//!
//! A codec converts between bytes and messages: a [`Decoder`] finds the next frame in the received bytes, and an
//! [`Encoder`] appends a frame to the bytes to send. [`Framed`], [`FramedRead`] and [`FramedWrite`] apply it to a stream.
//! [`LinesCodec`] and [`LengthDelimitedCodec`] are included; implement the traits for a protocol of your own.
//!
//! ```
//! use windlass::io::codec::{Framed, LengthDelimitedCodec};
//! use windlass::net::{TcpListener, TcpStream};
//! windlass::run(async {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let client = TcpStream::connect(listener.local_addr()?).await?;
//!     let (server, _) = listener.accept().await?;
//!     let mut client = Framed::new(client, LengthDelimitedCodec::new());
//!     let mut server = Framed::new(server, LengthDelimitedCodec::new());
//!     client.send("ping").await?;
//!     while let Some(frame) = server.next().await {
//!         server.send(frame?).await?;
//!         # break;
//!     }
//!     assert_eq!(client.next().await.transpose()?.as_deref(), Some(&b"ping"[..]));
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Reading
//!
//! - **Buffering.** Received bytes are in one `BytesMut`, and a frame of [`LengthDelimitedCodec`] is a part of it, without
//!   a copy. While nothing of a frame has arrived, the reader waits with a [managed read](crate::io::AsyncRead::read_managed)
//!   and holds no memory. The rest of an incomplete frame is read directly behind its beginning.
//! - **Backpressure.** `next` reads only when the buffer contains no complete frame, and the codecs have a maximum length.
//! - **Cancel safety.** A dropped `next` loses nothing: bytes and decoder are in the reader.
//!
//! # Writing
//!
//! - **Buffering.** `feed` encodes into a buffer, `flush` writes it, and `send` does both. So a loop of `feed` and one
//!   `flush` coalesces small frames into one write. Large `Bytes` are not copied: they are written with a vectored write.
//! - **Backpressure.** When more than 64 KiB are buffered (`set_max_buffered`), `feed` writes them first, and waits.
//! - **Cancel safety.** A dropped write may have sent a part of a frame. What follows would be misread by the peer, so
//!   from then on every write is an error of the kind `BrokenPipe`. Do not use `send` as a branch of a select; a timeout
//!   that closes the connection is fine.

mod framed;
mod framed_stream;
mod length_delimited;
mod lines;
mod state;

use std::io;

use bytes::{Bytes, BytesMut};

pub use framed::{Framed, FramedRead, FramedWrite};
pub use framed_stream::{FramedSink, FramedStream};
pub use length_delimited::{LengthDelimitedBuilder, LengthDelimitedCodec};
pub use lines::LinesCodec;

/// Finds frames in received bytes.
///
/// ```
/// use std::io;
/// use bytes::{Buf, BytesMut};
/// use windlass::io::codec::{Decoder, FramedRead};
///
/// /// Numbers of four bytes.
/// struct Numbers;
///
/// impl Decoder for Numbers {
///     type Item = u32;
///     type Error = io::Error;
///
///     fn decode(&mut self, buf: &mut BytesMut) -> io::Result<Option<u32>> {
///         Ok((buf.len() >= 4).then(|| buf.get_u32()))
///     }
/// }
///
/// windlass::run(async {
///     let mut numbers = FramedRead::new(&b"\x00\x00\x00\x01\x00\x00\x00\x02"[..], Numbers);
///     assert_eq!(numbers.next().await.transpose()?, Some(1));
///     assert_eq!(numbers.next().await.transpose()?, Some(2));
///     assert_eq!(numbers.next().await.transpose()?, None);
///     Ok::<(), io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Decoder {
    /// A decoded frame.
    type Item;
    /// The error of a malformed frame; it also reports errors of the stream.
    type Error: From<io::Error>;

    /// Removes the first frame from `buf` and returns it, or returns `None` if it is incomplete. A decoder that knows how
    /// many bytes are missing may `reserve` them, so that they are read at once.
    ///
    /// If an error consumed bytes, decoding continues after them with the next call; if not, the error is final.
    fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Self::Item>, Self::Error>;

    /// As [`decode`](Decoder::decode), after the end of the stream. The default returns the remaining complete frames; an
    /// incomplete one is an `UnexpectedEof` error.
    fn decode_eof(&mut self, buf: &mut BytesMut) -> Result<Option<Self::Item>, Self::Error> {
        match self.decode(buf)? {
            None if !buf.is_empty() => {
                let message = format!("the stream ended within a frame, after {} of its bytes", buf.len());
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, message).into())
            }
            item => Ok(item),
        }
    }
}

/// Appends frames to the bytes to send.
///
/// ```
/// use std::io;
/// use bytes::BufMut;
/// use windlass::io::codec::{Encoder, FrameBuf, FramedWrite};
///
/// /// Numbers of four bytes.
/// struct Numbers;
///
/// impl Encoder<u32> for Numbers {
///     type Error = io::Error;
///
///     fn encode(&mut self, number: u32, buf: &mut FrameBuf) -> io::Result<()> {
///         buf.bytes_mut().put_u32(number);
///         Ok(())
///     }
/// }
///
/// windlass::run(async {
///     let mut numbers = FramedWrite::new(Vec::new(), Numbers);
///     numbers.feed(1).await?;
///     numbers.send(2).await?;
///     assert_eq!(numbers.into_inner(), b"\x00\x00\x00\x01\x00\x00\x00\x02");
///     Ok::<(), io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Encoder<Item> {
    /// The error of an item that cannot be encoded; it also reports errors of the stream.
    type Error: From<io::Error>;

    /// Appends a frame to `buf`. If this fails, the appended bytes are removed again.
    fn encode(&mut self, item: Item, buf: &mut FrameBuf) -> Result<(), Self::Error>;
}

/// Bytes up to this length are copied, so that small frames are coalesced.
const MAX_COPIED: usize = 4 * 1024;

/// The encoded frames that were not yet written.
///
/// ```
/// use bytes::Bytes;
/// use windlass::io::codec::FrameBuf;
/// let mut buf = FrameBuf::default();
/// buf.bytes_mut().extend_from_slice(b"head");
/// buf.push(Bytes::from(vec![0; 100_000]));
/// assert_eq!(buf.len(), 100_004);
/// ```
#[derive(Debug, Default)]
pub struct FrameBuf {
    /// Completed pieces, in order, before `tail`.
    pieces: Vec<Bytes>,
    /// The bytes in `pieces`.
    pieces_len: usize,
    tail: BytesMut,
}

impl FrameBuf {
    /// The end of the buffer, to append to.
    pub fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Appends bytes, without a copy if they are more than 4 KiB.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= MAX_COPIED {
            self.tail.extend_from_slice(&bytes);
            return;
        }
        self.end_piece();
        self.pieces_len += bytes.len();
        self.pieces.push(bytes);
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the tail a piece.
    fn end_piece(&mut self) {
        if !self.tail.is_empty() {
            self.pieces_len += self.tail.len();
            self.pieces.push(self.tail.split().freeze());
        }
    }
}
