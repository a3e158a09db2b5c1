//! The work that every simulator does, and how it is measured.
//!
//! A message is 64 bytes that the program of one host writes and the program of another has read: an echo is two
//! messages. Only messages that have arrived are counted.
//!
//! Times are CPU times: every simulator runs on one thread and never waits, so on an idle machine they are the elapsed
//! times, and on a busy one they stay the same.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The length of a message, of an echo and of a heartbeat.
pub(crate) const MESSAGE: usize = 64;

/// The time that a message takes from host to host.
pub(crate) const LATENCY: Duration = Duration::from_millis(1);

/// The hosts that send to the one that echoes.
pub(crate) const CLIENTS: usize = 2;

/// The time between two heartbeats to a neighbour.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// Runs are repeated, or made longer, until they take this long.
const LONG_ENOUGH: Duration = Duration::from_millis(400);

/// What the hosts of a simulation do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Every client has connections to the server, and sends on each the next message when it has the last one's echo,
    /// after a pause.
    Echo {
        connections: usize,
        echoes: usize,
        pause: Duration,
    },
    /// Every host sends heartbeats to the hosts after it.
    Heartbeats {
        hosts: usize,
        neighbours: usize,
        beats: usize,
    },
}

impl Scenario {
    fn echo(connections: usize, echoes: usize) -> Scenario {
        Scenario::Echo {
            connections,
            echoes,
            pause: Duration::ZERO,
        }
    }

    /// Longer than the hosts need, in virtual time.
    pub(crate) fn time_limit(self) -> Duration {
        match self {
            // Of a thousand messages one may take 200 ms, if the simulator loses some.
            Scenario::Echo { echoes, pause, .. } => (pause + 2 * LATENCY) * echoes as u32 * 2 + 3_600 * BEAT,
            Scenario::Heartbeats { beats, .. } => BEAT * (beats as u32 + 60),
        }
    }
}

/// A figure of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Messages per second.
    Echo { connections: usize },
    /// Seeds per second: set-up, 100 echoes per client, and the end.
    Seeds,
    /// Seconds for heartbeats among 500 hosts over this many seconds of virtual time.
    Heartbeats { seconds: usize },
    /// Seconds for 2,000 echoes that are spread over this many seconds of virtual time.
    Idle { seconds: usize },
}

impl Work {
    /// The arguments of a process that does it.
    #[cfg(not(madsim))]
    pub(crate) fn to_args(self) -> [String; 2] {
        let (name, value) = match self {
            Work::Echo { connections } => ("echo", connections),
            Work::Seeds => ("seeds", 0),
            Work::Heartbeats { seconds } => ("heartbeats", seconds),
            Work::Idle { seconds } => ("idle", seconds),
        };
        [name.into(), value.to_string()]
    }

    pub(crate) fn parse(args: &[String]) -> Result<Work, String> {
        let [name, value] = args else {
            return Err("a name and a number are needed".into());
        };
        let value = value.parse().map_err(|_| format!("'{value}' is not a number"))?;
        match name.as_str() {
            "echo" => Ok(Work::Echo { connections: value }),
            "seeds" => Ok(Work::Seeds),
            "heartbeats" => Ok(Work::Heartbeats { seconds: value }),
            "idle" => Ok(Work::Idle { seconds: value }),
            _ => Err(format!("'{name}' is unknown")),
        }
    }

    /// The CPU time after which a simulator has taken too long.
    pub(crate) fn limit(self) -> Duration {
        match self {
            // windlass runs a single seed twice.
            Work::Heartbeats { seconds: 3_600 } => Duration::from_secs(150),
            _ => Duration::from_secs(20),
        }
    }

