//! The writing half of a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::payload::Payload;
use super::streams::Conversation;
use crate::event_loop::exception::{Exception, report};

/// The writing half of a connection: asyncio's `StreamWriter`.
///
/// [`write`](StreamWriter::write) takes the bytes and returns at once; they are sent by themselves, in the order of the
/// calls. Whoever writes much awaits [`drain`](StreamWriter::drain) now and then, which waits while too much is queued.
///
/// Dropping the writer sends the rest and then lets the peer see the end, while the [`StreamReader`](super::StreamReader) can
/// be read further; when both are dropped, the connection closes once everything is sent.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let count = async |mut reader: windlass::net::StreamReader, writer: windlass::net::StreamWriter| {
///         let all = reader.read_to_end(usize::MAX).await?;
///         writer.write(format!("{} bytes\n", all.len()));
///         Ok::<(), std::io::Error>(())
///     };
///     let server = start_server(count, "127.0.0.1:0").await?;
///     let (mut reader, writer) = open_connection(server.local_addr()?).await?;
///     for _ in 0..1_000 {
///         writer.write([7; 1_000]);
///         writer.drain().await?;
///     }
///     writer.write_eof();
///     assert_eq!(reader.read_line().await?, "1000000 bytes\n");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping the writer ends the sending direction"]
pub struct StreamWriter {
    conversation: Rc<Conversation>,
}

impl StreamWriter {
    pub(super) fn new(conversation: Rc<Conversation>) -> StreamWriter {
        StreamWriter { conversation }
    }

    /// Queues bytes, which are sent without further ado. What is written in one turn leaves in one send.
    ///
    /// Lent bytes are copied; owned ones are not, unless they are few. If sending has failed, or the writer is closing, they
    /// are dropped; the next [`drain`](StreamWriter::drain) tells of the failure. After
    /// [`write_eof`](StreamWriter::write_eof) they are dropped, and the loop's exception handler is told.
    #[track_caller]
    pub fn write(&self, data: impl Payload) {
        let write_buffer = &self.conversation.write_buffer;
        if write_buffer.has_end() && !self.is_closing() {
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bytes are dropped");
            return report(Exception::error("write was called after write_eof", error));
        }
        write_buffer.put(data);
        self.conversation.send();
    }

    /// Queues several pieces, as if by one [`write`](StreamWriter::write) each.
    #[track_caller]
    pub fn writelines<P: Payload>(&self, pieces: impl IntoIterator<Item = P>) {
        for piece in pieces {
            self.write(piece);
        }
    }

    /// Waits until it makes sense to write more: not at all, unless more than the high mark is queued, and then until no
    /// more than the low mark is. An error says that sending has failed.
    ///
    /// Dropping the future changes nothing: what is queued is sent all the same.
    pub async fn drain(&self) -> io::Result<()> {
        let conversation = &self.conversation;
        let write_buffer = &conversation.write_buffer;
        let is_over =
            || !write_buffer.watermarks.is_over() || write_buffer.watermarks.size() == 0 || conversation.is_closed();
        conversation.changed.until(is_over).await;
        self.check()
    }

    /// Lets the peer see the end once everything is sent. Reading goes on.
    #[track_caller]
    pub fn write_eof(&self) {
        self.conversation.write_buffer.put_end();
        self.conversation.send();
    }

    /// Whether [`write_eof`](StreamWriter::write_eof) works here: on a connection it always does.
    pub fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes the connection, reader included, once everything is sent; a read that waits then is at the end. Await
    /// [`wait_closed`](StreamWriter::wait_closed) to know when, and whether all went well.
    pub fn close(&self) {
        self.conversation.close();
    }

    /// Waits until the connection is closed, by whomever. An error says that not everything could be sent.
    ///
    /// Dropping the future changes nothing.
    pub async fn wait_closed(&self) -> io::Result<()> {
        let conversation = &self.conversation;
        conversation.changed.until(|| conversation.is_closed()).await;
        self.check()
    }

    /// Ends the connection now, reader included: what is queued is dropped, and the peer sees a reset.
    pub fn abort(&self) {
        self.conversation.abort();
    }

    /// Whether the connection is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.conversation.is_closing()
    }

    /// Sets the marks between which [`drain`](StreamWriter::drain) waits: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.conversation
            .write_buffer
            .watermarks
            .set_limits(high.into(), low.into())
    }

    /// The marks: (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.conversation.write_buffer.watermarks.limits()
    }

    /// How many bytes the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.conversation.write_buffer.watermarks.size()
    }

    /// The address of the other end; also when the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.conversation.ends.peer_addr()
    }

    /// The address of this end; also when the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.conversation.ends.local_addr()
    }

    fn check(&self) -> io::Result<()> {
        match self.conversation.failure() {
            Some(error) => Err(error),
            None if self.conversation.is_aborted() => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection was aborted here",
            )),
            None => Ok(()),
        }
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.conversation.writer_dropped();
    }
}

impl fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamWriter")
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .field("write_buffer_size", &self.get_write_buffer_size())
            .field("closing", &self.is_closing())
            .finish()
    }
}
