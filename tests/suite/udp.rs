//! UDP: each datagram arrives whole, once, in order and with its sender, also when receives are dropped. Compared with
//! std.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::net::UdpSocket;
use windlass::time::{sleep, timeout};

use crate::support::{
    Random, assert_same, codes, on_every_driver, on_every_kernel_driver, poll_once, rounds, turns, uninterrupted,
};

/// A deadline for events that should come at once.
const SOON: Duration = Duration::from_secs(60);

/// The largest payload of an IPv4 datagram. Not every system allows it by default, and Miri takes a minute for it.
const LARGEST: usize = match (cfg!(miri), cfg!(target_os = "linux")) {
    (true, _) => 2_000,
    (false, true) => 65_507,
    (false, false) => 9_000,
};

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

fn std_local() -> StdSocket {
    let socket = StdSocket::bind("127.0.0.1:0").expect("bind");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    socket
}

/// Bytes that identify a datagram.
fn marked(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31) as u8).collect()
}

/// The ways to receive.
#[derive(Clone, Copy, Debug)]
enum Way {
    Lent,
    Managed,
}

const WAYS: [Way; 2] = [Way::Lent, Way::Managed];

async fn receive(socket: &UdpSocket, way: Way) -> io::Result<(SocketAddr, Vec<u8>)> {
    match way {
        Way::Lent => {
            let (result, bytes) = socket.recv_from(Vec::with_capacity(65_536)).await;
            result.map(|(count, from)| {
                assert_eq!(count, bytes.len());
                (from, bytes)
            })
        }
        Way::Managed => {
            let datagram = socket.recv_managed().await?;
            assert!(!datagram.is_truncated());
            Ok((datagram.from(), datagram.to_vec()))
        }
    }
}

#[test]
fn datagrams_keep_their_boundaries() {
    on_every_driver(|case| {
        let event_loop = case.builder().managed_buffers(8, 65_536).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            for way in WAYS {
                let (one, other) = (local().await, local().await);
                let sizes = [0, 1, 2, 0, 1_472, 1_473, LARGEST.min(8_999), 0, LARGEST];
                // One at a time, and several that are queued.
                for (number, &len) in sizes.iter().enumerate() {
                    let (sent, _) = one.send_to(marked(number, len), addr(&other)).await;
                    assert_eq!(sent.unwrap(), len);
                    let (from, bytes) = soon("one", receive(&other, way)).await.unwrap();
                    assert_eq!((from, bytes.len()), (addr(&one), len), "{way:?}");
                    assert!(bytes == marked(number, len), "{way:?}: not what was sent");
                }
                for (number, &len) in sizes.iter().enumerate().take(8) {
                    one.send_to(marked(number, len), addr(&other)).await.0.unwrap();
                }
                for (number, &len) in sizes.iter().enumerate().take(8) {
                    let (_, bytes) = soon("several", receive(&other, way)).await.unwrap();
                    assert!(bytes == marked(number, len), "{way:?}: {len}, not {}", bytes.len());
                }
            }
        });
        result.expect("the loop runs");
    });
}

#[test]
fn datagrams_go_to_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (ours, theirs) = (local().await, std_local());
            let their_addr = theirs.local_addr().unwrap();
            for len in [0, 1, 100, 9_000, LARGEST] {
                let (sent, back) = ours.send_to(marked(1, len), their_addr).await;
                assert_eq!((sent.unwrap(), back), (len, marked(1, len)));
                let mut buf = vec![0; 65_536];
                let (count, from) = uninterrupted(|| theirs.recv_from(&mut buf)).unwrap();
                assert_eq!((count, from), (len, addr(&ours)));
                assert!(buf[..count] == marked(1, len));
                theirs.send_to(&marked(2, len), addr(&ours)).unwrap();
                let (from, bytes) = soon("from std", receive(&ours, Way::Lent)).await.unwrap();
                assert!((from, bytes) == (their_addr, marked(2, len)), "{len}");
            }
            // With every kind of address; the buffer is returned.
            let port = their_addr.port();
            ours.send_to("a", their_addr.to_string()).await.0.unwrap();
            ours.send_to("b", (Ipv4Addr::LOCALHOST, port)).await.0.unwrap();
            ours.send_to("c", ("localhost", port)).await.0.ok();
            let (sent, buf) = ours.send_to(String::from("d"), &[their_addr][..]).await;
            assert_eq!((sent.unwrap(), buf.as_str()), (1, "d"));
        });
    });
}

