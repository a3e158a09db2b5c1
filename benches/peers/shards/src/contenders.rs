//! The contenders, and the runs.

use std::process::Command;
use std::time::{Duration, Instant};

/// Calls of a burst in flight at a time.
const IN_FLIGHT: usize = 256;

const CONTENDERS: [&str; 10] = [
    "windlass ask, io_uring",
    "windlass call, io_uring",
    "windlass ask, epoll",
    "windlass call, epoll",
    "tokio mpsc + oneshot",
    "glommio shared_channel",
    "crossbeam, blocking",
    "crossbeam, spinning",
    "crossbeam calls, blocking",
    "crossbeam calls, spinning",
];

#[derive(Clone, Copy)]
struct Sizes {
    warm_up: usize,
    pings: usize,
    burst: usize,
}

/// The median round trip and the time per call of a burst, in nanoseconds.
struct Measured {
    ping: f64,
    burst: f64,
}

pub(crate) fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let sizes = Sizes {
        warm_up: if is_quick { 200 } else { 20_000 },
        pings: if is_quick { 500 } else { 50_000 },
        burst: if is_quick { 2_000 } else { 20_000 },
    };
    if let Some(at) = arguments.iter().position(|argument| argument == "--run") {
        let measured = run(&arguments[at + 1], sizes);
        return println!("{} {}", measured.ping, measured.burst);
    }
    let only = arguments.iter().position(|argument| argument == "--only");
    let only = only.and_then(|at| arguments.get(at + 1)).map_or("", String::as_str);
    let contenders: Vec<&str> = CONTENDERS.into_iter().filter(|name| name.contains(only)).collect();
    let rounds = if is_quick { 1 } else { 9 };
    let program = std::env::current_exe().expect("this program");
    let mut results: Vec<Vec<Measured>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for step in 0..contenders.len() {
            let index = (round + step) % contenders.len();
            eprint!("\rround {} of {rounds}: {:<30}", round + 1, contenders[index]);
            let mut command = Command::new(&program);
            command.args(["--run", contenders[index]]);
            if is_quick {
                command.arg("--quick");
            }
            let output = command.output().expect("a contender");
            let text = String::from_utf8_lossy(&output.stdout);
            let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
            match (numbers.next(), numbers.next()) {
                (Some(ping), Some(burst)) => results[index].push(Measured { ping, burst }),
                _ => panic!(
                    "{}: {}{text}",
                    contenders[index],
                    String::from_utf8_lossy(&output.stderr)
                ),
            }
        }
    }
    eprintln!("\r{:<50}", "");
    println!(
        "{:<26} {:>12} {:>8} {:>8}   {:>12} {:>8}",
        "", "ping p50", "lowest", "highest", "burst, each", "lowest"
    );
    for (name, results) in contenders.iter().zip(&results) {
        let (ping, burst) = (sorted(results, |one| one.ping), sorted(results, |one| one.burst));
        let middle = results.len() / 2;
        println!(
            "{name:<26} {:>9.0} ns {:>8.0} {:>8.0}   {:>9.0} ns {:>8.0}",
            ping[middle],
            ping[0],
            ping[ping.len() - 1],
            burst[middle],
            burst[0]
        );
    }
}

