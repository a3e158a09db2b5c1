//! Batches of datagrams: what single receives and sends promise holds for batches, with and without the system's calls
//! for several datagrams, and with datagrams that the kernel splits (GSO) and coalesces (GRO).

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::net::{RecvBatch, SendBatch, UdpSocket};
use windlass::time::timeout;
use windlass::{Builder, EventLoop};

use crate::support::{
    Case, Random, codes, on_every_driver, on_every_exact_driver, on_every_kernel_driver, poll_once, rounds, turns,
};

/// A deadline for events that should come at once.
const SOON: Duration = Duration::from_secs(60);

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: timed out"),
    }
}

async fn local() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.expect("bind")
}

fn addr(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().expect("an address")
}

/// Bytes that identify a datagram.
fn marked(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31) as u8).collect()
}

/// Receives exactly `count` datagrams, in batches.
async fn receive(socket: &UdpSocket, batch: &mut RecvBatch, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut received = Vec::new();
    while received.len() < count {
        let len = soon("a batch", socket.recv_batch(batch)).await.expect("receive");
        assert!(len > 0 && len == batch.len() && len == batch.iter().count());
        for datagram in &*batch {
            assert!(!datagram.is_truncated());
            received.push((datagram.from(), datagram.to_vec()));
        }
    }
    assert_eq!(received.len(), count);
    received
}

async fn assert_nothing_waits(socket: &UdpSocket) {
    let mut batch = RecvBatch::new(8, 64);
    let more = timeout(Duration::from_millis(20), socket.recv_batch(&mut batch)).await;
    assert!(more.is_err(), "a datagram came twice: {batch:?}");
}

/// Loops with and without the driver's calls for batches.
fn loops(case: Case) -> Vec<EventLoop> {
    let builders = [Some(case.builder()), without_batches(case)];
    let build = |builder: Builder| builder.build().expect("a loop");
    builders.into_iter().flatten().map(build).collect()
}

/// A driver that has no calls for batches: the loop receives and sends datagrams one by one.
#[cfg(feature = "sim")]
fn without_batches(case: Case) -> Option<Builder> {
    let quirks = windlass::sim::Quirks::none(1).attempts_served(0.0);
    let builder = case.builder();
    (!case.has_quirks()).then(|| builder.wrap_driver(move |inner| quirks.wrap(inner)))
}

#[cfg(not(feature = "sim"))]
fn without_batches(_case: Case) -> Option<Builder> {
    None
}

fn on_every_loop(body: impl AsyncFn(Case) + Send + Clone + 'static) {
    on_every_driver(move |case| {
        for event_loop in loops(case) {
            event_loop.run_until_complete(body(case)).expect("the loop runs");
        }
    });
}

#[test]
fn batches_keep_order_boundaries_and_senders() {
    on_every_loop(async |_| {
        let (socket, senders) = (local().await, [local().await, local().await]);
        let sizes = [3, 0, 1, 1_472, 0, 1_473, 4_000, 2];
        let (mut sending, mut receiving) = (SendBatch::new(), RecvBatch::new(5, 4_000));
        for round in 0..10 {
            let mut expected = Vec::new();
            for (number, &len) in sizes.iter().enumerate() {
                let sender = &senders[(number / 3) % 2];
                sending.push(&marked(number + round, len), addr(&socket));
                expected.push((addr(sender), marked(number + round, len)));
                if number % 3 == 2 || number + 1 == sizes.len() {
                    let count = sending.len();
                    assert_eq!(sender.send_batch(&mut sending).await.unwrap(), count);
                    assert!(sending.is_empty());
                }
            }
            assert_eq!(receive(&socket, &mut receiving, sizes.len()).await, expected);
        }
        assert_eq!(senders[0].send_batch(&mut sending).await.unwrap(), 0, "an empty batch");
        assert_nothing_waits(&socket).await;
    });
}

