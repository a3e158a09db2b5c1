//! quinn on windlass against quinn on tokio's current-thread runtime: the same program, in interleaved rounds.
//!
//! - `bulk`: one stream of 64 MiB over loopback. `requests`: 2,000 requests of 1 KiB on streams of their own, one after another.
//! - `one loop`: both endpoints on one thread, so the result is the processor time of both. `two threads`: a loop each, on a cpu each.
//!
//! Each round runs every runtime once, in rotating order; the ratios are computed within a round, and the medians printed.
//! `cargo bench --bench throughput -- --rounds 11`, and a part of a workload's name to run it alone.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use windlass::{Builder, DriverChoice};
use windlass_quinn::quinn::rustls::RootCertStore;
use windlass_quinn::quinn::rustls::pki_types::PrivateKeyDer;
use windlass_quinn::quinn::{ClientConfig, Connection, Endpoint, ServerConfig, VarInt};

const BULK: usize = 64 << 20;
const REQUESTS: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum On {
    Tokio,
    Proactor,
    Reactor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Workload {
    Bulk,
    Requests,
}

#[derive(Clone, Copy)]
struct Taken {
    /// Seconds.
    wall: f64,
    cpu: f64,
    /// Acknowledgements that the client received, and datagrams that it found lost.
    acks: u64,
    lost: u64,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl On {
    fn run<F: Future>(self, make: impl FnOnce() -> F) -> F::Output {
        let Some(choice) = self.driver() else {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            return runtime.block_on(async { make().await });
        };
        let event_loop = Builder::new().driver(choice).build().unwrap();
        event_loop.run_until_complete(async { make().await }).unwrap()
    }

    fn driver(self) -> Option<DriverChoice> {
        match self {
            On::Tokio => None,
            On::Proactor => Some(DriverChoice::Proactor),
            On::Reactor => Some(DriverChoice::Reactor),
        }
    }

    fn spawn(self, task: Task) {
        match self {
            On::Tokio => drop(tokio::spawn(task)),
            On::Proactor | On::Reactor => windlass::spawn(task).detach(),
        }
    }

    fn server(self, config: ServerConfig) -> io::Result<Endpoint> {
        match self {
            On::Tokio => Endpoint::server(config, ([127, 0, 0, 1], 0).into()),
            On::Proactor | On::Reactor => windlass_quinn::server("127.0.0.1:0", config),
        }
    }

    fn client(self, config: ClientConfig) -> io::Result<Endpoint> {
        match self {
            On::Tokio => {
                let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into())?;
                endpoint.set_default_client_config(config);
                Ok(endpoint)
            }
            On::Proactor | On::Reactor => windlass_quinn::client("127.0.0.1:0", config),
        }
    }

    fn is_available(self) -> bool {
        self.driver()
            .is_none_or(|choice| Builder::new().driver(choice).build().is_ok())
    }
}

fn configs() -> (ServerConfig, ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    (server, ClientConfig::with_root_certificates(Arc::new(roots)).unwrap())
}

/// Accepts one connection. Reads one stream to its end, or answers requests.
async fn serve(endpoint: Endpoint, workload: Workload) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    match workload {
        Workload::Bulk => {
            let mut stream = connection.accept_uni().await.unwrap();
            let mut len = 0;
            while let Some(chunk) = stream.read_chunk(usize::MAX, true).await.unwrap() {
                len += chunk.bytes.len();
            }
            assert_eq!(len, BULK);
            connection.closed().await;
        }
        Workload::Requests => {
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                let request = recv.read_to_end(4_096).await.unwrap();
                send.write_all(&request).await.unwrap();
                send.finish().unwrap();
            }
        }
    }
    endpoint.wait_idle().await;
}

/// Performs the workload, without the handshake.
async fn measure(endpoint: Endpoint, addr: SocketAddr, workload: Workload) -> Taken {
    let connection = endpoint.connect(addr, "localhost").unwrap().await.unwrap();
    let (start, cpu) = (Instant::now(), cpu_time());
    match workload {
        Workload::Bulk => upload(&connection).await,
        Workload::Requests => {
            let request = [7; 1_024];
            for _ in 0..REQUESTS {
                let (mut send, mut recv) = connection.open_bi().await.unwrap();
                send.write_all(&request).await.unwrap();
                send.finish().unwrap();
                assert_eq!(recv.read_to_end(4_096).await.unwrap().len(), request.len());
            }
        }
    }
    let (wall, cpu) = (start.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
    let stats = connection.stats();
    let taken = Taken {
        wall,
        cpu,
        acks: stats.frame_rx.acks,
        lost: stats.path.lost_packets,
    };
    connection.close(VarInt::from_u32(0), b"");
    endpoint.wait_idle().await;
    taken
}

async fn upload(connection: &Connection) {
    let block = vec![7; 1 << 20];
    let mut stream = connection.open_uni().await.unwrap();
    for _ in 0..BULK / block.len() {
        stream.write_all(&block).await.unwrap();
    }
    stream.finish().unwrap();
    stream.stopped().await.unwrap();
}

/// The processor time of this process, in user and kernel mode: unlike the time of the clock, it does not depend on other
/// processes' use of the processors.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time into `time`, which is this frame's until the call has returned.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn one_loop(on: On, workload: Workload) -> Taken {
    let (server, client) = configs();
    on.run(|| async move {
        let server = on.server(server).unwrap();
        let addr = server.local_addr().unwrap();
        on.spawn(Box::pin(serve(server, workload)));
        measure(on.client(client).unwrap(), addr, workload).await
    })
}

