//! The visible rules of the simulated network, each on every driver and in a simulated world (`tests/sim` has this file
//! too). So the model and the kernel, which is Linux, cannot drift apart. docs/architecture/simulation.md lists them.

use std::future::Future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use windlass::os_code;
use windlass::time::timeout;

use crate::support::everywhere;

/// Long enough for anything that happens. A wait that must not end is this short: a slow machine does not end it.
const NEVER: Duration = Duration::from_millis(50);

#[track_caller]
fn code<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => os_code(&error).expect("an error of the kernel's"),
    }
}

/// A connection: the client's end and the server's.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, from) = listener.accept().await.unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    (client, server)
}

async fn read(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let (count, mut bytes) = stream.read(vec![0; 100]).await;
    bytes.truncate(count?);
    Ok(bytes)
}

/// Everything until the end of the stream.
async fn read_all(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        match read(stream).await? {
            bytes if bytes.is_empty() => return Ok(all),
            bytes => all.extend(bytes),
        }
    }
}

/// The error of the first write that fails.
async fn write_error<F: Future<Output = io::Result<()>>>(write: impl Fn() -> F) -> i32 {
    loop {
        if let Err(error) = write().await {
            return os_code(&error).expect("an error of the kernel's");
        }
    }
}

// Ends of connections.

#[test]
fn a_close_sends_what_was_written_and_then_the_end() {
    everywhere(|| async {
        let (client, server) = connection().await;
        for _ in 0..10 {
            server.write_all("0123456789").await.0.unwrap();
        }
        drop(server);
        assert_eq!(read_all(&client).await.unwrap(), b"0123456789".repeat(10));
        assert_eq!(read(&client).await.unwrap(), b"", "the end stays");
    });
}

#[test]
fn writes_after_the_peers_close_fail() {
    everywhere(|| async {
        let (client, server) = connection().await;
        drop(server);
        assert_eq!(read(&client).await.unwrap(), b"");
        // The first one reaches a socket that does not exist any more, and is answered with an RST.
        let code = write_error(async || client.write_all("x").await.0).await;
        assert_eq!(code, libc::EPIPE);
        assert_eq!(read(&client).await.unwrap(), b"");
    });
}

#[test]
fn a_close_with_unread_bytes_resets() {
    everywhere(|| async {
        let (client, server) = connection().await;
        client.write_all("unread").await.0.unwrap();
        // One byte of six: the others have arrived with it, or find no socket.
        server.read_exact([0]).await.0.unwrap();
        drop(server);
        assert_eq!(code(read(&client).await), libc::ECONNRESET);
        // The error is reported once.
        assert_eq!(read(&client).await.unwrap(), b"");
        assert_eq!(code(client.write_all("x").await.0), libc::EPIPE);
    });
}

/// An RST overtakes nothing, but it discards what has not been read.
#[test]
fn a_linger_of_zero_resets() {
    everywhere(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        server.set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        assert_eq!(code(read(&client).await), libc::ECONNRESET);
    });
}

#[test]
fn one_direction_can_be_shut_down() {
    everywhere(|| async {
        let (client, server) = connection().await;
        client.write_all("request").await.0.unwrap();
        client.shutdown(Shutdown::Write).await.unwrap();
        assert_eq!(code(client.write_all("x").await.0), libc::EPIPE);
        assert_eq!(read_all(&server).await.unwrap(), b"request");
        // The other direction works on.
        server.write_all("reply").await.0.unwrap();
        drop(server);
        assert_eq!(read_all(&client).await.unwrap(), b"reply");
    });
}

#[test]
fn a_socket_whose_reading_is_shut_down_reads_the_end() {
    everywhere(|| async {
        let (client, server) = connection().await;
        client.shutdown(Shutdown::Read).await.unwrap();
        assert_eq!(read(&client).await.unwrap(), b"");
        // It can write, and the peer does not notice.
        client.write_all("text").await.0.unwrap();
        let (result, bytes) = server.read_exact(vec![0; 4]).await;
        assert_eq!((result.unwrap(), &bytes[..]), ((), &b"text"[..]));
    });
}

