//! The tables of the report: their columns, and how the figures are measured.

use std::path::Path;
use std::time::Duration;

use crate::kit::load::Shape;
use crate::kit::machine::Machine;
use crate::options::Options;
use crate::results::{Figure, Group, Unit};
use crate::work::Task;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Echo,
    Timers,
    Sleeps,
    Tasks,
    Files,
    Wake,
    Memory,
    Instructions,
}

impl Workload {
    pub(crate) const ALL: [Workload; 8] = [
        Workload::Echo,
        Workload::Timers,
        Workload::Sleeps,
        Workload::Tasks,
        Workload::Files,
        Workload::Wake,
        Workload::Memory,
        Workload::Instructions,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Echo => "echo",
            Workload::Timers => "timers",
            Workload::Sleeps => "sleeps",
            Workload::Tasks => "tasks",
            Workload::Files => "files",
            Workload::Wake => "wake",
            Workload::Memory => "memory",
            Workload::Instructions => "instructions",
        }
    }
}

/// How the figures of one contender and one round are measured.
pub(crate) enum Job {
    /// A server on one core, the load on the other.
    Echo {
        shape: Shape,
        warm_up: Duration,
        length: Duration,
    },
    /// The same with one connection that sends a request at fixed intervals.
    Paced {
        request_len: usize,
        every: Duration,
        count: usize,
    },
    /// A child process on the servers' core.
    Work(Task),
    /// A child process on any core, because thread pools use several.
    WorkAnywhere(Task),
    /// A server with this many idle connections.
    Memory { connections: usize },
    /// A server under callgrind, with this number of requests and with twice that number.
    Instructions { shape: Shape, requests: u64 },
}

impl Job {
    /// About how long a round of one contender takes, in seconds, for the estimate of the remaining time.
    pub(crate) fn seconds(&self) -> f64 {
        match self {
            Job::Echo { shape, warm_up, length } => {
                0.1 + shape.connections as f64 * 1e-4 + (*warm_up + *length).as_secs_f64()
            }
            Job::Paced { every, count, .. } => 0.1 + (*every * *count as u32).as_secs_f64(),
            Job::Work(Task::Sleeps { count, longest, .. }) => 0.1 + longest.as_secs_f64() + *count as f64 * 2e-6,
            Job::Work(_) | Job::WorkAnywhere(_) => 0.6,
            Job::Memory { connections } => 1.0 + *connections as f64 * 1e-4,
            Job::Instructions { .. } => 8.0,
        }
    }
}

/// The selected groups, in the order of the report; an error for the name of an unknown one.
pub(crate) fn groups(options: &Options, machine: &Machine, file: &Path) -> Result<Vec<Group>, String> {
    let scale = Scale::new(options.quick);
    let mut groups = echo(&scale);
    groups.extend(timers(&scale));
    groups.extend(sleeps(&scale));
    groups.extend(tasks(&scale));
    groups.extend(files(&scale, file));
    groups.extend(wake(&scale, machine));
    groups.extend(memory(&scale, options.connections));
    groups.extend(instructions());
    if let Some(name) = options.unknown(groups.iter().map(|group| group.key)) {
        return Err(format!("unknown part '{name}': --help lists them"));
    }
    groups.retain(|group| options.wants(group.workload, group.key));
    for group in &mut groups {
        group.rounds = group.rounds.min(options.rounds);
        group.contenders = options.contenders.clone();
        group
            .contenders
            .retain(|contender| contender.takes_part(group.workload, &group.job));
    }
    Ok(groups)
}