#[test]
fn a_connected_socket_receives_only_from_its_peer() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other, stranger) = (local().await, local().await, local().await);
            let error = one.send("x").await.0.unwrap_err();
            if case.is_kernel() {
                assert_same("send", Err::<usize, _>(error), std_local().send(b"x"));
            }
            assert_eq!(one.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
            one.connect(addr(&other)).await.unwrap();
            other.connect(addr(&one)).await.unwrap();
            assert_eq!(one.peer_addr().unwrap(), addr(&other));
            assert_eq!(one.send("ping").await.0.unwrap(), 4);
            stranger.send_to("not for you", addr(&one)).await.0.unwrap();
            let (count, buf) = soon("ping", other.recv(vec![0; 16])).await;
            assert_eq!(&buf[..count.unwrap()], b"ping");
            other.send("").await.0.unwrap();
            other.send("pong").await.0.unwrap();
            // An empty datagram is not EOF.
            assert_eq!(soon("empty", one.recv(vec![0; 16])).await.0.unwrap(), 0);
            let datagram = soon("pong", one.recv_managed()).await.unwrap();
            assert_eq!((&*datagram, datagram.from()), (&b"pong"[..], addr(&other)));
            let text = format!("{one:?}");
            assert!(text.contains(&addr(&one).to_string()) && text.contains(&addr(&other).to_string()));
            // It can be connected again.
            one.connect(addr(&stranger)).await.unwrap();
            one.send("hello").await.0.unwrap();
            let (result, _) = soon("hello", stranger.recv_from(vec![0; 16])).await;
            assert_eq!(result.unwrap(), (5, addr(&one)));
        });
    });
}

#[test]
fn a_datagram_that_is_too_long_is_an_error() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            let to = addr(&other);
            let (result, buf) = one.send_to(vec![0; 65_508], to).await;
            let error = result.unwrap_err();
            assert_eq!(buf.len(), 65_508, "the buffer is returned");
            assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
            assert!(error.to_string().contains(&to.to_string()), "{error}");
            one.connect(to).await.unwrap();
            let error = one.send(vec![0; 1 << 20]).await.0.unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
            assert!(error.to_string().contains(&to.to_string()), "{error}");
            // Nothing of it was sent, and the socket still works.
            one.send("short").await.0.unwrap();
            assert_eq!(soon("short", other.recv(vec![0; 16])).await.0.unwrap(), 5);
        });
    });
}

#[test]
fn truncation_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.builder().managed_buffers(4, 64).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            let (one, other) = (local().await, local().await);
            let (from, to) = (addr(&one), addr(&other));
            for len in [11, 65, LARGEST.min(5_000)] {
                for number in 0..3 {
                    one.send_to(marked(number, len), to).await.0.unwrap();
                }
                let (result, buf) = soon("lent", other.recv_from(Vec::with_capacity(10))).await;
                let error = result.unwrap_err();
                assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
                assert!(error.to_string().contains("10 bytes"), "{error}");
                assert_eq!(buf, marked(0, len)[..10], "the prefix is missing");
                let error = soon("recv", other.recv([0; 10])).await.0.unwrap_err();
                assert_eq!(windlass::os_code(&error), Some(codes::TOO_LONG), "{error}");
                // A buffer of the pool has 64 bytes.
                let datagram = soon("managed", other.recv_managed()).await.unwrap();
                assert_eq!(datagram.from(), from);
                let is_truncated = datagram.is_truncated();
                let bytes = datagram.into_bytes();
                // Without a pool, as on an old kernel, it is received into a heap buffer, which is large enough for
                // any.
                let most = if bytes.is_pooled() { 64 } else { 65_536 };
                assert_eq!(is_truncated, len > most, "{len}");
                assert_eq!(&*bytes, &marked(2, len)[..len.min(most)]);
            }
            // A datagram that exactly fits is whole, and so is the next one.
            one.send_to(marked(4, 64), to).await.0.unwrap();
            one.send_to(marked(5, 10), to).await.0.unwrap();
            assert!(!soon("just fits", other.recv_managed()).await.unwrap().is_truncated());
            let (result, buf) = soon("just fits", other.recv_from([0; 10])).await;
            assert_eq!((result.unwrap(), &buf[..]), ((10, from), &marked(5, 10)[..]));
            // A buffer without capacity is an error, and consumes no datagram.
            one.send_to("still here", to).await.0.unwrap();
            assert_eq!(
                other.recv_from(Vec::new()).await.0.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            assert_eq!(soon("still here", other.recv([0; 10])).await.0.unwrap(), 10);
        });
        result.expect("the loop runs");
    });
}

