//! Submission and completion rings that are too small for the load: nothing is lost.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use windlass::EventLoop;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;

use crate::support::{Case, on_every_driver, on_every_kernel_driver, pair_of, rounds, settle};

/// (submission entries, completion entries)
const SIZES: [(u32, u32); 5] = [(1, 1), (1, 2), (1, 8), (8, 8), (8, 16)];

fn small_loop(case: Case, (ring, completions): (u32, u32)) -> EventLoop {
    let builder = case.builder().ring_entries(ring).completion_entries(completions);
    builder.build().expect("a small ring")
}

/// Connections between std's blocking sockets and a loop: (std's end, the loop's end).
fn std_pairs(count: usize) -> Vec<(StdStream, StdStream)> {
    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("an address");
    let pair = |_| {
        let client = StdStream::connect(addr).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        (client, server)
    };
    (0..count).map(pair).collect()
}

/// Many pairs echo messages at once.
async fn echo_pairs(pairs: usize, messages: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let mut tasks = Vec::new();
    for _ in 0..pairs {
        let (client, server) = pair_of(&listener).await;
        tasks.push(windlass::spawn(async move {
            loop {
                let (result, bytes) = server.read(Vec::with_capacity(64)).await;
                if result.expect("read") == 0 {
                    return;
                }
                server.write_all(bytes).await.0.expect("write");
            }
        }));
        tasks.push(windlass::spawn(async move {
            for number in 0..messages as u64 {
                client.write_all(number.to_ne_bytes()).await.0.expect("write");
                let (result, bytes) = client.read_exact([0; 8]).await;
                result.expect("read");
                assert_eq!(u64::from_ne_bytes(bytes), number);
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[test]
fn many_pairs_echo_on_small_rings() {
    on_every_driver(|case| {
        let (pairs, messages) = if cfg!(miri) { (3, 3) } else { (100, 10) };
        for size in SIZES {
            let event_loop = small_loop(case, size);
            event_loop
                .run_until_complete(echo_pairs(pairs, messages))
                .expect("the loop runs");
            let counters = event_loop.counters();
            assert_eq!((counters.in_flight, counters.stale_completions), (0, 0), "{size:?}");
            if case.has_rings() {
                assert!(
                    counters.driver.sq_full > 0,
                    "{size:?} was large enough: {:?}",
                    counters.driver
                );
            }
        }
    });
}

/// Thousands of operations start in one turn.
#[test]
fn thousands_of_operations_start_in_one_turn() {
    on_every_driver(|case| {
        let count = rounds().min(2_000) * 2;
        for size in SIZES {
            let event_loop = small_loop(case, size);
            let completed = event_loop.run_until_complete(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
                let (client, server) = pair_of(&listener).await;
                let (client, server) = (Rc::new(client), Rc::new(server));
                // Reads on one stream wait in its I/O queue; connects share no queue and all start at once.
                let addr = listener.local_addr().expect("an address");
                let connects: Vec<_> = (0..count / 20)
                    .map(|_| windlass::spawn(TcpStream::connect(addr)))
                    .collect();
                let reads: Vec<_> = (0..count)
                    .map(|_| {
                        let server = server.clone();
                        windlass::spawn(async move { server.read_exact([0u8; 1]).await.0 })
                    })
                    .collect();
                for _ in 0..count {
                    let client = client.clone();
                    windlass::spawn(async move { client.write_all([7u8]).await.0.expect("write") });
                }
                for connecting in connects {
                    connecting.await.expect("no panic").expect("connect");
                    listener.accept().await.expect("accept");
                }
                let mut completed = 0;
                for read in reads {
                    read.await.expect("no panic").expect("read");
                    completed += 1;
                }
                // The bytes of a write may arrive before its completion.
                settle().await;
                completed
            });
            assert_eq!(completed.expect("the loop runs"), count);
            assert_eq!(event_loop.counters().in_flight, 0);
            if case.has_rings() {
                assert!(event_loop.counters().driver.sq_full > 0, "{size:?} was large enough");
            }
        }
    });
}

/// A ring that is submitted in the middle of a turn does not starve managed reads: returned buffers are available, and
/// completions have space.
#[test]
fn a_full_ring_does_not_starve_managed_reads() {
    on_every_kernel_driver(|case| {
        let builder = case
            .builder()
            .ring_entries(8)
            .completion_entries(256)
            .managed_buffers(64, 1024);
        let event_loop = builder.build().expect("a loop");
        let run = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let mut tasks = Vec::new();
            for _ in 0..40 {
                let (client, server) = pair_of(&listener).await;
                tasks.push(windlass::spawn(async move {
                    for _ in 0..100 {
                        let bytes = server.read_managed().await.expect("read");
                        server.write_all(bytes).await.0.expect("write");
                    }
                }));
                tasks.push(windlass::spawn(async move {
                    for _ in 0..100 {
                        client.write_all([7u8; 100]).await.0.expect("write");
                        client.read_exact([0u8; 100]).await.0.expect("read");
                    }
                }));
            }
            for task in tasks {
                task.await.expect("no panic");
            }
        });
        run.expect("the loop runs");
        let counters = event_loop.counters().driver;
        let has_buffers = !case.has_rings() || event_loop.describe().features.contains(&"buffer ring");
        assert!(counters.pool_empty == 0 || !has_buffers, "{counters:?}");
        assert_eq!(counters.overflows, 0, "{counters:?}");
    });
}

/// Starts a read on each stream and returns the count of completed reads.
fn start_reads(event_loop: &EventLoop, servers: Vec<StdStream>) -> Rc<Cell<usize>> {
    let completed = Rc::new(Cell::new(0));
    for server in servers {
        let completed = completed.clone();
        event_loop.spawn(async move {
            let server = TcpStream::from_std(server).expect("a socket");
            let (result, bytes) = server.read(Vec::with_capacity(8)).await;
            assert_eq!((result.expect("read"), &bytes[..]), (1, &[7][..]));
            completed.set(completed.get() + 1);
        });
    }
    completed
}

/// Runs the loop until all reads are submitted.
fn wait_until_submitted(event_loop: &EventLoop, count: usize) {
    let result = event_loop.run_until_complete(async {
        while windlass::counters().in_flight < count {
            yield_now().await;
        }
        // The next turn submits the operations that the last one started.
        yield_now().await;
        yield_now().await;
    });
    result.expect("the loop runs");
}

/// 2,000 reads complete between two polls of a completion ring with 1 to 16 entries. A loop that always has tasks ready
/// must still fetch the overflow: nothing else makes it enter the kernel.
#[test]
fn a_busy_loop_drains_the_overflow() {
    on_every_kernel_driver(|case| {
        const COUNT: usize = 2_000;
        for size in SIZES {
            let (mut clients, servers): (Vec<_>, Vec<_>) = std_pairs(COUNT).into_iter().unzip();
            let event_loop = small_loop(case, size);
            let completed = start_reads(&event_loop, servers);
            wait_until_submitted(&event_loop, COUNT);
            for client in &mut clients {
                client.write_all(&[7]).expect("write");
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            let busy = async {
                while completed.get() < COUNT {
                    assert!(
                        Instant::now() < deadline,
                        "only {} reads completed on {size:?}",
                        completed.get()
                    );
                    yield_now().await;
                }
            };
            event_loop.run_until_complete(busy).expect("the loop runs");
            let counters = event_loop.counters();
            assert!(
                counters.driver.overflows > 0 || !case.has_rings(),
                "{size:?}: {:?}",
                counters.driver
            );
            assert_eq!((counters.in_flight, counters.stale_completions), (0, 0));
        }
    });
}

/// The same with a loop that blocks.
#[test]
fn a_sleeping_loop_drains_the_overflow() {
    on_every_kernel_driver(|case| {
        const COUNT: usize = 2_000;
        for size in SIZES {
            let (mut clients, servers): (Vec<_>, Vec<_>) = std_pairs(COUNT).into_iter().unzip();
            let event_loop = small_loop(case, size);
            let completed = start_reads(&event_loop, servers);
            wait_until_submitted(&event_loop, COUNT);
            for client in &mut clients {
                client.write_all(&[7]).expect("write");
            }
            let mut turns = 0;
            while completed.get() < COUNT {
                event_loop.turn().expect("the loop runs");
                turns += 1;
                assert!(
                    turns < 10 * COUNT,
                    "only {} reads completed on {size:?}",
                    completed.get()
                );
            }
            let overflows = event_loop.counters().driver.overflows;
            assert!(overflows > 0 || !case.has_rings(), "{size:?}");
        }
    });
}

/// Accepts that overflow the completion ring lose no connection.
#[test]
fn an_accept_survives_the_overflow() {
    on_every_kernel_driver(|case| {
        const COUNT: usize = 500;
        for size in SIZES {
            let event_loop = small_loop(case, size);
            let result = event_loop.run_until_complete(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
                let addr = listener.local_addr().expect("an address");
                // An accept is in flight before the first client connects.
                let _ = windlass::time::timeout(Duration::from_millis(1), listener.accept()).await;
                let clients: Vec<_> = (0..COUNT).map(|_| StdStream::connect(addr).expect("connect")).collect();
                let mut expected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
                let mut seen = Vec::new();
                for _ in 0..COUNT {
                    seen.push(listener.accept().await.expect("accept").1);
                }
                expected.sort();
                seen.sort();
                assert!(seen == expected, "a connection was lost or accepted twice on {size:?}");
            });
            result.expect("the loop runs");
        }
    });
}

/// A cancel is a submission too, so it can find the ring full. A lost cancel would leave the read in flight, which
/// keeps the descriptor open, and the peer would never see EOF.
#[test]
fn a_cancel_survives_a_full_ring() {
    on_every_kernel_driver(|case| {
        const COUNT: usize = 200;
        for size in SIZES {
            let (clients, servers): (Vec<_>, Vec<_>) = std_pairs(COUNT).into_iter().unzip();
            let event_loop = small_loop(case, size);
            let reads: Vec<_> = servers
                .into_iter()
                .map(|server| {
                    event_loop.spawn(async move {
                        let server = TcpStream::from_std(server).expect("a socket");
                        server.read(Vec::with_capacity(8)).await.0
                    })
                })
                .collect();
            wait_until_submitted(&event_loop, COUNT);
            let before = event_loop.counters().driver.sq_full;
            // All in one turn: the futures and their streams are dropped at once.
            for read in &reads {
                read.cancel();
            }
            let joined = event_loop.run_until_complete(async {
                let all = async {
                    for read in reads {
                        assert!(read.await.expect_err("it was cancelled").is_cancelled());
                    }
                };
                windlass::time::timeout(Duration::from_secs(60), all).await
            });
            joined.expect("the loop runs").expect("every cancelled read completes");
            let was_full = event_loop.counters().driver.sq_full > before;
            assert!(was_full || !case.has_rings(), "{size:?} was large enough");
            assert_eq!(event_loop.counters().ops, 0);
            for mut client in clients {
                client
                    .set_read_timeout(Some(Duration::from_secs(60)))
                    .expect("a timeout");
                let mut rest = Vec::new();
                client
                    .read_to_end(&mut rest)
                    .expect("the peer sees the end of the stream");
            }
        }
    });
}

/// Dropped reads, then a dropped stream, in the same turn, on the smallest ring: the peer sees EOF.
#[test]
fn a_stream_dropped_after_its_reads_closes_on_the_smallest_ring() {
    on_every_driver(|case| {
        let event_loop = small_loop(case, (1, 1));
        let result = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            for _ in 0..rounds() / 5 {
                let (client, server) = pair_of(&listener).await;
                for _ in 0..3 {
                    let read = server.read(Vec::with_capacity(8));
                    let _ = windlass::time::timeout(Duration::ZERO, read).await;
                }
                drop(server);
                let read = client.read(Vec::with_capacity(8));
                let (result, _) = windlass::time::timeout(Duration::from_secs(60), read)
                    .await
                    .expect("the peer sees the end of the stream");
                assert_eq!(result.expect("read"), 0);
            }
        });
        result.expect("the loop runs");
        assert_eq!(event_loop.counters().in_flight, 0);
    });
}

#[test]
fn rings_of_every_size_can_be_created() {
    on_every_kernel_driver(|case| {
        for (ring, completions) in [(1, 1), (3, 5), (4096, 4096), (u32::MAX, u32::MAX)] {
            let event_loop = small_loop(case, (ring, completions));
            event_loop.run_until_complete(echo_pairs(2, 2)).expect("the loop runs");
        }
    });
}
