//! TCP options: listeners, accepted sockets and connecting sockets have the options that were set.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::time::{Duration, Instant};

use socket2::SockRef;
use windlass::net::{KeepAlive, TcpBuilder, TcpListener, TcpStream};
use windlass::time::{sleep, timeout};

use crate::child::in_own_process;
use crate::support::{AsSocketRef, is_wine, on_every_driver, on_every_kernel_driver, open_descriptors, quiet, turns};

const SOON: Duration = Duration::from_secs(60);

fn times() -> KeepAlive {
    KeepAlive {
        idle: Some(Duration::from_secs(61)),
        interval: Some(Duration::from_secs(17)),
        retries: Some(5),
    }
}

/// Sets every option that listeners and clients share.
fn tuned(builder: TcpBuilder) -> TcpBuilder {
    builder
        .nodelay(true)
        .keepalive(Some(times()))
        .linger(Some(Duration::ZERO))
        .send_buffer(70_000)
        .recv_buffer(60_000)
}

/// Reads the options back from the kernel.
fn assert_tuned(socket: &impl AsSocketRef) {
    let raw = SockRef::from(socket);
    assert!(raw.tcp_nodelay().unwrap() && raw.keepalive().unwrap());
    crate::support::assert_keepalive(&raw, Duration::from_secs(61), Duration::from_secs(17));
    assert_eq!(raw.tcp_keepalive_retries().unwrap(), 5);
    assert_eq!(raw.linger().unwrap(), Some(Duration::ZERO));
    assert!(raw.send_buffer_size().unwrap() >= 70_000);
    // Linux doubles the value; in any case it is far from the default.
    assert!((60_000..=130_000).contains(&raw.recv_buffer_size().unwrap()));
}

async fn connected(listener: &TcpListener, how: TcpBuilder) -> (TcpStream, TcpStream) {
    let client = how.connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = timeout(SOON, listener.accept()).await.expect("a connection").unwrap();
    (client, server)
}

#[test]
fn options_are_set_on_every_socket() {
    if is_wine() {
        return println!("-- SKIPPED: Wine 8 cannot count keep-alive probes");
    }
    on_every_driver(|case| {
        case.run(async {
            let listener = tuned(TcpListener::builder()).listen("127.0.0.1:0").await.unwrap();
            let (client, server) = connected(&listener, tuned(TcpStream::builder())).await;
            for stream in [&client, &server] {
                assert!(stream.nodelay().unwrap());
                assert_eq!(stream.keepalive().unwrap(), Some(times()));
                assert_eq!(stream.linger().unwrap(), Some(Duration::ZERO));
                if case.is_kernel() {
                    assert_tuned(stream);
                }
            }
            if case.is_kernel() {
                assert_tuned(&listener);
            }
            // Options that are not set keep the defaults of std.
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (client, server) = connected(&listener, TcpStream::builder()).await;
            for stream in [&client, &server] {
                assert!(!stream.nodelay().unwrap());
                assert_eq!((stream.keepalive().unwrap(), stream.linger().unwrap()), (None, None));
                // And can be set later.
                stream.set_nodelay(true).unwrap();
                stream.set_keepalive(Some(times())).unwrap();
                assert_eq!(stream.keepalive().unwrap(), Some(times()));
                stream.set_keepalive(None).unwrap();
                assert_eq!(stream.keepalive().unwrap(), None);
                stream.set_ttl(33).unwrap();
                assert_eq!(stream.ttl().unwrap(), 33);
                stream.set_linger(Some(Duration::from_secs(2))).unwrap();
                assert_eq!(stream.linger().unwrap(), Some(Duration::from_secs(2)));
                stream.set_linger(None).unwrap();
                assert_eq!(stream.linger().unwrap(), None);
            }
            if case.is_kernel() {
                assert_eq!(SockRef::from(&client).ttl_v4().unwrap(), 33);
                let theirs = StdListener::bind("127.0.0.1:0").unwrap();
                let (ours, theirs) = (SockRef::from(&listener), SockRef::from(&theirs));
                assert_eq!(ours.reuse_address().unwrap(), theirs.reuse_address().unwrap());
                assert_eq!(ours.recv_buffer_size().unwrap(), theirs.recv_buffer_size().unwrap());
                crate::support::assert_shares_no_port(&ours);
                let off = TcpListener::builder().reuse_address(false).listen("127.0.0.1:0").await;
                assert!(!SockRef::from(&off.unwrap()).reuse_address().unwrap());
            }
        });
    });
}

