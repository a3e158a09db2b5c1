//! Reports, dumps and counters.

use std::future::pending;
use std::io;

use windlass::shards::{CallError, NoAnswer, Shard};
use windlass::task::{join_all, yield_now};

use crate::support::{on_every_driver, on_every_kernel_driver};
use crate::{Count, Gate, counters, pool};

#[test]
fn messages_of_a_turn_are_one_batch_with_at_most_one_wake_up() {
    on_every_driver(|case| {
        if case.has_quirks() {
            return;
        }
        let pool = pool(case, 2).build().unwrap();
        pool.run(|shard: Shard| async move {
            if shard.index() == 1 {
                shard.stopping().await;
                return Ok(());
            }
            let other = shard.peer(1);
            for _ in 0..20 {
                let before = counters(&shard).await;
                let calls: Vec<_> = (0..100).map(|number| other.ask(move || number)).collect();
                for (number, result) in join_all(calls).await.into_iter().enumerate() {
                    assert_eq!(result, Ok(number));
                }
                let after = counters(&shard).await;
                for (before, after) in before.iter().zip(&after) {
                    assert_eq!(after.messages - before.messages, 100);
                    assert_eq!(after.batches - before.batches, 1);
                    assert!(after.wakes - before.wakes <= 1);
                }
            }
            shard.stop();
            Ok::<_, CallError>(())
        })
        .unwrap();
    });
}

#[test]
fn a_stuck_shard_is_named() {
    on_every_kernel_driver(|case| {
        let (stalled, gate) = (Count::default(), Gate::default());
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(move |shard: Shard| {
            let (stalled, gate) = (stalled.clone(), gate.clone());
            async move {
                if shard.index() == 1 {
                    stalled.add();
                    gate.block();
                    return Ok::<_, io::Error>(());
                }
                stalled.reaches(1).await;
                let (reports, dumps) = windlass::task::join((shard.report(), shard.dump())).await;
                assert!(reports[0].answer.is_ok() && dumps[0].answer.is_ok());
                let answer = reports[1].answer.as_ref().map(drop).unwrap_err();
                assert!(matches!(answer, NoAnswer::Stuck { .. }), "{answer:?}");
                assert!(
                    reports[1].to_string().starts_with("shard 1 (shard-1): STUCK in turn"),
                    "{}",
                    reports[1]
                );
                assert!(dumps[1].to_string().contains("STUCK"), "{}", dumps[1]);
                gate.open();
                Ok(())
            }
        })
        .unwrap();
    });
}

#[test]
fn a_dump_names_the_shard_and_the_hop_of_a_waiting_call() {
    on_every_driver(|case| {
        let started = Count::default();
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(move |shard: Shard| {
            let started = started.clone();
            async move {
                if shard.index() == 1 {
                    shard.stopping().await;
                    return Ok::<_, io::Error>(());
                }
                let begun = started.clone();
                let call = windlass::spawn(shard.peer(1).call(move || async move {
                    let nested = Shard::current().unwrap().peer(0).call(move || async move {
                        begun.add();
                        pending::<()>().await;
                    });
                    nested.await
                }));
                started.reaches(1).await;
                // The only unit to shard 1 is in use, and still it answers.
                let reports = shard.report().await;
                assert!(reports.iter().all(|report| report.answer.is_ok()), "{}", reports[1]);
                let dumps = shard.dump().await;
                assert!(dumps[0].to_string().contains("a call to shard 1"), "{}", dumps[0]);
                assert!(
                    dumps[1].to_string().contains("a call to shard 0, hop 1"),
                    "{}",
                    dumps[1]
                );
                // Also from a task that may make no calls itself.
                call.cancel();
                assert!(call.await.is_err());
                shard.stop();
                Ok(())
            }
        })
        .unwrap();
    });
}

#[test]
fn a_shard_that_has_ended_is_reported_as_ended() {
    on_every_driver(|case| {
        let pool = pool(case, 2).on_failure(windlass::shards::OnFailure::KeepOthers);
        let error = pool.build().unwrap().run(|shard: Shard| async move {
            assert_ne!(shard.index(), 1, "ends");
            while shard.peer(1).is_alive() {
                yield_now().await;
            }
            let reports = shard.report().await;
            assert_eq!(reports[1].answer.as_ref().map(drop).unwrap_err(), &NoAnswer::Ended);
            assert_eq!(reports[1].to_string(), "shard 1 (shard-1): ended");
            Ok::<_, io::Error>(())
        });
        assert_eq!(error.unwrap_err().others.len(), 0);
    });
}
