//! Subprocesses as callbacks.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::rc::Rc;
use std::task::Poll;

use super::ProtocolRef;
use super::any_stream::AnyStream;
use super::link::{Callee, Farewell, Link, Outgoing, Presence};
use super::payload::Payload;
use super::write_buffer::WriteBuffer;
use crate::event_loop::exception::{Exception, report};
use crate::inflight::stream::ByteStream;
use crate::io::ManagedBuf;
use crate::process::{Child, Command};
#[cfg(unix)]
use crate::signal::SignalKind;
use crate::task::yield_now;

/// What happens to one subprocess. Every method has a default that does nothing.
///
/// Pipes are known by their numbers in the child: 0 is its input, 1 its output, 2 its errors. `connection_made` comes first
/// and once; `connection_lost` comes last and once, when the process has ended and every pipe is closed. The end of the
/// process and the last bytes of its pipes come in whatever order they happen.
///
/// ```
/// use windlass::process::Command;
/// use windlass::protocol::{SubprocessProtocol, SubprocessTransport, subprocess_exec};
///
/// struct Cat {
///     output: Vec<u8>,
///     done: windlass::Promise<()>,
/// }
///
/// impl SubprocessProtocol for Cat {
///     fn connection_made(&mut self, transport: SubprocessTransport) {
///         transport.write("to the cat and back");
///         transport.write_eof();
///     }
///     fn pipe_data_received(&mut self, fd: i32, data: &[u8]) {
///         assert_eq!(fd, 1);
///         self.output.extend(data);
///     }
///     fn connection_lost(&mut self, _error: Option<std::io::Error>) {
///         let _ = self.done.resolve(());
///     }
/// }
///
/// windlass::run(async {
///     let (done, is_done) = windlass::promise();
///     let cat = || Cat { output: Vec::new(), done };
///     let (transport, cat) = subprocess_exec(cat, &mut Command::new("cat")).await?;
///     is_done.await.unwrap();
///     assert!(transport.exit_status().unwrap().success());
///     assert_eq!(cat.with(|cat| cat.output.clone()), b"to the cat and back");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait SubprocessProtocol {
    /// The process runs, and this is the way to it. Comes first, once.
    fn connection_made(&mut self, transport: SubprocessTransport) {
        let _ = transport;
    }

    /// The child has written something.
    fn pipe_data_received(&mut self, fd: i32, data: &[u8]) {
        let _ = (fd, data);
    }

    /// A pipe is closed: by the child, by us, or because it failed.
    fn pipe_connection_lost(&mut self, fd: i32, error: Option<io::Error>) {
        let _ = (fd, error);
    }

    /// The process has ended: see [`SubprocessTransport::exit_status`]. Bytes that it wrote may still come.
    fn process_exited(&mut self) {}

    /// The process has ended and every pipe is closed. Comes last, once; with an error if a callback panicked, or if the
    /// process could not be waited for.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// More bytes than the high mark wait to be written to the child.
    fn pause_writing(&mut self) {}

    /// No more bytes than the low mark wait to be written to the child.
    fn resume_writing(&mut self) {}
}

impl Callee for dyn SubprocessProtocol {
    fn pause_writing(&mut self) {
        SubprocessProtocol::pause_writing(self);
    }
    fn resume_writing(&mut self) {
        SubprocessProtocol::resume_writing(self);
    }
    fn connection_lost(&mut self, error: Option<io::Error>) {
        SubprocessProtocol::connection_lost(self, error);
    }
}

type Supervised = Link<dyn SubprocessProtocol, WriteBuffer, Facts>;

/// Something to be done to the child.
type Order = Box<dyn FnOnce(&mut Child) -> io::Result<()>>;

struct Facts {
    pid: u32,
    status: Cell<Option<ExitStatus>>,
    /// What is still to be done to the child: signals that are to be sent, its end.
    orders: RefCell<Vec<Order>>,
    /// Pipes that are open, and one for the process.
    open: Cell<usize>,
    is_closing: Cell<bool>,
}

/// A subprocess, as its protocol sees it. A cheap handle: clones are the same process. See [`SubprocessProtocol`].
///
/// Every call returns at once and calls nobody back; what it causes comes through the loop, later. When the last handle is
/// gone the process runs on, and its protocol is called on.
///
/// ```
/// use windlass::process::Command;
/// use windlass::protocol::{SubprocessProtocol, subprocess_exec};
///
/// struct Mute;
///
/// impl SubprocessProtocol for Mute {}
///
/// windlass::run(async {
///     let (transport, _) = subprocess_exec(|| Mute, Command::new("sleep").arg("1000")).await?;
///     assert!(transport.pid() > 0 && transport.exit_status().is_none());
///     transport.terminate();
///     while transport.exit_status().is_none() {
///         windlass::time::sleep(std::time::Duration::from_millis(1)).await;
///     }
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SubprocessTransport {
    link: Rc<Supervised>,
}

impl SubprocessTransport {
    /// The process's number. It may be another's once the process has ended.
    pub fn pid(&self) -> u32 {
        self.link.about.pid
    }

