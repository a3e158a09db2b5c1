//! The accepting servers, the client, and the table.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::SockRef;
use windlass::net::TcpListener;

use crate::kit::drivers::Driver;
use crate::kit::epoll::{Epoll, Events, Interest};
use crate::kit::hand_epoll::{listen, print_port};
use crate::kit::machine::Machine;
use crate::kit::options::{self, Options};
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::rounds::{Way, interleave, table};
use crate::kit::server;
use crate::kit::text::{nanos, thousands};

const USAGE: &str = "\
usage: cargo bench --bench accept -- [--only echo|burst] [--driver proactor|reactor] [--rounds N] [--seconds S]";

const PARTS: [&str; 2] = ["echo", "burst"];

/// Connections opened at once.
const BURST: usize = 64;

pub(crate) fn main() -> io::Result<()> {
    if let Some(role) = options::role() {
        let word = |at: usize| role.get(at).map_or("", String::as_str);
        return match word(0) {
            "echo" => server::echo(word(1)),
            _ => accept_only(word(1)),
        };
    }
    let options = Options::read(USAGE, &["--only", "--driver", "--rounds", "--seconds"]);
    let (rounds, length) = (options.number("--rounds", 5), options.seconds("--seconds", 0.6));
    let parts: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| options.wants("--only", part, &PARTS))
        .collect();
    let machine = Machine::look();
    let mut names = vec!["epoll"];
    names.extend(options.drivers().iter().map(|driver| driver.name));
    println!("{machine}\nmedians of {rounds} interleaved rounds of {length:?} each");
    machine.pin_to_load();
    for part in parts {
        measure(part, &names, machine.server_core(), rounds, length)?;
    }
    Ok(())
}

fn measure(part: &str, names: &[&str], core: Option<usize>, rounds: usize, length: Duration) -> io::Result<()> {
    let progress = RefCell::new(Progress::new(names.len() * rounds));
    let mut servers = Vec::new();
    for name in names {
        servers.push(server::start(&[part, name], core)?);
    }
    // The servers' CPU time in each round.
    let cpu = RefCell::new(vec![Vec::new(); names.len()]);
    let mut ways = Vec::new();
    for (at, (process, port)) in servers.iter().enumerate() {
        let (progress, cpu) = (&progress, &cpu);
        ways.push(Way::new(names[at], move || {
            progress.borrow_mut().step(&format!("{part}, {}", names[at]));
            let (rate, nanos) = round(process, *port, part == "echo", length)?;
            cpu.borrow_mut()[at].push(nanos);
            Ok(rate)
        }));
    }
    let measured = interleave(rounds, ways);
    progress.into_inner().finish();
    let title = match part {
        "echo" => "connect, echo a byte, close",
        _ => "connect, be closed",
    };
    print!("\n{}", table(title, "per second", &measured, thousands));

    let mut cpu = cpu.into_inner().into_iter();
    let mut rows = measured;
    for row in &mut rows {
        let figures = cpu.next().unwrap_or_default();
        row.figures = row.figures.clone().map(|_| figures);
    }
    print!("{}", table("", "server cpu each", &rows, nanos));
    Ok(())
}

/// Connections per second, and the server's CPU time per connection in nanoseconds.
fn round(server: &Process, port: u16, echoes: bool, length: Duration) -> io::Result<(f64, f64)> {
    let (begin, cpu) = (Instant::now(), server.cpu_time()?);
    let mut streams = Vec::with_capacity(BURST);
    let mut count = 0;
    while begin.elapsed() < length {
        for _ in 0..BURST {
            let mut stream = match TcpStream::connect(("127.0.0.1", port)) {
                // Accepted and closed before connect returned.
                Err(error) if !echoes && error.kind() == ErrorKind::ConnectionReset => continue,
                result => result?,
            };
            if echoes {
                stream.write_all(b"?")?;
            }
            streams.push(stream);
        }
        for mut stream in streams.drain(..) {
            let mut byte = [0];
            let received = match stream.read(&mut byte) {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
                result => result?,
            };
            if received != usize::from(echoes) {
                return Err(io::Error::other("unexpected answer of the server"));
            }
            if echoes {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            }
        }
        count += BURST;
    }
    let (wall, cpu) = (begin.elapsed(), server.cpu_time()?.saturating_sub(cpu));
    let each = cpu.as_nanos() as f64 / count as f64;
    Ok((count as f64 / wall.as_secs_f64(), each))
}

/// Accepts and closes until killed. The server sends the RST: the side that closes first would keep the port.
fn accept_only(kind: &str) -> io::Result<()> {
    let Some(driver) = Driver::named(kind) else {
        return accept_by_hand();
    };
    driver.open()?.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        }
    })?
}

fn accept_by_hand() -> io::Result<()> {
    let listener = listen()?;
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd(), 0, Interest::Read)?;
    let mut events = Events::new();
    loop {
        epoll.wait(&mut events, -1)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => SockRef::from(&stream).set_linger(Some(Duration::ZERO))?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}
