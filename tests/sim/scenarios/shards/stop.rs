//! A pool with services stops under load: clients that were connected are served, and services outlive the main futures.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::shards::{Defect, Listener, Shard, Sharded};
use windlass::signal::SignalKind;
use windlass::sim::Sim;
use windlass::time::{Instant, sleep, timeout};

use super::{Count, pool};
use crate::scenarios::{finds, passes};
use crate::{MS, SEC, TestResult};

/// What the services of a run have done. Their closures are `Send`, and all shards run on one thread.
#[derive(Default)]
struct Ledger {
    /// Main futures that have not ended.
    mains: Cell<usize>,
    /// The services that have stopped, by name.
    stopped: RefCell<Vec<&'static str>>,
}

thread_local! {
    static LEDGER: Ledger = Ledger::default();
}

fn stopped(name: &'static str) {
    LEDGER.with(|ledger| {
        assert_eq!(ledger.mains.get(), 0, "a service stops before the main futures");
        let order = ledger.stopped.borrow().iter().all(|other| name <= *other);
        assert!(order, "a service stops before one that was added later");
        ledger.stopped.borrow_mut().push(name);
    });
}

/// Answers each client with a number that a service of another shard counts.
async fn serve(shard: Shard, listener: Listener, numbers: Sharded<Cell<u64>>, work: Duration) -> io::Result<()> {
    while let Some((stream, _)) = listener.accept().await? {
        let mut rng = windlass::rand::Rng::new();
        let owner = shard.peer(rng.below(shard.count() as u64) as usize);
        let number = numbers.on_async(&owner, async move |count| {
            sleep(work).await;
            count.set(count.get() + 1);
            count.get()
        });
        let number = number.await?;
        // The client may have gone.
        let _ = stream.write_all(number.to_be_bytes()).await;
    }
    let total = numbers.map_reduce(|count| count.get(), 0, |a, b| a + b).await?;
    assert!(total < 100_000);
    Ok(())
}

async fn client(signalled: Rc<Cell<Option<Instant>>>) -> Result<(), String> {
    let Ok(stream) = TcpStream::connect("server:7000").await else {
        return Ok(());
    };
    let connected = Instant::now();
    let (result, bytes) = match timeout(200 * SEC, stream.read_exact([0; 8])).await {
        Ok(read) => read,
        Err(_) => return Err("a client was not answered".to_owned()),
    };
    match result {
        Ok(_) => assert_ne!(u64::from_be_bytes(bytes), 0),
        // Its last segment was under way when the listener closed.
        Err(_) if signalled.get().is_some_and(|at| connected + 50 * MS > at) => {}
        Err(error) => return Err(format!("a client was reset: {error}")),
    }
    Ok(())
}

async fn scenario(sim: Sim, defect: Option<Defect>) -> TestResult {
    let shards = sim.size("shards", 2..=4);
    let clients = sim.size("clients", 1..=40);
    let mut rng = sim.rng();
    LEDGER.with(|ledger| {
        ledger.mains.set(shards as usize);
        ledger.stopped.borrow_mut().clear();
    });
    let work = Duration::from_micros(rng.below(60_000));
    let ended = Count::default();
    let counted = ended.clone();
    sim.links(crate::plain());
    sim.host("server").start_shards(
        move || {
            pool(shards, defect)
                .calls_per_peer(2)
                .stop_on_signals()
                .grace(Duration::from_secs(100))
        },
        move |pool| {
            let listener = pool.listen_with(
                TcpListener::builder().backlog(100),
                "0.0.0.0:7000",
                windlass::shards::Accept::ReusePort,
            )?;
            let names = pool.service(|_| async { Ok::<_, io::Error>(()) });
            pool.on_stop(names, |_| async {
                sleep(MS).await;
                stopped("a");
            });
            let numbers = pool.service(|_| async { Ok::<_, io::Error>(Cell::new(0)) });
            pool.on_stop(numbers, |_| async {
                stopped("b");
                sleep(MS).await;
            });
            let counted = counted.clone();
            Ok(move |shard: Shard| {
                let counted = counted.clone();
                async move {
                    let served = serve(shard, listener, numbers, work).await;
                    LEDGER.with(|ledger| ledger.mains.set(ledger.mains.get() - 1));
                    counted.add();
                    served
                }
            })
        },
    );
    let signalled = Rc::new(Cell::new(None));
    let answered = Count::default();
    for number in 0..clients {
        let starts_after = Duration::from_millis(5) + Duration::from_micros(rng.below(200_000));
        let (signalled, answered) = (signalled.clone(), answered.clone());
        sim.host(&format!("c{number}")).start(move || {
            let (signalled, answered) = (signalled.clone(), answered.clone());
            async move {
                sleep(starts_after).await;
                client(signalled).await?;
                answered.add();
                Ok::<(), String>(())
            }
        });
    }
    sleep(Duration::from_micros(rng.range(5_000..300_000))).await;
    if rng.chance(0.3) {
        let shard = rng.below(shards) as usize;
        sim.pause_loop("server", shard);
        sim.after(Duration::from_millis(rng.below(2_000)), move |sim| {
            sim.resume_loop("server", shard);
        });
    }
    signalled.set(Some(Instant::now()));
    sim.signal("server", SignalKind::terminate());
    ended.reaches(shards as usize, "main futures that have ended").await;
    sleep(SEC).await;
    let stopped = LEDGER.with(|ledger| ledger.stopped.borrow().len());
    assert_eq!(stopped, 2 * shards as usize, "not all services have stopped");
    answered.reaches(clients as usize, "clients that have ended").await;
    Ok(())
}

#[test]
fn a_stop_under_load_is_orderly() {
    passes(|sim| scenario(sim, None));
}

#[test]
fn backlogs_that_are_not_drained_are_found() {
    finds("a client was reset", |sim| scenario(sim, Some(Defect::NoDrain)));
}

#[test]
fn services_that_stop_too_early_are_found() {
    finds("before the main futures", |sim| scenario(sim, Some(Defect::NoBarrier)));
}
