//! An echo server in asyncio's callback style: no `async` in the protocol.
//!
//! `cargo run --release --example echo_protocol -- [--addr 127.0.0.1:7777]`, then `nc 127.0.0.1 7777`. With `--demo` it
//! serves three clients of its own and exits. On Ctrl-C or SIGTERM it stops accepting and lets the open connections
//! finish.

#[path = "support/mod.rs"]
mod support;

use std::io;

use support::{GRACE, outln};
use windlass::Promise;
use windlass::protocol::{Protocol, Transport, create_connection, create_server};
use windlass::time::timeout;

const USAGE: &str = "usage: echo_protocol [--addr HOST:PORT] [--demo]";

/// Sends everything back. Stops reading from a peer that does not read, so that the write buffer stays bounded.
#[derive(Default)]
struct Echo {
    transport: Option<Transport>,
    echoed: usize,
}

impl Echo {
    fn transport(&self) -> &Transport {
        self.transport.as_ref().expect("connection_made comes first")
    }

    fn peer(&self) -> String {
        self.transport()
            .peer_addr()
            .map_or("unknown peer".into(), |peer| peer.to_string())
    }
}

impl Protocol for Echo {
    fn connection_made(&mut self, transport: Transport) {
        self.transport = Some(transport);
        outln!("{} connected", self.peer());
    }

    fn data_received(&mut self, data: &[u8]) {
        self.echoed += data.len();
        self.transport().write(data);
    }

    fn pause_writing(&mut self) {
        self.transport().pause_reading();
    }

    fn resume_writing(&mut self) {
        self.transport().resume_reading();
    }

    fn connection_lost(&mut self, error: Option<io::Error>) {
        match error {
            None => outln!("{} disconnected after {} bytes", self.peer(), self.echoed),
            Some(error) => outln!("{} failed: {error}", self.peer()),
        }
    }
}

/// Sends a message and closes the connection when the echo is complete.
struct Client {
    message: String,
    received: Vec<u8>,
    transport: Option<Transport>,
    done: Promise<String>,
}

impl Protocol for Client {
    fn connection_made(&mut self, transport: Transport) {
        transport.write(&self.message);
        self.transport = Some(transport);
    }

    fn data_received(&mut self, data: &[u8]) {
        self.received.extend(data);
        if self.received.len() == self.message.len()
            && let Some(transport) = &self.transport
        {
            transport.close();
        }
    }

    fn connection_lost(&mut self, _error: Option<io::Error>) {
        let _ = self.done.resolve(String::from_utf8_lossy(&self.received).into_owned());
    }
}

fn main() -> io::Result<()> {
    let mut addr = "127.0.0.1:7777".to_owned();
    let mut demo = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.size_hint()) {
            ("--demo", _) => (demo, addr) = (true, "127.0.0.1:0".into()),
            ("--help" | "-h", _) => {
                outln!("{USAGE}");
                return Ok(());
            }
            ("--addr", (1.., _)) => addr = args.next().expect("the size hint is exact"),
            _ => {
                eprintln!("unknown argument {arg}\n{USAGE}");
                std::process::exit(2);
            }
        }
    }
    windlass::run(async move {
        let server = create_server(Echo::default, &addr).await?;
        let mut shutdown = windlass::signal::shutdown()?;
        outln!("listening on {}", server.local_addr()?);
        if !demo {
            if let Some(failed) = shutdown.run_until_shutdown(server.serve_forever()).await {
                return failed;
            }
            // Dropping `serve_forever` has closed the server: new connections are refused.
            outln!("stopped accepting; {} connections are left", server.connections());
            if timeout(GRACE, server.wait_closed()).await.is_err() {
                server.abort_clients();
                server.wait_closed().await;
            }
            return Ok(());
        }
        for message in ["hello", "again", "and goodbye"] {
            let (done, received) = windlass::promise();
            let client = || Client {
                message: message.into(),
                received: Vec::new(),
                transport: None,
                done,
            };
            create_connection(client, server.local_addr()?).await?;
            outln!("received: {}", received.await.map_err(io::Error::other)?);
        }
        server.close();
        server.wait_closed().await;
        Ok(())
    })?
}