/// Truncation is also reported for the bytes of a dropped receive.
#[test]
fn truncation_of_a_dropped_receive_is_reported() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = (local().await, local().await);
            for _ in 0..20 {
                {
                    let mut receiving = pin!(other.recv_from(Vec::with_capacity(100)));
                    assert!(poll_once(receiving.as_mut()).await.is_pending());
                    one.send_to(marked(3, 50), addr(&other)).await.0.unwrap();
                }
                // Fifty bytes were received already or wait in the kernel: they do not fit either way.
                let (result, buf) = soon("truncated", other.recv_from(Vec::with_capacity(10))).await;
                assert_eq!(windlass::os_code(&result.unwrap_err()), Some(codes::TOO_LONG));
                assert_eq!(buf, marked(3, 50)[..10]);
                one.send_to("next", addr(&other)).await.0.unwrap();
                assert_eq!(
                    soon("next", other.recv_from(vec![0; 10])).await.0.unwrap(),
                    (4, addr(&one))
                );
            }
        });
    });
}

#[test]
fn an_empty_pool_falls_back_to_the_heap() {
    on_every_driver(|case| {
        let event_loop = case.builder().managed_buffers(1, 256).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            let (one, other) = (local().await, local().await);
            for number in 0..5 {
                one.send_to(marked(number, 100), addr(&other)).await.0.unwrap();
            }
            let mut held = Vec::new();
            for number in 0..5 {
                let datagram = soon("held", other.recv_managed()).await.unwrap();
                assert_eq!(datagram.from(), addr(&one));
                assert_eq!(&*datagram, marked(number, 100));
                held.push(datagram.into_bytes());
            }
            assert!(held.iter().filter(|bytes| bytes.is_pooled()).count() <= 1);
            // A heap buffer is large enough for any datagram.
            one.send_to(marked(7, LARGEST), addr(&other)).await.0.unwrap();
            let datagram = soon("large", other.recv_managed()).await.unwrap();
            assert!(!datagram.is_truncated() && *datagram == marked(7, LARGEST));
            // A held buffer can be sent directly.
            for bytes in held {
                one.send_to(bytes, addr(&other)).await.0.unwrap();
                assert_eq!(soon("again", other.recv(vec![0; 256])).await.0.unwrap(), 100);
            }
        });
        result.expect("the loop runs");
    });
}

