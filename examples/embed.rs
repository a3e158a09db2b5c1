//! Runs the event loop inside another loop: `cargo run --example embed -- [--driver auto|proactor|reactor]`.
//!
//! The outer loop is a plain `poll(2)`, as in a GUI or a game, with its own socket and tick. Inside it, windlass runs
//! an echo server, its clients and a timer, and receives calls from another thread. The program runs for half a second.

#[cfg(unix)]
#[path = "support/mod.rs"]
mod support;

#[cfg(unix)]
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::thread;
#[cfg(unix)]
use std::time::{Duration, Instant};

#[cfg(unix)]
use support::outln;
#[cfg(unix)]
use windlass::net::{TcpListener, TcpStream};
#[cfg(unix)]
use windlass::time::sleep;
#[cfg(unix)]
use windlass::{Builder, DriverChoice, EventLoop, LoopHandle};

#[cfg(unix)]
const USAGE: &str = "usage: embed [--driver auto|proactor|reactor]";
#[cfg(unix)]
const TICK: Duration = Duration::from_millis(150);

#[cfg(unix)]
fn main() -> io::Result<()> {
    let driver = match driver(std::env::args().skip(1)) {
        Ok(driver) => driver,
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            std::process::exit(2);
        }
    };
    let event_loop = Builder::new().driver(driver).build()?;
    outln!("driver: {}", event_loop.describe());
    let log = Log(Instant::now());
    let (socket, others_end) = UnixStream::pair()?;
    let other_thread = thread::spawn({
        let handle = event_loop.handle();
        move || feed(others_end, handle, log)
    });
    outer_loop(&event_loop, socket, log)?;
    other_thread.join().expect("the other thread does not panic")?;
    Ok(())
}

/// The only place where this program blocks.
#[cfg(unix)]
fn outer_loop(event_loop: &EventLoop, mut socket: UnixStream, log: Log) -> io::Result<()> {
    let inner = event_loop.spawn(inside(log));
    let pollable = event_loop.pollable()?;
    // The callbacks below may spawn tasks and use streams.
    let _entered = event_loop.enter();
    let mut next_tick = Instant::now() + TICK;
    let (mut waits, mut turns) = (0, 0);
    while !inner.is_finished() {
        // Submits the operations that windlass has started, and arms its next timer.
        event_loop.flush()?;
        let left = next_tick.saturating_duration_since(Instant::now());
        let [inner_is_ready, socket_is_ready] = wait_for([pollable, socket.as_fd()], left)?;
        waits += 1;

        if socket_is_ready {
            let mut bytes = [0; 64];
            let count = socket.read(&mut bytes)?;
            log.print(
                "outer",
                &format!("its socket has {:?}", String::from_utf8_lossy(&bytes[..count])),
            );
        }
        if Instant::now() >= next_tick {
            log.print("outer", "tick");
            windlass::spawn(async move { log.print("windlass", "a task that the tick has spawned") }).detach();
            next_tick += TICK;
        }
        // The descriptor is ready when operations complete, timers are due or, as of the next flush, tasks are ready.
        if inner_is_ready {
            event_loop.turn_nowait()?;
            turns += 1;
        }
    }
    log.print("outer", &format!("done: {waits} waits, {turns} turns of windlass"));
    Ok(())
}

/// The code that windlass runs. It does not depend on the outer loop.
#[cfg(unix)]
async fn inside(log: Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let addr = listener.local_addr().expect("a listener has an address");
    log.print("windlass", &format!("echo server on {addr}"));
    windlass::spawn(serve(listener)).detach();

    let clients = ["ahoy", "belay", "heave"].map(|word| {
        windlass::spawn(async move {
            let stream = TcpStream::connect(addr).await?;
            for pause in [0, 60, 120] {
                sleep(Duration::from_millis(pause)).await;
                stream.write_all(word).await.0?;
                let (result, echo) = stream.read_exact(vec![0; word.len()]).await;
                result?;
                log.print(
                    "windlass",
                    &format!("a client got back {:?}", String::from_utf8_lossy(&echo)),
                );
            }
            io::Result::Ok(())
        })
    });
    for client in clients {
        client
            .await
            .expect("a client does not panic")
            .expect("the server is there");
    }
    sleep(Duration::from_millis(250)).await;
    log.print("windlass", "a timer has ended");
}

#[cfg(unix)]
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _peer) = listener.accept().await?;
        windlass::spawn(echo(stream)).detach();
    }
}

#[cfg(unix)]
async fn echo(stream: TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}

/// The other thread: writes to the outer loop's socket, and makes calls into windlass, which must wake the outer loop.
/// Returns its end of the socket, because a closed socket would always be readable.
#[cfg(unix)]
fn feed(mut socket: UnixStream, handle: LoopHandle, log: Log) -> io::Result<UnixStream> {
    for word in ["north", "east", "south"] {
        thread::sleep(Duration::from_millis(80));
        socket.write_all(word.as_bytes())?;
        thread::sleep(Duration::from_millis(20));
        let called = handle.call_soon_threadsafe(move || log.print("windlass", "a call from another thread"));
        called.map_err(io::Error::other)?;
    }
    Ok(socket)
}

/// `poll(2)`: which of these are readable. The timeout is rounded up to milliseconds, so that the loop does not spin at
/// the end.
#[cfg(unix)]
fn wait_for<const N: usize>(fds: [BorrowedFd<'_>; N], at_most: Duration) -> io::Result<[bool; N]> {
    let millis = at_most.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    let mut polled = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: the kernel reads and writes `N` local entries.
    if unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, millis) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(polled.map(|entry| entry.revents != 0))
}

/// Prints events with their time and source.
#[cfg(unix)]
#[derive(Clone, Copy)]
struct Log(Instant);

#[cfg(unix)]
impl Log {
    fn print(self, source: &str, event: &str) {
        outln!("{:>4} ms  {source:<8}  {event}", self.0.elapsed().as_millis());
    }
}

#[cfg(unix)]
fn driver(mut args: impl Iterator<Item = String>) -> Result<DriverChoice, String> {
    match (args.next().as_deref(), args.next()) {
        (None, _) => Ok(DriverChoice::Auto),
        (Some("--driver"), Some(name)) => name.parse().map_err(|error: io::Error| error.to_string()),
        (Some("--driver"), None) => Err("--driver needs a value".into()),
        (Some(other), _) => Err(format!("unknown option {other}")),
    }
}

#[cfg(not(unix))]
fn main() {
    eprintln!("this example needs Unix: its outer loop is poll(2)");
}