#[test]
fn a_batch_takes_everything_that_waits() {
    on_every_exact_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            let mut batch = RecvBatch::new(4, 16);
            assert!(batch.is_empty() && batch.iter().next().is_none());
            for number in 0..6u8 {
                one.send_to(vec![number], addr(&other)).await.0.unwrap();
            }
            // As many as fit, then the rest.
            assert_eq!(soon("four", other.recv_batch(&mut batch)).await.unwrap(), 4);
            assert_eq!(soon("two", other.recv_batch(&mut batch)).await.unwrap(), 2);
            assert_eq!(batch.iter().map(|datagram| datagram[0]).collect::<Vec<_>>(), [4, 5]);
            // Those behind the first, which the call has waited for.
            let other = Rc::new(other);
            let waiting = windlass::spawn({
                let other = other.clone();
                async move {
                    let mut batch = RecvBatch::new(8, 16);
                    other.recv_batch(&mut batch).await.unwrap();
                    batch.len()
                }
            });
            turns(3).await;
            let mut sending = SendBatch::new();
            for number in 0..5u8 {
                sending.push(&[number], addr(&other));
            }
            one.send_batch(&mut sending).await.unwrap();
            assert_eq!(soon("the waiting one", waiting).await.unwrap(), 5);
            batch.clear();
            assert!(batch.is_empty());
        });
    });
}

#[test]
fn truncation_is_reported_for_each_datagram() {
    on_every_loop(async |_| {
        let (one, other) = (local().await, local().await);
        let lens = [9, 10, 11, 0, 500, 1];
        for &len in &lens {
            one.send_to(marked(7, len), addr(&other)).await.0.unwrap();
        }
        let (mut batch, mut at) = (RecvBatch::new(4, 10), 0);
        while at < lens.len() {
            soon("a batch", other.recv_batch(&mut batch)).await.unwrap();
            for datagram in &batch {
                assert_eq!(datagram.bytes(), &marked(7, lens[at])[..lens[at].min(10)]);
                assert_eq!((datagram.is_truncated(), datagram.from()), (lens[at] > 10, addr(&one)));
                at += 1;
            }
        }
    });
}

/// Receives are dropped at random points: batches of different sizes, and single ones in between. At most eight
/// datagrams are on their way, so that no receive buffer is full.
#[test]
fn dropped_batches_lose_no_datagram() {
    on_every_loop(async |_| {
        let mut random = Random::new(11);
        let socket = local().await;
        let senders = [local().await, local().await];
        let mut expected: VecDeque<(SocketAddr, Vec<u8>)> = VecDeque::new();
        let mut batches = [
            RecvBatch::new(1, 700),
            RecvBatch::new(3, 900),
            RecvBatch::new(32, 1_500),
        ];
        let (mut number, mut dropped, mut batched) = (0, 0, 0);
        while number < rounds() || !expected.is_empty() {
            let batch = &mut batches[random.below(3) as usize];
            let is_single = random.below(4) == 0;
            let mut receiving = pin!(async {
                if is_single {
                    let (result, bytes) = socket.recv_from(Vec::with_capacity(1_500)).await;
                    return result.map(|(_, from)| vec![(from, bytes)]);
                }
                socket.recv_batch(batch).await?;
                let copied = batch.iter().map(|datagram| (datagram.from(), datagram.to_vec()));
                Ok::<_, io::Error>(copied.collect())
            });
            let mut received = Poll::Pending;
            // The receive is in flight when the datagrams arrive, or starts after them.
            if random.below(2) == 0 {
                received = poll_once(receiving.as_mut()).await;
            }
            if number < rounds() && expected.len() < 8 {
                for _ in 0..random.below(4) {
                    let sender = &senders[random.below(2) as usize];
                    let bytes = marked(number, [0, 4, 4, 700][random.below(4) as usize]);
                    sender.send_to(bytes.clone(), addr(&socket)).await.0.unwrap();
                    expected.push_back((addr(sender), bytes));
                    number += 1;
                }
            }
            for _ in 0..random.below(4) {
                if received.is_pending() {
                    received = poll_once(receiving.as_mut()).await;
                    turns(random.below(2)).await;
                }
            }
            match received {
                Poll::Ready(datagrams) => {
                    let datagrams = datagrams.unwrap();
                    batched += usize::from(datagrams.len() > 1);
                    for datagram in datagrams {
                        assert_eq!(Some(datagram), expected.pop_front());
                    }
                }
                Poll::Pending => dropped += 1,
            }
        }
        assert!(dropped > 0, "nothing was dropped");
        println!("{dropped} receives dropped, {batched} batches of several datagrams");
        assert_nothing_waits(&socket).await;
    });
}