fn sorted(results: &[Measured], value: impl Fn(&Measured) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = results.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn run(name: &str, sizes: Sizes) -> Measured {
    let driver = match name.ends_with("epoll") {
        true => windlass::DriverChoice::Reactor,
        false => windlass::DriverChoice::Proactor,
    };
    match name {
        name if name.starts_with("windlass ask") => windlass_calls(driver, false, sizes),
        name if name.starts_with("windlass call") => windlass_calls(driver, true, sizes),
        "tokio mpsc + oneshot" => tokio_channels(sizes),
        "glommio shared_channel" => glommio_channels(sizes),
        "crossbeam, blocking" => crossbeam(sizes, false),
        "crossbeam, spinning" => crossbeam(sizes, true),
        "crossbeam calls, blocking" => crossbeam_calls(sizes, false),
        "crossbeam calls, spinning" => crossbeam_calls(sizes, true),
        other => panic!("no contender is named {other}"),
    }
}

/// Pins the calling thread to a processor.
fn pin(cpu: usize) {
    // SAFETY: a zeroed set is valid, and the call reads it only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64
}

fn windlass_calls(driver: windlass::DriverChoice, has_task: bool, sizes: Sizes) -> Measured {
    use windlass::shards::{Builder, CallError, Pin, Shard};

    async fn one(other: &Shard, has_task: bool, number: u64) {
        let answer = match has_task {
            true => other.call(move || async move { number + 1 }).await,
            false => other.ask(move || number + 1).await,
        };
        assert_eq!(answer, Ok(number + 1));
    }

    let pool = Builder::new()
        .count(2)
        .pin(Pin::OneCpuEach)
        .calls_per_peer(IN_FLIGHT)
        .each_loop(move |_, builder| builder.driver(driver));
    let mut outputs = pool
        .build()
        .expect("a pool")
        .run(move |shard: Shard| async move {
            if shard.index() == 1 {
                return Ok::<_, CallError>(None);
            }
            let other = shard.peer(1);
            let mut times = Vec::with_capacity(sizes.pings);
            for number in 0..sizes.warm_up + sizes.pings {
                let began = Instant::now();
                one(&other, has_task, number as u64).await;
                if number >= sizes.warm_up {
                    times.push(began.elapsed());
                }
            }
            let mut burst = Duration::MAX;
            for _ in 0..3 {
                let began = Instant::now();
                let mut tasks = windlass::task::JoinSet::new();
                for number in 0..sizes.burst {
                    let other = other.clone();
                    tasks.spawn(async move { one(&other, has_task, number as u64).await });
                }
                while tasks.join_next().await.is_some() {}
                burst = burst.min(began.elapsed());
            }
            let burst = burst.as_nanos() as f64 / sizes.burst as f64;
            Ok(Some((median(times), burst)))
        })
        .expect("no failure");
    let (ping, burst) = outputs[0].take().expect("the output of shard 0");
    Measured { ping, burst }
}

fn tokio_channels(sizes: Sizes) -> Measured {
    use tokio::sync::{mpsc, oneshot};

    let (requests, mut received) = mpsc::channel::<(u64, oneshot::Sender<u64>)>(IN_FLIGHT);
    let server = std::thread::spawn(move || {
        pin(1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            while let Some((number, answer)) = received.recv().await {
                answer.send(number + 1).expect("a caller");
            }
        });
    });
    pin(0);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let local = tokio::task::LocalSet::new();
    async fn one(requests: &mpsc::Sender<(u64, oneshot::Sender<u64>)>, number: u64) {
        let (send, answer) = oneshot::channel();
        requests.send((number, send)).await.expect("a server");
        assert_eq!(answer.await, Ok(number + 1));
    }
    let measured = local.block_on(&runtime, async move {
        let mut times = Vec::with_capacity(sizes.pings);
        for number in 0..sizes.warm_up + sizes.pings {
            let began = Instant::now();
            one(&requests, number as u64).await;
            if number >= sizes.warm_up {
                times.push(began.elapsed());
            }
        }
        let mut burst = Duration::MAX;
        for _ in 0..3 {
            let began = Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..sizes.burst {
                let requests = requests.clone();
                tasks.spawn_local(async move { one(&requests, number as u64).await });
            }
            while tasks.join_next().await.is_some() {}
            burst = burst.min(began.elapsed());
        }
        let burst = burst.as_nanos() as f64 / sizes.burst as f64;
        let ping = median(times);
        Measured { ping, burst }
    });
    server.join().expect("the server");
    measured
}

fn glommio_channels(sizes: Sizes) -> Measured {
    use glommio::channels::shared_channel;
    use glommio::{LocalExecutorBuilder, Placement};

    // The default executor busy-polls for nothing; this is the setting for low latency.
    let spin = Duration::from_micros(50);
    let (request_out, request_in) = shared_channel::new_bounded::<u64>(IN_FLIGHT);
    let (answer_out, answer_in) = shared_channel::new_bounded::<u64>(IN_FLIGHT);
    let server = LocalExecutorBuilder::new(Placement::Fixed(1))
        .spin_before_park(spin)
        .spawn(move || async move {
            let (requests, answers) = (request_in.connect().await, answer_out.connect().await);
            while let Some(number) = requests.recv().await {
                answers.send(number + 1).await.expect("a client");
            }
        })
        .expect("an executor");
    let client = LocalExecutorBuilder::new(Placement::Fixed(0))
        .spin_before_park(spin)
        .spawn(move || async move {
            let (requests, answers) = (request_out.connect().await, answer_in.connect().await);
            let mut times = Vec::with_capacity(sizes.pings);
            for number in 0..sizes.warm_up + sizes.pings {
                let began = Instant::now();
                requests.send(number as u64).await.expect("a server");
                assert_eq!(answers.recv().await, Some(number as u64 + 1));
                if number >= sizes.warm_up {
                    times.push(began.elapsed());
                }
            }
            // One task sends and one receives: a channel has no address for an answer.
            let requests = std::rc::Rc::new(requests);
            let mut burst = Duration::MAX;
            for _ in 0..3 {
                let began = Instant::now();
                let sender = requests.clone();
                let sending = glommio::spawn_local(async move {
                    for number in 0..sizes.burst {
                        sender.send(number as u64).await.expect("a server");
                    }
                });
                for number in 0..sizes.burst {
                    assert_eq!(answers.recv().await, Some(number as u64 + 1));
                }
                sending.await;
                burst = burst.min(began.elapsed());
            }
            let burst = burst.as_nanos() as f64 / sizes.burst as f64;
            let ping = median(times);
            Measured { ping, burst }
        })
        .expect("an executor");
    let measured = client.join().expect("the client");
    server.join().expect("the server");
    measured
}

