//! A log on three nodes, of which one may be down. `tests/sim/replicated_log.rs` runs its nodes under power loss and
//! partitions; docs/guide/faults.md explains it.
//!
//! A node of a cluster: `replicated_log node NUMBER DIRECTORY ADDRESS ADDRESS ADDRESS`, with the addresses of all nodes. The
//! node with the number 0 leads. A client: `replicated_log add LEADER TEXT`, `replicated_log get LEADER INDEX`. Or
//! `--demo`: three nodes on this machine, one of which is killed and started again.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod demo;
mod log;
mod node;

use std::io;

use support::outln;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["node", number, dir, ref addrs @ ..] if addrs.len() >= node::QUORUM => {
            let config = node::Config {
                node: number.parse().map_err(io::Error::other)?,
                addrs: addrs.iter().map(|addr| (*addr).to_owned()).collect(),
                dir: dir.into(),
                bug: None,
            };
            windlass::run(node::run(config))?
        }
        ["add", leader, text] => {
            outln!("{}", windlass::run(client::add(leader, text))??);
            Ok(())
        }
        ["get", leader, index] => {
            let index = index.parse().map_err(io::Error::other)?;
            outln!("{}", windlass::run(client::get(leader, index))??);
            Ok(())
        }
        ["--demo"] => windlass::run(demo::run())?,
        _ => Err(io::Error::other(
            "replicated_log node NUMBER DIRECTORY ADDRESS... | add LEADER TEXT | get LEADER INDEX | --demo",
        )),
    }
}
