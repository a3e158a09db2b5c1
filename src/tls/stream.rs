//! A stream with TLS on it.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::{Connection, HandshakeKind, ProtocolVersion, SupportedCipherSuite};

use super::error::told;
use super::polled::Polled;
use super::session::{Session, State};
use super::transport::TlsTransport;
use super::write_buffer::WriteBuffer;
use crate::inflight::queue::IoQueue;
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf, coop, no_capacity, no_length};
use crate::time::timeout;

/// How long a peer that is refused may take to hear why.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many buffers of a vectored write are looked at in one call.
const MAX_SLICES: usize = 64;

/// A stream with TLS on it: what [`TlsConnector::connect`](super::TlsConnector::connect) and
/// [`TlsAcceptor::accept`](super::TlsAcceptor::accept) give.
///
/// Calls are those of a [`TcpStream`](crate::net::TcpStream): reads and writes take `&self`, so that two tasks can use both
/// directions at once, and calls on one direction happen one after the other, each as a whole. [`io::split`](crate::io::split)
/// makes two halves of it.
///
/// **Cancelling** a read loses nothing, [`read_exact`](TlsStream::read_exact) included. A cancelled write may have written any
/// part from the front of its buffer; records that were begun are completed by a read that waits or by the next write, flush or
/// read, and never mixed with what comes later.
///
/// **The end**: a read gives 0 when the peer has said that it is done (close_notify). If the connection ends without that, the
/// error is `UnexpectedEof`: what was received may have been cut off. [`shutdown`](TlsStream::shutdown) says it to the peer;
/// dropping the stream does not.
///
/// ```no_run
/// use windlass::net::TcpStream;
/// use windlass::tls::{TlsConnector, TlsStream};
///
/// async fn first_line(connector: &TlsConnector) -> std::io::Result<String> {
///     let stream = TcpStream::connect("example.org:443").await?;
///     let stream: TlsStream<TcpStream> = connector.connect("example.org", stream).await?;
///     println!("{:?} with {}", stream.protocol_version(), stream.get_ref().peer_addr()?);
///     stream.write_all("HEAD / HTTP/1.0\r\nhost: example.org\r\n\r\n").await.0?;
///     let answer = stream.read_managed().await?;
///     stream.shutdown().await?;
///     Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
/// }
/// ```
pub struct TlsStream<S> {
    pub(super) carrier: Rc<S>,
    pub(super) session: Session,
    /// Held by who reads.
    reading: IoQueue,
    /// What a dropped `read_exact` had read.
    pub(super) leftover: Cell<ManagedBuf>,
    pub(super) write_buffer: WriteBuffer,
    /// What poll-based code has under way.
    pub(super) polled: Polled,
}

impl<S: TlsTransport> TlsStream<S> {
    /// From nothing to a stream that can be used. If it fails the peer is told, if it listens.
    pub(super) async fn shake_hands(carrier: S, tls: Connection) -> io::Result<TlsStream<S>> {
        let carrier = Rc::new(carrier);
        let stream = TlsStream {
            session: Session::new(tls),
            reading: IoQueue::default(),
            leftover: Cell::default(),
            write_buffer: WriteBuffer::new(carrier.clone()),
            polled: Polled::default(),
            carrier,
        };
        loop {
            match stream.session.with(State::shake) {
                Ok(true) => stream.exchange().await?,
                Ok(false) => break,
                Err(error) => {
                    let _ = timeout(PATIENCE, stream.refuse()).await;
                    return Err(error);
                }
            }
        }
        // What a server says last in TLS 1.3 are tickets for later. A client need not read them now, so they are not waited
        // for; everything else the other end waits for.
        let is_ticket = |state: &mut State| {
            matches!(state.tls, Connection::Server(_)) && state.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        };
        match stream.session.with(is_ticket) {
            true => stream.nudge().await,
            false => stream.flush().await?,
        }
        Ok(stream)
    }