/// A later value replaces an earlier one.
#[test]
fn a_later_option_replaces_an_earlier_one() {
    on_every_driver(|case| {
        case.run(async {
            let builder = TcpListener::builder()
                .nodelay(true)
                .backlog(5)
                .nodelay(false)
                .keepalive(Some(times()));
            let listener = builder.keepalive(None).listen("127.0.0.1:0").await.unwrap();
            let (_, server) = connected(&listener, TcpStream::builder()).await;
            assert!(!server.nodelay().unwrap());
            assert_eq!(server.keepalive().unwrap(), None);
        });
    });
}

#[cfg(unix)]
#[test]
fn reuse_port_listeners_share_a_port() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let share = || TcpListener::builder().reuse_port(true);
            let first = share().listen("127.0.0.1:0").await.unwrap();
            let addr = first.local_addr().unwrap();
            let error = TcpListener::bind(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            let second = share().listen(addr).await.unwrap();
            assert_eq!(second.local_addr().unwrap(), addr);
            if !cfg!(target_os = "linux") {
                return;
            }
            // Each listener gets some of many connections.
            let clients: Vec<_> = (0..64).map(|_| StdStream::connect(addr).unwrap()).collect();
            let mut accepted = [0, 0];
            while accepted.iter().sum::<usize>() < clients.len() {
                for (count, listener) in accepted.iter_mut().zip([&first, &second]) {
                    while let Ok(one) = timeout(Duration::from_millis(10), listener.accept()).await {
                        one.unwrap();
                        *count += 1;
                    }
                }
            }
            assert!(accepted[0] > 0 && accepted[1] > 0, "{accepted:?}");
        });
    });
}

#[test]
fn ipv6_only_controls_ipv4_connections() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let both = match TcpListener::builder().only_v6(false).listen("[::]:0").await {
                Ok(listener) => listener,
                Err(error) => return println!("-- SKIPPED: no IPv6: {error}"),
            };
            let v4 =
                |listener: &TcpListener| SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()));
            TcpStream::connect(v4(&both)).await.unwrap();
            let alone = TcpListener::builder().only_v6(true).listen("[::]:0").await.unwrap();
            assert!(SockRef::from(&alone).only_v6().unwrap());
            let error = TcpStream::connect(v4(&alone)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            // And IPv4 can use the same port.
            TcpListener::bind(v4(&alone)).await.unwrap();
            // The option has no effect on an IPv4 address.
            TcpListener::builder()
                .only_v6(true)
                .listen("127.0.0.1:0")
                .await
                .unwrap();
            let port = alone.local_addr().unwrap().port();
            let names: [SocketAddr; 2] = [([127, 0, 0, 1], 1).into(), (std::net::Ipv6Addr::LOCALHOST, port).into()];
            let stream = TcpStream::builder().only_v6(true).connect(&names[..]).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), names[1]);
        });
    });
}

#[test]
fn a_client_can_bind_its_local_address() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            // On Linux all of 127.0.0.0/8 is local.
            let from = match cfg!(target_os = "linux") {
                true => SocketAddr::from(([127, 0, 0, 77], 0)),
                false => SocketAddr::from(([127, 0, 0, 1], 0)),
            };
            let client = TcpStream::builder().local(from).connect(addr).await.unwrap();
            assert_eq!(client.local_addr().unwrap().ip(), from.ip());
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            // Not a local address, and one of the other family: errors that say so.
            let v6: SocketAddr = "[::1]:0".parse().unwrap();
            let error = TcpStream::builder().local(v6).connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("family"), "{error}");
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
            if !case.is_kernel() {
                return;
            }
            let foreign: SocketAddr = "192.0.2.7:0".parse().unwrap();
            let error = TcpStream::builder().local(foreign).connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            assert!(error.to_string().contains("192.0.2.7"), "{error}");
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
            // From the loopback no remote address can be reached: the kernel's error, with the address.
            let builder = TcpStream::builder().local(SocketAddr::from(([127, 0, 0, 1], 0)));
            let connecting = timeout(Duration::from_secs(60), builder.connect("192.0.2.1:9")).await;
            let error = connecting.expect("at once").unwrap_err();
            assert!(error.to_string().contains("192.0.2.1:9"), "{error}");
            assert!(windlass::os_code(&error).is_some(), "{error}");
        });
    });
}