#[test]
fn a_read_that_waits_ends_with_its_own_shutdown() {
    everywhere(|| async {
        let (client, _server) = connection().await;
        let client = std::rc::Rc::new(client);
        let other = client.clone();
        let reading = windlass::spawn(async move { read(&other).await });
        windlass::task::yield_now().await;
        client.shutdown(Shutdown::Both).await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), b"");
    });
}

// Connecting.

#[test]
fn a_port_without_a_listener_refuses() {
    everywhere(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let error = TcpStream::connect(addr).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    });
}

#[test]
fn connections_are_established_without_accept_and_accepted_in_order() {
    everywhere(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for number in 0..5 {
            let client = TcpStream::connect(addr).await.unwrap();
            client.write_all(format!("{number}")).await.0.unwrap();
            clients.push(client);
        }
        for (number, client) in clients.iter().enumerate() {
            let (server, from) = listener.accept().await.unwrap();
            assert_eq!(from, client.local_addr().unwrap());
            assert_eq!(server.peer_addr().unwrap(), from);
            assert_eq!(client.peer_addr().unwrap(), addr);
            // What was sent before.
            assert_eq!(read(&server).await.unwrap(), format!("{number}").as_bytes());
        }
    });
}

/// A backlog of n holds n + 1 connections; a further request is not answered.
#[test]
fn a_full_backlog_makes_clients_wait() {
    everywhere(|| async {
        let listener = TcpListener::builder().backlog(1).listen("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(addr).await.unwrap());
        }
        // A client takes its connection for established before it is in the backlog.
        windlass::time::sleep(NEVER).await;
        assert!(
            timeout(NEVER, TcpStream::connect(addr)).await.is_err(),
            "the backlog is full"
        );
        // With room again, a client's next request is answered. That of the dropped call may be answered, too, if its
        // cancel comes late.
        let accepting = windlass::spawn(async move {
            let mut accepted = Vec::new();
            loop {
                accepted.push(listener.accept().await.unwrap());
            }
        });
        let client = TcpStream::connect(addr).await.unwrap();
        assert_eq!(client.peer_addr().unwrap(), addr);
        accepting.cancel();
    });
}

#[test]
fn an_address_in_use_is_an_error_until_it_is_free() {
    everywhere(|| async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(code(TcpListener::bind(addr).await), libc::EADDRINUSE);
        assert_eq!(
            code(TcpListener::bind(("0.0.0.0", addr.port())).await),
            libc::EADDRINUSE
        );
        // Another address, and the other protocol.
        drop(TcpListener::bind(("127.0.0.2", addr.port())).await.unwrap());
        drop(UdpSocket::bind(addr).await.unwrap());
        // Closed by the server first: its end waits for stray segments, which SO_REUSEADDR ignores.
        let client = TcpStream::connect(addr).await.unwrap();
        drop(listener.accept().await.unwrap());
        assert_eq!(read(&client).await.unwrap(), b"");
        drop((client, listener));
        drop(TcpListener::bind(addr).await.unwrap());
    });
}

