//! Graceful shutdown by a signal, with cleanups and a peer that has stopped reading.
//!
//! The server keeps a session per connection. When it gets SIGTERM it accepts no more connections, gives the sessions
//! some time to end, and cancels the others. A session that is cancelled says goodbye and writes its count to the ledger,
//! in a cleanup.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::signal::SignalKind;
use windlass::sim::Sim;
use windlass::task::{TaskGroup, on_cancel};
use windlass::time::{Instant, sleep, timeout};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The server waits for its sessions without a limit.
    waits_for_all: bool,
    /// A cancelled session does not write its count.
    no_cleanup: bool,
    /// The cleanup waits for the peer without a limit of its own, before it writes the count.
    polite_cleanup: bool,
}

/// For sessions to end by themselves after the signal.
const GRACE: Duration = Duration::from_secs(5);

/// For the cleanup of a session.
const CLEANUP: Duration = Duration::from_secs(2);

/// What the sessions served: requests by session.
#[derive(Default)]
struct Ledger {
    begun: Cell<u64>,
    served: RefCell<BTreeMap<u64, u64>>,
    ended_at: Cell<Option<Instant>>,
}

async fn serve(ledger: Rc<Ledger>, bugs: Bugs) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    let mut shutdown = windlass::signal::shutdown()?;
    let sessions = TaskGroup::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let number = ledger.begun.get();
                ledger.begun.set(number + 1);
                sessions.spawn(session(number, stream, ledger.clone(), bugs));
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
    drop(listener);
    let handle = sessions.handle();
    let joined = sessions.join();
    let mut joined = std::pin::pin!(joined);
    let grace = if bugs.waits_for_all { Duration::MAX } else { GRACE };
    if timeout(grace, &mut joined).await.is_err() {
        handle.cancel();
        let _ = joined.await;
    }
    ledger.ended_at.set(Some(Instant::now()));
    Ok(())
}

async fn session(number: u64, stream: TcpStream, ledger: Rc<Ledger>, bugs: Bugs) {
    let stream = Rc::new(stream);
    let count = Rc::new(Cell::new(0));
    let cleanup = on_cancel(CLEANUP, {
        let (stream, count, ledger) = (stream.clone(), count.clone(), ledger.clone());
        async move {
            let goodbye = stream.write_all(vec![b'!'; 100_000]);
            if bugs.polite_cleanup {
                let _ = goodbye.await;
            } else {
                let _ = timeout(CLEANUP / 2, goodbye).await;
            }
            if !bugs.no_cleanup {
                ledger.served.borrow_mut().insert(number, count.get());
            }
        }
    });
    let _ = requests(&stream, &count).await;
    ledger.served.borrow_mut().insert(number, count.get());
    cleanup.disarm();
}

/// Answers each byte with a kilobyte.
async fn requests(stream: &TcpStream, count: &Cell<u64>) -> io::Result<()> {
    loop {
        let received = stream.read_managed().await?;
        if received.is_empty() {
            return Ok(());
        }
        for _ in received.iter() {
            stream.write_all(vec![b'.'; 1_024]).await.0?;
            count.set(count.get() + 1);
        }
    }
}

/// Sends requests, and then waits for the server to end the session or ends it.
async fn client(requests: u64, keeps_session: bool) -> io::Result<()> {
    let stream = loop {
        match TcpStream::connect("server:7000").await {
            Ok(stream) => break stream,
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    };
    for _ in 0..requests {
        if stream.write_all(vec![b'?'; 16]).await.0.is_err() {
            return Ok(());
        }
        if stream.read_exact(vec![0; 16 * 1_024]).await.0.is_err() {
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
    if keeps_session {
        let _ = stream.read_managed().await;
    }
    Ok(())
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let ledger = Rc::new(Ledger::default());
    sim.host("server").start({
        let ledger = ledger.clone();
        move || serve(ledger.clone(), bugs)
    });
    let clients = sim.size("clients", 1..=5);
    let requests = sim.size("requests", 1..=25);
    let names: Vec<String> = (0..clients).map(|number| format!("c{number}")).collect();
    let mut rng = sim.rng();
    for name in &names {
        let keeps_session = rng.chance(0.3);
        sim.host(name).start(move || client(requests, keeps_session));
    }
    sleep(Duration::from_millis(rng.range(0..2_000))).await;
    for name in &names {
        if rng.chance(0.2) {
            // Its kernel goes on, but nothing is read from its sockets.
            sim.pause(name);
        }
    }
    sleep(Duration::from_millis(rng.range(0..3_000))).await;
    let signalled = Instant::now();
    sim.signal("server", SignalKind::terminate());
    sleep(GRACE + CLEANUP + Duration::from_secs(1)).await;
    let ended = ledger.ended_at.get();
    assert!(ended.is_some(), "the server did not end in time");
    sim.sometimes(
        "sessions had to be cancelled",
        ended.is_some_and(|at| at - signalled >= GRACE),
    );
    let served = ledger.served.borrow();
    assert_eq!(
        served.len() as u64,
        ledger.begun.get(),
        "a session is not in the ledger"
    );
    Ok(())
}

#[test]
fn every_session_is_recorded_in_time() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn waiting_for_a_paused_peer_is_found() {
    finds("did not end in time", |sim| {
        scenario(
            sim,
            Bugs {
                waits_for_all: true,
                ..Bugs::default()
            },
        )
    });
}

#[test]
fn a_missing_cleanup_is_found() {
    finds("not in the ledger", |sim| {
        scenario(
            sim,
            Bugs {
                no_cleanup: true,
                ..Bugs::default()
            },
        )
    });
}

#[test]
fn a_cleanup_that_waits_for_its_peer_is_found() {
    finds("not in the ledger", |sim| {
        scenario(
            sim,
            Bugs {
                polite_cleanup: true,
                ..Bugs::default()
            },
        )
    });
}
