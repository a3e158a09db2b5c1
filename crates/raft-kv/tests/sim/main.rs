//! The nodes on simulated hosts: partitions, slow and lossy links, pauses, stalled disks, killed processes and power loss, at
//! times that a seed decides.
//!
//! `cargo test --release -p raft-kv --test sim` runs 20 seeds; `WINDLASS_SIM_SEEDS=1000` before it, 1,000.

#![cfg(unix)]

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use raft_kv::Peer;
use raft_kv::client;
use raft_kv::node::{self, Bug, Config};
use support::{Client, History};
use windlass::sim::{self, Chaos, Crash, Dist, FaultKind, Link, Sim};
use windlass::time::sleep;

type TestResult = Result<(), Box<dyn Error>>;

const NODES: [&str; 3] = ["a", "b", "c"];
const CLIENTS: u64 = 5;
/// Seeds of an ordinary run.
const SEEDS: u64 = 20;
/// Seeds within which a bug must be found.
const BUG_SEEDS: u64 = 1_000;

fn addrs() -> Vec<String> {
    NODES.map(|name| format!("{name}:8000")).into()
}

fn start(sim: &Sim, bug: Option<Bug>) {
    let peers = NODES.map(|name| Peer {
        raft: format!("{name}:7000"),
        http: format!("{name}:8000"),
    });
    let peers: BTreeMap<u64, Peer> = (1..).zip(peers).collect();
    for (number, name) in (1..).zip(NODES) {
        let config = Config {
            // Small, so that snapshots are made and sent, and the log is rewritten.
            snapshot_after: 40,
            rewrite_at: 4_000,
            bug,
            ..Config::new(number, peers.clone(), "/data")
        };
        sim.host(name).start(move || node::run(config.clone()));
    }
}

/// Whatever happens to nodes and network, clients see a single copy.
async fn test(sim: Sim, bug: Option<Bug>) -> TestResult {
    let mut rng = sim.rng();
    let latency = Dist::exponential(
        Duration::from_micros(200),
        Duration::from_micros(rng.range(100..20_000)),
    );
    sim.links(Link::new().latency(latency));
    start(&sim, bug);
    let addrs = addrs();
    // With a leader, so that there is something to lose.
    let leader = async || {
        for addr in &addrs {
            if let Ok(status) = client::status(addr).await
                && status.leader.is_some()
            {
                return Some(status);
            }
        }
        None
    };
    let first = support::until(&leader).await;
    sim.chaos(
        Chaos::swarm()
            .without(FaultKind::DiskError)
            .during(Duration::from_secs(30)),
    );

    let history = Rc::new(History::default());
    let each = sim.size("requests", 5..=60);
    let clients = (0..CLIENTS).map(|number| {
        let client = Client::new(number, &addrs, Duration::from_secs(2));
        let (history, left) = (history.clone(), std::cell::Cell::new(each));
        windlass::spawn(client.run(history, Duration::from_millis(100), move || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        }))
    });
    for client in clients.collect::<Vec<_>>() {
        client.await?;
    }

    // Power fails everywhere. What was acknowledged is on a quorum of the disks.
    for name in NODES {
        sim.crash(name, Crash::Power);
    }
    sim.calm();
    for name in NODES {
        sim.restart(name);
    }
    let checked = sim.within(Duration::from_secs(600), history.finish(&addrs)).await;
    if checked.is_err() {
        for addr in &addrs {
            sim.log(format!("{addr}: {:?}", client::status(addr).await));
        }
    }
    let checked = checked?;
    let last = support::until(&leader).await;
    sim.sometimes("requests were answered", checked > 0);
    sim.sometimes("a result is unknown", history.unknown.get() > 0);
    sim.sometimes("the leader changed", last.term > first.term);
    sim.sometimes("a snapshot was made", last.snapshot.is_some());
    sim.sometimes("the log was purged", last.purged.is_some());
    Ok(())
}

#[test]
fn clients_see_a_single_copy() {
    let begin = Instant::now();
    let report = sim::sweep(0..SEEDS, |sim| test(sim, None));
    println!("{report}\n{} ms", begin.elapsed().as_millis());
    if report.seeds >= SEEDS {
        assert!(report.never_met().is_empty(), "{report}");
    }
}

/// Election timeouts and everything else follow the seed: the event logs are equal.
#[test]
fn a_seed_is_the_same_run_each_time() {
    let hashes = || {
        (0..3)
            .map(|seed| sim::run(seed, |sim| test(sim, None)).hash)
            .collect::<Vec<_>>()
    };
    let first = hashes();
    assert_eq!(first, hashes());
    assert_ne!(first[0], first[1]);
}

#[track_caller]
fn finds(bug: Bug) {
    let begin = Instant::now();
    match sim::try_sweep(0..BUG_SEEDS, |sim| test(sim, Some(bug))) {
        Ok(report) => panic!("the bug was not found: {report}"),
        Err(failed) => {
            println!("{} ms\n{}", begin.elapsed().as_millis(), failed.report);
            let report = &failed.report;
            assert!(
                report.contains("not linearizable") || report.contains("lost: "),
                "{report}"
            );
        }
    }
}

#[test]
fn an_unsynced_log_is_found() {
    finds(Bug::UnsyncedLog);
}

#[test]
fn an_unchecked_read_is_found() {
    finds(Bug::UncheckedRead);
}

#[test]
fn a_restored_leader_is_found() {
    finds(Bug::RestoredLeader);
}

/// Followers that were away for long get a snapshot, and a node has all keys after it.
#[test]
fn a_follower_far_behind_gets_a_snapshot() {
    sim::sweep(0..3, |sim| async move {
        start(&sim, None);
        let addrs = addrs();
        let history = Rc::new(History::default());
        let leader = support::until(async || client::status(&addrs[0]).await.ok()?.leader).await;
        let away = NODES[leader as usize % 3];
        sim.crash(away, Crash::Power);
        let client = Client::new(1, &addrs, Duration::from_secs(10));
        let done = history.clone();
        client
            .run(history.clone(), Duration::ZERO, move || done.len() < 400)
            .await;
        sim.restart(away);
        let addr = format!("{away}:8000");
        let caught_up = support::until(async || {
            client::status(&addr)
                .await
                .ok()
                .filter(|status| status.applied >= Some(200))
        });
        let status = sim
            .within(Duration::from_secs(60), async { Ok::<_, String>(caught_up.await) })
            .await?;
        assert!(status.snapshot.is_some(), "{status:?}");
        sleep(Duration::from_secs(1)).await;
        history.finish(&addrs).await?;
        Ok(())
    });
}
