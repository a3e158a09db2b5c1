//! Panics, errors and shards that end while others call them.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::sync::Mutex;

use windlass::shards::{CallError, Cause, OnFailure, Shard};
use windlass::task::{join_all, yield_now};

use crate::support::{PanicOnDrop, on_every_driver, on_every_kernel_driver};
use crate::{Count, Gate, Result, no_calls, pool};

fn panicked<R>(message: &str) -> std::result::Result<R, CallError> {
    Err(CallError::Panicked(message.to_owned()))
}

#[test]
fn a_shard_survives_every_panic_of_a_call() {
    on_every_driver(|case| {
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(|shard: Shard| async move {
            if shard.index() == 1 {
                return Ok(());
            }
            let other = shard.peer(1);
            // Each on the other shard and here.
            for target in [&other, &shard] {
                let made = target.call(|| -> std::future::Ready<u32> { panic!("make") });
                assert_eq!(made.await, panicked("make"));
                let polled = target.call(|| async {
                    yield_now().await;
                    panic!("poll")
                });
                assert_eq!(polled.await, panicked::<()>("poll"));
                let dropped = target.call(|| {
                    let guard = PanicOnDrop("drop");
                    let mut is_first = true;
                    std::future::poll_fn(move |_| {
                        let _ = &guard;
                        is_first = !is_first;
                        std::task::Poll::Ready(())
                    })
                });
                assert_eq!(dropped.await, panicked("drop"));
                let payload = target.ask(|| -> u32 { std::panic::panic_any(PanicOnDrop("payload")) });
                assert_eq!(payload.await, panicked("a payload that is not a string"));
                let payload = target.call(|| async { std::panic::panic_any(PanicOnDrop("payload")) });
                assert_eq!(payload.await, panicked::<()>("a payload that is not a string"));
                assert_eq!(target.ask(|| 7).await, Ok(7));
            }
            no_calls(&shard).await;
            Ok::<_, CallError>(())
        })
        .unwrap();
    });
}

#[test]
fn a_shard_survives_panics_of_the_destructors_of_dropped_calls() {
    on_every_driver(|case| {
        let ran = Count::default();
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(move |shard: Shard| {
            let ran = ran.clone();
            async move {
                if shard.index() == 1 {
                    return Ok(());
                }
                let other = shard.peer(1);
                // The value of a call that was dropped.
                {
                    let begun = ran.clone();
                    let mut call = Box::pin(other.ask(move || {
                        begun.add();
                        PanicOnDrop("a value")
                    }));
                    assert!(crate::support::poll_once(call.as_mut()).await.is_pending());
                    ran.reaches(1).await;
                }
                assert_eq!(other.ask(|| 7).await, Ok(7));
                // The future of a call that is cancelled.
                {
                    let begun = ran.clone();
                    let mut call = Box::pin(other.call(move || async move {
                        let _guard = PanicOnDrop("a future");
                        begun.add();
                        pending::<()>().await;
                    }));
                    assert!(crate::support::poll_once(call.as_mut()).await.is_pending());
                    ran.reaches(2).await;
                }
                assert_eq!(other.ask(|| 7).await, Ok(7));
                no_calls(&shard).await;
                Ok::<_, CallError>(())
            }
        })
        .unwrap();
    });
}

