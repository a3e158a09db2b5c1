//! Keeps a program running: starts it again when it ends, forwards its output line by line, and stops it on Ctrl-C or
//! SIGTERM: first politely, then, after a grace period, for good.
//!
//!     cargo run --example supervise -- sh -c 'echo working; sleep 1; exit 1'
//!     cargo run --example supervise -- --grace 2 sh -c 'trap "" TERM; echo stubborn; while :; do sleep 1; done'

use std::io;
use std::time::{Duration, Instant};

use windlass::io::stdout;
use windlass::process::{Child, ChildStdout, Command, Stdio};
use windlass::time::timeout;

/// How long to wait before the program is started again: doubled each time, and forgotten after a good run.
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
        grace = seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "--grace wants seconds"))?;
        args.drain(..2);
    }
    if args.is_empty() {
        eprintln!("usage: supervise [--grace seconds] program [arguments]");
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
        // Ctrl-C in a terminal reaches every process of the group: this one decides itself when its child ends.
        set_apart(&mut command);
        let mut child = command.spawn()?;
        say(format!("[started {}]\n", child.id().unwrap_or(0))).await?;
        let forwarding = windlass::spawn(forward(child.stdout.take().expect("it is piped")));
        let Some(status) = shutdown.run_until_shutdown(child.wait()).await else {
            return end(child, grace).await;
        };
        let status = status?;
        // What it wrote before its end comes first; but a grandchild may keep the pipe open for ever.
        if let Ok(forwarded) = timeout(FIRST_PAUSE, forwarding).await {
            forwarded??;
        }
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        say(format!("[ended: {status}; again in {pause:?}]\n")).await?;
        if timeout(pause, shutdown.recv()).await.is_ok() {
            return say("[stopped]\n".to_owned()).await;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks the child to end, and kills it if it does not in time.
async fn end(mut child: Child, grace: Duration) -> io::Result<()> {
    request_cancel(&child)?;
    match timeout(grace, child.wait()).await {
        Ok(status) => say(format!("[stopped: {}]\n", status?)).await,
        Err(_) => {
            child.kill().await?;
            say(format!("[killed after {grace:?}]\n")).await
        }
    }
}

/// Writes what the child writes, a line at a time.
async fn forward(output: ChildStdout) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let bytes = output.read_managed().await?;
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                say(format!("| {}", String::from_utf8_lossy(&line))).await?;
                line.clear();
            }
        }
        if bytes.is_empty() {
            return match line.is_empty() {
                true => Ok(()),
                false => say(format!("| {}\n", String::from_utf8_lossy(&line))).await,
            };
        }
    }
}

/// Prints a line. That its reader is gone is no reason to stop the program that runs.
async fn say(line: String) -> io::Result<()> {
    match stdout().write_all(line).await.0 {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(unix)]
fn set_apart(command: &mut Command) {
    command.process_group(0);
}

#[cfg(unix)]
fn request_cancel(child: &Child) -> io::Result<()> {
    child.send_signal(windlass::signal::SignalKind::terminate())
}

#[cfg(windows)]
fn set_apart(command: &mut Command) {
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

#[cfg(windows)]
fn request_cancel(child: &Child) -> io::Result<()> {
    child.send_ctrl_break()
}
