//! Connections with a [`StreamReader`] and a [`StreamWriter`]: how they are opened, and the state that both share.
//!
//! A read runs in the task that awaits it. Writing only fills the write buffer; the first write starts a task that
//! sends it. So a connection that is only read needs no task.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
#[cfg(unix)]
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::any_stream::{AnyStream, StreamAddrs};
use super::condition::Condition;
use super::reader::StreamReader;
use super::server::{AnyListener, Client, Registration, Serve, Server, ServerState};
use super::writer::StreamWriter;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::io::ManagedBuf;
use crate::io::waker_cell::WakerCell;
use crate::io::write_buffer::{SendQueue, WriteBuffer};
#[cfg(unix)]
use crate::net::UnixStream;
use crate::net::{TcpStream, ToSocketAddrs};
use crate::on_drop::OnDrop;
use crate::task::{spawn, spawn_on};

/// Connects and returns a reader and a writer.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let server = start_server(
///         async |mut reader, writer| {
///             loop {
///                 let line = reader.read_line().await?;
///                 if line.is_empty() {
///                     return Ok::<(), std::io::Error>(());
///                 }
///                 writer.write(line);
///                 writer.drain().await?;
///             }
///         },
///         "127.0.0.1:0",
///     )
///     .await?;
///     let (mut reader, writer) = open_connection(server.local_addr()?).await?;
///     writer.write("hello\n");
///     writer.write("again\n");
///     assert_eq!(reader.read_line().await?, "hello\n");
///     assert_eq!(reader.read_line().await?, "again\n");
///     writer.close();
///     writer.wait_closed().await
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Dropping the future cancels the attempt.
pub async fn open_connection(addr: impl ToSocketAddrs) -> io::Result<(StreamReader, StreamWriter)> {
    let stream = TcpStream::connect(addr).await?;
    Ok(pair(stream.into(), None))
}

/// Listens on every address that `addr` resolves to, and runs `handler` in a task of its own for each connection.
///
/// The connection closes, after everything is sent, when the handler has dropped its reader and writer. The handler
/// returns nothing or a `Result<(), E>`; an error or a panic is reported to the loop's exception handler. See
/// [`open_connection`] for an example.
pub async fn start_server<H, F>(handler: H, addr: impl ToSocketAddrs) -> io::Result<Server>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Ok(Server::new(AnyListener::bind(addr).await?, serve_with(handler)))
}

/// Like [`open_connection`], over a Unix socket.
///
/// ```
/// use windlass::protocol::{open_unix_connection, start_unix_server};
/// let path = std::env::temp_dir().join(format!("windlass-doc-streams-{}.sock", std::process::id()));
/// windlass::run(async {
///     let _server = start_unix_server(async |_, writer| writer.write("welcome\n"), &path)?;
///     let (mut reader, _writer) = open_unix_connection(&path).await?;
///     assert_eq!(reader.read_line().await?, "welcome\n");
///     Ok::<(), std::io::Error>(())
/// })??;
/// std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(unix)]
pub async fn open_unix_connection(path: impl AsRef<Path>) -> io::Result<(StreamReader, StreamWriter)> {
    let stream = UnixStream::connect(path).await?;
    Ok(pair(stream.into(), None))
}

/// Like [`start_server`], on a Unix socket path. This creates the socket file and does not remove it: see
/// [`UnixListener::bind`](crate::net::UnixListener::bind).
///
/// # Panics
///
/// Outside a loop.
#[cfg(unix)]
#[track_caller]
pub fn start_unix_server<H, F>(handler: H, path: impl AsRef<Path>) -> io::Result<Server>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Ok(Server::new(AnyListener::bind_unix(path)?, serve_with(handler)))
}

fn serve_with<H, F>(mut handler: H) -> Box<Serve>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Box::new(move |stream, server| {
        let (reader, writer) = pair(stream, Some(server));
        let serving = handler(reader, writer);
        spawn(async move {
            if let Some(error) = serving.await.into_error() {
                report(Exception::error("a connection handler failed", error));
            }
        });
    })
}

/// The return type of a [`start_server`] handler: nothing, or a `Result<(), E>`.
///
/// ```
/// use windlass::protocol::HandlerResult;
/// fn takes(_: impl HandlerResult) {}
/// takes(());
/// takes(Ok::<(), std::io::Error>(()));
/// takes(Err::<(), String>("no".into()));
/// ```
pub trait HandlerResult: sealed::Sealed {
    #[doc(hidden)]
    fn into_error(self) -> Option<io::Error>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}

impl HandlerResult for () {
    fn into_error(self) -> Option<io::Error> {
        None
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> HandlerResult for Result<(), E> {
    fn into_error(self) -> Option<io::Error> {
        let error: Box<dyn std::error::Error + Send + Sync> = self.err()?.into();
        Some(match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        })
    }
}

/// Creates both halves of a connection.
fn pair(stream: AnyStream, server: Option<Rc<ServerState>>) -> (StreamReader, StreamWriter) {
    let shared = SharedStream::new(stream);
    let registration = server.map(|server| server.register(Rc::downgrade(&shared) as _));
    shared.registration.set(registration);
    let writer = StreamWriter { shared: shared.clone() };
    (StreamReader::new(shared), writer)
}

/// The state shared by a connection's reader, writer, sending task and server.
pub(super) struct SharedStream {
    core: Rc<LoopCore>,
    pub(super) write_buffer: WriteBuffer,
    pub(super) addrs: StreamAddrs,
    /// `None` once closed.
    stream: RefCell<Option<Rc<AnyStream>>>,
    sender: Cell<SenderState>,
    /// The waker of the sending task.
    sender_waker: WakerCell,
    closing: Cell<Closing>,
    has_reader: Cell<bool>,
    /// Notified at the low watermark, and when the connection has failed or is closed.
    pub(super) changed: Condition,
    /// The waker of the pending read, woken when the connection is closed locally.
    reader: WakerCell,
    registration: Cell<Option<Registration>>,
}

/// The state of the sending task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderState {
    /// Nothing was written yet.
    NotStarted,
    Running,
    /// It sent everything after the last write, or failed.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The writer was dropped: shut down the write side after the last byte. The reader stays usable.
    WriteSide,
    /// Close both directions after the last byte.
    Both,
    Aborted,
}

