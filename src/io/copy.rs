//! Copying from a reader to a writer.
//!
//! A copy reads into managed buffers and writes them unchanged, one at a time: it uses one buffer per direction, and a
//! slow writer applies backpressure to the reader. On Linux, bulk data between two TCP sockets stays in the kernel
//! ([`splice`](super::splice)).

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::Poll;

use super::coop;
use super::managed::ManagedBuf;
use super::read::AsyncRead;
use super::splice::{BULK_LEN, LARGE_READ, splice};
use super::split::Halves;
use super::write::AsyncWrite;
use crate::sys::context;
use crate::task::try_join;

/// Copies everything from a reader to a writer until the reader ends, and returns the number of bytes.
///
/// The writer is flushed whenever the reader has no data available, and at the end; it is not shut down. An error says
/// which side failed and after how many bytes.
///
/// **Cancel safety:** a copy dropped while it waits for the reader loses no data. One dropped while it writes may have
/// written any prefix of the last buffer that it read, and loses the rest of that buffer.
///
/// ```
/// use windlass::io::{AsyncWrite, copy, duplex};
/// windlass::run(async {
///     let (mut near, mut far) = duplex(1024);
///     near.write_all("hello").await.0?;
///     near.shutdown().await?;
///     let mut copied = Vec::new();
///     assert_eq!(copy(&mut far, &mut copied).await?, 5);
///     assert_eq!(copied, b"hello");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy<R: AsyncRead, W: AsyncWrite>(reader: &mut R, writer: &mut W) -> io::Result<u64> {
    let (copied, result) = copy_all("copy", reader, writer).await;
    result.map(|()| copied)
}

/// Copies between two streams in both directions until both have ended, as a proxy does. Returns the number of bytes
/// from `a` to `b` and from `b` to `a`.
///
/// When one stream ends, the write side of the other is shut down and the opposite direction continues: a client may
/// half-close its connection and still receive the response. The first error ends both directions; it says which
/// direction failed and after how many bytes.
///
/// Both directions run concurrently in the calling task.
///
/// **Cancel safety:** as for [`copy`], in each direction: at most the buffer that was being written is lost.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, copy_bidirectional, duplex};
/// windlass::run(async {
///     let (mut client, mut near) = duplex(1024);
///     let (mut far, mut server) = duplex(1024);
///     let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
///     client.write_all("question").await.0?;
///     client.shutdown().await?;
///     assert_eq!(server.read_to_string(100).await?, "question");
///     server.write_all("the answer").await.0?;
///     drop(server);
///     assert_eq!(client.read_to_string(100).await?, "the answer");
///     assert_eq!(proxy.await.unwrap()?, (8, 10));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy_bidirectional<A: Halves, B: Halves>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)> {
    let (mut a_reader, mut a_writer) = a.halves();
    let (mut b_reader, mut b_writer) = b.halves();
    let a_to_b = relay("copy from the first stream to the second", &mut a_reader, &mut b_writer);
    let b_to_a = relay("copy from the second stream to the first", &mut b_reader, &mut a_writer);
    // `try_join` alternates which direction it polls first: they share one budget, which a busy one would use up.
    try_join((a_to_b, b_to_a)).await
}

/// Copies until the reader ends, then shuts down the writer.
async fn relay<R: AsyncRead, W: AsyncWrite>(name: &str, reader: &mut R, writer: &mut W) -> io::Result<u64> {
    let (copied, result) = copy_all(name, reader, writer).await;
    result?;
    match writer.shutdown().await {
        // If the connection is already gone, its reader reports the error.
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(context(
            format_args!("{name}, shutting down after {copied} bytes"),
            error,
        )),
        _ => Ok(copied),
    }
}

/// Copies until the reader ends. Returns the number of bytes written, also with an error.
async fn copy_all<R: AsyncRead, W: AsyncWrite>(name: &str, reader: &mut R, writer: &mut W) -> (u64, io::Result<()>) {
    let mut copied = 0;
    let result = copy_and_count(reader, writer, &mut copied).await;
    let result = result.map_err(|(side, error)| context(format_args!("{name}, {side} after {copied} bytes"), error));
    (copied, result)
}

async fn copy_and_count<R: AsyncRead, W: AsyncWrite>(
    reader: &mut R,
    writer: &mut W,
    copied: &mut u64,
) -> Result<(), (&'static str, io::Error)> {
    let mut to_flush = false;
    // The number of bytes received in consecutive large reads.
    let mut large = 0;
    let mut can_splice = true;
    loop {
        coop().await;
        let bytes = next_piece(reader, writer, &mut to_flush).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len();
        writer.write_all(bytes).await.0.map_err(|error| ("writing", error))?;
        *copied += len as u64;
        to_flush = true;
        large = if len < LARGE_READ { 0 } else { large + len };
        if large >= BULK_LEN
            && can_splice
            && let (Some(source), Some(sink)) = (reader.kernel_stream(), writer.kernel_stream())
        {
            large = 0;
            can_splice = splice(&source, &sink, copied).await?;
        }
    }
}

/// Reads the next buffer. If no data is available at once, or the stream has ended, flushes the writer first.
async fn next_piece<R: AsyncRead, W: AsyncWrite>(
    reader: &mut R,
    writer: &mut W,
    to_flush: &mut bool,
) -> Result<ManagedBuf, (&'static str, io::Error)> {
    let mut reading = pin!(reader.read_managed());
    let at_once = match to_flush {
        true => std::future::poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await,
        false => Poll::Pending,
    };
    let is_more = |read: &Poll<io::Result<ManagedBuf>>| matches!(read, Poll::Ready(Ok(bytes)) if !bytes.is_empty());
    if *to_flush && !is_more(&at_once) {
        writer.flush().await.map_err(|error| ("flushing", error))?;
        *to_flush = false;
    }
    let read = match at_once {
        Poll::Ready(read) => read,
        Poll::Pending => reading.await,
    };
    read.map_err(|error| ("reading", error))
}