/// A datagram that a dropped batch has received is also returned by other kinds of receives.
#[test]
fn a_dropped_batch_leaves_its_datagram_to_any_receive() {
    on_every_loop(async |_| {
        let (one, other) = (local().await, local().await);
        for round in 0..30 {
            let mut batch = RecvBatch::new(4, 100);
            {
                let mut receiving = pin!(other.recv_batch(&mut batch));
                assert!(poll_once(receiving.as_mut()).await.is_pending());
                one.send_to(marked(round, 20), addr(&other)).await.0.unwrap();
            }
            let bytes = match round % 3 {
                0 => soon("managed", other.recv_managed()).await.unwrap().to_vec(),
                1 => soon("lent", other.recv_from(Vec::with_capacity(100))).await.1,
                _ => receive(&other, &mut batch, 1).await.remove(0).1,
            };
            assert_eq!(bytes, marked(round, 20));
        }
    });
}

/// A dropped send never sends a datagram twice, and loses at most the one that it was waiting for.
#[test]
fn dropped_sends_send_nothing_twice() {
    on_every_loop(async |_| {
        let (one, other) = (local().await, local().await);
        let (mut receiving, mut random) = (RecvBatch::new(32, 16), Random::new(3));
        let (mut drops, mut lost) = (0, 0);
        for _ in 0..rounds().min(200) {
            let mut batch = SendBatch::new();
            for number in 0..8u8 {
                batch.push(&[number], addr(&other));
            }
            let mut may_be_lost = 0;
            while !batch.is_empty() {
                let mut sending = pin!(one.send_batch(&mut batch));
                for _ in 0..random.below(3) {
                    if poll_once(sending.as_mut()).await.is_ready() {
                        break;
                    }
                    turns(1).await;
                }
                may_be_lost += 1;
            }
            one.send_to([u8::MAX], addr(&other)).await.0.unwrap();
            let mut numbers = Vec::new();
            while numbers.last() != Some(&u8::MAX) {
                soon("a batch", other.recv_batch(&mut receiving)).await.unwrap();
                numbers.extend(receiving.iter().map(|datagram| datagram[0]));
            }
            assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
            assert!(numbers.len() + may_be_lost > 8, "{numbers:?} after {may_be_lost} drops");
            drops += may_be_lost - 1;
            lost += 9 - numbers.len();
        }
        println!("{drops} sends dropped, {lost} datagrams of them not sent");
    });
}

#[test]
fn a_failed_datagram_stays_in_the_batch() {
    on_every_loop(async |_| {
        let (one, other) = (local().await, local().await);
        let (to, mut batch) = (addr(&other), SendBatch::new());
        batch.push(b"first", to);
        batch.push(b"second", to);
        batch.push(&vec![0; 65_508], to);
        batch.push(b"last", to);
        let error = one.send_batch(&mut batch).await.unwrap_err();
        assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
        assert!(error.to_string().contains(&to.to_string()), "{error}");
        assert_eq!(batch.len(), 2, "what was sent has left the batch");
        assert_eq!(
            windlass::os_code(&one.send_batch(&mut batch).await.unwrap_err()),
            Some(codes::TOO_LONG)
        );
        assert!(batch.skip_first());
        // More can be added to what is left.
        batch.push(b"", to);
        assert_eq!(one.send_batch(&mut batch).await.unwrap(), 2);
        assert!(!batch.skip_first());
        let received = receive(&other, &mut RecvBatch::new(8, 100), 4).await;
        let texts: Vec<&[u8]> = received.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(texts, [&b"first"[..], b"second", b"last", b""]);
        // Without an address the socket must be connected.
        batch.push(b"to the peer", None);
        one.send_batch(&mut batch).await.unwrap_err();
        one.connect(to).await.unwrap();
        assert_eq!(one.send_batch(&mut batch).await.unwrap(), 1);
        receive(&other, &mut RecvBatch::new(1, 100), 1).await;
    });
}

