//! Pools of shards as programs of hosts: their sockets, restarts, signals and faults.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpStream, UdpSocket};
use windlass::shards::{self, Accept, CallError, Listener, OnFailure, Pool, Shard};
use windlass::signal::SignalKind;
use windlass::sim;
use windlass::time::{Instant, sleep, timeout};

use crate::{MS, SEC, TestResult, assert_kind, connect, failure_of, plain, seeds};

fn two() -> shards::Builder {
    shards::Builder::new().count(2)
}

/// Answers every client with the number of its shard.
async fn serve(shard: Shard, listener: Listener) -> io::Result<()> {
    while let Some((stream, _)) = listener.accept().await? {
        stream.write_all([shard.index() as u8]).await.0?;
    }
    Ok(())
}

fn server(pool: &Pool) -> io::Result<impl Fn(Shard) -> Served + use<>> {
    let listener = pool.listen("0.0.0.0:7000")?;
    Ok(move |shard| -> Served { Box::pin(serve(shard, listener)) })
}

type Served = std::pin::Pin<Box<dyn Future<Output = io::Result<()>>>>;

async fn ask(name: &str) -> io::Result<u8> {
    let (result, [shard]) = connect(name).await?.read_exact([0]).await;
    result.map(|_| shard)
}

#[test]
fn a_pool_serves_on_all_shards_and_starts_again() {
    seeds(|sim| async move {
        sim.links(plain());
        let pools = Rc::new(Cell::new(0));
        let counted = pools.clone();
        sim.host("server").start_shards(two, move |pool| {
            counted.set(counted.get() + 1);
            server(pool)
        });
        sleep(MS).await;
        for round in 1..=2 {
            assert_eq!(pools.get(), round);
            let mut answered = BTreeSet::new();
            for _ in 0..40 {
                answered.insert(ask("server").await?);
            }
            assert_eq!(answered, BTreeSet::from([0, 1]));
            sim.restart("server");
            assert!(timeout(10 * MS, std::future::pending::<()>()).await.is_err());
        }
        Ok(())
    });
}

#[test]
fn every_mode_of_accepting_is_simulated() {
    for mode in [Accept::ReusePort, Accept::Balanced, Accept::HandOver] {
        seeds(move |sim| async move {
            sim.host("server").start_shards(two, move |pool| {
                let builder = windlass::net::TcpListener::builder();
                let listener = pool.listen_with(builder, "0.0.0.0:7000", mode)?;
                Ok(move |shard| serve(shard, listener))
            });
            sleep(MS).await;
            let mut answered = BTreeSet::new();
            for _ in 0..40 {
                answered.insert(ask("server").await?);
            }
            assert_eq!(answered, BTreeSet::from([0, 1]), "{mode:?}");
            Ok(())
        });
    }
}

#[test]
fn the_pool_binds_before_its_shards_run() {
    seeds(|sim| async move {
        let port = Rc::new(Cell::new(0));
        let seen = port.clone();
        sim.host("server").start_shards(two, move |pool| {
            let listener = pool.listen("0.0.0.0:0")?;
            seen.set(listener.local_addr().port());
            assert_ne!(seen.get(), 0);
            let error = pool.udp("192.0.2.1:53").expect_err("not an address of this host");
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            Ok(move |shard| serve(shard, listener))
        });
        sleep(MS).await;
        let stream = TcpStream::connect(("server", port.get())).await?;
        stream.read_exact([0]).await.0?;
        Ok(())
    });
    let text = failure_of(|sim| async move {
        sim.host("server").start_shards(two, |pool| {
            pool.listen("192.0.2.1:80")?;
            Ok(|_| async { Ok::<(), io::Error>(()) })
        });
        sleep(SEC).await;
        Ok(())
    });
    assert!(text.contains("host server: "), "{text}");
}

#[test]
fn a_signal_stops_the_pool() {
    seeds(|sim| async move {
        sim.links(plain());
        sim.host("server").start_shards(|| two().stop_on_signals(), server);
        sleep(MS).await;
        ask("server").await?;
        sim.signal("server", SignalKind::terminate());
        sleep(100 * MS).await;
        assert_kind(connect("server").await, ErrorKind::ConnectionRefused);
        Ok(())
    });
}

