//! The buffers of a framed stream.
//!
//! Everything that must survive a dropped future is here, and not in a future. A read appends to the buffer without a
//! copy although it takes ownership of its memory: the spare capacity is split off and lent, and joined again when the
//! read has completed. If the read is dropped, only capacity is lost; the stream keeps the bytes for the next read.

use std::io;

use bytes::BytesMut;

use super::{Decoder, Encoder, FrameBuf};
use crate::io::{AsyncRead, AsyncWrite, HEAP_READ_LEN};

/// Less spare capacity than this is not worth a read.
const MIN_SPARE: usize = 256;

/// The default number of buffered bytes above which a `feed` writes first.
const MAX_BUFFERED: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct ReadState {
    pub(super) buf: BytesMut,
    /// The stream has ended.
    is_eof: bool,
    /// The last error was final.
    is_over: bool,
}

impl ReadState {
    pub(super) async fn next<R: AsyncRead, D: Decoder>(
        &mut self,
        reader: &mut R,
        decoder: &mut D,
    ) -> Option<Result<D::Item, D::Error>> {
        while !self.is_over {
            let before = self.buf.len();
            let decoded = match self.is_eof {
                false => decoder.decode(&mut self.buf),
                true => decoder.decode_eof(&mut self.buf),
            };
            match decoded {
                Ok(Some(item)) => return Some(Ok(item)),
                Ok(None) if self.is_eof => return None,
                Ok(None) => {}
                Err(error) => {
                    self.is_over = self.buf.len() == before;
                    return Some(Err(error));
                }
            }
            match self.fill(reader).await {
                Ok(count) => self.is_eof = count == 0,
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error.into()));
                }
            }
        }
        None
    }

    /// Appends received bytes and returns their number; 0 means end of stream.
    async fn fill<R: AsyncRead>(&mut self, reader: &mut R) -> io::Result<usize> {
        if self.buf.is_empty() {
            // Nothing of a frame has arrived, so this may take long: wait without memory.
            self.buf = BytesMut::new();
            let bytes = reader.read_managed().await?;
            self.buf.extend_from_slice(&bytes);
            return Ok(bytes.len());
        }
        let len = self.buf.len();
        if self.buf.capacity() - len < MIN_SPARE {
            self.buf.reserve(HEAP_READ_LEN);
        }
        let spare = self.buf.split_off(len);
        let (result, spare) = reader.read(spare).await;
        self.buf.unsplit(spare);
        result
    }
}

#[derive(Debug)]
pub(super) struct WriteState {
    pub(super) buf: FrameBuf,
    pub(super) max_buffered: usize,
    /// A write has started and not succeeded: it is in progress, was dropped or has failed.
    is_writing: bool,
}

impl WriteState {
    pub(super) fn new() -> WriteState {
        WriteState {
            buf: FrameBuf::default(),
            max_buffered: MAX_BUFFERED,
            is_writing: false,
        }
    }

    pub(super) async fn feed<W: AsyncWrite, T, E: Encoder<T>>(
        &mut self,
        writer: &mut W,
        encoder: &mut E,
        item: T,
    ) -> Result<(), E::Error> {
        self.check()?;
        if self.is_full() {
            self.write(writer).await?;
        }
        self.encode(encoder, item)
    }

    /// Whether a frame must wait until the buffer is written.
    pub(super) fn is_full(&self) -> bool {
        self.buf.len() > self.max_buffered
    }

    /// Encodes a frame into the buffer.
    pub(super) fn encode<T, E: Encoder<T>>(&mut self, encoder: &mut E, item: T) -> Result<(), E::Error> {
        self.check()?;
        let (pieces, pieces_len) = (self.buf.pieces.len(), self.buf.pieces_len);
        let tail = self.buf.tail.len();
        let encoded = encoder.encode(item, &mut self.buf);
        if encoded.is_err() {
            // If the tail became a piece, its first bytes belong to earlier frames.
            if let Some(ended) = self.buf.pieces.get(pieces).filter(|_| tail > 0) {
                self.buf.tail = BytesMut::from(&ended[..tail]);
            }
            self.buf.tail.truncate(tail);
            self.buf.pieces.truncate(pieces);
            self.buf.pieces_len = pieces_len;
        }
        encoded
    }

    pub(super) async fn flush<W: AsyncWrite>(&mut self, writer: &mut W) -> io::Result<()> {
        self.write(writer).await?;
        writer.flush().await
    }

    /// Writes the buffer.
    async fn write<W: AsyncWrite>(&mut self, writer: &mut W) -> io::Result<()> {
        self.check()?;
        if self.buf.is_empty() {
            return Ok(());
        }
        self.is_writing = true;
        if self.buf.pieces.is_empty() {
            let (result, mut tail) = writer.write_all(std::mem::take(&mut self.buf.tail)).await;
            result?;
            tail.clear();
            self.buf.tail = tail;
        } else {
            self.buf.end_piece();
            let pieces = std::mem::take(&mut self.buf.pieces);
            let (result, mut pieces) = writer.write_all_vectored(pieces).await;
            result?;
            pieces.clear();
            self.buf.pieces = pieces;
            self.buf.pieces_len = 0;
        }
        self.is_writing = false;
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        match self.is_writing {
            false => Ok(()),
            true => Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "an earlier write failed or was dropped and may have sent a part of a frame: close the connection",
            )),
        }
    }
}
