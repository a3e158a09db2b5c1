//! From one stream to another.
//!
//! A copy reads into the runtime's buffers and writes these as they are, one at a time: its memory is one buffer per
//! direction, and a slow writer holds the reader back. Where much comes from one socket for another, the kernel moves it
//! without us ([`splice`](super::splice)).

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::Poll;

use super::coop;
use super::managed::ManagedBuf;
use super::read::AsyncRead;
use super::splice::{BULK, LARGE, Stop, splice};
use super::split::Halves;
use super::write::AsyncWrite;
use crate::sys::context;

/// Copies everything from a reader to a writer up to the reader's end, and gives how many bytes it was.
///
/// The writer is flushed whenever the reader has nothing more for the moment, and at the end; it is not shut down. An error says
/// which side it is of, and after how many bytes.
///
/// Cancel: while it waits for the reader nothing is lost. While it writes, the piece that was read last (one buffer) goes
/// with the future, and any part from its front was written.
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
    let (copied, result) = pour("copy", reader, writer).await;
    result.map(|()| copied)
}

/// Copies between two streams in both directions at once until both have ended, and gives how many bytes went from `a` to `b`
/// and how many from `b` to `a`. What a proxy does.
///
/// When one stream ends, the other's writing side is shut down, and its other direction goes on: so a client may say that it
/// has sent all, and still get its answer. The first error ends both directions; it says which it is of, and after how many
/// bytes.
///
/// It all happens in the task that awaits it, and neither direction waits for the other.
///
/// Cancel: as for [`copy`], in each direction: what was read last may be lost if it was being written, never more.
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
    let mut there = pin!(pour_out(
        "copy from the first stream to the second",
        &mut a_reader,
        &mut b_writer
    ));
    let mut back = pin!(pour_out(
        "copy from the second stream to the first",
        &mut b_reader,
        &mut a_writer
    ));
    let (mut there_count, mut back_count) = (None, None);
    let mut there_first = false;
    std::future::poll_fn(|cx| {
        // By turns: what is there at once comes out of one budget per poll, and a busy direction would use it up each time.
        there_first = !there_first;
        for is_there in [there_first, !there_first] {
            let (count, polled) = match is_there {
                true if there_count.is_none() => (&mut there_count, there.as_mut().poll(cx)),
                false if back_count.is_none() => (&mut back_count, back.as_mut().poll(cx)),
                _ => continue,
            };
            if let Poll::Ready(result) = polled {
                match result {
                    Ok(copied) => *count = Some(copied),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }
        match (there_count, back_count) {
            (Some(there), Some(back)) => Poll::Ready(Ok((there, back))),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Copies to the end, and hands the end on.
async fn pour_out<R: AsyncRead, W: AsyncWrite>(what: &str, reader: &mut R, writer: &mut W) -> io::Result<u64> {
    let (copied, result) = pour(what, reader, writer).await;
    result?;
    match writer.shutdown().await {
        // A connection that is gone already has nothing to end; who reads from it is told what became of it.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(copied),
        Err(error) => Err(context(
            format_args!("{what}, shutting down after {copied} bytes"),
            error,
        )),
        Ok(()) => Ok(copied),
    }
}

/// Copies to the end. Gives how much was written, also with an error.
async fn pour<R: AsyncRead, W: AsyncWrite>(what: &str, reader: &mut R, writer: &mut W) -> (u64, io::Result<()>) {
    let mut copied = 0;
    let result = pour_and_count(reader, writer, &mut copied).await;
    let result = result.map_err(|(side, error)| context(format_args!("{what}, {side} after {copied} bytes"), error));
    (copied, result)
}

async fn pour_and_count<R: AsyncRead, W: AsyncWrite>(
    reader: &mut R,
    writer: &mut W,
    copied: &mut u64,
) -> Result<(), (&'static str, io::Error)> {
    let mut to_flush = false;
    // How much has come in large pieces, one after the other.
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
        large = if len < LARGE { 0 } else { large + len };
        if large >= BULK
            && can_splice
            && let (Some(source), Some(sink)) = (reader.kernel_stream(), writer.kernel_stream())
        {
            large = 0;
            match splice(&source, &sink, copied).await? {
                Stop::Slack => {}
                Stop::Unable => can_splice = false,
            }
        }
    }
}

/// Reads. If there is nothing yet, or it was the end, what was written before does not wait for it in the writer's buffer.
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
