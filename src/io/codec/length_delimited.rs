//! Frames that start with their length.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Decoder, Encoder, FrameBuf};
use crate::io::TooLong;

/// A frame's memory is reserved in steps: this much, or as much as has arrived. So a peer that announces a long frame and
/// sends nothing costs little.
const RESERVE_STEP: usize = 64 * 1024;

const ADVICE: &str = "the frame is too long; raise `max_frame_length` to accept it";

/// Frames of bytes that start with their length, by default in four bytes, big-endian.
///
/// A frame is a [`Bytes`] that shares the memory that was read into. Anything that converts to `Bytes` without a copy can
/// be sent: `Vec<u8>`, `String`, `Bytes`, literals. The options have the names of tokio-util's; see
/// [`builder`](LengthDelimitedCodec::builder).
///
/// ```
/// use windlass::io::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};
/// windlass::run(async {
///     let codec = LengthDelimitedCodec::builder().length_field_length(2).little_endian().new_codec();
///     let mut writer = FramedWrite::new(Vec::new(), codec.clone());
///     writer.send("hello").await?;
///     let bytes = writer.into_inner();
///     assert_eq!(bytes, b"\x05\x00hello");
///     let mut reader = FramedRead::new(&bytes[..], codec);
///     assert_eq!(reader.next().await.transpose()?.as_deref(), Some(&b"hello"[..]));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LengthDelimitedCodec {
    options: LengthDelimitedBuilder,
}

/// The options of a [`LengthDelimitedCodec`].
///
/// ```
/// use windlass::io::codec::{FramedRead, LengthDelimitedCodec};
/// windlass::run(async {
///     // A type byte, then a length of two bytes that counts the whole frame. Keep everything.
///     let codec = LengthDelimitedCodec::builder()
///         .length_field_offset(1)
///         .length_field_length(2)
///         .num_skip(0)
///         .new_codec();
///     let mut reader = FramedRead::new(&b"T\x00\x05hi"[..], codec);
///     assert_eq!(reader.next().await.transpose()?.as_deref(), Some(&b"T\x00\x05hi"[..]));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LengthDelimitedBuilder {
    offset: usize,
    field_len: usize,
    is_big_endian: bool,
    max_len: usize,
    adjustment: isize,
    num_skip: Option<usize>,
}

impl LengthDelimitedCodec {
    /// A codec with the default options: a length of four bytes, big-endian, and frames of up to 8 MiB.
    pub fn new() -> LengthDelimitedCodec {
        LengthDelimitedCodec::builder().new_codec()
    }

    /// The default options, to change them.
    pub fn builder() -> LengthDelimitedBuilder {
        LengthDelimitedBuilder {
            offset: 0,
            field_len: 4,
            is_big_endian: true,
            max_len: 8 * 1024 * 1024,
            adjustment: 0,
            num_skip: None,
        }
    }
}

impl Default for LengthDelimitedCodec {
    fn default() -> LengthDelimitedCodec {
        LengthDelimitedCodec::new()
    }
}

impl LengthDelimitedBuilder {
    /// The number of bytes before the length. With such a header only decoding is supported, because the encoder does not
    /// know its content.
    #[must_use]
    pub fn length_field_offset(mut self, bytes: usize) -> LengthDelimitedBuilder {
        self.offset = bytes;
        self
    }

    /// The number of bytes of the length, from 1 to 8.
    ///
    /// # Panics
    ///
    /// If it is out of range.
    #[must_use]
    pub fn length_field_length(mut self, bytes: usize) -> LengthDelimitedBuilder {
        assert!(
            (1..=8).contains(&bytes),
            "a length of {bytes} bytes is not between 1 and 8"
        );
        self.field_len = bytes;
        self
    }

    /// The length is big-endian, as by default.
    #[must_use]
    pub fn big_endian(mut self) -> LengthDelimitedBuilder {
        self.is_big_endian = true;
        self
    }

    /// The length is little-endian.
    #[must_use]
    pub fn little_endian(mut self) -> LengthDelimitedBuilder {
        self.is_big_endian = false;
        self
    }