#[test]
fn datagrams_of_a_sender_reach_one_shard() {
    seeds(|sim| async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let received = seen.clone();
        sim.host("server").start_shards(two, move |pool| {
            let sockets = pool.udp("0.0.0.0:53")?;
            let received = received.clone();
            Ok(move |shard: Shard| {
                let received = received.clone();
                async move {
                    let socket = sockets.socket().await?;
                    loop {
                        let (result, _) = socket.recv_from(vec![0; 16]).await;
                        received.borrow_mut().push((result?.1, shard.index()));
                    }
                    #[allow(unreachable_code)]
                    Ok::<(), io::Error>(())
                }
            })
        });
        sleep(MS).await;
        let to = crate::v4("server", 53).await?;
        for _ in 0..30 {
            let sender = UdpSocket::bind("0.0.0.0:0").await?;
            for _ in 0..2 {
                sender.send_to("datagram", to).await.0?;
            }
        }
        sleep(SEC).await;
        let seen = seen.borrow();
        let pairs: BTreeSet<_> = seen.iter().copied().collect();
        assert_eq!((seen.len(), pairs.len()), (60, 30));
        assert_eq!(pairs.iter().map(|(_, shard)| *shard).collect::<BTreeSet<_>>().len(), 2);
        Ok(())
    });
}

#[test]
fn a_killed_shard_is_gone_and_its_connections_are_closed() {
    seeds(|sim| async move {
        sim.links(plain());
        let checked = Rc::new(Cell::new(false));
        let seen = checked.clone();
        sim.host("server").start_shards(
            || two().on_failure(OnFailure::KeepOthers),
            move |pool| {
                let listener = pool.listen("0.0.0.0:7000")?;
                let seen = seen.clone();
                Ok(move |shard: Shard| {
                    let seen = seen.clone();
                    async move {
                        if shard.index() == 0 {
                            let other = shard.peer(1);
                            let call = other.call(std::future::pending::<()>);
                            assert_eq!(call.await, Err(CallError::Gone));
                            assert!(!other.is_alive());
                            assert_eq!(other.ask(|| ()).await, Err(CallError::Gone));
                            seen.set(true);
                        }
                        while let Some((stream, _)) = listener.accept().await? {
                            windlass::spawn(async move {
                                stream.write_all([shard_number()]).await.0?;
                                stream.read_managed().await.map(drop)
                            })
                            .detach();
                        }
                        Ok::<(), io::Error>(())
                    }
                })
            },
        );
        sleep(MS).await;
        let stream = loop {
            let stream = connect("server").await?;
            let read = timeout(SEC, stream.read_exact([0])).await;
            match read {
                Ok((result, [1])) => {
                    result?;
                    break stream;
                }
                // Shard 0 accepts later.
                _ => continue,
            }
        };
        sim.kill_loop("server", 1);
        assert!(stream.read_managed().await?.is_empty());
        sleep(SEC).await;
        assert!(checked.get());
        for _ in 0..20 {
            assert_eq!(ask("server").await?, 0);
        }
        // With the last loop, the process ends.
        sim.kill_loop("server", 0);
        sleep(SEC).await;
        assert_kind(connect("server").await, ErrorKind::ConnectionRefused);
        sim.kill_loop("server", 0);
        Ok(())
    });
}

fn shard_number() -> u8 {
    Shard::current().map_or(u8::MAX, |shard| shard.index() as u8)
}

#[test]
fn a_shard_that_is_killed_before_its_first_turn_hangs_no_other() {
    seeds(|sim| async move {
        let ended = Rc::new(Cell::new(0));
        let counted = ended.clone();
        let pool = || two().on_failure(OnFailure::KeepOthers);
        sim.host("server").may_fail().start_shards(pool, move |_| {
            let counted = counted.clone();
            Ok(move |shard: Shard| {
                let counted = counted.clone();
                async move {
                    if shard.index() == 1 {
                        // It may have been served before.
                        let _ = shard.peer(0).ask(|| ()).await;
                        counted.set(counted.get() + 1);
                    }
                    Ok::<(), CallError>(())
                }
            })
        });
        sim.after(Duration::ZERO, |sim| sim.pause_loop("server", 0));
        sleep(Duration::from_micros(1)).await;
        sim.kill_loop("server", 0);
        sleep(SEC).await;
        assert_eq!(ended.get(), 1);
        Ok(())
    });
}

#[test]
fn a_shard_that_starts_after_another_has_died_replaces_it() {
    for mode in [Accept::ReusePort, Accept::Balanced, Accept::HandOver] {
        seeds(move |sim| async move {
            sim.links(plain());
            let ended = Rc::new(Cell::new(false));
            let seen = ended.clone();
            let pool = || two().on_failure(OnFailure::KeepOthers);
            sim.host("server").may_fail().start_shards(pool, move |pool| {
                let builder = windlass::net::TcpListener::builder();
                let listener = pool.listen_with(builder, "0.0.0.0:7000", mode)?;
                let seen = seen.clone();
                Ok(move |shard: Shard| {
                    let seen = seen.clone();
                    async move {
                        let stopper = shard.clone();
                        windlass::spawn(async move {
                            sleep(30 * SEC).await;
                            stopper.stop();
                        })
                        .detach();
                        serve(shard, listener).await?;
                        seen.set(true);
                        Ok::<(), io::Error>(())
                    }
                })
            });
            sim.after(Duration::ZERO, |sim| {
                sim.pause_loop("server", 0);
                sim.pause_loop("server", 1);
            });
            sleep(Duration::from_micros(1)).await;
            sim.kill_loop("server", 0);
            sleep(MS).await;
            sim.resume_loop("server", 1);
            for _ in 0..20 {
                assert_eq!(timeout(SEC, ask("server")).await??, 1, "{mode:?}");
            }
            sleep(60 * SEC).await;
            assert!(ended.get(), "{mode:?}: accept returns `None` at the stop");
            Ok(())
        });
    }
}