#[test]
fn a_refusal_is_reported_once() {
    if crate::support::is_wine() {
        return println!("-- SKIPPED: Wine reports no refusal");
    }
    on_every_loop(async |_| {
        let (one, closed) = (local().await, local().await);
        let nowhere = addr(&closed);
        drop(closed);
        crate::support::quiet().await;
        one.connect(nowhere).await.unwrap();
        let mut batch = RecvBatch::new(4, 100);
        one.send("ping").await.0.unwrap();
        let error = soon("refused", one.recv_batch(&mut batch)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
        // The socket keeps working.
        let there = UdpSocket::bind(nowhere).await.unwrap();
        there.send_to("pong", addr(&one)).await.0.unwrap();
        assert_eq!(receive(&one, &mut batch, 1).await, [(nowhere, b"pong".to_vec())]);
    });
}

/// Segmented sends arrive as separate datagrams, whether the kernel splits them or the loop does.
#[test]
fn segmented_sends_arrive_as_datagrams() {
    on_every_loop(async |_| {
        let (one, other) = (local().await, local().await);
        let mut batch = RecvBatch::new(16, 2_000);
        assert!([1, 64].contains(&one.max_gso_segments()));
        // Fewer and more than one message of the kernel; not a multiple; exactly one; shorter; empty.
        for (len, segment_size) in [(3_000, 1_000), (1_301, 10), (2_500, 1_200), (7, 7), (5, 9), (0, 4)] {
            let (sent, bytes) = one.send_to_segmented(marked(1, len), segment_size, addr(&other)).await;
            assert_eq!((sent.unwrap(), bytes.len()), (len, len));
            let count = len.div_ceil(segment_size).max(1);
            let received = receive(&other, &mut batch, count).await;
            let lens: Vec<usize> = received.iter().map(|(_, bytes)| bytes.len()).collect();
            assert!(lens[..count - 1].iter().all(|len| *len == segment_size), "{lens:?}");
            let joined: Vec<u8> = received.into_iter().flat_map(|(_, bytes)| bytes).collect();
            assert!(joined == marked(1, len), "{len} in {segment_size}");
        }
        // In a batch, between others.
        one.connect(addr(&other)).await.unwrap();
        let mut sending = SendBatch::new();
        sending.push(b"before", None);
        sending.push_segmented(b"onetwothree", 3, None);
        sending.push(b"after", None);
        assert_eq!(sending.len(), 6);
        assert_eq!(one.send_batch(&mut sending).await.unwrap(), 6);
        let received = receive(&other, &mut batch, 6).await;
        let texts: Vec<&[u8]> = received.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(texts, [&b"before"[..], b"one", b"two", b"thr", b"ee", b"after"]);
        assert_eq!(one.send_segmented("abc", 2).await.0.unwrap(), 3);
        receive(&other, &mut batch, 2).await;
        let error = one.send_segmented("abc", 0).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        // A datagram that is longer than the loopback's MTU of 65,536 bytes less the headers.
        let error = one.send_segmented(vec![0; 70_000], 65_508).await.0.unwrap_err();
        assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
        assert_nothing_waits(&other).await;
    });
}

/// Coalesced datagrams are returned one by one.
#[test]
fn coalesced_datagrams_are_separate() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            if let Err(error) = other.set_gro(true) {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                return println!("-- SKIPPED: {error}");
            }
            let mut batch = RecvBatch::new(8, 65_535);
            for dropped in [false, true] {
                if dropped {
                    let mut receiving = pin!(other.recv_batch(&mut batch));
                    assert!(poll_once(receiving.as_mut()).await.is_pending());
                    // The operation is in the kernel when the datagrams arrive.
                    turns(3).await;
                    let sent = one.send_to_segmented(marked(2, 950), 100, addr(&other)).await.0;
                    assert_eq!(sent.unwrap(), 950);
                } else {
                    one.send_to_segmented(marked(2, 950), 100, addr(&other))
                        .await
                        .0
                        .unwrap();
                }
                one.send_to("", addr(&other)).await.0.unwrap();
                // It would return several datagrams as one.
                let error = other.recv_from(vec![0; 2_000]).await.0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert_eq!(other.recv_managed().await.unwrap_err().kind(), ErrorKind::InvalidInput);
                let (mut bytes, mut lens, mut messages) = (Vec::new(), Vec::new(), 0);
                while lens.len() < 11 {
                    soon("a batch", other.recv_batch(&mut batch)).await.unwrap();
                    lens.extend(batch.iter().map(|datagram| datagram.len()));
                    assert!(batch.iter().all(|datagram| datagram.from() == addr(&one)));
                    for message in batch.coalesced() {
                        messages += 1;
                        bytes.extend_from_slice(message.bytes());
                        assert!([100, 1].contains(&message.segment_size()) || message.bytes().len() <= 100);
                    }
                }
                assert_eq!(lens, [100, 100, 100, 100, 100, 100, 100, 100, 100, 50, 0]);
                assert_eq!(bytes, marked(2, 950));
                if one.max_gso_segments() > 1 {
                    assert_eq!(messages, 2, "the loopback splits what the receiver could take whole");
                }
            }
        });
    });
}

