//! Subprocesses with callbacks.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::rc::Rc;
use std::task::Poll;

use super::any_stream::AnyStream;
use super::transport_state::{BaseProtocol, CloseMode, TaskGuard, TransportState};
use super::{Payload, ProtocolRef};
use crate::event_loop::exception::{Exception, report};
use crate::io::ManagedBuf;
use crate::io::pipe::Receiver;
use crate::io::write_buffer::{SendQueue, WriteBuffer};
use crate::process::{Child, ChildStderr, ChildStdout, Command};
#[cfg(unix)]
use crate::signal::SignalKind;

/// Callbacks for the events of one subprocess. Every method has a default that does nothing.
///
/// Pipes are identified by their descriptor in the child: 0 is stdin, 1 stdout, 2 stderr. `connection_made` is called
/// first and once. `connection_lost` is called last and once, when the process has exited and every pipe is closed. The
/// exit and the last bytes of the pipes may come in any order.
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
    /// Called first, once: the process is running.
    fn connection_made(&mut self, transport: SubprocessTransport) {
        let _ = transport;
    }

    /// Called with output of the child.
    fn pipe_data_received(&mut self, fd: i32, data: &[u8]) {
        let _ = (fd, data);
    }

    /// Called when a pipe is closed: by the child, by the transport, or after an error.
    fn pipe_connection_lost(&mut self, fd: i32, error: Option<io::Error>) {
        let _ = (fd, error);
    }

    /// Called when the process has exited: see [`SubprocessTransport::exit_status`]. Remaining output may still follow.
    fn process_exited(&mut self) {}

    /// Called last, once: the process has exited and every pipe is closed. `error` is set if a callback panicked or
    /// waiting for the process failed.
    fn connection_lost(&mut self, error: Option<io::Error>) {
        let _ = error;
    }

    /// Called when the stdin write buffer has grown above the high watermark.
    fn pause_writing(&mut self) {}

    /// Called when the stdin write buffer has drained to the low watermark.
    fn resume_writing(&mut self) {}
}

impl BaseProtocol for dyn SubprocessProtocol {
    type Queue = WriteBuffer;
    type Info = ProcessInfo;

    fn connection_made(&mut self, state: Rc<SubprocessState>) {
        SubprocessProtocol::connection_made(self, SubprocessTransport { state });
    }
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

type SubprocessState = TransportState<dyn SubprocessProtocol>;

/// An operation that needs `&mut Child`, run by the task.
type ChildAction = Box<dyn FnOnce(&mut Child) -> io::Result<()>>;

pub(super) struct ProcessInfo {
    pid: u32,
    status: Cell<Option<ExitStatus>>,
    /// Pending operations, such as signals.
    actions: RefCell<Vec<ChildAction>>,
    /// The number of open pipes, plus one for the process.
    open_count: Cell<usize>,
    is_closing: Cell<bool>,
}

/// A handle to a subprocess, through which its [`SubprocessProtocol`] acts. Clones refer to the same process.
///
/// Every call returns at once and invokes no callback. The loop delivers the effects later. When the last handle is
/// dropped, the process and the callbacks continue.
///
/// ```
/// use windlass::process::Command;
/// use windlass::protocol::{SubprocessProtocol, subprocess_exec};
///
/// struct Silent;
///
/// impl SubprocessProtocol for Silent {}
///
/// windlass::run(async {
///     let (transport, _) = subprocess_exec(|| Silent, Command::new("sleep").arg("1000")).await?;
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
    state: Rc<SubprocessState>,
}

impl SubprocessTransport {
    /// The process id. The system may reuse it after the process has exited.
    pub fn pid(&self) -> u32 {
        self.state.info.pid
    }