    /// How the process has ended; `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.link.about.status.get()
    }

    /// Queues bytes for the child's input: see [`Transport::write`](super::Transport::write). Without a pipe there, or once
    /// it is closed, they are dropped.
    pub fn write(&self, data: impl Payload) {
        self.link.write_buffer.put(data);
        self.link.wake_sender();
    }

    /// Closes the child's input once everything is written.
    pub fn write_eof(&self) {
        self.link.write_buffer.close();
        self.link.wake_sender();
    }

    /// Ends the process: `SIGKILL`, `TerminateProcess`. In the next turn; it does nothing once the process has ended.
    pub fn kill(&self) {
        self.order(Child::start_kill);
    }

    /// Has something done to the child in the next turn, if it still runs. If that fails, the loop's exception handler is told.
    fn order(&self, order: impl FnOnce(&mut Child) -> io::Result<()> + 'static) {
        if self.exit_status().is_none() && !self.link.is_lost() {
            self.link.about.orders.borrow_mut().push(Box::new(order));
            self.link.write_buffer.wake();
        }
    }

    /// Closes the pipes, and kills the process if it still runs.
    pub fn close(&self) {
        if !self.link.about.is_closing.replace(true) {
            self.link.write_buffer.discard();
            self.kill();
            // A pause ends, or the pipes would never.
            self.link.is_reading.set(true);
            self.link.write_buffer.wake();
        }
    }

    /// Whether the transport is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.link.about.is_closing.get() || self.link.is_closing()
    }

    /// Stops reading what the child writes; when the pipes are full it has to wait.
    pub fn pause_reading(&self) {
        self.link.is_reading.set(self.is_closing());
    }

    /// Reads again.
    pub fn resume_reading(&self) {
        if !self.link.is_reading.replace(true) {
            self.link.write_buffer.wake();
        }
    }

    /// Sets the marks between which writing is paused and resumed: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.link.write_buffer.watermarks.set_limits(high.into(), low.into())?;
        self.link.wake_sender();
        Ok(())
    }

    /// How many bytes for the child's input the kernel has not taken yet.
    pub fn get_write_buffer_size(&self) -> usize {
        self.link.write_buffer.watermarks.size()
    }
}

/// What Unix has besides.
#[cfg(unix)]
impl SubprocessTransport {
    /// Sends a signal, in the next turn. Does nothing once the process has ended. If it cannot be sent, the loop's exception
    /// handler is told.
    pub fn send_signal(&self, kind: SignalKind) {
        self.order(move |child| child.send_signal(kind));
    }

    /// Asks the process to end: SIGTERM.
    pub fn terminate(&self) {
        self.send_signal(SignalKind::terminate());
    }
}

/// Windows has no signals to send.
#[cfg(windows)]
impl SubprocessTransport {
    /// Ends the process, as [`kill`](SubprocessTransport::kill) does: Windows has no request to end that every process hears.
    pub fn terminate(&self) {
        self.kill();
    }

    /// Sends Ctrl-Break, in the next turn: see [`Child::send_ctrl_break`]. Does nothing once the process has ended. If it cannot
    /// be sent, the loop's exception handler is told.
    pub fn send_ctrl_break(&self) {
        self.order(|child| child.send_ctrl_break());
    }
}

impl fmt::Debug for SubprocessTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubprocessTransport")
            .field("pid", &self.pid())
            .field("exit_status", &self.exit_status())
            .field("closing", &self.is_closing())
            .finish()
    }
}

/// Starts a process, with a protocol that `factory` makes. When this returns,
/// [`connection_made`](SubprocessProtocol::connection_made) was called.
///
/// As in asyncio, those of the child's three streams of which the command says nothing become pipes. Starting blocks: see
/// [`Command::spawn`]. Dropping the future kills the process.
pub async fn subprocess_exec<P: SubprocessProtocol + 'static>(
    factory: impl FnOnce() -> P,
    command: &mut Command,
) -> io::Result<(SubprocessTransport, ProtocolRef<P>)> {
    struct CloseOnDrop<'a>(&'a SubprocessTransport);

    impl Drop for CloseOnDrop<'_> {
        fn drop(&mut self) {
            self.0.close();
        }
    }

    let child = command.spawn_piped()?;
    let pipes = [child.stdin.is_some(), child.stdout.is_some(), child.stderr.is_some()];
    let protocol = Rc::new(RefCell::new(factory()));
    let facts = Facts {
        pid: child.id().unwrap_or_default(),
        status: Cell::new(None),
        orders: RefCell::default(),
        open: Cell::new(1 + pipes.iter().filter(|is_open| **is_open).count()),
        is_closing: Cell::new(false),
    };
    let link: Rc<Supervised> = Rc::new(Link::new(protocol.clone(), WriteBuffer::new(), facts));
    let presence = Presence {
        link: link.clone(),
        _attached: None,
    };
    crate::task::spawn(supervise(presence, child));
    let transport = SubprocessTransport { link };
    let close = CloseOnDrop(&transport);
    let link = &transport.link;
    link.changed.until(|| link.is_made() || link.is_lost()).await;
    std::mem::forget(close);
    Ok((transport, ProtocolRef(protocol)))
}

