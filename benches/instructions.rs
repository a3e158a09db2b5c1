//! User instructions per echoed request, counted by callgrind: `cargo bench --bench instructions`
//!
//! A count varies much less than a time: by about 20 instructions on a loaded machine. The server runs under
//! `valgrind --tool=callgrind` and exits after a given number of requests: 1 KiB each, one in flight on each of 50 connections.
//! It is counted with 40,000 and with 80,000 requests, and the difference leaves out its start and end. The kernel's instructions are not counted.
//!
//!     cargo bench --bench instructions                        both drivers, about half a minute
//!     cargo bench --bench instructions -- --driver reactor
//!     cargo bench --bench instructions -- --tolerance 3       fails if a count has grown by more than 3 %
//!     cargo bench --bench instructions -- --driver reactor --shards 2     a pool of two shards, with 50 connections each. On
//!         io_uring only one shard can be counted: valgrind keeps its lock while a thread waits in `io_uring_enter`.
//!
//! Needs valgrind.

#[cfg(target_os = "linux")]
#[path = "kit/mod.rs"]
mod kit;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    kit::options::report("instructions", run::main())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this bench needs Linux: valgrind knows io_uring and epoll there");
}

#[cfg(target_os = "linux")]
mod run {
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use windlass::net::TcpListener;

    use crate::kit::drivers::Driver;
    use crate::kit::options::{self, Options};

    const CONNECTIONS: usize = 50;
    const REQUEST_LEN: usize = 1024;
    const FEW: usize = 40_000;
    const MANY: usize = 80_000;

    /// The counts at the last change of the core, with Rust 1.95 on x86-64. They differ by up to 1 % between runs, because
    /// the number of requests that one turn of the loop finds varies.
    const EXPECTED: [(&str, u64); 2] = [("proactor", 1_019), ("reactor", 905)];

    /// How often a count above the tolerance is repeated. On a loaded machine a turn finds fewer requests, which only adds
    /// instructions, so the lowest count is the best.
    const REPEATS: usize = 3;

    const USAGE: &str =
        "usage: cargo bench --bench instructions -- [--driver proactor|reactor] [--tolerance PERCENT] [--shards N]";

    pub(crate) fn main() -> io::Result<()> {
        if let Some(role) = options::role() {
            let argument = |at: usize| role.get(at).map_or("", String::as_str);
            return match argument(1).parse() {
                Ok(shards) => serve_on_shards(argument(0), shards),
                Err(_) => serve(argument(0)),
            };
        }
        let options = Options::read(USAGE, &["--driver", "--tolerance", "--shards"]);
        let shards = options.number("--shards", 0);
        if shards > 0 {
            println!(
                "user instructions per echo of {shards} shards, {CONNECTIONS} connections x {REQUEST_LEN} B on each"
            );
            for driver in options.drivers() {
                println!("{:10} {}", driver.name, per_echo(driver, shards)?);
            }
            return Ok(());
        }
        let tolerance = options.number("--tolerance", usize::MAX);
        println!("user instructions per echo, {CONNECTIONS} connections x {REQUEST_LEN} B");
        for driver in options.drivers() {
            let mut instructions = per_echo(driver, 0)?;
            let expected = EXPECTED.iter().find(|(name, _)| *name == driver.name);
            let expected = expected.map_or(instructions, |&(_, expected)| expected);
            let most = expected.saturating_add(expected.saturating_mul(tolerance as u64) / 100);
            for _ in 0..REPEATS {
                println!("{:10} {instructions} (expected {expected})", driver.name);
                if instructions <= most {
                    break;
                }
                instructions = instructions.min(per_echo(driver, 0)?);
            }
            if instructions > most {
                return Err(io::Error::other(format!(
                    "an echo on the {} takes {instructions} instructions, {tolerance} % more than {expected} is {most}: \
                     find what has become slower, or change EXPECTED in benches/instructions.rs and say why",
                    driver.name
                )));
            }
        }
        Ok(())
    }

    /// On one loop, or on this many shards.
    fn per_echo(driver: Driver, shards: usize) -> io::Result<u64> {
        let (few, many) = (count(driver, shards, FEW)?, count(driver, shards, MANY)?);
        Ok((many - few) / ((MANY - FEW) * shards.max(1)) as u64)
    }

