//! Sockets and pipes in blocking mode. `O_NONBLOCK` belongs to the open file description, which duplicates share, so
//! another process may clear it at any time. No operation may then block the loop's thread.

use std::future::Future;
#[cfg(target_os = "linux")]
use std::io::Read;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net as unix;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use windlass::time::timeout;

use crate::support::{Folder, on_every_kernel_driver, turns};

/// Clears `O_NONBLOCK` through a duplicate, which stays open as long as the returned descriptor.
fn make_blocking(socket: &impl AsFd) -> OwnedFd {
    let duplicate = socket.as_fd().try_clone_to_owned().expect("a duplicate");
    // `set_nonblocking` is an ioctl here, which pipes accept too.
    let duplicate = unix::UnixStream::from(duplicate);
    duplicate.set_nonblocking(false).expect("a blocking description");
    duplicate.into()
}

/// Ends a blocked system call after some seconds, so that a blocked test fails instead of hanging.
struct Rescue {
    done: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
}

impl Rescue {
    fn new(unblock: impl FnOnce() + Send + 'static) -> Rescue {
        let (done, finished) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let is_stuck = finished.recv_timeout(Duration::from_secs(8)) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_stuck {
                unblock();
            }
            is_stuck
        });
        Rescue { done, thread }
    }

    fn was_needed(self) -> bool {
        let _ = self.done.send(());
        self.thread.join().expect("no panic")
    }
}

/// Asserts that the operation waits while the loop runs other tasks.
async fn assert_waits<T>(what: &str, unblock: impl FnOnce() + Send + 'static, operation: impl Future<Output = T>) {
    let rescue = Rescue::new(unblock);
    let other = windlass::spawn(turns(20));
    let result = timeout(Duration::from_millis(50), operation).await;
    other.await.expect("no panic");
    assert!(!rescue.was_needed(), "{what} blocked the loop");
    assert!(result.is_err(), "{what} did not wait");
}

/// Every kind of read on a stream.
macro_rules! reads_of_a_stream {
    ($what:literal, $stream:expr, $peer:expr) => {
        let (stream, peer) = (&$stream, &$peer);
        let unblock = || {
            let peer = peer.try_clone().expect("a duplicate");
            move || (&peer).write_all(&[1; 64]).expect("write")
        };
        let vectored = || stream.read_vectored(vec![Vec::with_capacity(4), Vec::with_capacity(4)]);
        assert_waits(concat!($what, ": read"), unblock(), stream.read(Vec::with_capacity(8))).await;
        assert_waits(concat!($what, ": read_managed"), unblock(), stream.read_managed()).await;
        assert_waits(concat!($what, ": read_vectored"), unblock(), vectored()).await;
        // A receive that fills its buffer may have left bytes, so the next one tries at once.
        (&*peer).write_all(b"12345678").expect("write");
        assert_eq!(stream.read_exact([0; 8]).await.1, *b"12345678");
        assert_waits(
            concat!($what, ": read again"),
            unblock(),
            stream.read(Vec::with_capacity(8)),
        )
        .await;
        (&*peer).write_all(b"12345678").expect("write");
        assert_eq!(&*stream.read_managed().await.expect("read"), b"12345678");
    };
}

#[test]
fn a_read_waits_on_a_blocking_description() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
            let addr = listener.local_addr().expect("an address");
            let stream = std::net::TcpStream::connect(addr).expect("connect");
            let (peer, _) = listener.accept().expect("accept");
            let stream = TcpStream::from_std(stream).expect("a stream");
            let _holder = make_blocking(&stream);
            reads_of_a_stream!("TCP", stream, peer);

            let (stream, peer) = unix::UnixStream::pair().expect("a pair");
            let stream = UnixStream::from_std(stream).expect("a stream");
            let _holder = make_blocking(&stream);
            reads_of_a_stream!("Unix", stream, peer);
            let unblock = {
                let peer = peer.try_clone().expect("a duplicate");
                move || (&peer).write_all(&[1]).expect("write")
            };
            assert_waits("Unix: recv_with_fds", unblock, stream.recv_with_fds([0; 8], 2)).await;
        });
    });
}