    /// The exit status; `None` while the process runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.state.info.status.get()
    }

    /// Queues bytes for the child's stdin: see [`Transport::write`](super::Transport::write). They are discarded if
    /// stdin is not a pipe or is closed.
    pub fn write(&self, data: impl Payload) {
        self.state.write_buffer.put(data);
        self.state.wake_sender();
    }

    /// Closes the child's stdin once everything is written.
    pub fn write_eof(&self) {
        self.state.write_buffer.close();
        self.state.wake_sender();
    }

    /// Kills the process (`SIGKILL`, `TerminateProcess`) in the next turn. Does nothing after its exit.
    pub fn kill(&self) {
        self.queue_action(Child::start_kill);
    }

    /// Runs `action` on the child in the next turn, if it still runs. An error is reported to the loop's exception
    /// handler.
    fn queue_action(&self, action: impl FnOnce(&mut Child) -> io::Result<()> + 'static) {
        if self.exit_status().is_none() && !self.state.is_lost.get() {
            self.state.info.actions.borrow_mut().push(Box::new(action));
            self.state.waker.wake();
        }
    }

    /// Closes the pipes, and kills the process if it still runs.
    pub fn close(&self) {
        if !self.state.info.is_closing.replace(true) {
            self.state.write_buffer.discard();
            self.kill();
            // While paused, the pipe readers would not see the close.
            self.state.is_reading.set(true);
            self.state.waker.wake();
        }
    }

    /// Whether the transport is closing or closed.
    pub fn is_closing(&self) -> bool {
        self.state.info.is_closing.get() || self.state.is_closing()
    }

    /// Stops reading the child's output. Once the pipes are full, the child has to wait.
    pub fn pause_reading(&self) {
        self.state.is_reading.set(self.is_closing());
    }

    /// Resumes reading.
    pub fn resume_reading(&self) {
        self.state.resume_reading();
    }

    /// Sets the watermarks of the stdin write buffer: see
    /// [`Transport::set_write_buffer_limits`](super::Transport::set_write_buffer_limits).
    pub fn set_write_buffer_limits(
        &self,
        high: impl Into<Option<usize>>,
        low: impl Into<Option<usize>>,
    ) -> io::Result<()> {
        self.state.set_limits(high.into(), low.into())
    }

    /// The number of stdin bytes not yet accepted by the kernel.
    pub fn get_write_buffer_size(&self) -> usize {
        self.state.write_buffer.watermarks.size()
    }
}

/// Unix only.
#[cfg(unix)]
impl SubprocessTransport {
    /// Sends a signal in the next turn. Does nothing after the process has exited. A failure is reported to the loop's
    /// exception handler.
    pub fn send_signal(&self, kind: SignalKind) {
        self.queue_action(move |child| child.send_signal(kind));
    }

    /// Asks the process to terminate: SIGTERM.
    pub fn terminate(&self) {
        self.send_signal(SignalKind::terminate());
    }
}

/// Windows only.
#[cfg(windows)]
impl SubprocessTransport {
    /// Kills the process, like [`kill`](SubprocessTransport::kill): Windows has no general request to terminate.
    pub fn terminate(&self) {
        self.kill();
    }

