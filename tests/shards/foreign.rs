//! Handles used outside of the pool.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use windlass::shards::{self, CallError, Cause, OnFailure, Pin, Shard};
use windlass::time::timeout;

use crate::support::{Case, on_every_driver, on_every_kernel_driver, poll_with, waker_with};
use crate::{Count, Gate, Result, pool};

/// Runs a future on a loop of its own, outside of the pool.
fn outside<F: Future>(future: F) -> F::Output {
    let builder = windlass::Builder::new().driver(windlass::DriverChoice::Null);
    builder.build().unwrap().run_until_complete(future).unwrap()
}

#[test]
fn threads_outside_of_the_pool_can_call_and_stop_it() {
    on_every_driver(|case| {
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        let shard = pool.shard(1);
        assert!(shard.handle().is_none());
        assert_eq!(
            outside(shard.ask(|| 1)),
            Err(CallError::Gone),
            "the pool does not run yet"
        );
        let (running, dropped) = (Count::default(), Count::default());
        let (wait_for, guard) = (running.clone(), dropped.clone());
        let thread = std::thread::spawn(move || {
            outside(async {
                wait_for.reaches(2).await;
                let index = || Shard::current().map(|shard| shard.index());
                // More at a time than calls between shards may be.
                let calls: Vec<_> = (0..10).map(|_| shard.call(move || async move { index() })).collect();
                for result in windlass::task::join_all(calls).await {
                    assert_eq!(result, Ok(Some(1)));
                }
                assert_eq!(shard.ask(index).await, Ok(Some(1)));
                let failed = shard.ask(|| -> u32 { panic!("there") }).await;
                assert_eq!(failed, Err(CallError::Panicked("there".to_owned())));
                // Dropped while it runs.
                {
                    let (begun, guard) = (wait_for.clone(), guard.on_drop());
                    let mut call = pin!(shard.call(move || async move {
                        let _guard = guard;
                        begun.add();
                        pending::<()>().await;
                    }));
                    assert!(crate::support::poll_once(call.as_mut()).await.is_pending());
                    wait_for.reaches(3).await;
                }
                guard.reaches(1).await;
                assert!(shard.try_call(|| async {}).is_ok());
                let names: Vec<_> = shard.report().await.into_iter().map(|report| report.name).collect();
                assert_eq!(names, ["shard-0", "shard-1"]);
                let last = windlass::spawn(shard.call(pending::<()>));
                shard.stop();
                shard.stopping().await;
                assert_eq!(last.await.unwrap(), Err(CallError::Gone));
                while shard.is_alive() {
                    std::thread::yield_now();
                }
                assert_eq!(shard.ask(|| 1).await, Err(CallError::Gone));
            });
        });
        pool.run(move |shard: Shard| {
            running.add();
            async move {
                shard.stopping().await;
                Ok::<_, io::Error>(())
            }
        })
        .unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn a_call_from_outside_that_starts_too_late_never_runs() {
    on_every_driver(|case| {
        let (stalled, gate, ran) = (Count::default(), Gate::default(), Count::default());
        let pool = pool(case, 1).build().unwrap();
        let shard = pool.shard(0);
        let (wait_for, opener, never) = (stalled.clone(), gate.clone(), ran.clone());
        let thread = std::thread::spawn(move || {
            outside(async {
                wait_for.reaches(1).await;
                let limit = Duration::from_millis(1);
                let mut late = pin!(shard.call(move || async move { never.add() }).start_within(limit));
                let mut patient = pin!(shard.ask(|| 7).start_within(Duration::MAX));
                assert!(crate::support::poll_once(late.as_mut()).await.is_pending());
                assert!(crate::support::poll_once(patient.as_mut()).await.is_pending());
                std::thread::sleep(limit * 2);
                opener.open();
                assert_eq!(late.await, Err(CallError::Late));
                assert_eq!(patient.await, Ok(7));
                shard.stop();
            });
        });
        pool.run(move |shard: Shard| {
            let (stalled, gate) = (stalled.clone(), gate.clone());
            async move {
                stalled.add();
                gate.block();
                shard.stopping().await;
                Ok::<_, io::Error>(())
            }
        })
        .unwrap();
        thread.join().unwrap();
        assert_eq!(ran.get(), 0);
    });
}

#[test]
fn a_pool_that_has_ended_is_stopping_for_those_outside() {
    on_every_driver(|case| {
        let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
        let shard = pool.shard(0);
        let waiting = std::thread::spawn({
            let shard = shard.clone();
            move || outside(shard.stopping())
        });
        pool.run(|_| async { Ok::<_, io::Error>(()) }).unwrap();
        waiting.join().unwrap();
        assert!(shard.is_stopping());
    });
}

#[test]
fn a_pool_that_cannot_run_has_ended() {
    on_every_kernel_driver(|case| {
        for is_dropped in [false, true] {
            // Another test, or program, may get a port that was closed, but not each time.
            let are_closed = (0..5).any(|_| {
                // The handle keeps nothing open.
                let (_shard, [tcp, udp]) = a_pool_that_cannot_run(case, is_dropped);
                std::net::TcpStream::connect(tcp).is_err() && std::net::UdpSocket::bind(udp).is_ok()
            });
            assert!(are_closed, "dropped: {is_dropped}");
        }
    });
}

/// A handle to it, and the addresses of its listener and its UDP socket.
fn a_pool_that_cannot_run(case: Case, is_dropped: bool) -> (Shard, [SocketAddr; 2]) {
    // No processors: an error when the pool runs.
    let pool = pool(case, 2).pin(Pin::To(Box::new(|_| Vec::new()))).build().unwrap();
    let listener = pool.listen("127.0.0.1:0").unwrap();
    let sockets = pool.udp("127.0.0.1:0").unwrap();
    let shard = pool.shard(0);
    let waiting = std::thread::spawn({
        let shard = shard.clone();
        move || outside(shard.stopping())
    });
    match is_dropped {
        true => drop(pool),
        false => {
            let error = pool.run(|_| async { Ok::<_, io::Error>(()) }).unwrap_err();
            assert!(matches!(error.cause, Cause::Start(_)), "{error}");
        }
    }
    assert!(shard.is_stopping());
    waiting.join().unwrap();
    (shard, [listener.local_addr(), sockets.local_addr()])
}

#[test]
fn handles_of_another_pool_panic() {
    on_every_kernel_driver(|case| {
        let other = pool(case, 1).build().unwrap();
        let sockets = other.udp("127.0.0.1:0").unwrap();
        let listener = other.listen("127.0.0.1:0").unwrap();
        let service = other.service(|_| async { Ok::<_, io::Error>(1) });
        // With the same ones of its own.
        let pool = pool(case, 1).build().unwrap();
        pool.udp("127.0.0.1:0").unwrap();
        pool.listen("127.0.0.1:0").unwrap();
        let _service = pool.service(|_| async { Ok::<_, io::Error>(2) });
        pool.run(move |shard: Shard| async move {
            assert_eq!(service.on(&shard, |value| *value).await, Err(CallError::Gone));
            let local = windlass::spawn(async move { drop(service.local()) });
            let socket = windlass::spawn(async move { drop(sockets.socket().await) });
            let accept = windlass::spawn(async move { drop(timeout(Duration::ZERO, listener.accept()).await) });
            for task in [local, socket, accept] {
                assert!(task.await.unwrap_err().try_into_panic().is_ok());
            }
            Ok::<_, io::Error>(())
        })
        .unwrap();
        drop(other);
    });
}

#[test]
fn a_dropped_wait_for_the_stop_keeps_no_waker() {
    let pool = shards::Builder::new().count(1).build().unwrap();
    let shard = pool.shard(0);
    let released = std::rc::Rc::new(std::cell::Cell::new(0));
    for round in 1..=3 {
        let count = released.clone();
        let waker = waker_with(|| {}, move || count.set(count.get() + 1));
        let mut stopping = Box::pin(shard.stopping());
        assert!(poll_with(&waker, stopping.as_mut()).is_pending());
        assert!(poll_with(&waker, stopping.as_mut()).is_pending());
        drop((stopping, waker));
        assert_eq!(released.get(), round);
    }
    shard.stop();
    let waker = waker_with(|| {}, || {});
    assert!(poll_with(&waker, Box::pin(shard.stopping()).as_mut()).is_ready());
}

#[test]
fn shards_and_their_threads_have_names() {
    on_every_driver(|case| {
        let names = |index| format!("worker {index}");
        let pool = pool(case, 3).name(names).build().unwrap();
        let shard = pool.shard(2);
        assert_eq!(
            (shard.name(), format!("{shard:?}").contains("worker 2")),
            ("worker 2", true)
        );
        let outputs = pool.run(|shard: Shard| async move {
            let thread = std::thread::current().name().map(str::to_owned);
            Result::Ok((shard.name().to_owned(), thread))
        });
        for (index, (name, thread)) in outputs.unwrap().into_iter().enumerate() {
            assert_eq!(name, names(index));
            assert!(index == 0 || thread == Some(names(index)));
        }
    });
    assert!(shards::Builder::new().count(0).build().is_err());
    assert!(shards::Builder::new().count(2).calls_per_peer(0).build().is_err());
    assert!(
        shards::Builder::new()
            .count(2)
            .name(|_| "a\0b".to_owned())
            .build()
            .is_err()
    );
}
