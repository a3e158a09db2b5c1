//! The handle that a protocol gets, and the line between the two.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::bell::Bell;
use super::outbox::Outbox;
use super::payload::Payload;
use super::server::Client;
use super::wire::Ends;
use super::{Protocol, ProtocolRef};
use crate::exception::{Exception, guard, report};

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
    pub(super) line: Rc<Line>,
}

impl Transport {
    /// Queues bytes, which leave in the order of the calls. What is written in one turn leaves in one send.
    ///
    /// Lent bytes are copied; owned ones are not, unless they are few. There is no waiting here: if more than the high
    /// mark piles up, the protocol's [`pause_writing`](Protocol::pause_writing) is called, and whoever goes on writing uses
    /// memory. Once the transport is closing, bytes are dropped. After [`write_eof`](Transport::write_eof) they are dropped
    /// too, and the loop's exception handler is told.
    pub fn write(&self, data: impl Payload) {
        let line = &*self.line;
        if line.outbox.has_end() && !line.is_closing() {
            let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bytes are dropped");
            return report(Exception::error("write was called after write_eof", error));
        }
        line.outbox.put(data);
        line.wake_sender();
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
        self.line.outbox.put_end();
        self.line.wake_sender();
    }

    /// Whether [`write_eof`](Transport::write_eof) works here: on a connection it always does.
    pub fn can_write_eof(&self) -> bool {
        true
    }

    /// Closes the connection once everything is sent; nothing more is received. Then
    /// [`connection_lost`](Protocol::connection_lost) is called with `None`.
    pub fn close(&self) {
        self.line.close();
    }

    /// Closes the connection now: what is queued is dropped, and the peer sees a reset. Then
    /// [`connection_lost`](Protocol::connection_lost) is called with `None`.
    pub fn abort(&self) {
        self.line.end(None, Farewell::Reset);
    }

    /// Whether the connection is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.line.is_closing()
    }

    /// Stops receiving: [`data_received`](Protocol::data_received) is not called until
    /// [`resume_reading`](Transport::resume_reading). The kernel's buffer fills up, and then the peer has to wait.
    pub fn pause_reading(&self) {
        self.line.is_reading.set(false);
    }

    /// Receives again.
    pub fn resume_reading(&self) {
        if !self.line.is_reading.replace(true) {
            self.line.wake();
        }
    }

    /// Whether bytes are received: false while paused or closing.
    pub fn is_reading(&self) -> bool {
        self.line.is_reading.get() && !self.is_closing()
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
        self.line.outbox.set_limits(high.into(), low.into())?;
        self.line.wake_sender();
        Ok(())
    }

    /// The marks: (low, high), in asyncio's order.
    pub fn get_write_buffer_limits(&self) -> (usize, usize) {
        self.line.outbox.limits()
    }

    /// How many bytes the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.line.outbox.size()
    }

    /// The address of the other end; also when the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.line.ends.peer_addr()
    }

    /// The address of this end; also when the connection is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.line.ends.local_addr()
    }

    /// From now on another protocol is called: how a connection is upgraded. As in asyncio,
    /// [`connection_made`](Protocol::connection_made) is not called on it; whoever swaps hands the transport over. The old
    /// protocol is not called any more.
    pub fn set_protocol<P: Protocol + 'static>(&self, protocol: P) -> ProtocolRef<P> {
        let protocol = Rc::new(RefCell::new(protocol));
        if !self.line.is_lost.get() {
            let old = self.line.protocol.replace(Some(protocol.clone()));
            guard("a protocol's destructor", || drop(old));
        }
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

/// How a connection is to end.
enum Ending {
    /// It is not.
    No,
    /// When everything is sent.
    Flush,
    /// Now, and this is what its protocol is told.
    Now(Option<io::Error>),
}

/// How the peer learns of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    Close,
    Reset,
}

/// What a connection's handles, its task and its server share.
pub(super) struct Line {
    pub(super) outbox: Outbox,
    pub(super) protocol: RefCell<Option<Rc<RefCell<dyn Protocol>>>>,
    pub(super) is_reading: Cell<bool>,
    ending: RefCell<Ending>,
    /// During which poll of its task the ending was asked for.
    ending_since: Cell<u64>,
    pub(super) farewell: Cell<Farewell>,
    /// The protocol was told of the end, or never will be: the loop has closed.
    pub(super) is_lost: Cell<bool>,
    /// What the protocol was last told about writing: true is pause.
    told_over: Cell<bool>,
    /// Polls of the task so far.
    pub(super) polls: Cell<u64>,
    /// The task is being polled, and will see by itself what is asked for now.
    pub(super) in_poll: Cell<bool>,
    /// The sender has nothing more to send, and never will.
    pub(super) is_flushed: Cell<bool>,
    /// In which poll the protocol was last called with something received.
    pub(super) delivered_in: Cell<u64>,
    /// Rung when the connection is made and when it is lost.
    pub(super) bell: Bell,
    pub(super) ends: Ends,
}

