//! hyper's timers are the loop's.

use std::time::{Duration, Instant as StdInstant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::rt::Timer as _;
use hyper::service::service_fn;
use windlass::compat::Bridge;
use windlass::hyper::Timer;
use windlass::time::{Instant, timeout};

use crate::raw::hear_all;
use crate::support::{on_every_driver, pair};

#[test]
fn a_client_that_says_nothing_is_not_waited_for() {
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
            hear_all(&client).await;
            assert!(began.elapsed() >= Duration::from_millis(200));
            assert!(
                serving
                    .await
                    .expect("no panic")
                    .expect_err("it took too long")
                    .is_timeout()
            );
        });
    });
}

#[test]
fn sleeps_end_when_they_should() {
    on_every_driver(|case| {
        case.run(async {
            let began = Instant::now();
            Timer.sleep(Duration::from_millis(20)).await;
            assert!(began.elapsed() >= Duration::from_millis(20));
            // By the loop's clock, which may be a virtual one.
            let now = Timer.now();
            Timer.sleep_until(now + Duration::from_millis(20)).await;
            assert!(Timer.now() - now >= Duration::from_millis(20));
            Timer.sleep_until(now).await;

            // Later, earlier, and after the end.
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
            ended.expect("it is not an hour");
            let mut sleep = Timer.sleep(Duration::from_secs(3_600));
            assert!(timeout(Duration::from_millis(1), &mut sleep).await.is_err());
            drop(sleep);
            assert_eq!(
                windlass::counters().timers,
                0,
                "a sleep that is gone has left its timer"
            );
        });
    });
}

/// hyper asks for sleeps that may go to other threads. One that does neither crashes nor fires a stranger's timer.
#[test]
fn a_sleep_may_be_dropped_elsewhere() {
    on_every_driver(|case| {
        case.run(async {
            let mut sleep = Timer.sleep(Duration::from_secs(3_600));
            assert!(timeout(Duration::ZERO, &mut sleep).await.is_err());
            let elsewhere = std::thread::spawn(move || {
                windlass::run(async move {
                    let own = windlass::time::sleep(Duration::from_millis(1));
                    drop(sleep);
                    own.await;
                })
                .expect("a loop");
            });
            elsewhere.join().expect("no panic");
            let mut sleep = Timer.sleep(Duration::from_millis(500));
            assert!(timeout(Duration::ZERO, &mut sleep).await.is_err());
            // And awaited there: it ends by that loop's clock.
            let elsewhere = std::thread::spawn(move || windlass::run(sleep).expect("a loop"));
            elsewhere.join().expect("no panic");
        });
        assert!(Timer.now() <= StdInstant::now() + Duration::from_secs(60));
    });
}
