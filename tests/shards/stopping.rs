//! The order of a stop, and what does not stop.

use std::future::pending;
use std::io;
use std::time::Duration;

use windlass::net::UdpSocket;
use windlass::shards::{CallError, Cause, OnFailure, Shard};
use windlass::time::{sleep, timeout};

use crate::support::{on_every_driver, on_every_kernel_driver, poll_once, turns};
use crate::{Count, Gate, pool};

const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_main_future_that_does_not_end_is_cancelled_after_the_grace_period() {
    on_every_driver(|case| {
        let dropped = Count::default();
        let seen = dropped.clone();
        let pool = pool(case, 2).grace(SHORT).build().unwrap();
        let error = pool.run(move |shard: Shard| {
            let guard = dropped.on_drop();
            async move {
                let _guard = guard;
                if shard.index() == 0 {
                    shard.stop();
                    shard.stop();
                    return Ok(());
                }
                pending::<io::Result<()>>().await
            }
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (1, 0), "{error}");
        assert!(matches!(error.cause, Cause::Cancelled(SHORT)), "{error}");
        assert_eq!(seen.get(), 2);
    });
}

#[test]
fn a_stop_without_grace_cancels_at_once() {
    on_every_driver(|case| {
        let pool = pool(case, 2).grace(Duration::from_secs(1_000_000)).build().unwrap();
        let error = pool.run(|shard: Shard| async move {
            if shard.index() == 0 {
                shard.stop();
                shard.stop_now();
                shard.stop();
            }
            pending::<io::Result<()>>().await
        });
        let error = error.unwrap_err();
        assert_eq!(error.others.len(), 1, "{error}");
    });
}

#[test]
fn a_service_that_does_not_stop_is_left_after_the_grace_period() {
    on_every_driver(|case| {
        for is_stopped in [true, false] {
            let stopped = Count::default();
            let seen = stopped.clone();
            let pool = pool(case, 2).grace(SHORT).build().unwrap();
            let below = pool.service(|_| async { Ok::<_, io::Error>(()) });
            pool.on_stop(below, move |_| {
                stopped.add();
                async {}
            });
            let endless = pool.service(|shard: Shard| async move { Ok::<_, io::Error>(shard.index()) });
            pool.on_stop(endless, |index| async move {
                if *index == 1 {
                    pending::<()>().await;
                }
            });
            // Whether the pool was stopped, or its main futures have ended by themselves.
            let outputs = pool.run(move |shard: Shard| async move {
                if is_stopped {
                    shard.stop();
                }
                Ok::<_, io::Error>(shard.index())
            });
            assert_eq!(outputs.unwrap(), [0, 1]);
            assert!(seen.get() >= 1, "the other services stop as well");
        }
    });
}

#[test]
fn a_call_that_nobody_polls_does_not_keep_the_pool() {
    on_every_driver(|case| {
        let answered = Count::default();
        pool(case, 2)
            .build()
            .unwrap()
            .run(move |shard: Shard| {
                let answered = answered.clone();
                async move {
                    let other = shard.peer(1 - shard.index());
                    let ran = answered.clone();
                    let mut call = Box::pin(other.ask(move || ran.add()));
                    assert!(poll_once(call.as_mut()).await.is_pending());
                    windlass::spawn(async move {
                        pending::<()>().await;
                        drop(call);
                    })
                    .detach();
                    answered.reaches(2).await;
                    Ok::<_, io::Error>(())
                }
            })
            .unwrap();
    });
}

#[test]
fn a_call_without_end_does_not_keep_the_pool() {
    // A virtual clock stands still while a call is in flight, so the grace period does not end there.
    on_every_kernel_driver(|case| {
        let (started, dropped) = (Count::default(), Count::default());
        let seen = dropped.clone();
        pool(case, 2)
            .grace(SHORT)
            .build()
            .unwrap()
            .run(move |shard: Shard| {
                let (started, dropped) = (started.clone(), dropped.clone());
                async move {
                    let (begun, guard) = (started.clone(), dropped.on_drop());
                    drop(windlass::spawn(shard.peer(1 - shard.index()).call(
                        move || async move {
                            let _guard = guard;
                            begun.add();
                            pending::<()>().await;
                        },
                    )));
                    started.reaches(2).await;
                    Ok::<_, io::Error>(())
                }
            })
            .unwrap();
        assert_eq!(seen.get(), 2);
    });
}

#[test]
fn a_call_served_at_the_end_of_a_stop_does_not_keep_the_pool() {
    on_every_driver(|case| {
        for is_dropped in [false, true] {
            let (stalled, gate, late) = (Count::default(), Gate::default(), Count::default());
            let seen = late.clone();
            // On a real clock, a pool that waits for the end of its grace period hangs.
            let grace = Duration::from_secs(3_600);
            let pool = pool(case, 2).grace(grace).build().unwrap();
            let _service = pool.service(|_| async { Ok::<_, io::Error>(()) });
            pool.run(move |shard: Shard| {
                let (stalled, gate, late) = (stalled.clone(), gate.clone(), late.clone());
                async move {
                    if shard.index() == 1 {
                        windlass::spawn(async move {
                            sleep(grace / 2).await;
                            late.add();
                        })
                        .detach();
                        // Blocks once the shard waits for the other main future. Then its inbox has the end of that future
                        // before the request, so that the wait for the calls in flight begins before the request starts.
                        windlass::spawn(async move {
                            turns(10).await;
                            stalled.add();
                            gate.block();
                        })
                        .detach();
                        return Ok(());
                    }
                    stalled.reaches(1).await;
                    windlass::spawn(async move {
                        // This shard waits for the other one at the barrier of the service.
                        turns(10).await;
                        let mut call = Box::pin(shard.peer(1).ask(|| ()));
                        assert!(poll_once(call.as_mut()).await.is_pending());
                        let call = Some(call).filter(|_| !is_dropped);
                        turns(10).await;
                        gate.open();
                        pending::<()>().await;
                        drop(call);
                    })
                    .detach();
                    Ok::<_, io::Error>(())
                }
            })
            .unwrap();
            assert_eq!(seen.get(), 0, "dropped: {is_dropped}");
        }
    });
}

#[test]
fn nested_calls_in_flight_at_a_stop_are_answered() {
    on_every_driver(|case| {
        let (started, gate) = (Count::default(), Count::default());
        pool(case, 2)
            .calls_per_peer(1)
            .build()
            .unwrap()
            .run(move |shard: Shard| {
                let (started, gate) = (started.clone(), gate.clone());
                async move {
                    let other = shard.peer(1 - shard.index());
                    let call = other.call({
                        let (started, gate) = (started.clone(), gate.clone());
                        move || async move {
                            started.add();
                            // Until the pool is stopping.
                            gate.reaches(2).await;
                            let here = Shard::current().unwrap();
                            here.peer(1 - here.index()).call(|| async { 7 }).await
                        }
                    });
                    let call = windlass::spawn(call);
                    started.reaches(2).await;
                    shard.stop();
                    shard.stopping().await;
                    gate.add();
                    assert_eq!(call.await.unwrap(), Ok(Ok(7)));
                    Ok::<_, CallError>(())
                }
            })
            .unwrap();
    });
}

#[test]
fn a_blocked_thread_is_reported_as_stuck() {
    on_every_kernel_driver(|case| {
        // Takes five seconds: on one driver is enough.
        if !case.tries_first() {
            return;
        }
        let (stalled, gate, ended) = (Count::default(), Gate::default(), Count::default());
        let (opener, seen) = (gate.clone(), ended.clone());
        let pool = pool(case, 2).grace(SHORT).build().unwrap();
        let handle = pool.shard(1);
        let error = pool.run(move |shard: Shard| {
            let (stalled, gate, guard) = (stalled.clone(), gate.clone(), ended.on_drop());
            async move {
                let _guard = guard;
                if shard.index() == 1 {
                    stalled.add();
                    gate.block();
                    return Ok::<_, io::Error>(());
                }
                stalled.reaches(1).await;
                shard.stop();
                Ok(())
            }
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (1, 0), "{error}");
        assert!(matches!(error.cause, Cause::Stuck), "{error}");
        // Its thread ends by itself, once it can.
        opener.open();
        while handle.is_alive() || seen.get() < 2 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn sockets_are_closed_when_the_pool_has_ended() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        // No shard accepts or receives, and a handle lives on.
        let listener = pool.listen("127.0.0.1:0").unwrap();
        let sockets = pool.udp("127.0.0.1:0").unwrap();
        let shard = pool.shard(0);
        let waiting = std::net::TcpStream::connect(listener.local_addr()).unwrap();
        pool.run(|_| async { Ok::<_, io::Error>(()) }).unwrap();
        std::net::TcpStream::connect(listener.local_addr()).unwrap_err();
        std::net::UdpSocket::bind(sockets.local_addr()).unwrap();
        // A connection that no shard accepted ends.
        let read = std::io::Read::read(&mut &waiting, &mut [0]);
        assert!(!matches!(read, Ok(1..)), "{read:?}");
        drop(shard);
    });
}

#[test]
fn datagrams_reach_all_shards() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).build().unwrap();
        let sockets = pool.udp("127.0.0.1:0").unwrap();
        let received = Count::default();
        let counts = pool.run(move |shard: Shard| {
            let received = received.clone();
            async move {
                let socket = sockets.socket().await?;
                let receiving = windlass::spawn({
                    let received = received.clone();
                    async move {
                        let mut count = 0;
                        loop {
                            let (result, _) = socket.recv_from(Vec::with_capacity(16)).await;
                            result.unwrap();
                            count += 1;
                            received.add();
                            RECEIVED.with(|cell| cell.set(count));
                        }
                    }
                });
                if shard.index() == 0 {
                    for round in 1..=64 {
                        let sender = UdpSocket::bind("127.0.0.1:0").await?;
                        sender.send_to("ping", sockets.local_addr()).await.0?;
                        received.reaches(round).await;
                    }
                    shard.stop();
                }
                shard.stopping().await;
                receiving.cancel();
                Ok::<_, io::Error>(RECEIVED.with(|cell| cell.get()))
            }
        });
        let counts = counts.unwrap();
        assert_eq!(counts.iter().sum::<usize>(), 64);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    });
}

