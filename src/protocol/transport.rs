//! `Transport`: the handle through which a protocol acts on its connection.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;

use super::connection::ConnectionState;
use super::transport_state::CloseMode;
use super::{Payload, Protocol, ProtocolRef};
use crate::event_loop::exception::{Exception, report};

/// A handle to a connection, through which its [`Protocol`] acts: asyncio's transport. Clones refer to the same
/// connection; dropping the last one does not close it.
///
/// Every call returns at once and invokes no callback, so a protocol may make it from inside its callbacks. The loop
/// delivers the effects later.
///
/// ```
/// use windlass::protocol::{Protocol, Transport, create_connection, create_server};
///
/// #[derive(Default)]
/// struct Echo(Option<Transport>);
///
/// impl Protocol for Echo {
///     fn connection_made(&mut self, transport: Transport) {
///         self.0 = Some(transport);
///     }
///     fn data_received(&mut self, data: &[u8]) {
///         let transport = self.0.as_ref().unwrap();
///         transport.write(data);
///         transport.close(); // once that is sent
///     }
/// }
///
/// windlass::run(async {
///     let server = create_server(Echo::default, "127.0.0.1:0").await?;
///     let (mut reader, writer) = windlass::net::open_connection(server.local_addr()?).await?;
///     writer.write("hello\n");
///     assert_eq!(reader.read_line().await?, "hello\n");
///     assert_eq!(reader.read_line().await?, ""); // EOF
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Transport {
    pub(super) state: Rc<ConnectionState>,
}

impl Transport {
    /// Queues bytes for sending, in call order. Small writes of one turn leave in one send.
    ///
    /// Borrowed bytes are copied; owned bytes are copied only if they are short. `write` never waits: above the high
    /// watermark the loop calls [`pause_writing`](Protocol::pause_writing), and a protocol that keeps writing consumes
    /// memory. Once the transport is closing, bytes are discarded silently; after [`write_eof`](Transport::write_eof)
    /// they are discarded and an error is reported to the loop's exception handler.
    pub fn write(&self, data: impl Payload) {
        let state = &*self.state;
        if state.write_buffer.has_eof() && !state.is_closing() {
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bytes are discarded");
            return report(Exception::error("write was called after write_eof", error));
        }
        state.write_buffer.put(data);
        state.wake_sender();
    }

    /// Queues several payloads, like one [`write`](Transport::write) each.
    ///
    /// ```
    /// # fn example(transport: &windlass::protocol::Transport) {
    /// transport.writelines(["HTTP/1.1 200 OK\r\n", "content-length: 0\r\n", "\r\n"]);
    /// # }
    /// ```
    pub fn writelines<P: Payload>(&self, pieces: impl IntoIterator<Item = P>) {
        for piece in pieces {
            self.write(piece);
        }
    }

    /// Shuts down the write side once everything is sent. Reading continues.
    pub fn write_eof(&self) {
        self.state.write_buffer.put_eof();
        self.state.wake_sender();
    }

    /// Whether [`write_eof`](Transport::write_eof) is supported. Always true.
    pub fn can_write_eof(&self) -> bool {
        true
    }

    /// Stops reading, and closes the connection once everything is sent. The loop then calls
    /// [`connection_lost`](Protocol::connection_lost) with `None`.
    pub fn close(&self) {
        self.state.close();
    }

    /// Closes the connection immediately with a reset and discards unsent bytes. The loop then calls
    /// [`connection_lost`](Protocol::connection_lost) with `None`.
    pub fn abort(&self) {
        self.state.force_close(None, CloseMode::Reset);
    }

    /// Whether the connection is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.state.is_closing()
    }

    /// Stops calling [`data_received`](Protocol::data_received) until [`resume_reading`](Transport::resume_reading).
    /// Once the kernel's receive buffer is full, the peer has to wait.
    pub fn pause_reading(&self) {
        self.state.is_reading.set(false);
    }

    /// Resumes reading.
    pub fn resume_reading(&self) {
        self.state.resume_reading();
    }

    /// Whether the transport reads: false while paused or closing.
    pub fn is_reading(&self) -> bool {
        self.state.is_reading.get() && !self.is_closing()
    }

    /// Sets the watermarks of the write buffer: more than `high` bytes pause writing, `low` or fewer resume it. The
    /// defaults are 64 KiB and 16 KiB. `None` derives one from the other: `high` is four times `low`, `low` a quarter
    /// of `high`. With a `high` of zero, every write pauses writing until it is sent.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `low` exceeds `high`; the watermarks stay unchanged.
    ///
    /// ```
    /// # fn example(transport: &windlass::protocol::Transport) -> std::io::Result<()> {
    /// transport.set_write_buffer_limits(1 << 20, None)?;
    /// assert_eq!(transport.get_write_buffer_limits(), (1 << 18, 1 << 20));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.state.set_limits(high.into(), low.into())
    }

    /// The watermarks as (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.state.write_buffer.watermarks.limits()
    }

    /// The number of bytes not yet accepted by the kernel.
    pub fn get_write_buffer_size(&self) -> usize {
        self.state.write_buffer.watermarks.size()
    }

    /// The peer's IP address, also after the connection is closed. An error for Unix sockets.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.state.info.peer.inet()
    }

    /// The local IP address, also after the connection is closed. An error for Unix sockets.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.state.info.local.inet()
    }

    /// The peer's address on a Unix connection, also after it is closed.
    #[cfg(unix)]
    pub fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
        self.state.info.peer.unix()
    }

    /// The local address of a Unix connection, also after it is closed.
    #[cfg(unix)]
    pub fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        self.state.info.local.unix()
    }

    /// Replaces the protocol, to upgrade a connection. As in asyncio, [`connection_made`](Protocol::connection_made) is
    /// not called on the new protocol: pass it the transport yourself. The old protocol receives no further callbacks.
    pub fn set_protocol<P: Protocol + 'static>(&self, protocol: P) -> ProtocolRef<P> {
        let protocol = Rc::new(RefCell::new(protocol));
        self.state.set_protocol(protocol.clone());
        ProtocolRef(protocol)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .field("write_buffer_size", &self.get_write_buffer_size())
            .field("reading", &self.is_reading())
            .field("closing", &self.is_closing())
            .finish()
    }
}