impl SharedStream {
    fn new(stream: AnyStream) -> Rc<SharedStream> {
        Rc::new(SharedStream {
            core: LoopCore::current("open_connection").rc(),
            write_buffer: WriteBuffer::default(),
            addrs: stream.addrs(),
            stream: RefCell::new(Some(Rc::new(stream))),
            sender: Cell::new(SenderState::NotStarted),
            sender_waker: WakerCell::default(),
            closing: Cell::new(Closing::No),
            has_reader: Cell::new(true),
            changed: Condition::default(),
            reader: WakerCell::default(),
            registration: Cell::new(None),
        })
    }

    /// Receives once. Returns EOF if the connection was closed locally.
    pub(super) async fn receive(&self) -> io::Result<ManagedBuf> {
        let end = || Ok(ManagedBuf::default());
        let stream = self.stream.borrow().clone();
        let Some(stream) = stream else { return end() };
        let _forget = OnDrop(|| self.reader.clear());
        let mut receiving = pin!(stream.receive());
        poll_fn(|cx| {
            if self.is_closed() {
                return Poll::Ready(end());
            }
            let received = receiving.as_mut().poll(cx);
            // A waker's clone and drop are user code, which may have closed the connection.
            if received.is_pending() && self.reader.set(cx.waker()) && self.is_closed() {
                return Poll::Ready(end());
            }
            received
        })
        .await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.stream.borrow().is_none()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.get() != Closing::No
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.closing.get() == Closing::Aborted
    }

    /// Starts or wakes the sending task.
    #[track_caller]
    pub(super) fn send(self: &Rc<Self>) {
        match self.sender.get() {
            SenderState::NotStarted => {
                let stream = self.stream.borrow().clone();
                let Some(stream) = stream else { return };
                self.sender.set(SenderState::Running);
                let sending = send_all(self.clone(), stream);
                drop(spawn_on(&self.core, sending, None, Location::caller()));
            }
            SenderState::Running if self.write_buffer.needs_wake() => self.sender_waker.wake(),
            SenderState::Running | SenderState::Done => {}
        }
    }

    /// Closes both directions when everything is sent.
    pub(super) fn close(self: &Rc<Self>) {
        if matches!(self.closing.get(), Closing::No | Closing::WriteSide) {
            self.closing.set(Closing::Both);
            self.write_buffer.close();
            self.close_or_send();
        }
    }

    /// Resets the connection immediately.
    pub(super) fn abort(&self) {
        if self.is_closed() {
            return;
        }
        self.closing.set(Closing::Aborted);
        self.write_buffer.discard();
        if let Some(stream) = &*self.stream.borrow() {
            stream.reset_on_close();
        }
        self.finish();
    }

    pub(super) fn writer_dropped(self: &Rc<Self>) {
        if self.is_closing() {
            return;
        }
        if !self.has_reader.get() {
            return self.close();
        }
        self.closing.set(Closing::WriteSide);
        self.write_buffer.put_eof();
        self.write_buffer.close();
        if self.sender.get() != SenderState::Done {
            self.send();
        }
    }

    pub(super) fn reader_dropped(self: &Rc<Self>) {
        self.has_reader.set(false);
        if self.closing.get() == Closing::WriteSide {
            self.closing.set(Closing::Both);
            self.close_or_send();
        }
    }

    /// Closes if nothing is left to send; otherwise the sending task does so when it ends.
    fn close_or_send(self: &Rc<Self>) {
        match self.sender.get() {
            SenderState::NotStarted | SenderState::Done => self.finish(),
            SenderState::Running => self.send(),
        }
    }

    /// Releases the descriptor and wakes every waiter.
    fn finish(&self) {
        let stream = self.stream.take();
        drop(stream);
        // The sending task and a pending read may still hold the stream.
        self.sender_waker.wake();
        if let Some(reader) = self.reader.take() {
            guard("a waker", || reader.wake());
        }
        self.changed.notify();
        drop(self.registration.take());
    }
}

impl Client for SharedStream {
    fn close_client(self: Rc<Self>) {
        SharedStream::close(&self);
    }

    fn abort_client(self: Rc<Self>) {
        SharedStream::abort(&self);
    }
}

/// The sending task: ends when the write buffer is closed and empty, or when sending fails.
async fn send_all(shared: Rc<SharedStream>, stream: Rc<AnyStream>) {
    let result = {
        let mut sending = pin!(shared.write_buffer.send_all(&*stream, || shared.changed.notify()));
        poll_fn(|cx| {
            if shared.is_closed() {
                return Poll::Ready(Ok(()));
            }
            shared.sender_waker.set(cx.waker());
            sending.as_mut().poll(cx)
        })
        .await
    };
    drop(stream);
    shared.sender_waker.clear();
    shared.sender.set(SenderState::Done);
    if let Err(error) = result {
        shared.write_buffer.fail(error);
    }
    match shared.closing.get() {
        Closing::Both => shared.finish(),
        _ => shared.changed.notify(),
    }
}