#[test]
fn the_datagrams_of_a_shard_that_ends_reach_the_others() {
    on_every_kernel_driver(|case| {
        let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
        let sockets = pool.udp("127.0.0.1:0").unwrap();
        let error = pool.run(move |shard: Shard| async move {
            let socket = sockets.socket().await?;
            assert_ne!(shard.index(), 1, "ends");
            for number in 0..32_u8 {
                let sender = UdpSocket::bind("127.0.0.1:0").await?;
                // Until the other shard's socket is closed, it takes those of about every second sender.
                let mut tries = 0;
                loop {
                    sender.send_to([number], sockets.local_addr()).await.0?;
                    let received = timeout(Duration::from_millis(50), socket.recv_from(Vec::with_capacity(1))).await;
                    if received.is_ok() {
                        break;
                    }
                    tries += 1;
                    assert!(tries < 600, "the datagrams of sender {number} reach no socket");
                }
            }
            Ok::<_, io::Error>(())
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (1, 0), "{error}");
    });
}

#[test]
fn a_pool_that_cannot_listen_to_signals_does_not_start() {
    on_every_driver(|case| {
        let started = Count::default();
        let seen = started.clone();
        let pool = pool(case, 2).stop_on_signals().build().unwrap();
        let result = pool.run(move |_| {
            started.add();
            async { Ok::<_, io::Error>(()) }
        });
        // The null driver has no signals.
        match case.is_kernel() {
            true => assert_eq!(result.unwrap().len(), 2),
            false => assert!(matches!(result.unwrap_err().cause, Cause::Start(_))),
        }
        assert_eq!(seen.get(), if case.is_kernel() { 2 } else { 0 });
    });
}

thread_local! {
    static RECEIVED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
