//! How connections reach the shards, also when shards end and the pool stops. The clients are threads of std's sockets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use windlass::net::{TcpListener, TcpStream};
use windlass::shards::{Accept, Listener, OnFailure, Pool, Shard};
use windlass::task::yield_now;

use crate::support::{on_every_kernel_driver, poll_once};
use crate::{Count, Gate, counters, pool};

const MODES: [Accept; 3] = [Accept::ReusePort, Accept::HandOver, Accept::Balanced];

/// What takes longer than this never happens.
const WATCHDOG: Duration = Duration::from_secs(30);

fn listen(pool: &Pool, mode: Accept) -> Listener {
    pool.listen_with(TcpListener::builder(), "127.0.0.1:0", mode).unwrap()
}

/// Connections that are established, whether or not they are accepted.
fn connect(addr: SocketAddr, count: usize) -> Vec<StdStream> {
    (0..count).map(|_| StdStream::connect(addr).unwrap()).collect()
}

/// The shard that has served a client.
fn served_by(mut client: StdStream) -> usize {
    let mut bytes = [0];
    client.read_exact(&mut bytes).expect("served, not reset");
    bytes[0].into()
}

/// Reads what each client gets, on a thread.
fn read_all(clients: Vec<StdStream>) -> JoinHandle<Vec<usize>> {
    std::thread::spawn(move || clients.into_iter().map(served_by).collect())
}

async fn serve(shard: &Shard, stream: &TcpStream) -> io::Result<()> {
    stream.write_all(vec![shard.index() as u8]).await.0.map(drop)
}

/// Accepts until the pool stops. Each `accept` is dropped once before it is awaited.
async fn serve_all(shard: &Shard, listener: Listener) -> io::Result<usize> {
    let mut count = 0;
    loop {
        let early = {
            let mut dropped = pin!(listener.accept());
            poll_once(dropped.as_mut()).await
        };
        let accepted = match early {
            std::task::Poll::Ready(accepted) => accepted,
            std::task::Poll::Pending => listener.accept().await,
        };
        let Some((stream, _)) = accepted? else { return Ok(count) };
        serve(shard, &stream).await?;
        count += 1;
    }
}

#[test]
fn the_backlog_is_served_at_a_stop() {
    on_every_kernel_driver(|case| {
        for mode in MODES {
            let pool = pool(case, 3).build().unwrap();
            let listener = listen(&pool, mode);
            let clients = read_all(connect(listener.local_addr(), 60));
            // Stopped before a shard accepts.
            pool.shard(0).stop();
            let counts = pool.run(move |shard: Shard| async move { serve_all(&shard, listener).await });
            assert_eq!(counts.unwrap().iter().sum::<usize>(), 60, "{mode:?}");
            clients.join().unwrap();
            StdStream::connect(listener.local_addr()).unwrap_err();
        }
    });
}

#[test]
fn a_stop_while_shards_accept_loses_no_connection() {
    on_every_kernel_driver(|case| {
        for mode in MODES {
            let pool = pool(case, 2).build().unwrap();
            let listener = listen(&pool, mode);
            let shard = pool.shard(0);
            // The clients connect while the shards accept; the stop comes when the last is in a backlog.
            let clients = std::thread::spawn(move || {
                let clients = connect(listener.local_addr(), 200);
                shard.stop();
                clients.into_iter().map(served_by).count()
            });
            let counts = pool.run(move |shard: Shard| async move { serve_all(&shard, listener).await });
            assert_eq!(counts.unwrap().iter().sum::<usize>(), 200, "{mode:?}");
            assert_eq!(clients.join().unwrap(), 200);
        }
    });
}

#[test]
fn the_backlogs_of_shards_that_end_are_served_by_another() {
    on_every_kernel_driver(|case| {
        for mode in MODES {
            let pool = pool(case, 3).on_failure(OnFailure::KeepOthers).build().unwrap();
            let listener = listen(&pool, mode);
            let clients = read_all(connect(listener.local_addr(), 90));
            let error = pool.run(move |shard: Shard| async move {
                match shard.index() {
                    0 => {}
                    // With an accept in flight.
                    1 => {
                        let mut accepting = pin!(listener.accept());
                        let polled = poll_once(accepting.as_mut()).await;
                        if let std::task::Poll::Ready(Ok(Some((stream, _)))) = &polled {
                            serve(&shard, stream).await?;
                        }
                        yield_now().await;
                        panic!("the first to end");
                    }
                    // The heir of the first one ends as well.
                    _ => {
                        while shard.peer(1).is_alive() {
                            yield_now().await;
                        }
                        panic!("the second to end");
                    }
                }
                while shard.peer(1).is_alive() || shard.peer(2).is_alive() {
                    yield_now().await;
                }
                let stopper = windlass::spawn({
                    let shard = shard.clone();
                    async move {
                        let served = windlass::spawn_blocking(move || {
                            let late = connect(listener.local_addr(), 10);
                            late.into_iter().map(served_by).count()
                        });
                        assert_eq!(served.await.unwrap(), 10);
                        shard.stop();
                    }
                });
                let count = serve_all(&shard, listener).await?;
                stopper.await.unwrap();
                assert!(count >= 99, "{count}");
                Ok::<_, io::Error>(count)
            });
            let error = error.unwrap_err();
            assert_eq!((error.shard, error.others.len()), (1, 1), "{mode:?}: {error}");
            assert_eq!(clients.join().unwrap().len(), 90);
        }
    });
}

