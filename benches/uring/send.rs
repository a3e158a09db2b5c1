//! Sending with and without zero-copy.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, types};

use crate::kit::clock::thread_time;
use crate::kit::hand_epoll::print_port;
use crate::kit::machine::Machine;
use crate::kit::options::Options;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Way, interleave, table};
use crate::kit::server::{PATIENCE, port_of};
use crate::kit::text::{bytes, nanos};
use crate::ring::{Ring, Setup};

const MIB: usize = 1 << 20;

/// The bytes of a round.
const ROUND: usize = 32 * MIB;

/// `IORING_SEND_ZC_REPORT_USAGE`, and the bit in a notification that says that the data was copied.
const REPORT_USAGE: u16 = 1 << 3;
const COPIED: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq)]
enum Send {
    Copying,
    /// The next send starts when the peer has acknowledged the bytes: the buffer is free again only then.
    ZeroCopy,
    /// The next send starts at once, from another buffer.
    Pipelined,
}

/// Receives from every connection and discards. On all addresses: it may run in a network namespace of its own.
pub(crate) fn sink() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    print_port(listener.local_addr()?.port())?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut buffer = vec![0; 256 * 1024];
        std::thread::spawn(move || while stream.read(&mut buffer).is_ok_and(|count| count > 0) {});
    }
    Ok(())
}

/// One connection, its ring, and as many buffers as can be in flight.
struct Sender {
    ring: Ring,
    stream: TcpStream,
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    send: Send,
    notifications: u64,
    copied: u64,
}

impl Sender {
    fn new(stream: TcpStream, send: Send, len: usize, count: usize) -> io::Result<Sender> {
        stream.set_nodelay(true)?;
        Ok(Sender {
            ring: Ring::open(Setup::default())?,
            stream,
            buffers: vec![vec![7; len]; count],
            free: (0..count).collect(),
            send,
            notifications: 0,
            copied: 0,
        })
    }

    /// Starts a send of a free buffer.
    fn start(&mut self) -> io::Result<()> {
        let index = self.free.pop().expect("a buffer is free");
        let (fd, buffer) = (types::Fd(self.stream.as_raw_fd()), &self.buffers[index]);
        let (ptr, len, flags) = (buffer.as_ptr(), buffer.len() as u32, libc::MSG_NOSIGNAL);
        let entry = match self.send {
            Send::Copying => opcode::Send::new(fd, ptr, len).flags(flags | libc::MSG_WAITALL).build(),
            _ => opcode::SendZc::new(fd, ptr, len)
                .flags(flags | libc::MSG_WAITALL)
                .zc_flags(REPORT_USAGE)
                .build(),
        };
        // SAFETY: the buffers live as long as the ring, and each is free again after its last completion; `finish` waits
        // for all of them.
        unsafe { self.ring.push(&entry.user_data(index as u64)) }
    }

    /// Sends `total` bytes. Notifications of the last ones may be outstanding.
    fn run(&mut self, total: usize) -> io::Result<()> {
        let mut sent = 0;
        while sent < total {
            self.start()?;
            let mut is_sent = false;
            // One send at a time, as in windlass: its result, and a free buffer for the next.
            while !is_sent || self.free.is_empty() {
                sent += self.reap(&mut is_sent)?;
            }
        }
        Ok(())
    }

    /// Waits for completions, and returns the number of bytes sent.
    fn reap(&mut self, is_sent: &mut bool) -> io::Result<usize> {
        let mut sent = 0;
        self.ring.enter(1)?;
        while let Some((index, result, flags)) = self.ring.next() {
            if cqueue::notif(flags) {
                self.notifications += 1;
                self.copied += u64::from(result as u32 & COPIED != 0);
            } else {
                *is_sent = true;
                if result < 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                sent += result as usize;
            }
            if !cqueue::more(flags) {
                self.free.push(index as usize);
            }
        }
        Ok(sent)
    }

    /// Waits until every buffer is free.
    fn finish(&mut self) -> io::Result<()> {
        while self.free.len() < self.buffers.len() {
            self.reap(&mut false)?;
        }
        Ok(())
    }
}

