//! The load generator: connections with one or more in-flight requests each, driven by one epoll loop without threads.
//!
//! A request is sent as soon as an echo is complete, so the rate is limited by the server, or by the core of the load
//! generator. Each echo is compared with its request, and timed from the first byte of the request.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::clock::least_timer_slack;
use super::epoll::{Epoll, Events, Interest};
use super::histogram::Histogram;
use super::process::{Process, own_cpu_time};

/// The time without an answer after which a round fails.
const PATIENCE: Duration = Duration::from_secs(3);

/// Connections that are opened before the server has answered on each of them. Fewer than the smallest default backlog of
/// the servers (128), so that no accept queue overflows: the kernel would then drop handshakes and retry after a second.
const BATCH: usize = 64;

/// Connections from one loopback address, 127.0.0.1 and those after it. `connect` searches one half of the ephemeral ports
/// (28,232 by default) first, and gets slow when that half is full.
const PER_SOURCE: usize = 10_000;

/// The shape of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) request_len: usize,
    /// In-flight requests per connection.
    pub(crate) in_flight: usize,
}

impl std::fmt::Display for Shape {
    /// `50 x 1 KiB`, `50 x 1 KiB, 16 in flight`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} x {}",
            self.connections,
            super::text::bytes(self.request_len as f64)
        )?;
        match self.in_flight {
            1 => Ok(()),
            many => write!(f, ", {many} in flight"),
        }
    }
}

/// The results of one round.
#[derive(Clone)]
pub(crate) struct Round {
    pub(crate) requests: u64,
    pub(crate) wall: Duration,
    /// The server's CPU time in this round.
    pub(crate) cpu: Duration,
    /// The CPU time of this process.
    pub(crate) load_cpu: Duration,
    /// The time from a request to the end of its echo.
    pub(crate) latency: Histogram,
}

impl Round {
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.wall.as_secs_f64()
    }

    /// The server's CPU time per request, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    /// The server's CPU use, as a share of the time.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu.div_duration_f64(self.wall)
    }

    /// The load generator's CPU use, as a share of the time.
    pub(crate) fn load_busy(&self) -> f64 {
        self.load_cpu.div_duration_f64(self.wall)
    }
}

/// Loads `server` on `port` for `warm_up`, and then measures for `length`.
pub(crate) fn drive(
    server: &Process,
    port: u16,
    shape: Shape,
    warm_up: Duration,
    length: Duration,
) -> io::Result<Round> {
    let mut load = Load::connect(port, shape)?;
    load.run_until(Instant::now() + warm_up)?;
    load.latency = Histogram::default();

    let (begin, cpu, load_cpu) = (Instant::now(), server.cpu_time()?, own_cpu_time()?);
    let requests = load.run_until(begin + length)?;
    Ok(Round {
        requests,
        wall: begin.elapsed(),
        cpu: server.cpu_time()?.saturating_sub(cpu),
        load_cpu: own_cpu_time()?.saturating_sub(load_cpu),
        latency: load.latency,
    })
}

/// Loads `server` with one connection and a request at fixed intervals, sleeping in between: a server with little to
/// do.
pub(crate) fn drive_paced(
    server: &Process,
    port: u16,
    request_len: usize,
    every: Duration,
    count: usize,
) -> io::Result<Round> {
    least_timer_slack();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request: Vec<u8> = (0..request_len).map(|at| (at % 251) as u8).collect();
    let mut echo = vec![0; request_len];
    let mut ask = |due: Instant| {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut echo)?;
        match echo == request {
            true => Ok(begun.elapsed()),
            false => Err(io::Error::new(
                ErrorKind::InvalidData,
                "the echo differs from the request",
            )),
        }
    };
    // A warm-up, as for the other loads: a tenth of the measured requests.
    let start = Instant::now();
    let warm_up = (count / 10).max(1) as u32;
    for turn in 0..warm_up {
        ask(start + every * turn)?;
    }
    let mut latency = Histogram::default();
    let (begin, cpu, load_cpu) = (Instant::now(), server.cpu_time()?, own_cpu_time()?);
    for turn in 1..=count as u32 {
        latency.add(ask(begin + every * turn)?);
    }
    Ok(Round {
        requests: count as u64,
        wall: begin.elapsed(),
        cpu: server.cpu_time()?.saturating_sub(cpu),
        load_cpu: own_cpu_time()?.saturating_sub(load_cpu),
        latency,
    })
}

/// Open connections to a server, each with one echo completed.
pub(crate) struct Load {
    epoll: Epoll,
    events: Events,
    connections: Vec<Connection>,
    request: Vec<u8>,
    buffer: Vec<u8>,
    latency: Histogram,
    /// Whether a completed echo is followed by the next request: not while the connections are opened.
    is_started: bool,
}

struct Connection {
    stream: TcpStream,
    /// The start times of the in-flight requests.
    begun: VecDeque<Instant>,
    /// Bytes received of the first outstanding echo.
    received: usize,
    /// Bytes left to send: the rest of one request, and whole requests.
    unsent: usize,
    interest: Interest,
}

impl Load {
    /// Opens the connections, with one echo on each, and sends the first requests to be counted.
    pub(crate) fn connect(port: u16, shape: Shape) -> io::Result<Load> {
        let mut load = Load::open(port, shape)?;
        load.is_started = true;
        for id in 0..load.connections.len() {
            load.ask(id, shape.in_flight)?;
        }
        Ok(load)
    }

