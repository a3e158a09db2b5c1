//! The echo servers. [`windlass_echo`] is used in every echo measurement of windlass; the caller provides the loop,
//! with its driver and settings. In the benches a server is a process ([`echo`]): windlass on a driver, or hand-written
//! epoll.

use std::io;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};

use super::drivers::Driver;
use super::hand_epoll::{self, print_port};
use super::process::Process;

/// The time limit for a server to print its port.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Starts this program as a server, with these arguments after `--role`, and reads its port.
pub(crate) fn start(role: &[&str], core: Option<usize>) -> io::Result<(Process, u16)> {
    let mut args = vec!["--role"];
    args.extend(role);
    let mut process = Process::again(&args, core)?;
    let port = port_of(&mut process, PATIENCE)?;
    Ok((process, port))
}

/// Parses the port, the first line that a server prints.
pub(crate) fn port_of(server: &mut Process, patience: Duration) -> io::Result<u16> {
    let line = server.first_line(patience)?;
    let port = line.trim().parse();
    port.map_err(|_| io::Error::other(format!("the server printed '{line}' instead of its port")))
}

/// Serves echoes until killed: `epoll`, or a driver's name. The first line on standard output is the port.
pub(crate) fn echo(kind: &str) -> io::Result<()> {
    match Driver::named(kind) {
        Some(driver) => driver.open()?.run_until_complete(windlass_echo())?,
        None => hand_epoll::serve(),
    }
}

/// The echo server of the README, without its error messages. Prints its port, and serves until killed.
pub(crate) async fn windlass_echo() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    print_port(listener.local_addr()?.port())?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A reset connection ends its own task only.
        windlass::spawn(async move {
            let _ = echo_all(stream).await;
        });
    }
}

/// Echoes until the client closes.
pub(crate) async fn echo_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}
