//! The loop inside another one: `cargo run --example embed -- [--driver proactor|reactor]`.
//!
//! The outer loop is a plain `poll(2)`, as a GUI or a game might have it, with a socket and a tick of its own. Inside it
//! windlass runs an echo server, its clients and a timer, and takes calls from another thread. It takes half a second.

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
    let story = Story(Instant::now());
    let (socket, others_end) = UnixStream::pair()?;
    let other_thread = thread::spawn({
        let handle = event_loop.handle();
        move || feed(others_end, handle, story)
    });
    outer_loop(&event_loop, socket, story)?;
    other_thread.join().expect("the other thread does not panic")?;
    Ok(())
}

/// Everything that this program waits for, it waits for here.
#[cfg(unix)]
fn outer_loop(event_loop: &EventLoop, mut socket: UnixStream, story: Story) -> io::Result<()> {
    let inner = event_loop.spawn(inside(story));
    let pollable = event_loop.pollable()?;
    let mut next_tick = Instant::now() + TICK;
    let (mut waits, mut turns) = (0, 0);
    while !inner.is_finished() {
        // Three steps before the wait: hand over what windlass has started, ask until when it can wait, and wait.
        event_loop.flush()?;
        let inner_left = event_loop.next_deadline().map(|deadline| deadline - event_loop.time());
        let tick_left = next_tick.saturating_duration_since(Instant::now());
        let left = inner_left.map_or(tick_left, |inner_left| inner_left.min(tick_left));
        let [inner_is_ready, socket_is_ready] = wait_for([pollable, socket.as_fd()], left)?;
        waits += 1;

        if socket_is_ready {
            let mut bytes = [0; 64];
            let count = socket.read(&mut bytes)?;
            story.tell(
                "outer",
                &format!("its socket has {:?}", String::from_utf8_lossy(&bytes[..count])),
            );
        }
        if Instant::now() >= next_tick {
            story.tell("outer", "tick");
            next_tick += TICK;
        }
        // And one after it: windlass turns when its descriptor is ready or its time has come.
        if inner_is_ready
            || event_loop
                .next_deadline()
                .is_some_and(|deadline| deadline <= event_loop.time())
        {
            event_loop.turn_nowait()?;
            turns += 1;
        }
    }
    story.tell("outer", &format!("done: {waits} waits, {turns} turns of windlass"));
    Ok(())
}

/// What windlass runs: it cannot tell that somebody else waits.
#[cfg(unix)]
async fn inside(story: Story) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let addr = listener.local_addr().expect("a listener has an address");
    story.tell("windlass", &format!("echo server on {addr}"));
    windlass::spawn(serve(listener));

    let clients = ["ahoy", "belay", "heave"].map(|word| {
        windlass::spawn(async move {
            let stream = TcpStream::connect(addr).await?;
            for pause in [0, 60, 120] {
                sleep(Duration::from_millis(pause)).await;
                stream.write_all(word).await.0?;
                let (result, echo) = stream.read_exact(vec![0; word.len()]).await;
                result?;
                story.tell(
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
    story.tell("windlass", "a timer has ended");
}

#[cfg(unix)]
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _peer) = listener.accept().await?;
        windlass::spawn(echo(stream));
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

/// The other thread: it writes to the outer loop's socket, and calls into windlass, which the outer loop has to notice. It
/// gives its end back at last, since a closed one could be read for ever.
#[cfg(unix)]
fn feed(mut socket: UnixStream, handle: LoopHandle, story: Story) -> io::Result<UnixStream> {
    for word in ["north", "east", "south"] {
        thread::sleep(Duration::from_millis(80));
        socket.write_all(word.as_bytes())?;
        thread::sleep(Duration::from_millis(20));
        let called = handle.call_soon_threadsafe(move || story.tell("windlass", "a call from another thread"));
        called.map_err(io::Error::other)?;
    }
    Ok(socket)
}

/// `poll(2)`: which of these can be read. Its milliseconds are rounded up, so as not to spin through the last one.
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

/// Prints what happens, when, and where.
#[cfg(unix)]
#[derive(Clone, Copy)]
struct Story(Instant);

#[cfg(unix)]
impl Story {
    fn tell(self, who: &str, what: &str) {
        outln!("{:>4} ms  {who:<8}  {what}", self.0.elapsed().as_millis());
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
    eprintln!("this example is for Unix: the outer loop is poll(2), which is Unix's");
}