/// A receive in flight has no space for the segment size: it would return coalesced datagrams as one.
#[test]
fn gro_is_not_turned_on_under_a_receive() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            {
                let mut receiving = pin!(other.recv_from(vec![0; 9]));
                assert!(poll_once(receiving.as_mut()).await.is_pending());
                assert_eq!(other.set_gro(true).unwrap_err().kind(), ErrorKind::WouldBlock);
                one.send_to("abc", addr(&other)).await.0.unwrap();
                assert_eq!(soon("a datagram", receiving).await.0.unwrap().0, 3);
            }
            if let Err(error) = other.set_gro(true) {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
        });
    });
}

#[test]
fn sockets_share_a_port() {
    on_every_driver(|case| {
        case.run(async {
            let builder = UdpSocket::builder().reuse_port(true);
            let one = match builder.clone().bind("127.0.0.1:0").await {
                Ok(socket) => socket,
                Err(error) => {
                    assert!(cfg!(windows) && error.kind() == ErrorKind::Unsupported, "{error}");
                    return println!("-- SKIPPED: {error}");
                }
            };
            let here = addr(&one);
            let other = builder.clone().bind(here).await.unwrap();
            assert_eq!(
                UdpSocket::bind(here).await.unwrap_err().kind(),
                ErrorKind::AddrInUse,
                "a socket without the option"
            );
            let mut counts = [0; 2];
            let count = if cfg!(miri) { 8 } else { 64 };
            // Linux chooses by the sender's address: with 64 senders, each socket gets some.
            for number in 0..count {
                let sender = local().await;
                sender.send_to(marked(number, 8), here).await.0.unwrap();
                let (mut first, mut second) = (RecvBatch::new(4, 16), RecvBatch::new(4, 16));
                let (first, second) = (one.recv_batch(&mut first), other.recv_batch(&mut second));
                match soon("either", windlass::task::select(first, second)).await {
                    windlass::task::Either::Left(received) => counts[0] += received.unwrap(),
                    windlass::task::Either::Right(received) => counts[1] += received.unwrap(),
                }
            }
            assert_eq!(counts.iter().sum::<usize>(), count);
            if case.is_kernel() && cfg!(target_os = "linux") {
                assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
            }
            // A connected socket gets the datagrams of its peer.
            let peer = local().await;
            let connected = builder.local(here).connect(addr(&peer)).await.unwrap();
            assert_eq!((addr(&connected), connected.peer_addr().unwrap()), (here, addr(&peer)));
            if cfg!(target_os = "linux") {
                peer.send_to("for the connected one", here).await.0.unwrap();
                receive(&connected, &mut RecvBatch::new(2, 32), 1).await;
            }
        });
    });
}

