//! axum on windlass and axum on tokio's current_thread runtime, under the same load: `cargo bench --bench axum`.
//!
//! Every server has one thread and is a process of its own. The rounds alternate, so that other load on the machine meets all of
//! them; a ratio is the median of the rounds' ratios. The processor time per request depends
//! less on other load. It needs `wrk`. With two cpus or more, servers and `wrk` are pinned to different ones.
//!
//! `--rounds N` (15), `--seconds N` per round (2), `--connections N` (50), `--path /json`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use axum::routing::get;
use axum::{Json, Router};

const SERVERS: [&str; 3] = ["tokio", "proactor", "reactor"];

fn app() -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .route("/json", get(async || Json([("name", "ada"), ("city", "london")])))
}

fn serve_tokio() {
    use axum::serve::ListenerExt;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, app()).await.unwrap();
    });
}

fn serve_windlass(driver: &str) {
    let event_loop = windlass::Builder::new()
        .driver(driver.parse().unwrap())
        .build()
        .unwrap();
    let serving = event_loop.run_until_complete(async {
        let listener = windlass::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        windlass_web::serve(listener, app()).await
    });
    serving.unwrap().unwrap();
}

/// A server's process, ended when it is dropped.
struct Server {
    child: Child,
    addr: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command on one cpu, if there are several.
fn pinned(cpu: usize, program: &str) -> Command {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), program]);
        return command;
    }
    Command::new(program)
}

fn start(name: &str) -> Server {
    let this = std::env::current_exe().unwrap();
    let mut command = pinned(0, this.to_str().unwrap());
    let mut child = command.args(["--serve", name]).stdout(Stdio::piped()).spawn().unwrap();
    let mut addr = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut addr)
        .unwrap();
    Server {
        child,
        addr: addr.trim().to_owned(),
    }
}

/// The processor time of a process, in clock ticks of 10 ms. 0 where there is no /proc.
fn cpu_ticks(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum() // utime and stime
}

/// Requests per second, and microseconds of processor time per request.
fn load(server: &Server, seconds: u32, connections: u32, path: &str) -> [f64; 2] {
    let ticks = cpu_ticks(&server.child);
    let uri = format!("http://{}{path}", server.addr);
    let mut wrk = pinned(1, "wrk");
    wrk.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s"), &uri]);
    let output = wrk.output().expect("wrk runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let rate = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok());
    let count = text
        .lines()
        .find_map(|line| line.split_once(" requests in")?.0.trim().parse::<f64>().ok());
    let (Some(rate), Some(count)) = (rate, count) else {
        panic!("{text}");
    };
    [rate, (cpu_ticks(&server.child) - ticks) * 10_000.0 / count]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let (mut rounds, mut seconds, mut connections, mut path) = (15, 2, 50, "/".to_owned());
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--serve" if value == "tokio" => return serve_tokio(),
            "--serve" => return serve_windlass(&value),
            "--rounds" => rounds = value.parse().expect("a number"),
            "--seconds" => seconds = value.parse().expect("a number"),
            "--connections" => connections = value.parse().expect("a number"),
            "--path" => path = value,
            _ => panic!("unknown option {arg}"),
        }
    }
    let servers = SERVERS.map(start);
    let mut rates = SERVERS.map(|_| Vec::new());
    for round in 0..=rounds {
        for turn in 0..SERVERS.len() {
            let index = (turn + round) % SERVERS.len(); // each is first as often as the others
            let rate = load(&servers[index], seconds, connections, &path);
            if round > 0 {
                rates[index].push(rate); // the first round warms up
            }
        }
    }
    for (name, mine) in SERVERS.iter().zip(&rates) {
        let [rate, cpu] = [0, 1].map(|which| {
            let ratios = mine
                .iter()
                .zip(&rates[0])
                .map(|(mine, tokio): (&[f64; 2], _)| mine[which] / tokio[which]);
            (
                median(mine.iter().map(|round| round[which]).collect()),
                median(ratios.collect()),
            )
        });
        println!(
            "{name:>9}: {:>8.0} requests/s, {:.3} of tokio; {:>5.2} us of cpu per request, {:.3} of tokio",
            rate.0, rate.1, cpu.0, cpu.1
        );
    }
}
