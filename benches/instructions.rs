//! User instructions per operation, counted by callgrind: `cargo bench --bench instructions`
//!
//! A count varies much less than a time, usually by less than 1 %. Each program below runs under `valgrind --tool=callgrind`
//! twice, with a number of operations and with twice as many, and the difference leaves out its start and end. The kernel's instructions are not counted.
//!
//! - `echo`: a server that answers requests of 1 KiB, one in flight on each of 50 connections;
//! - `timeout`: the same server with a `timeout` around each read;
//! - `spawn`: spawning a task and joining it; `yield`: a `yield_now`;
//! - `sleep`: a sleep of one of 1,000 tasks, on the null driver, whose clock does not depend on the machine's speed;
//! - `file`: a read of 4 KiB from the page cache;
//! - `http`: a request to hyper on 50 connections, with its header timeout. Needs `--features hyper`.
//!
//! Usage:
//!
//!     cargo bench --bench instructions --features hyper       everything, about two minutes
//!     cargo bench --bench instructions -- --only echo --driver reactor
//!     cargo bench --bench instructions -- --tolerance 3       fails if a count has grown by more than 3 %
//!     cargo bench --bench instructions -- --driver reactor --shards 2     echoes of a pool of two shards, with 50 connections
//!         each. On io_uring only one shard can be counted: valgrind keeps its lock while a thread waits in `io_uring_enter`.
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
    use std::cell::Cell;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use windlass::DriverChoice;
    use windlass::net::TcpListener;
    use windlass::time::{sleep, timeout};

    use crate::kit::drivers::Driver;
    use crate::kit::options::{self, Options};

    const CONNECTIONS: usize = 50;
    const REQUEST_LEN: usize = 1024;

    /// The number of operations of the shorter run; the longer one has twice as many.
    const FEW: usize = 40_000;

    /// The tasks that sleep.
    const SLEEPERS: usize = 1_000;

    /// The null driver: no kernel, and a virtual clock.
    const NULL: Driver = Driver {
        name: "null",
        choice: DriverChoice::Null,
    };

    /// The counts at the last change of the core, with Rust 1.95 on x86-64. Those of servers differ by up to 1 % between runs.
    /// On the reactor, a turn with ready tasks polls at intervals of time: `spawn` and `yield` take up to 4 % more on a slower
    /// machine.
    const EXPECTED: [(&str, &str, u64); 13] = [
        ("echo", "proactor", 864),
        ("echo", "reactor", 766),
        ("timeout", "proactor", 1_006),
        ("timeout", "reactor", 912),
        ("spawn", "proactor", 763),
        ("spawn", "reactor", 812),
        ("yield", "proactor", 244),
        ("yield", "reactor", 262),
        ("file", "proactor", 291),
        ("file", "reactor", 315),
        ("http", "proactor", 8_311),
        ("http", "reactor", 7_636),
        ("sleep", "null", 1_711),
    ];

    /// What can be counted.
    const WORKLOADS: [&str; 7] = ["echo", "timeout", "spawn", "yield", "file", "http", "sleep"];

    /// How often a count above the tolerance is repeated. A turn that finds fewer requests only adds instructions, so the lowest
    /// count is the best.
    const REPEATS: usize = 3;

    const USAGE: &str = "usage: cargo bench --bench instructions [--features hyper] -- [--only echo|timeout|spawn|yield|file|http|sleep] \
                         [--driver proactor|reactor] [--tolerance PERCENT] [--shards N]";

    pub(crate) fn main() -> io::Result<()> {
        if let Some(role) = options::role() {
            let argument = |at: usize| role.get(at).map_or("", String::as_str);
            let number = argument(2).parse().unwrap_or(0);
            return match argument(0) {
                "shards" => serve_on_shards(argument(1), number),
                workload => run(workload, argument(1), number),
            };
        }
        let options = Options::read(USAGE, &["--only", "--driver", "--tolerance", "--shards"]);
        let shards = options.number("--shards", 0);
        if shards > 0 {
            println!(
                "user instructions per echo of {shards} shards, {CONNECTIONS} connections x {REQUEST_LEN} B on each"
            );
            for driver in options.drivers() {
                println!("{:10} {}", driver.name, per_operation("echo", driver, shards)?);
            }
            return Ok(());
        }
        let tolerance = options.number("--tolerance", usize::MAX);
        println!("user instructions per operation");
        for workload in WORKLOADS {
            if !options.wants("--only", workload, &WORKLOADS) {
                continue;
            }
            if workload == "http" && !cfg!(feature = "hyper") {
                println!("http       is not counted without --features hyper");
                continue;
            }
            let drivers = match workload {
                "sleep" => vec![NULL],
                _ => options.drivers(),
            };
            for driver in drivers {
                check(workload, driver, tolerance)?;
            }
        }
        Ok(())
    }

    /// Counts, and fails above the tolerance.
    fn check(workload: &str, driver: Driver, tolerance: usize) -> io::Result<()> {
        let mut instructions = per_operation(workload, driver, 0)?;
        let is_this = |&&(of, on, _): &&(&str, &str, u64)| of == workload && on == driver.name;
        let expected = EXPECTED.iter().find(is_this);
        let expected = expected.map_or(instructions, |&(_, _, expected)| expected);
        let most = expected.saturating_add(expected.saturating_mul(tolerance as u64) / 100);
        for _ in 0..REPEATS {
            println!("{workload:10} {:10} {instructions} (expected {expected})", driver.name);
            if instructions <= most {
                break;
            }
            instructions = instructions.min(per_operation(workload, driver, 0)?);
        }
        if instructions > most {
            return Err(io::Error::other(format!(
                "{workload} on the {} takes {instructions} instructions, {tolerance} % more than {expected} is {most}: \
                 find what has become slower, or change EXPECTED in benches/instructions.rs and say why",
                driver.name
            )));
        }
        Ok(())
    }

    /// On one loop, or on this many shards.
    fn per_operation(workload: &str, driver: Driver, shards: usize) -> io::Result<u64> {
        let few = count(workload, driver, shards, FEW)?;
        let many = count(workload, driver, shards, 2 * FEW)?;
        Ok((many - few) / (FEW * shards.max(1)) as u64)
    }

    /// The program that is counted. A server runs until its peers close their connections; the others until they have done
    /// this many operations.
    fn run(workload: &str, driver: &str, operations: usize) -> io::Result<()> {
        let driver = match driver {
            "null" => NULL,
            name => Driver::named(name).ok_or(io::ErrorKind::InvalidInput)?,
        };
        let event_loop = driver.open()?;
        match workload {
            "echo" => event_loop.run_until_complete(serve(echo))?,
            "timeout" => event_loop.run_until_complete(serve(echo_in_time))?,
            #[cfg(feature = "hyper")]
            "http" => event_loop.run_until_complete(serve(http))?,
            "spawn" => event_loop.run_until_complete(async move {
                for _ in 0..operations {
                    windlass::spawn(async { std::hint::black_box(7) })
                        .await
                        .map_err(io::Error::other)?;
                }
                Ok(())
            })?,
            "yield" => event_loop.run_until_complete(async move {
                for _ in 0..operations {
                    windlass::task::yield_now().await;
                }
                Ok(())
            })?,
            "file" => event_loop.run_until_complete(async move {
                let file = windlass::fs::File::open(std::env::current_exe()?).await?;
                let mut buf = vec![0; 4096];
                for _ in 0..operations {
                    let result;
                    (result, buf) = file.read_at(buf, 0).await;
                    assert_eq!(result?, 4096);
                }
                Ok(())
            })?,
            "sleep" => event_loop.run_until_complete(sleep_by_turns(operations))?,
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Tasks that sleep for 1 to 2 s, again and again, for this many sleeps.
    async fn sleep_by_turns(operations: usize) -> io::Result<()> {
        let left = Rc::new(Cell::new(operations));
        let sleepers: Vec<_> = (0..SLEEPERS as u64)
            .map(|number| {
                let left = left.clone();
                windlass::spawn(async move {
                    let mut random = number;
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        random = random.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        sleep(Duration::from_nanos(1_000_000_000 + (random >> 34))).await;
                    }
                })
            })
            .collect();
        for sleeper in sleepers {
            sleeper.await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Serves [`CONNECTIONS`] connections until their peers close them. The port is the first line of output.
    async fn serve<F: Future<Output = io::Result<()>> + 'static>(
        serve_one: fn(windlass::net::TcpStream) -> F,
    ) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().await?;
            connections.push(windlass::spawn(serve_one(stream)));
        }
        for connection in connections {
            connection.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// As [`echo`], with a time limit for each request.
    async fn echo_in_time(stream: windlass::net::TcpStream) -> io::Result<()> {
        loop {
            let request = timeout(Duration::from_secs(60), stream.read_managed()).await??;
            if request.is_empty() {
                return Ok(());
            }
            stream.write_all(request).await.0?;
        }
    }

    #[cfg(feature = "hyper")]
    async fn http(stream: windlass::net::TcpStream) -> io::Result<()> {
        use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
        type Body = http_body_util::Full<hyper::body::Bytes>;
        async fn hello(_: Request<Incoming>) -> Result<Response<Body>, std::convert::Infallible> {
            Ok(Response::new("hello".into()))
        }
        http1::Builder::new()
            .timer(windlass::hyper::Timer)
            .serve_connection(windlass::compat::Bridge::new(stream), service_fn(hello))
            .await
            .map_err(io::Error::other)
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

    /// As [`serve`] with [`echo`], on a pool, which is stopped when all connections have been accepted, and ends when they have been closed.
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

    /// The instructions of a program that carries out this many operations, on each shard.
    fn count(workload: &str, driver: Driver, shards: usize, operations: usize) -> io::Result<u64> {
        let (role, number) = match shards {
            0 => (workload, operations),
            _ => ("shards", shards),
        };
        let mut program = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            // Valgrind runs one thread at a time: without this, one shard may keep the others waiting.
            .args((shards > 1).then_some("--fair-sched=yes"))
            .arg(std::env::current_exe()?)
            .args(["--role", role, driver.name, &number.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("start valgrind, which this bench needs: {error}"))
            })?;
        let mut line = String::new();
        BufReader::new(program.stdout.take().expect("it is piped")).read_line(&mut line)?;
        // Only servers print a port.
        let loaded = match line.trim().parse::<u16>() {
            Err(_) => Ok(()),
            Ok(port) => {
                let request: &[u8] = match workload {
                    "http" => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                    _ => &[7; REQUEST_LEN],
                };
                load(
                    &program,
                    port,
                    CONNECTIONS * shards.max(1),
                    operations / CONNECTIONS,
                    request,
                )
            }
        };
        if loaded.is_err() {
            // It may be stopped.
            program.kill()?;
        }
        let output = program.wait_with_output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        loaded.map_err(|error| io::Error::new(error.kind(), format!("load the server: {error}: {report}")))?;
        if !output.status.success() {
            return Err(io::Error::other(format!("the program failed: {report}")));
        }
        let collected = report.split("Collected :").nth(1).map(str::trim_start);
        let digits = collected.and_then(|text| text.split_whitespace().next());
        let total = digits.and_then(|digits| digits.parse().ok());
        total.ok_or_else(|| io::Error::other(format!("callgrind printed no count: {report}")))
    }

    /// Sends this many rounds of requests, one on each connection. The server is stopped while a round is sent, so that one turn
    /// finds all of it, whatever else the machine does. All answers have the length of the first, which must arrive whole, as
    /// small ones do on the loopback device.
    fn load(server: &Child, port: u16, connections: usize, rounds: usize, request: &[u8]) -> io::Result<()> {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            client.set_nodelay(true)?;
            clients.push(client);
        }
        let mut answer = vec![0; 4096];
        clients[0].write_all(request)?;
        let len = clients[0].read(&mut answer)?;
        for _ in 0..rounds {
            signal(server, libc::SIGSTOP)?;
            for client in &mut clients {
                client.write_all(request)?;
            }
            signal(server, libc::SIGCONT)?;
            for client in &mut clients {
                client.read_exact(&mut answer[..len])?;
            }
        }
        Ok(())
    }

    fn signal(process: &Child, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: the process was not waited for, so its number is still its own.
        match unsafe { libc::kill(process.id() as libc::pid_t, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