#[test]
fn a_successor_hands_connections_over_and_a_stop_ends_all_accepts() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 3).on_failure(OnFailure::KeepOthers).build().unwrap();
        let listener = listen(&pool, Accept::HandOver);
        let error = pool.run(move |shard: Shard| async move {
            assert_ne!(shard.index(), 0, "the shard that accepts ends");
            if shard.index() == 1 {
                while shard.peer(0).is_alive() {
                    yield_now().await;
                }
                let shard = shard.clone();
                windlass::spawn(async move {
                    let clients = windlass::spawn_blocking(move || {
                        let clients = connect(listener.local_addr(), 20).into_iter();
                        clients.map(served_by).collect::<Vec<_>>()
                    });
                    let mut shards = clients.await.unwrap();
                    shards.sort_unstable();
                    assert_eq!(shards, [[1; 10], [2; 10]].concat());
                    shard.stop();
                })
                .detach();
            }
            serve_all(&shard, listener).await
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (0, 0), "{error}");
    });
}

#[test]
fn connections_are_handed_over_in_turn() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 3).build().unwrap();
        let listener = listen(&pool, Accept::HandOver);
        let shard = pool.shard(0);
        let clients = std::thread::spawn(move || {
            let mut shards: Vec<_> = connect(listener.local_addr(), 30).into_iter().map(served_by).collect();
            shard.stop();
            shards.sort_unstable();
            shards
        });
        let counts = pool.run(move |shard: Shard| async move { serve_all(&shard, listener).await });
        assert_eq!(counts.unwrap(), [10, 10, 10]);
        assert_eq!(clients.join().unwrap(), [[0; 10], [1; 10], [2; 10]].concat());
    });
}

#[test]
fn a_shard_that_does_not_accept_is_skipped() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        let listener = listen(&pool, Accept::HandOver);
        let served = Count::default();
        let clients = connect(listener.local_addr(), 300);
        let counts = pool.run(move |shard: Shard| {
            let served = served.clone();
            async move {
                let is_slow = shard.index() == 1;
                if is_slow {
                    // It accepts when the other one has got all the rest.
                    served.reaches(300 - 64).await;
                }
                let mut open = Vec::new();
                while open.len() < if is_slow { 64 } else { 300 - 64 } {
                    let Some((stream, _)) = listener.accept().await? else {
                        panic!("stopped early")
                    };
                    served.add();
                    open.push(stream);
                }
                served.reaches(300).await;
                let counters = counters(&shard).await;
                assert_eq!(counters[0].handed_over, 64);
                assert_eq!((counters[0].accepted, counters[1].accepted), (300 - 64, 64));
                assert_eq!((counters[0].connections, counters[1].connections), (300 - 64, 64));
                // Both have looked before either closes its connections.
                let looked = shard.peer(1 - shard.index()).ask(|| ()).await;
                assert!(looked.is_ok());
                served.add();
                served.reaches(302).await;
                drop(open);
                served.add();
                served.reaches(304).await;
                assert_eq!(self_connections(&shard).await, 0);
                shard.stop();
                assert!(listener.accept().await?.is_none());
                Ok::<_, io::Error>(())
            }
        });
        assert_eq!(counts.unwrap().len(), 2);
        drop(clients);
    });
}

async fn self_connections(shard: &Shard) -> usize {
    counters(shard).await[shard.index()].connections
}

