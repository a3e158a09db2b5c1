//! Connecting to several addresses: staggered attempts, the first success wins, and the others leave nothing behind.

use std::cell::RefCell;
use std::future::Future;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::time::{Duration, Instant};

use windlass::net::{TcpListener, TcpStream, lookup_host};
use windlass::time::{sleep, timeout};

use crate::child::in_own_process;
use crate::support::{
    Case, assert_reset, codes, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, quiet,
    reset_on_close, rounds, turns,
};

const SOON: Duration = Duration::from_secs(60);

/// An address that refuses connections. With a kernel, its port stays bound until the thread ends, so that no other
/// test listens there.
async fn refusing(case: Case) -> SocketAddr {
    thread_local! {
        static TAKEN: RefCell<Vec<socket2::Socket>> = const { RefCell::new(Vec::new()) };
    }
    if !case.is_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        return listener.local_addr().unwrap();
    }
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    TAKEN.with_borrow_mut(|taken| taken.push(socket));
    addr
}

/// An address that never answers, as behind a broken route: a listener whose backlog is full.
struct BlackHole {
    addr: SocketAddr,
    _listener: TcpListener,
    _held: Vec<TcpStream>,
}

impl BlackHole {
    /// `None` where the kernel refuses connections when the backlog is full.
    async fn new(case: Case) -> Option<BlackHole> {
        if case.is_kernel() && !cfg!(target_os = "linux") {
            println!("-- SKIPPED: this kernel refuses connections when the backlog is full");
            return None;
        }
        let listener = TcpListener::builder().backlog(1).listen("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(50), TcpStream::connect(addr)).await {
            held.push(stream.unwrap());
        }
        Some(BlackHole {
            addr,
            _listener: listener,
            _held: held,
        })
    }
}

/// How long a future takes by the loop's clock, which is virtual without a kernel.
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let begin = windlass::time::Instant::now();
    let output = timeout(SOON, future).await.expect("the future completes");
    (output, windlass::time::Instant::now() - begin)
}

/// Asserts that connecting takes `pauses` and no further pause of 250 ms. With a kernel, one of several attempts must
/// be that fast, since a busy machine may delay any of them. No attempt may be faster than `pauses`.
async fn assert_quick(case: Case, pauses: Duration, mut connect: impl AsyncFnMut() -> Duration) {
    let mut all = Vec::new();
    for _ in 0..if case.is_kernel() { 10 } else { 1 } {
        let took = connect().await;
        assert!(took >= pauses, "{took:?} instead of {pauses:?}");
        if took == pauses || case.is_kernel() && took < pauses + Duration::from_millis(200) {
            return;
        }
        all.push(took);
    }
    panic!("{all:?} instead of {pauses:?}");
}

#[test]
fn a_refused_address_starts_the_next_attempt_at_once() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let good = listener.local_addr().unwrap();
            let addrs = [refusing(case).await, refusing(case).await, good];
            turns(3).await;
            assert_quick(case, Duration::ZERO, async || {
                let (stream, took) = timed(TcpStream::connect(&addrs[..])).await;
                assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
                took
            })
            .await;
        });
    });
}

#[test]
fn an_unanswered_attempt_delays_the_next_by_250_ms() {
    on_every_driver(|case| {
        case.run(async {
            let Some(hole) = BlackHole::new(case).await else { return };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let good = listener.local_addr().unwrap();
            for (addrs, pauses) in [
                (vec![hole.addr, good], 1),
                (vec![hole.addr, hole.addr, good], 2),
                // A refused attempt starts the next one at once, beside the one that does not answer.
                (vec![hole.addr, refusing(case).await, good], 1),
                (vec![good, hole.addr], 0),
            ] {
                assert_quick(case, Duration::from_millis(250) * pauses, async || {
                    let (stream, took) = timed(TcpStream::connect(&addrs[..])).await;
                    assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
                    took
                })
                .await;
            }
        });
    });
}

/// The first to connect wins, not the first to start.
#[test]
fn an_earlier_attempt_may_still_win() {
    on_every_driver(|case| {
        case.run(async {
            let Some(first) = BlackHole::new(case).await else {
                return;
            };
            let Some(second) = BlackHole::new(case).await else {
                return;
            };
            let addrs = [first.addr, second.addr];
            let connecting = windlass::spawn(async move { TcpStream::connect(&addrs[..]).await });
            // Both are in flight. Then the first listener accepts.
            sleep(Duration::from_millis(400)).await;
            while !connecting.is_finished() {
                timeout(Duration::from_millis(1), first._listener.accept()).await.ok();
            }
            assert_eq!(connecting.await.unwrap().unwrap().peer_addr().unwrap(), first.addr);
        });
    });
}

