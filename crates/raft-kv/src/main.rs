//! A node of the replicated key-value store.
//!
//! `raft-kv NODE DIRECTORY RAFT,HTTP RAFT,HTTP RAFT,HTTP` starts the node with this number, counted from 1: each pair is the
//! addresses of a node for the others and for clients.

use std::collections::BTreeMap;
use std::process::ExitCode;

use raft_kv::Peer;
use raft_kv::node::{self, Config};

const USAGE: &str = "usage: raft-kv [--snapshot-after ENTRIES] [--rewrite-at BYTES] NODE DIRECTORY RAFT,HTTP...";

fn main() -> ExitCode {
    let Some(config) = config(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match windlass::run(node::run(config)).and_then(|result| result) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn config(args: impl Iterator<Item = String>) -> Option<Config> {
    let mut args = args.peekable();
    let (mut snapshot_after, mut rewrite_at) = (None, None);
    while let Some(option) = args.next_if(|arg| arg.starts_with("--")) {
        let value = args.next()?.parse().ok()?;
        match option.as_str() {
            "--snapshot-after" => snapshot_after = Some(value),
            "--rewrite-at" => rewrite_at = Some(value),
            _ => return None,
        }
    }
    let node = args.next()?.parse().ok()?;
    let dir = args.next()?;
    let peers = args.map(|pair| {
        let (raft, http) = pair.split_once(',')?;
        Some(Peer {
            raft: raft.to_owned(),
            http: http.to_owned(),
        })
    });
    let peers: BTreeMap<u64, Peer> = (1..).zip(peers.collect::<Option<Vec<_>>>()?).collect();
    let defaults = Config::new(node, peers, dir);
    Some(Config {
        snapshot_after: snapshot_after.unwrap_or(defaults.snapshot_after),
        rewrite_at: rewrite_at.unwrap_or(defaults.rewrite_at),
        ..defaults
    })
    .filter(|config| config.peers.contains_key(&config.node))
}
