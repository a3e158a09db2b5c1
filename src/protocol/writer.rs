//! `StreamWriter`: the write half of a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use super::Payload;
use super::streams::SharedStream;
use crate::event_loop::exception::{Exception, report};

/// The write half of a connection: asyncio's `StreamWriter`.
///
/// [`write`](StreamWriter::write) queues bytes and returns at once; the loop sends them in call order. Await
/// [`drain`](StreamWriter::drain) between large writes for backpressure.
///
/// Dropping the writer sends the rest and then shuts down the write side, while the
/// [`StreamReader`](super::StreamReader) stays usable. When both are dropped, the connection closes once everything is
/// sent.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let count = async |mut reader: windlass::net::StreamReader, writer: windlass::net::StreamWriter| {
///         let all = reader.read_to_end(16 << 20).await?;
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
#[must_use = "dropping the writer shuts down the write side"]
pub struct StreamWriter {
    pub(super) shared: Rc<SharedStream>,
}

impl StreamWriter {
    /// Queues bytes for sending. Small writes of one turn leave in one send.
    ///
    /// Borrowed bytes are copied; owned bytes are copied only if they are short. Once the writer is closing or a send
    /// has failed, bytes are discarded; [`drain`](StreamWriter::drain) returns the error of the send. After
    /// [`write_eof`](StreamWriter::write_eof) they are discarded, and an error goes to the loop's exception handler.
    #[track_caller]
    pub fn write(&self, data: impl Payload) {
        let write_buffer = &self.shared.write_buffer;
        if write_buffer.has_eof() && !self.is_closing() {
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bytes are discarded");
            return report(Exception::error("write was called after write_eof", error));
        }
        write_buffer.put(data);
        self.shared.send();
    }

    /// Queues several payloads, like one [`write`](StreamWriter::write) each.
    #[track_caller]
    pub fn writelines<P: Payload>(&self, pieces: impl IntoIterator<Item = P>) {
        for piece in pieces {
            self.write(piece);
        }
    }

    /// If the write buffer has grown above the high watermark, waits until it has drained to the low one. Fails if a
    /// send has failed or the connection was aborted. Dropping the future has no effect: queued bytes are still sent.
    pub async fn drain(&self) -> io::Result<()> {
        let shared = &self.shared;
        let write_buffer = &shared.write_buffer;
        let may_continue =
            || !write_buffer.watermarks.is_paused() || write_buffer.watermarks.size() == 0 || shared.is_closed();
        shared.changed.wait_until(may_continue).await;
        self.check()
    }

    /// Shuts down the write side once everything is sent. Reading continues.
    #[track_caller]
    pub fn write_eof(&self) {
        self.shared.write_buffer.put_eof();
        self.shared.send();
    }

    /// Whether [`write_eof`](StreamWriter::write_eof) is supported. Always true.
    pub fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes both directions once everything is sent; a pending read then returns EOF. Await
    /// [`wait_closed`](StreamWriter::wait_closed) for the result.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Waits until the connection is closed by [`close`](StreamWriter::close), [`abort`](StreamWriter::abort) or its
    /// server; a close by the peer does not count. Fails if a send has failed or the connection was aborted.
    pub async fn wait_closed(&self) -> io::Result<()> {
        let shared = &self.shared;
        shared.changed.wait_until(|| shared.is_closed()).await;
        self.check()
    }

    /// Closes both directions immediately with a reset and discards unsent bytes.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Whether the connection is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.shared.is_closing()
    }

    /// Sets the watermarks that [`drain`](StreamWriter::drain) uses: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.shared.write_buffer.watermarks.set_limits(high.into(), low.into())
    }

    /// The watermarks as (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.shared.write_buffer.watermarks.limits()
    }

    /// The number of bytes not yet accepted by the kernel.
    pub fn get_write_buffer_size(&self) -> usize {
        self.shared.write_buffer.watermarks.size()
    }

    /// The peer's IP address, also after the connection is closed. An error for Unix sockets.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.addrs.peer.inet()
    }

    /// The local IP address, also after the connection is closed. An error for Unix sockets.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.addrs.local.inet()
    }

    fn check(&self) -> io::Result<()> {
        self.shared.write_buffer.failure()?;
        match self.shared.is_aborted() {
            true => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection was aborted locally",
            )),
            false => Ok(()),
        }
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.shared.writer_dropped();
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