/// Receives from a channel of crossbeam, which spins for a while and then parks the thread, or spins all the time.
fn receive<T>(from: &crossbeam_channel::Receiver<T>, spins: bool) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(value) => return Some(value),
            Err(error) if error.is_disconnected() => return None,
            Err(_) if spins => std::hint::spin_loop(),
            Err(_) => return from.recv().ok(),
        }
    }
}

/// What a call of windlass does: a closure in a box runs on the other thread, and its value or its panic comes back. A channel has no
/// address for an answer, so each call has a channel for its own.
fn crossbeam_calls(sizes: Sizes, spins: bool) -> Measured {
    use crossbeam_channel::{Receiver, Sender, bounded};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type Job = Box<dyn FnOnce() + Send>;

    fn start(to: &Sender<Job>, number: u64) -> Receiver<std::thread::Result<u64>> {
        let (send, answer) = bounded(1);
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(move || number + 1));
            // The caller may have given up.
            let _ = send.send(result);
        });
        to.send(job).expect("a server");
        answer
    }

    fn finish(answer: &Receiver<std::thread::Result<u64>>, spins: bool, number: u64) {
        let result = receive(answer, spins).expect("an answer");
        assert_eq!(result.expect("no panic"), number + 1);
    }

    let (request_out, request_in) = bounded::<Job>(IN_FLIGHT);
    let server = std::thread::spawn(move || {
        pin(1);
        while let Some(job) = receive(&request_in, spins) {
            job();
        }
    });
    pin(0);
    let mut times = Vec::with_capacity(sizes.pings);
    for number in 0..(sizes.warm_up + sizes.pings) as u64 {
        let began = Instant::now();
        finish(&start(&request_out, number), spins, number);
        if number >= sizes.warm_up as u64 {
            times.push(began.elapsed());
        }
    }
    let mut burst = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        let mut in_flight = std::collections::VecDeque::new();
        let mut received = 0;
        for number in 0..sizes.burst as u64 {
            in_flight.push_back(start(&request_out, number));
            if in_flight.len() == IN_FLIGHT {
                finish(&in_flight.pop_front().expect("a call"), spins, received);
                received += 1;
            }
        }
        for answer in in_flight {
            finish(&answer, spins, received);
            received += 1;
        }
        burst = burst.min(began.elapsed());
    }
    drop(request_out);
    server.join().expect("the server");
    let burst = burst.as_nanos() as f64 / sizes.burst as f64;
    let ping = median(times);
    Measured { ping, burst }
}

fn crossbeam(sizes: Sizes, spins: bool) -> Measured {
    use crossbeam_channel::bounded;

    let (request_out, request_in) = bounded::<u64>(IN_FLIGHT);
    let (answer_out, answer_in) = bounded::<u64>(IN_FLIGHT);
    let server = std::thread::spawn(move || {
        pin(1);
        while let Some(number) = receive(&request_in, spins) {
            answer_out.send(number + 1).expect("a client");
        }
    });
    pin(0);
    let mut times = Vec::with_capacity(sizes.pings);
    for number in 0..sizes.warm_up + sizes.pings {
        let began = Instant::now();
        request_out.send(number as u64).expect("a server");
        assert_eq!(receive(&answer_in, spins), Some(number as u64 + 1));
        if number >= sizes.warm_up {
            times.push(began.elapsed());
        }
    }
    let mut burst = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        let (mut sent, mut received) = (0, 0);
        while received < sizes.burst {
            while sent < sizes.burst && sent - received < IN_FLIGHT {
                request_out.send(sent as u64).expect("a server");
                sent += 1;
            }
            assert_eq!(receive(&answer_in, spins), Some(received as u64 + 1));
            received += 1;
        }
        burst = burst.min(began.elapsed());
    }
    drop(request_out);
    server.join().expect("the server");
    let burst = burst.as_nanos() as f64 / sizes.burst as f64;
    let ping = median(times);
    Measured { ping, burst }
}
