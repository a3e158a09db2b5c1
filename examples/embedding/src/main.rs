//! `embedding [--listen 127.0.0.1:7070] [--driver auto|proactor|reactor]`: the store as a server.
//!
//! This is the part that chooses: by what it was built with, by `--driver`, and otherwise by what the machine lets it have.

use std::io;
use std::process::ExitCode;

use embedding::{Store, serve};
use windlass::net::TcpListener;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: embedding [--listen HOST:PORT] [--driver auto|proactor|reactor]";

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
    println!("driver: {}", event_loop.describe());
    event_loop.run_until_complete(async {
        let listener = TcpListener::bind(listen).await?;
        println!("listening on {}", listener.local_addr()?);
        let serving = windlass::spawn(serve(Store::default(), listener));
        windlass::signal::ctrl_c().await?;
        serving.cancel();
        match serving.await {
            Ok(result) => result,
            Err(_cancelled) => {
                println!("bye");
                Ok(())
            }
        }
    })?
}
