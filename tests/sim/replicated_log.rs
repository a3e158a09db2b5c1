//! `examples/replicated_log` under power loss and partitions. docs/guide/faults.md explains this test.

#[path = "../../examples/replicated_log/client.rs"]
mod client;
#[path = "../../examples/replicated_log/log.rs"]
mod log;
#[path = "../../examples/replicated_log/node.rs"]
mod node;

use std::io;
use std::time::Duration;

use node::{Bug, Config, QUORUM};
use windlass::sim::{self, Chaos, Crash, FaultKind, Sim};
use windlass::time::{sleep, timeout};

use crate::TestResult;
use crate::scenarios::{finds, passes};

const NODES: [&str; 3] = ["a", "b", "c"];

/// Acknowledged entries are on a quorum of the disks, whenever the power fails.
async fn test(sim: Sim, bug: Option<Bug>) -> TestResult {
    for (node, name) in NODES.into_iter().enumerate() {
        let config = Config {
            node,
            addrs: NODES.map(|name| format!("{name}:7000")).into(),
            dir: "/data".into(),
            bug,
        };
        sim.host(name).start(move || node::run(config.clone()));
    }
    sim.chaos(Chaos::only([FaultKind::PowerLoss, FaultKind::Cut]));

    let mut acknowledged = Vec::new();
    for number in 0..sim.size("entries", 1..=40) {
        sleep(Duration::from_millis(200)).await;
        let entry = format!("entry {number}");
        match timeout(Duration::from_secs(1), client::add("a:7000", &entry)).await {
            Ok(Ok(index)) => {
                sim.log(format!("{entry}: acknowledged"));
                acknowledged.push((index, entry));
            }
            // It may be in the log or not.
            _ => sim.log(format!("{entry}: no answer")),
        }
    }

    // Power fails everywhere. Each disk keeps what was synced, and any part of the rest.
    for name in NODES {
        sim.crash(name, Crash::Power);
    }
    let disks = NODES.map(|name| log::parse(&sim.disk(name).read("/data/log").unwrap_or_default()).0);
    for (index, entry) in &acknowledged {
        let copies = disks.iter().filter(|disk| disk.get(*index) == Some(entry)).count();
        assert!(copies >= QUORUM, "acknowledged, but on {copies} of 3 disks: {entry}");
    }

    // Without further faults, everything can be read again.
    sim.calm();
    for name in NODES {
        sim.restart(name);
    }
    for (index, entry) in acknowledged {
        let read = async {
            loop {
                match client::get("a:7000", index).await {
                    Ok(read) => return Ok::<_, io::Error>(read),
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            }
        };
        assert_eq!(sim.within(Duration::from_secs(60), read).await?, entry);
    }
    Ok(())
}

#[test]
fn acknowledged_entries_survive() {
    passes(|sim| test(sim, None));
}

/// The bug needs a partition, and is found with few faults left.
#[test]
fn an_unsynced_batch_is_found_and_shrunk() {
    let failed = sim::try_sweep(0..1_000, |sim| test(sim, Some(Bug::UnsyncedBatch))).unwrap_err();
    let report = failed.report;
    println!("{report}");
    let parts = [
        "acknowledged, but on 1 of 3 disks: entry ",
        "  shrunk:  WINDLASS_SIM_SEED=",
        "crash: no power; ",
        " unsynced changes are lost: /data/log\n",
    ];
    for part in parts {
        assert!(report.contains(part), "{part:?} is missing:\n{report}");
    }
    let episodes: Vec<&str> = report.lines().filter(|line| line.starts_with("  episode ")).collect();
    assert!(episodes.iter().any(|line| line.contains(": cut ")), "{report}");
    assert!(episodes.len() <= 4, "{report}");
}

#[test]
fn a_follower_that_is_counted_too_early_is_found() {
    finds("acknowledged, but on ", |sim| test(sim, Some(Bug::CountsSent)));
}

/// Fails: run it to see a report. docs/guide/faults.md does.
#[test]
#[ignore = "it shows the report of a failure"]
fn unsynced_batch() {
    sim::sweep(0..1_000, |sim| test(sim, Some(Bug::UnsyncedBatch)));
}

/// The code that the guide shows is this code.
#[test]
fn the_guide_shows_this_code() {
    let guide = include_str!("../../docs/guide/faults.md");
    let sources = [
        include_str!("replicated_log.rs"),
        include_str!("../../examples/replicated_log/node.rs"),
    ];
    // As if it were at the margin.
    let trimmed = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let sources = sources.map(trimmed);
    let blocks: Vec<&str> = guide.split("```rs\n").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (code, _) = block.split_once("\n```").expect("the block ends");
        let is_shown = sources.iter().any(|source| source.contains(&trimmed(code)));
        assert!(is_shown, "not in the sources:\n{code}");
    }
}
