//! Limits of calls, dropped calls, and the time limit of their start.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use windlass::shards::{self, CallError, MAX_HOPS, Shard};
use windlass::task::join_all;
use windlass::time::sleep;

use crate::support::{on_every_driver, on_every_kernel_driver, poll_once};
use crate::{Count, Gate, Result, counters, no_calls, pool};

/// A chain of calls around the pool. Returns how many calls it made until one was too deep.
fn chain() -> Pin<Box<dyn Future<Output = usize>>> {
    Box::pin(async {
        let shard = Shard::current().unwrap();
        match shard.peer((shard.index() + 1) % shard.count()).call(chain).await {
            Ok(depth) => depth + 1,
            Err(error) => {
                assert_eq!(error, CallError::TooDeep);
                0
            }
        }
    })
}

#[test]
fn a_flood_of_nested_calls_around_three_shards_with_one_unit_ends() {
    on_every_driver(|case| {
        let pool = pool(case, 3).calls_per_peer(1).build().unwrap();
        pool.run(|shard: Shard| async move {
            let chains = (0..10).map(|_| windlass::spawn(chain()));
            for depth in join_all(chains.collect::<Vec<_>>()).await {
                assert_eq!(depth.unwrap(), MAX_HOPS);
            }
            no_calls(&shard).await;
            Ok::<_, CallError>(())
        })
        .unwrap();
    });
}

#[test]
fn a_call_dropped_before_it_starts_never_runs_and_returns_its_unit() {
    on_every_driver(|case| {
        let (stalled, gate, ran) = (Count::default(), Gate::default(), Count::default());
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        let ran_after = ran.clone();
        pool.run(move |shard: Shard| {
            let (stalled, gate, ran) = (stalled.clone(), gate.clone(), ran.clone());
            async move {
                if shard.index() == 1 {
                    stalled.add();
                    gate.block();
                    return Ok(());
                }
                stalled.reaches(1).await;
                let other = shard.peer(1);
                {
                    let never = ran.clone();
                    let mut dropped = pin!(other.call(move || async move { never.add() }));
                    assert!(poll_once(dropped.as_mut()).await.is_pending());
                }
                // The unit comes back with the answer, not before.
                let mut next = pin!(other.ask(|| 7));
                assert!(poll_once(next.as_mut()).await.is_pending());
                assert!(other.try_call(|| async {}).is_err());
                // A call that waits for the unit and is dropped passes it on.
                {
                    let mut waiting = pin!(other.ask(|| 8));
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                }
                gate.open();
                assert_eq!(next.await, Ok(7));
                no_calls(&shard).await;
                assert!(other.try_call(|| async {}).is_ok());
                assert_eq!(counters(&shard).await[0].unit_waits, 2);
                Ok::<_, CallError>(())
            }
        })
        .unwrap();
        assert_eq!(ran_after.get(), 0);
    });
}

#[test]
fn a_call_dropped_while_it_runs_is_cancelled_and_returns_its_unit() {
    on_every_driver(|case| {
        let (started, dropped) = (Count::default(), Count::default());
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        let dropped_after = dropped.clone();
        pool.run(move |shard: Shard| {
            let (started, dropped) = (started.clone(), dropped.clone());
            async move {
                if shard.index() == 1 {
                    return Ok(());
                }
                let other = shard.peer(1);
                {
                    let (begun, guard) = (started.clone(), dropped.on_drop());
                    let call = other.call(move || async move {
                        let _guard = guard;
                        begun.add();
                        pending::<()>().await;
                    });
                    let mut call = pin!(call);
                    assert!(poll_once(call.as_mut()).await.is_pending());
                    started.reaches(1).await;
                    let counters = counters(&shard).await;
                    assert_eq!((counters[0].in_flight, counters[1].serving), (1, 1));
                }
                assert_eq!(other.ask(|| 7).await, Ok(7));
                assert_eq!(dropped.get(), 1);
                no_calls(&shard).await;
                Ok::<_, CallError>(())
            }
        })
        .unwrap();
        assert_eq!(dropped_after.get(), 1);
    });
}

