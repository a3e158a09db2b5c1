//! `AsyncFd`: awaiting the readiness of a descriptor that the runtime does not own.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use windlass::io::AsyncFd;
use windlass::task::yield_now;
use windlass::time::timeout;

use crate::descriptors::{pipe, unix_pair};
use crate::support::{
    Random, on_every_driver, on_every_kernel_driver, pair, poll_once, poll_with, rounds, turns, waker_calling,
};

/// Uses the driver's own sockets, so that this runs on the null driver too.
#[test]
fn a_dropped_wait_leaves_no_operation_and_loses_no_readiness() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        event_loop
            .run_until_complete(async {
                let (client, server) = pair().await;
                let ours = AsyncFd::new(Rc::new(server)).expect("it can be watched");
                let mut random = Random::new(7);
                let mut received = 0;
                for round in 0..rounds().max(20) {
                    let mut waiting = Box::pin(ours.readable());
                    assert!(
                        poll_once(waiting.as_mut()).await.is_pending(),
                        "round {round}: nothing was sent"
                    );
                    // The wait is dropped before it reached the driver, while it is in flight, or after it completed
                    // unobserved.
                    let turned = random.below(3);
                    let sent = turned == 2;
                    if sent {
                        client.write_all(b"x").await.0.expect("write");
                    }
                    turns(turned).await;
                    drop(waiting);
                    if sent {
                        ours.readable().await.expect("still readable");
                        received += ours.get_ref().read(vec![0; 8]).await.0.expect("read");
                    }
                }
                assert!(received > 0);
                while windlass::counters().in_flight > 0 {
                    yield_now().await;
                }
                assert_eq!(windlass::counters().ops, 0);
                // A new wait still works.
                let waiting = windlass::spawn(async move {
                    ours.readable().await.expect("readable");
                    ours.into_inner()
                });
                turns(3).await;
                assert!(!waiting.is_finished());
                client.write_all(b"last").await.0.expect("write");
                let server = waiting.await.expect("no panic");
                assert_eq!(server.read_exact(vec![0; 4]).await.1, b"last");
            })
            .expect("the loop runs");
        assert_eq!(event_loop.counters().stale_completions, 0);
    });
}

#[test]
fn all_waiters_of_a_descriptor_are_woken() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let ours = Rc::new(AsyncFd::new(server).expect("it can be watched"));
            for _ in 0..rounds().min(50) {
                let waiting: Vec<_> = (0..5)
                    .map(|_| {
                        let ours = ours.clone();
                        windlass::spawn(async move { ours.readable().await })
                    })
                    .collect();
                turns(2).await;
                // One waiter in the middle is cancelled.
                waiting[2].cancel();
                turns(2).await;
                client.write_all(b"x").await.0.expect("write");
                for (i, waiting) in waiting.into_iter().enumerate() {
                    let woken = waiting.await;
                    assert_eq!(woken.is_err(), i == 2);
                }
                ours.get_ref().read(vec![0; 8]).await.0.expect("read");
            }
            ours.writable().await.expect("the socket buffer has room");
        });
    });
}

#[test]
fn into_inner_returns_a_descriptor_that_can_be_wrapped_again() {
    on_every_driver(|case| {
        case.run(async {
            let (client, mut server) = pair().await;
            for round in 0..rounds().min(100) {
                let ours = AsyncFd::new(server).expect("it can be watched");
                // In every other round, a wait was started and dropped.
                if round % 2 == 0 {
                    let mut waiting = Box::pin(ours.readable());
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                    turns(round as u64 % 3).await;
                }
                server = ours.into_inner();
                client.write_all(b"x").await.0.expect("write");
                let ours = AsyncFd::new(server).expect("it can be watched again");
                ours.readable().await.expect("readable");
                server = ours.into_inner();
                // The stream can still be used with the loop.
                assert_eq!(server.read(vec![0; 8]).await.0.expect("read"), 1);
            }
        });
    });
}

/// Uses the driver's own sockets, so that this runs on the null driver too.
#[test]
fn a_polled_wait_is_kept_and_wakes_the_last_waker() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let ours = Rc::new(AsyncFd::new(server).expect("it can be watched"));
            let woken = [0, 1].map(|_| Rc::new(Cell::new(0)));
            let wakers = woken.each_ref().map(|woken| {
                let woken = woken.clone();
                waker_calling(move || woken.set(woken.get() + 1))
            });
            for round in 0..rounds().min(50) {
                for waker in &wakers {
                    for _ in 0..3 {
                        let mut cx = Context::from_waker(waker);
                        assert!(ours.poll_readable(&mut cx).is_pending(), "round {round}");
                    }
                    turns(round as u64 % 3).await;
                }
                assert_eq!(windlass::counters().in_flight, 1, "one operation for all polls");
                client.write_all(b"x").await.0.expect("write");
                while woken[1].get() == 0 {
                    yield_now().await;
                }
                assert_eq!(woken.each_ref().map(|woken| woken.replace(0)), [0, 1]);
                // A task polls it now, with its own waker.
                poll_fn(|cx| ours.poll_readable(cx)).await.expect("readable");
                poll_fn(|cx| ours.poll_writable(cx)).await.expect("writable");
                // The state counts: without a read, it is readable again.
                poll_fn(|cx| ours.poll_readable(cx)).await.expect("still readable");
                assert_eq!(ours.get_ref().read(vec![0; 8]).await.0.expect("read"), 1);
            }
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

