//! Receiving one large stream.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;

use io_uring::{cqueue, opcode, squeue, types};

use crate::kit::clock::thread_time;
use crate::kit::hand_epoll::{BUFFER_LEN, listen};
use crate::kit::hand_uring::Buffers;
use crate::kit::machine::Machine;
use crate::kit::options::Options;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Way, interleave, table};
use crate::kit::server;
use crate::kit::text::nanos;
use crate::ring::{BUFFERS, Ring, Setup};

const MIB: usize = 1 << 20;

/// The bytes of a round.
const ROUND: usize = 64 * MIB;

#[derive(Clone, Copy, PartialEq)]
enum Receive {
    /// One-shot, one buffer of the ring.
    Single,
    /// Multishot, one buffer of the ring at a time.
    Multishot,
    /// One-shot, as many buffers of the ring as there are bytes.
    Bundle,
    MultishotBundle,
    /// One-shot, into one buffer of this size.
    Large(usize),
}

/// Sends to every connection until the peer closes it: each has its own thread.
pub(crate) fn source() -> io::Result<()> {
    for stream in listen()?.incoming() {
        let mut stream = stream?;
        std::thread::spawn(move || while stream.write_all(&[7; 256 * 1024]).is_ok() {});
    }
    Ok(())
}

/// One connection to the source, and its ring.
struct Receiver {
    ring: Ring,
    buffers: Buffers,
    large: Vec<u8>,
    stream: TcpStream,
    receive: Receive,
    is_armed: bool,
    completions: u64,
}

impl Receiver {
    fn connect(port: u16, receive: Receive) -> io::Result<Receiver> {
        let ring = Ring::open(Setup::default())?;
        let buffers = Buffers::register(&ring.inner, BUFFERS)?;
        let large = match receive {
            Receive::Large(len) => vec![0; len],
            _ => Vec::new(),
        };
        Ok(Receiver {
            ring,
            buffers,
            large,
            stream: TcpStream::connect((Ipv4Addr::LOCALHOST, port))?,
            receive,
            is_armed: false,
            completions: 0,
        })
    }

    fn entry(&mut self) -> squeue::Entry {
        let (fd, none) = (types::Fd(self.stream.as_raw_fd()), std::ptr::null_mut());
        match self.receive {
            Receive::Single => opcode::Recv::new(fd, none, 0)
                .buf_group(0)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            Receive::Multishot => opcode::RecvMulti::new(fd, 0).build(),
            Receive::Bundle => opcode::RecvBundle::new(fd, 0).build(),
            Receive::MultishotBundle => opcode::RecvMultiBundle::new(fd, 0).build(),
            Receive::Large(len) => opcode::Recv::new(fd, self.large.as_mut_ptr(), len as u32).build(),
        }
    }

    /// Receives `total` bytes, and reads one byte of each cache line.
    fn run(&mut self, total: usize) -> io::Result<()> {
        let (mut received, mut sum) = (0, 0u64);
        while received < total {
            if !self.is_armed {
                let entry = self.entry();
                // SAFETY: the ring's buffers are never freed; the large one lives as long as the ring, and a receive
                // into it has completed when this returns.
                unsafe { self.ring.push(&entry) }?;
                self.is_armed = true;
            }
            self.ring.enter(1)?;
            while let Some((_, result, flags)) = self.ring.next() {
                self.is_armed = cqueue::more(flags);
                self.completions += 1;
                if result == -libc::ENOBUFS {
                    continue;
                }
                if result <= 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                received += result as usize;
                let Some(first) = cqueue::buffer_select(flags) else {
                    sum += touch(&self.large[..result as usize]);
                    continue;
                };
                // The buffers return to the ring in the order in which the kernel used them, so a bundle's follow
                // each other.
                let mut left = result as usize;
                let mut index = first;
                while left > 0 {
                    let len = left.min(BUFFER_LEN);
                    // SAFETY: the kernel has received this many bytes into the buffer, and it is not in the ring.
                    sum += touch(unsafe { std::slice::from_raw_parts(self.buffers.address(index), len) });
                    self.buffers.give(index);
                    index = (index + 1) % BUFFERS;
                    left -= len;
                }
            }
        }
        std::hint::black_box(sum);
        Ok(())
    }
}

/// The same with windlass: managed reads, or reads into a buffer of this size.
async fn windlass_reads(port: u16, len: Option<usize>) -> io::Result<f64> {
    let stream = windlass::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let mut buffer = Vec::with_capacity(len.unwrap_or(0));
    let (mut received, mut sum, mut before) = (0, 0, None);
    while received < ROUND + 4 * MIB {
        if received >= 4 * MIB && before.is_none() {
            before = Some((thread_time(), received));
        }
        if len.is_none() {
            let bytes = stream.read_managed().await?;
            received += bytes.len();
            sum += touch(&bytes);
        } else {
            let result;
            (result, buffer) = stream.read(buffer).await;
            received += result?;
            sum += touch(&buffer);
        }
    }
    std::hint::black_box(sum);
    let (time, begin) = before.expect("a round is longer than its warm-up");
    Ok((thread_time() - time).as_nanos() as f64 / ((received - begin) as f64 / MIB as f64))
}

fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(64).map(|&byte| u64::from(byte)).sum()
}

pub(crate) fn main(options: &Options) -> io::Result<()> {
    let rounds = options.number("--rounds", 60).div_ceil(3);
    let machine = Machine::look();
    let (_source, port): (Process, u16) = server::start(&["source"], machine.server_core())?;
    let mut receivers = Vec::new();
    let all = [
        ("single buffers", Receive::Single),
        ("multishot", Receive::Multishot),
        ("bundles", Receive::Bundle),
        ("multishot bundles", Receive::MultishotBundle),
        ("16 KiB buffer", Receive::Large(16 * 1024)),
        ("64 KiB buffer", Receive::Large(64 * 1024)),
        ("256 KiB buffer", Receive::Large(256 * 1024)),
        ("1 MiB buffer", Receive::Large(MIB)),
    ];
    for (name, receive) in all {
        receivers.push((name, Receiver::connect(port, receive)?));
    }
    let mut progress = Progress::new(1);
    progress.step("bulk");
    let mut ways: Vec<Way<'_>> = Vec::new();
    for driver in options.drivers() {
        for (name, len) in [("read_managed", None), ("read of 64 KiB", Some(64 * 1024))] {
            ways.push(Way::new(format!("windlass, {name}, {}", driver.name), move || {
                driver.open()?.run_until_complete(windlass_reads(port, len))?
            }));
        }
    }
    ways.extend(receivers.iter_mut().map(|(name, receiver)| {
        Way::new(*name, || {
            // What has accumulated during the other rounds is not the same for all.
            receiver.run(4 * MIB)?;
            let before = thread_time();
            receiver.run(ROUND)?;
            Ok((thread_time() - before).as_nanos() as f64 / (ROUND / MIB) as f64)
        })
    }));
    let measured = interleave(rounds, ways);
    progress.finish();
    println!("{}", table("bulk receive", "CPU/MiB", &measured, nanos));
    let each = rounds * (ROUND + 4 * MIB) / 1024;
    for (name, receiver) in &receivers {
        println!(
            "  {name}: {:.0} KiB per completion",
            each as f64 / receiver.completions as f64
        );
    }
    println!();
    Ok(())
}