/// read(2) and write(2) have no such flag, but since Linux 6.4 preadv2(2) and pwritev2(2) have one.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_waits_on_a_blocking_description() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let file = |end: &dyn AsFd| std::fs::File::from(end.as_fd().try_clone_to_owned().expect("a duplicate"));
            let (sender, receiver) = windlass::io::pipe::pipe().expect("a pipe");
            let _holder = make_blocking(&receiver);
            reads_of_a_stream!("pipe", receiver, file(&sender));

            // A blocking write of more than fits would wait until all of it is written.
            let (sender, receiver) = windlass::io::pipe::pipe().expect("a pipe");
            let _holder = make_blocking(&sender);
            let unblock = || {
                let mut reader = file(&receiver);
                move || {
                    let mut bytes = vec![0; 1 << 16];
                    let begin = std::time::Instant::now();
                    while begin.elapsed() < Duration::from_millis(200) {
                        let _ = reader.read(&mut bytes);
                    }
                }
            };
            assert_waits("pipe: write_all", unblock(), sender.write_all(vec![1; 1 << 17])).await;
            let many = || vec![vec![1; 1 << 16], vec![1; 1 << 16]];
            assert_waits("pipe: vectored", unblock(), sender.write_all_vectored(many())).await;
        });
    });
}

#[test]
fn a_datagram_socket_waits_on_a_blocking_description() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
            let _holder = make_blocking(&socket);
            let addr = socket.local_addr().expect("an address");
            let unblock = || {
                let peer = peer.try_clone().expect("a duplicate");
                move || assert_eq!(peer.send_to(&[1], addr).expect("send"), 1)
            };
            assert_waits("UDP: recv_from", unblock(), socket.recv_from([0; 8])).await;
            assert_waits("UDP: recv", unblock(), socket.recv([0; 8])).await;
            assert_waits("UDP: recv_managed", unblock(), socket.recv_managed()).await;
            peer.send_to(b"one", addr).expect("send");
            assert_eq!(socket.recv_from([0; 3]).await.1, *b"one");

            let (peer, socket) = unix::UnixDatagram::pair().expect("a pair");
            let socket = UnixDatagram::from_std(socket).expect("a socket");
            let _holder = make_blocking(&socket);
            let unblock = || {
                let peer = peer.try_clone().expect("a duplicate");
                move || assert_eq!(peer.send(&[1]).expect("send"), 1)
            };
            assert_waits("Unix: recv", unblock(), socket.recv([0; 8])).await;
            assert_waits("Unix: recv_from", unblock(), socket.recv_from([0; 8])).await;
            assert_waits("Unix: recv_with_fds", unblock(), socket.recv_with_fds([0; 8], 2)).await;
            peer.send(b"one").expect("send");
            assert_eq!(socket.recv([0; 3]).await.1, *b"one");
        });
    });
}

/// A send to a local socket waits for space in the peer's queue.
#[cfg(target_os = "linux")]
#[test]
fn a_datagram_send_waits_on_a_blocking_description() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (peer, socket) = unix::UnixDatagram::pair().expect("a pair");
            let socket = UnixDatagram::from_std(socket).expect("a socket");
            let filler = unix::UnixDatagram::from(socket.as_fd().try_clone_to_owned().expect("a duplicate"));
            while filler.send(&[1]).is_ok() {}
            let _holder = make_blocking(&socket);
            let unblock = || {
                let peer = peer.try_clone().expect("a duplicate");
                move || {
                    peer.set_nonblocking(true).expect("a non-blocking socket");
                    while peer.recv(&mut [0; 8]).is_ok() {}
                }
            };
            assert_waits("send", unblock(), socket.send([1])).await;
            assert_waits("send_with_fds", unblock(), socket.send_with_fds([1], Vec::new())).await;
        });
    });
}

#[test]
fn an_accept_waits_on_a_blocking_description() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let _holder = make_blocking(&listener);
            let connect = move || drop(std::net::TcpStream::connect(addr).expect("connect"));
            assert_waits("TCP: accept", connect, listener.accept()).await;
            let client = std::net::TcpStream::connect(addr).expect("connect");
            let (served, _) = listener.accept().await.expect("accept");
            assert_waits("TCP: accept again", connect, listener.accept()).await;
            drop((client, served));

            let folder = Folder::new();
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).expect("bind");
            let _holder = make_blocking(&listener);
            let connect = || {
                let path = path.clone();
                move || drop(unix::UnixStream::connect(path).expect("connect"))
            };
            assert_waits("Unix: accept", connect(), listener.accept()).await;
            let client = unix::UnixStream::connect(&path).expect("connect");
            let (served, _) = listener.accept().await.expect("accept");
            assert_waits("Unix: accept again", connect(), listener.accept()).await;
            drop((client, served));
        });
    });
}
