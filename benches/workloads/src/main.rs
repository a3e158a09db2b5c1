//! Servers and file copies on both windlass drivers against the same on tokio's current_thread runtime: the same service and
//! build, one interleaved run.
//!
//! ```sh
//! apt-get install wrk nghttp2-client redis-tools
//! cargo run --release --manifest-path benches/workloads/Cargo.toml
//! ```
//!
//! | workload | what | loaded by |
//! |---|---|---|
//! | http1, http2 | hyper | `wrk`, `h2load` |
//! | tls | echo of 1 KiB, with rustls | 32 blocking clients |
//! | resp | `examples/resp_server`, with a timeout around each read and write | `redis-benchmark` |
//! | copy | a cached file, read and written in blocks of 64 KiB | 4 clients |
//!
//! Each round loads every server once, one after the other. The tables have medians over the rounds, the ratio to tokio
//! (computed within each round; median, least and greatest), the server's CPU time, and all errors. `--rounds`, `--seconds`
//! and `--requests` set the effort; `--only http1,tls` selects workloads.
//!
//! `--cores all` compares HTTP servers that use every core: a pool of shards, as many processes with `SO_REUSEPORT`, which share
//! nothing, and tokio's multi-threaded runtime. The load runs on the same cores.

mod load;
#[allow(dead_code, reason = "shared with the other benches")]
#[path = "../../kit/progress.rs"]
mod progress;
mod serve;
mod server;
#[allow(dead_code, reason = "shared with the other benches")]
#[path = "../../kit/stats.rs"]
mod stats;
mod workload;

use std::net::SocketAddr;

use load::Sample;
use progress::Progress;
use server::Server;
use stats::{Spread, paired_ratio};
use workload::{Effort, Workload};

/// A server: the name in the table, the argument of `serve`, and whether it has a process for each core.
type Kind = (&'static str, &'static str, bool);

/// Servers on one core. The ratios are to the first.
const ONE_CORE: [Kind; 3] = [
    ("tokio", "tokio", false),
    ("proactor", "proactor", false),
    ("reactor", "reactor", false),
];

/// Servers on all cores.
const ALL_CORES: [Kind; 5] = [
    ("tokio, threads", "tokio-threads", false),
    ("proactor, processes", "proactor", true),
    ("proactor, shards", "proactor-shards", false),
    ("reactor, processes", "reactor", true),
    ("reactor, shards", "reactor-shards", false),
];

const USAGE: &str =
    "usage: windlass-workloads [--only WORKLOAD,...] [--cores one|all] [--rounds N] [--seconds N] [--requests N]
       windlass-workloads serve WORKLOAD RUNTIME PORT
workloads: http1, http2, tls, resp, copy";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| {
        text.parse()
            .unwrap_or_else(|_| wrong(&format!("{text} is not a number")))
    };
    match args[..] {
        ["serve", workload, runtime, port] => {
            let addr = SocketAddr::from(([127, 0, 0, 1], number(port) as u16));
            return serve::serve(named(workload), runtime, addr);
        }
        ["load-tls", port, seconds] => return serve::tls::load(number(port) as u16, number(seconds) as u64),
        ["load-copy", port, seconds] => return serve::copy::load(number(port) as u16, number(seconds) as u64),
        _ => {}
    }
    let mut amounts = Amounts::default();
    let mut rest = args.iter();
    while let Some(&name) = rest.next() {
        let value = *rest.next().unwrap_or_else(|| wrong(&format!("{name} needs a value")));
        match name {
            "--rounds" => amounts.rounds = number(value),
            "--seconds" => amounts.effort.seconds = number(value),
            "--requests" => amounts.effort.requests = number(value),
            "--cores" if matches!(value, "one" | "all") => amounts.all_cores = value == "all",
            "--only" => amounts.only = value.split(',').map(named).collect(),
            _ => wrong(&format!("unknown option {name} {value}")),
        }
    }
    if amounts.all_cores {
        amounts
            .only
            .retain(|workload| matches!(workload, Workload::Http1 | Workload::Http2));
    }
    compare(&amounts);
}

