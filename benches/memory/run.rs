//! The measurements, the server and the table.

use std::future::pending;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use windlass::EventLoop;
use windlass::net::{self, TcpListener};

use crate::kit::drivers::Driver;
use crate::kit::hand_epoll::print_port;
use crate::kit::load::{Load, Shape};
use crate::kit::machine::{Machine, memory_info};
use crate::kit::options::{self, Options};
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::text::{bytes, cells, lay_out, nanos, thousands};
use crate::kit::{heap, limits, server};

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
    let wanted = options.number("--connections", 10_000);
    let count = options.number("--count", 100_000);
    let drivers = options.drivers();
    let machine = Machine::look();
    machine.pin_to_load();
    let (connections, limit) = limits::connections(wanted)?;

    let mut progress = Progress::weighing(drivers.len() as f64 * (FILLS.len() as f64 * 0.1 + connections as f64 / 1e4));
    let mut rows = vec![cells(["", "count", "", "heap, each"])];
    for driver in &drivers {
        for (what, fill) in FILLS {
            progress.step_of(0.1, &format!("{what}, {}", driver.name));
            let each = heap_each(&driver.open()?, count, fill)?;
            rows.push(cells([what, &count.to_string(), driver.name, &bytes(each)]));
        }
    }
    let head = [
        "",
        "count",
        "",
        "heap, each",
        "process, each",
        "kernel, each",
        "accepted/s",
        "CPU, each",
        "",
    ];
    let mut idle = vec![cells(head)];
    let mut refusals = String::new();
    for driver in &drivers {
        progress.step_of(connections as f64 / 1e4, &format!("connections, {}", driver.name));
        match measure(driver, connections, &machine) {
            Ok(each) => idle.push(each.row(connections, driver)),
            Err(error) => refusals += &format!("  connections, {}: left out: {error}\n", driver.name),
        }
    }
    progress.finish();
    print!("{}\n{}{refusals}", lay_out(&rows, &[0, 2]), lay_out(&idle, &[0, 2, 8]));
    if let Some(limit) = limit {
        println!("\n  {wanted} connections are not possible here: {limit}");
    }
    println!("\n  heap: bytes requested from the allocator; process: private memory of the server");
    println!("  kernel: growth of the kernel's slab memory, with both ends of a connection");
    println!("  accepted/s, CPU: with one echo of 64 bytes on each connection");
    Ok(())
}

/// The figures of idle connections.
struct Idle {
    heap: f64,
    process: f64,
    kernel: f64,
    rate: f64,
    cpu_nanos: f64,
}

impl Idle {
    fn row(&self, count: usize, driver: &Driver) -> Vec<String> {
        let verdict = match self.heap <= AIM && self.process <= AIM {
            true => "within 800 B",
            false => "more than 800 B",
        };
        cells([
            "idle connection",
            &count.to_string(),
            driver.name,
            &bytes(self.heap),
            &bytes(self.process),
            &bytes(self.kernel),
            &thousands(self.rate),
            &nanos(self.cpu_nanos),
            verdict,
        ])
    }
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

fn measure(driver: &Driver, connections: usize, machine: &Machine) -> io::Result<Idle> {
    let (process, port) = server::start(&[driver.name], machine.server_core())?;
    let mut control = TcpStream::connect(("127.0.0.1", port))?;
    // A first echo and answer: memory that the loop allocates at its first managed read is not counted.
    let mut answer = REQUEST;
    control.write_all(&REQUEST)?;
    control.read_exact(&mut answer)?;
    let (heap, private) = look(&process, &mut control)?;
    let (kernel, cpu, begin) = (memory_info("Slab"), process.cpu_time()?, Instant::now());
    let shape = Shape {
        connections,
        request_len: REQUEST.len(),
        in_flight: 1,
    };
    let load = Load::open(port, shape)?;
    let (wall, cpu) = (begin.elapsed(), process.cpu_time()? - cpu);
    let kernel_after = memory_info("Slab");
    let (heap_after, private_after) = look(&process, &mut control)?;
    drop(load);
    let each = |before: u64, after: u64| (after as f64 - before as f64) / connections as f64;
    Ok(Idle {
        heap: each(heap, heap_after),
        process: each(private, private_after),
        kernel: kernel
            .zip(kernel_after)
            .map_or(f64::NAN, |(before, after)| each(before, after)),
        rate: connections as f64 / wall.as_secs_f64(),
        cpu_nanos: cpu.as_nanos() as f64 / connections as f64,
    })
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
