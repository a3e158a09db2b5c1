//! `Framed`, `FramedRead` and `FramedWrite`.

use std::fmt;
use std::io;

use bytes::BytesMut;

use super::state::{ReadState, WriteState};
use super::{Decoder, Encoder};
use crate::io::{AsyncRead, AsyncWrite};

/// A stream of frames in both directions: see the [module](super) for buffering and cancel safety.
///
/// To read and write at the same time, create a [`FramedRead`] and a [`FramedWrite`] of the two halves of a stream, or of
/// two references, such as `&TcpStream`.
///
/// ```
/// use windlass::io::codec::{Framed, LinesCodec};
/// use windlass::io::duplex;
/// windlass::run(async {
///     let (one, other) = duplex(1024);
///     let (mut one, mut other) = (Framed::new(one, LinesCodec::new()), Framed::new(other, LinesCodec::new()));
///     one.feed("first").await?;
///     one.send("second").await?;
///     one.close().await?;
///     assert_eq!(other.next().await.transpose()?.as_deref(), Some("first"));
///     assert_eq!(other.next().await.transpose()?.as_deref(), Some("second"));
///     assert!(other.next().await.is_none());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Framed<S, C> {
    inner: S,
    codec: C,
    reading: ReadState,
    writing: WriteState,
}

impl<S, C> Framed<S, C> {
    /// Applies a codec to a stream.
    pub fn new(inner: S, codec: C) -> Framed<S, C> {
        Framed {
            inner,
            codec,
            reading: ReadState::default(),
            writing: WriteState::new(),
        }
    }

    /// The stream.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The stream, mutably. Reading or writing it directly is out of order with buffered bytes.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The codec, for instance to change its options.
    pub fn codec_mut(&mut self) -> &mut C {
        &mut self.codec
    }

    /// Returns the stream and drops buffered bytes.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, C> Framed<S, C> {
    /// Returns the stream and the received bytes that were not yet decoded, to continue with another protocol.
    pub fn into_parts(self) -> (S, BytesMut) {
        (self.inner, self.reading.buf)
    }

    /// The received bytes that were not yet decoded.
    pub fn read_buffer(&self) -> &[u8] {
        &self.reading.buf
    }
}

impl<S: AsyncRead, C: Decoder> Framed<S, C> {
    /// Returns the next frame, or `None` at the end of the stream.
    ///
    /// After an error of the stream, or one of the decoder that consumed no bytes, `None` follows.
    ///
    /// **Cancel safety:** no data is lost.
    pub async fn next(&mut self) -> Option<Result<C::Item, C::Error>> {
        self.reading.next(&mut self.inner, &mut self.codec).await
    }
}

impl<S, C> Framed<S, C> {
    /// The number of encoded bytes that were not yet written.
    pub fn buffered(&self) -> usize {
        self.writing.buf.len()
    }

    /// Sets the number of buffered bytes above which [`feed`](Framed::feed) writes before it encodes. The default is 64 KiB.
    pub fn set_max_buffered(&mut self, bytes: usize) {
        self.writing.max_buffered = bytes;
    }
}

impl<S: AsyncWrite, C> Framed<S, C> {
    /// Encodes a frame, and writes it and all buffered frames.
    ///
    /// **Cancel safety:** a part of a frame may have been written; further writes are errors.
    pub async fn send<T>(&mut self, item: T) -> Result<(), C::Error>
    where
        C: Encoder<T>,
    {
        self.feed(item).await?;
        Ok(self.flush().await?)
    }

    /// Encodes a frame without writing it, unless too many bytes are buffered: then it first writes them, and waits.
    ///
    /// **Cancel safety:** as for [`send`](Framed::send). Without a wait, the frame is buffered by the first poll.
    pub async fn feed<T>(&mut self, item: T) -> Result<(), C::Error>
    where
        C: Encoder<T>,
    {
        self.writing.feed(&mut self.inner, &mut self.codec, item).await
    }

    /// Writes all buffered frames, and flushes the stream.
    ///
    /// **Cancel safety:** a part of a frame may have been written; further writes are errors.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.writing.flush(&mut self.inner).await
    }

    /// Flushes, then ends the stream: the peer reads end of stream.
    ///
    /// **Cancel safety:** as for [`flush`](Framed::flush).
    pub async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.inner.shutdown().await
    }
}

/// The frames of a reader: see the [module](super) for buffering and cancel safety.
///
/// ```
/// use windlass::io::codec::{FramedRead, LinesCodec};
/// windlass::run(async {
///     let mut lines = FramedRead::new(&b"one\ntwo\n"[..], LinesCodec::new());
///     let mut all = Vec::new();
///     while let Some(line) = lines.next().await {
///         all.push(line?);
///     }
///     assert_eq!(all, ["one", "two"]);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FramedRead<R, D> {
    inner: R,
    decoder: D,
    reading: ReadState,
}