fn named(name: &str) -> Workload {
    Workload::named(name).unwrap_or_else(|| wrong(&format!("{name} is not a workload")))
}

fn wrong(what: &str) -> ! {
    eprintln!("{what}\n{USAGE}");
    std::process::exit(2);
}

struct Amounts {
    rounds: usize,
    effort: Effort,
    only: Vec<Workload>,
    all_cores: bool,
}

impl Default for Amounts {
    fn default() -> Amounts {
        Amounts {
            rounds: 7,
            effort: Effort {
                seconds: 2,
                requests: 100_000,
            },
            only: Workload::ALL.to_vec(),
            all_cores: false,
        }
    }
}

fn compare(amounts: &Amounts) {
    let kinds: &[Kind] = match amounts.all_cores {
        true => &ALL_CORES,
        false => &ONE_CORE,
    };
    let mut errors = 0;
    let mut tables = String::new();
    let mut progress = Progress::new(amounts.only.len() * amounts.rounds * kinds.len());
    for &workload in &amounts.only {
        let start = |kind| Server::start(workload, kind, amounts.all_cores);
        let servers: Vec<Server> = kinds.iter().map(start).collect();
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); servers.len()];
        for round in 0..amounts.rounds {
            for at in 0..servers.len() {
                // Each round starts with the next server.
                let at = (at + round) % servers.len();
                progress.step(&format!(
                    "{}, {}/{}: {}",
                    workload.name(),
                    round + 1,
                    amounts.rounds,
                    kinds[at].0
                ));
                let before = servers[at].used_us();
                let mut sample = workload.run(servers[at].port, &amounts.effort, !amounts.all_cores);
                sample.cpu_us = (servers[at].used_us() - before) / sample.requests.max(1.0);
                samples[at].push(sample);
            }
        }
        errors += samples.iter().flatten().map(|sample| sample.errors).sum::<usize>();
        tables += &table(workload, &amounts.effort, kinds, &samples);
        if amounts.all_cores {
            for (driver, processes, shards) in [("proactor", 1, 2), ("reactor", 3, 4)] {
                let [rate, cpu] = paired(&samples[shards], &samples[processes]);
                tables += &format!("{driver}, shards against processes: {rate} x the requests, {cpu} x the CPU time\n");
            }
        }
        tables += "\n";
    }
    progress.finish();
    print!("{tables}");
    if errors > 0 {
        std::process::exit(1);
    }
}

/// The table of a workload.
fn table(workload: Workload, effort: &Effort, kinds: &[Kind], samples: &[Vec<Sample>]) -> String {
    let unit = workload.unit();
    let mut table = format!(
        "{}\n{:<20} {:>12} {:>22} {:>16} {:>22} {:>7}\n",
        workload.title(effort),
        "server",
        format!("{unit}s/s"),
        "ratio (least, most)",
        format!("CPU us/{unit}"),
        "CPU ratio (least, most)",
        "errors"
    );
    for ((name, ..), of_it) in kinds.iter().zip(samples) {
        let [rate, cpu] = paired(of_it, &samples[0]);
        table += &format!(
            "{name:<20} {:>12.0} {rate:>22} {:>16.2} {cpu:>22} {:>7}\n",
            Spread::of(of_it.iter().map(|sample| sample.rate)).median,
            Spread::of(of_it.iter().map(|sample| sample.cpu_us)).median,
            of_it.iter().map(|sample| sample.errors).sum::<usize>(),
        );
    }
    table
}

/// The ratios of rate and CPU time within each round: median, least and greatest.
fn paired(one: &[Sample], other: &[Sample]) -> [String; 2] {
    [|sample: &Sample| sample.rate, |sample: &Sample| sample.cpu_us].map(|value: fn(&Sample) -> f64| {
        let Spread { median, least, most } = paired_ratio(one.iter().map(value), other.iter().map(value));
        format!("{median:.3} ({least:.2}, {most:.2})")
    })
}