#[test]
fn a_call_dropped_after_it_ran_drops_its_value_and_returns_its_unit() {
    on_every_driver(|case| {
        let (ran, dropped) = (Count::default(), Count::default());
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(move |shard: Shard| {
            let (ran, dropped) = (ran.clone(), dropped.clone());
            async move {
                if shard.index() == 1 {
                    return Ok(());
                }
                let other = shard.peer(1);
                for round in 0..3 {
                    {
                        let (begun, value) = (ran.clone(), dropped.on_drop());
                        let mut call = pin!(other.ask(move || {
                            begun.add();
                            value
                        }));
                        assert!(poll_once(call.as_mut()).await.is_pending());
                        ran.reaches(round + 1).await;
                        // In the first round the answer has perhaps not arrived.
                        if round > 0 {
                            no_calls(&shard).await;
                        }
                    }
                    // The unit is back.
                    no_calls(&shard).await;
                    assert!(other.try_call(|| async {}).is_ok());
                }
                dropped.reaches(3).await;
                assert_eq!(other.ask(|| 7).await, Ok(7));
                no_calls(&shard).await;
                Ok::<_, CallError>(())
            }
        })
        .unwrap();
    });
}

#[test]
fn many_calls_to_a_stalled_shard_wait_at_the_caller() {
    on_every_driver(|case| {
        let (stalled, gate) = (Count::default(), Gate::default());
        let pool = pool(case, 2).calls_per_peer(4).build().unwrap();
        pool.run(move |shard: Shard| {
            let (stalled, gate) = (stalled.clone(), gate.clone());
            async move {
                if shard.index() == 1 {
                    stalled.add();
                    gate.block();
                    return Ok(());
                }
                stalled.reaches(1).await;
                let other = shard.peer(1);
                let calls: Vec<_> = (0..10_000)
                    .map(|number| windlass::spawn(other.call(move || async move { number })))
                    .collect();
                while windlass::counters().ready > 0 {
                    windlass::task::yield_now().await;
                }
                let busy = other.try_call(|| async { "given back" }).map(drop).unwrap_err();
                assert_eq!((busy.0)().await, "given back");
                // A virtual clock does not pass the report's time limit while another thread works.
                if case.is_kernel() {
                    let report = shard.report().await;
                    assert!(report[1].answer.is_err());
                    let own = report[0].answer.as_ref().unwrap().0;
                    assert_eq!((own.in_flight, own.calls), (4, 4));
                }
                gate.open();
                for (number, call) in calls.into_iter().enumerate() {
                    assert_eq!(call.await.unwrap(), Ok(number));
                }
                let counters = counters(&shard).await;
                assert_eq!((counters[0].calls, counters[1].served), (10_000, 10_000));
                assert_eq!(
                    (counters[0].in_flight, counters[1].serving, counters[1].queued),
                    (0, 0, 0)
                );
                assert_eq!(counters[0].unit_waits, 9_996);
                Ok::<_, CallError>(())
            }
        })
        .unwrap();
    });
}

#[test]
fn a_call_that_cannot_start_in_time_is_late_and_never_runs() {
    on_every_kernel_driver(|case| {
        let (stalled, gate, ran) = (Count::default(), Gate::default(), Count::default());
        let ran_after = ran.clone();
        let pool = pool(case, 2).calls_per_peer(2).build().unwrap();
        pool.run(move |shard: Shard| {
            let (stalled, gate, ran) = (stalled.clone(), gate.clone(), ran.clone());
            async move {
                if shard.index() == 1 {
                    stalled.add();
                    gate.block();
                    return Ok::<_, CallError>(());
                }
                stalled.reaches(1).await;
                let other = shard.peer(1);
                let limit = Duration::from_millis(1);
                let late = || {
                    let ran = ran.clone();
                    other.ask(move || ran.add()).start_within(limit)
                };
                let mut sent = pin!(late());
                assert!(poll_once(sent.as_mut()).await.is_pending());
                let mut patient = pin!(other.ask(|| 7).start_within(Duration::MAX));
                assert!(poll_once(patient.as_mut()).await.is_pending());
                // This one waits for a unit, and is late here.
                assert_eq!(late().await, Err(CallError::Late));
                sleep(limit * 2).await;
                gate.open();
                assert_eq!(sent.await, Err(CallError::Late));
                assert_eq!(patient.await, Ok(7));
                no_calls(&shard).await;
                Ok(())
            }
        })
        .unwrap();
        assert_eq!(ran_after.get(), 0);
    });
}