async fn supervise(presence: Presence<dyn SubprocessProtocol, WriteBuffer, Facts>, mut child: Child) {
    let link = &presence.link;
    let stdin = child.stdin.take().map(|stdin| AnyStream::Pipe(stdin.into_sender()));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reason = {
        let mut sending = pin!(feed(link, stdin));
        let mut receiving = pin!(async {
            let output = read_pipe(link, 1, stdout, |pipe| pipe.bytes());
            let errors = read_pipe(link, 2, stderr, |pipe| pipe.bytes());
            let (mut output, mut errors, mut waiting) = (pin!(output), pin!(errors), pin!(wait(link, &mut child)));
            poll_fn(|cx| {
                // None of them ever ends.
                let _ = output.as_mut().poll(cx);
                let _ = errors.as_mut().poll(cx);
                let _ = waiting.as_mut().poll(cx);
                Poll::<()>::Pending
            })
            .await;
        });
        let made = || {
            let transport = SubprocessTransport { link: link.clone() };
            link.call("connection_made", |protocol| protocol.connection_made(transport));
        };
        poll_fn(|cx| link.poll(cx, made, sending.as_mut(), receiving.as_mut())).await
    };
    if link.about.status.get().is_none() {
        // A callback has panicked.
        let _ = child.start_kill();
    }
    link.report_lost(reason);
}

impl Supervised {
    /// A pipe is closed, or the process has ended. After the last of them the line is over.
    fn one_less(&self) {
        self.about.open.set(self.about.open.get() - 1);
        if self.about.open.get() == 0 {
            self.end(None, Farewell::Close);
        }
    }
}

/// Writes to the child's input what comes, until it is to be closed, or nobody reads it any more.
async fn feed(link: &Supervised, stdin: Option<AnyStream>) -> io::Result<()> {
    let Some(stdin) = stdin else {
        link.write_buffer.discard();
        return Ok(());
    };
    let result = {
        let mut sending = pin!(link.write_buffer.send_all(&stdin, || {}));
        poll_fn(|cx| match link.about.status.get() {
            Some(_) => Poll::Ready(Ok(())),
            None => sending.as_mut().poll(cx),
        })
        .await
    };
    drop(stdin);
    // What the last bytes have changed comes before their pipe's end.
    link.report_flow();
    link.write_buffer.discard();
    link.call("pipe_connection_lost", |protocol| {
        protocol.pipe_connection_lost(0, result.err())
    });
    link.one_less();
    Ok(())
}

/// Calls the protocol with what the child writes, and at the end.
async fn read_pipe<T>(link: &Supervised, fd: i32, pipe: Option<T>, bytes_of: fn(&T) -> &ByteStream) {
    let Some(pipe) = pipe else { return pending().await };
    let result = loop {
        link.until_reading().await;
        let received = {
            let mut reading = pin!(bytes_of(&pipe).read_managed());
            // Closing does not wait for a grandchild that has the pipe too.
            poll_fn(|cx| match link.about.is_closing.get() {
                true => Poll::Ready(Ok(ManagedBuf::from_heap(Vec::new()))),
                false => reading.as_mut().poll(cx),
            })
            .await
        };
        while link.has_delivered() || !link.is_reading.get() {
            match link.has_delivered() {
                true => yield_now().await,
                false => link.until_reading().await,
            }
        }
        link.note_delivery();
        match received {
            Ok(_) if link.about.is_closing.get() => break Ok(ManagedBuf::from_heap(Vec::new())),
            Ok(bytes) if !bytes.is_empty() => {
                link.call("pipe_data_received", |protocol| protocol.pipe_data_received(fd, &bytes));
            }
            end => break end,
        }
    };
    drop(pipe);
    link.call("pipe_connection_lost", |protocol| {
        protocol.pipe_connection_lost(fd, result.err())
    });
    link.one_less();
    pending().await
}

/// Waits for the process's end, and carries orders out until then.
async fn wait(link: &Supervised, child: &mut Child) {
    let ended = loop {
        let ended = {
            let mut waiting = pin!(child.wait());
            poll_fn(|cx| match link.about.orders.borrow().is_empty() {
                true => waiting.as_mut().poll(cx).map(Some),
                false => Poll::Ready(None),
            })
            .await
        };
        if let Some(ended) = ended {
            break ended;
        }
        let orders = link.about.orders.take();
        for order in orders {
            if let Err(error) = order(child) {
                report(Exception::error(
                    format!("a signal for process {}", link.about.pid),
                    error,
                ));
            }
        }
    };
    match ended {
        Ok(status) => {
            link.about.status.set(Some(status));
            link.call("process_exited", |protocol| protocol.process_exited());
            link.one_less();
            // The input's pipe closes too.
            link.write_buffer.wake();
        }
        Err(error) => link.end(Some(error), Farewell::Close),
    }
    pending().await
}