/// Distribution over sockets that share a port is Linux's: other systems have other rules.
#[cfg(target_os = "linux")]
#[test]
fn connections_are_distributed_over_listeners_that_share_a_port() {
    everywhere(|| async {
        let builder = TcpListener::builder().reuse_port(true);
        let one = builder.clone().listen("127.0.0.1:0").await.unwrap();
        let addr = one.local_addr().unwrap();
        let other = builder.clone().listen(addr).await.unwrap();
        let mut counts = [0; 2];
        let clients = if cfg!(miri) { 8 } else { 64 };
        for _ in 0..clients {
            let client = TcpStream::connect(addr).await.unwrap();
            let (_server, from) = match windlass::task::select(one.accept(), other.accept()).await {
                windlass::task::Either::Left(accepted) => {
                    counts[0] += 1;
                    accepted.unwrap()
                }
                windlass::task::Either::Right(accepted) => {
                    counts[1] += 1;
                    accepted.unwrap()
                }
            };
            assert_eq!(from, client.local_addr().unwrap());
        }
        // By a hash of the addresses: with 64 clients, each listener gets some.
        assert_eq!(counts[0] + counts[1], clients);
        assert!(cfg!(miri) || (counts[0] > 0 && counts[1] > 0), "{counts:?}");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn closing_one_of_several_listeners_resets_its_backlog_alone() {
    everywhere(|| async {
        let builder = TcpListener::builder().reuse_port(true);
        let one = builder.clone().listen("127.0.0.1:0").await.unwrap();
        let addr = one.local_addr().unwrap();
        let other = builder.listen(addr).await.unwrap();
        let mut clients = Vec::new();
        for _ in 0..if cfg!(miri) { 8 } else { 32 } {
            clients.push(TcpStream::connect(addr).await.unwrap());
        }
        // In a world the client's last segment of the handshake is under way.
        windlass::time::sleep(NEVER).await;
        drop(one);
        let (mut reset, mut answered, mut accepted) = (0, 0, Vec::new());
        for client in &clients {
            let mut reading = std::pin::pin!(read(client));
            let result = loop {
                match windlass::task::select(&mut reading, other.accept()).await {
                    windlass::task::Either::Left(result) => break result,
                    windlass::task::Either::Right(next) => {
                        let (stream, _) = next.unwrap();
                        stream.write_all("h").await.0.unwrap();
                        accepted.push(stream);
                    }
                }
            };
            match result {
                Ok(bytes) => {
                    assert_eq!(bytes, b"h");
                    answered += 1;
                }
                Err(error) => {
                    assert_eq!(os_code(&error), Some(libc::ECONNRESET));
                    reset += 1;
                }
            }
        }
        assert_eq!((answered, answered + reset), (accepted.len(), clients.len()));
    });
}

#[cfg(target_os = "linux")]
#[test]
fn datagrams_are_distributed_by_sender() {
    everywhere(|| async {
        let builder = UdpSocket::builder().reuse_port(true);
        let one = builder.clone().bind("127.0.0.1:0").await.unwrap();
        let addr = one.local_addr().unwrap();
        let other = builder.bind(addr).await.unwrap();
        let mut counts = [0; 2];
        let senders = if cfg!(miri) { 8 } else { 64 };
        for _ in 0..senders {
            let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let mut receivers = Vec::new();
            for _ in 0..3 {
                sender.send_to("datagram", addr).await.0.unwrap();
                let (at_one, at_other) = (one.recv_from(vec![0; 16]), other.recv_from(vec![0; 16]));
                let ((result, _), receiver) = match windlass::task::select(at_one, at_other).await {
                    windlass::task::Either::Left(received) => (received, 0),
                    windlass::task::Either::Right(received) => (received, 1),
                };
                assert_eq!(result.unwrap(), (8, sender.local_addr().unwrap()));
                receivers.push(receiver);
            }
            assert!(
                receivers.iter().all(|receiver| *receiver == receivers[0]),
                "one sender, one socket"
            );
            counts[receivers[0]] += 1;
        }
        assert_eq!(counts[0] + counts[1], senders);
        assert!(cfg!(miri) || (counts[0] > 0 && counts[1] > 0), "{counts:?}");
    });
}

// Bytes.

#[test]
fn bytes_arrive_in_order_in_both_directions() {
    everywhere(|| async {
        let (client, server) = connection().await;
        let bytes = |factor: u32| {
            (0..300_000u32)
                .map(|n| (n.wrapping_mul(factor) >> 7) as u8)
                .collect::<Vec<u8>>()
        };
        let exchange = async |stream: TcpStream, sent: Vec<u8>, expected: Vec<u8>| {
            let (writing, reading) = (stream.write_all(sent), stream.read_exact(vec![0; expected.len()]));
            let (written, (result, received)) = windlass::task::join((writing, reading)).await;
            written.0.unwrap();
            result.unwrap();
            assert!(received == expected);
        };
        let there = exchange(client, bytes(31), bytes(17));
        let back = exchange(server, bytes(17), bytes(31));
        windlass::task::join((there, back)).await;
    });
}

#[test]
fn a_peer_that_does_not_read_stops_the_writer() {
    everywhere(|| async {
        let (client, server) = connection().await;
        let len = 64 << 20;
        assert!(timeout(NEVER, client.write_all(vec![7; len])).await.is_err());
        // What was sent before arrives; how much that is depends on the buffers.
        drop(client);
        let mut total = 0;
        loop {
            let (count, bytes) = server.read(vec![0; 1 << 20]).await;
            let count = count.unwrap();
            assert!(bytes[..count].iter().all(|byte| *byte == 7));
            total += count;
            if count == 0 {
                break;
            }
        }
        assert!(total > 0 && total < len, "{total}");
    });
}

// UDP.

#[test]
fn datagrams_keep_their_boundaries_and_are_cut_to_the_buffer() {
    everywhere(|| async {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = receiver.local_addr().unwrap();
        for text in ["first", "", "second, longer", "third"] {
            assert_eq!(sender.send_to(text, to).await.0.unwrap(), text.len());
        }
        let from = sender.local_addr().unwrap();
        for expected in [Some("first"), Some(""), None, Some("third")] {
            let (received, bytes) = receiver.recv_from(vec![0; 9]).await;
            match expected {
                Some(expected) => {
                    let (count, peer) = received.unwrap();
                    assert_eq!((&bytes[..count], peer), (expected.as_bytes(), from));
                }
                // It is cut, which is reported as an error, and the rest is gone.
                None => assert_eq!(code(received), libc::EMSGSIZE),
            }
        }
        assert_eq!(code(sender.send_to(vec![0; 65_508], to).await.0), libc::EMSGSIZE);
        assert_eq!(sender.send_to(vec![0; 65_507], to).await.0.unwrap(), 65_507);
    });
}

#[test]
fn a_refusal_is_reported_to_a_connected_socket_only() {
    everywhere(|| async {
        let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..3 {
            socket.send_to("lost", to).await.0.unwrap();
        }
        let connected = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        connected.connect(to).await.unwrap();
        connected.send("refused").await.0.unwrap();
        assert_eq!(code(connected.recv(vec![0; 9]).await.0), libc::ECONNREFUSED);
        // Once per datagram: the socket works on.
        let receiver = UdpSocket::bind(to).await.unwrap();
        connected.send("received").await.0.unwrap();
        assert_eq!(receiver.recv(vec![0; 9]).await.0.unwrap(), 8);
        // Nothing was reported to the other one.
        receiver.send_to("text", socket.local_addr().unwrap()).await.0.unwrap();
        assert_eq!(socket.recv(vec![0; 9]).await.0.unwrap(), 4);
    });
}

#[test]
fn a_connected_socket_receives_from_its_peer_only() {
    everywhere(|| async {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (peer, other) = (
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        );
        receiver.connect(peer.local_addr().unwrap()).await.unwrap();
        let to = receiver.local_addr().unwrap();
        other.send_to("from another", to).await.0.unwrap();
        peer.send_to("from the peer", to).await.0.unwrap();
        let (count, bytes) = receiver.recv(vec![0; 99]).await;
        assert_eq!(&bytes[..count.unwrap()], b"from the peer");
        assert_eq!(code(UdpSocket::bind(to).await), libc::EADDRINUSE);
    });
}

/// Whoever sends is never stopped; the receiver's queue drops what it has no room for. The rest keeps its order.
#[test]
fn a_receiver_that_does_not_read_loses_datagrams() {
    everywhere(|| async {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = receiver.local_addr().unwrap();
        let total = 5_000u32;
        for number in 0..total {
            let mut datagram = vec![0; 1_000];
            datagram[..4].copy_from_slice(&number.to_le_bytes());
            sender.send_to(datagram, to).await.0.unwrap();
        }
        let mut received = Vec::new();
        // The last one is sent until it arrives.
        loop {
            sender.send_to(total.to_le_bytes(), to).await.0.unwrap();
            let (count, bytes) = receiver.recv(vec![0; 1_000]).await;
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            if number == total {
                assert_eq!(count.unwrap(), 4);
                break;
            }
            received.push(number);
        }
        assert!(
            received.is_sorted() && received.len() < total as usize,
            "{}",
            received.len()
        );
        assert_eq!(received[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    });
}

// Unix sockets.

/// A path that no other test uses.
fn socket_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("windlass-network-rules-{}-{number}", std::process::id()))
}

#[test]
fn unix_connections_end_at_once() {
    everywhere(|| async {
        let (one, other) = UnixStream::pair().unwrap();
        other.write_all("last words").await.0.unwrap();
        drop(other);
        // No RST has to arrive first, and nothing that was sent is lost.
        assert_eq!(code(one.write_all("x").await.0), libc::EPIPE);
        let (result, bytes) = one.read_exact(vec![0; 10]).await;
        assert_eq!((result.unwrap(), &bytes[..]), ((), &b"last words"[..]));
        assert_eq!(one.read(vec![0; 9]).await.0.unwrap(), 0);
        // Closed with unread bytes.
        let (one, other) = UnixStream::pair().unwrap();
        one.write_all("unread").await.0.unwrap();
        drop(other);
        assert_eq!(code(one.read(vec![0; 9]).await.0), libc::ECONNRESET);
    });
}

#[test]
fn unix_paths_are_created_by_bind_and_stay() {
    everywhere(|| async {
        let path = socket_path();
        assert_eq!(code(UnixStream::connect(&path).await), libc::ENOENT);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(code(UnixListener::bind(&path)), libc::EADDRINUSE);
        let client = UnixStream::connect(&path).await.unwrap();
        drop(listener.accept().await.unwrap());
        assert_eq!(client.read(vec![0; 1]).await.0.unwrap(), 0);
        drop(listener);
        // The path outlives its socket.
        assert_eq!(code(UnixStream::connect(&path).await), libc::ECONNREFUSED);
        assert_eq!(code(UnixListener::bind(&path)), libc::EADDRINUSE);
        windlass::fs::remove_file(&path).await.unwrap();
        drop(UnixListener::bind(&path).unwrap());
        windlass::fs::remove_file(&path).await.unwrap();
    });
}

#[test]
fn unix_datagrams_are_not_lost() {
    everywhere(|| async {
        let path = socket_path();
        let receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(&path).await.unwrap();
        // A full queue makes the sender wait, unlike UDP.
        let send = async || {
            for number in 0..2_000u32 {
                sender.send(number.to_le_bytes()).await.0.unwrap();
            }
        };
        assert!(timeout(NEVER, send()).await.is_err());
        let (count, bytes) = receiver.recv(vec![0; 9]).await;
        assert_eq!((count.unwrap(), &bytes[..4]), (4, &0u32.to_le_bytes()[..]));
        assert_eq!(code(sender.send(vec![0; 64 << 20]).await.0), libc::EMSGSIZE);
        drop(receiver);
        assert_eq!(code(sender.send("x").await.0), libc::ECONNREFUSED);
        windlass::fs::remove_file(&path).await.unwrap();
    });
}

// Addresses.

#[test]
fn a_socket_has_the_address_that_it_uses() {
    everywhere(|| async {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_ne!(port, 0);
        assert!(listener.local_addr().unwrap().ip().is_unspecified());
        let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        assert_eq!(server.local_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        let connected = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        connected.connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), SocketAddr::from(([127, 0, 0, 1], port)));
        assert!(connected.local_addr().unwrap().ip().is_loopback());
    });
}
