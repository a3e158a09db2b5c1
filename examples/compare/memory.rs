//! The memory of an idle connection: the growth of a server's resident size after a number of connections with one echo
//! each. The kernel's memory for a socket is not included: it is the same for every contender.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::contender::{Field, Kind};
use super::kit::machine::Machine;
use super::kit::progress::Progress;
use super::limits::Limits;
use super::options::Plan;
use super::serve::Server;

const REQUEST: [u8; 64] = [7; 64];

/// Estimates for the progress bar: opening a connection with its echo, and starting a server.
const SECONDS_PER_CONNECTION: f64 = 100e-6;
const SECONDS_PER_START: f64 = 0.3;

pub(crate) struct Memory {
    pub(crate) kind: Kind,
    pub(crate) connections: usize,
    pub(crate) bytes_before: u64,
    pub(crate) bytes_after: u64,
}

impl Memory {
    pub(crate) fn per_connection(&self) -> f64 {
        self.bytes_after.saturating_sub(self.bytes_before) as f64 / self.connections as f64
    }
}

pub(crate) fn weight_of_one(plan: &Plan) -> f64 {
    SECONDS_PER_START + plan.idle_connections as f64 * SECONDS_PER_CONNECTION
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    limits: &Limits,
    field: &Field,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Memory> {
    let connections = limits.connections(plan.idle_connections);
    if connections < plan.idle_connections {
        missing.push(format!(
            "memory at {} connections: RLIMIT_NOFILE is {}, so {connections} were used",
            plan.idle_connections, limits.descriptors
        ));
    }
    let mut all = Vec::new();
    for kind in field.servers() {
        let title = kind.title();
        progress.step_of(weight_of_one(plan), &format!("{connections} idle connections: {title}"));
        match measure_one(kind, machine, field, connections) {
            Ok(memory) => all.push(memory),
            Err(error) => missing.push(format!("memory, {title}: {error}")),
        }
    }
    all
}

fn measure_one(kind: Kind, machine: &Machine, field: &Field, connections: usize) -> io::Result<Memory> {
    let server = Server::start(kind, machine, field)?;
    // Memory allocated for the first connection counts as the server's.
    drop(open(server.port)?);
    let bytes_before = server.process.memory()?;
    let mut streams = Vec::with_capacity(connections);
    for _ in 0..connections {
        streams.push(open(server.port)?);
    }
    Ok(Memory {
        kind,
        connections,
        bytes_before,
        bytes_after: server.process.memory()?,
    })
}

/// Opens a connection and exchanges one echo.
fn open(port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&REQUEST)?;
    let mut echo = [0; REQUEST.len()];
    stream.read_exact(&mut echo)?;
    match echo == REQUEST {
        true => Ok(stream),
        false => Err(io::Error::other("the echo differs from the request")),
    }
}