#[test]
fn virtual_clocks_of_two_shards_are_not_compared() {
    on_every_driver(|case| {
        if case.is_kernel() {
            return;
        }
        let slept = Count::default();
        let pool = pool(case, 2).build().unwrap();
        pool.run(move |shard: Shard| {
            let slept = slept.clone();
            async move {
                if shard.index() == 1 {
                    sleep(Duration::from_secs(3_600)).await;
                    slept.add();
                    return Ok::<_, CallError>(());
                }
                slept.reaches(1).await;
                let call = shard.peer(1).ask(|| 7).start_within(Duration::from_secs(1));
                assert_eq!(call.await, Ok(7));
                Ok(())
            }
        })
        .unwrap();
    });
}

#[test]
fn a_rooted_future_begins_a_new_chain() {
    on_every_driver(|case| {
        pool(case, 2)
            .build()
            .unwrap()
            .run(|shard: Shard| async move {
                let other = shard.peer(1 - shard.index());
                assert_eq!(chain().await, MAX_HOPS);
                assert_eq!(other.call(chain).await?, MAX_HOPS - 1);
                assert_eq!(other.call(|| shards::rooted(chain())).await?, MAX_HOPS);
                // Tasks inherit the class.
                let spawned = || async { windlass::spawn(chain()).await.unwrap() };
                assert_eq!(other.call(spawned).await?, MAX_HOPS - 1);
                let asked = other.ask(|| drop(windlass::spawn(async { assert_eq!(chain().await, MAX_HOPS - 1) })));
                asked.await?;
                no_calls(&shard).await;
                Ok::<_, CallError>(())
            })
            .unwrap();
    });
}

#[test]
fn each_class_has_units_of_its_own_and_a_call_keeps_the_class_of_its_unit() {
    on_every_driver(|case| {
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(|shard: Shard| async move {
            if shard.index() == 1 {
                return Ok(());
            }
            let other = shard.peer(1);
            // While the only unit of class 0 of shard 0 is in use by a call, that call's service has those of class 1.
            let nested = other.call(|| async {
                let shard = Shard::current().unwrap();
                let back = shard.peer(0);
                let call = match back.try_call(chain) {
                    Ok(call) => call,
                    Err(_) => panic!("class 1 is free"),
                };
                assert!(
                    back.try_call(|| async {}).is_err(),
                    "its unit is in use before it is sent"
                );
                // Awaited as class 0, it would hold a unit of class 1 while its service needs one of class 1.
                shards::rooted(call).await
            });
            assert_eq!(nested.await??, MAX_HOPS - 2);
            no_calls(&shard).await;
            Ok::<_, CallError>(())
        })
        .unwrap();
    });
}

#[test]
fn a_pool_of_one_runs_on_the_callers_thread_and_calls_itself_directly() {
    on_every_driver(|case| {
        let thread = std::thread::current().id();
        let pool = pool(case, 1).build().unwrap();
        let service = pool.service(|_| async { Ok::<_, std::io::Error>(5) });
        let outputs = pool.run(move |shard: Shard| async move {
            assert_eq!(std::thread::current().id(), thread);
            assert_eq!((shard.index(), shard.count()), (0, 1));
            assert_eq!(shard.by_key("key"), shard);
            assert_eq!(shard.idlest(), shard);
            let mut call = pin!(shard.call(|| async { 6 }));
            // At the first poll, without a message.
            assert!(poll_once(call.as_mut()).await.is_ready());
            assert_eq!(service.on(&shard, |value| *value).await?, 5);
            assert_eq!(
                shard.ask(|| -> () { panic!("here") }).await,
                Err(CallError::Panicked("here".to_owned()))
            );
            assert_eq!(counters(&shard).await[0].messages, 0);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(7)
        });
        assert_eq!(outputs.unwrap(), [7]);
    });
}

#[test]
fn keys_belong_to_one_shard_and_the_idlest_shard_has_the_fewest_tasks() {
    on_every_driver(|case| {
        let pool = pool(case, 3).build().unwrap();
        let owners = pool.run(|shard: Shard| async move {
            let owners: Vec<usize> = (0..300_u32).map(|key| shard.by_key(&key).index()).collect();
            for index in 0..3 {
                assert!(owners.iter().filter(|&&owner| owner == index).count() > 50);
            }
            if shard.index() == 0 {
                // A shard says at the end of a turn how many tasks it has.
                for _ in 0..10 {
                    windlass::spawn(pending::<()>()).detach();
                }
                windlass::task::yield_now().await;
                assert_ne!(shard.idlest(), shard);
            }
            Result::Ok(owners)
        });
        let owners = owners.unwrap();
        assert!(owners.iter().all(|each| *each == owners[0]));
    });
}