impl<R, D> FramedRead<R, D> {
    /// Applies a codec to a stream.
    pub fn new(inner: R, decoder: D) -> FramedRead<R, D> {
        FramedRead {
            inner,
            decoder,
            reading: ReadState::default(),
        }
    }

    /// The stream.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The stream, mutably. Reading or writing it directly is out of order with buffered bytes.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    /// The codec, for instance to change its options.
    pub fn decoder_mut(&mut self) -> &mut D {
        &mut self.decoder
    }

    /// Returns the stream and drops buffered bytes.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R, D> FramedRead<R, D> {
    /// Returns the stream and the received bytes that were not yet decoded, to continue with another protocol.
    pub fn into_parts(self) -> (R, BytesMut) {
        (self.inner, self.reading.buf)
    }

    /// The received bytes that were not yet decoded.
    pub fn read_buffer(&self) -> &[u8] {
        &self.reading.buf
    }
}

impl<R: AsyncRead, D: Decoder> FramedRead<R, D> {
    /// Returns the next frame, or `None` at the end of the stream.
    ///
    /// After an error of the stream, or one of the decoder that consumed no bytes, `None` follows.
    ///
    /// **Cancel safety:** no data is lost.
    pub async fn next(&mut self) -> Option<Result<D::Item, D::Error>> {
        self.reading.next(&mut self.inner, &mut self.decoder).await
    }
}

/// Writes frames: see the [module](super) for buffering and cancel safety. Flush or close it before dropping it:
/// **dropping it discards buffered frames**.
///
/// ```
/// use windlass::io::codec::{FramedWrite, LinesCodec};
/// windlass::run(async {
///     let mut lines = FramedWrite::new(Vec::new(), LinesCodec::new());
///     for number in 1..=3 {
///         lines.feed(number.to_string()).await?;
///     }
///     lines.flush().await?;
///     assert_eq!(lines.into_inner(), b"1\n2\n3\n");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FramedWrite<W, E> {
    inner: W,
    pub(super) encoder: E,
    pub(super) writing: WriteState,
}

impl<W, E> FramedWrite<W, E> {
    /// Applies a codec to a stream.
    pub fn new(inner: W, encoder: E) -> FramedWrite<W, E> {
        FramedWrite {
            inner,
            encoder,
            writing: WriteState::new(),
        }
    }

    /// The stream.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// The stream, mutably. Reading or writing it directly is out of order with buffered bytes.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// The codec, for instance to change its options.
    pub fn encoder_mut(&mut self) -> &mut E {
        &mut self.encoder
    }

    /// Returns the stream and drops buffered bytes.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

impl<W, E> FramedWrite<W, E> {
    /// The number of encoded bytes that were not yet written.
    pub fn buffered(&self) -> usize {
        self.writing.buf.len()
    }

    /// Sets the number of buffered bytes above which [`feed`](FramedWrite::feed) writes before it encodes. The default is 64 KiB.
    pub fn set_max_buffered(&mut self, bytes: usize) {
        self.writing.max_buffered = bytes;
    }
}

impl<W: AsyncWrite, E> FramedWrite<W, E> {
    /// Encodes a frame, and writes it and all buffered frames.
    ///
    /// **Cancel safety:** a part of a frame may have been written; further writes are errors.
    pub async fn send<T>(&mut self, item: T) -> Result<(), E::Error>
    where
        E: Encoder<T>,
    {
        self.feed(item).await?;
        Ok(self.flush().await?)
    }

    /// Encodes a frame without writing it, unless too many bytes are buffered: then it first writes them, and waits.
    ///
    /// **Cancel safety:** as for [`send`](FramedWrite::send). Without a wait, the frame is buffered by the first poll.
    pub async fn feed<T>(&mut self, item: T) -> Result<(), E::Error>
    where
        E: Encoder<T>,
    {
        self.writing.feed(&mut self.inner, &mut self.encoder, item).await
    }

    /// Writes all buffered frames, and flushes the stream.
    ///
    /// **Cancel safety:** a part of a frame may have been written; further writes are errors.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.writing.flush(&mut self.inner).await
    }

    /// Flushes, then ends the stream: the peer reads end of stream.
    ///
    /// **Cancel safety:** as for [`flush`](FramedWrite::flush).
    pub async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.inner.shutdown().await
    }
}

impl<S: fmt::Debug, C: fmt::Debug> fmt::Debug for Framed<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framed")
            .field("inner", &self.inner)
            .field("codec", &self.codec)
            .field("received", &self.reading.buf.len())
            .field("buffered", &self.writing.buf.len())
            .finish()
    }
}

impl<R: fmt::Debug, D: fmt::Debug> fmt::Debug for FramedRead<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedRead")
            .field("inner", &self.inner)
            .field("decoder", &self.decoder)
            .field("received", &self.reading.buf.len())
            .finish()
    }
}

impl<W: fmt::Debug, E: fmt::Debug> fmt::Debug for FramedWrite<W, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedWrite")
            .field("inner", &self.inner)
            .field("encoder", &self.encoder)
            .field("buffered", &self.writing.buf.len())
            .finish()
    }
}
