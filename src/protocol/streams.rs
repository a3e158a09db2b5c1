//! The reader-and-writer style: a connection shared by a [`StreamReader`] and a [`StreamWriter`].
//!
//! Reading happens when it is awaited, in the task that awaits. Writing only fills the outbox; a task that starts with the
//! first write empties it. So a connection that is only read has no task of ours.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
#[cfg(unix)]
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use super::any_stream::{AnyStream, Ends};
use super::change_notify::ChangeNotify;
use super::link::Outgoing;
use super::reader::StreamReader;
use super::server::{Attached, Client, Ear, Serve, Server};
use super::write_buffer::WriteBuffer;
use super::writer::StreamWriter;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::io::ManagedBuf;
use crate::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use crate::net::{UnixListener, UnixStream};
use crate::task::{spawn, spawn_unchecked};

/// Connects, and gives a reader and a writer.
///
/// ```
/// use windlass::net::{open_connection, start_server};
/// windlass::run(async {
///     let server = start_server(
///         async |mut reader, writer| {
///             while let Ok(line) = reader.read_line().await
///                 && !line.is_empty()
///             {
///                 writer.write(line);
///                 writer.drain().await?;
///             }
///             Ok::<(), std::io::Error>(())
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
/// Dropping the future ends what is under way.
pub async fn open_connection(addr: impl ToSocketAddrs) -> io::Result<(StreamReader, StreamWriter)> {
    let stream = TcpStream::connect(addr).await?;
    Ok(pair(AnyStream::tcp(stream), |_| None))
}

/// Listens on every address that `addr` stands for, and has `handler` serve each connection, as a task of its own.
///
/// The connection is closed, when everything is sent, as soon as the handler has dropped its reader and writer: at the
/// latest when it is done. A handler may give nothing or a `Result<(), E>`; an error, or a panic, is told to the loop's
/// exception handler. See [`open_connection`] for an example.
pub async fn start_server<H, F>(handler: H, addr: impl ToSocketAddrs) -> io::Result<Server>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Ok(Server::new(Ear::at(addr).await?, serve_with(handler)))
}

/// The same over a Unix connection.
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
    Ok(pair(AnyStream::Unix(stream), |_| None))
}

/// The same at the path of a Unix socket. The file is made by this, and stays: see
/// [`UnixListener::bind`](crate::net::UnixListener::bind).
///
/// # Panics
///
/// Outside of a loop.
#[cfg(unix)]
#[track_caller]
pub fn start_unix_server<H, F>(handler: H, path: impl AsRef<Path>) -> io::Result<Server>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Ok(Server::new(
        vec![Ear::Unix(UnixListener::bind(path)?)],
        serve_with(handler),
    ))
}

fn serve_with<H, F>(mut handler: H) -> Box<Serve>
where
    H: FnMut(StreamReader, StreamWriter) -> F + 'static,
    F: Future<Output: HandlerResult> + 'static,
{
    Box::new(move |any_stream, server| {
        let (reader, writer) = pair(any_stream, |client| Some(server.attach(client)));
        let serving = handler(reader, writer);
        spawn(async move {
            if let Some(error) = serving.await.into_error() {
                report(Exception::error("a connection's handler failed", error));
            }
        });
    })
}

/// What a handler of [`start_server`] may give: nothing, or a `Result<(), E>`.
///
/// ```
/// use windlass::protocol::HandlerResult;
/// fn takes(_: impl HandlerResult) {}
/// takes(());
/// takes(Ok::<(), std::io::Error>(()));
/// takes(Err::<(), String>("no".into()));
/// ```
pub trait HandlerResult {
    #[doc(hidden)]
    fn into_error(self) -> Option<io::Error>;
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

/// A connection's two halves.
pub(super) fn pair(
    any_stream: AnyStream,
    attach: impl FnOnce(Weak<dyn Client>) -> Option<Attached>,
) -> (StreamReader, StreamWriter) {
    let conversation = Conversation::new(any_stream);
    let client: Weak<dyn Client> = Rc::downgrade(&conversation) as _;
    conversation.attached.set(attach(client));
    let writer = StreamWriter::new(conversation.clone());
    (StreamReader::new(conversation), writer)
}

/// What a connection's reader, writer, sending task and server share.
pub(super) struct Conversation {
    core: Rc<LoopCore>,
    pub(super) write_buffer: WriteBuffer,
    pub(super) ends: Ends,
    /// `None` once it is closed.
    any_stream: RefCell<Option<Rc<AnyStream>>>,
    sender: Cell<Sender>,
    closing: Cell<Closing>,
    has_reader: Cell<bool>,
    /// Why nothing can be sent any more.
    failure: RefCell<Option<io::Error>>,
    /// Rung when the outbox is down to its low mark, and when the connection has failed or is closed.
    pub(super) changed: ChangeNotify,
    /// Whoever waits in a read: woken when the connection is closed under it.
    reader: Cell<Option<Waker>>,
    attached: Cell<Option<Attached>>,
}

/// The sending task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// Nothing was ever written.
    NotStarted,
    Running,
    /// It has sent everything and there will be no more, or it has failed.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The writer is gone: when everything is sent the peer sees the end. The reader goes on.
    Writing,
    /// When everything is sent the connection is closed, whoever reads.
    Whole,
    Aborted,
}