    /// Sends the alert, if there is one, and waits until the peer has gone. Bytes that nobody has read would make a reset of
    /// the close, and a reset can overtake the alert.
    async fn refuse(&self) -> io::Result<()> {
        self.collect();
        if self.write_buffer.is_idle() {
            return Ok(());
        }
        self.flush().await?;
        self.carrier.end().await?;
        while !self.carrier.receive().await?.is_empty() {
            coop().await;
        }
        Ok(())
    }

    /// Sends and receives at once: over a stream with little room, two ends that first send would wait for each other. What
    /// was received counts more than that sending has failed: it may be the reason.
    async fn exchange(&self) -> io::Result<()> {
        let mut receiving = pin!(self.carrier.receive());
        let received = poll_fn(|cx| {
            let sent = self.poll_sent(cx);
            match (receiving.as_mut().poll(cx), sent) {
                (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (received, _) => received,
            }
        })
        .await?;
        self.session.with(|state| state.received(received));
        Ok(())
    }

    /// Reads into `buf`, from its start and up to its capacity, and gives the number of bytes; 0 is the end of the stream. A
    /// `Vec` then has just that length.
    ///
    /// Cancel: nothing is lost.
    pub async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let _hold = self.reading.hold().await;
        coop().await;
        let result = self.next_plaintext(|bytes| buf.fill_from(bytes)).await;
        (result, buf)
    }

    /// Reads into a buffer of its own; an empty one is the end of the stream. While it waits there is none.
    ///
    /// Cancel: nothing is lost.
    pub async fn read_managed(&self) -> io::Result<ManagedBuf> {
        let _hold = self.reading.hold().await;
        coop().await;
        let mut taken = Vec::new();
        self.next_plaintext(|bytes| {
            taken = bytes.to_vec();
            taken.len()
        })
        .await?;
        Ok(ManagedBuf::from_heap(taken))
    }

