//! Idle keep-alive connections: each holds a descriptor and one read, and nothing is left when they close.
//!
//! A separate binary, since it counts the descriptors of its process. `WINDLASS_TEST_IDLE=9000` sets the number of
//! connections (default 500). The clients run in another process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass::time::sleep;

#[allow(dead_code, reason = "the other tests use the rest")]
mod server;
#[path = "../suite/support.rs"]
mod support;

use server::{Client, start, until};
use support::{allow_all_descriptors, on_every_kernel_driver, open_descriptors, variable};

const ADDR: &str = "WINDLASS_TEST_ADDR";
const WANTED: &str = "WINDLASS_TEST_IDLE";

fn wanted() -> usize {
    variable(WANTED).unwrap_or(500)
}

#[test]
fn idle_connections_leak_nothing() {
    if let Ok(addr) = std::env::var(ADDR) {
        return clients(addr.parse().expect("an address"));
    }
    allow_all_descriptors();
    on_every_kernel_driver(|case| {
        let count = wanted();
        let event_loop = case.event_loop();
        let run = event_loop.run_until_complete(async {
            let (addr, stats) = start().await;
            // One-time allocations happen before the first count.
            let warm = Client::one(addr).await.fetch("/hello", "").await;
            assert_eq!(warm, "hello");
            until("the first connection ends", || stats.ended.get() == 1).await;
            sleep(Duration::from_millis(50)).await;
            let before = open_descriptors();
            let mut process = Command::new(std::env::current_exe().expect("the path of this program"))
                .args(["--exact", "idle_connections_leak_nothing", "--nocapture"])
                .env(ADDR, addr.to_string())
                .env(WANTED, count.to_string())
                .stdout(Stdio::piped())
                .stdin(Stdio::piped())
                .spawn()
                .expect("a process");
            let pipes = open_descriptors() - before;
            for _ in 0..24 {
                // Slow machines take longer.
                let all = || stats.requests.get() > count;
                if all() {
                    break;
                }
                sleep(Duration::from_secs(5).min(Duration::from_millis(count as u64))).await;
            }
            until("all are served", || stats.requests.get() == count + 1).await;
            sleep(Duration::from_millis(300)).await;
            // All are open, and each has one read in flight: no write buffer, no buffer of the pool.
            assert_eq!(open_descriptors(), before + pipes + count);
            let counters = windlass::counters();
            assert!(
                (count..=count + 2).contains(&counters.ops),
                "{} operations for {count} connections",
                counters.ops
            );
            let turns = counters.turns;
            sleep(Duration::from_millis(300)).await;
            let turned = windlass::counters().turns - turns;
            assert!(turned < 50, "{turned} turns of an idle loop");
            // Each client sends one more request, then closes.
            drop(process.stdin.take());
            until("all connections end", || stats.ended.get() == count + 1).await;
            while process.try_wait().expect("it can be asked").is_none() {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(process.wait().expect("it has ended").success(), "the clients failed");
            drop(process);
            assert_eq!(stats.requests.get(), 2 * count + 1);
            assert_eq!(open_descriptors(), before, "a connection is still open");
            until("the reads end", || windlass::counters().ops <= 2).await;
            assert_eq!(stats.failed.get(), 0);
        });
        run.expect("the loop runs");
    });
}

/// Sends one request per connection, waits for the signal, sends another on each, and closes.
fn clients(addr: SocketAddr) {
    allow_all_descriptors();
    let ask = |client: &mut StdStream| {
        client
            .write_all(b"GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .expect("write");
        let mut answer = Vec::new();
        let mut buf = [0; 512];
        while !answer.ends_with(b"hello") {
            let count = client.read(&mut buf).expect("an answer");
            assert!(count > 0, "the server hung up");
            answer.extend_from_slice(&buf[..count]);
        }
    };
    let mut clients: Vec<_> = (0..wanted())
        .map(|_| {
            let mut client = StdStream::connect(addr).expect("connect");
            client
                .set_read_timeout(Some(Duration::from_secs(60)))
                .expect("a timeout");
            ask(&mut client);
            client
        })
        .collect();
    // The signal is the end of standard input.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
    clients.iter_mut().for_each(ask);
}