#[test]
fn a_balanced_listener_passes_connections_to_a_shard_with_fewer() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        let listener = listen(&pool, Accept::Balanced);
        let accepted = Count::default();
        let loads = pool.run(move |shard: Shard| {
            let accepted = accepted.clone();
            async move {
                let open = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
                let accepting = windlass::spawn({
                    let (open, accepted) = (open.clone(), accepted.clone());
                    async move {
                        while let Some((stream, _)) = listener.accept().await.unwrap() {
                            open.borrow_mut().push(stream);
                            accepted.add();
                        }
                    }
                });
                if shard.index() == 0 {
                    let mut clients = Vec::new();
                    for round in 1..=200 {
                        clients.push(TcpStream::connect(listener.local_addr()).await?);
                        accepted.reaches(round).await;
                        // Whatever reached this shard so far stays; the other one keeps nothing of its own.
                        if round <= 100 {
                            let before = counters(&shard).await[1].connections;
                            assert!(before <= round);
                        }
                    }
                    let counters = counters(&shard).await;
                    shard.stop();
                    accepting.await.unwrap();
                    return Ok(counters
                        .iter()
                        .map(|shard| (shard.connections, shard.handed_over))
                        .collect());
                }
                // Closes what it gets for a while, so that the other shard has far more.
                while accepted.get() < 100 {
                    open.borrow_mut().clear();
                    yield_now().await;
                }
                accepting.await.unwrap();
                Ok::<Vec<(usize, u64)>, io::Error>(Vec::new())
            }
        });
        let loads = loads.unwrap().swap_remove(0);
        assert!(loads[0].1 > 0, "{loads:?}");
        // The rule allows 1.25 x + 4, and one more that was accepted before the other's count was seen.
        assert!(loads[0].0 * 4 <= loads[1].0 * 5 + 16 + 8, "{loads:?}");
    });
}

#[test]
fn connections_on_their_way_to_a_shard_count_as_its_load() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        let listener = listen(&pool, Accept::Balanced);
        let clients = connect(listener.local_addr(), 300);
        let (stalled, gate) = (Count::default(), Gate::default());
        let counts = pool.run(move |shard: Shard| {
            let (stalled, gate) = (stalled.clone(), gate.clone());
            async move {
                if shard.index() == 1 {
                    // Takes nothing over until the other one has looked.
                    stalled.add();
                    gate.block();
                    shard.stopping().await;
                    return Ok((0, 0));
                }
                stalled.reaches(1).await;
                let accepting = windlass::spawn(async move {
                    let mut open = Vec::new();
                    while let Some((stream, _)) = listener.accept().await.unwrap() {
                        open.push(stream);
                    }
                });
                // The kernel gives each socket about half of the connections. The blocked shard does not answer.
                let counts = loop {
                    let own = shard.report().await.swap_remove(0).answer.unwrap().0;
                    if own.accepted + own.handed_over >= 40 {
                        break (own.accepted, own.handed_over);
                    }
                };
                gate.open();
                shard.stop();
                accepting.await.unwrap();
                Ok::<_, io::Error>(counts)
            }
        });
        let (kept, passed_on) = counts.unwrap()[0];
        assert!(0 < passed_on && passed_on < kept, "kept {kept}, passed on {passed_on}");
        drop(clients);
    });
}

#[test]
fn a_shard_that_has_failed_is_replaced_while_its_services_stop() {
    on_every_kernel_driver(|case| {
        for mode in MODES {
            let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
            let listener = listen(&pool, mode);
            let early = read_all(connect(listener.local_addr(), 40));
            let released = Count::default();
            let release = released.clone();
            let service = pool.service(|shard: Shard| async move { Ok::<_, io::Error>(shard.index()) });
            pool.on_stop(service, move |index| {
                let released = released.clone();
                async move {
                    if *index == 0 {
                        released.reaches(1).await;
                    }
                }
            });
            let error = pool.run(move |shard: Shard| {
                let release = release.clone();
                async move {
                    // The shard that accepts, in the mode `HandOver`.
                    assert_ne!(shard.index(), 0, "fails");
                    // Also if this shard fails.
                    let _release = release.on_drop();
                    let give_up = Instant::now() + WATCHDOG;
                    while shard.peer(0).is_alive() {
                        assert!(Instant::now() < give_up, "a shard without a main future is alive");
                        yield_now().await;
                    }
                    let accepting = windlass::spawn({
                        let shard = shard.clone();
                        async move { serve_all(&shard, listener).await }
                    });
                    let clients = windlass::spawn_blocking(move || {
                        let clients = connect(listener.local_addr(), 40);
                        for client in &clients {
                            client.set_read_timeout(Some(WATCHDOG)).unwrap();
                        }
                        clients.into_iter().map(served_by).collect::<Vec<_>>()
                    });
                    assert_eq!(clients.await.unwrap(), [1; 40]);
                    // A call ends before the service has stopped.
                    assert_eq!(service.on(&shard.peer(0), |index| *index).await.unwrap(), 0);
                    release.add();
                    shard.stop();
                    accepting.await.unwrap()
                }
            });
            let error = error.unwrap_err();
            assert_eq!((error.shard, error.others.len()), (0, 0), "{mode:?}: {error}");
            assert_eq!(early.join().unwrap(), [1; 40]);
        }
    });
}

#[test]
fn shared_ports_are_bound_at_once() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap();
        assert_eq!(pool.listen(addr).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let listener = pool.listen("127.0.0.1:0").unwrap();
        assert_ne!(listener.local_addr().port(), 0);
        // Established before the pool runs.
        let mut client = StdStream::connect(listener.local_addr()).unwrap();
        client.write_all(b"early").unwrap();
        drop(pool);
        StdStream::connect(listener.local_addr()).unwrap_err();
    });
}