#[test]
fn both_directions_are_polled_independently() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, two) = unix_pair();
            let (one, mut two) = (Rc::new(AsyncFd::new(one).expect("watched")), two);
            // Fill the socket buffer.
            let filled = loop {
                match one.get_ref().write(&[7; 4096]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                    Err(error) => panic!("{error}"),
                    Ok(_) => {}
                }
            };
            assert!(filled);
            let (reading, writing) = (one.clone(), one.clone());
            let reading = windlass::spawn(async move { poll_fn(|cx| reading.poll_readable(cx)).await });
            let writing = windlass::spawn(async move { poll_fn(|cx| writing.poll_writable(cx)).await });
            turns(3).await;
            assert_eq!(windlass::counters().in_flight, 2);
            assert!(!reading.is_finished() && !writing.is_finished());
            two.write_all(b"x").expect("write");
            reading.await.expect("no panic").expect("readable");
            assert!(!writing.is_finished());
            let mut bytes = vec![0; 1 << 20];
            while two.read(&mut bytes).is_ok() {}
            writing.await.expect("no panic").expect("writable");
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

#[test]
fn dropping_the_owner_cancels_polled_waits() {
    on_every_driver(|case| {
        case.run(async {
            let (client, mut server) = pair().await;
            for round in 0..rounds().min(50) {
                let ours = AsyncFd::new(server).expect("it can be watched");
                let mut cx = Context::from_waker(Waker::noop());
                assert!(ours.poll_readable(&mut cx).is_pending());
                turns(round as u64 % 3).await;
                if round % 4 == 3 {
                    // It has completed, and nothing has taken the result.
                    client.write_all(b"x").await.0.expect("write");
                    turns(3).await;
                }
                server = ours.into_inner();
                if round % 4 == 3 {
                    assert_eq!(server.read(vec![0; 8]).await.0.expect("read"), 1);
                }
                while windlass::counters().in_flight > 0 {
                    yield_now().await;
                }
                assert_eq!(windlass::counters().ops, 0, "round {round}");
            }
        });
    });
}

/// How quinn, for instance, receives.
#[test]
fn a_poll_function_receives_every_datagram() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let ours = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            ours.set_nonblocking(true).expect("non-blocking");
            let peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            peer.connect(ours.local_addr().expect("address")).expect("connect");
            let ours = AsyncFd::new(ours).expect("watched");
            let total = rounds() * 20;
            let sending = windlass::spawn(async move {
                for number in 0..total as u32 {
                    peer.send(&number.to_le_bytes()).expect("send");
                    if number % 3 == 0 {
                        yield_now().await;
                    }
                }
            });
            for expected in 0..total as u32 {
                let received = poll_fn(|cx| {
                    loop {
                        let mut buf = [0; 4];
                        match ours.get_ref().recv(&mut buf) {
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                                ready!(ours.poll_readable(cx)).expect("readable");
                            }
                            result => return Poll::Ready(result.map(|_| u32::from_le_bytes(buf))),
                        }
                    }
                });
                assert_eq!(received.await.expect("receive"), expected);
                if expected % 7 == 0 {
                    yield_now().await;
                }
            }
            sending.await.expect("no panic");
        });
    });
}

#[test]
fn waiting_after_the_loop_is_closed_is_an_error() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (ours, client) = event_loop
            .run_until_complete(async {
                let (client, server) = pair().await;
                (AsyncFd::new(server).expect("it can be watched"), client)
            })
            .expect("the loop runs");
        let waiting = ours.poll_readable(&mut Context::from_waker(Waker::noop()));
        assert!(waiting.is_pending());
        drop(event_loop);
        let polled = ours.poll_readable(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
        let error = case.run(ours.readable()).expect_err("its loop is closed");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
        drop((ours, client));
    });
}

