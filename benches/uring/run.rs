//! The command line.

use std::io;

use crate::kit::machine::Machine;
use crate::kit::options::{self, Options};
use crate::{bulk, echo, file, send};

const USAGE: &str = "\
usage: cargo bench --bench uring -- [--only echo|setup|bulk|send|file] [--rounds N]
       echo, setup: [--connections N,..] [--request BYTES] [--seconds S]
       send: [--bytes N,..] [--namespace NAME --address IP]
the comment at the top of benches/uring/main.rs explains the parts";

const NAMES: [&str; 8] = [
    "--only",
    "--rounds",
    "--connections",
    "--request",
    "--seconds",
    "--bytes",
    "--namespace",
    "--address",
];

const PARTS: [&str; 5] = ["echo", "setup", "bulk", "send", "file"];

pub(crate) fn main() -> io::Result<()> {
    if let Some(role) = options::role() {
        let argument = |at: usize| role.get(at).map_or("", String::as_str);
        return match argument(0) {
            "echo" => echo::serve(argument(1)),
            "source" => bulk::source(),
            "sink" => send::sink(),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
    }
    let options = Options::read(USAGE, &NAMES);
    let machine = Machine::look();
    machine.pin_to_load();
    println!("{machine}\n");
    let parts: [fn(&Options) -> io::Result<()>; 5] = [echo::receives, echo::setups, bulk::main, send::main, file::main];
    for (name, part) in PARTS.into_iter().zip(parts) {
        if options.wants("--only", name, &PARTS) {
            part(&options)?;
        }
    }
    Ok(())
}