#[test]
fn the_error_names_all_failed_addresses() {
    on_every_driver(|case| {
        case.run(async {
            let addrs = [refusing(case).await, refusing(case).await, refusing(case).await];
            turns(3).await;
            assert_quick(case, Duration::ZERO, async || {
                let (error, took) = timed(TcpStream::connect(&addrs[..])).await;
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                assert_eq!(windlass::os_code(&error), Some(codes::REFUSED));
                for addr in addrs {
                    assert!(error.to_string().contains(&addr.to_string()), "{error}");
                }
                took
            })
            .await;
            let none: &[SocketAddr] = &[];
            assert_eq!(
                TcpStream::connect(none).await.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            assert_eq!(
                TcpListener::bind(none).await.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            // `bind` takes the first address that works.
            let used = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addrs = [used.local_addr().unwrap(), "127.0.0.1:0".parse().unwrap()];
            let listener = TcpListener::bind(&addrs[..]).await.unwrap();
            assert_ne!(listener.local_addr().unwrap(), addrs[0]);
        });
    });
}

/// The losing attempts are cancelled and their sockets closed: no operation and no descriptor is left.
#[test]
fn losing_attempts_leave_nothing_behind() {
    in_own_process("connect::losing_attempts_leave_nothing_behind", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let Some(hole) = BlackHole::new(case).await else { return };
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let good = listener.local_addr().unwrap();
                let (first, _) = (
                    TcpStream::connect(good).await.unwrap(),
                    listener.accept().await.unwrap(),
                );
                drop(first);
                // The listener's accept stays in flight.
                turns(5).await;
                let (in_flight, open) = (windlass::counters().in_flight, open_descriptors());
                for _ in 0..3 {
                    let addrs = [hole.addr, hole.addr, good];
                    let winner = TcpStream::connect(&addrs[..]).await.unwrap();
                    let accepted = timeout(SOON, listener.accept()).await.expect("the winner").unwrap();
                    drop((winner, accepted));
                }
                settle(in_flight, open).await;
                // Dropped while attempts are in flight.
                let addrs = [hole.addr, hole.addr, hole.addr];
                for limit_ms in [0, 100, 300, 600] {
                    let connecting = TcpStream::connect(&addrs[..]);
                    assert!(timeout(Duration::from_millis(limit_ms), connecting).await.is_err());
                }
                for spins in 0..20 {
                    let addrs = [good, hole.addr];
                    {
                        let mut connecting = pin!(TcpStream::connect(&addrs[..]));
                        let _ = poll_once(connecting.as_mut()).await;
                        turns(spins).await;
                    }
                    // It may have connected.
                    timeout(Duration::from_millis(5), listener.accept()).await.ok();
                }
                settle(in_flight, open).await;
            });
        });
    });
}

/// Waits until finished attempts have been reaped.
async fn settle(in_flight: usize, open: usize) {
    let begin = Instant::now();
    loop {
        let now = (windlass::counters().in_flight, open_descriptors());
        if now.0 <= in_flight && now.1 == open {
            return;
        }
        assert!(
            begin.elapsed() < SOON,
            "{now:?} in flight and open, expected {:?}",
            (in_flight, open)
        );
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn connecting_and_closing_leaks_no_descriptor() {
    in_own_process("connect::connecting_and_closing_leaks_no_descriptor", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let good = listener.local_addr().unwrap();
                let addrs = [refusing(case).await, good];
                turns(3).await;
                let mut open = 0;
                for round in 0..rounds() + 10 {
                    // Warmed up.
                    if round == 10 {
                        quiet_but_accept().await;
                        open = open_descriptors();
                    }
                    let client = match round % 4 {
                        0 => TcpStream::connect(&addrs[..]).await.unwrap(),
                        _ => TcpStream::connect(good).await.unwrap(),
                    };
                    // Avoids a minute of TIME_WAIT.
                    reset_on_close(&client);
                    let (server, _) = listener.accept().await.unwrap();
                    drop((client, server));
                }
                quiet_but_accept().await;
                assert_eq!(open_descriptors(), open);
            });
        });
    });
}

/// Waits until nothing but the listener's accept is in flight.
async fn quiet_but_accept() {
    while windlass::counters().in_flight > 1 {
        turns(1).await;
    }
    turns(3).await;
}

#[test]
fn names_are_resolved_off_the_loop() {
    on_every_kernel_driver(|case| {
        case.run(async {
            use std::net::ToSocketAddrs;
            let addrs = lookup_host("localhost:80").await.unwrap();
            let theirs: Vec<_> = "localhost:80".to_socket_addrs().unwrap().collect();
            assert_eq!(addrs, theirs);
            assert_eq!(lookup_host(("localhost", 80)).await.unwrap(), theirs);
            assert_eq!(lookup_host((String::from("localhost"), 80)).await.unwrap(), theirs);
            // Literal addresses need no resolver.
            let literal: SocketAddr = "[::1]:9".parse().unwrap();
            assert_eq!(lookup_host("[::1]:9").await.unwrap(), [literal]);
            assert_eq!(lookup_host(&[literal, literal][..]).await.unwrap(), [literal, literal]);
            for name in ["", "localhost", "localhost:", "localhost:99999", ":"] {
                let error = lookup_host(name).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
            }
            // The loop runs while the resolver works.
            let lookup = windlass::spawn(lookup_host("no-such-host.invalid:1"));
            sleep(Duration::from_millis(1)).await;
            let error = timeout(Duration::from_secs(60), lookup)
                .await
                .unwrap()
                .unwrap()
                .unwrap_err();
            assert!(error.to_string().contains("no-such-host.invalid:1"), "{error}");
            // Dropped after the first poll, which is before the result is known unless the resolver was faster.
            {
                let mut lookup = pin!(lookup_host("no-such-host.invalid:1"));
                let _ = poll_once(lookup.as_mut()).await;
            }
            // Connecting to a listener by name.
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect(("localhost", port)).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port);
            quiet().await;
        });
    });
}

/// The peer resets the connection right after it is established.
#[test]
fn a_reset_is_reported() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            for _ in 0..10 {
                let client = TcpStream::connect(addr).await.unwrap();
                let (server, _) = listener.accept().unwrap();
                reset_on_close(&server);
                drop(server);
                let result = timeout(SOON, client.read([0; 4]))
                    .await
                    .expect("the reset is reported")
                    .0;
                if let Err(error) = &result {
                    assert_eq!(windlass::os_code(error), Some(codes::RESET));
                }
                assert_reset(result);
            }
        });
    });
}