    /// Echoes on [`CONNECTIONS`] connections until their peers close them. The port is the first line of output.
    fn serve(name: &str) -> io::Result<()> {
        let driver = Driver::named(name).ok_or(io::ErrorKind::InvalidInput)?;
        driver.open()?.run_until_complete(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            println!("{}", listener.local_addr()?.port());
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                let (stream, _) = listener.accept().await?;
                connections.push(windlass::spawn(echo(stream)));
            }
            for connection in connections {
                connection.await.map_err(io::Error::other)??;
            }
            Ok(())
        })?
    }

    async fn echo(stream: windlass::net::TcpStream) -> io::Result<()> {
        loop {
            let request = stream.read_managed().await?;
            if request.is_empty() {
                return Ok(());
            }
            stream.write_all(request).await.0?;
        }
    }

    /// As [`serve`], on a pool, which is stopped when all connections have been accepted, and ends when they have been closed.
    /// Connections are handed over, so that the shards share them evenly.
    fn serve_on_shards(name: &str, shards: usize) -> io::Result<()> {
        let choice = match name {
            "reactor" => windlass::DriverChoice::Reactor,
            _ => windlass::DriverChoice::Proactor,
        };
        let pool = windlass::shards::Builder::new()
            .count(shards)
            .each_loop(move |_, builder| builder.driver(choice))
            .grace(Duration::from_secs(3_600))
            .build()?;
        let accept = windlass::shards::Accept::HandOver;
        let listener = pool.listen_with(TcpListener::builder(), (Ipv4Addr::LOCALHOST, 0), accept)?;
        println!("{}", listener.local_addr().port());
        let accepted = Arc::new(AtomicUsize::new(0));
        pool.run(move |shard| {
            let accepted = accepted.clone();
            async move {
                let mut connections = Vec::new();
                while let Some((stream, _)) = listener.accept().await? {
                    connections.push(windlass::spawn(echo(stream)));
                    if accepted.fetch_add(1, Ordering::Relaxed) + 1 == CONNECTIONS * shards {
                        shard.stop();
                    }
                }
                for connection in connections {
                    connection.await.map_err(io::Error::other)??;
                }
                io::Result::Ok(())
            }
        })?;
        Ok(())
    }

    /// The instructions of a server that answers this many requests, on each shard.
    fn count(driver: Driver, shards: usize, requests: usize) -> io::Result<u64> {
        let mut server = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            // Valgrind runs one thread at a time: without this, one shard may keep the others waiting.
            .args((shards > 1).then_some("--fair-sched=yes"))
            .args([
                std::env::current_exe()?.as_os_str(),
                "--role".as_ref(),
                driver.name.as_ref(),
            ])
            .args((shards > 0).then(|| shards.to_string()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("start valgrind, which this bench needs: {error}"))
            })?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let port = line.trim().parse::<u16>().map_err(io::Error::other);
        let loaded = port.and_then(|port| match shards {
            0 => load(port, requests / CONNECTIONS),
            _ => load_in_rounds(port, CONNECTIONS * shards, requests / CONNECTIONS),
        });
        let output = server.wait_with_output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(io::Error::other(format!("the server failed: {report}")));
        }
        loaded?;
        let collected = report.split("Collected :").nth(1).map(str::trim_start);
        let digits = collected.and_then(|text| text.split_whitespace().next());
        let total = digits.and_then(|digits| digits.parse().ok());
        total.ok_or_else(|| io::Error::other(format!("callgrind printed no count: {report}")))
    }

    /// Sends this many requests on each connection, one after the other. The server, under callgrind, is the slower side.
    fn load(port: u16, requests: usize) -> io::Result<()> {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))
            .collect::<io::Result<_>>()?;
        thread::scope(|scope| {
            let clients = clients.into_iter().map(|mut client| {
                scope.spawn(move || {
                    let mut buf = [7; REQUEST_LEN];
                    client.set_nodelay(true)?;
                    for _ in 0..requests {
                        client.write_all(&buf)?;
                        client.read_exact(&mut buf)?;
                    }
                    io::Result::Ok(())
                })
            });
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .try_for_each(|client| client.join().expect("no panic"))
        })
    }

    /// As [`load`], with a request on all connections before the answers are read. Valgrind runs one thread at a time, so with more
    /// shards a turn would find fewer requests otherwise, and the overhead of turns would be counted instead of the requests.
    fn load_in_rounds(port: u16, connections: usize, requests: usize) -> io::Result<()> {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            client.set_nodelay(true)?;
            clients.push(client);
        }
        let mut buf = [7; REQUEST_LEN];
        for _ in 0..requests {
            for client in &mut clients {
                client.write_all(&buf)?;
            }
            for client in &mut clients {
                client.read_exact(&mut buf)?;
            }
        }
        Ok(())
    }
}