/// Receives are dropped at random points, in every way of receiving, with datagrams of all sizes from two senders.
#[test]
fn dropped_receives_lose_no_datagram() {
    on_every_driver(|case| {
        let event_loop = case.builder().managed_buffers(2, 2_048).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            let mut random = Random::new(5);
            let socket = local().await;
            let senders = [local().await, local().await];
            let mut expected: VecDeque<(SocketAddr, Vec<u8>)> = VecDeque::new();
            let mut number = 0;
            let mut dropped = 0;
            while number < rounds() || !expected.is_empty() {
                let way = WAYS[random.below(2) as usize];
                let mut receiving = pin!(receive(&socket, way));
                let mut received = Poll::Pending;
                // The receive is in flight when the datagrams arrive, or starts after them.
                if random.below(2) == 0 {
                    received = poll_once(receiving.as_mut()).await;
                }
                if number < rounds() && expected.len() < 8 {
                    for _ in 0..random.below(3) {
                        let sender = &senders[random.below(2) as usize];
                        let len = [0, 4, 4, 700][random.below(4) as usize];
                        let bytes = marked(number, len);
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
                    Poll::Ready(datagram) => assert_eq!(Some(datagram.unwrap()), expected.pop_front(), "{way:?}"),
                    Poll::Pending => dropped += 1,
                }
            }
            assert!(dropped > 0, "nothing was dropped");
            let more = timeout(Duration::from_millis(20), socket.recv_from([0; 16])).await;
            assert!(more.is_err(), "a datagram came twice: {more:?}");
        });
        result.expect("the loop runs");
    });
}

