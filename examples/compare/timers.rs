//! Timer resolution: how late a short sleep ends.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use windlass::{Builder, DriverChoice};

use crate::kit::epoll::{Epoll, Events};
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::options::Plan;
use crate::python::Python;

/// The sleeps, and how many of each.
const SLEEPS: [(Duration, usize); 2] = [(Duration::from_millis(1), 600), (Duration::from_micros(100), 1500)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleeper {
    Proactor,
    Reactor,
    /// A loop by hand, with epoll_pwait2(2), which takes nanoseconds (Linux 5.11).
    Epoll,
    /// A loop by hand, which waits for completions with a timeout.
    Uring,
    /// The system call alone, which no loop can beat by much.
    Kernel,
    Asyncio,
    Uvloop,
}

impl Sleeper {
    pub(crate) const ALL: [Sleeper; 7] = [
        Sleeper::Proactor,
        Sleeper::Reactor,
        Sleeper::Epoll,
        Sleeper::Uring,
        Sleeper::Kernel,
        Sleeper::Asyncio,
        Sleeper::Uvloop,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sleeper::Proactor => "proactor",
            Sleeper::Reactor => "reactor",
            Sleeper::Epoll => "epoll",
            Sleeper::Uring => "uring",
            Sleeper::Kernel => "kernel",
            Sleeper::Asyncio => "asyncio",
            Sleeper::Uvloop => "uvloop",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Sleeper::Proactor => "windlass Proactor (io_uring)",
            Sleeper::Reactor => "windlass Reactor (epoll)",
            Sleeper::Epoll => "epoll by hand",
            Sleeper::Uring => "io_uring by hand",
            Sleeper::Kernel => "the kernel alone (nanosleep)",
            Sleeper::Asyncio => "asyncio SelectorEventLoop",
            Sleeper::Uvloop => "uvloop",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Sleeper, String> {
        let found = Sleeper::ALL.into_iter().find(|sleeper| sleeper.name() == name);
        found.ok_or(format!("no sleeper is called '{name}'"))
    }
}

/// How late one sleeper's sleeps of one length were.
pub(crate) struct Lateness {
    pub(crate) sleeper: Sleeper,
    pub(crate) pause: Duration,
    /// Sorted.
    pub(crate) nanos: Vec<i64>,
}

impl Lateness {
    /// The lateness that this share of the sleeps does not exceed, in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        let last = self.nanos.len() - 1;
        self.nanos[(last as f64 * share).round() as usize] as f64 / 1e3
    }
}

fn sleepers(python: Option<&Python>) -> impl Iterator<Item = Sleeper> {
    let has_uvloop = python.is_some_and(|python| python.uvloop.is_some());
    let has_python = python.is_some();
    Sleeper::ALL.into_iter().filter(move |sleeper| match sleeper {
        Sleeper::Proactor | Sleeper::Reactor | Sleeper::Epoll | Sleeper::Uring | Sleeper::Kernel => true,
        Sleeper::Asyncio => has_python,
        Sleeper::Uvloop => has_uvloop,
    })
}

pub(crate) fn steps(python: Option<&Python>) -> usize {
    sleepers(python).count() * SLEEPS.len()
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    python: Option<&Python>,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Lateness> {
    let mut all = Vec::new();
    for (pause, count) in SLEEPS {
        let count = if plan.quick { count / 4 } else { count };
        for sleeper in sleepers(python) {
            progress.step(&format!("{count} sleeps of {pause:?}: {}", sleeper.title()));
            match ask(sleeper, pause, count, machine, python) {
                Ok(nanos) => all.push(Lateness { sleeper, pause, nanos }),
                Err(error) => missing.push(format!("{}, sleeps of {pause:?}: {error}", sleeper.title())),
            }
        }
    }
    all
}

/// Has a child measure, on the servers' core, and reads what it prints.
fn ask(
    sleeper: Sleeper,
    pause: Duration,
    count: usize,
    machine: &Machine,
    python: Option<&Python>,
) -> io::Result<Vec<i64>> {
    let core = machine.server_core();
    let mut child = match (sleeper, python) {
        (Sleeper::Asyncio | Sleeper::Uvloop, Some(python)) => {
            Process::start(python.sleep(sleeper.name(), pause, count), core)?
        }
        (Sleeper::Asyncio | Sleeper::Uvloop, None) => return Err(io::Error::other("there is no python3")),
        _ => {
            let (nanos, count) = (pause.as_nanos().to_string(), count.to_string());
            Process::again(&["--sleep", sleeper.name(), &nanos, &count], core)?
        }
    };
    let output = child.all_output(Duration::from_secs(20))?;
    let mut nanos: Vec<i64> = output.lines().filter_map(|line| line.parse().ok()).collect();
    if nanos.len() != count {
        return Err(io::Error::other("the child printed something else"));
    }
    nanos.sort_unstable();
    Ok(nanos)
}

/// The child's part: prints how late each sleep was, in nanoseconds.
pub(crate) fn measure_sleeps(sleeper: Sleeper, pause: Duration, count: usize) -> io::Result<()> {
    let late = match sleeper {
        Sleeper::Proactor => windlass_sleeps(DriverChoice::Proactor, pause, count)?,
        Sleeper::Reactor => windlass_sleeps(DriverChoice::Reactor, pause, count)?,
        Sleeper::Epoll => {
            let (epoll, mut events) = (Epoll::new()?, Events::new());
            plain_sleeps(pause, count, || epoll.sleep(&mut events, pause))?
        }
        #[cfg(feature = "proactor")]
        Sleeper::Uring => {
            let mut ring = crate::kit::hand_uring::ring()?;
            plain_sleeps(pause, count, || crate::kit::hand_uring::sleep(&mut ring, pause))?
        }
        #[cfg(not(feature = "proactor"))]
        Sleeper::Uring => return Err(io::Error::other("built without the feature proactor")),
        Sleeper::Kernel => plain_sleeps(pause, count, || {
            std::thread::sleep(pause);
            Ok(())
        })?,
        Sleeper::Asyncio | Sleeper::Uvloop => return Err(io::Error::other("Python measures these")),
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
