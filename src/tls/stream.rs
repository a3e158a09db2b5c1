//! A TLS stream with the calls of a TCP stream.

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

use super::error::tls_error;
use super::polled::PollState;
use super::sender::Sender;
use super::session::{Session, State};
use super::transport::TlsTransport;
use crate::inflight::queue::IoQueue;
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf, check_exact_len, coop, no_capacity, unexpected_eof};
use crate::on_drop::OnDrop;
use crate::time::timeout;

/// How long a rejected peer may take to read the alert.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How many buffers one vectored call encrypts.
const MAX_SLICES: usize = 64;

/// A TLS connection, created by [`TlsConnector::connect`](super::TlsConnector::connect) or
/// [`TlsAcceptor::accept`](super::TlsAcceptor::accept).
///
/// The calls are those of a [`TcpStream`](crate::net::TcpStream). Reads and writes take `&self`, so two tasks can use
/// both directions at once; calls in one direction run one after the other, each as a whole.
/// [`io::split`](crate::io::split) creates two halves.
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
///
/// # End of stream
///
/// A read returns 0 after the peer's close_notify. A connection that ends without it gives the error `UnexpectedEof`:
/// the data may be truncated. [`shutdown`](TlsStream::shutdown) sends close_notify; dropping the stream does not.
///
/// # Cancel safety
///
/// Reads lose nothing, [`read_exact`](TlsStream::read_exact) included. A cancelled write may have written any prefix of
/// its buffer. A pending read, or the next write, flush or read, completes the records that it started, and later data
/// never mixes with them.
pub struct TlsStream<S> {
    pub(super) transport: Rc<S>,
    pub(super) session: Session,
    /// Held during a read.
    reading: IoQueue,
    /// Bytes that a cancelled `read_exact` had read.
    pub(super) leftover: Cell<ManagedBuf>,
    pub(super) sender: Sender,
    /// State of poll-based code.
    pub(super) polled: PollState,
}

impl<S: TlsTransport> TlsStream<S> {
    /// Performs the handshake. If it fails, sends the alert to the peer.
    pub(super) async fn handshake(transport: S, tls: Connection) -> io::Result<TlsStream<S>> {
        let transport = Rc::new(transport);
        let stream = TlsStream {
            session: Session::new(tls),
            reading: IoQueue::default(),
            leftover: Cell::default(),
            sender: Sender::new(transport.clone()),
            polled: PollState::default(),
            transport,
        };
        loop {
            match stream.session.with(State::advance_handshake) {
                Ok(true) => stream.exchange().await?,
                Ok(false) => break,
                Err(error) => {
                    let _ = timeout(REFUSAL_TIMEOUT, stream.refuse()).await;
                    return Err(error);
                }
            }
        }
        // A TLS 1.3 server ends its handshake with session tickets. The client need not read them now, so they are not
        // awaited. Any other last message is, since the peer waits for it.
        let is_ticket = |state: &mut State| {
            matches!(state.tls, Connection::Server(_)) && state.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        };
        match stream.session.with(is_ticket) {
            true => stream.try_send().await,
            false => stream.flush().await?,
        }
        Ok(stream)
    }

    /// Sends the alert, if there is one, and waits until the peer has closed. Closing with unread bytes would send a
    /// reset, which can overtake the alert.
    async fn refuse(&self) -> io::Result<()> {
        self.queue_records();
        if self.sender.is_idle() {
            return Ok(());
        }
        self.flush().await?;
        self.transport.send_eof().await?;
        while !self.transport.receive().await?.is_empty() {
            coop().await;
        }
        Ok(())
    }

    /// Sends and receives concurrently: with small transport buffers, two ends that both send first would deadlock.
    /// Received data takes precedence over a send error, since it may contain the reason.
    async fn exchange(&self) -> io::Result<()> {
        let mut receiving = pin!(self.transport.receive());
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

    /// Reads into `buf`, from its start up to its capacity, and returns the number of bytes; 0 is EOF. A `Vec` gets
    /// that length. A buffer without capacity is an error. Cancel-safe.
    pub async fn read<B: IoBufMut>(&self, mut buf: B) -> BufResult<usize, B> {
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let _guard = self.reading.acquire().await;
        coop().await;
        let result = self.next_plaintext(|bytes| buf.fill_from(bytes)).await;
        (result, buf)
    }

    /// Reads into a new buffer; empty at EOF. Holds no buffer while waiting. Cancel-safe.
    pub async fn read_managed(&self) -> io::Result<ManagedBuf> {
        let _guard = self.reading.acquire().await;
        coop().await;
        let mut taken = Vec::new();
        self.next_plaintext(|bytes| {
            taken = bytes.to_vec();
            taken.len()
        })
        .await?;
        Ok(ManagedBuf::from_heap(taken))
    }

    /// Fills `buf` up to its length (not its capacity), like std's `read_exact`. `UnexpectedEof` if the stream ends
    /// first.
    ///
    /// Cancel-safe: after a cancel or an error, the next read returns the bytes read so far.
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        if let Some(result) = check_exact_len(&buf) {
            return (result, buf);
        }
        let len = buf.len();
        let _guard = self.reading.acquire().await;
        let mut exact = ExactRead {
            leftover: &self.leftover,
            len,
            buf: Some(buf),
            filled: 0,
        };
        while exact.filled < exact.len {
            coop().await;
            match self.next_plaintext(|bytes| exact.fill_from(bytes)).await {
                Ok(0) => return (Err(unexpected_eof()), exact.finish()),
                Ok(_) => {}
                Err(error) => return (Err(error), exact.finish()),
            }
        }
        (Ok(()), exact.finish())
    }

