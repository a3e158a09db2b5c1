//! The same tests on every driver of this build, and on the null driver, where time is virtual.

use std::time::{Duration, Instant};

use embedding::{Store, answer, ask, serve};
use windlass::io::duplex;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::CancelToken;
use windlass::time::sleep;
use windlass::{Builder, DriverChoice};

fn on_every_driver(body: impl AsyncFn(DriverChoice)) {
    let choices = [
        (cfg!(feature = "proactor"), DriverChoice::Proactor),
        (cfg!(feature = "reactor"), DriverChoice::Reactor),
        (true, DriverChoice::Null),
    ];
    for (is_built, choice) in choices {
        if !is_built {
            continue;
        }
        match Builder::new().driver(choice).build() {
            Ok(event_loop) => event_loop.run_until_complete(body(choice)).expect("the loop runs"),
            // A container may refuse io_uring.
            Err(error) => println!("-- SKIPPED on {choice:?}: {error}"),
        }
    }
}

#[test]
fn what_is_put_can_be_got() {
    on_every_driver(async |_| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("an address");
        let stop = CancelToken::new();
        let grace = Duration::from_secs(60);
        let serving = windlass::spawn(serve(Store::default(), listener, stop.clone(), grace));
        let mut one = TcpStream::connect(addr).await.expect("connect");
        let mut other = TcpStream::connect(addr).await.expect("connect");
        assert_eq!(ask(&mut one, "get colour").await.expect("an answer"), "none");
        assert_eq!(ask(&mut one, "put colour dark red").await.expect("an answer"), "ok");
        assert_eq!(ask(&mut other, "get colour").await.expect("an answer"), "= dark red");
        assert_eq!(ask(&mut other, "count").await.expect("an answer"), "1");
        assert!(ask(&mut other, "sing").await.expect("an answer").starts_with("error: "));
        assert!(
            ask(&mut other, &"x".repeat(5_000))
                .await
                .expect("an answer")
                .starts_with("error: ")
        );
        other.write_all("quit\n").await.0.expect("write");
        assert!(other.read_managed().await.expect("the end").is_empty());
        // A connection that is open at the stop is still served; the server ends with the last one.
        stop.cancel();
        assert_eq!(ask(&mut one, "get colour").await.expect("an answer"), "= dark red");
        assert!(!serving.is_finished());
        drop(one);
        serving.await.expect("no panic");
    });
}

#[test]
fn what_is_kept_for_a_while_goes_away() {
    on_every_driver(async |choice| {
        let store = Store::default();
        let (mut client, server) = duplex(1024);
        let answering = windlass::spawn(answer(store.clone(), server));
        // An hour in virtual time, otherwise a moment.
        let while_ = match choice {
            DriverChoice::Null => Duration::from_secs(3600),
            _ => Duration::from_millis(50),
        };
        let question = format!("keep {} session open", while_.as_millis());
        let begin = Instant::now();
        assert_eq!(ask(&mut client, &question).await.expect("an answer"), "ok");
        assert_eq!(store.get("session").as_deref(), Some("open"));
        // A newer value stays, although the timer of the first is still running.
        assert_eq!(ask(&mut client, "keep 1 other one").await.expect("an answer"), "ok");
        assert_eq!(ask(&mut client, "put other two").await.expect("an answer"), "ok");
        sleep(while_ * 2).await;
        assert_eq!(store.get("session"), None);
        assert_eq!(store.get("other").as_deref(), Some("two"));
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the hour passed in real time"
        );
        drop(client);
        answering.await.expect("no panic").expect("a clean end");
    });
}
