//! A shard dies with connections in its backlog. Another one serves them, and no client is reset.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::shards::{Accept, Defect, Listener, OnFailure, Shard};
use windlass::sim::Sim;
use windlass::time::{Instant, sleep, timeout};

use super::{Count, pool};
use crate::TestResult;
use crate::scenarios::{finds, passes};

/// The clients that a shard has accepted and not answered.
type Taken = Rc<RefCell<HashSet<SocketAddr>>>;

async fn serve(listener: Listener, taken: Taken, fails_after: Option<Duration>) -> Result<(), io::Error> {
    let accept = async {
        while let Some((stream, peer)) = listener.accept().await? {
            taken.borrow_mut().insert(peer);
            let taken = taken.clone();
            windlass::spawn(async move {
                if stream.write_all("hello").await.0.is_ok() {
                    // Closed when the client has closed.
                    let _ = stream.read_managed().await;
                }
                taken.borrow_mut().remove(&peer);
            })
            .detach();
        }
        Ok(())
    };
    match fails_after {
        None => accept.await,
        Some(time) => {
            // An accept that is dropped may have got a connection.
            let _ = timeout(time, accept).await;
            Err(io::Error::other("it fails"))
        }
    }
}

async fn client(taken: Taken, delayed: Count) -> Result<(), String> {
    let begin = Instant::now();
    let stream = TcpStream::connect("server:7000")
        .await
        .map_err(|error| format!("a client could not connect: {error}"))?;
    if begin.elapsed() >= Duration::from_secs(1) {
        delayed.add();
    }
    let addr = stream.local_addr().map_err(|error| error.to_string())?;
    let (result, bytes) = match timeout(Duration::from_secs(300), stream.read_exact([0; 5])).await {
        Ok(read) => read,
        Err(_) => return Err("a client was not served".to_owned()),
    };
    match result {
        Ok(_) => assert_eq!(&bytes, b"hello"),
        // Its shard died with it.
        Err(_) if taken.borrow().contains(&addr) => {}
        Err(error) => return Err(format!("a client was reset: {error}")),
    }
    Ok(())
}

async fn scenario(sim: Sim, defect: Option<Defect>) -> TestResult {
    let shards = sim.size("shards", 2..=4);
    let clients = sim.size("clients", 1..=40);
    let mut rng = sim.rng();
    let backlog = rng.range(1..=20) as u32;
    let mode = *rng
        .pick(&[Accept::ReusePort, Accept::Balanced, Accept::HandOver])
        .expect("some");
    let (taken, done, delayed) = (Taken::default(), Count::default(), Count::default());
    let shared = taken.clone();
    // One shard lives on.
    let mut victims: Vec<usize> = (0..shards as usize).collect();
    rng.shuffle(&mut victims);
    victims.truncate(rng.range(1..shards) as usize);
    let is_killed = rng.chance(0.6);
    let mut deaths: Vec<(usize, Duration)> = victims
        .into_iter()
        .map(|victim| (victim, Duration::from_micros(rng.range(100..200_000))))
        .collect();
    let fails = deaths.clone();
    sim.host("server").may_fail().start_shards(
        move || pool(shards, defect).on_failure(OnFailure::KeepOthers),
        move |pool| {
            let listener = pool.listen_with(TcpListener::builder().backlog(backlog), "0.0.0.0:7000", mode)?;
            let (taken, fails) = (shared.clone(), fails.clone());
            Ok(move |shard: Shard| {
                let fails = fails.iter().find(|(victim, _)| *victim == shard.index());
                let fails_after = fails.filter(|_| !is_killed).map(|(_, time)| *time);
                serve(listener, taken.clone(), fails_after)
            })
        },
    );
    let planned = std::mem::take(&mut deaths);
    let deaths = planned.len();
    for (victim, time) in planned {
        // Its backlog fills up meanwhile.
        let paused_at = time.mul_f64(rng.unit());
        if rng.chance(0.8) {
            sim.after(paused_at, move |sim| sim.pause_loop("server", victim));
        }
        sim.after(time, move |sim| match is_killed {
            true => sim.kill_loop("server", victim),
            false => sim.resume_loop("server", victim),
        });
    }
    sleep(Duration::from_micros(50)).await;
    for number in 0..clients {
        let (taken, done, delayed) = (taken.clone(), done.clone(), delayed.clone());
        let starts_after = Duration::from_micros(rng.below(100_000));
        sim.host(&format!("c{number}")).start(move || {
            let (taken, done, delayed) = (taken.clone(), done.clone(), delayed.clone());
            async move {
                sleep(starts_after).await;
                client(taken, delayed).await?;
                done.add();
                Ok::<(), String>(())
            }
        });
    }
    done.reaches(clients as usize, "clients that were served").await;
    sim.sometimes("a backlog was full", delayed.get() > 0);
    sim.sometimes("several shards died", deaths > 1);
    sim.sometimes("connections were passed between shards", mode != Accept::ReusePort);
    Ok(())
}

#[test]
fn the_backlog_of_a_dead_shard_is_served() {
    passes(|sim| scenario(sim, None));
}

#[test]
fn a_backlog_that_is_not_adopted_is_found() {
    finds("a client was not served", |sim| scenario(sim, Some(Defect::NoAdoption)));
}