/// The length and number of measurements.
struct Scale {
    echo: Duration,
    warm_up: Duration,
    paced: [(&'static str, Duration, usize); 2],
    sleeps: [(&'static str, Duration, usize); 3],
    batch: usize,
    files: Duration,
    wakes: usize,
    round_trips: Duration,
    /// The number of rounds for echo sizes that lie between others or take long.
    further_rounds: usize,
    /// The number of rounds for workloads that take seconds and vary little.
    sleep_rounds: usize,
    memory_rounds: usize,
}

impl Scale {
    fn new(quick: bool) -> Scale {
        let millis = Duration::from_millis;
        let paced = if quick { [400, 40] } else { [1000, 80] };
        let counts = if quick { [300, 100, 30] } else { [800, 250, 100] };
        Scale {
            echo: millis(if quick { 150 } else { 400 }),
            warm_up: millis(if quick { 50 } else { 80 }),
            paced: [
                ("echo-paced-300us", Duration::from_micros(300), paced[0]),
                ("echo-paced-5ms", millis(5), paced[1]),
            ],
            sleeps: [
                ("timers-100us", Duration::from_micros(100), counts[0]),
                ("timers-1ms", millis(1), counts[1]),
                ("timers-10ms", millis(10), counts[2]),
            ],
            batch: if quick { 10_000 } else { 30_000 },
            files: millis(if quick { 80 } else { 150 }),
            wakes: if quick { 60 } else { 150 },
            round_trips: millis(if quick { 60 } else { 150 }),
            further_rounds: if quick { 1 } else { usize::MAX },
            sleep_rounds: if quick { 1 } else { 5 },
            memory_rounds: if quick { 1 } else { 2 },
        }
    }
}

fn group(workload: Workload, key: &'static str, title: String, figures: Vec<Figure>, job: Job) -> Group {
    Group {
        workload,
        key,
        title,
        figures,
        job,
        rounds: usize::MAX,
        contenders: Vec::new(),
        scores: Vec::new(),
    }
}

fn less(title: &'static str, unit: Unit) -> Figure {
    Figure {
        title,
        unit,
        is_less_better: true,
        is_compared: true,
    }
}

/// A figure for information, without a ratio.
fn aside(title: &'static str, unit: Unit) -> Figure {
    Figure {
        is_compared: false,
        ..less(title, unit)
    }
}

fn more(title: &'static str) -> Figure {
    Figure {
        title,
        unit: Unit::Count,
        is_less_better: false,
        is_compared: true,
    }
}

/// The echo tables with one request in flight on each connection, which the summary and the targets cover: key, connections
/// and length of a request.
pub(crate) const ECHO: [(&str, usize, usize); 8] = [
    ("echo-1x64", 1, 64),
    ("echo-10x64", 10, 64),
    ("echo-50x64", 50, 64),
    ("echo-50x1k", 50, 1024),
    ("echo-200x64", 200, 64),
    ("echo-1000x64", 1000, 64),
    ("echo-3000x64", 3000, 64),
    ("echo-9000x64", 9000, 64),
];

fn echo(scale: &Scale) -> Vec<Group> {
    let one = |(key, connections, request_len, in_flight)| {
        let shape = Shape {
            connections,
            request_len,
            in_flight,
        };
        let figures = vec![
            more("requests/s"),
            less("CPU/request", Unit::Nanos),
            less("p50", Unit::Nanos),
            less("p99", Unit::Nanos),
            aside("load", Unit::LoadBusy),
        ];
        // At the rates of one core, a second is about ten requests on each of 9,000 connections.
        let more = Duration::from_micros(60) * (connections as u32);
        let job = Job::Echo {
            shape,
            warm_up: scale.warm_up + more / 2,
            length: scale.echo + more,
        };
        let mut group = group(Workload::Echo, key, format!("Echo, {shape}"), figures, job);
        if matches!(connections, 10 | 200 | 3000..) {
            group.rounds = scale.further_rounds;
        }
        group
    };
    let mut groups: Vec<Group> = ECHO
        .map(|(key, connections, request_len)| one((key, connections, request_len, 1)))
        .into();
    groups.push(one(("echo-50x1k-16", 50, 1024, 16)));
    groups.extend(scale.paced.map(paced));
    groups
}

/// A loop with little to do: shows the cost of busy-polling there.
fn paced((key, every, count): (&'static str, Duration, usize)) -> Group {
    let request_len = 64;
    let title = format!("Echo, paced: 1 x {request_len} B, a request every {every:?} ({count} per round)");
    let figures = vec![less("CPU/request", Unit::Nanos), less("p50", Unit::Nanos)];
    let job = Job::Paced {
        request_len,
        every,
        count,
    };
    group(Workload::Echo, key, title, figures, job)
}

fn timers(scale: &Scale) -> Vec<Group> {
    let one = |(key, length, count)| {
        let title = format!("Timers: lateness of a sleep of {length:?} ({count} per round)");
        let figures = vec![
            less("p50", Unit::Nanos),
            less("p99", Unit::Nanos),
            less("CPU/sleep", Unit::Nanos),
            aside("early", Unit::Count),
        ];
        group(
            Workload::Timers,
            key,
            title,
            figures,
            Job::Work(Task::Lateness { length, count }),
        )
    };
    scale.sleeps.map(one).into()
}

fn sleeps(scale: &Scale) -> Vec<Group> {
    let figures = || vec![less("CPU", Unit::Nanos), less("wall", Unit::Nanos)];
    let mut groups = vec![
        group(
            Workload::Sleeps,
            "sleeps-200k",
            "200,000 tasks that each sleep 1 to 100 ms, spawned and joined".into(),
            figures(),
            Job::Work(Task::Sleeps {
                count: 200_000,
                shortest: Duration::from_millis(1),
                longest: Duration::from_millis(100),
            }),
        ),
        group(
            Workload::Sleeps,
            "cancel-1m",
            "1,000,000 sleeps of 10 to 100 s, started by 100 tasks (boxed, polled once each), then all dropped".into(),
            figures(),
            Job::Work(Task::Cancels { count: 1_000_000 }),
        ),
    ];
    let sleepers = [
        ("sleepers-1k", "1,000"),
        ("sleepers-10k", "10,000"),
        ("sleepers-100k", "100,000"),
        ("sleepers-1m", "1,000,000"),
    ];
    for (power, (key, count)) in sleepers.into_iter().enumerate() {
        groups.push(group(
            Workload::Sleeps,
            key,
            format!("{count} tasks that each sleep 1 to 2 s, spawned and joined"),
            figures(),
            Job::Work(Task::Sleeps {
                count: 1_000 * 10_usize.pow(power as u32),
                shortest: Duration::from_secs(1),
                longest: Duration::from_secs(2),
            }),
        ));
    }
    for group in &mut groups {
        group.rounds = scale.sleep_rounds;
    }
    groups
}

fn tasks(scale: &Scale) -> Vec<Group> {
    let figures = vec![
        less("spawn+join", Unit::Nanos),
        less("yield, one task", Unit::Nanos),
        less("yield, 100 tasks", Unit::Nanos),
    ];
    let title = "Tasks: spawn and join an empty one; a yield (best of 5 batches per round)".into();
    let job = Job::Work(Task::Tasks { batch: scale.batch });
    vec![group(Workload::Tasks, "tasks", title, figures, job)]
}

fn files(scale: &Scale, file: &Path) -> Vec<Group> {
    let figures = vec![more("reads/s, depth 1"), more("reads/s, depth 32")];
    let title =
        "Files: random 4 KiB reads of 64 MiB in the page cache (not pinned: thread pools may use every core)".into();
    let job = Job::WorkAnywhere(Task::Files {
        path: file.into(),
        length: scale.files,
    });
    vec![group(Workload::Files, "files", title, figures, job)]
}

fn wake(scale: &Scale, machine: &Machine) -> Vec<Group> {
    let figures = vec![
        less("asleep, p50", Unit::Nanos),
        less("busy, round trip", Unit::Nanos),
        more("busy, round trips/s"),
    ];
    let title = "Wake by another thread: after a sleep of 2 ms; back to back".into();
    let job = Job::Work(Task::Wakes {
        core: machine.pinned.map(|(_, load)| load),
        count: scale.wakes,
        length: scale.round_trips,
    });
    vec![group(Workload::Wake, "wake", title, figures, job)]
}

fn memory(scale: &Scale, connections: usize) -> Vec<Group> {
    let title = format!("Memory: {connections} idle connections with one echo each, accepted by one loop");
    let figures = vec![
        less("process, each", Unit::Bytes),
        more("accepted/s"),
        less("CPU, each", Unit::Nanos),
    ];
    let mut group = group(Workload::Memory, "memory", title, figures, Job::Memory { connections });
    group.rounds = scale.memory_rounds;
    vec![group]
}

fn instructions() -> Vec<Group> {
    let shape = Shape {
        connections: 50,
        request_len: 1024,
        in_flight: 1,
    };
    let title = format!("User-space instructions per request, by callgrind, {shape}");
    let figures = vec![less("instructions", Unit::Count)];
    // Many times the work that valgrind does between two checks for signals, which end a server's count.
    let job = Job::Instructions {
        shape,
        requests: 25_000,
    };
    let mut group = group(Workload::Instructions, "instructions", title, figures, job);
    group.rounds = 1;
    vec![group]
}
