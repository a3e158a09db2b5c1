//! The rounds and the table.

use std::io;
use std::time::Duration;

use crate::kit::limits::want_open_files;
use crate::kit::load::{self, Round, Shape};
use crate::kit::machine::Machine;
use crate::kit::options::{self, Options};
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::server;
use crate::kit::stats::{Spread, paired_ratio};
use crate::kit::text::{cells, lay_out, nanos, ratio, thousands};

const USAGE: &str = "\
usage: cargo bench --bench echo -- [--connections N,..] [--bytes N,..] [--in-flight N,..] [--driver proactor|reactor]
                                   [--rounds N] [--seconds S]";

const NAMES: [&str; 6] = [
    "--connections",
    "--bytes",
    "--in-flight",
    "--driver",
    "--rounds",
    "--seconds",
];

const WARM_UP: Duration = Duration::from_millis(80);

struct Server {
    name: &'static str,
    process: Process,
    port: u16,
}

pub(crate) fn main() -> io::Result<()> {
    if let Some(role) = options::role() {
        return server::echo(role.first().map_or("", String::as_str));
    }
    let options = Options::read(USAGE, &NAMES);
    let shapes = shapes(&options);
    let (rounds, length) = (options.number("--rounds", 3), options.seconds("--seconds", 0.2));
    let most = shapes.iter().map(|shape| shape.connections).max().unwrap_or(0);
    // The servers inherit the limit. Shapes that exceed it are left out below.
    let _ = want_open_files(open_files(most));

    let machine = Machine::look();
    let mut names = vec!["epoll"];
    names.extend(options.drivers().iter().map(|driver| driver.name));
    let servers = start(&names, machine.server_core())?;
    machine.pin_to_load();
    println!("{machine}\nmedians of {rounds} interleaved rounds of {length:?} each\n");

    let mut rows = vec![cells([
        "", "", "req/s", "cpu/req", "p50", "p99", "req/s x", "cpu x", "load", "",
    ])];
    let mut progress = Progress::new(shapes.len());
    let mut failures = String::new();
    for &shape in &shapes {
        progress.step(&shape.to_string());
        match measure(&servers, shape, rounds, length) {
            Ok(measured) => rows.extend(tell(&servers, shape, &measured)),
            Err(error) => failures += &format!("  {shape} was left out: {error}\n"),
        }
    }
    progress.finish();
    print!("{}{failures}", lay_out(&rows, &[0, 1, 9]));
    println!("\n  x: ratio to hand-written epoll, median of the rounds");
    Ok(())
}

fn shapes(options: &Options) -> Vec<Shape> {
    let connections = options.numbers("--connections", &[1, 50, 1000]);
    let lens = options.numbers("--bytes", &[64, 1024, 64 * 1024]);
    let depths = options.numbers("--in-flight", &[1, 16]);
    let mut shapes = Vec::new();
    for &connections in &connections {
        for &request_len in &lens {
            for &in_flight in &depths {
                shapes.push(Shape {
                    connections,
                    request_len,
                    in_flight,
                });
            }
        }
    }
    shapes
}

fn start(names: &[&'static str], core: Option<usize>) -> io::Result<Vec<Server>> {
    let start = |&name| {
        let (process, port) = server::start(&[name], core)?;
        Ok(Server { name, process, port })
    };
    names.iter().map(start).collect()
}

/// The descriptors of a process with this many connections.
fn open_files(connections: usize) -> u64 {
    connections as u64 + 100
}

/// The rounds of each server.
fn measure(servers: &[Server], shape: Shape, rounds: usize, length: Duration) -> io::Result<Vec<Vec<Round>>> {
    want_open_files(open_files(shape.connections))?;
    let mut measured = vec![Vec::new(); servers.len()];
    // Long enough that the first requests have been echoed once; a gibibyte of them takes a while.
    let in_flight = shape.connections * shape.request_len * shape.in_flight;
    let warm_up = WARM_UP + Duration::from_nanos(in_flight as u64);
    for round in 0..rounds {
        for turn in 0..servers.len() {
            // Each round starts with the next server.
            let index = (round + turn) % servers.len();
            let server = &servers[index];
            let result = load::drive(&server.process, server.port, shape, warm_up, length);
            measured[index].push(result.map_err(|error| io::Error::other(format!("{}: {error}", server.name)))?);
        }
    }
    Ok(measured)
}

fn tell(servers: &[Server], shape: Shape, measured: &[Vec<Round>]) -> Vec<Vec<String>> {
    let median = |rounds: &[Round], figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure)).median;
    let beside = |rounds: &[Round], figure: fn(&Round) -> f64| {
        let ratio_to_hand = paired_ratio(rounds.iter().map(figure), measured[0].iter().map(figure));
        ratio(ratio_to_hand.median)
    };
    let row = |(at, rounds): (usize, &Vec<Round>)| {
        let rate = Spread::of(rounds.iter().map(Round::rate));
        vec![
            if at == 0 { shape.to_string() } else { String::new() },
            servers[at].name.to_string(),
            thousands(rate.median),
            nanos(median(rounds, Round::cpu_micros) * 1e3),
            nanos(median(rounds, |round| round.latency.nanos(0.5))),
            nanos(median(rounds, |round| round.latency.nanos(0.99))),
            beside(rounds, Round::rate),
            beside(rounds, Round::cpu_micros),
            format!("{:.0} %", median(rounds, Round::load_busy) * 100.0),
            if rate.is_noisy() { "noisy" } else { "" }.to_string(),
        ]
    };
    measured.iter().enumerate().map(row).collect()
}
