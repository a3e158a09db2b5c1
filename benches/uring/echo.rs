//! The echo server, and its rounds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, squeue, types};

use crate::kit::hand_epoll::listen;
use crate::kit::hand_uring::Buffers;
use crate::kit::limits::want_open_files;
use crate::kit::load::{Load, Shape};
use crate::kit::machine::Machine;
use crate::kit::options::Options;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Way, interleave, table};
use crate::kit::text::nanos;
use crate::kit::{server, syscalls};
use crate::ring::{BUFFERS, Ring, Setup};

/// The compared servers. The first one does what windlass does; the second, which does the same, shows the noise.
const RECEIVES: [&str; 3] = ["one-shot", "one-shot again", "multishot"];
const SETUPS: [&str; 7] = [
    "as windlass",
    "the same again",
    "without POLL_FIRST",
    "NO_SQARRAY",
    "registered ring",
    "without NO_IOWAIT",
    "without EXT_ARG",
];

/// The user data of an operation: the kind, the buffer of a send, the connection.
const ACCEPT: u64 = 0;
const RECV: u64 = 1 << 32;
const SEND: u64 = 2 << 32;

/// `IORING_RECVSEND_POLL_FIRST`.
const POLL_FIRST: u16 = 1;

/// Serves until killed.
pub(crate) fn serve(way: &str) -> io::Result<()> {
    let is_multishot = way == "multishot";
    let mut ring = Ring::open(Setup {
        no_sqarray: way == "NO_SQARRAY",
        registered: way == "registered ring",
        io_wait: way == "without NO_IOWAIT",
        plain_arguments: way == "without EXT_ARG",
    })?;
    let receive = |place: usize, drained: bool| {
        let fd = types::Fd(place as i32);
        let entry = match is_multishot {
            true => opcode::RecvMulti::new(fd, 0).build(),
            false => opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                .buf_group(0)
                .ioprio(if drained && way != "without POLL_FIRST" {
                    POLL_FIRST
                } else {
                    0
                })
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
        };
        entry.user_data(RECV | place as u64)
    };
    let mut buffers = Buffers::register(&ring.inner, BUFFERS)?;
    let listener = listen()?;
    let none = std::ptr::null_mut();
    let accept = opcode::Accept::new(types::Fd(listener.as_raw_fd()), none, none.cast())
        .flags(libc::SOCK_CLOEXEC)
        .build()
        .user_data(ACCEPT);
    // Indexed by descriptor: the connection, and whether its last receive took everything.
    let mut connections: Vec<Option<(OwnedFd, bool)>> = Vec::new();
    // Connections that found no buffer: they receive again as soon as there is one.
    let mut starved = Vec::new();
    push(&mut ring, &accept)?;
    loop {
        ring.enter(1)?;
        while let Some((user_data, result, flags)) = ring.next() {
            let place = user_data as u32 as usize;
            match user_data & (0xff << 32) {
                ACCEPT => {
                    if result >= 0 {
                        // SAFETY: the accept has just made this descriptor, and it has no other owner.
                        let stream = std::net::TcpStream::from(unsafe { OwnedFd::from_raw_fd(result) });
                        stream.set_nodelay(true)?;
                        let place = result as usize;
                        connections.resize_with(connections.len().max(place + 1), || None);
                        connections[place] = Some((stream.into(), false));
                        push(&mut ring, &receive(place, false))?;
                    }
                    push(&mut ring, &accept)?;
                }
                RECV if result > 0 => {
                    let index = cqueue::buffer_select(flags).expect("received bytes have a buffer");
                    buffers.left -= 1;
                    if let Some((_, drained)) = &mut connections[place] {
                        *drained = !cqueue::sock_nonempty(flags);
                    }
                    let fd = types::Fd(place as i32);
                    let entry = opcode::Send::new(fd, buffers.address(index), result as u32)
                        .flags(libc::MSG_NOSIGNAL)
                        .build()
                        .user_data(SEND | u64::from(index) << 40 | place as u64);
                    push(&mut ring, &entry)?;
                    if is_multishot && !cqueue::more(flags) {
                        push(&mut ring, &receive(place, false))?;
                    }
                }
                RECV if result == -libc::ENOBUFS => starved.push(place),
                RECV => connections[place] = None,
                _ => {
                    buffers.give((user_data >> 40) as u16);
                    if !is_multishot && let Some((_, drained)) = &connections[place] {
                        push(&mut ring, &receive(place, *drained))?;
                    }
                }
            }
        }
        // If none is left, sends are in flight, and each returns a buffer.
        if buffers.left > 0 {
            for place in starved.drain(..) {
                push(&mut ring, &receive(place, false))?;
            }
        }
    }
}

fn push(ring: &mut Ring, entry: &squeue::Entry) -> io::Result<()> {
    // SAFETY: entries point to the shared buffers, which are never freed. A buffer is given back to the ring after its
    // send has completed.
    unsafe { ring.push(entry) }
}

/// A server and its connections.
struct Loaded {
    process: Process,
    load: Load,
}

impl Loaded {
    /// The server's CPU time per request, in nanoseconds.
    fn round(&mut self, length: Duration) -> io::Result<f64> {
        let before = self.process.cpu_time()?;
        let requests = self.load.run_until(Instant::now() + length)?;
        let used = self.process.cpu_time()? - before;
        Ok(used.as_nanos() as f64 / requests.max(1) as f64)
    }
}

pub(crate) fn receives(options: &Options) -> io::Result<()> {
    compare(options, &RECEIVES, &[1, 10, 50, 200, 1000])
}

pub(crate) fn setups(options: &Options) -> io::Result<()> {
    compare(options, &SETUPS, &[1, 50])
}

fn compare(options: &Options, names: &[&'static str], counts: &[usize]) -> io::Result<()> {
    let counts = options.numbers("--connections", counts);
    let (rounds, length) = (options.number("--rounds", 60), options.seconds("--seconds", 0.02));
    let request_len = options.number("--request", 1024);
    let most = counts.iter().max().copied().unwrap_or(0);
    want_open_files((most * names.len()) as u64 + 100)?;
    let machine = Machine::look();
    let mut progress = Progress::new(counts.len());
    for connections in counts {
        let shape = Shape {
            connections,
            request_len,
            in_flight: 1,
        };
        progress.step(&format!("echo, {shape}"));
        let mut servers = Vec::new();
        for &way in names {
            let (process, port) = server::start(&["echo", way], machine.server_core())?;
            let mut load = Load::connect(port, shape)?;
            load.run_for(20 * connections as u64)?;
            servers.push((way, Loaded { process, load }));
        }
        let ways = servers
            .iter_mut()
            .map(|(way, loaded)| Way::new(*way, || loaded.round(length)));
        let measured = interleave(rounds, ways.collect());
        println!("{}", table(&shape.to_string(), "CPU/request", &measured, nanos));
        let requests = 50 * connections as u64 + 1000;
        for (way, loaded) in &mut servers {
            let (done, calls) = syscalls::count(&loaded.process, || loaded.load.run_for(requests))?;
            println!("  {way}: {:.3} system calls per request", calls as f64 / done as f64);
        }
        println!();
    }
    progress.finish();
    Ok(())
}
