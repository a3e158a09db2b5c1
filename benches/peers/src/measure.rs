//! Measures one round of one contender: starts the process, loads it or waits for it, and returns the figures.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::contender::Contender;
use crate::instructions;
use crate::kit::limits::want_open_files;
use crate::kit::load::{self, Load, Shape};
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::server::{PATIENCE, port_of};
use crate::plan::Job;
use crate::work::Task;

/// The time limit of a child process.
const WORK: Duration = Duration::from_secs(60);

/// Long enough for the last echo to be sent and the server to block.
const SETTLE: Duration = Duration::from_millis(300);

/// The calling thread may be on any core; the load runs on a separate, pinned thread.
pub(crate) fn measure(contender: Contender, job: &Job, machine: &Machine) -> io::Result<Vec<f64>> {
    if let Job::WorkAnywhere(task) = job {
        return work(contender, task, None);
    }
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            machine.pin_to_load();
            measure_here(contender, job, machine)
        });
        load.join()
            .unwrap_or_else(|_| Err(io::Error::other("the load panicked")))
    })
}

fn measure_here(contender: Contender, job: &Job, machine: &Machine) -> io::Result<Vec<f64>> {
    match *job {
        Job::Echo { shape, warm_up, length } => {
            want_open_files(shape.connections as u64 + 200)?;
            let (server, port) = serve(contender, shape.connections, machine)?;
            let round = load::drive(&server, port, shape, warm_up, length)?;
            Ok(vec![
                round.rate(),
                round.cpu_micros() * 1e3,
                round.latency.nanos(0.5),
                round.latency.nanos(0.99),
                round.load_busy(),
            ])
        }
        Job::Paced {
            request_len,
            every,
            count,
        } => {
            let (server, port) = serve(contender, 1, machine)?;
            let round = load::drive_paced(&server, port, request_len, every, count)?;
            Ok(vec![round.cpu_micros() * 1e3, round.latency.nanos(0.5)])
        }
        Job::Work(ref task) | Job::WorkAnywhere(ref task) => work(contender, task, machine.server_core()),
        Job::Memory { connections } => memory(contender, connections, machine),
        Job::Instructions { shape, requests } => instructions::per_request(contender, shape, requests, machine),
    }
}

fn serve(contender: Contender, connections: usize, machine: &Machine) -> io::Result<(Process, u16)> {
    let connections = connections.to_string();
    let mut server = Process::again(&["--serve", contender.name(), &connections], machine.server_core())?;
    let port = port_of(&mut server, PATIENCE)?;
    Ok((server, port))
}

/// Lets a child process measure, and parses its output.
fn work(contender: Contender, task: &Task, core: Option<usize>) -> io::Result<Vec<f64>> {
    let args = task.to_args();
    let mut all = vec!["--work", contender.name()];
    all.extend(args.iter().map(String::as_str));
    let output = Process::again(&all, core)?.all_output(WORK)?;
    let figures: Result<Vec<f64>, _> = output.lines().map(str::parse).collect();
    figures.map_err(|_| io::Error::other(format!("unexpected output of the child process: {output}")))
}

fn memory(contender: Contender, connections: usize, machine: &Machine) -> io::Result<Vec<f64>> {
    want_open_files(connections as u64 + 200)?;
    // The connections are idle: no more buffers than for one are needed.
    let (server, port) = serve(contender, 1, machine)?;
    thread::sleep(SETTLE);
    let before = server.memory()?;
    let shape = Shape {
        connections,
        request_len: 64,
        in_flight: 1,
    };
    let (begin, cpu) = (Instant::now(), server.cpu_time()?);
    let load = Load::open(port, shape)?;
    let (wall, cpu) = (begin.elapsed(), server.cpu_time()? - cpu);
    thread::sleep(SETTLE);
    let after = server.memory()?;
    drop(load);
    let each = |total: f64| total / connections as f64;
    Ok(vec![
        each(after.saturating_sub(before) as f64),
        connections as f64 / wall.as_secs_f64(),
        each(cpu.as_nanos() as f64),
    ])
}