fn two_threads(on: On, workload: Workload) -> Taken {
    let (server, client) = configs();
    let (told, addr) = mpsc::channel();
    // Each on a cpu of its own: else the results depend on where the kernel happens to run the two.
    pin(1);
    let serving = thread::spawn(move || {
        pin(0);
        on.run(|| async move {
            let server = on.server(server).unwrap();
            told.send(server.local_addr().unwrap()).unwrap();
            serve(server, workload).await;
        });
    });
    let addr = addr.recv().unwrap();
    let time = on.run(|| async move { measure(on.client(client).unwrap(), addr, workload).await });
    serving.join().unwrap();
    unpin();
    time
}

/// Binds this thread to one cpu, if the machine has it.
fn pin(cpu: usize) {
    set_affinity(|at| at == cpu);
}

fn unpin() {
    set_affinity(|_| true);
}

fn set_affinity(is_allowed: impl Fn(usize) -> bool) {
    // SAFETY: a cpu set is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in (0..libc::CPU_SETSIZE as usize).filter(|&cpu| is_allowed(cpu)) {
        // SAFETY: `cpu` is less than the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the kernel reads the set, which is this frame's until the call has returned.
    let _ = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let at = args.iter().position(|arg| arg == "--rounds");
    let rounds = at.map_or(11, |at| args[at + 1].parse().expect("a number of rounds"));
    let filter = args
        .iter()
        .find(|arg| !arg.starts_with("--") && arg.parse::<usize>().is_err());
    let all = [On::Tokio, On::Proactor, On::Reactor]
        .into_iter()
        .filter(|on| on.is_available());
    let all: Vec<On> = all.collect();
    for (place, run) in [
        ("one loop", one_loop as fn(On, Workload) -> Taken),
        ("two threads", two_threads),
    ] {
        for workload in [Workload::Bulk, Workload::Requests] {
            let name = format!("{workload:?}, {place}").to_lowercase();
            if filter.is_none_or(|filter| name.contains(filter)) {
                compare(&name, &all, rounds, workload, run);
            }
        }
    }
}

fn compare(name: &str, all: &[On], rounds: usize, workload: Workload, run: fn(On, Workload) -> Taken) {
    let (amount, unit) = match workload {
        Workload::Bulk => ((BULK >> 20) as f64, "MiB/s"),
        Workload::Requests => (REQUESTS as f64, "requests/s"),
    };
    let mut taken = vec![Vec::new(); all.len()];
    // The first round warms up.
    for round in 0..=rounds {
        for turn in 0..all.len() {
            let at = (turn + round) % all.len();
            let one = run(all[at], workload);
            if round > 0 {
                taken[at].push(one);
            }
        }
    }
    for (on, own) in all.iter().zip(&taken) {
        // Above one: better than tokio.
        let ratio = |of: fn(&Taken) -> f64| {
            median(
                own.iter()
                    .zip(&taken[0])
                    .map(|(own, tokio)| of(tokio) / of(own))
                    .collect(),
            )
        };
        let (rate, cpu) = (
            median(own.iter().map(|own| amount / own.wall).collect()),
            median(own.iter().map(|own| own.cpu).collect()),
        );
        let (acks, lost) = (
            median(own.iter().map(|own| own.acks as f64).collect()),
            median(own.iter().map(|own| own.lost as f64).collect()),
        );
        println!(
            "{name:<22} {:<9} {rate:>9.1} {unit:<10} {:>6.1} ms cpu, {acks:>5} acks, {lost:>5} lost   \
             against tokio: {:.3} x speed, {:.3} x work per cpu time",
            format!("{on:?}"),
            cpu * 1e3,
            ratio(|taken| taken.wall),
            ratio(|taken| taken.cpu),
        );
    }
}
