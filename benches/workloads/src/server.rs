//! A server process: started, measured, killed.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::Kind;
use crate::workload::Workload;

/// A server in a separate process, or in several, so that its CPU time can be measured.
pub struct Server {
    children: Vec<Child>,
    pub port: u16,
}

/// The server and the load tool are pinned to separate cores if there are two: otherwise the scheduler moves them, and
/// the one that is moved more often looks slower.
const SERVER: usize = 0;
pub const LOAD: usize = 1;

/// A program pinned to one core, if there are two and `taskset` is installed.
pub fn on_processor(processor: usize, program: &OsStr) -> Command {
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
    pub fn start(workload: Workload, &(name, runtime, is_per_core): &Kind, all_cores: bool) -> Server {
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
            command.args(["serve", workload.name(), runtime, &server.port.to_string()]);
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the server starts");
            let mut said = String::new();
            let told = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said);
            let addr = told.ok().and_then(|_| {
                said.trim()
                    .strip_prefix(crate::serve::LISTENING)?
                    .parse::<SocketAddr>()
                    .ok()
            });
            server.children.push(child);
            match addr {
                Some(addr) => server.port = addr.port(),
                None => panic!("the server {name} does not listen: it printed {said:?}"),
            }
        }
        server
    }

    /// The CPU time of its threads so far, in microseconds.
    pub fn used_us(&self) -> f64 {
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
