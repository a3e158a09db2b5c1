//! Tests of whole runs that need what the public API does not show.

use std::collections::BTreeSet;
use std::time::Duration;

use super::handle::Sim;
use super::log::{EventKind, LogMode};
use super::settings::{Outcome, RunSettings};
use super::world::run_once;
use super::{Chaos, Crash, Disk, DiskFaults, Dist, FaultKind, Link, Quirks};
use crate::net::{TcpListener, TcpStream, UdpSocket};
use crate::signal::SignalKind;
use crate::time::{sleep, timeout};

/// One of each kind. A new kind must be added here, and something must record it.
fn kinds() -> BTreeSet<EventKind> {
    use EventKind::*;
    let kinds = [
        Turn, Start, Complete, Cancel, Job, Entropy, Connect, Connected, Accept, Refuse, Send, Deliver, Lose,
        Duplicate, Reset, Finish, DiskFault, Fault, Crash, Restart, Pause, Resume, Signal, WallJump, Quirk, Note, Mark,
    ];
    for kind in kinds {
        // Breaks the build if a kind is missing above.
        match kind {
            Turn | Start | Complete | Cancel | Job | Entropy | Connect | Connected | Accept | Refuse | Send
            | Deliver | Lose | Duplicate | Reset | Finish | DiskFault | Fault | Crash | Restart | Pause | Resume
            | Signal | WallJump | Quirk | Note | Mark => {}
        }
    }
    kinds.into()
}

async fn everything(sim: Sim) -> Result<(), Box<dyn std::error::Error>> {
    let link = Link::new().latency(Dist::constant(Duration::from_millis(1)));
    sim.links(link.loss(0.2).duplicate(0.2));
    let disk = Disk::posix().faults(DiskFaults::none().sync_errors(1.0));
    sim.host("a")
        .disk(disk)
        .quirks(Quirks::swarm(1))
        .may_fail()
        .start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let (stream, _) = listener.accept().await?;
            stream.write_all("hello").await.0?;
            // Closed with unread bytes: an RST.
            sleep(Duration::from_secs(5)).await;
            drop(stream);
            crate::fs::write("/tmp/file", "text").await?;
            drop(crate::fs::File::open("/tmp/file").await?.sync_all().await);
            crate::spawn_blocking(|| ()).await?;
            std::future::pending::<Result<(), Box<dyn std::error::Error>>>().await
        });
    assert!(TcpStream::connect("a:9").await.is_err());
    let stream = TcpStream::connect("a:7000").await?;
    let _ = timeout(Duration::from_millis(1), stream.read(vec![0; 1])).await;
    stream.write_all("unread").await.0?;
    stream.shutdown(std::net::Shutdown::Write).await?;
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    for _ in 0..50 {
        socket.send_to("packet", "10.0.0.2:7000").await.0?;
    }
    crate::rand::Rng::new();
    sleep(Duration::from_secs(10)).await;
    sim.pause("a");
    sim.resume("a");
    sim.jump_wall("a", 1.0);
    sim.chaos(Chaos::only([FaultKind::Slow]));
    sim.cut(["a"], ["sim"]);
    sim.crash("a", Crash::Power);
    sim.restart("a");
    sim.signal("a", SignalKind::terminate());
    sim.sometimes("mark", true);
    sim.log("note");
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

fn run(settings: RunSettings) -> Outcome {
    let outcome = run_once(&settings, everything);
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    outcome
}

#[test]
fn every_kind_of_event_is_recorded() {
    let outcome = run(RunSettings {
        log: LogMode::All,
        ..RunSettings::new(1)
    });
    let recorded: BTreeSet<EventKind> = outcome.log.records().map(|(_, record)| record.kind).collect();
    let missing: Vec<_> = kinds().difference(&recorded).copied().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// What a report needs to know about a run does not change it.
#[test]
fn a_run_that_is_observed_is_the_same() {
    let plain = run(RunSettings::new(1)).log.hash();
    let window = LogMode::Window { from: 10, len: 100 };
    for log in [LogMode::Tail, LogMode::All, window] {
        let settings = RunSettings {
            log,
            watches_entries: true,
            ..RunSettings::new(1)
        };
        assert_eq!(run(settings).log.hash(), plain);
    }
}
