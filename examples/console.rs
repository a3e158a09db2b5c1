//! A small program to look at with the console: named tasks, groups, timers, an echo server with clients, blocking work.
//!
//! `cargo run --release --features console --example console`, then open http://127.0.0.1:6669/.
//!
//! - `--stall` blocks the loop for a second every four seconds, as a mistake in a program would. The console shows the
//!   task, the line that spawned it and the stack.
//! - `--tasks N` adds N tasks, most of which wait for a long time.
//! - `--shards N` runs the program on a pool of N loops.
//! - `--listen HOST:PORT`, `--token TOKEN`: where the console is, and what it requires.

use std::cell::Cell;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use windlass::console;
use windlass::net::{TcpListener, TcpStream};
use windlass::shards::{self, Shard};
use windlass::sync::Queue;
use windlass::task::{self, Builder};
use windlass::time::sleep;

const USAGE: &str = "usage: console [--listen HOST:PORT] [--token TOKEN] [--stall] [--tasks N] [--shards N]";

#[derive(Clone, Copy, Debug)]
struct Options {
    stall: bool,
    tasks: usize,
    shards: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("console: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options {
        stall: false,
        tasks: 0,
        shards: 0,
    };
    let (mut listen, mut builder) = ("127.0.0.1:6669".to_owned(), console::Builder::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--stall" => options.stall = true,
            "--tasks" => options.tasks = value()?.parse()?,
            "--shards" => options.shards = value()?.parse()?,
            "--listen" => listen = value()?,
            "--token" => builder = builder.token(value()?),
            _ => return Err(USAGE.into()),
        }
    }
    let console = builder.serve(listen)?;
    println!("http://{}/", console.local_addr());
    match options.shards {
        0 => windlass::run(program(options))??,
        count => {
            let main = move |_: Shard| program(options);
            shards::Builder::new().count(count).build()?.run(main)?;
        }
    }
    Ok(())
}

async fn program(options: Options) -> io::Result<()> {
    if options.stall {
        Builder::new().name("report writer").spawn(write_reports());
    }
    for number in 0..options.tasks {
        let name = format!("session {number}");
        Builder::new().name(name).spawn(session(number));
    }
    Builder::new().name("indexer").spawn(index());
    let queue = Rc::new(Queue::bounded(16));
    Builder::new().name("producer").spawn(produce(queue.clone()));
    Builder::new().name("consumer").spawn(consume(queue));
    echo().await
}

/// A server and its clients, in one group.
async fn echo() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let served = task::group(async |group| {
        Builder::new().name("clients").spawn_in(group, async move {
            let mut clients = task::JoinSet::new();
            for number in 0..5u64 {
                clients.spawn(async move {
                    let stream = TcpStream::connect(addr).await?;
                    loop {
                        stream.write_all(vec![7; 100]).await.0?;
                        stream.read_exact(vec![0; 100]).await.0?;
                        sleep(Duration::from_millis(20 * (number + 1))).await;
                    }
                });
            }
            while let Some(result) = clients.join_next().await {
                let result: io::Result<()> = result.expect("no panic");
                result?;
            }
            io::Result::Ok(())
        });
        loop {
            let (stream, _) = listener.accept().await?;
            Builder::new().name("connection").spawn_in(group, async move {
                loop {
                    let bytes = stream.read_managed().await?;
                    if bytes.is_empty() {
                        return io::Result::Ok(());
                    }
                    stream.write_all(bytes).await.0?;
                }
            });
        }
        #[allow(unreachable_code, reason = "the type of the group's result")]
        io::Result::Ok(())
    })
    .await;
    served.map_err(io::Error::other)
}

/// Blocks the loop, where it should use `spawn_blocking`.
async fn write_reports() {
    loop {
        sleep(Duration::from_secs(3)).await;
        write_report_to_disk();
    }
}

#[inline(never)]
fn write_report_to_disk() {
    std::thread::sleep(Duration::from_secs(1));
}

/// Blocking work where it belongs: on threads of the pool.
async fn index() {
    loop {
        let jobs = (0..3).map(|_| windlass::spawn_blocking(|| std::thread::sleep(Duration::from_millis(300))));
        for job in jobs.collect::<Vec<_>>() {
            job.await.expect("no panic");
        }
        sleep(Duration::from_millis(500)).await;
    }
}

async fn session(number: usize) {
    let visits = Cell::new(0);
    loop {
        let pause = if number.is_multiple_of(100) { 250 } else { 60_000 };
        sleep(Duration::from_millis(pause + number as u64 % 97)).await;
        visits.set(visits.get() + 1);
    }
}

async fn produce(queue: Rc<Queue<u64>>) {
    for number in 0.. {
        if queue.put(number).await.is_err() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn consume(queue: Rc<Queue<u64>>) {
    while let Ok(number) = queue.get().await {
        // Some work for the processor.
        std::hint::black_box((0..number % 100_000).sum::<u64>());
    }
}