impl Line {
    pub(super) fn new(protocol: Rc<RefCell<dyn Protocol>>, ends: Ends) -> Line {
        Line {
            outbox: Outbox::new(),
            protocol: RefCell::new(Some(protocol)),
            is_reading: Cell::new(true),
            ending: RefCell::new(Ending::No),
            ending_since: Cell::new(0),
            farewell: Cell::new(Farewell::Close),
            is_lost: Cell::new(false),
            told_over: Cell::new(false),
            polls: Cell::new(0),
            in_poll: Cell::new(false),
            is_flushed: Cell::new(false),
            delivered_in: Cell::new(0),
            bell: Bell::default(),
            ends,
        }
    }

    /// Calls the protocol. A panic is told to the exception handler, and ends this connection.
    pub(super) fn call<R>(&self, what: &str, call: impl FnOnce(&mut dyn Protocol) -> R) -> Option<R> {
        let protocol = self.protocol.borrow().clone()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *protocol.borrow_mut())));
        // If it was swapped meanwhile, this is the last share of it.
        guard("a protocol's destructor", || drop(protocol));
        match result {
            Ok(result) => Some(result),
            Err(payload) => {
                report(Exception::panic(&format!("a protocol's {what}"), payload));
                let error = io::Error::other(format!("the protocol's {what} panicked"));
                self.end(Some(error), Farewell::Reset);
                None
            }
        }
    }

    /// Tells the protocol to pause or resume writing, if it does not know yet.
    pub(super) fn tell_flow(&self) {
        while self.has_flow_to_tell() {
            let is_over = self.outbox.is_over();
            self.told_over.set(is_over);
            match is_over {
                true => self.call("pause_writing", |protocol| protocol.pause_writing()),
                false => self.call("resume_writing", |protocol| protocol.resume_writing()),
            };
        }
    }

    pub(super) fn has_flow_to_tell(&self) -> bool {
        self.outbox.is_over() != self.told_over.get() && !self.is_ending_now()
    }

    pub(super) fn close(&self) {
        let mut ending = self.ending.borrow_mut();
        if let Ending::No = *ending {
            *ending = Ending::Flush;
            self.outbox.close();
            self.ending_since.set(self.polls.get());
            drop(ending);
            // Also in a poll: the next one tells the protocol, in the order of the calls.
            self.wake();
        }
    }

    /// Ends the connection without sending what is queued.
    pub(super) fn end(&self, error: Option<io::Error>, farewell: Farewell) {
        let mut ending = self.ending.borrow_mut();
        if let Ending::Now(_) = *ending {
            return;
        }
        *ending = Ending::Now(error);
        drop(ending);
        self.farewell.set(farewell);
        self.outbox.discard();
        self.ending_since.set(self.polls.get());
        self.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_lost.get() || !matches!(*self.ending.borrow(), Ending::No)
    }

    pub(super) fn is_ending_now(&self) -> bool {
        matches!(*self.ending.borrow(), Ending::Now(_))
    }

    /// Why the connection is over, if it is, and if that was asked for before this poll of its task: as in asyncio the
    /// protocol hears of it in a later turn.
    pub(super) fn reason_to_go(&self) -> Option<Option<io::Error>> {
        if self.ending_since.get() >= self.polls.get() {
            return None;
        }
        match &mut *self.ending.borrow_mut() {
            Ending::Now(error) => Some(error.take()),
            Ending::Flush if self.is_flushed.get() => Some(None),
            Ending::Flush | Ending::No => None,
        }
    }

    /// Something was put into the outbox. If the task runs, or the sender is busy, it is seen without this.
    fn wake_sender(&self) {
        if !self.in_poll.get() && (self.outbox.has_news() || self.has_flow_to_tell()) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.outbox.wake();
    }
}

impl Client for Line {
    fn close_client(self: Rc<Self>) {
        Line::close(&self);
    }

    fn abort_client(self: Rc<Self>) {
        self.end(None, Farewell::Reset);
    }
}
