//! Keeps a program running: restarts it when it ends, forwards its output line by line, and stops it on Ctrl-C or
//! SIGTERM: with SIGTERM and, after a grace period, with SIGKILL.
//!
//!     cargo run --example supervise -- sh -c 'echo working; sleep 1; exit 1'
//!     cargo run --example supervise -- --grace 2 sh -c 'trap "" TERM; echo stubborn; while :; do sleep 1; done'

use std::io;
use std::time::{Duration, Instant};

use windlass::io::stdout;
use windlass::process::{Child, ChildStdout, Command, Stdio};
use windlass::time::timeout;

/// The pause before a restart: doubled each time, and reset after a run longer than `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

fn main() -> io::Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut grace = Duration::from_secs(5);
    if args.len() > 1 && args[0] == "--grace" {
        let seconds = args[1]
            .parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        grace =
            seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "--grace needs a number of seconds"))?;
        args.drain(..2);
    }
    if args.is_empty() {
        eprintln!("usage: supervise [--grace SECONDS] PROGRAM [ARGUMENTS]");
        std::process::exit(2);
    }
    windlass::run(supervise(args, grace))?
}

async fn supervise(args: Vec<String>, grace: Duration) -> io::Result<()> {
    let mut shutdown = windlass::signal::shutdown()?;
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let mut command = Command::new(&args[0]);
        command.args(&args[1..]).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C in a terminal signals the whole process group; the child must be stopped by this program only.
        new_process_group(&mut command);
        let mut child = command.spawn()?;
        print(format!("[started {}]\n", child.id().unwrap_or(0))).await?;
        let forwarding = windlass::spawn(forward(child.stdout.take().expect("stdout is piped")));
        let Some(status) = shutdown.run_until_shutdown(child.wait()).await else {
            return stop(child, grace).await;
        };
        let status = status?;
        // Forwards the remaining output first, with a limit: a grandchild may keep the pipe open forever.
        if let Ok(forwarded) = timeout(FIRST_PAUSE, forwarding).await {
            forwarded??;
        }
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        print(format!("[ended: {status}; restart in {pause:?}]\n")).await?;
        if timeout(pause, shutdown.recv()).await.is_ok() {
            return print("[stopped]\n".to_owned()).await;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks the child to stop, and kills it after the grace period.
async fn stop(mut child: Child, grace: Duration) -> io::Result<()> {
    request_stop(&child)?;
    match timeout(grace, child.wait()).await {
        Ok(status) => print(format!("[stopped: {}]\n", status?)).await,
        Err(_) => {
            child.kill().await?;
            print(format!("[killed after {grace:?}]\n")).await
        }
    }
}

/// Forwards the child's output, a line at a time.
async fn forward(output: ChildStdout) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let bytes = output.read_managed().await?;
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                print(format!("| {}", String::from_utf8_lossy(&line))).await?;
                line.clear();
            }
        }
        if bytes.is_empty() {
            return match line.is_empty() {
                true => Ok(()),
                false => print(format!("| {}\n", String::from_utf8_lossy(&line))).await,
            };
        }
    }
}

/// Prints a line. A closed standard output does not stop the supervised program.
async fn print(line: String) -> io::Result<()> {
    match stdout().write_all(line).await.0 {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(unix)]
fn new_process_group(command: &mut Command) {
    command.process_group(0);
}

#[cfg(unix)]
fn request_stop(child: &Child) -> io::Result<()> {
    child.send_signal(windlass::signal::SignalKind::terminate())
}

#[cfg(windows)]
fn new_process_group(command: &mut Command) {
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

#[cfg(windows)]
fn request_stop(child: &Child) -> io::Result<()> {
    child.send_ctrl_break()
}