    /// Sends Ctrl-Break in the next turn: see [`Child::send_ctrl_break`]. Does nothing after the process has exited. A
    /// failure is reported to the loop's exception handler.
    pub fn send_ctrl_break(&self) {
        self.queue_action(|child| child.send_ctrl_break());
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

/// Starts a process and attaches the protocol made by `factory`. When this returns,
/// [`connection_made`](SubprocessProtocol::connection_made) has been called.
///
/// As in asyncio, standard streams that the command does not configure become pipes. Starting the process blocks: see
/// [`Command::spawn`]. Dropping the future kills the process.
pub async fn subprocess_exec<P: SubprocessProtocol + 'static>(
    factory: impl FnOnce() -> P,
    command: &mut Command,
) -> io::Result<(SubprocessTransport, ProtocolRef<P>)> {
    let child = command.spawn_piped()?;
    let pipes = [child.stdin.is_some(), child.stdout.is_some(), child.stderr.is_some()];
    let protocol = Rc::new(RefCell::new(factory()));
    let info = ProcessInfo {
        pid: child.id().unwrap_or_default(),
        status: Cell::new(None),
        actions: RefCell::default(),
        open_count: Cell::new(1 + pipes.iter().filter(|is_open| **is_open).count()),
        is_closing: Cell::new(false),
    };
    let state = SubprocessState::new(protocol.clone(), info);
    let guard = TaskGuard {
        state: state.clone(),
        _registration: None,
    };
    crate::task::spawn(run_subprocess(guard, child));
    let transport = SubprocessTransport { state };
    transport.state.wait_made(|| transport.close()).await;
    Ok((transport, ProtocolRef(protocol)))
}

async fn run_subprocess(guard: TaskGuard<dyn SubprocessProtocol>, mut child: Child) {
    let state = &guard.state;
    let stdin = child.stdin.take().map(|stdin| AnyStream::Pipe(stdin.into_sender()));
    let stdout = child.stdout.take().map(ChildStdout::into_receiver);
    let stderr = child.stderr.take().map(ChildStderr::into_receiver);
    let receiving = async {
        let (output, errors) = (read_pipe(state, 1, stdout), read_pipe(state, 2, stderr));
        let (mut output, mut errors, mut waiting) = (pin!(output), pin!(errors), pin!(wait(state, &mut child)));
        poll_fn(|cx| {
            // None of them ever completes.
            let _ = output.as_mut().poll(cx);
            let _ = errors.as_mut().poll(cx);
            let _ = waiting.as_mut().poll(cx);
            Poll::<()>::Pending
        })
        .await;
    };
    let reason = state.run(pin!(write_stdin(state, stdin)), pin!(receiving)).await;
    if state.info.status.get().is_none() {
        // A callback panicked.
        let _ = child.start_kill();
    }
    state.report_lost(reason);
}

impl SubprocessState {
    /// A pipe was closed or the process has exited. After the last of these, the transport ends.
    fn note_closed(&self) {
        self.info.open_count.set(self.info.open_count.get() - 1);
        if self.info.open_count.get() == 0 {
            self.force_close(None, CloseMode::Normal);
        }
    }
}

/// Writes queued bytes to stdin until it is closed, by the transport or by the child's exit.
async fn write_stdin(state: &SubprocessState, stdin: Option<AnyStream>) -> io::Result<()> {
    let Some(stdin) = stdin else {
        state.write_buffer.discard();
        return Ok(());
    };
    let result = {
        let mut sending = pin!(state.write_buffer.send_all(&stdin, || {}));
        poll_fn(|cx| match state.info.status.get() {
            Some(_) => Poll::Ready(Ok(())),
            None => sending.as_mut().poll(cx),
        })
        .await
    };
    drop(stdin);
    // Pause changes caused by the last bytes precede the end of their pipe.
    state.report_pause();
    state.write_buffer.discard();
    state.call("pipe_connection_lost", |protocol| {
        protocol.pipe_connection_lost(0, result.err())
    });
    state.note_closed();
    Ok(())
}

/// Delivers the child's output and its EOF to the protocol.
async fn read_pipe(state: &SubprocessState, fd: i32, pipe: Option<Receiver>) {
    let Some(pipe) = pipe else { return pending().await };
    let result = loop {
        state.wait_reading().await;
        let mut received = {
            let mut reading = pin!(pipe.read_managed());
            // Closing does not wait for a grandchild that has inherited the pipe.
            poll_fn(|cx| match state.info.is_closing.get() {
                true => Poll::Ready(Ok(ManagedBuf::default())),
                false => reading.as_mut().poll(cx),
            })
            .await
        };
        state.begin_delivery(&mut received).await;
        match received {
            Ok(_) if state.info.is_closing.get() => break Ok(ManagedBuf::default()),
            Ok(bytes) if !bytes.is_empty() => {
                state.call("pipe_data_received", |protocol| protocol.pipe_data_received(fd, &bytes));
            }
            end => break end,
        }
    };
    drop(pipe);
    state.call("pipe_connection_lost", |protocol| {
        protocol.pipe_connection_lost(fd, result.err())
    });
    state.note_closed();
    pending().await
}

/// Waits for the process to exit, and runs queued actions until then.
async fn wait(state: &SubprocessState, child: &mut Child) {
    let ended = loop {
        let ended = {
            let mut waiting = pin!(child.wait());
            poll_fn(|cx| match state.info.actions.borrow().is_empty() {
                true => waiting.as_mut().poll(cx).map(Some),
                false => Poll::Ready(None),
            })
            .await
        };
        if let Some(ended) = ended {
            break ended;
        }
        let actions = state.info.actions.take();
        for action in actions {
            if let Err(error) = action(child) {
                report(Exception::error(
                    format!("failed to signal process {}", state.info.pid),
                    error,
                ));
            }
        }
    };
    match ended {
        Ok(status) => {
            state.info.status.set(Some(status));
            state.call("process_exited", |protocol| protocol.process_exited());
            state.note_closed();
            // `write_stdin` ends too.
            state.waker.wake();
        }
        Err(error) => state.force_close(Some(error), CloseMode::Normal),
    }
    pending().await
}
