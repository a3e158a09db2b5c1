//! The measurements, the server and the table.

use std::future::pending;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use windlass::EventLoop;
use windlass::net::{self, TcpListener};

use crate::kit::drivers::Driver;
use crate::kit::hand_epoll::print_port;
use crate::kit::limits::want_open_files;
use crate::kit::machine::Machine;
use crate::kit::options::{self, Options};
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::text::{bytes, cells, lay_out};
use crate::kit::{heap, server};

const USAGE: &str = "\
usage: cargo bench --bench memory -- [--connections N] [--count N] [--driver proactor|reactor]";

const REQUEST: [u8; 64] = [b'.'; 64];
/// The request that the server answers with its heap size.
const QUESTION: u8 = b'?';
/// The target per idle connection.
const AIM: f64 = 800.0;

pub(crate) fn main() -> io::Result<()> {
    if let Some(role) = options::role() {
        let driver = role.first().and_then(|name| Driver::named(name));
        return serve(driver.ok_or(io::Error::other("no driver given"))?);
    }
    let options = Options::read(USAGE, &["--connections", "--count", "--driver"]);
    let connections = options.number("--connections", 10_000);
    let count = options.number("--count", 100_000);
    let drivers = options.drivers();

    let mut rows = vec![cells(["", "count", "", "heap, each", "process, each", ""])];
    let mut refusals = String::new();
    let mut progress = Progress::new(drivers.len() * (FILLS.len() + 1));
    for driver in &drivers {
        for (what, fill) in FILLS {
            progress.step(&format!("{what}, {}", driver.name));
            let each = heap_each(&driver.open()?, count, fill)?;
            rows.push(row(what, count, driver, each, f64::NAN, ""));
        }
    }
    for driver in &drivers {
        progress.step(&format!("connections, {}", driver.name));
        match connections_each(driver, connections) {
            Ok((heap, process)) => {
                let verdict = match heap <= AIM && process <= AIM {
                    true => "within 800 B",
                    false => "more than 800 B",
                };
                rows.push(row("idle connection", connections, driver, heap, process, verdict));
            }
            Err(error) => refusals += &format!("  connections, {}: left out: {error}\n", driver.name),
        }
    }
    progress.finish();
    print!("{}{refusals}", lay_out(&rows, &[0, 2, 5]));
    println!("\n  heap: bytes requested from the allocator; process: private memory of the process");
    Ok(())
}

fn row(what: &str, count: usize, driver: &Driver, heap: f64, process: f64, verdict: &str) -> Vec<String> {
    let count = count.to_string();
    cells([what, &count, driver.name, &bytes(heap), &bytes(process), verdict])
}

/// Adds `count` tasks or timers to a loop.
type Fill = fn(&EventLoop, usize) -> io::Result<()>;

const FILLS: [(&str, Fill); 3] = [
    ("task that waits", |event_loop, count| {
        for _ in 0..count {
            event_loop.spawn(pending::<()>());
        }
        settle(event_loop)
    }),
    ("task that sleeps", |event_loop, count| {
        for _ in 0..count {
            event_loop.spawn(async { windlass::time::sleep(Duration::from_secs(3600)).await });
        }
        settle(event_loop)
    }),
    ("timer (call_later)", |event_loop, count| {
        for _ in 0..count {
            event_loop.call_later(Duration::from_secs(3600), || {});
        }
        Ok(())
    }),
];

/// Polls every new task once, and frees the memory used only for that.
fn settle(event_loop: &EventLoop) -> io::Result<()> {
    event_loop.run_until_complete(windlass::task::yield_now())
}

fn heap_each(event_loop: &EventLoop, count: usize, fill: Fill) -> io::Result<f64> {
    settle(event_loop)?;
    let before = heap::in_use();
    fill(event_loop, count)?;
    Ok((heap::in_use() - before) as f64 / count as f64)
}

/// Heap and process memory per idle connection, in bytes.
fn connections_each(driver: &Driver, count: usize) -> io::Result<(f64, f64)> {
    // The limit applies to each process: the server has as many descriptors as this one.
    want_open_files(count as u64 + 100)?;
    let (process, port) = server::start(&[driver.name], Machine::look().server_core())?;
    let mut control = TcpStream::connect(("127.0.0.1", port))?;
    // A first echo and answer: memory that the loop allocates at its first managed read is not counted.
    echo(&mut control)?;
    let before = look(&process, &mut control)?;
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        echo(&mut stream)?;
        streams.push(stream);
    }
    let after = look(&process, &mut control)?;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / count as f64;
    Ok((each(before.0, after.0), each(before.1, after.1)))
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut answer = REQUEST;
    stream.write_all(&REQUEST)?;
    stream.read_exact(&mut answer)
}

/// The server's heap and process memory, in bytes.
fn look(process: &Process, control: &mut TcpStream) -> io::Result<(u64, u64)> {
    control.write_all(&[QUESTION])?;
    let mut heap = [0; 8];
    control.read_exact(&mut heap)?;
    Ok((u64::from_le_bytes(heap), process.memory()?))
}

/// Serves until killed.
fn serve(driver: Driver) -> io::Result<()> {
    driver.open()?.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            windlass::spawn(async move {
                let _ = answer(stream).await;
            });
        }
    })?
}

async fn answer(stream: net::TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.read_managed().await?;
        match bytes.first() {
            None => return Ok(()),
            Some(&QUESTION) => {
                let heap = (heap::in_use() as u64).to_le_bytes();
                stream.write_all(heap).await.0?;
            }
            Some(_) => stream.write_all(bytes).await.0?,
        }
    }
}