#[test]
fn dropped_waits_lose_no_bytes() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, two) = unix_pair();
            let (writer, reader) = (AsyncFd::new(one).expect("watched"), AsyncFd::new(two).expect("watched"));
            let total = rounds() * 4_000;
            let writing = windlass::spawn(async move {
                let bytes: Vec<u8> = (0..251).cycle().take(10_040).collect();
                let mut sent = 0;
                while sent < total {
                    let at = sent % 251;
                    let rest = &bytes[at..(at + 9_000).min(at + total - sent)];
                    // A write that would have to wait is dropped and begun again.
                    let writing = timeout(
                        Duration::from_micros(50),
                        writer.write_with(|mut stream| stream.write(rest)),
                    );
                    if let Ok(written) = writing.await {
                        sent += written.expect("write");
                    }
                }
            });
            let mut random = Random::new(11);
            let mut received = 0;
            let mut bytes = vec![0; 8_192];
            loop {
                let wanted = 1 + random.below(8_192) as usize;
                let reading = reader.read_with(|mut stream| stream.read(&mut bytes[..wanted]));
                let count = match timeout(Duration::from_micros(random.below(60)), reading).await {
                    Ok(Ok(0)) => break,
                    Ok(count) => count.expect("read"),
                    Err(_) => continue,
                };
                let right = bytes[..count]
                    .iter()
                    .enumerate()
                    .all(|(i, &byte)| byte as usize == (received + i) % 251);
                assert!(right, "after {received} bytes");
                received += count;
            }
            assert_eq!(received, total);
            writing.await.expect("no panic");
        });
    });
}

#[test]
fn read_with_and_write_with_return_the_callers_error() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (reader, writer) = pipe();
            let ours = AsyncFd::new(writer).expect("it can be watched");
            ours.writable().await.expect("the pipe has room");
            drop(reader);
            ours.writable().await.expect("an error counts as writable");
            let error = ours
                .write_with(|mut pipe| pipe.write(b"x"))
                .await
                .expect_err("the reading end is closed");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let tries = Cell::new(0);
            let error = ours
                .read_with(|_| -> io::Result<()> {
                    tries.set(tries.get() + 1);
                    Err(io::Error::other("mine"))
                })
                .await;
            assert_eq!((error.unwrap_err().to_string().as_str(), tries.get()), ("mine", 1));
        });
    });
}

/// As below, but the wait belongs to no task, so no run of the loop has waited for it to complete.
#[test]
fn dropping_outside_of_the_loop_closes_the_descriptor_at_once() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, writer) = pipe();
        let ours = event_loop.run_until_complete(async { AsyncFd::new(reader).expect("it can be watched") });
        let ours = ours.expect("the loop runs");
        let mut waiting = Box::pin(ours.readable());
        assert!(poll_with(Waker::noop(), waiting.as_mut()).is_pending());
        event_loop.turn_nowait().expect("a turn");
        drop(waiting);
        drop(ours);
        let error = (&writer).write(b"x").expect_err("the pipe's other end is closed");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

/// The driver must release the file before the descriptor is closed; otherwise the writer would not get EPIPE.
#[test]
fn dropping_closes_the_descriptor_at_once() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        for inside in [true, false] {
            let (reader, writer) = pipe();
            let begun = Instant::now();
            let number = reader.as_raw_fd();
            let ours = event_loop
                .run_until_complete(async {
                    let ours = AsyncFd::new(reader).expect("it can be watched");
                    assert_eq!(ours.as_raw_fd(), number);
                    let mut waiting = Box::pin(ours.readable());
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                    turns(3).await;
                    drop(waiting);
                    if inside {
                        drop(ours);
                        turns(3).await;
                        return None;
                    }
                    Some(ours)
                })
                .expect("the loop runs");
            // The loop is not running any more.
            drop(ours);
            let error = loop {
                match (&writer).write(b"x") {
                    Ok(_) => assert!(
                        begun.elapsed() < Duration::from_secs(60),
                        "inside {inside}: the pipe is still open"
                    ),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        panic!("inside {inside}: the pipe filled up although its reading end was dropped")
                    }
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    });
}

#[test]
fn two_wrappers_and_a_reader_share_a_descriptor() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, two) = unix_pair();
            let (ours, also) = (one, Rc::new(two));
            let ours = Rc::new(ours);
            let first = AsyncFd::new(also.clone()).expect("it can be watched");
            let second = AsyncFd::new(also.clone()).expect("it can be watched");
            let calls = Rc::new(Cell::new(0));
            windlass::add_reader(&also, {
                let calls = calls.clone();
                move || calls.set(calls.get() + 1)
            })
            .expect("it can be watched");
            let waiting = windlass::spawn(async move {
                second.readable().await.expect("readable");
                second
            });
            turns(3).await;
            // Dropping one wrapper or reader keeps the registration of the others.
            drop(first);
            assert!(windlass::remove_reader(&also));
            turns(3).await;
            (&*ours).write_all(b"x").expect("the socket buffer has room");
            let second = timeout(Duration::from_secs(60), waiting)
                .await
                .expect("in time")
                .expect("no panic");
            let third = AsyncFd::new(also.clone()).expect("it can be watched");
            drop(second);
            (&*also).read_exact(&mut [0]).expect("the byte has arrived");
            let mut waiting = Box::pin(third.readable());
            assert!(poll_once(waiting.as_mut()).await.is_pending());
            turns(3).await;
            (&*ours).write_all(b"y").expect("the socket buffer has room");
            timeout(Duration::from_secs(60), waiting)
                .await
                .expect("in time")
                .expect("readable");
            assert_eq!(calls.get(), 0);
        });
    });
}
