//! Writes to memory that shards share, per request and per connection: `cargo bench --bench shared_lines`
//!
//! A pool of two shards echoes requests under valgrind's tool lackey, which prints every load and store with its address;
//! `--trace-sched` says which thread made it. A store counts as shared if the other shard's thread loads from or stores to the same
//! cache line in the same part of the run: atomic or not, in windlass, in the program or in the allocator. Without hardware
//! counters, this takes the place of `perf c2c`.
//!
//! - requests: 10 connections on each shard, which stay open;
//! - connections: opened, used for one request and closed, one after the other. The kernel chooses their shard.
//!
//! A run in which the echo handler increments a shared counter comes first: it must be found, once per request.
//!
//! On epoll only: under valgrind, a thread that waits in `io_uring_enter` blocks all others.
//!
//!     cargo bench --bench shared_lines                        fails above 0 per request or 2 per connection
//!
//! Needs valgrind.

#[cfg(target_os = "linux")]
#[path = "kit/mod.rs"]
mod kit;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::report("shared_lines", run::main())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this bench needs Linux: it runs on epoll");
}

#[cfg(target_os = "linux")]
mod run {
    use std::collections::HashMap;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::thread;

    use windlass::DriverChoice;
    use windlass::net::TcpListener;
    use windlass::shards::{self, Accept};

    use crate::kit::options::{self, Options};

    const USAGE: &str = "usage: cargo bench --bench shared_lines";

    const SHARDS: usize = 2;
    const CONNECTIONS: usize = 10 * SHARDS;
    const ROUNDS: usize = 20;
    const SHORT_CONNECTIONS: usize = 40;

    /// Shared stores allowed per connection: its shard's gauge counts it when it opens and when it closes.
    const PER_CONNECTION: usize = 2;

    const CACHE_LINE: u64 = 64;

    /// A request that begins with this marks the beginning or the end of a measured part.
    const MARK: u8 = b'm';

    /// Written at a mark. Its address is found in the trace.
    static MARKS: Line = Line(AtomicUsize::new(0));

    /// Incremented for each request of the run that must be found.
    static SHARED: Line = Line(AtomicUsize::new(0));

    #[repr(align(128))]
    struct Line(AtomicUsize);

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Part {
        Requests,
        Connections,
    }

    pub(crate) fn main() -> io::Result<()> {
        if let Some(role) = options::role() {
            let has = |word: &str| role.iter().any(|given| given == word);
            return serve(has("connections"), has("injected"));
        }
        Options::read(USAGE, &[]);
        println!("stores to cache lines that {SHARDS} shards share");
        let requests = CONNECTIONS * ROUNDS;
        let injected = measure(Part::Requests, true)?;
        print(&format!("{requests} requests with a shared counter"), &injected);
        if injected.iter().map(|line| line.stores).sum::<usize>() < requests {
            return Err(io::Error::other(
                "the counter that all requests increment was not found",
            ));
        }
        check(&format!("{requests} requests"), &measure(Part::Requests, false)?, 0)?;
        let most = PER_CONNECTION * SHORT_CONNECTIONS;
        let title = format!("{SHORT_CONNECTIONS} connections");
        check(&title, &measure(Part::Connections, false)?, most)
    }

    fn print(title: &str, lines: &[SharedLine]) {
        let stores: usize = lines.iter().map(|line| line.stores).sum();
        println!("{title:40} {stores}");
        for line in lines.iter().filter(|line| line.stores > 0) {
            println!(
                "  at {:#x}: {}, the last by the instruction at {:#x}",
                line.address, line.stores, line.by
            );
        }
    }

    fn check(title: &str, lines: &[SharedLine], most: usize) -> io::Result<()> {
        print(title, lines);
        let stores: usize = lines.iter().map(|line| line.stores).sum();
        match stores > most {
            true => Err(io::Error::other(format!(
                "{title}: {stores} shared stores, at most {most} are expected"
            ))),
            false => Ok(()),
        }
    }

    /// The server. Its first line has the port and the address of the marks.
    fn serve(closes: bool, is_injected: bool) -> io::Result<()> {
        let pool = shards::Builder::new()
            .count(SHARDS)
            .each_loop(|_, builder| builder.driver(DriverChoice::Reactor))
            .build()?;
        // Connections that stay open are handed over, so that the shards share them evenly.
        let accept = if closes { Accept::ReusePort } else { Accept::HandOver };
        let listener = pool.listen_with(TcpListener::builder(), (Ipv4Addr::LOCALHOST, 0), accept)?;
        println!("{} {}", listener.local_addr().port(), (&raw const MARKS).addr());
        pool.run(move |_| async move {
            while let Some((stream, _)) = listener.accept().await? {
                drop(windlass::spawn(async move {
                    while let Ok(request) = stream.read_managed().await
                        && !request.is_empty()
                    {
                        if request[0] == MARK {
                            MARKS.0.store(1, Relaxed);
                        }
                        if is_injected {
                            SHARED.0.fetch_add(1, Relaxed);
                        }
                        if stream.write_all(request).await.0.is_err() {
                            break;
                        }
                    }
                }));
            }
            io::Result::Ok(())
        })?;
        Ok(())
    }

    fn connect(port: u16) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn ask(stream: &mut TcpStream, request: u8) -> io::Result<()> {
        stream.write_all(&[request; 64])?;
        stream.read_exact(&mut [0; 64])
    }

