//! `embedding [--listen 127.0.0.1:7070] [--driver auto|proactor|reactor]`: the store as a server.
//!
//! This is the part that chooses: by what it was built with, by `--driver`, and otherwise by what the machine lets it have.
//! On Ctrl-C or SIGTERM it stops accepting and lets the open connections finish.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use embedding::{Store, serve};
use windlass::net::TcpListener;
use windlass::task::CancelToken;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: embedding [--listen HOST:PORT] [--driver auto|proactor|reactor]";

/// How long open connections may go on after the request to end.
const GRACE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let (mut listen, mut driver) = ("127.0.0.1:7070".to_owned(), DriverChoice::Auto);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let understood = match (arg.as_str(), args.next()) {
            ("--listen", Some(addr)) => {
                listen = addr;
                true
            }
            ("--driver", Some(name)) => name.parse().map(|choice| driver = choice).is_ok(),
            _ => false,
        };
        if !understood {
            eprintln!("{arg}: not understood\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    match run(&listen, driver) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(listen: &str, driver: DriverChoice) -> io::Result<()> {
    // A driver that this build has not, or this machine refuses, is an error here and not a surprise later.
    let event_loop = Builder::new().driver(driver).build()?;
    say(format_args!("driver: {}", event_loop.describe()));
    event_loop.run_until_complete(async {
        let listener = TcpListener::bind(listen).await?;
        let mut shutdown = windlass::signal::shutdown()?;
        say(format_args!("listening on {}", listener.local_addr()?));
        let stop = CancelToken::new();
        let serving = windlass::spawn(serve(Store::default(), listener, stop.clone(), GRACE));
        shutdown.recv().await;
        stop.cancel();
        serving.await?;
        say(format_args!("bye"));
        Ok(())
    })?
}

/// `println!` that ignores errors: `println!` panics when standard output is a closed pipe.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}
