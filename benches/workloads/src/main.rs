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
//!
//! `--rate N` offers N HTTP requests per second, whether or not earlier ones were answered, to a pool of one shard and to one
//! with a shard for each core: the CPU time that a request takes more because the pool has more shards. As many processes show how much
//! of it is due to the smaller batches of two cores.

mod kit;
mod load;
mod serve;
mod server;
mod workload;

use std::io;
use std::net::SocketAddr;

use kit::machine::Machine;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};
use load::Sample;
use server::Server;
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

/// Pools under an offered rate, and processes, which share nothing: what shards cost beside them is the cost of the pool, and the
/// rest that of smaller batches, because a core finds fewer requests when it is woken.
const POOLS: [Kind; 6] = [
    ("proactor, one shard", "proactor-shard", false),
    ("proactor, processes", "proactor", true),
    ("proactor, shards", "proactor-shards", false),
    ("reactor, one shard", "reactor-shard", false),
    ("reactor, processes", "reactor", true),
    ("reactor, shards", "reactor-shards", false),
];

const USAGE: &str = "\
usage: windlass-workloads [--only WORKLOAD,...] [--cores one|all] [--rate N] [--rounds N] [--seconds N] [--requests N]
       windlass-workloads serve WORKLOAD RUNTIME PORT

Measures servers and file copies on windlass next to the same on tokio: three minutes.

  --only WORKLOAD,...  only these: http1 (needs wrk), http2 (h2load), tls, resp (redis-benchmark), copy
  --cores one|all      one (default): server and load on a core each; all: HTTP servers that use every core
  --rate N             N HTTP/1.1 requests per second by h2load, to pools of one shard and of one for each core
  --rounds N           interleaved rounds of every server (default 7)
  --seconds N          the length of a load by wrk and of those of tls and copy (default 2)
  --requests N         the requests of a load by h2load, a fifth of those by redis-benchmark (default 100000)
  --help               this text

serve: only the server, for a load of your own; RUNTIME is tokio, proactor or reactor, and for HTTP also tokio-threads,
proactor-shards or reactor-shards, and -shard for a pool of one. Port 0 chooses a free one.";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| {
        text.parse()
            .unwrap_or_else(|_| wrong(&format!("{text} is not a number")))
    };
    match args[..] {
        ref all if all.iter().any(|arg| matches!(*arg, "--help" | "-h")) => return println!("{USAGE}"),
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
            "--rate" => amounts.effort.rate = Some(number(value)),
            "--cores" if matches!(value, "one" | "all") => amounts.all_cores = value == "all",
            "--only" => amounts.only = value.split(',').map(named).collect(),
            _ => wrong(&format!("unknown option {name} {value}")),
        }
    }
    if amounts.effort.rate.is_some() {
        amounts.all_cores = true;
        amounts.only = vec![Workload::Http1];
    }
    if amounts.all_cores {
        amounts
            .only
            .retain(|workload| matches!(workload, Workload::Http1 | Workload::Http2));
    }
    check_tools(&amounts);
    match compare(&amounts) {
        Ok(0) => {}
        Ok(errors) => fail(&format!("{errors} requests failed")),
        Err(error) => fail(&error.to_string()),
    }
}

/// Exits if a selected workload needs a program that is not installed, before anything is measured.
fn check_tools(amounts: &Amounts) {
    let missing: Vec<_> = amounts
        .only
        .iter()
        .filter_map(|workload| Some((workload.name(), workload.missing_tool(&amounts.effort)?)))
        .collect();
    if missing.is_empty() {
        return;
    }
    for (workload, (tool, _)) in &missing {
        eprintln!("{workload} needs {tool}, which is not installed");
    }
    let packages: Vec<&str> = missing.iter().map(|(_, (_, package))| *package).collect();
    let others: Vec<&str> = Workload::ALL
        .iter()
        .filter(|workload| workload.missing_tool(&amounts.effort).is_none())
        .map(|workload| workload.name())
        .collect();
    fail(&format!(
        "install with: apt-get install {} (packages of Debian and Ubuntu)\nor measure the others: --only {}",
        packages.join(" "),
        others.join(",")
    ));
}

fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1);
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
                rate: None,
            },
            only: Workload::ALL.to_vec(),
            all_cores: false,
        }
    }
}

/// Prints the tables, and returns the number of failed requests.
fn compare(amounts: &Amounts) -> io::Result<usize> {
    let mut machine = Machine::look();
    if amounts.all_cores {
        machine.pinned = None;
    }
    let load_core = machine.pinned.map(|(_, load)| load);
    // Pairs of kinds within the table that are compared with each other.
    let (kinds, pairs): (&[Kind], &[(usize, usize)]) = match (amounts.effort.rate, amounts.all_cores) {
        (Some(_), _) => (&POOLS, &[(2, 0), (2, 1), (5, 3), (5, 4)]),
        (None, true) => (&ALL_CORES, &[(2, 1), (4, 3)]),
        (None, false) => (&ONE_CORE, &[]),
    };
    let mut errors = 0;
    let mut tables = String::new();
    let mut progress = Progress::new(amounts.only.len() * amounts.rounds * kinds.len());
    for &workload in &amounts.only {
        let start = |kind: &Kind| {
            Server::start(workload, kind, &machine)
                .map_err(|error| io::Error::new(error.kind(), format!("{}, {}: {error}", workload.name(), kind.0)))
        };
        let servers = kinds.iter().map(start).collect::<io::Result<Vec<Server>>>()?;
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
                let before = servers[at].cpu_time()?;
                let mut sample = workload.run(servers[at].port, &amounts.effort, load_core)?;
                let used = servers[at].cpu_time()? - before;
                sample.cpu_us = used.as_secs_f64() * 1e6 / sample.requests.max(1.0);
                samples[at].push(sample);
            }
        }
        errors += samples.iter().flatten().map(|sample| sample.errors).sum::<usize>();
        tables += &table(workload, &amounts.effort, kinds, &samples);
        for &(one, other) in pairs {
            let [rate, cpu] = paired(&samples[one], &samples[other]);
            let (one, other) = (kinds[one].0, kinds[other].0);
            tables += &format!("{one}, against {other}: {rate} x the requests, {cpu} x the CPU time\n");
        }
        tables += "\n";
    }
    progress.finish();
    println!("{machine}\n");
    print!("{tables}");
    Ok(errors)
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