impl Conversation {
    fn new(any_stream: AnyStream) -> Rc<Conversation> {
        Rc::new(Conversation {
            core: LoopCore::current("open_connection").rc(),
            write_buffer: WriteBuffer::new(),
            ends: any_stream.ends(),
            any_stream: RefCell::new(Some(Rc::new(any_stream))),
            sender: Cell::new(Sender::NotStarted),
            closing: Cell::new(Closing::No),
            has_reader: Cell::new(true),
            failure: RefCell::new(None),
            changed: ChangeNotify::default(),
            reader: Cell::new(None),
            attached: Cell::new(None),
        })
    }

    /// Receives once. When the connection was closed here, that is the end.
    pub(super) async fn receive(&self) -> io::Result<ManagedBuf> {
        let end = || Ok(ManagedBuf::from_heap(Vec::new()));
        let any_stream = self.any_stream.borrow().clone();
        let Some(any_stream) = any_stream else { return end() };
        let _forget = ForgetReader(&self.reader);
        let mut receiving = pin!(any_stream.receive());
        poll_fn(|cx| {
            if self.is_closed() {
                return Poll::Ready(end());
            }
            let received = receiving.as_mut().poll(cx);
            if received.is_pending() {
                let old = self.reader.replace(Some(cx.waker().clone()));
                drop(old);
                // Cloning and dropping wakers is foreign code, inside of which it may have been closed.
                if self.is_closed() {
                    return Poll::Ready(end());
                }
            }
            received
        })
        .await
    }

    pub(super) fn is_closed(&self) -> bool {
        self.any_stream.borrow().is_none()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.get() != Closing::No
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.closing.get() == Closing::Aborted
    }

    pub(super) fn failure(&self) -> Option<io::Error> {
        let failure = self.failure.borrow();
        failure.as_ref().map(|error| match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        })
    }

    /// Sees to it that what is in the outbox is sent.
    #[track_caller]
    pub(super) fn send(self: &Rc<Self>) {
        match self.sender.get() {
            Sender::NotStarted => {
                let any_stream = self.any_stream.borrow().clone();
                let Some(any_stream) = any_stream else { return };
                self.sender.set(Sender::Running);
                let sending = send_all(self.clone(), any_stream);
                // SAFETY: the future is `'static`: it owns its shares of everything.
                drop(unsafe { spawn_unchecked(&self.core, sending, None, Location::caller()) });
            }
            Sender::Running if self.write_buffer.has_events() => self.write_buffer.wake(),
            Sender::Running | Sender::Done => {}
        }
    }

    /// Closes the connection when everything is sent.
    pub(super) fn close(self: &Rc<Self>) {
        if matches!(self.closing.get(), Closing::No | Closing::Writing) {
            self.closing.set(Closing::Whole);
            self.write_buffer.close();
            self.close_or_send();
        }
    }

    /// Ends the connection now, with a reset.
    pub(super) fn abort(&self) {
        if self.is_closed() {
            return;
        }
        self.closing.set(Closing::Aborted);
        self.write_buffer.discard();
        if let Some(any_stream) = &*self.any_stream.borrow() {
            any_stream.end_with_reset();
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
        self.closing.set(Closing::Writing);
        self.write_buffer.put_end();
        self.write_buffer.close();
        if self.sender.get() != Sender::Done {
            self.send();
        }
    }

    pub(super) fn reader_dropped(self: &Rc<Self>) {
        self.has_reader.set(false);
        if self.closing.get() == Closing::Writing {
            self.closing.set(Closing::Whole);
            self.close_or_send();
        }
    }

    /// Closes if nothing is to be sent; otherwise the sending task does, when it is done.
    fn close_or_send(self: &Rc<Self>) {
        match self.sender.get() {
            Sender::NotStarted => self.finish(),
            Sender::Running => self.send(),
            Sender::Done => self.finish(),
        }
    }

    /// Lets the descriptor go, and tells everybody.
    fn finish(&self) {
        let any_stream = self.any_stream.take();
        drop(any_stream);
        // The sender may hold a share of it, and so may a read.
        self.write_buffer.wake();
        if let Some(reader) = self.reader.take() {
            guard("a waker", || reader.wake());
        }
        self.changed.ring();
        drop(self.attached.take());
    }
}

impl Client for Conversation {
    fn close_client(self: Rc<Self>) {
        Conversation::close(&self);
    }

    fn abort_client(self: Rc<Self>) {
        Conversation::abort(&self);
    }
}

/// The sending task: ends when the outbox is closed and empty, or when nothing can be sent any more.
async fn send_all(conversation: Rc<Conversation>, any_stream: Rc<AnyStream>) {
    let result = {
        let mut sending = pin!(
            conversation
                .write_buffer
                .send_all(&any_stream, || conversation.changed.ring())
        );
        poll_fn(|cx| {
            if conversation.is_closed() {
                return Poll::Ready(Ok(()));
            }
            conversation.write_buffer.set_waker(cx.waker());
            sending.as_mut().poll(cx)
        })
        .await
    };
    drop(any_stream);
    conversation.write_buffer.forget_waker();
    conversation.sender.set(Sender::Done);
    if let Err(error) = result {
        conversation.failure.replace(Some(error));
        conversation.write_buffer.discard();
    }
    match conversation.closing.get() {
        Closing::Whole => conversation.finish(),
        _ => conversation.changed.ring(),
    }
}

/// Takes back the waker of a read that is over.
struct ForgetReader<'a>(&'a Cell<Option<Waker>>);

impl Drop for ForgetReader<'_> {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