    /// Passes the next plaintext to `take`, which returns how much it used; an empty slice at EOF. The caller holds
    /// `reading`.
    async fn next_plaintext(&self, take: impl FnOnce(&[u8]) -> usize) -> io::Result<usize> {
        let mut leftover = self.leftover.take();
        if !leftover.is_empty() {
            let count = take(&leftover);
            leftover.advance(count);
            self.leftover.set(leftover);
            return Ok(count);
        }
        let filled = loop {
            match self.session.with(State::fill_plaintext) {
                Some(filled) => break filled,
                None => self.receive().await?,
            }
        };
        // An alert, perhaps, or a response to a key update.
        self.try_send().await;
        filled?;
        Ok(self.session.with(|state| {
            let count = take(state.plaintext());
            state.consume(count);
            count
        }))
    }

    /// Receives more. Meanwhile it drives pending sends if no writer is active; a dropped writer wakes this reader.
    async fn receive(&self) -> io::Result<()> {
        let _waiting = OnDrop(|| self.sender.reader.clear());
        let started = self.polled.receiving.take();
        let mut receiving = pin!(async {
            match started {
                Some(started) => started.await,
                None => self.transport.receive().await,
            }
        });
        let received = poll_fn(|cx| {
            self.poll_try_send(cx);
            let received = receiving.as_mut().poll(cx);
            if received.is_pending() {
                self.sender.set_reader(cx);
            }
            received
        })
        .await?;
        self.received(received)
    }

    /// Passes received data to the session.
    pub(super) fn received(&self, received: ManagedBuf) -> io::Result<()> {
        // The kernel reports a reset to one direction only; the other sees EOF.
        if received.is_empty()
            && let Some(error) = self.sender.reset()
        {
            return Err(error);
        }
        self.session.with(|state| state.received(received));
        Ok(())
    }