    /// Requests on all connections, before the answers are read.
    fn ask_all(streams: &mut [TcpStream], rounds: usize) -> io::Result<()> {
        for _ in 0..rounds {
            for stream in streams.iter_mut() {
                stream.write_all(&[7; 64])?;
            }
            for stream in streams.iter_mut() {
                stream.read_exact(&mut [0; 64])?;
            }
        }
        Ok(())
    }

    fn load(part: Part, port: u16) -> io::Result<()> {
        let mut marker = connect(port)?;
        match part {
            Part::Requests => {
                let mut streams = (0..CONNECTIONS)
                    .map(|_| connect(port))
                    .collect::<io::Result<Vec<_>>>()?;
                ask_all(&mut streams, 5)?;
                ask(&mut marker, MARK)?;
                ask_all(&mut streams, ROUNDS)?;
                ask(&mut marker, MARK)
            }
            Part::Connections => {
                let open_and_close = |count| {
                    (0..count).try_for_each(|_| {
                        let mut stream = connect(port)?;
                        ask(&mut stream, 7)?;
                        stream.shutdown(std::net::Shutdown::Write)?;
                        // The server has closed it.
                        stream.read(&mut [0; 1]).map(|_| ())
                    })
                };
                open_and_close(10)?;
                ask(&mut marker, MARK)?;
                open_and_close(SHORT_CONNECTIONS)?;
                ask(&mut marker, MARK)
            }
        }
    }

    /// A cache line that several threads have used.
    struct SharedLine {
        address: u64,
        stores: usize,
        by: u64,
    }

    fn measure(part: Part, is_injected: bool) -> io::Result<Vec<SharedLine>> {
        let mut program = Command::new("valgrind")
            .args([
                "--tool=lackey",
                "--trace-mem=yes",
                "--trace-sched=yes",
                "--fair-sched=yes",
                "--log-fd=2",
            ])
            .arg(std::env::current_exe()?)
            .args(["--role", "serve"])
            .args((part == Part::Connections).then_some("connections"))
            .args(is_injected.then_some("injected"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("start valgrind, which this bench needs: {error}"))
            })?;
        let (trace, output) = (program.stderr.take(), program.stdout.take());
        // Nothing else reads the trace, so the server waits until it is read.
        let (send_marks, marks) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || read_trace(BufReader::new(trace.expect("it is piped")), &marks));
        let mut first = String::new();
        BufReader::new(output.expect("it is piped")).read_line(&mut first)?;
        let mut numbers = first.split_whitespace();
        let mut number = || numbers.next().and_then(|number| number.parse::<u64>().ok());
        let (Some(port), Some(address)) = (number(), number()) else {
            return Err(io::Error::other("the server printed no port"));
        };
        let _ = send_marks.send(address);
        let loaded = load(part, port as u16);
        program.kill()?;
        program.wait()?;
        loaded?;
        reader.join().expect("no panic")
    }

    /// How the threads have used a cache line: bits of the threads, and the stores.
    #[derive(Default)]
    struct Use {
        threads: u64,
        stores: usize,
        by: u64,
    }

    /// Reads the trace up to the second mark. The address of the marks is sent before the first of them.
    fn read_trace(trace: impl BufRead, marks: &std::sync::mpsc::Receiver<u64>) -> io::Result<Vec<SharedLine>> {
        let (mut thread, mut instruction, mut mark) = (0_u32, 0, None);
        let mut lines: HashMap<u64, Use> = HashMap::new();
        let mut marks_seen = 0;
        for line in trace.split(b'\n') {
            let line = line?;
            let text = str::from_utf8(&line).unwrap_or_default();
            if let Some((_, rest)) = text.split_once("SCHED[")
                && let Some((number, rest)) = rest.split_once(']')
                && rest.contains("acquired lock")
            {
                thread = number.parse().unwrap_or(0);
                continue;
            }
            let Some((kind, Some(address))) = text.get(..2).zip(text.get(3..).map(address_of)) else {
                continue;
            };
            if mark.is_none() {
                mark = marks.try_recv().ok();
            }
            match kind {
                "I " => instruction = address,
                " S" | " M" if Some(address) == mark => marks_seen += 1,
                _ if marks_seen != 1 || !matches!(kind, " L" | " S" | " M") => {}
                _ => {
                    let used = lines.entry(address / CACHE_LINE).or_default();
                    used.threads |= 1 << (thread % 64);
                    if kind != " L" {
                        used.stores += 1;
                        used.by = instruction;
                    }
                }
            }
        }
        if marks_seen < 2 {
            return Err(io::Error::other("the marks were not found in the trace"));
        }
        let is_shared = |used: &Use| used.threads.count_ones() > 1 && used.stores > 0;
        let shared = lines.into_iter().filter(|(_, used)| is_shared(used));
        let mut shared: Vec<_> = shared
            .map(|(line, used)| SharedLine {
                address: line * CACHE_LINE,
                stores: used.stores,
                by: used.by,
            })
            .collect();
        shared.sort_by_key(|line| std::cmp::Reverse(line.stores));
        Ok(shared)
    }

    /// The address in `04023b10,3`.
    fn address_of(text: &str) -> Option<u64> {
        let (address, _) = text.trim_start().split_once(',')?;
        u64::from_str_radix(address, 16).ok()
    }
}
