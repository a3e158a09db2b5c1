//! hyper on both windlass drivers against hyper on tokio's current_thread runtime: the same service, the same build,
//! one interleaved run under Debian's `wrk` and `h2load`.
//!
//! ```sh
//! apt-get install wrk nghttp2-client
//! cargo run --release --manifest-path benches/http/Cargo.toml
//! ```
//!
//! Each round loads every server once, one after the other. The table has medians, the ratio to tokio (computed within
//! each round, then the median), the server's CPU time per request, and all errors. `--rounds`, `--seconds`,
//! `--requests` set the effort; `--only wrk` or `--only h2load` selects one tool.
//!
//! `--cores all` compares servers that use every core: a pool of shards, as many processes with `SO_REUSEPORT`, which share
//! nothing, and tokio's multi-threaded runtime. The load runs on the same cores.

mod load;
mod serve;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use load::{Sample, Tool};

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
    "usage: windlass-http-bench [--cores one|all] [--rounds N] [--seconds N] [--requests N] [--only wrk|h2load]
       windlass-http-bench serve tokio|tokio-threads|proactor|proactor-shards|reactor|reactor-shards PORT";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["serve", runtime, port] = args[..] {
        let port = port.parse().unwrap_or_else(|_| wrong(&format!("{port} is not a port")));
        return serve::serve(runtime, SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let mut amounts = Amounts::default();
    let mut rest = args.iter();
    while let Some(&name) = rest.next() {
        let value = *rest.next().unwrap_or_else(|| wrong(&format!("{name} needs a value")));
        let number = || {
            value
                .parse()
                .unwrap_or_else(|_| wrong(&format!("{value} is not a number")))
        };
        match name {
            "--rounds" => amounts.rounds = number(),
            "--seconds" => amounts.seconds = number(),
            "--requests" => amounts.requests = number(),
            "--cores" if matches!(value, "one" | "all") => amounts.all_cores = value == "all",
            "--only" if matches!(value, "wrk" | "h2load") => amounts.only = Some(value.to_owned()),
            _ => wrong(&format!("unknown option {name} {value}")),
        }
    }
    compare(&amounts);
}

fn wrong(what: &str) -> ! {
    eprintln!("{what}\n{USAGE}");
    std::process::exit(2);
}

struct Amounts {
    rounds: usize,
    seconds: usize,
    requests: usize,
    only: Option<String>,
    all_cores: bool,
}

impl Default for Amounts {
    fn default() -> Amounts {
        Amounts {
            rounds: 5,
            seconds: 3,
            requests: 100_000,
            only: None,
            all_cores: false,
        }
    }
}

/// A server in a separate process, or in several, so that its CPU time can be measured.
struct Server {
    children: Vec<Child>,
    port: u16,
}

/// The server and the load tool are pinned to separate cores if there are two: otherwise the scheduler moves them, and
/// the one that is moved more often looks slower.
const SERVER: usize = 0;
const LOAD: usize = 1;

/// A program pinned to one core, if there are two and `taskset` is installed.
fn on_processor(processor: usize, program: &OsStr) -> Command {
    let has_two = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let can_pin = || {
        Command::new("taskset")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok()
    };
    if !has_two || !can_pin() {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &processor.to_string()]).arg(program);
    command
}

impl Server {
    /// Starts the server on an ephemeral port, and waits until it prints the port. The further processes get the same port.
    fn start(&(name, runtime, is_per_core): &Kind, all_cores: bool) -> Server {
        let program = std::env::current_exe().expect("our own name");
        let mut server = Server {
            children: Vec::new(),
            port: 0,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..if is_per_core { cores } else { 1 } {
            let mut command = match all_cores {
                true => Command::new(&program),
                false => on_processor(SERVER, program.as_os_str()),
            };
            command.args(["serve", runtime, &server.port.to_string()]);
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the server starts");
            let mut said = String::new();
            let told = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said);
            let addr = told
                .ok()
                .and_then(|_| said.trim().strip_prefix(serve::LISTENING)?.parse::<SocketAddr>().ok());
            server.children.push(child);
            match addr {
                Some(addr) => server.port = addr.port(),
                None => panic!("the server {name} does not listen: it printed {said:?}"),
            }
        }
        server
    }

    /// The CPU time of its threads so far, in microseconds.
    fn used_us(&self) -> f64 {
        let of_child = |child: &Child| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("it runs");
            let on_cpu_ns = |task: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
                stat.split_whitespace().next()?.parse::<f64>().ok()
            };
            tasks.filter_map(on_cpu_ns).sum::<f64>() / 1_000.0
        };
        self.children.iter().map(of_child).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn compare(amounts: &Amounts) {
    let kinds: &[Kind] = match amounts.all_cores {
        true => &ALL_CORES,
        false => &ONE_CORE,
    };
    let servers: Vec<Server> = kinds
        .iter()
        .map(|kind| Server::start(kind, amounts.all_cores))
        .collect();
    let wanted = |tool: &Tool| amounts.only.as_deref().is_none_or(|only| only == tool.name());
    let tools = [
        Tool::Wrk {
            seconds: amounts.seconds,
        },
        Tool::H2load {
            requests: amounts.requests,
        },
    ];
    let mut errors = 0;
    for tool in tools.into_iter().filter(wanted) {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); servers.len()];
        for round in 0..amounts.rounds {
            for at in 0..servers.len() {
                // Each round starts with the next server.
                let at = (at + round) % servers.len();
                let before = servers[at].used_us();
                let mut sample = tool.run(servers[at].port, !amounts.all_cores);
                sample.cpu_us = (servers[at].used_us() - before) / sample.requests.max(1.0);
                samples[at].push(sample);
            }
        }
        println!("{}", tool.describe());
        println!(
            "{:<20} {:>12} {:>10} {:>14} {:>14} {:>8}",
            "server", "requests/s", "ratio", "CPU us/request", "CPU ratio", "errors"
        );
        let paired = |one: &[Sample], other: &[Sample], value: fn(&Sample) -> f64| {
            median(one.iter().zip(other).map(|(one, other)| value(one) / value(other)))
        };
        for ((name, ..), of_it) in kinds.iter().zip(&samples) {
            let failed: usize = of_it.iter().map(|sample| sample.errors).sum();
            errors += failed;
            println!(
                "{name:<20} {:>12.0} {:>10.3} {:>14.2} {:>14.3} {failed:>8}",
                median(of_it.iter().map(|sample| sample.rate)),
                paired(of_it, &samples[0], |sample| sample.rate),
                median(of_it.iter().map(|sample| sample.cpu_us)),
                paired(of_it, &samples[0], |sample| sample.cpu_us),
            );
        }
        if amounts.all_cores {
            for (driver, processes, shards) in [("proactor", 1, 2), ("reactor", 3, 4)] {
                println!(
                    "{driver}, shards against processes: {:.3} x the requests, {:.3} x the CPU time",
                    paired(&samples[shards], &samples[processes], |sample| sample.rate),
                    paired(&samples[shards], &samples[processes], |sample| sample.cpu_us),
                );
            }
        }
        println!();
    }
    if errors > 0 {
        std::process::exit(1);
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 if middle > 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values.get(middle).copied().unwrap_or(f64::NAN),
    }
}