    /// Writes from `buf` and returns the number of bytes, at most 64 KiB, all of which have been sent. If cancelled,
    /// any prefix may have been written.
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        if buf.is_empty() {
            return (Ok(0), buf);
        }
        let _guard = self.sender.acquire().await;
        (self.write_some(&[IoSlice::new(buf.as_slice())]).await, buf)
    }

    /// Writes all of `buf`, without other writes in between. If cancelled, any prefix may have been written.
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        // A foreign buffer may have become shorter since the last look.
        let rest = |written| [IoSlice::new(buf.as_slice().get(written..).unwrap_or_default())];
        (self.write_rest(buf.len(), rest).await, buf)
    }

    /// Writes from several buffers with as few records as possible, and returns the number of bytes: at most 64 KiB
    /// from at most 64 buffers. If cancelled, any prefix may have been written.
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        if bufs.iter().all(IoBuf::is_empty) {
            return (Ok(0), bufs);
        }
        let _guard = self.sender.acquire().await;
        (self.write_some(&slices(&bufs, 0)).await, bufs)
    }

    /// Writes all of several buffers, without other writes in between. If cancelled, any prefix may have been written.
    pub async fn write_all_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        let len = bufs.iter().map(IoBuf::len).sum();
        (self.write_rest(len, |written| slices(&bufs, written)).await, bufs)
    }

    /// Writes `len` bytes; `rest` returns those after the first `written`.
    async fn write_rest<'b, R: AsRef<[IoSlice<'b>]>>(&self, len: usize, rest: impl Fn(usize) -> R) -> io::Result<()> {
        let _guard = self.sender.acquire().await;
        let mut written = 0;
        while written < len {
            match self.write_some(rest(written).as_ref()).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => written += count,
            }
        }
        Ok(())
    }

    /// Encrypts what the session accepts and sends it. The caller holds the sender.
    async fn write_some(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        // The rest of a cancelled write comes first.
        poll_fn(|cx| self.poll_sent(cx)).await?;
        let count = self.session.with(|state| state.encrypt(bytes))?;
        poll_fn(|cx| self.poll_sent(cx)).await?;
        Ok(count)
    }

    /// Waits until everything written has been sent. A finished write has been; a cancelled one may not. Cancel-safe.
    pub async fn flush(&self) -> io::Result<()> {
        let _guard = self.sender.acquire().await;
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Sends close_notify and shuts down the write direction of the transport. Reading continues.
    ///
    /// If cancelled, call it again: close_notify may or may not have been sent.
    pub async fn shutdown(&self) -> io::Result<()> {
        let _guard = self.sender.acquire().await;
        poll_fn(|cx| self.poll_sent(cx)).await?;
        self.session.with(State::close);
        poll_fn(|cx| self.poll_sent(cx)).await?;
        match self.transport.send_eof().await {
            // The peer has sent its close_notify and closed.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Sends pending records; ready when nothing is left. The caller holds the sender.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue_records();
        self.sender.poll_sent(cx)
    }

    /// Drives pending sends if no writer is active.
    pub(super) fn poll_try_send(&self, cx: &mut Context<'_>) {
        self.queue_records();
        self.sender.try_send(cx);
    }

    async fn try_send(&self) {
        poll_fn(|cx| {
            self.poll_try_send(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Moves records from the session to the write buffer.
    pub(super) fn queue_records(&self) {
        self.session.with(|state| {
            if state.tls.wants_write() {
                self.sender.buffer.put_with(|waiting| state.take_records(waiting));
            }
        });
    }
}

impl<S> TlsStream<S> {
    /// The underlying stream, for its addresses and options. Reading or writing it directly breaks the TLS connection.
    pub fn get_ref(&self) -> &S {
        &self.transport
    }

    /// The negotiated application protocol (ALPN).
    pub fn alpn_protocol(&self) -> Option<Vec<u8>> {
        self.session.with(|state| state.tls.alpn_protocol().map(<[u8]>::to_vec))
    }

    /// The peer's certificates, its own first. `None` if it presented none, like most clients.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.session
            .with(|state| state.tls.peer_certificates().map(<[CertificateDer<'static>]>::to_vec))
    }

    /// The negotiated TLS version.
    pub fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.session.with(|state| state.tls.protocol_version())
    }

    /// The negotiated cipher suite.
    pub fn cipher_suite(&self) -> Option<SupportedCipherSuite> {
        self.session.with(|state| state.tls.negotiated_cipher_suite())
    }

    /// Whether an earlier session was resumed, which saves the certificates and most of the computation.
    pub fn is_resumed(&self) -> bool {
        self.session
            .with(|state| state.tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// The name requested by the client (SNI), on the server side.
    pub fn server_name(&self) -> Option<String> {
        self.session.with(|state| match &state.tls {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        })
    }

    /// Key material that only the two ends can derive (RFC 5705), to bind other protocols to this connection.
    pub fn export_keying_material<T: AsMut<[u8]>>(
        &self,
        output: T,
        label: &[u8],
        context: Option<&[u8]>,
    ) -> io::Result<T> {
        self.session
            .with(|state| state.tls.export_keying_material(output, label, context))
            .map_err(tls_error)
    }

    /// Requests new traffic keys, with the next write, flush or read; an error before TLS 1.3. rustls also does this
    /// itself, long before the limits of the old keys.
    pub fn refresh_traffic_keys(&self) -> io::Result<()> {
        self.session
            .with(|state| state.tls.refresh_traffic_keys())
            .map_err(tls_error)
    }
}

impl<S: fmt::Debug> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("version", &self.protocol_version())
            .field("unsent", &self.sender.buffer.queued_len())
            .field("transport", &self.transport)
            .finish()
    }
}

/// The bytes after the first `skip`, in at most `MAX_SLICES` slices.
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

/// The buffer of a `read_exact`. If the read ends early, it puts the bytes read so far back into the stream.
struct ExactRead<'a, B: IoBufMut> {
    leftover: &'a Cell<ManagedBuf>,
    len: usize,
    /// Present until `finish`.
    buf: Option<B>,
    filled: usize,
}

impl<B: IoBufMut> ExactRead<'_, B> {
    fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let buf = self.buf.take().expect("the buffer is present until `finish`");
        let mut part = buf.slice_mut(self.filled..self.len);
        let count = part.fill_from(bytes);
        self.buf = Some(part.into_inner());
        self.filled += count;
        count
    }

    fn put_back(&self) {
        if let Some(buf) = &self.buf
            && (1..self.len).contains(&self.filled)
        {
            // The earlier leftover is already part of these bytes: it was too short to fill the buffer.
            let bytes = buf.as_slice()[..self.filled].to_vec();
            self.leftover.set(ManagedBuf::from_heap(bytes));
        }
    }

    fn finish(mut self) -> B {
        self.put_back();
        self.buf.take().expect("the buffer is present until `finish`")
    }
}

impl<B: IoBufMut> Drop for ExactRead<'_, B> {
    fn drop(&mut self) {
        self.put_back();
    }
}
