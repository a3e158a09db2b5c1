//! Echo throughput of a pool of shards: one shard, and one for each core.
//!
//! Unlike in the other measurements, server and load share all cores: the load has one thread for each core, and nothing
//! is pinned. So this compares two servers under the same conditions; it is not what the cores could do with the load on
//! another machine.

use std::io;
use std::thread;

use windlass::DriverChoice;
use windlass::shards::{self, Listener};

use super::contender::{Field, Kind};
use super::echo::{Score, fit};
use super::kit::hand_epoll::print_port;
use super::kit::load::{self, Round, Shape};
use super::kit::machine::Machine;
use super::kit::process::Process;
use super::kit::progress::Progress;
use super::kit::rounds::take_turns;
use super::kit::server::{PATIENCE, echo_all, port_of};
use super::limits::Limits;
use super::options::Plan;

/// A pool under load.
pub(crate) struct Pool {
    pub(crate) kind: Kind,
    pub(crate) shards: usize,
    pub(crate) shape: Shape,
    pub(crate) score: Score,
}

/// A driver and a number of shards.
type Contender = (Kind, usize);

/// One shard and one per core, on each driver. On one core both are the same.
fn contenders(machine: &Machine, field: &Field) -> Vec<Contender> {
    let kinds = field.servers().filter(|kind| kind.driver().is_some());
    let mut counts = vec![1, machine.cores];
    counts.dedup();
    kinds
        .flat_map(|kind| counts.iter().map(move |&count| (kind, count)).collect::<Vec<_>>())
        .collect()
}

pub(crate) fn weight(plan: &Plan, machine: &Machine, field: &Field) -> f64 {
    (contenders(machine, field).len() * plan.pool_rounds) as f64 * weight_of_one(plan)
}

fn weight_of_one(plan: &Plan) -> f64 {
    (plan.warm_up + plan.round).as_secs_f64()
}

/// Before this process is pinned to a core.
pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    limits: &Limits,
    field: &Field,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Pool> {
    let shape = fit(plan.pool_load, limits);
    let mut servers = Vec::new();
    for (kind, shards) in contenders(machine, field) {
        match start(kind, shards) {
            Ok((process, port)) => servers.push(((kind, shards), process, port)),
            Err(error) => missing.push(format!("echo on {shards} shards, {}: {error}", kind.title())),
        }
    }
    let mut pools: Vec<Pool> = Vec::new();
    take_turns(
        plan.pool_rounds,
        &mut servers,
        |round, ((kind, shards), process, port)| {
            let (rounds, title) = (plan.pool_rounds, kind.title());
            let what = format!("echo on {shards} shards, {round}/{rounds}: {title}");
            progress.step_of(weight_of_one(plan), &what);
            let driven = drive(machine.cores, process, *port, shape, plan);
            let round = match driven {
                Ok(round) => round,
                Err(error) => {
                    missing.push(format!("echo on {shards} shards, {title}: {error}"));
                    return false;
                }
            };
            let known = pools
                .iter_mut()
                .find(|pool| (pool.kind, pool.shards) == (*kind, *shards));
            match known {
                Some(pool) => pool.score.rounds.push(round),
                None => pools.push(Pool {
                    kind: *kind,
                    shards: *shards,
                    shape,
                    score: Score { rounds: vec![round] },
                }),
            }
            true
        },
    );
    pools.sort_by_key(|pool| (Kind::ALL.iter().position(|kind| *kind == pool.kind), pool.shards));
    pools
}

fn start(kind: Kind, shards: usize) -> io::Result<(Process, u16)> {
    let mut process = Process::again(&["--serve-pool", kind.name(), &shards.to_string()], None)?;
    let port = port_of(&mut process, PATIENCE)?;
    Ok((process, port))
}

/// A round with the load from several threads.
fn drive(threads: usize, server: &Process, port: u16, shape: Shape, plan: &Plan) -> io::Result<Round> {
    let shape = Shape {
        connections: shape.connections.div_ceil(threads),
        ..shape
    };
    let rounds: Vec<io::Result<Round>> = thread::scope(|scope| {
        let drive = || load::drive(server, port, shape, plan.warm_up, plan.round);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(drive)).collect();
        let failed = |_| Err(io::Error::other("the load panicked"));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(failed))
            .collect()
    });
    // Times are those of the processes, and nearly the same for each thread.
    let mut rounds = rounds.into_iter();
    let mut all = rounds.next().unwrap_or(Err(io::ErrorKind::InvalidInput.into()))?;
    for round in rounds {
        let round = round?;
        all.requests += round.requests;
        all.latency.merge(&round.latency);
        all.wall = all.wall.max(round.wall);
        all.cpu = all.cpu.max(round.cpu);
        all.load_cpu = all.load_cpu.max(round.load_cpu);
    }
    Ok(all)
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve(kind: Kind, count: usize) -> io::Result<()> {
    let driver = kind.driver().unwrap_or(DriverChoice::Auto);
    let builder = shards::Builder::new()
        .count(count)
        .each_loop(move |_shard, builder| builder.driver(driver));
    let pool = builder.build()?;
    let listener = pool.listen("127.0.0.1:0")?;
    print_port(listener.local_addr().port())?;
    pool.run(move |_shard| accept(listener))?;
    Ok(())
}

async fn accept(listener: Listener) -> io::Result<()> {
    while let Some((stream, _)) = listener.accept().await? {
        // A reset connection ends its own task only.
        windlass::spawn(async move {
            let _ = echo_all(stream).await;
        });
    }
    Ok(())
}