    /// Opens the connections, with one echo on each; they are idle then.
    pub(crate) fn open(port: u16, shape: Shape) -> io::Result<Load> {
        let request: Vec<u8> = (0..shape.request_len).map(|at| (at % 251) as u8).collect();
        let mut load = Load {
            epoll: Epoll::new()?,
            events: Events::new(),
            connections: Vec::with_capacity(shape.connections),
            buffer: vec![0; request.len().max(64 * 1024)],
            request,
            latency: Histogram::default(),
            is_started: false,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while load.connections.len() < shape.connections {
            let batch = BATCH.min(shape.connections - load.connections.len());
            for _ in 0..batch {
                load.add(&address, shape.in_flight)?;
            }
            load.run_for(batch as u64)?;
        }
        Ok(load)
    }

    /// Opens a connection and sends one request.
    fn add(&mut self, address: &SocketAddr, in_flight: usize) -> io::Result<()> {
        let id = self.connections.len();
        let stream = connect(address, id)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.epoll.add(stream.as_raw_fd(), id as u64, Interest::Read)?;
        self.connections.push(Connection {
            stream,
            begun: VecDeque::with_capacity(in_flight),
            received: 0,
            unsent: 0,
            interest: Interest::Read,
        });
        self.ask(id, 1)
    }

    fn ask(&mut self, id: usize, count: usize) -> io::Result<()> {
        let connection = &mut self.connections[id];
        connection.ask(count, Instant::now(), &self.request);
        connection.send(&self.request, &self.epoll, id as u64)
    }

    /// Runs until `end`, and returns the number of completed echoes.
    pub(crate) fn run_until(&mut self, end: Instant) -> io::Result<u64> {
        self.run(|now, _| now >= end)
    }

    /// Runs until `requests` more echoes are completed.
    pub(crate) fn run_for(&mut self, requests: u64) -> io::Result<u64> {
        self.run(|_, echoes| echoes >= requests)
    }

    fn run(&mut self, is_over: impl Fn(Instant, u64) -> bool) -> io::Result<u64> {
        let mut echoes = 0;
        let mut last_echo = Instant::now();
        loop {
            let now = Instant::now();
            if is_over(now, echoes) {
                return Ok(echoes);
            }
            echoes += self.step(100)?;
            if !self.events.is_empty() {
                last_echo = now;
            } else if now.duration_since(last_echo) > PATIENCE {
                return Err(io::Error::new(ErrorKind::TimedOut, "the server stopped answering"));
            }
        }
    }

    /// Waits for at most `millis` milliseconds, and returns the number of completed echoes.
    pub(crate) fn step(&mut self, millis: i32) -> io::Result<u64> {
        let mut echoes = 0;
        self.epoll.wait(&mut self.events, millis)?;
        for event in self.events.iter() {
            let connection = &mut self.connections[event.id as usize];
            if event.readable {
                let done = connection.receive(&mut self.buffer, &self.request)?;
                if done > 0 {
                    echoes += done as u64;
                    let now = Instant::now();
                    for begun in connection.begun.drain(..done) {
                        self.latency.add(now.duration_since(begun));
                    }
                    if self.is_started {
                        connection.ask(done, now, &self.request);
                    }
                }
            }
            if connection.unsent > 0 || event.writable {
                connection.send(&self.request, &self.epoll, event.id)?;
            }
        }
        Ok(echoes)
    }
}

/// Opens connection number `id`.
fn connect(address: &SocketAddr, id: usize) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Closing resets the connection, so that thousands do not stay in TIME_WAIT during the next measurement.
    socket.set_linger(Some(Duration::ZERO))?;
    if id >= PER_SOURCE {
        let source = Ipv4Addr::from(Ipv4Addr::LOCALHOST.to_bits() + (id / PER_SOURCE) as u32);
        socket.bind(&SocketAddr::from((source, 0)).into())?;
    }
    socket.connect_timeout(&(*address).into(), PATIENCE)?;
    Ok(socket.into())
}

impl Connection {
    /// Adds requests to send.
    fn ask(&mut self, count: usize, now: Instant, request: &[u8]) {
        self.begun.extend(std::iter::repeat_n(now, count));
        self.unsent += count * request.len();
    }

    /// Receives, and returns the number of completed echoes.
    fn receive(&mut self, buffer: &mut [u8], request: &[u8]) -> io::Result<usize> {
        let count = match self.stream.read(buffer) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut echo = &buffer[..count];
        let mut done = 0;
        while !echo.is_empty() {
            let expected = &request[self.received..];
            let len = echo.len().min(expected.len());
            if echo[..len] != expected[..len] {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "the echo differs from the request",
                ));
            }
            echo = &echo[len..];
            self.received += len;
            if self.received == request.len() {
                self.received = 0;
                done += 1;
            }
        }
        if done > self.begun.len() {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the server sent more than was requested",
            ));
        }
        Ok(done)
    }

    /// Sends until everything is sent or the socket is full, and updates the events of interest.
    fn send(&mut self, request: &[u8], epoll: &Epoll, id: u64) -> io::Result<()> {
        let mut is_full = false;
        while self.unsent > 0 && !is_full {
            let rest = match self.unsent % request.len() {
                0 => request.len(),
                rest => rest,
            };
            match self.stream.write(&request[request.len() - rest..]) {
                Ok(count) => self.unsent -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => is_full = true,
                Err(error) => return Err(error),
            }
        }
        let interest = match is_full {
            true => Interest::Both,
            false => Interest::Read,
        };
        if interest != self.interest {
            epoll.modify(self.stream.as_raw_fd(), id, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}
