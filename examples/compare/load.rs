//! The load: some connections, each with one request in the air, driven by one epoll loop without threads.
//!
//! A request goes out as soon as the echo of the one before is complete, so the load is as fast as the server lets it be,
//! up to what one core can send. Each echo is compared with what was sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::child::{Process, own_cpu_time};
use crate::serve::{Epoll, Events};

/// How long a server may stay silent before the round is given up.
const PATIENCE: Duration = Duration::from_secs(3);

/// What one round measured.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) requests: u64,
    pub(crate) wall: Duration,
    /// The server's processor time in this round.
    pub(crate) cpu: Duration,
    /// This process's own.
    pub(crate) load_cpu: Duration,
}

struct Connection {
    stream: TcpStream,
    /// How much of the current echo has come back.
    received: usize,
}

/// Drives `server`, which listens on `port`, for `warm_up` and then for `length`, which is measured.
pub(crate) fn drive(
    server: &Process,
    port: u16,
    (connections, request_len): (usize, usize),
    warm_up: Duration,
    length: Duration,
) -> io::Result<Round> {
    let request: Vec<u8> = (0..request_len).map(|at| at as u8).collect();
    let mut load = Load::connect(port, connections, request)?;
    load.run_until(Instant::now() + warm_up)?;

    let (begin, cpu, load_cpu) = (Instant::now(), server.cpu_time()?, own_cpu_time()?);
    let requests = load.run_until(begin + length)?;
    Ok(Round {
        requests,
        wall: begin.elapsed(),
        cpu: server.cpu_time()?.saturating_sub(cpu),
        load_cpu: own_cpu_time()?.saturating_sub(load_cpu),
    })
}

struct Load {
    epoll: Epoll,
    events: Events,
    connections: Vec<Connection>,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Load {
    /// Opens the connections and sends the first request on each.
    fn connect(port: u16, count: usize, request: Vec<u8>) -> io::Result<Load> {
        let mut load = Load {
            epoll: Epoll::new()?,
            events: Events::new(),
            connections: Vec::with_capacity(count),
            buffer: vec![0; request.len()],
            request,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for id in 0..count {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            load.epoll.add(stream.as_raw_fd(), id as u64)?;
            send(&mut stream, &load.request)?;
            load.connections.push(Connection { stream, received: 0 });
        }
        Ok(load)
    }

    /// Goes on until then, and says how many echoes were completed.
    fn run_until(&mut self, end: Instant) -> io::Result<u64> {
        let mut echoes = 0;
        let mut last_echo = Instant::now();
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(echoes);
            }
            let ready = self.epoll.wait(&mut self.events, 100)?;
            if !ready.is_empty() {
                last_echo = now;
            } else if now.duration_since(last_echo) > PATIENCE {
                return Err(io::Error::new(ErrorKind::TimedOut, "the server stopped answering"));
            }
            for &id in ready {
                let connection = &mut self.connections[id as usize];
                if connection.receive(&mut self.buffer, &self.request)? {
                    echoes += 1;
                    send(&mut connection.stream, &self.request)?;
                }
            }
        }
    }
}

impl Connection {
    /// Takes what has come; true when the echo is complete.
    fn receive(&mut self, buffer: &mut [u8], request: &[u8]) -> io::Result<bool> {
        let left = &request[self.received..];
        let count = match self.stream.read(&mut buffer[..left.len()]) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        if buffer[..count] != left[..count] {
            return Err(io::Error::new(ErrorKind::InvalidData, "the echo is not what was sent"));
        }
        self.received = (self.received + count) % request.len();
        Ok(self.received == 0)
    }
}

/// Sends a whole request. It fits the send buffer, which is empty, because the last echo is complete.
fn send(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    match stream.write(request)? {
        count if count == request.len() => Ok(()),
        _ => Err(io::Error::new(
            ErrorKind::WriteZero,
            "the kernel took only a part of a request",
        )),
    }
}
