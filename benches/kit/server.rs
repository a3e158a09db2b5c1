//! The echo servers of the benches, each the whole of a process: windlass on a driver, or epoll by hand.

use std::io;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};

use super::drivers::Driver;
use super::hand_epoll::{self, print_port};
use super::process::Process;

/// How long a server may take until it says its port.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts this program as a server, with these words after `--role`, and learns its port.
pub(crate) fn start(role: &[&str], core: Option<usize>) -> io::Result<(Process, u16)> {
    let mut args = vec!["--role"];
    args.extend(role);
    let mut process = Process::again(&args, core)?;
    let line = process.first_line(PATIENCE)?;
    match line.trim().parse() {
        Ok(port) => Ok((process, port)),
        Err(_) => Err(io::Error::other(format!(
            "the server said '{line}' instead of its port"
        ))),
    }
}

/// Serves echoes until killed: `epoll`, or a driver's name. The first line on standard output is the port.
pub(crate) fn echo(kind: &str) -> io::Result<()> {
    match Driver::named(kind) {
        Some(driver) => windlass_echo(driver),
        None => hand_epoll::serve(),
    }
}

/// The README's server, as anybody would write it.
fn windlass_echo(driver: Driver) -> io::Result<()> {
    driver.open()?.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A peer that resets its connection ends its own task, and nothing else.
            windlass::spawn(async move {
                let _ = echo_all(stream).await;
            });
        }
    })?
}

async fn echo_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}