#[test]
fn a_builder_sets_options() {
    on_every_driver(|case| {
        case.run(async {
            let server = UdpSocket::builder()
                .reuse_address(true)
                .broadcast(true)
                .recv_buffer(60_000)
                .send_buffer(50_000)
                .bind("127.0.0.1:0")
                .await
                .unwrap();
            assert!(server.broadcast().unwrap());
            let client = UdpSocket::builder().connect(addr(&server)).await.unwrap();
            assert_eq!(client.peer_addr().unwrap(), addr(&server));
            client.send("hello").await.0.unwrap();
            let received = receive(&server, &mut RecvBatch::new(1, 16), 1).await;
            assert_eq!(received[0].1, b"hello");
            let wrong = UdpSocket::builder().local((Ipv6Addr::LOCALHOST, 0).into());
            let error = wrong.connect(addr(&server)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        });
    });
}

/// A name may resolve to IPv6 first, also on an IPv4 socket.
#[test]
fn a_name_is_used_with_the_sockets_family() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            let port = addr(&other).port();
            let addrs: [SocketAddr; 2] = [(Ipv6Addr::LOCALHOST, port).into(), (Ipv4Addr::LOCALHOST, port).into()];
            one.send_to("both", &addrs[..]).await.0.unwrap();
            one.send_to_segmented("seg", 2, &addrs[..]).await.0.unwrap();
            let received = receive(&other, &mut RecvBatch::new(4, 16), 3).await;
            assert_eq!(received[0].1, b"both");
            // No address of this family: the error of the first.
            one.send_to("none", &addrs[..1]).await.0.unwrap_err();
        });
    });
}

/// Datagrams that always wait do not starve other tasks.
#[test]
fn batches_spend_the_tasks_budget() {
    on_every_loop(async |_| {
        let socket = local().await;
        let here = addr(&socket);
        let other = windlass::spawn(async {
            let mut polls = 0usize;
            loop {
                windlass::task::yield_now().await;
                polls += 1;
                if polls == 3 {
                    return;
                }
            }
        });
        let (mut sending, mut receiving) = (SendBatch::new(), RecvBatch::new(8, 16));
        for _ in 0..1_000 {
            // Two of them: after a batch of one, the next call would wait.
            sending.push(b"again", here);
            sending.push(b"and again", here);
            socket.send_batch(&mut sending).await.unwrap();
            socket.recv_batch(&mut receiving).await.unwrap();
            if other.is_finished() {
                return;
            }
        }
        panic!("the other task did not run");
    });
}

#[test]
fn a_batch_on_a_closed_loop_is_an_error() {
    on_every_driver(|case| {
        let socket = case.run(local());
        case.run(async move {
            let mut sending = SendBatch::new();
            sending.push(b"any", SocketAddr::from(([127, 0, 0, 1], 9)));
            let errors = [
                socket.recv_batch(&mut RecvBatch::new(2, 8)).await.unwrap_err(),
                socket.send_batch(&mut sending).await.unwrap_err(),
                socket.send_to_segmented("any", 1, "127.0.0.1:9").await.0.unwrap_err(),
            ];
            for error in errors {
                assert!(error.to_string().contains("the event loop has closed"), "{error}");
            }
            assert_eq!(sending.len(), 1);
        });
    });
}
