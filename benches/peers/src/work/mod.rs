//! The workloads inside a runtime, written once for all of them. Each runs in a child process, which prints one figure
//! per line.

pub(crate) mod files;
mod sleeps;
mod tasks;
pub(crate) mod timers;
pub(crate) mod wake;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::runtime::Runtime;

#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// A number of sleeps of one length: median and 99th percentile of the lateness, CPU time per sleep, and the number
    /// that ended early.
    Lateness { length: Duration, count: usize },
    /// A number of tasks that sleep for a random time, spawned and joined: CPU time and wall time.
    Sleeps {
        count: usize,
        shortest: Duration,
        longest: Duration,
    },
    /// A number of sleeps started and dropped: CPU time and wall time.
    Cancels { count: usize },
    /// The time of spawn and join, of a yield by one task, and of a yield by a hundred tasks.
    Tasks { batch: usize },
    /// Reads per second at depth 1 and at depth 32, for the given time each.
    Files { path: PathBuf, length: Duration },
    /// Wakes from another thread, on its own core if there is one: a number of wakes of a sleeping loop, and round
    /// trips for the given time.
    Wakes {
        core: Option<usize>,
        count: usize,
        length: Duration,
    },
}

impl Task {
    /// For a child's command line; [`parse`](Task::parse) is the way back.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let nanos = |length: &Duration| length.as_nanos().to_string();
        match self {
            Task::Lateness { length, count } => vec!["lateness".into(), nanos(length), count.to_string()],
            Task::Sleeps {
                count,
                shortest,
                longest,
            } => vec!["sleeps".into(), count.to_string(), nanos(shortest), nanos(longest)],
            Task::Cancels { count } => vec!["cancels".into(), count.to_string()],
            Task::Tasks { batch } => vec!["tasks".into(), batch.to_string()],
            Task::Files { path, length } => vec!["files".into(), path.display().to_string(), nanos(length)],
            Task::Wakes { core, count, length } => {
                let core = core.map_or("none".into(), |core| core.to_string());
                vec!["wakes".into(), core, count.to_string(), nanos(length)]
            }
        }
    }

    pub(crate) fn parse(args: &[String]) -> Result<Task, String> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("'{text}' is not a number"));
        let nanos = |text: &str| number(text).map(|nanos| Duration::from_nanos(nanos as u64));
        match args[..] {
            ["lateness", length, count] => Ok(Task::Lateness {
                length: nanos(length)?,
                count: number(count)?,
            }),
            ["sleeps", count, shortest, longest] => Ok(Task::Sleeps {
                count: number(count)?,
                shortest: nanos(shortest)?,
                longest: nanos(longest)?,
            }),
            ["cancels", count] => Ok(Task::Cancels { count: number(count)? }),
            ["tasks", batch] => Ok(Task::Tasks { batch: number(batch)? }),
            ["files", path, length] => Ok(Task::Files {
                path: path.into(),
                length: nanos(length)?,
            }),
            ["wakes", core, count, length] => Ok(Task::Wakes {
                core: if core == "none" { None } else { Some(number(core)?) },
                count: number(count)?,
                length: nanos(length)?,
            }),
            _ => Err(format!("unknown workload '{}'", args.join(" "))),
        }
    }
}

pub(crate) fn run<R: Runtime>(task: &Task) -> io::Result<Vec<f64>> {
    match task.clone() {
        Task::Lateness { length, count } => in_task::<R, _>(timers::measure::<R>(length, count))?,
        Task::Sleeps {
            count,
            shortest,
            longest,
        } => in_task::<R, _>(sleeps::fire::<R>(count, shortest, longest))?,
        Task::Cancels { count } => in_task::<R, _>(sleeps::cancel::<R>(count))?,
        Task::Tasks { batch } => in_task::<R, _>(tasks::measure::<R>(batch)),
        Task::Files { path, length } => in_task::<R, _>(files::measure::<R>(path, length))?,
        Task::Wakes { core, count, length } => in_task::<R, _>(wake::measure(core, count, length)),
    }
}

/// Runs the workload in a task. The main future is not a task in every runtime: tokio and smol unpark the thread for
/// each of its wakes. Programs mostly run in tasks, so everything is measured there.
fn in_task<R: Runtime, T: 'static>(work: impl Future<Output = T> + 'static) -> io::Result<T> {
    R::run(async {
        let result = Rc::new(Cell::new(None));
        let place = Rc::clone(&result);
        R::spawn(async move { place.set(Some(work.await)) }).await;
        result.take().expect("the task has ended")
    })
}

/// xorshift, with the same numbers for every contender: good enough for sleeps and offsets.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