#[cfg(unix)]
#[test]
fn invalid_option_values_are_errors() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let nothing = KeepAlive {
                idle: Some(Duration::ZERO),
                ..KeepAlive::default()
            };
            let error = TcpListener::builder()
                .keepalive(Some(nothing))
                .listen("127.0.0.1:0")
                .await
                .unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(crate::support::codes::INVALID));
            assert!(
                error.to_string().contains("127.0.0.1:0") && error.to_string().contains("KeepAlive"),
                "{error}"
            );
            let error = TcpStream::builder()
                .keepalive(Some(nothing))
                .connect(addr)
                .await
                .unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(crate::support::codes::INVALID));
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
            let client = TcpStream::connect(addr).await.unwrap();
            assert_eq!(
                client.set_ttl(0).unwrap_err().raw_os_error(),
                Some(crate::support::codes::INVALID)
            );
            assert_eq!(
                client.set_ttl(256).unwrap_err().raw_os_error(),
                Some(crate::support::codes::INVALID)
            );

            // A value larger than the maximum is clamped to it.
            let huge = TcpListener::builder()
                .backlog(u32::MAX)
                .send_buffer(usize::MAX)
                .recv_buffer(usize::MAX)
                .listen("127.0.0.1:0")
                .await
                .unwrap();
            connected(&huge, TcpStream::builder()).await;
            // A linger of zero is a reset, and half a second is not rounded to zero.
            client.set_linger(Some(Duration::from_millis(500))).unwrap();
            assert_eq!(client.linger().unwrap(), Some(Duration::from_secs(1)));
            client.set_linger(Some(Duration::MAX)).unwrap();
            assert!(client.linger().unwrap() > Some(Duration::from_secs(3_600)));
            client.set_linger(None).unwrap();
        });
    });
}

#[test]
fn a_backlog_has_the_length_that_was_set() {
    on_every_driver(|case| {
        if case.is_kernel() && !cfg!(target_os = "linux") {
            return println!("-- SKIPPED: the length of a backlog differs between systems");
        }
        case.run(async {
            let listener = TcpListener::builder().backlog(2).listen("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let mut held = Vec::new();
            while let Ok(stream) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
                held.push(stream.unwrap());
                assert!(held.len() < 10, "the backlog is not limited");
            }
            // Linux accepts one more than the backlog.
            assert!((2..=3).contains(&held.len()), "{}", held.len());
            // The next connection succeeds when one is accepted.
            let waiting = windlass::spawn(TcpStream::connect(addr));
            turns(3).await;
            for _ in 0..=held.len() {
                timeout(SOON, listener.accept())
                    .await
                    .expect("a pending connection")
                    .unwrap();
            }
            timeout(SOON, waiting).await.expect("a connection").unwrap().unwrap();
        });
    });
}

#[test]
fn a_linger_of_zero_resets() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            for is_builder in [true, false] {
                let how = TcpStream::builder();
                let how = if is_builder {
                    how.linger(Some(Duration::ZERO))
                } else {
                    how
                };
                let (client, server) = connected(&listener, how).await;
                if !is_builder {
                    client.set_linger(Some(Duration::ZERO)).unwrap();
                }
                drop(client);
                let reading = timeout(SOON, server.read([0; 4])).await.expect("a reset");
                crate::support::assert_reset(reading.0);
            }
            // Accepted sockets inherit the option.
            let listener = TcpListener::builder()
                .linger(Some(Duration::ZERO))
                .listen("127.0.0.1:0")
                .await
                .unwrap();
            let (client, server) = connected(&listener, TcpStream::builder()).await;
            drop(server);
            let reading = timeout(SOON, client.read([0; 4])).await.expect("a reset");
            crate::support::assert_reset(reading.0);
        });
    });
}