pub(crate) fn main(options: &Options) -> io::Result<()> {
    let rounds = options.number("--rounds", 60).div_ceil(3);
    let lens = options.numbers("--bytes", &[16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20]);
    let address = options.value("--address").unwrap_or("127.0.0.1");
    let address: IpAddr = address.parse().map_err(io::Error::other)?;
    let mut sink = start_sink(options.value("--namespace"))?;
    let port = port_of(&mut sink, PATIENCE)?;
    let mut progress = Progress::new(lens.len());
    for len in lens {
        progress.step(&format!("send, {}", bytes(len as f64)));
        through(address, port, len, rounds)?;
        unread(len, rounds)?;
    }
    progress.finish();
    Ok(())
}

fn start_sink(namespace: Option<&str>) -> io::Result<Process> {
    let program = std::env::current_exe()?;
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--role", "sink"]);
    Process::start(command, Machine::look().server_core())
}

/// To a peer that reads.
fn through(address: IpAddr, port: u16, len: usize, rounds: usize) -> io::Result<()> {
    let connect = |send, count| Sender::new(TcpStream::connect((address, port))?, send, len, count);
    let mut senders = [
        ("copying", connect(Send::Copying, 1)?),
        ("zero-copy", connect(Send::ZeroCopy, 1)?),
        (
            "zero-copy, pipelined",
            connect(Send::Pipelined, (4 * MIB / len).max(4))?,
        ),
    ];
    let mut walls = Vec::new();
    let ways = senders.iter_mut().map(|(name, sender)| {
        let wall = Rc::new(Cell::new(Duration::ZERO));
        walls.push(wall.clone());
        Way::new(*name, move || {
            sender.run(MIB)?;
            let (before, begin) = (thread_time(), Instant::now());
            sender.run(ROUND)?;
            sender.finish()?;
            wall.set(wall.get() + begin.elapsed());
            Ok((thread_time() - before).as_nanos() as f64 / (ROUND / MIB) as f64)
        })
    });
    let measured = interleave(rounds, ways.collect());
    let title = format!("sends of {}", bytes(len as f64));
    print!("{}", table(&title, "CPU/MiB", &measured, nanos));
    for ((name, sender), wall) in senders.iter().zip(walls) {
        let rate = (rounds * ROUND / MIB) as f64 / wall.get().as_secs_f64();
        print!("  {name}: {rate:.0} MiB/s");
        match sender.notifications {
            0 => println!(),
            all => println!(
                ", {:.0} % of the sends copied",
                100.0 * sender.copied as f64 / all as f64
            ),
        }
    }
    println!();
    Ok(())
}

/// To a peer that does not read: what a send costs by itself.
fn unread(len: usize, rounds: usize) -> io::Result<()> {
    let each = |send| {
        let total = (8 * MIB).max(4 * len);
        let (stream, _peer) = unread_pair(total)?;
        let mut sender = Sender::new(stream, send, len, total / len)?;
        let before = thread_time();
        sender.run(total - len)?;
        disconnect(&sender.stream)?;
        sender.finish()?;
        Ok((thread_time() - before).as_nanos() as f64 / (total / MIB) as f64)
    };
    let ways = vec![
        Way::new("copying", move || each(Send::Copying)),
        Way::new("zero-copy", move || each(Send::Pipelined)),
    ];
    let title = format!("unread sends of {}", bytes(len as f64));
    println!("{}", table(&title, "CPU/MiB", &interleave(rounds, ways), nanos));
    Ok(())
}

/// A connection whose sender can queue `total` bytes.
fn unread_pair(total: usize) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let size = 2 * total as i32;
    // Without the system's limit, for a privileged process.
    // SAFETY: the kernel reads one local number.
    let code = unsafe {
        let (fd, size_len) = (stream.as_raw_fd(), size_of_val(&size) as u32);
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (&raw const size).cast(),
            size_len,
        )
    };
    if code != 0 {
        return Err(io::Error::other("a large send buffer needs CAP_NET_ADMIN"));
    }
    Ok((stream, listener.accept()?.0))
}

/// Frees the send queue, which ends the zero-copy sends, and resets the connection.
fn disconnect(stream: &TcpStream) -> io::Result<()> {
    let nowhere = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // SAFETY: the kernel reads one local address.
    match unsafe { libc::connect(stream.as_raw_fd(), &nowhere, size_of_val(&nowhere) as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
