//! A console for the running program: a page with its loops, tasks and stalls, and metrics for Prometheus.
//!
//! ```no_run
//! fn main() -> std::io::Result<()> {
//!     windlass::console::serve("127.0.0.1:6669")?;
//!     windlass::run(async {
//!         // the program; http://127.0.0.1:6669/ shows what it does
//!     })
//! }
//! ```
//!
//! Without a change of the program: `WINDLASS_CONSOLE=127.0.0.1:6669` starts the console when the first loop is built, and
//! `WINDLASS_CONSOLE_TOKEN` sets its [token](Builder::token). If that fails, the reason is written to standard error, and the
//! program runs without a console.
//!
//! The console runs on a loop of its own, on a thread of its own, so it answers while every other loop is stalled. It shows the loops
//! of the process that run on a real clock, whether they were made before or after it.
//!
//! | path | contents |
//! |---|---|
//! | `/` | the page |
//! | `/events` | the data of the page, as server-sent events |
//! | `/tasks.json` | the same data, once |
//! | `/metrics` | metrics in Prometheus' text format |
//! | `/dump.txt` | what every task waits for, as [`dump`](crate::dump()) writes it, and the stalls with their stacks |
//! | `/health` | `ok`, while the console runs |
//!
//! `/events` and `/tasks.json` take `limit` (tasks of each loop), `sort` (`id`, `busy`, `polls`, `longest`, `since`, `name`, `state`;
//! with `-` in descending order), `filter` (a part of a name, location, state or wait reason), `loop` and `follow` (ids).
//!
//! # Stalls
//!
//! A turn that takes longer than the [limit](Builder::stall_limit) is shown while it lasts, with the task that blocks the loop. On Linux its
//! stack is captured: the loop's thread gets a real-time signal that no other part of the program uses. As after any signal, a blocking
//! system call of that thread may then end with `EINTR`, if it is one that the kernel does not restart.
//! [`Builder::capture_stacks`] switches this off.
//!
//! # Security
//!
//! The console is read-only, and reachable from this machine only unless [`Builder::allow_remote`] is set. Web sites in a browser on this
//! machine get nothing: requests with a foreign `Host` or `Origin` are refused. Other users of the machine can read it: set a
//! [token](Builder::token) to keep them out. The traffic is not encrypted.
//!
//! The number of clients and the memory for them are bounded. A client that sends or reads too slowly is disconnected.
//!
//! # Cost
//!
//! While no console runs, a turn of a loop tests one flag. While one runs, a loop reads the processor's time-stamp counter after each poll,
//! and once more per turn. Snapshots of tasks are made only on request, at most four times per second, and only of loops that have run
//! something since the last one: a console does not wake an idle program.

mod document;
mod http;
mod json;
mod process;
mod prometheus;
mod server;
#[cfg(target_os = "linux")]
mod stack;
#[cfg(not(target_os = "linux"))]
#[path = "no_stack.rs"]
mod stack;
mod state;
mod watchdog;

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Once;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use self::http::Access;
use self::server::Server;
use self::state::State;
use crate::diagnostics::probe::{enable, hide_this_thread, is_hidden_thread};
use crate::net::TcpListener;
use crate::{DriverChoice, LoopHandle, worker_thread};

/// Starts a console at this address with the default settings of [`Builder`]. It runs until the process ends, or until
/// [`Console::stop`].
///
/// ```
/// let console = windlass::console::serve("127.0.0.1:0")?;
/// println!("http://{}/", console.local_addr());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If the address is not a loopback address, if it is in use, or if the thread cannot be started.
pub fn serve(addr: impl ToSocketAddrs) -> io::Result<Console> {
    Builder::new().serve(addr)
}

/// Configures and starts a console.
///
/// ```
/// use std::time::Duration;
/// let console = windlass::console::Builder::new()
///     .token("a-long-random-string")
///     .stall_limit(Duration::from_millis(100))
///     .serve("127.0.0.1:0")?;
/// # console.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `serve` is called"]
pub struct Builder {
    token: Option<String>,
    hosts: Vec<String>,
    allow_remote: bool,
    stall_limit: Duration,
    captures_stacks: bool,
    max_clients: usize,
    max_stalls: usize,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            token: None,
            hosts: Vec::new(),
            allow_remote: false,
            stall_limit: Duration::from_millis(250),
            captures_stacks: true,
            max_clients: 16,
            max_stalls: 20,
        }
    }
}

impl Builder {
    /// A builder with the default settings.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Requires this token, as `Authorization: Bearer TOKEN`. A browser passes it as `/?token=TOKEN`; the page removes it from the address
    /// bar. By default no token is required.
    pub fn token(mut self, token: impl Into<String>) -> Builder {
        self.token = Some(token.into());
        self
    }

    /// Allows addresses that other machines can reach. Set a [token](Builder::token) too: the console shows names, locations and stacks
    /// of the program.
    pub fn allow_remote(mut self, allow: bool) -> Builder {
        self.allow_remote = allow;
        self
    }

    /// Accepts requests for this host, by its name with or without a port. Without this call, requests must name `localhost` or the
    /// address itself. For a reverse proxy, or for machines that are reached by name.
    pub fn allow_host(mut self, host: impl Into<String>) -> Builder {
        self.hosts.push(host.into());
        self
    }

    /// The time after which a turn counts as a stall (250 ms; at least 1 ms).
    pub fn stall_limit(mut self, limit: Duration) -> Builder {
        self.stall_limit = limit.max(Duration::from_millis(1));
        self
    }