#[test]
fn a_connected_socket_gets_connection_refused() {
    if crate::support::is_wine() {
        return println!("-- SKIPPED: Wine reports no refusal");
    }
    on_every_driver(|case| {
        case.run(async {
            let (one, closed) = (local().await, local().await);
            let nowhere = addr(&closed);
            drop(closed);
            turns(2).await;
            one.connect(nowhere).await.unwrap();
            one.send("ping").await.0.unwrap();
            let error = soon("lent", one.recv(vec![0; 16])).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(windlass::os_code(&error), Some(codes::REFUSED));
            assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
            one.send("ping").await.0.unwrap();
            let error = soon("managed", one.recv_managed()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
            // A pending receive fails too, and the socket keeps working.
            let one = Rc::new(one);
            let waiting = windlass::spawn({
                let one = one.clone();
                async move { one.recv(vec![0; 16]).await.0 }
            });
            turns(3).await;
            one.send("hello?").await.0.unwrap();
            let error = soon("waiting", waiting).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let there = UdpSocket::bind(nowhere).await.unwrap();
            one.send("now?").await.0.unwrap();
            assert_eq!(soon("now?", there.recv(vec![0; 16])).await.0.unwrap(), 4);
            // An unconnected socket gets no error.
            let (free, closed) = (local().await, local().await);
            let nowhere = addr(&closed);
            drop(closed);
            turns(2).await;
            for _ in 0..3 {
                free.send_to("hello?", nowhere).await.0.unwrap();
            }
            let received = timeout(Duration::from_millis(20), free.recv_from(vec![0; 16])).await;
            assert!(received.is_err(), "{received:?}");
        });
    });
}

#[test]
fn unusable_addresses_are_errors() {
    on_every_driver(|case| {
        case.run(async {
            let socket = local().await;
            let here = addr(&socket);
            let error = UdpSocket::bind(here).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            assert_eq!(windlass::os_code(&error), Some(codes::IN_USE));
            assert!(error.to_string().contains(&here.to_string()), "{error}");
            for wrong in ["127.0.0.1", "", ":", "127.0.0.1:99999", "[::1]"] {
                let (result, buf) = socket.send_to("x", wrong).await;
                assert_eq!(
                    (result.unwrap_err().kind(), buf),
                    (ErrorKind::InvalidInput, "x"),
                    "{wrong}"
                );
                assert_eq!(
                    UdpSocket::bind(wrong).await.unwrap_err().kind(),
                    ErrorKind::InvalidInput
                );
                assert_eq!(socket.connect(wrong).await.unwrap_err().kind(), ErrorKind::InvalidInput);
            }
            let none: &[SocketAddr] = &[];
            assert_eq!(
                socket.send_to("x", none).await.0.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            if !case.is_kernel() {
                return;
            }
            // A host name that does not exist; the resolver may report it in several ways.
            let error = socket.send_to("x", "no-such-host.invalid:9").await.0.unwrap_err();
            assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
            // The other family, and from the loopback to a remote address: as std, and with the address.
            let theirs = std_local();
            for wrong in ["[::1]:9", "192.0.2.1:9"] {
                let error = socket.send_to("x", wrong).await.0.unwrap_err();
                assert!(error.to_string().contains(wrong), "{error}");
                assert_same(wrong, Err(error), theirs.send_to(b"x", wrong));
                let error = socket.connect(wrong).await.unwrap_err();
                assert!(error.to_string().contains(wrong), "{error}");
                assert_same(wrong, Err(error), theirs.connect(wrong));
            }
            if crate::support::is_wine() {
                return println!("-- SKIPPED: Wine binds to any address");
            }
            let error = UdpSocket::bind("192.0.2.1:0").await.unwrap_err();
            assert!(error.to_string().contains("192.0.2.1:0"), "{error}");
            assert_same(
                "bind",
                Err(error),
                StdSocket::bind("192.0.2.1:0").map(|_| unreachable!()).map(|_: ()| ()),
            );
        });
    });
}

#[test]
fn options_read_back_as_set() {
    on_every_driver(|case| {
        case.run(async {
            let mut sockets = vec![local().await];
            match UdpSocket::bind("[::1]:0").await {
                Ok(socket) => sockets.push(socket),
                Err(error) => println!("-- SKIPPED for IPv6: {error}"),
            }
            for socket in sockets {
                let is_v4 = addr(&socket).is_ipv4();
                socket.set_ttl(7).unwrap();
                assert_eq!(socket.ttl().unwrap(), 7);
                socket.set_multicast_ttl(9).unwrap();
                assert_eq!(socket.multicast_ttl().unwrap(), 9);
                assert!(socket.multicast_loop().unwrap());
                socket.set_multicast_loop(false).unwrap();
                assert!(!socket.multicast_loop().unwrap());
                assert!(!socket.broadcast().unwrap());
                socket.set_broadcast(true).unwrap();
                assert!(socket.broadcast().unwrap());
                socket.set_send_buffer(50_000).unwrap();
                socket.set_recv_buffer(60_000).unwrap();
                if !case.is_kernel() {
                    continue;
                }
                let raw = socket2::SockRef::from(&socket);
                assert!(raw.broadcast().unwrap());
                assert!(raw.send_buffer_size().unwrap() >= 50_000 && raw.recv_buffer_size().unwrap() >= 60_000);
                if is_v4 {
                    assert_eq!((raw.ttl_v4().unwrap(), raw.multicast_ttl_v4().unwrap()), (7, 9));
                    assert!(!raw.multicast_loop_v4().unwrap());
                } else {
                    assert_eq!(
                        (raw.unicast_hops_v6().unwrap(), raw.multicast_hops_v6().unwrap()),
                        (7, 9)
                    );
                    assert!(!raw.multicast_loop_v6().unwrap());
                }
                assert_eq!(
                    socket.set_ttl(300).unwrap_err().raw_os_error(),
                    Some(codes::INVALID),
                    "a TTL out of range"
                );
                // A size above the system's maximum is clamped, and does not wrap around.
                socket.set_recv_buffer(usize::MAX).unwrap();
                assert!(raw.recv_buffer_size().unwrap() >= 60_000);
                socket.set_recv_buffer((1 << 32) + 1).unwrap();
                assert!(raw.recv_buffer_size().unwrap() >= 60_000, "the length wrapped around");
            }
        });
    });
}

#[test]
fn a_broadcast_must_be_enabled() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (socket, theirs) = (local().await, std_local());
            let broadcast = "255.255.255.255:9";
            let error = socket.send_to("x", broadcast).await.0.unwrap_err();
            assert!(error.to_string().contains(broadcast), "{error}");
            assert_same(broadcast, Err(error), theirs.send_to(b"x", broadcast));
            if !cfg!(target_os = "linux") {
                return println!("-- SKIPPED: the loopback's broadcast address is Linux's");
            }
            let listener = UdpSocket::bind("0.0.0.0:0").await.unwrap();
            let all = SocketAddr::from(([127, 255, 255, 255], addr(&listener).port()));
            assert_eq!(
                socket.send_to("x", all).await.0.unwrap_err().kind(),
                ErrorKind::PermissionDenied
            );
            socket.set_broadcast(true).unwrap();
            socket.send_to("to all", all).await.0.unwrap();
            let datagram = soon("to all", listener.recv_managed()).await.unwrap();
            assert_eq!((&*datagram, datagram.from()), (&b"to all"[..], addr(&socket)));
        });
    });
}

