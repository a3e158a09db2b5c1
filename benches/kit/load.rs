//! The load: some connections, each with some requests in the air, driven by one epoll loop without threads.
//!
//! A request goes out as soon as an echo is complete, so the load is as fast as the server lets it be, up to what one
//! core can send. Each echo is compared with what was sent, and timed from its request's first byte.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::clock::least_timer_slack;
use super::epoll::{Epoll, Events, Interest};
use super::histogram::Histogram;
use super::process::{Process, own_cpu_time};

/// How long a server may stay silent before the round is given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// How the server is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) request_len: usize,
    /// Requests that a connection sends before it waits for an echo.
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

/// What one round measured.
#[derive(Clone)]
pub(crate) struct Round {
    pub(crate) requests: u64,
    pub(crate) wall: Duration,
    /// The server's processor time in this round.
    pub(crate) cpu: Duration,
    /// This process's own.
    pub(crate) load_cpu: Duration,
    /// From the request to the end of its echo.
    pub(crate) latency: Histogram,
}

impl Round {
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.wall.as_secs_f64()
    }

    /// Processor time of the server per request, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    /// The share of the time in which the server had its core.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu.div_duration_f64(self.wall)
    }

    /// The share of the time in which the load had its core.
    pub(crate) fn load_busy(&self) -> f64 {
        self.load_cpu.div_duration_f64(self.wall)
    }
}

/// Drives `server`, which listens on `port`, for `warm_up` and then for `length`, which is measured.
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

/// Drives `server` with one connection and a request every so often, whatever the echo of the last one took, and sleeps in
/// between: a server that has little to do.
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
            false => Err(io::Error::new(ErrorKind::InvalidData, "the echo is not what was sent")),
        }
    };
    // As with the others, the beginning does not count: here a tenth as much as is measured.
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

/// Connections to a server, each of which has had an echo.
pub(crate) struct Load {
    epoll: Epoll,
    events: Events,
    connections: Vec<Connection>,
    request: Vec<u8>,
    buffer: Vec<u8>,
    latency: Histogram,
}

struct Connection {
    stream: TcpStream,
    /// When each request that is in the air was begun.
    begun: VecDeque<Instant>,
    /// How much of the first of their echoes has come back.
    received: usize,
    /// How much there is still to send: of whole requests, and the rest of one before them.
    unsent: usize,
    interest: Interest,
}

impl Load {
    /// Opens the connections and sends the first requests on each.
    pub(crate) fn connect(port: u16, shape: Shape) -> io::Result<Load> {
        let request: Vec<u8> = (0..shape.request_len).map(|at| (at % 251) as u8).collect();
        let mut load = Load {
            epoll: Epoll::new()?,
            events: Events::new(),
            connections: Vec::with_capacity(shape.connections),
            buffer: vec![0; request.len().max(64 * 1024)],
            request,
            latency: Histogram::default(),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for id in 0..shape.connections {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            load.epoll.add(stream.as_raw_fd(), id as u64, Interest::Read)?;
            let mut connection = Connection {
                stream,
                begun: VecDeque::with_capacity(shape.in_flight),
                received: 0,
                unsent: 0,
                interest: Interest::Read,
            };
            let now = Instant::now();
            connection.ask(shape.in_flight, now, &load.request);
            connection.send(&load.request, &load.epoll, id as u64)?;
            load.connections.push(connection);
        }
        Ok(load)
    }

    /// Goes on until then, and says how many echoes were completed.
    pub(crate) fn run_until(&mut self, end: Instant) -> io::Result<u64> {
        self.run(|now, _| now >= end)
    }

    /// Goes on until so many more echoes were completed.
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

    /// Waits for at most so many milliseconds, and says how many echoes were completed.
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
                    connection.ask(done, now, &self.request);
                }
            }
            if connection.unsent > 0 || event.writable {
                connection.send(&self.request, &self.epoll, event.id)?;
            }
        }
        Ok(echoes)
    }
}

impl Connection {
    /// Has that many more requests to send.
    fn ask(&mut self, count: usize, now: Instant, request: &[u8]) {
        self.begun.extend(std::iter::repeat_n(now, count));
        self.unsent += count * request.len();
    }

    /// Takes what has come; gives how many echoes were completed.
    fn receive(&mut self, buffer: &mut [u8], request: &[u8]) -> io::Result<usize> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
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
                return Err(io::Error::new(ErrorKind::InvalidData, "the echo is not what was sent"));
            }
            echo = &echo[len..];
            self.received += len;
            if self.received == request.len() {
                self.received = 0;
                done += 1;
            }
        }
        if done > self.begun.len() {
            return Err(io::Error::new(ErrorKind::InvalidData, "more came back than was sent"));
        }
        Ok(done)
    }

    /// Sends until all is sent or the kernel takes no more, and watches for what is to happen next.
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
