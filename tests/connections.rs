//! Ten thousand open connections on one loop, idle and active. The clients run in another process, because each process
//! has its own descriptor limit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass::net::TcpListener;
use windlass::time::{sleep, timeout};

#[path = "suite/support.rs"]
mod support;

use support::{allow_all_descriptors, assert_idle, on_every_kernel_driver, open_descriptors, variable};

const ADDR: &str = "WINDLASS_TEST_ADDR";
const COUNT: &str = "WINDLASS_TEST_COUNT";
const WANTED: usize = 10_000;
/// The descriptors that each process needs besides its connections.
const OTHERS: usize = 200;

/// The number of possible connections to one address and port: each needs a local port on the client side.
fn free_ports() -> usize {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|end| end.parse::<usize>().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if first <= last => last - first,
        _ => WANTED * 2,
    }
}

#[test]
fn ten_thousand_connections_idle_and_echo() {
    if let Ok(addr) = std::env::var(ADDR) {
        return clients(addr.parse().expect("an address"));
    }
    on_every_kernel_driver(|case| {
        let limit = (allow_all_descriptors() - OTHERS).min(free_ports() * 3 / 4);
        let count = WANTED.min(limit);
        if count < WANTED {
            println!("-- ONLY {count} connections: limits of this machine");
        }
        // The one-time cost of the first loop of a process is not a leak.
        drop(case.run(support::pair()));
        let before = open_descriptors();
        let event_loop = case.event_loop();
        let with_loop = open_descriptors();
        let result = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let mut process = Command::new(std::env::current_exe().expect("the path of this program"))
                .args(["--exact", "ten_thousand_connections_idle_and_echo", "--nocapture"])
                .env(ADDR, addr.to_string())
                .env(COUNT, count.to_string())
                .stdout(Stdio::null())
                .stdin(Stdio::piped())
                .spawn()
                .expect("a process");
            let mut served = Vec::with_capacity(count);
            for _ in 0..count {
                let accepted = timeout(Duration::from_secs(60), listener.accept()).await;
                let (stream, _) = accepted.expect("a connection is missing").expect("accept");
                served.push(windlass::spawn(async move {
                    let mut bytes = 0;
                    loop {
                        let received = stream.read_managed().await.expect("read");
                        if received.is_empty() {
                            return bytes;
                        }
                        bytes += received.len();
                        stream.write_all(received).await.0.expect("write");
                    }
                }));
            }
            // All connections are open at once: the clients start to send only when signalled.
            assert!(open_descriptors() >= before + count);
            assert_sleeping().await;
            drop(process.stdin.take());
            for task in served {
                assert_eq!(task.await.expect("no panic"), ROUNDS * 4);
            }
            while process.try_wait().expect("it can be asked").is_none() {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(process.wait().expect("it has ended").success(), "the clients failed");
        });
        result.expect("the loop runs");
        let counters = event_loop.counters();
        assert_eq!((counters.in_flight, counters.ops, counters.tasks), (0, 0, 0));
        assert_eq!(counters.stale_completions, 0);
        // On Windows mio has one handle for every 32 sockets, and caches some.
        if cfg!(unix) || case.name != "reactor" {
            assert_eq!(open_descriptors(), with_loop, "a connection is still open");
        }
        drop(event_loop);
        assert_eq!(open_descriptors(), before);
    });
}

/// While the clients are silent, the loop sleeps.
async fn assert_sleeping() {
    sleep(Duration::from_millis(100)).await;
    if variable::<u32>("WINDLASS_TEST_ITIMER").is_some_and(|on| on > 0) {
        return println!("-- NOT COUNTED: signals end its sleeps");
    }
    assert_idle().await;
}

const ROUNDS: usize = 3;

/// Connects all clients, waits for the signal, then in each round all send their number and all read the echo.
fn clients(addr: SocketAddr) {
    allow_all_descriptors();
    let count: u32 = std::env::var(COUNT)
        .ok()
        .and_then(|count| count.parse().ok())
        .expect("a number");
    let connect = |_| {
        let client = StdStream::connect(addr).expect("connect");
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        client
    };
    let mut clients: Vec<_> = (0..count).map(connect).collect();
    // The signal is the end of standard input.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
    for _ in 0..ROUNDS {
        for (number, client) in (0u32..).zip(&mut clients) {
            client.write_all(&number.to_ne_bytes()).expect("write");
        }
        for (number, client) in (0u32..).zip(&mut clients) {
            let mut echo = [0; 4];
            client.read_exact(&mut echo).expect("an echo");
            assert_eq!(u32::from_ne_bytes(echo), number, "bytes of another connection");
        }
    }
}