    /// Whether the stack of a stalled loop is captured, on Linux (by default it is): see [stalls](self#stalls).
    pub fn capture_stacks(mut self, capture: bool) -> Builder {
        self.captures_stacks = capture;
        self
    }

    /// The maximum number of connections (16; at least 1). Further ones are closed at once.
    pub fn max_clients(mut self, max: usize) -> Builder {
        self.max_clients = max.max(1);
        self
    }

    /// The stalls of each loop that are kept (20).
    pub fn max_stalls(mut self, max: usize) -> Builder {
        self.max_stalls = max;
        self
    }

    /// Starts the console: see [`serve`].
    ///
    /// # Errors
    ///
    /// As [`serve`]. An address that is not a loopback address requires [`allow_remote`](Builder::allow_remote). An empty token, or one with
    /// other characters than visible ASCII, is an error too.
    pub fn serve(self, addr: impl ToSocketAddrs) -> io::Result<Console> {
        if self
            .token
            .as_ref()
            .is_some_and(|token| token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let why = "the token of a console must consist of visible ASCII characters";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let listener = self.bind(addr)?;
        let local_addr = listener.local_addr()?;
        let (started, wait) = mpsc::sync_channel(1);
        let thread = worker_thread::spawn("windlass-console".to_owned(), move || self.run(listener, &started))?;
        let handle = wait
            .recv()
            .map_err(|_| io::Error::other("the thread of the console ended"))??;
        Ok(Console {
            local_addr,
            handle,
            thread,
        })
    }

    fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<std::net::TcpListener> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name of the console has no address");
        for addr in addr.to_socket_addrs()? {
            if !addr.ip().to_canonical().is_loopback() && !self.allow_remote {
                let why = format!(
                    "{addr} is not a loopback address: other machines could read the console; see `Builder::allow_remote`"
                );
                last = io::Error::new(io::ErrorKind::InvalidInput, why);
                continue;
            }
            match std::net::TcpListener::bind(addr) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The console's thread.
    fn run(self, listener: std::net::TcpListener, started: &mpsc::SyncSender<io::Result<LoopHandle>>) {
        hide_this_thread();
        // Not the driver that may be under examination. The variable `WINDLASS_DRIVER` is for the program's loops.
        let driver = if cfg!(feature = "reactor") {
            DriverChoice::Reactor
        } else {
            DriverChoice::Auto
        };
        let builder = crate::Builder::new()
            .driver(driver)
            .busy_poll(Duration::ZERO)
            .debug(false);
        let event_loop = match builder.max_blocking_threads(1).build() {
            Ok(event_loop) => event_loop,
            Err(error) => return drop(started.send(Err(error))),
        };
        let _enabled = enable(self.stall_limit);
        let state = Rc::new(State::new(self.stall_limit, self.max_stalls));
        let access = Access {
            token: self.token,
            hosts: self.hosts,
        };
        let server = Rc::new(Server::new(
            state.clone(),
            access,
            self.max_clients,
            self.captures_stacks,
        ));
        event_loop.spawn(watchdog::watch(state, self.captures_stacks)).detach();
        event_loop
            .spawn(async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => server.run(listener).await,
                    Err(error) => complain(&error),
                }
            })
            .detach();
        if started.send(Ok(event_loop.handle())).is_ok()
            && let Err(error) = event_loop.run_forever()
        {
            complain(&error);
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("allow_remote", &self.allow_remote)
            .field("stall_limit", &self.stall_limit)
            .finish_non_exhaustive()
    }
}

/// A running console. Dropping it does not stop the console, which then runs until the process ends.
///
/// ```
/// let console = windlass::console::serve("127.0.0.1:0")?;
/// assert!(console.local_addr().ip().is_loopback());
/// console.stop();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Console {
    local_addr: SocketAddr,
    handle: LoopHandle,
    thread: JoinHandle<()>,
}

impl Console {
    /// The address that the console listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Disconnects the viewers, stops the measurements and ends the console's thread.
    pub fn stop(self) {
        // A loop that has ended needs no stop, and a panic was printed.
        let _ = self.handle.stop();
        drop(self.thread.join());
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

/// Starts the console that the environment asks for, once per process. Called when a loop is built.
pub(crate) fn start_from_environment() {
    static STARTED: Once = Once::new();
    // The console's own loop is made while `STARTED` runs.
    if STARTED.is_completed() || is_hidden_thread() {
        return;
    }
    STARTED.call_once(|| {
        let Some(addr) = std::env::var_os("WINDLASS_CONSOLE").filter(|addr| !addr.is_empty()) else {
            return;
        };
        if let Err(error) = serve_from_environment(&addr) {
            complain(&error);
        }
    });
}

fn serve_from_environment(addr: &OsStr) -> io::Result<()> {
    let mut builder = Builder::new();
    if let Some(token) = std::env::var_os("WINDLASS_CONSOLE_TOKEN") {
        builder = builder.token(token.to_string_lossy());
    }
    let addr = addr.to_string_lossy();
    let addrs = addr.to_socket_addrs();
    let console = addrs.and_then(|addrs| builder.serve(&addrs.collect::<Vec<_>>()[..]));
    let console = console.map_err(|error| io::Error::new(error.kind(), format!("WINDLASS_CONSOLE={addr}: {error}")))?;
    drop(writeln!(
        io::stderr(),
        "windlass: the console is at http://{}/",
        console.local_addr()
    ));
    Ok(())
}

/// Reports an error of the console, which never ends the program.
fn complain(error: &io::Error) {
    // Not `eprintln`, which panics when stderr is closed.
    drop(writeln!(io::stderr(), "windlass: no console: {error}"));
}
