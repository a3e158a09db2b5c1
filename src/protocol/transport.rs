//! The handle that a protocol gets.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;

use super::connection::Connected;
use super::link::{Farewell, Outgoing};
use super::payload::Payload;
use super::{Protocol, ProtocolRef};
use crate::event_loop::exception::{Exception, report};

/// One connection, as its protocol sees it: asyncio's transport.
///
/// A cheap handle: clones are the same connection. Every call returns at once and calls nobody back; what it causes comes
/// through the loop, later. So a protocol may call any of them from inside its own callbacks.
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
///         transport.close(); // after that was sent
///     }
/// }
///
/// windlass::run(async {
///     let server = create_server(Echo::default, "127.0.0.1:0").await?;
///     let (mut reader, writer) = windlass::net::open_connection(server.local_addr()?).await?;
///     writer.write("hello\n");
///     assert_eq!(reader.read_line().await?, "hello\n");
///     assert_eq!(reader.read_line().await?, ""); // the end
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Transport {
    pub(super) link: Rc<Connected>,
}

impl Transport {
    /// Queues bytes, which leave in the order of the calls. What is written in one turn leaves in one send.
    ///
    /// Lent bytes are copied; owned ones are not, unless they are few. There is no waiting here: if more than the high
    /// mark piles up, the protocol's [`pause_writing`](Protocol::pause_writing) is called, and whoever goes on writing uses
    /// memory. Once the transport is closing, bytes are dropped. After [`write_eof`](Transport::write_eof) they are dropped
    /// too, and the loop's exception handler is told.
    pub fn write(&self, data: impl Payload) {
        let link = &*self.link;
        if link.write_buffer.has_end() && !link.is_closing() {
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bytes are dropped");
            return report(Exception::error("write was called after write_eof", error));
        }
        link.write_buffer.put(data);
        link.wake_sender();
    }

    /// Queues several pieces, as if by one [`write`](Transport::write) each.
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

    /// Lets the peer see the end once everything is sent. Receiving goes on.
    pub fn write_eof(&self) {
        self.link.write_buffer.put_end();
        self.link.wake_sender();
    }

    /// Whether [`write_eof`](Transport::write_eof) works here: on a connection it always does.
    pub fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes the connection once everything is sent; nothing more is received. Then
    /// [`connection_lost`](Protocol::connection_lost) is called with `None`.
    pub fn close(&self) {
        self.link.close();
    }

    /// Closes the connection now: what is queued is dropped, and the peer sees a reset. Then
    /// [`connection_lost`](Protocol::connection_lost) is called with `None`.
    pub fn abort(&self) {
        self.link.end(None, Farewell::Reset);
    }

    /// Whether the connection is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.link.is_closing()
    }

    /// Stops receiving: [`data_received`](Protocol::data_received) is not called until
    /// [`resume_reading`](Transport::resume_reading). The kernel's buffer fills up, and then the peer has to wait.
    pub fn pause_reading(&self) {
        self.link.is_reading.set(false);
    }

    /// Receives again.
    pub fn resume_reading(&self) {
        if !self.link.is_reading.replace(true) {
            self.link.write_buffer.wake();
        }
    }

    /// Whether bytes are received: false while paused or closing.
    pub fn is_reading(&self) -> bool {
        self.link.is_reading.get() && !self.is_closing()
    }

    /// Sets the marks between which writing is paused and resumed: more than `high` bytes pause it, `low` or fewer resume
    /// it. By default 64 KiB and 16 KiB. `None` for one is derived from the other: `high` is four times `low`, `low` a
    /// quarter of `high`. Zero for `high` pauses at each byte that the kernel does not take.
    ///
    /// A `low` above `high` is the error `InvalidInput`, and changes nothing.
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
        self.link.write_buffer.watermarks.set_limits(high.into(), low.into())?;
        self.link.wake_sender();
        Ok(())
    }

    /// The marks: (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.link.write_buffer.watermarks.limits()
    }

    /// How many bytes the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.link.write_buffer.watermarks.size()
    }

    /// The address of the other end; also when the connection is gone. A Unix socket has none of this kind.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.link.about.peer_addr()
    }

    /// The address of this end; also when the connection is gone. A Unix socket has none of this kind.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.link.about.local_addr()
    }

    /// The address of the other end of a Unix connection; also when it is gone.
    #[cfg(unix)]
    pub fn peer_unix_addr(&self) -> io::Result<UnixAddr> {
        self.link.about.peer_unix_addr()
    }

    /// The address of this end of a Unix connection; also when it is gone.
    #[cfg(unix)]
    pub fn local_unix_addr(&self) -> io::Result<UnixAddr> {
        self.link.about.local_unix_addr()
    }

    /// From now on another protocol is called: how a connection is upgraded. As in asyncio,
    /// [`connection_made`](Protocol::connection_made) is not called on it; whoever swaps hands the transport over. The old
    /// protocol is not called any more.
    pub fn set_protocol<P: Protocol + 'static>(&self, protocol: P) -> ProtocolRef<P> {
        let protocol = Rc::new(RefCell::new(protocol));
        self.link.set_protocol(protocol.clone());
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
