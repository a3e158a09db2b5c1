//! `embedding [--listen 127.0.0.1:7070] [--driver auto|proactor|reactor]`: the key-value store as a server.
//!
//! This part chooses the driver: by the features of the build, by `--driver`, else by what the machine supports.
//! On Ctrl-C or SIGTERM it stops accepting and lets the open connections finish.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use embedding::{Store, serve};
use windlass::net::TcpListener;
use windlass::task::CancelToken;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: embedding [--listen HOST:PORT] [--driver auto|proactor|reactor]";

/// How long open connections may continue after the shutdown signal.
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
            eprintln!("unknown argument {arg}\n{USAGE}");
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
    // A driver that the build lacks, or that the kernel refuses, is an error here.
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