#[test]
fn calls_of_a_shard_that_ends_are_cancelled_on_their_targets() {
    on_every_driver(|case| {
        let (started, dropped) = (Count::default(), Count::default());
        let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
        let error = pool.run(move |shard: Shard| {
            let (started, dropped) = (started.clone(), dropped.clone());
            async move {
                if shard.index() == 0 {
                    dropped.reaches(5).await;
                    no_calls_here(&shard).await;
                    return Ok::<_, io::Error>(());
                }
                for _ in 0..5 {
                    let (begun, guard) = (started.clone(), dropped.on_drop());
                    let call = shard.peer(0).call(move || async move {
                        let _guard = guard;
                        begun.add();
                        pending::<()>().await;
                    });
                    drop(windlass::spawn(call));
                }
                started.reaches(5).await;
                Err(io::Error::other("broken"))
            }
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (1, 0), "{error}");
    });
}

/// Waits until this shard serves nothing, while others have ended.
async fn no_calls_here(shard: &Shard) {
    loop {
        let reports = shard.report().await;
        let own = reports[shard.index()].answer.as_ref().unwrap().0;
        if own.serving + own.queued + own.in_flight == 0 {
            return;
        }
        yield_now().await;
    }
}

#[test]
fn calls_to_a_shard_that_ends_fail_whatever_they_wait_for() {
    on_every_driver(|case| {
        let (started, stalled, gate) = (Count::default(), Count::default(), Gate::default());
        let pool = pool(case, 2).calls_per_peer(8).on_failure(OnFailure::KeepOthers);
        let error = pool.build().unwrap().run(move |shard: Shard| {
            let (started, stalled, gate) = (started.clone(), stalled.clone(), gate.clone());
            async move {
                if shard.index() == 1 {
                    started.reaches(4).await;
                    stalled.add();
                    gate.block();
                    panic!("dead");
                }
                let other = shard.peer(1);
                // Running.
                let mut calls = Vec::new();
                for _ in 0..4 {
                    let started = started.clone();
                    calls.push(windlass::spawn(other.call(move || async move {
                        started.add();
                        pending::<()>().await;
                    })));
                }
                stalled.reaches(1).await;
                // In the inbox, and waiting for units.
                for _ in 0..50 {
                    calls.push(windlass::spawn(other.call(|| async {})));
                    calls.push(windlass::spawn(other.ask(|| ())));
                }
                yield_now().await;
                gate.open();
                for (number, call) in join_all(calls).await.into_iter().enumerate() {
                    let result = call.unwrap();
                    // Those that had arrived were perhaps started in the last turn.
                    let is_early = number >= 4 && result == Ok(());
                    assert!(is_early || result == Err(CallError::Gone), "{number}: {result:?}");
                }
                // Nothing can start there any more.
                assert_eq!(other.ask(|| ()).await, Err(CallError::Gone));
                while other.is_alive() {
                    yield_now().await;
                }
                assert_eq!(shard.idlest(), shard);
                no_calls_here(&shard).await;
                Ok::<_, io::Error>(())
            }
        });
        let error = error.unwrap_err();
        assert!(
            matches!(&error.cause, Cause::Panicked(message) if message == "dead"),
            "{error}"
        );
        assert!(error.others.is_empty(), "{error}");
    });
}

#[test]
fn two_shards_that_call_each_other_may_both_end() {
    on_every_driver(|case| {
        let (started, ended) = (Count::default(), Count::default());
        let pool = pool(case, 3).on_failure(OnFailure::KeepOthers).build().unwrap();
        let error = pool.run(move |shard: Shard| {
            let (started, ended) = (started.clone(), ended.clone());
            async move {
                if shard.index() == 2 {
                    while shard.peer(0).is_alive() || shard.peer(1).is_alive() {
                        yield_now().await;
                    }
                    ended.reaches(2).await;
                    return Ok::<_, io::Error>(());
                }
                let (begun, guard) = (started.clone(), ended.on_drop());
                drop(windlass::spawn(shard.peer(1 - shard.index()).call(
                    move || async move {
                        let _guard = guard;
                        begun.add();
                        pending::<()>().await;
                    },
                )));
                started.reaches(2).await;
                panic!("shard {} ends", shard.index());
            }
        });
        let error = error.unwrap_err();
        assert_eq!(error.others.len(), 1, "{error}");
        let causes = [&error.cause, &error.others[0].1];
        assert!(
            causes.iter().all(|cause| matches!(cause, Cause::Panicked(_))),
            "{error}"
        );
        assert_ne!(error.shard, error.others[0].0);
    });
}

#[test]
fn a_shard_that_fails_at_once_keeps_no_other_from_running() {
    on_every_driver(|case| {
        for _ in 0..30 {
            let ran = Count::default();
            let seen = ran.clone();
            let pool = pool(case, 3).on_failure(OnFailure::KeepOthers).build().unwrap();
            let error = pool.run(move |shard: Shard| {
                // Before the future exists.
                assert_ne!(shard.index(), 1, "fails at once");
                let ran = ran.clone();
                async move {
                    ran.add();
                    Ok::<_, io::Error>(())
                }
            });
            assert_eq!(error.unwrap_err().shard, 1);
            assert_eq!(seen.get(), 2);
        }
    });
}

#[test]
fn a_loop_that_fails_ends_the_pool_or_leaves_it() {
    on_every_driver(|case| {
        for (failing, on_failure) in [
            (0, OnFailure::StopAll),
            (1, OnFailure::StopAll),
            (0, OnFailure::KeepOthers),
            (1, OnFailure::KeepOthers),
        ] {
            let pool = pool(case, 3).on_failure(on_failure).build().unwrap();
            let error = pool.run(move |shard: Shard| async move {
                if shard.index() == failing {
                    // `run_until_complete` ends with an error.
                    shard.handle().unwrap().stop().unwrap();
                    return pending().await;
                }
                match on_failure {
                    OnFailure::StopAll => shard.stopping().await,
                    _ => {
                        let gone = shard.peer(failing).call(pending::<()>).await;
                        assert_eq!(gone, Err(CallError::Gone));
                        assert!(!shard.is_stopping());
                    }
                }
                Ok::<_, io::Error>(())
            });
            let error = error.unwrap_err();
            assert_eq!((error.shard, error.others.len()), (failing, 0), "{error}");
            assert!(matches!(error.cause, Cause::Loop(_)), "{error}");
        }
    });
}

#[test]
fn panics_and_errors_of_main_futures_and_services_stop_the_pool() {
    on_every_driver(|case| {
        let message_of = |cause: Cause| match cause {
            Cause::Panicked(message) => message,
            Cause::Failed(error) => format!("error: {error}"),
            cause => panic!("{cause}"),
        };
        for (what, expected) in [
            ("main function", "main function"),
            ("main poll", "main poll"),
            ("main drop", "main drop"),
            ("main error", "error: main error"),
            ("make function", "make function"),
            ("make poll", "make poll"),
            ("make error", "error: make error"),
            ("stop function", "stop function"),
            ("stop poll", "stop poll"),
        ] {
            let (mains, stops) = (Count::default(), Count::default());
            let (mains_seen, stops_seen) = (mains.clone(), stops.clone());
            let pool = pool(case, 2).build().unwrap();
            let before = pool.service(|_| async { Ok::<_, io::Error>(RefCell::new(0)) });
            pool.on_stop(before, move |_| {
                stops.add();
                async {}
            });
            let service = pool.service(move |shard: Shard| {
                let fails = shard.index() == 1;
                assert!(!(fails && what == "make function"), "{what}");
                async move {
                    yield_now().await;
                    assert!(!(fails && what == "make poll"), "{what}");
                    match fails && what == "make error" {
                        true => Err(io::Error::other(what)),
                        false => Ok(shard.index()),
                    }
                }
            });
            pool.on_stop(service, move |index| {
                assert!(!(*index == 1 && what == "stop function"), "{what}");
                async move {
                    yield_now().await;
                    assert!(!(*index == 1 && what == "stop poll"), "{what}");
                }
            });
            let error = pool.run(move |shard: Shard| {
                let fails = shard.index() == 1;
                mains.add();
                assert!(!(fails && what == "main function"), "{what}");
                let guard = (fails && what == "main drop").then(|| PanicOnDrop("main drop"));
                async move {
                    let result = windlass::spawn(async {}).await;
                    result?;
                    let _guard = guard;
                    assert!(!(fails && what == "main poll"), "{what}");
                    if fails && what == "main error" {
                        return Err(what.into());
                    }
                    if what.starts_with("main") && !fails {
                        shard.stopping().await;
                    }
                    Result::Ok(())
                }
            });
            let error = error.unwrap_err();
            assert_eq!((error.shard, error.others.len()), (1, 0), "{what}: {error}");
            assert_eq!(message_of(error.cause), expected);
            let is_start = what.starts_with("make");
            assert_eq!(mains_seen.get(), if is_start { 0 } else { 2 }, "{what}");
            // The service that had started is stopped on both.
            assert_eq!(stops_seen.get(), 2, "{what}");
        }
    });
}

#[test]
fn a_start_that_fails_on_one_shard_starts_none() {
    on_every_kernel_driver(|case| {
        for panics in [false, true] {
            let started = Count::default();
            let seen = started.clone();
            let pool = pool(case, 3).each_loop(move |index, _| match index {
                2 if panics => panic!("no loop"),
                // A loop that cannot accept from the kernel's sockets.
                2 => windlass::Builder::new().driver(windlass::DriverChoice::Null),
                _ => case.builder(),
            });
            let pool = pool.build().unwrap();
            let listener = pool.listen("127.0.0.1:0").unwrap();
            let error = pool.run(move |_| {
                started.add();
                async { Ok::<_, io::Error>(()) }
            });
            let error = error.unwrap_err();
            assert_eq!((error.shard, seen.get()), (2, 0), "{error}");
            match panics {
                true => assert!(matches!(error.cause, Cause::Panicked(_)), "{error}"),
                false => assert!(matches!(error.cause, Cause::Start(_)), "{error}"),
            }
            std::net::TcpStream::connect(listener.local_addr()).unwrap_err();
        }
    });
}

#[test]
fn all_failures_are_returned_and_the_first_comes_first() {
    on_every_driver(|case| {
        let order = Count::default();
        let error = pool(case, 3).build().unwrap().run(move |shard: Shard| {
            let order = order.clone();
            async move {
                // Shard 1 fails, then shard 2, then shard 0.
                order.reaches([2, 0, 1][shard.index()]).await;
                if shard.index() != 1 {
                    shard.stopping().await;
                    order.reaches([2, 0, 1][shard.index()]).await;
                }
                let _next = order.on_drop();
                Err::<(), _>(io::Error::other(format!("failure {}", shard.index())))
            }
        });
        let error = error.unwrap_err();
        assert_eq!(error.shard, 1, "{error}");
        let mut others: Vec<_> = error.others.iter().map(|(shard, _)| *shard).collect();
        others.sort_unstable();
        assert_eq!(others, [0, 2], "{error}");
        assert!(
            error.to_string().starts_with("shard 1 failed: failure 1; shard "),
            "{error}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Other);
    });
}

#[test]
fn the_values_of_services_are_dropped_when_a_shard_leaves() {
    on_every_driver(|case| {
        let (dropped, seen) = (Count::default(), Mutex::new(Vec::new()));
        let shared = dropped.clone();
        let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
        let service = pool.service(move |_| {
            let guard = shared.on_drop();
            // A value that holds its loop.
            async move {
                let listener = windlass::net::TcpListener::bind("127.0.0.1:0").await?;
                Ok::<_, io::Error>((guard, listener))
            }
        });
        let count = dropped.clone();
        let error = pool.run(move |shard: Shard| {
            let count = count.clone();
            async move {
                assert_ne!(shard.index(), 1, "ends");
                count.reaches(1).await;
                let gone = service.on(&shard.peer(1), |_| ()).await;
                assert_eq!(gone, Err(CallError::Gone));
                assert_eq!(service.on(&shard, |_| 7).await, Ok(7));
                Ok::<_, io::Error>(())
            }
        });
        seen.lock().unwrap().push(error.unwrap_err().shard);
        assert_eq!((dropped.get(), seen.into_inner().unwrap()), (2, vec![1]));
    });
}