#[test]
fn a_paused_shard_answers_later() {
    seeds(|sim| async move {
        let took = Rc::new(Cell::new(Duration::ZERO));
        let seen = took.clone();
        sim.host("server").start_shards(two, move |_| {
            let seen = seen.clone();
            Ok(move |shard: Shard| {
                let seen = seen.clone();
                async move {
                    if shard.index() == 0 {
                        sleep(SEC).await;
                        let begin = Instant::now();
                        shard.peer(1).ask(|| ()).await?;
                        seen.set(begin.elapsed());
                    }
                    Ok::<(), CallError>(())
                }
            })
        });
        sleep(MS).await;
        sim.pause_loop("server", 1);
        sleep(5 * SEC).await;
        sim.resume_loop("server", 1);
        sleep(SEC).await;
        assert!(took.get() > 3 * SEC && took.get() < 5 * SEC, "{:?}", took.get());
        Ok(())
    });
}

#[test]
fn a_failure_of_a_shard_fails_the_run() {
    let text = failure_of(|sim| async move {
        sim.host("server").may_fail().start_shards(two, |_| {
            Ok(|shard: Shard| async move {
                assert_eq!(shard.index(), 0, "only one shard");
                shard.stopping().await;
                Ok::<(), io::Error>(())
            })
        });
        sleep(SEC).await;
        Ok(())
    });
    assert!(text.contains("only one shard"), "{text}");
    let text = failure_of(|sim| async move {
        sim.host("server")
            .start_shards(two, |_| Ok(|_| async { Err::<(), _>(io::Error::other("no disk")) }));
        sleep(SEC).await;
        Ok(())
    });
    assert!(text.contains("no disk"), "{text}");
}

#[test]
fn the_seed_decides_on_the_order_and_the_latency_of_messages() {
    type Order = Rc<RefCell<Vec<(usize, Duration)>>>;
    thread_local! {
        static ORDER: Order = Rc::default();
    }
    let run = |seed| {
        ORDER.with(|order| order.borrow_mut().clear());
        let report = shards::simulate(
            seed,
            || shards::Builder::new().count(4),
            |_| {
                Ok(|shard: Shard| async move {
                    if shard.index() == 0 {
                        return Ok(());
                    }
                    for _ in 0..5 {
                        let (index, sent) = (shard.index(), Instant::now());
                        let arrived = shard.peer(0).ask(move || {
                            let latency = sent.elapsed();
                            ORDER.with(|order| order.borrow_mut().push((index, latency)));
                        });
                        arrived.await?;
                    }
                    Ok::<(), CallError>(())
                })
            },
        );
        (report.hash, ORDER.with(|order| order.borrow().clone()))
    };
    let runs: Vec<_> = (0..20).map(run).collect();
    assert_eq!(runs, (0..20).map(run).collect::<Vec<_>>());
    let orders: BTreeSet<Vec<usize>> = runs
        .iter()
        .map(|(_, order)| order.iter().map(|(index, _)| *index).collect())
        .collect();
    assert!(orders.len() > 10, "{orders:?}");
    let latencies: BTreeSet<Duration> = runs
        .iter()
        .flat_map(|(_, order)| order.iter().map(|(_, time)| *time))
        .collect();
    assert!(
        latencies.first() < Some(&(MS / 100)) && latencies.last() > Some(&MS),
        "{latencies:?}"
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_pool_that_does_not_end_is_reported() {
    shards::simulate(1, two, |_| {
        Ok(|_| async {
            std::future::pending::<()>().await;
            Ok::<(), CallError>(())
        })
    });
}

#[test]
fn a_missing_loop_is_a_panic() {
    let text = failure_of(|sim| async move {
        sim.host("server").start_shards(two, server);
        sleep(MS).await;
        sim.kill_loop("server", 2);
        Ok(()) as TestResult
    });
    assert!(text.contains("has no loop 2"), "{text}");
    // One that does not run has none to kill.
    sim::run(1, |sim| async move {
        sim.host("server")
            .start_shards(two, |_| Ok(|_| async { Ok::<(), CallError>(()) }));
        sleep(SEC).await;
        sim.kill_loop("server", 2);
        sim.pause_loop("server", 0);
        Ok(())
    });
}
