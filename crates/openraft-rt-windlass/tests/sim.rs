//! openraft's conformance tests on simulated hosts, and what a simulation asks of the runtime.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft_rt::testing::Suite;
use openraft_rt::{AsyncRuntime, Instant, Watch, WatchReceiver, WatchSender};
use openraft_rt_windlass::{WindlassInstant, WindlassRuntime, WindlassWatch};
use rand::Rng;
use windlass::sim;

type Rt = WindlassRuntime;

/// Those tests of the suite that openraft offers as functions, on a host among others: it does not own its loop.
async fn suite() {
    type S = Suite<Rt>;
    S::test_spawn_join_handle().await;
    S::test_thread_rng().await;
    S::test_sleep().await;
    S::test_instant().await;
    S::test_instant_arithmetic().await;
    S::test_instant_sub_instant().await;
    S::test_instant_saturating_duration_since().await;
    S::test_instant_ord().await;
    S::test_sleep_until().await;
    S::test_timeout().await;
    S::test_timeout_at().await;
    S::test_mpsc_recv_empty().await;
    S::test_mpsc_recv_channel_closed().await;
    S::test_mpsc_weak_sender_wont_prevent_channel_close().await;
    S::test_mpsc_weak_sender_upgrade().await;
    S::test_mpsc_send().await;
    S::test_mpsc_send_to_closed_channel().await;
    S::test_mpsc_backpressure().await;
    S::test_watch_init_value().await;
    S::test_watch_send_if_modified().await;
    S::test_watch_wait_until_ge().await;
    S::test_watch_wait_until().await;
    S::test_watch_multiple_receivers().await;
    S::test_watch_subscribe().await;
    S::test_oneshot_drop_tx().await;
    S::test_oneshot().await;
    S::test_oneshot_send_from_another_task().await;
    S::test_mutex().await;
    S::test_mutex_contention().await;
    S::test_mutex_lock_owned().await;
    S::test_task_local().await;
    S::test_task_local_on_completion_drop().await;
}

#[test]
fn the_suite_passes_on_simulated_hosts() {
    sim::sweep(0..20, |sim| async move {
        for name in ["a", "b"] {
            sim.host(name).start(|| async {
                suite().await;
                Ok::<_, io::Error>(())
            });
        }
        suite().await;
        Ok(())
    });
}

/// The numbers that hosts draw, and a blocking job's time, follow the seed.
#[test]
fn random_numbers_and_jobs_follow_the_seed() {
    let draw = |seed| {
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let drawn = numbers.clone();
        sim::run(seed, move |_| {
            let drawn = drawn.clone();
            async move {
                let begin = WindlassInstant::now();
                let number = Rt::thread_rng().next_u64();
                Rt::spawn_blocking(|| ()).await?;
                let lasted = begin.elapsed();
                drawn.lock().unwrap().push((number, lasted));
                assert_ne!(Rt::thread_rng().next_u64(), number);
                Ok(())
            }
        });
        numbers.lock().unwrap().clone()
    };
    let (first, other) = (draw(1), draw(2));
    assert!(first.iter().all(|drawn| *drawn == first[0]));
    assert_eq!(first[0], draw(1)[0]);
    assert_ne!(first[0], other[0]);
    assert!(first[0].1 > Duration::ZERO);
}

/// Receivers are woken in the order in which they began to wait.
#[test]
fn watch_receivers_are_served_in_order() {
    Rt::run(async {
        let (sender, receiver) = WindlassWatch::channel(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let (mut receiver, order) = (receiver.clone(), order.clone());
                Rt::spawn(async move {
                    receiver.changed().await.unwrap();
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        windlass::task::yield_now().await;
        sender.send(1).unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
    });
}

/// A value that is sent between a receiver's borrow and its wait is not missed, and a wait that is dropped leaves nothing.
#[test]
fn watch_misses_nothing() {
    Rt::run(async {
        let (sender, mut receiver) = WindlassWatch::channel(0);
        assert_eq!(*receiver.borrow_and_update(), 0);
        sender.send(1).unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow_watched(), 1);
        let limit = Duration::from_millis(1);
        assert!(Rt::timeout(limit, receiver.changed()).await.is_err());
        sender.clone().send(2).unwrap();
        drop(sender);
        receiver.changed().await.unwrap();
        assert!(receiver.changed().await.is_err());
        let (sender, receiver) = WindlassWatch::channel(0);
        drop(receiver);
        assert!(sender.send(1).is_err());
    });
}

/// An error in the output of a detached task is not reported; a panic is the result of its handle.
#[test]
fn detached_errors_are_silent() {
    let event_loop = windlass::EventLoop::new().unwrap();
    let count = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = count.clone();
    event_loop.set_exception_handler(move |_| counted.set(counted.get() + 1));
    WindlassRuntime::from_loop(event_loop).block_on(async {
        drop(Rt::spawn(async { Err::<(), _>(io::Error::other("expected")) }));
        windlass::task::yield_now().await;
        let panicked = Rt::spawn(async { panic!("expected") }).await;
        let _: () = match panicked {
            Err(error) => assert!(Rt::is_panic(&error)),
            Ok(value) => value,
        };
    });
    assert_eq!(count.get(), 0);
}

/// Handles, timers and channels work on other threads than the loop's.
#[cfg(not(feature = "single-threaded"))]
#[test]
fn handles_can_be_sent() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let (sender, receiver) = WindlassWatch::channel(0);
    let task = Rt::run(async move {
        let mut receiver = is_send(receiver);
        let waiting = is_send(Rt::spawn(async move {
            receiver.wait_until_ge(&2).await.unwrap();
            "done"
        }));
        let sender = is_send(sender);
        let thread = std::thread::spawn(move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
            // Awaited by a loop of another thread.
            Rt::run(async {
                is_send(Rt::sleep(Duration::from_millis(1))).await;
                is_send(Rt::timeout(Duration::from_secs(60), waiting)).await.unwrap()
            })
        });
        Rt::spawn_blocking(move || thread.join().unwrap()).await.unwrap()
    });
    assert_eq!(task.unwrap(), "done");
}
