//! hyper's timers run on the loop's clock.

use std::time::{Duration, Instant as StdInstant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::rt::Timer as _;
use hyper::service::service_fn;
use windlass::compat::Bridge;
use windlass::hyper::Timer;
use windlass::time::{Instant, timeout};

use crate::raw::read_all;
use crate::support::{on_every_driver, pair};

#[test]
fn a_silent_client_times_out() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let serving = windlass::spawn(async move {
                let service = service_fn(|_| async {
                    Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::<Bytes>::default()))
                });
                let mut http = hyper::server::conn::http1::Builder::new();
                http.timer(Timer).header_read_timeout(Duration::from_millis(200));
                http.serve_connection(Bridge::new(server), service).await
            });
            let began = Instant::now();
            client.write_all("GET / HTT").await.0.expect("write");
            read_all(&client).await;
            assert!(began.elapsed() >= Duration::from_millis(200));
            assert!(serving.await.expect("no panic").expect_err("a timeout").is_timeout());
        });
    });
}

#[test]
fn sleeps_end_in_time() {
    on_every_driver(|case| {
        case.run(async {
            let began = Instant::now();
            Timer.sleep(Duration::from_millis(20)).await;
            assert!(began.elapsed() >= Duration::from_millis(20));
            // By the loop's clock, which may be virtual.
            let now = Timer.now();
            Timer.sleep_until(now + Duration::from_millis(20)).await;
            assert!(Timer.now() - now >= Duration::from_millis(20));
            Timer.sleep_until(now).await;

            // Reset to a later and an earlier deadline, and after it has ended.
            let mut sleep = Timer.sleep(Duration::from_millis(500));
            assert!(timeout(Duration::ZERO, &mut sleep).await.is_err());
            let began = Timer.now();
            Timer.reset(&mut sleep, began + Duration::from_millis(600));
            sleep.as_mut().await;
            assert!(Timer.now() - began >= Duration::from_millis(600));
            let mut sleep = Timer.sleep(Duration::from_secs(3_600));
            assert!(timeout(Duration::from_millis(1), &mut sleep).await.is_err());
            let deadline = Timer.now() + Duration::from_millis(5);
            Timer.reset(&mut sleep, deadline);
            let ended = timeout(Duration::from_secs(60), sleep).await;
            ended.expect("the sleep ends early");
            let mut sleep = Timer.sleep(Duration::from_secs(3_600));
            assert!(timeout(Duration::from_millis(1), &mut sleep).await.is_err());
            drop(sleep);
            assert_eq!(windlass::counters().timers, 0, "a dropped sleep has left its timer");
        });
    });
}

/// hyper requires `Send` sleeps. One that is dropped on another thread neither crashes nor cancels another timer.
#[test]
fn a_sleep_may_move_to_another_thread() {
    on_every_driver(|case| {
        case.run(async {
            let mut sleep = Timer.sleep(Duration::from_secs(3_600));
            assert!(timeout(Duration::ZERO, &mut sleep).await.is_err());
            let other_thread = std::thread::spawn(move || {
                windlass::run(async move {
                    let own = windlass::time::sleep(Duration::from_millis(1));
                    drop(sleep);
                    own.await;
                })
                .expect("a loop");
            });
            other_thread.join().expect("no panic");
            let mut sleep = Timer.sleep(Duration::from_millis(500));
            assert!(timeout(Duration::ZERO, &mut sleep).await.is_err());
            // Awaited there, it ends by the clock of that thread's loop.
            let other_thread = std::thread::spawn(move || windlass::run(sleep).expect("a loop"));
            other_thread.join().expect("no panic");
        });
        assert!(Timer.now() <= StdInstant::now() + Duration::from_secs(60));
    });
}
