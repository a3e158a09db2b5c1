//! A WebSocket echo server that accounts for every connection, and a load generator that checks it.
//!
//! `cargo run --release --features compat-futures --example websocket -- serve [--listen 127.0.0.1:9001]`, and in
//! another shell `cargo run --release --features compat-futures --example websocket -- load [--connect 127.0.0.1:9001]
//! [--connections 5000]`.
//!
//! Each connection is counted from accept to end: it ended with a close frame and its code, or it was dropped, and by
//! which side. A client that does not read, or floods the server with pings, holds a bounded amount of memory and is
//! disconnected after `--write-timeout` seconds. On Ctrl-C or SIGTERM the server sends a close frame (1001) on every
//! connection and waits `--grace` seconds for the replies. The protocol is tungstenite's, over a bridge with
//! futures-io's traits.

mod load;
mod serve;
#[path = "../support/mod.rs"]
mod support;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use async_tungstenite::tungstenite::protocol::WebSocketConfig;
use support::outln;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: websocket serve [--listen HOST:PORT] [--max-message BYTES] [--grace SECONDS]
                       [--write-timeout SECONDS] [--driver NAME]
       websocket load [--connect HOST:PORT] [--connections COUNT] [--messages COUNT] [--size BYTES] [--driver NAME]";

struct Options {
    addr: String,
    driver: DriverChoice,
    max_message: usize,
    grace: Duration,
    write_timeout: Duration,
    connections: usize,
    messages: u32,
    size: usize,
}

enum Mode {
    Serve,
    Load,
}

fn main() -> ExitCode {
    let (mode, options) = match options(std::env::args().skip(1)) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            outln!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(mode, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything succeeded.
fn run(mode: Mode, options: Options) -> io::Result<bool> {
    allow_all_descriptors()?;
    let event_loop = Builder::new().driver(options.driver).build()?;
    outln!("driver: {}", event_loop.describe());
    match mode {
        Mode::Serve => event_loop.run_until_complete(serve::serve(options))?.map(|()| true),
        Mode::Load => event_loop.run_until_complete(load::load(options))?,
    }
}

/// tungstenite's default buffers are too large for many connections, and its write buffer has no limit: the pongs for a
/// client that never reads would accumulate there. This limit has room for one message and some pongs.
fn config(max_message: usize) -> WebSocketConfig {
    const WRITE_BUFFER: usize = 16 * 1024;
    WebSocketConfig::default()
        .read_buffer_size(4 * 1024)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(max_message + 4 * WRITE_BUFFER)
        .max_message_size(Some(max_message))
        .max_frame_size(Some(max_message))
}

/// Windows has no limit on descriptors.
#[cfg(not(unix))]
fn allow_all_descriptors() -> io::Result<()> {
    Ok(())
}

/// Raises the limit on descriptors, which is usually 1,024: each connection is one.
#[cfg(unix)]
fn allow_all_descriptors() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel fills the local structure, reads it, and keeps no pointer to it.
    let result = unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) {
            0 => {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
            }
            failed => failed,
        }
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<(Mode, Options)>, String> {
    let mode = match args.next().as_deref() {
        Some("serve") => Mode::Serve,
        Some("load") => Mode::Load,
        Some("--help" | "-h") => return Ok(None),
        Some(other) => return Err(format!("unknown mode {other}")),
        None => return Err("no mode given: serve or load".into()),
    };
    let mut options = Options {
        addr: "127.0.0.1:9001".into(),
        driver: DriverChoice::Auto,
        max_message: 64 * 1024,
        grace: Duration::from_secs(5),
        write_timeout: Duration::from_secs(10),
        connections: 5_000,
        messages: 10,
        size: 128,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match (&mode, arg.as_str()) {
            (Mode::Serve, "--listen") | (Mode::Load, "--connect") => options.addr = value()?,
            (_, "--driver") => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            (Mode::Serve, "--max-message") => options.max_message = number(&value()?)?,
            (Mode::Serve, "--grace") => options.grace = seconds(&value()?)?,
            (Mode::Serve, "--write-timeout") => options.write_timeout = seconds(&value()?)?,
            (Mode::Load, "--connections") => options.connections = number(&value()?)?,
            (Mode::Load, "--messages") => options.messages = number(&value()?)?,
            (Mode::Load, "--size") => options.size = number::<usize>(&value()?)?.max(8),
            (_, "--help" | "-h") => return Ok(None),
            (_, other) => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some((mode, options)))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(text)?).map_err(|error| error.to_string())
}