#[test]
fn multicast_groups_are_joined_and_left() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (group, interface) = (Ipv4Addr::new(239, 255, 77, 66), Ipv4Addr::LOCALHOST);
            let listener = UdpSocket::bind("0.0.0.0:0").await.unwrap();
            let to = SocketAddr::from((group, addr(&listener).port()));
            let speaker = local().await;
            let error = listener.leave_multicast_v4(group, interface).unwrap_err();
            assert!(error.to_string().contains("239.255.77.66"), "{error}");
            let error = listener
                .join_multicast_v4(Ipv4Addr::new(10, 0, 0, 1), interface)
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            if let Err(error) = listener.join_multicast_v4(group, interface) {
                return println!("-- SKIPPED: no multicast on the loopback: {error}");
            }
            speaker.set_multicast_interface_v4(interface).unwrap();
            if let Err(error) = speaker.send_to("to the group", to).await.0 {
                return println!("-- SKIPPED: no multicast on the loopback: {error}");
            }
            let datagram = soon("to the group", listener.recv_managed()).await.unwrap();
            assert_eq!((&*datagram, datagram.from()), (&b"to the group"[..], addr(&speaker)));
            listener.leave_multicast_v4(group, interface).unwrap();
            speaker.send_to("after leaving", to).await.0.unwrap();
            let received = timeout(Duration::from_millis(50), listener.recv_managed()).await;
            assert!(received.is_err(), "{received:?}");

            let group: Ipv6Addr = "ff02::77:66".parse().unwrap();
            let Ok(listener) = UdpSocket::bind("[::]:0").await else {
                return println!("-- SKIPPED: no IPv6");
            };
            // The loopback is the first interface.
            if let Err(error) = listener.join_multicast_v6(group, 1) {
                return println!("-- SKIPPED: no IPv6 multicast on the loopback: {error}");
            }
            let speaker = UdpSocket::bind("[::1]:0").await.unwrap();
            speaker.set_multicast_interface_v6(1).unwrap();
            let to = SocketAddr::from((group, addr(&listener).port()));
            if let Err(error) = speaker.send_to("to the group", to).await.0 {
                return println!("-- SKIPPED: no IPv6 multicast on the loopback: {error}");
            }
            let datagram = soon("to the group", listener.recv_managed()).await.unwrap();
            assert_eq!(&*datagram, b"to the group");
            listener.leave_multicast_v6(group, 1).unwrap();
            let error = listener.leave_multicast_v6(group, 1).unwrap_err();
            assert!(error.to_string().contains("ff02::77:66"), "{error}");
        });
    });
}

#[test]
fn a_socket_converts_to_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (ours, theirs) = (local().await, std_local());
            let here = addr(&ours);
            // A receive is in flight, or its datagram is unread.
            {
                let mut receiving = pin!(ours.recv_from([0; 16]));
                assert!(poll_once(receiving.as_mut()).await.is_pending());
                theirs.send_to(b"first", here).unwrap();
            }
            let refused = ours.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock, "{refused}");
            let ours = refused.into_inner();
            let (result, buf) = soon("first", ours.recv_from([0; 16])).await;
            assert_eq!(
                (result.unwrap(), &buf[..5]),
                ((5, theirs.local_addr().unwrap()), &b"first"[..])
            );
            theirs.send_to(b"second", here).unwrap();
            let ours = ours.into_std().unwrap();
            let mut buf = [0; 16];
            assert_eq!(ours.recv_from(&mut buf).unwrap().0, 6);
            assert_eq!(ours.recv_from(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            let ours = UdpSocket::from_std(ours).unwrap();
            theirs.send_to(b"third", here).unwrap();
            assert_eq!(soon("third", ours.recv(vec![0; 16])).await.0.unwrap(), 5);
        });
    });
}