    /// The largest frame that is accepted or sent, by default 8 MiB, without the skipped bytes.
    #[must_use]
    pub fn max_frame_length(mut self, bytes: usize) -> LengthDelimitedBuilder {
        self.max_len = bytes;
        self
    }

    /// A number that is added to the length: negative if the length counts the header, too.
    #[must_use]
    pub fn length_adjustment(mut self, bytes: isize) -> LengthDelimitedBuilder {
        self.adjustment = bytes;
        self
    }

    /// The number of bytes that are removed from the start of a frame. By default everything up to the end of the length.
    #[must_use]
    pub fn num_skip(mut self, bytes: usize) -> LengthDelimitedBuilder {
        self.num_skip = Some(bytes);
        self
    }

    /// Creates the codec.
    pub fn new_codec(self) -> LengthDelimitedCodec {
        LengthDelimitedCodec { options: self }
    }

    fn skipped(&self) -> usize {
        self.num_skip.unwrap_or(self.offset.saturating_add(self.field_len))
    }

    /// The length of the frame at the start of `buf` after the skipped bytes, if its length has arrived.
    fn frame_len(&self, buf: &[u8]) -> io::Result<Option<usize>> {
        let Some(field) = buf.get(self.offset..).and_then(|rest| rest.get(..self.field_len)) else {
            return Ok(None);
        };
        let value = match self.is_big_endian {
            true => (&mut &*field).get_uint(self.field_len),
            false => (&mut &*field).get_uint_le(self.field_len),
        };
        let too_long = || TooLong::error(self.max_len, ADVICE, Vec::new());
        let value = usize::try_from(value).map_err(|_| too_long())?;
        let len = match value.checked_add_signed(self.adjustment) {
            Some(len) if len > self.max_len => return Err(too_long()),
            Some(len) => len,
            None if self.adjustment > 0 => return Err(too_long()),
            None => return Err(invalid("the length of a frame is less than that of its header")),
        };
        match self.skipped().checked_add(len) {
            None => Err(too_long()),
            // It would be decoded again and again.
            Some(0) => Err(invalid("a frame of no bytes at all")),
            Some(_) => Ok(Some(len)),
        }
    }

    /// The length to send for a frame of `len` bytes.
    fn field_value(&self, len: usize) -> io::Result<u64> {
        if self.offset > 0 {
            let message = "a codec with a `length_field_offset` cannot encode: write an `Encoder` for the header";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let too_long = || TooLong::error(self.max_len, ADVICE, Vec::new());
        if len > self.max_len {
            return Err(too_long());
        }
        let adjusted = match self.adjustment < 0 {
            true => len.checked_add(self.adjustment.unsigned_abs()).ok_or_else(too_long)?,
            false => len
                .checked_sub(self.adjustment.unsigned_abs())
                .ok_or_else(|| invalid("the frame is shorter than the length adjustment"))?,
        };
        let value = adjusted as u64;
        match self.field_len < 8 && value >> (8 * self.field_len) != 0 {
            true => Err(invalid("the length of the frame does not fit into the length field")),
            false => Ok(value),
        }
    }
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

impl Decoder for LengthDelimitedCodec {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, buf: &mut BytesMut) -> io::Result<Option<Bytes>> {
        let options = &self.options;
        let Some(len) = options.frame_len(buf)? else {
            return Ok(None);
        };
        let skipped = options.skipped();
        // A length whose bytes lie behind the frame has arrived, too.
        let missing = (skipped + len).saturating_sub(buf.len());
        if missing > 0 {
            buf.reserve(missing.min(RESERVE_STEP.max(buf.len())));
            return Ok(None);
        }
        buf.advance(skipped);
        Ok(Some(buf.split_to(len).freeze()))
    }
}

impl<T: Into<Bytes>> Encoder<T> for LengthDelimitedCodec {
    type Error = io::Error;

    fn encode(&mut self, frame: T, buf: &mut FrameBuf) -> io::Result<()> {
        let frame = frame.into();
        let value = self.options.field_value(frame.len())?;
        match self.options.is_big_endian {
            true => buf.bytes_mut().put_uint(value, self.options.field_len),
            false => buf.bytes_mut().put_uint_le(value, self.options.field_len),
        }
        buf.push(frame);
        Ok(())
    }
}