    /// Measures it on a simulator: a function that runs a scenario with each of these seeds. The process ends when the
    /// time is up.
    pub(crate) fn measure(self, simulate: &dyn Fn(Range<u64>, Scenario) -> io::Result<()>) -> io::Result<f64> {
        limit_cpu_time(self.limit())?;
        match self {
            Work::Echo { connections } => {
                let run = |echoes| measure(simulate, 1, Scenario::echo(connections, echoes));
                let run = longer(1_000, |echoes| run(echoes as usize / connections))?;
                Ok(run.messages as f64 / run.time.as_secs_f64())
            }
            Work::Seeds => {
                let mut seeds = 0;
                let run = longer(16, |count| {
                    seeds = count;
                    measure(simulate, count, Scenario::echo(1, 100))
                })?;
                Ok(seeds as f64 / run.time.as_secs_f64())
            }
            Work::Heartbeats { seconds } => {
                let (hosts, neighbours) = (500, 8);
                let scenario = Scenario::Heartbeats {
                    hosts,
                    neighbours,
                    beats: seconds,
                };
                let run = measure(simulate, 1, scenario)?;
                let least = run.runs * (hosts * neighbours * seconds) as u64 * 99 / 100;
                match run.messages >= least {
                    true => Ok(run.time.as_secs_f64() / run.runs as f64),
                    false => Err(io::Error::other(format!("only {} heartbeats arrived", run.messages))),
                }
            }
            Work::Idle { seconds } => {
                let scenario = Scenario::Echo {
                    connections: 1,
                    echoes: 1_000,
                    pause: Duration::from_secs(seconds as u64) / 1_000,
                };
                let run = measure(simulate, 1, scenario)?;
                Ok(run.time.as_secs_f64() / run.runs as f64)
            }
        }
    }
}

/// What a number of simulations did.
struct Measured {
    runs: u64,
    messages: u64,
    time: Duration,
}

/// Doubles the amount of work until it takes long enough.
fn longer(mut amount: u64, mut run: impl FnMut(u64) -> io::Result<Measured>) -> io::Result<Measured> {
    loop {
        let measured = run(amount)?;
        if measured.time >= LONG_ENOUGH {
            return Ok(measured);
        }
        amount *= 2;
    }
}

fn measure(
    simulate: &dyn Fn(Range<u64>, Scenario) -> io::Result<()>,
    seeds: u64,
    scenario: Scenario,
) -> io::Result<Measured> {
    let (runs, messages) = (RUNS.load(Relaxed), MESSAGES.load(Relaxed));
    let begin = cpu_time();
    simulate(1..1 + seeds, scenario)?;
    Ok(Measured {
        runs: RUNS.load(Relaxed) - runs,
        messages: MESSAGES.load(Relaxed) - messages,
        time: cpu_time() - begin,
    })
}

/// Ends this process, with a message, when it has used this much CPU time.
fn limit_cpu_time(limit: Duration) -> io::Result<()> {
    extern "C" fn too_long(_: libc::c_int) {
        let text = b"not done within the limit of CPU time\n";
        // SAFETY: both calls may be made in a signal handler; the text is static.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(1);
        }
    }
    let limit = libc::rlimit {
        rlim_cur: limit.as_secs(),
        rlim_max: limit.as_secs() + 10,
    };
    // SAFETY: the handler makes no calls but those that a handler may make, and the kernel reads a local variable.
    let code = unsafe {
        libc::signal(
            libc::SIGXCPU,
            too_long as extern "C" fn(libc::c_int) as libc::sighandler_t,
        );
        libc::setrlimit(libc::RLIMIT_CPU, &limit)
    };
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The CPU time of this process. Not by `clock_gettime`, which madsim replaces.
fn cpu_time() -> Duration {
    // SAFETY: zeroes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to a local variable. The call cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Simulations so far. windlass runs a seed twice now and then, to compare the hashes.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Messages that have arrived so far, in all simulations.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// A simulation begins.
pub(crate) fn begin() {
    RUNS.fetch_add(1, Relaxed);
}

/// Messages have arrived.
pub(crate) fn arrived(count: usize) {
    MESSAGES.fetch_add(count as u64, Relaxed);
}
