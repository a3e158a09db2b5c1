//! Timer resolution: how late a short sleep ends.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use windlass::{Builder, DriverChoice};

use super::contender::{Field, Kind};
use super::kit::clock::least_timer_slack;
use super::kit::epoll::{Epoll, Events};
use super::kit::machine::Machine;
use super::kit::process::Process;
use super::kit::progress::Progress;
use super::kit::rounds::take_turns;
use super::options::Plan;

/// The lateness of one contender's sleeps of one length.
pub(crate) struct Lateness {
    pub(crate) kind: Kind,
    pub(crate) pause: Duration,
    /// In nanoseconds, in order of measurement.
    pub(crate) rounds: Vec<Vec<i64>>,
}

impl Lateness {
    /// Of all rounds together, ascending.
    pub(crate) fn sorted(&self) -> Vec<i64> {
        let mut all = self.rounds.concat();
        all.sort_unstable();
        all
    }

    /// The lateness that this share of the sleeps does not exceed, in nanoseconds.
    pub(crate) fn nanos(&self, share: f64) -> f64 {
        let all = self.sorted();
        match all.len().checked_sub(1) {
            Some(last) => all[(last as f64 * share).round() as usize] as f64,
            None => f64::NAN,
        }
    }
}

/// Estimates for the progress bar: starting a process, and the lateness of a sleep (asyncio: one millisecond).
const SECONDS_PER_START: f64 = 0.1;
const SECONDS_LATE: f64 = 200e-6;

pub(crate) fn weight(plan: &Plan, field: &Field) -> f64 {
    let sleeps: f64 = plan
        .sleeps
        .iter()
        .map(|&(pause, count)| weight_of_one(pause, count))
        .sum();
    (field.sleepers().count() * plan.sleep_rounds) as f64 * sleeps
}

fn weight_of_one(pause: Duration, count: usize) -> f64 {
    SECONDS_PER_START + count as f64 * (pause.as_secs_f64() + SECONDS_LATE)
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    field: &Field,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Lateness> {
    let mut all: Vec<Lateness> = Vec::new();
    for (pause, count) in plan.sleeps {
        let mut sleepers: Vec<Kind> = field.sleepers().collect();
        take_turns(plan.sleep_rounds, &mut sleepers, |_, &mut kind| {
            let what = format!("{count} sleeps of {}: {}", micros(pause), kind.title());
            progress.step_of(weight_of_one(pause, count), &what);
            let round = ask(kind, pause, count, machine, field);
            if let Err(error) = &round {
                missing.push(format!("sleeps of {}, {}: {error}", micros(pause), kind.title()));
            }
            round.map(|round| add(&mut all, kind, pause, round)).is_ok()
        });
    }
    all
}

fn micros(pause: Duration) -> String {
    format!("{} us", pause.as_micros())
}

fn add(all: &mut Vec<Lateness>, kind: Kind, pause: Duration, round: Vec<i64>) {
    match all.iter_mut().find(|late| late.kind == kind && late.pause == pause) {
        Some(late) => late.rounds.push(round),
        None => all.push(Lateness {
            kind,
            pause,
            rounds: vec![round],
        }),
    }
}

/// Lets a child process measure on the servers' core, and parses its output.
fn ask(kind: Kind, pause: Duration, count: usize, machine: &Machine, field: &Field) -> io::Result<Vec<i64>> {
    let core = machine.server_core();
    let mut child = match (kind, &field.python) {
        (Kind::Asyncio | Kind::Uvloop, Some(python)) => Process::start(python.sleep(kind.name(), pause, count), core)?,
        _ => {
            let (nanos, count) = (pause.as_nanos().to_string(), count.to_string());
            Process::again(&["--sleep", kind.name(), &nanos, &count], core)?
        }
    };
    let output = child.all_output(Duration::from_secs(20))?;
    let nanos: Vec<i64> = output.lines().filter_map(|line| line.parse().ok()).collect();
    match nanos.len() == count {
        true => Ok(nanos),
        false => Err(io::Error::other("unexpected output of the child process")),
    }
}

/// The child process: prints the lateness of each sleep in nanoseconds.
pub(crate) fn measure_sleeps(kind: Kind, pause: Duration, count: usize) -> io::Result<()> {
    let late = match kind {
        Kind::Proactor => windlass_sleeps(DriverChoice::Proactor, pause, count)?,
        Kind::Reactor => windlass_sleeps(DriverChoice::Reactor, pause, count)?,
        Kind::Epoll => {
            least_timer_slack();
            let (epoll, mut events) = (Epoll::new()?, Events::new());
            plain_sleeps(pause, count, || epoll.sleep(&mut events, pause))?
        }
        #[cfg(feature = "proactor")]
        Kind::Uring => {
            let mut ring = super::kit::hand_uring::ring(1)?;
            plain_sleeps(pause, count, || super::kit::hand_uring::sleep(&mut ring, pause))?
        }
        #[cfg(not(feature = "proactor"))]
        Kind::Uring => return Err(io::Error::other("built without the feature proactor")),
        Kind::Kernel => {
            least_timer_slack();
            plain_sleeps(pause, count, || {
                std::thread::sleep(pause);
                Ok(())
            })?
        }
        Kind::Asyncio | Kind::Uvloop => return Err(io::Error::other("these are measured by Python scripts")),
        Kind::UringMultishot => return Err(io::Error::other("sleeps in the same way as the one-shot loop")),
    };
    let lines: Vec<String> = late.iter().map(i64::to_string).collect();
    writeln!(io::stdout(), "{}", lines.join("\n"))
}

fn windlass_sleeps(driver: DriverChoice, pause: Duration, count: usize) -> io::Result<Vec<i64>> {
    let event_loop = Builder::new().driver(driver).build()?;
    event_loop.run_until_complete(async {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let begin = Instant::now();
            windlass::time::sleep(pause).await;
            all.push(lateness(begin, pause));
        }
        all
    })
}

fn plain_sleeps(pause: Duration, count: usize, mut sleep: impl FnMut() -> io::Result<()>) -> io::Result<Vec<i64>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        sleep()?;
        all.push(lateness(begin, pause));
    }
    Ok(all)
}

fn lateness(begin: Instant, pause: Duration) -> i64 {
    begin.elapsed().as_nanos() as i64 - pause.as_nanos() as i64
}