/// An edge-triggered event covers any number of datagrams. Each of them is received, with and without waiting first.
#[test]
fn one_readiness_event_delivers_every_datagram() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut random = Random::new(9);
            let (ours, theirs) = (Rc::new(local().await), std_local());
            let here = addr(&ours);
            for round in 0..rounds().min(300) {
                let waiting = windlass::spawn({
                    let ours = ours.clone();
                    let way = WAYS[round % 2];
                    async move { receive(&ours, way).await.unwrap().1 }
                });
                if random.below(2) == 0 {
                    // The receive waits in the kernel by then, and the readiness event was consumed.
                    sleep(Duration::from_micros(100)).await;
                }
                let count = 1 + random.below(6) as usize;
                for number in 0..count {
                    // Much shorter than the buffer.
                    theirs.send_to(&marked(number, number), here).unwrap();
                }
                assert_eq!(soon("the first", waiting).await.unwrap(), marked(0, 0));
                for number in 1..count {
                    let way = WAYS[random.below(2) as usize];
                    let (_, bytes) = soon("one of several", receive(&ours, way)).await.unwrap();
                    assert_eq!(bytes, marked(number, number));
                }
            }
        });
    });
}

/// One task receives while others send through the same socket; two waiting receives get one datagram each, in FIFO
/// order.
#[test]
fn a_socket_is_shared_by_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let (server, client) = (Rc::new(local().await), Rc::new(local().await));
            let count = rounds().min(500);
            let echo = windlass::spawn({
                let server = server.clone();
                async move {
                    for _ in 0..count {
                        let datagram = server.recv_managed().await.unwrap();
                        let from = datagram.from();
                        server.send_to(datagram.into_bytes(), from).await.0.unwrap();
                    }
                }
            });
            let to = addr(&server);
            for number in 0..count {
                let sending = windlass::spawn({
                    let client = client.clone();
                    async move { client.send_to(marked(number, 32), to).await.0.unwrap() }
                });
                let (from, bytes) = soon("echo", receive(&client, WAYS[number % 2])).await.unwrap();
                assert_eq!((from, bytes), (to, marked(number, 32)));
                assert_eq!(sending.await.unwrap(), 32);
            }
            echo.await.unwrap();

            let waiting = [0, 1].map(|_| {
                let server = server.clone();
                windlass::spawn(async move { receive(&server, Way::Lent).await.unwrap().1 })
            });
            turns(2).await;
            client.send_to("first", to).await.0.unwrap();
            client.send_to("second", to).await.0.unwrap();
            for (waiting, text) in waiting.into_iter().zip(["first", "second"]) {
                assert_eq!(soon(text, waiting).await.unwrap(), text.as_bytes());
            }
        });
    });
}

/// A socket that is dropped with a pending receive is closed, and its address can be bound again.
#[test]
fn a_dropped_socket_frees_its_address() {
    on_every_driver(|case| {
        case.run(async {
            let socket = local().await;
            let here = addr(&socket);
            {
                let mut receiving = pin!(socket.recv_from([0; 16]));
                assert!(poll_once(receiving.as_mut()).await.is_pending());
                turns(2).await;
            }
            drop(socket);
            crate::support::quiet().await;
            UdpSocket::bind(here).await.unwrap();
        });
    });
}

#[test]
fn a_socket_whose_loop_has_closed_returns_an_error() {
    on_every_driver(|case| {
        let socket = case.run(local());
        case.run(async move {
            let errors = [
                socket.recv_from(vec![0; 8]).await.0.unwrap_err(),
                socket.send_to("any", "127.0.0.1:9").await.0.unwrap_err(),
                socket.recv_managed().await.unwrap_err(),
                socket.connect("127.0.0.1:9").await.unwrap_err(),
            ];
            for error in errors {
                assert!(error.to_string().contains("the event loop has closed"), "{error}");
                assert_eq!(error.kind(), ErrorKind::NotConnected);
            }
        });
    });
}