    /// Fills `buf` up to its length (not its capacity), as std's `read_exact` does. If the stream ends first the error is
    /// `UnexpectedEof`.
    ///
    /// Cancel, and an error half-way: nothing is lost, what was read goes to the next read.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        let len = buf.len();
        match (len, buf.capacity()) {
            (0, 0) => return (Ok(()), buf),
            (0, _) => return (Err(no_length()), buf),
            _ => {}
        }
        let _hold = self.reading.hold().await;
        let mut filling = Filling {
            leftover: &self.leftover,
            buf: Some(buf),
            filled: 0,
        };
        while filling.filled < len {
            coop().await;
            let taking = self.next_plaintext(|bytes| filling.part(len, |part| part.fill_from(bytes)));
            let result = taking.await;
            let error = match result {
                Ok(0) => io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the stream ended before the buffer was full",
                ),
                Ok(count) => {
                    filling.filled += count;
                    continue;
                }
                Err(error) => error,
            };
            return (Err(error), filling.give_back());
        }
        (Ok(()), filling.done())
    }

    /// Gives the next plaintext to `take`, which says how much of it was used; at the end, nothing. To be called by who
    /// reads.
    async fn next_plaintext(&self, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
        let mut leftover = self.leftover.take();
        if !leftover.is_empty() {
            let count = take(&leftover);
            leftover.advance(count);
            self.leftover.set(leftover);
            return Ok(count);
        }
        let seen = loop {
            match self.session.with(State::look) {
                Some(seen) => break seen,
                None => self.receive().await?,
            }
        };
        // An alert, perhaps, or an answer to new keys.
        self.nudge().await;
        seen?;
        Ok(self.session.with(|state| {
            let count = take(state.plaintext());
            state.consume(count);
            count
        }))
    }

    /// Receives more. What is to be sent goes on meanwhile, if nobody writes who would see to it; a writer that goes wakes us.
    async fn receive(&self) -> io::Result<()> {
        let _asleep = Asleep(&self.write_buffer);
        let begun = self.polled.receiving.take();
        let mut receiving = pin!(async {
            match begun {
                Some(begun) => begun.await,
                None => self.carrier.receive().await,
            }
        });
        let received = poll_fn(|cx| {
            self.poll_nudge(cx);
            let received = receiving.as_mut().poll(cx);
            if received.is_pending() {
                self.write_buffer.reader_sleeps(cx.waker());
            }
            received
        })
        .await?;
        self.received(received)
    }

    /// Takes in what was received.
    pub(super) fn received(&self, received: ManagedBuf) -> io::Result<()> {
        // A reset is told to one direction only; to the other it is an end.
        if received.is_empty()
            && let Some(error) = self.write_buffer.reset()
        {
            return Err(error);
        }
        self.session.with(|state| state.received(received));
        Ok(())
    }

    /// Writes from `buf` and gives how many bytes were taken: at most 64 KiB at a time, and all of these have been sent.
    ///
    /// Cancel: any part from the front may have been written.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let _hold = self.write_buffer.hold().await;
        (self.write_some(&[IoSlice::new(buf.as_slice())]).await, buf)
    }

    /// Writes the whole of `buf`. No other write comes in between.
    ///
    /// Cancel: any part from the front may have been written.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        let _hold = self.write_buffer.hold().await;
        let mut written = 0;
        while written < buf.len() {
            // A buffer of somebody else's may hold less than it did a moment ago.
            let rest = buf.as_slice().get(written..).unwrap_or_default();
            match self.write_some(&[IoSlice::new(rest)]).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => written += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes from several buffers, one after the other, as few records as possible, and gives how many bytes were taken: at
    /// most 64 KiB, from at most 64 buffers.
    ///
    /// Cancel: any part from the front may have been written.
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let _hold = self.write_buffer.hold().await;
        (self.write_some(&slices(&bufs, 0)).await, bufs)
    }

    /// Writes the whole of all buffers, however many. No other write comes in between.
    ///
    /// Cancel: any part from the front may have been written.
    pub async fn write_all_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        let _hold = self.write_buffer.hold().await;
        let len: usize = bufs.iter().map(IoBuf::len).sum();
        let mut written = 0;
        while written < len {
            match self.write_some(&slices(&bufs, written)).await {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bufs),
                Ok(count) => written += count,
                Err(error) => return (Err(error), bufs),
            }
        }
        (Ok(()), bufs)
    }

    /// Makes records of what the session takes and sends them. To be called by who writes.
    async fn write_some(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        // What a dropped write has left comes first.
        poll_fn(|cx| self.poll_sent(cx)).await?;
        let count = self.session.with(|state| state.encrypt(bytes))?;
        poll_fn(|cx| self.poll_sent(cx)).await?;
        Ok(count)
    }

    /// Waits until everything that was written is on its way. That is so when a write is done; it matters for one that was
    /// dropped.
    ///
    /// Cancel: ask again.
    pub async fn flush(&self) -> io::Result<()> {
        let _hold = self.write_buffer.hold().await;
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Says that nothing more will be written: sends close_notify, and ends the writing side of the stream below. The other
    /// direction can be read on.
    ///
    /// Cancel: the end may have been told or not; ask again.
    pub async fn shutdown(&self) -> io::Result<()> {
        let _hold = self.write_buffer.hold().await;
        poll_fn(|cx| self.poll_sent(cx)).await?;
        self.session.with(State::close);
        poll_fn(|cx| self.poll_sent(cx)).await?;
        match self.carrier.end().await {
            // The peer has said its own last word, and is gone.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Sends what there is to send; ready when nothing is left. To be polled by who holds the outbox's lane.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.collect();
        self.write_buffer.poll_sent(cx)
    }

    /// Lets what there is to send go on, if nobody else sees to that.
    pub(super) fn poll_nudge(&self, cx: &mut Context<'_>) {
        self.collect();
        self.write_buffer.nudge(cx);
    }

    async fn nudge(&self) {
        poll_fn(|cx| {
            self.poll_nudge(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Moves the session's records to the outbox.
    pub(super) fn collect(&self) {
        self.session.with(|state| {
            if state.wants_write() {
                self.write_buffer.put(|waiting| state.records(waiting));
            }
        });
    }
}

impl<S> TlsStream<S> {
    /// The stream below: for its addresses and options. What is read from it or written to it ends the TLS connection.
    pub fn get_ref(&self) -> &S {
        &self.carrier
    }

    /// The application protocol that both ends have agreed on (ALPN).
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        self.session.with(|state| state.tls.alpn_protocol().map(<[u8]>::to_vec))
    }

    /// The certificates that the peer has shown, its own first. `None` if it has shown none, as most clients do.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.session
            .with(|state| state.tls.peer_certificates().map(<[CertificateDer<'static>]>::to_vec))
    }

    /// The version of TLS that both ends have agreed on.
    pub fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.session.with(|state| state.tls.protocol_version())
    }

    /// The cipher suite that both ends have agreed on.
    pub fn cipher_suite(&self) -> Option<SupportedCipherSuite> {
        self.session.with(|state| state.tls.negotiated_cipher_suite())
    }

    /// Whether an earlier session was resumed, which spares certificates and most of the arithmetic.
    pub fn is_resumed(&self) -> bool {
        self.session
            .with(|state| state.tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// The name that the client has asked for (SNI), at the server's end.
    pub fn server_name(&self) -> Option<String> {
        self.session.with(|state| match &state.tls {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        })
    }

    /// Key material that both ends can derive and nobody else (RFC 5705), to bind other things to this connection.
    pub fn export_keying_material<T: AsMut<[u8]>>(
        &self,
        output: T,
        label: &[u8],
        context: Option<&[u8]>,
    ) -> io::Result<T> {
        self.session
            .with(|state| state.tls.export_keying_material(output, label, context))
            .map_err(told)
    }

    /// Sends new keys for what follows (TLS 1.3). They are due by themselves long before the old ones are used up.
    pub fn refresh_traffic_keys(&self) -> io::Result<()> {
        self.session
            .with(|state| state.tls.refresh_traffic_keys())
            .map_err(told)
    }
}

impl<S: fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("version", &self.protocol_version())
            .field("unsent", &self.write_buffer.waiting_len())
            .field("over", &self.carrier)
            .finish()
    }
}

/// What follows the first `skip` bytes, as slices; as many as one call takes.
fn slices<B: IoBuf>(bufs: &[B], mut skip: usize) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::new();
    for buf in bufs {
        let bytes = buf.as_slice();
        let begin = skip.min(bytes.len());
        skip -= begin;
        if begin < bytes.len() && slices.len() < MAX_SLICES {
            slices.push(IoSlice::new(&bytes[begin..]));
        }
    }
    slices
}

/// A reader that may sleep.
struct Asleep<'a>(&'a WriteBuffer);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.reader_is_up();
    }
}

/// A buffer that is being filled. Dropped, it puts what it has back.
struct Filling<'a, B: IoBufMut> {
    leftover: &'a Cell<ManagedBuf>,
    /// There until the end.
    buf: Option<B>,
    filled: usize,
}

impl<B: IoBufMut> Filling<'_, B> {
    /// Lends the part that is still to be filled.
    fn part<T>(&mut self, len: usize, action: impl FnOnce(&mut crate::io::Slice<B>) -> T) -> T {
        let buf = self.buf.take().expect("it is there until the end");
        let mut part = buf.slice_mut(self.filled..len);
        let result = action(&mut part);
        self.buf = Some(part.into_inner());
        result
    }

    fn put_back(&mut self) {
        if let Some(buf) = &self.buf
            && self.filled > 0
        {
            // What was unread is in the buffer now, if it was not enough to fill it.
            let bytes = buf.as_slice()[..self.filled].to_vec();
            self.leftover.set(ManagedBuf::from_heap(bytes));
        }
    }

    fn give_back(mut self) -> B {
        self.put_back();
        self.done()
    }

    fn done(mut self) -> B {
        self.buf.take().expect("it is there until the end")
    }
}

impl<B: IoBufMut> Drop for Filling<'_, B> {
    fn drop(&mut self) {
        self.put_back();
    }
}
