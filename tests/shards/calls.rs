//! Pools of shards: calls, services, listeners, failures and stops.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use windlass::net::TcpStream;
use windlass::shards::{Accept, CallError, Cause, OnFailure, Shard};
use windlass::task::yield_now;

use crate::pool;
use crate::support::{on_every_driver, on_every_kernel_driver};

#[test]
fn calls_run_on_their_shard_and_return_values() {
    on_every_driver(|case| {
        let outputs = pool(case, 3).build().unwrap().run(|shard: Shard| async move {
            let mut seen = Vec::new();
            for peer in shard.all() {
                let index = peer.call(|| async {
                    yield_now().await;
                    // Not `Send`.
                    let here = Rc::new(Shard::current().unwrap().index());
                    *here
                });
                let asked = peer.ask(|| Shard::current().unwrap().index());
                seen.push((index.await?, asked.await?));
            }
            Ok::<_, CallError>(seen)
        });
        assert_eq!(outputs.unwrap(), vec![vec![(0, 0), (1, 1), (2, 2)]; 3]);
    });
}

#[test]
fn panics_and_drops_of_calls() {
    on_every_driver(|case| {
        let outputs = pool(case, 2).build().unwrap().run(|shard: Shard| async move {
            if shard.index() == 1 {
                return Ok::<_, CallError>(());
            }
            let other = shard.peer(1);
            let panicked = other.ask(|| -> u32 { panic!("asked") }).await;
            assert_eq!(panicked, Err(CallError::Panicked("asked".to_owned())));
            let panicked = other.call(|| async { panic!("called") }).await;
            assert_eq!(panicked, Err::<(), _>(CallError::Panicked("called".to_owned())));
            Ok(())
        });
        outputs.unwrap();
    });
}

#[test]
fn mutual_flood_of_nested_calls_with_one_unit_ends() {
    on_every_driver(|case| {
        async fn nested(depth: usize) -> Result<usize, CallError> {
            let shard = Shard::current().unwrap();
            if depth == 0 {
                return Ok(1);
            }
            let other = shard.peer(1 - shard.index());
            let boxed: std::pin::Pin<Box<dyn Future<Output = _>>> =
                Box::pin(async move { other.call(move || nested(depth - 1)).await });
            Ok(boxed.await?? + 1)
        }
        let pool = pool(case, 2).calls_per_peer(1).build().unwrap();
        pool.run(|_| async {
            let calls = (0..20).map(|_| windlass::spawn(nested(8)));
            for call in calls.collect::<Vec<_>>() {
                assert_eq!(call.await.unwrap(), Ok(9));
            }
            assert_eq!(nested(10).await, Err(CallError::TooDeep));
            Ok::<_, CallError>(())
        })
        .unwrap();
    });
}

#[test]
fn services_start_and_stop_in_order() {
    on_every_driver(|case| {
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let pool = pool(case, 2).build().unwrap();
        let mut services = Vec::new();
        for name in ["one", "two"] {
            let (started, stopped) = (order.clone(), order.clone());
            let service = pool.service(move |shard: Shard| {
                started.lock().unwrap().push(format!("start {name} {}", shard.index()));
                async move { Ok::<_, io::Error>(Cell::new(shard.index())) }
            });
            pool.on_stop(service, move |value| {
                stopped.lock().unwrap().push(format!("stop {name} {}", value.get()));
                async {}
            });
            services.push(service);
        }
        let two = services[1];
        pool.run(move |shard: Shard| async move {
            let sum = two.map_reduce(|value| value.get(), 0, |a, b| a + b).await?;
            assert_eq!(sum, 1);
            let other = shard.peer(1 - shard.index());
            two.on_async(&other, async |value| value.set(value.get())).await?;
            Ok::<_, CallError>(())
        })
        .unwrap();
        let mut order = order.lock().unwrap().clone();
        for pair in order.chunks_mut(2) {
            pair.sort();
        }
        let expected = ["start one 0", "start one 1", "start two 0", "start two 1"];
        let stops = ["stop two 0", "stop two 1", "stop one 0", "stop one 1"];
        assert_eq!(*order, [expected, stops].concat());
    });
}

#[test]
fn connections_reach_the_shards_and_a_stop_ends_the_accepts() {
    on_every_kernel_driver(|case| {
        for mode in [Accept::ReusePort, Accept::HandOver, Accept::Balanced] {
            let pool = pool(case, 2).build().unwrap();
            let listener = pool
                .listen_with(windlass::net::TcpListener::builder(), "127.0.0.1:0", mode)
                .unwrap();
            let counts = pool
                .run(move |shard: Shard| async move {
                    let client = windlass::spawn({
                        let shard = shard.clone();
                        async move {
                            if shard.index() == 0 {
                                for _ in 0..50 {
                                    let stream = TcpStream::connect(listener.local_addr()).await.unwrap();
                                    assert_eq!(&*stream.read_managed().await.unwrap(), b"hello");
                                }
                                shard.stop();
                            }
                        }
                    });
                    let mut count = 0;
                    while let Some((stream, _)) = listener.accept().await? {
                        count += 1;
                        stream.write_all("hello").await.0?;
                    }
                    client.await.unwrap();
                    Ok::<_, io::Error>(count)
                })
                .unwrap();
            assert_eq!(counts.iter().sum::<i32>(), 50, "{mode:?}: {counts:?}");
        }
    });
}

#[test]
fn the_first_failure_is_returned_and_stops_the_others() {
    on_every_driver(|case| {
        let error = pool(case, 3).build().unwrap().run(|shard: Shard| async move {
            match shard.index() {
                1 => Err(io::Error::other("broken")),
                _ => {
                    shard.stopping().await;
                    Ok(())
                }
            }
        });
        let error = error.unwrap_err();
        assert_eq!((error.shard, error.others.len()), (1, 0), "{error}");
        assert!(matches!(error.cause, Cause::Failed(_)));
    });
}

#[test]
fn calls_to_a_shard_that_has_ended_fail() {
    on_every_driver(|case| {
        let pool = pool(case, 2).on_failure(OnFailure::KeepOthers).build().unwrap();
        let error = pool.run(|shard: Shard| async move {
            if shard.index() == 1 {
                panic!("dead");
            }
            let other = shard.peer(1);
            loop {
                match other.ask(|| ()).await {
                    Ok(()) => yield_now().await,
                    Err(error) => {
                        assert_eq!(error, CallError::Gone);
                        return Ok::<_, io::Error>(());
                    }
                }
            }
        });
        let error = error.unwrap_err();
        assert!(
            matches!(error.cause, Cause::Panicked(ref message) if message == "dead"),
            "{error}"
        );
    });
}