/// The linger time of a stream whose peer reads nothing.
const LINGER: Duration = Duration::from_secs(60);

/// A stream with unsent bytes and SO_LINGER, whose peer reads nothing.
async fn lingering(way: usize, peer: &mut Vec<StdStream>) -> TcpStream {
    let time = Some(LINGER);
    let stream = match way {
        0 => {
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let stream = TcpStream::builder().linger(time).connect(addr).await.unwrap();
            peer.push(listener.accept().unwrap().0);
            stream
        }
        1 => {
            let listener = TcpListener::builder().linger(time).listen("127.0.0.1:0").await.unwrap();
            peer.push(StdStream::connect(listener.local_addr().unwrap()).unwrap());
            listener.accept().await.unwrap().0
        }
        _ => {
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            peer.push(StdStream::connect(listener.local_addr().unwrap()).unwrap());
            let (stream, _) = listener.accept().unwrap();
            SockRef::from(&stream).set_linger(time).unwrap();
            TcpStream::from_std(stream).unwrap()
        }
    };
    assert_eq!(stream.linger().unwrap(), time);
    while timeout(Duration::from_millis(20), stream.write(vec![7; 100_000]))
        .await
        .is_ok()
    {}
    stream
}

/// Closing may take seconds without blocking the loop: its timers go on, whether the stream was connected, accepted or
/// adopted.
#[test]
fn a_lingering_close_does_not_block_the_loop() {
    if is_wine() {
        // wineserver closes the sockets of all processes and blocks while one lingers.
        return println!("-- SKIPPED: wineserver blocks while a socket lingers");
    }
    in_own_process("tcp_options::a_lingering_close_does_not_block_the_loop", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                for way in 0..3 {
                    let mut peer = Vec::new();
                    let stream = lingering(way, &mut peer).await;
                    quiet().await;
                    let open = open_descriptors();
                    let begin = Instant::now();
                    drop(stream);
                    quiet().await;
                    for _ in 0..10 {
                        sleep(Duration::from_millis(5)).await;
                    }
                    assert!(
                        begin.elapsed() < LINGER / 2,
                        "way {way}: the loop was blocked for {:?}",
                        begin.elapsed()
                    );
                    // It is closed eventually, and the written bytes arrive.
                    let mut peer = peer.remove(0);
                    let reading = std::thread::spawn(move || peer.read_to_end(&mut Vec::new()).unwrap());
                    while open_descriptors() > open.saturating_sub(1) {
                        assert!(begin.elapsed() < LINGER, "way {way}: it is never closed");
                        sleep(Duration::from_millis(10)).await;
                    }
                    assert!(reading.join().unwrap() > 100_000);
                }
            });
        });
    });
}

/// A loop that closes meanwhile neither waits for the linger nor leaks the descriptor.
#[test]
fn a_closing_loop_does_not_wait_for_lingering_sockets() {
    if is_wine() {
        return println!("-- SKIPPED: wineserver blocks while a socket lingers");
    }
    in_own_process(
        "tcp_options::a_closing_loop_does_not_wait_for_lingering_sockets",
        &[],
        || {
            on_every_kernel_driver(|case| {
                let open = open_descriptors();
                let mut peers = Vec::new();
                let begin = case.run(async {
                    // More streams than pool threads.
                    let mut streams = Vec::new();
                    for _ in 0..20 {
                        streams.push(lingering(0, &mut peers).await);
                    }
                    quiet().await;
                    let begin = Instant::now();
                    drop(streams);
                    begin
                });
                let took = begin.elapsed();
                assert!(took < LINGER / 2, "it waited for {took:?}");
                // The closes that had a thread take their full time.
                drop(peers);
                while open_descriptors() > open {
                    assert!(begin.elapsed() < LINGER, "{} too many", open_descriptors() - open);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        },
    );
}
