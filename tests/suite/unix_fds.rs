//! Descriptors passed over Unix sockets: each arrives once, with close-on-exec, and a descriptor that is not taken is
//! closed.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use windlass::net::{UnixDatagram, UnixStream};
use windlass::time::timeout;

use crate::bytes::numbered;
use crate::child::in_own_process;
use crate::support::limit_descriptors;
use crate::support::{Folder, Random, on_every_driver, open_descriptors, poll_once, quiet, rounds, turns};
use crate::unix::soon;

/// A file that contains its number.
fn tagged(folder: &Folder, number: usize) -> OwnedFd {
    File::open(folder.file(&format!("{number}"), number.to_string()))
        .unwrap()
        .into()
}

fn tag(fd: OwnedFd) -> usize {
    let mut text = String::new();
    let mut file = File::from(fd);
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

fn tags(fds: Vec<OwnedFd>) -> Vec<usize> {
    fds.into_iter().map(tag).collect()
}

fn closes_on_exec(fd: &OwnedFd) -> bool {
    // SAFETY: the descriptor is open, and fcntl(2) only reads its flags.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

/// Waits until no operation is in flight, so that everything is closed, and counts the open descriptors.
async fn settled() -> usize {
    quiet().await;
    turns(3).await;
    open_descriptors()
}

#[test]
fn one_and_many_descriptors_arrive() {
    in_own_process("unix_fds::one_and_many_descriptors_arrive", &[], || {
        limit_descriptors(2_000);
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                let (one, other) = UnixStream::pair().unwrap();
                let before = settled().await;
                for count in [1, 2, 3, 10, 253] {
                    let fds = (0..count).map(|number| tagged(&folder, number)).collect();
                    let (sent, _) = one.send_with_fds("here they are", fds).await;
                    assert_eq!(sent.unwrap(), 13);
                    let (received, buf) = soon("received", other.recv_with_fds(vec![0; 64], 253)).await;
                    let received = received.unwrap();
                    assert_eq!(&buf[..received.len], b"here they are");
                    assert!(!received.lost_fds);
                    assert!(received.fds.iter().all(closes_on_exec));
                    assert_eq!(tags(received.fds), (0..count).collect::<Vec<_>>());
                    assert_eq!(settled().await, before, "{count}: sent descriptors are closed here");
                }
                // A received descriptor works: the end of a pipe.
                let (mut reader, writer) = io::pipe().unwrap();
                one.send_with_fds("x", vec![writer.into()]).await.0.unwrap();
                let received = soon("pipe", other.recv_with_fds([0; 4], 1)).await.0.unwrap();
                File::from(received.fds.into_iter().next().unwrap())
                    .write_all(b"through")
                    .unwrap();
                let mut text = String::new();
                reader.read_to_string(&mut text).unwrap();
                assert_eq!(text, "through");
                // Plain bytes carry no descriptor, and EOF is EOF.
                one.write_all("plain").await.0.unwrap();
                let received = soon("plain", other.recv_with_fds([0; 64], 5)).await.0.unwrap();
                assert_eq!((received.len, received.fds.len(), received.lost_fds), (5, 0, false));
                drop(one);
                let received = soon("the end", other.recv_with_fds([0; 64], 5)).await.0.unwrap();
                assert_eq!((received.len, received.fds.len()), (0, 0));
            });
        });
    });
}

#[test]
fn too_many_descriptors_or_no_bytes_is_an_error() {
    in_own_process("unix_fds::too_many_descriptors_or_no_bytes_is_an_error", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                let (one, other) = UnixStream::pair().unwrap();
                let (datagrams, _peer) = UnixDatagram::pair().unwrap();
                let before = settled().await;
                let many = || (0..254).map(|_| tagged(&folder, 0)).collect::<Vec<_>>();
                let (result, buf) = one.send_with_fds("x", many()).await;
                let error = result.unwrap_err();
                assert_eq!((error.kind(), buf), (ErrorKind::InvalidInput, "x"));
                assert!(error.to_string().contains("253"), "{error}");
                let (result, _) = datagrams.send_with_fds("x", many()).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
                let (result, _) = one.send_with_fds("", vec![tagged(&folder, 0)]).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
                let (result, _) = other.recv_with_fds(Vec::new(), 1).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
                // To a closed peer.
                drop(other);
                let (result, _) = one.send_with_fds("x", vec![tagged(&folder, 0)]).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
                drop(one);
                let sockets = if case.is_kernel() { 2 } else { 0 };
                assert_eq!(
                    settled().await,
                    before.saturating_sub(sockets),
                    "an unsent descriptor leaks"
                );
            });
        });
    });
}

/// Descriptors beyond the caller's limit are closed, and the result reports it.
#[test]
fn lost_descriptors_are_reported() {
    in_own_process("unix_fds::lost_descriptors_are_reported", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                let (one, other) = UnixStream::pair().unwrap();
                let before = settled().await;
                for (sent, limit) in [(2, 1), (4, 3), (5, 2), (10, 9), (3, 0), (4, 4), (4, 1_000_000)] {
                    let fds = (0..sent).map(|number| tagged(&folder, number)).collect();
                    one.send_with_fds("x", fds).await.0.unwrap();
                    let received = soon("some", other.recv_with_fds([0; 4], limit)).await.0.unwrap();
                    assert_eq!(received.lost_fds, sent > limit, "{sent} for {limit}");
                    assert_eq!(tags(received.fds), (0..sent.min(limit)).collect::<Vec<_>>());
                    assert_eq!(settled().await, before, "{sent} for {limit}: a descriptor leaks");
                }
                // Plain reads, of any kind, accept no descriptors.
                for way in 0..4 {
                    one.send_with_fds("xyz", vec![tagged(&folder, 0)]).await.0.unwrap();
                    let count = match way {
                        0 => other.read([0; 4]).await.0.unwrap(),
                        1 => other.read_exact([0; 3]).await.0.map(|()| 3).unwrap(),
                        2 => other.read_managed().await.unwrap().len(),
                        _ => other.read_vectored(vec![[0; 4]]).await.0.unwrap(),
                    };
                    other.read_exact(vec![0; 3 - count]).await.0.unwrap();
                    assert_eq!(settled().await, before);
                }
            });
        });
    });
}

/// Receives are dropped at random points: every byte and every descriptor arrives once, in order.
#[test]
fn dropped_receives_lose_no_descriptor() {
    in_own_process("unix_fds::dropped_receives_lose_no_descriptor", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                let (one, other) = UnixStream::pair().unwrap();
                let mut random = Random::new(21);
                let before = settled().await;
                let count = rounds().clamp(20, 500);
                let (mut sent, mut got, mut bytes, mut written) = (0, Vec::new(), Vec::new(), 0);
                let mut dropped = 0;
                while got.len() < count {
                    let mut receiving = pin!(other.recv_with_fds(Vec::with_capacity(16), 2));
                    let mut received = Poll::Pending;
                    if random.below(2) == 0 {
                        received = poll_once(receiving.as_mut()).await;
                    }
                    if sent < count && sent < got.len() + 6 {
                        let with = 1 + random.below(2) as usize;
                        let with = with.min(count - sent);
                        let fds = (0..with).map(|at| tagged(&folder, sent + at)).collect();
                        let some = numbered(written + 3).split_off(written);
                        one.send_with_fds(some, fds).await.0.unwrap();
                        written += 3;
                        sent += with;
                    }
                    for _ in 0..random.below(3) {
                        if received.is_pending() {
                            received = poll_once(receiving.as_mut()).await;
                            turns(random.below(2)).await;
                        }
                    }
                    match received {
                        Poll::Ready((received, buf)) => {
                            let received = received.unwrap();
                            assert!(!received.lost_fds && received.len == buf.len());
                            bytes.extend(buf);
                            got.extend(tags(received.fds));
                        }
                        Poll::Pending => dropped += 1,
                    }
                }
                assert!(dropped > 0, "nothing was dropped");
                assert_eq!(got, (0..count).collect::<Vec<_>>());
                assert!(bytes == numbered(written), "bytes are lost");
                assert_eq!(settled().await, before, "a descriptor leaks");
            });
        });
    });
}

/// Descriptors that were received by a dropped call, or never received, are closed with their socket.
#[test]
fn a_dropped_socket_closes_untaken_descriptors() {
    in_own_process("unix_fds::a_dropped_socket_closes_untaken_descriptors", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                drop(UnixStream::pair().unwrap());
                drop(UnixDatagram::pair().unwrap());
                let before = settled().await;
                for round in 0..rounds().min(200) as u64 {
                    let (one, other) = UnixStream::pair().unwrap();
                    let (first, second) = UnixDatagram::pair().unwrap();
                    let fds = || vec![tagged(&folder, 0), tagged(&folder, 1)];
                    {
                        // In some rounds the receive is in flight when they arrive.
                        let mut receiving = pin!(other.recv_with_fds([0; 4], 2));
                        let mut datagram = pin!(second.recv_with_fds([0; 4], 2));
                        if round % 2 == 0 {
                            assert!(poll_once(receiving.as_mut()).await.is_pending());
                            assert!(poll_once(datagram.as_mut()).await.is_pending());
                        }
                        one.send_with_fds("x", fds()).await.0.unwrap();
                        first.send_with_fds("x", fds()).await.0.unwrap();
                        turns(round % 3).await;
                    }
                    turns(round % 5).await;
                    if round % 4 == 0 {
                        // They were received by a call that asked for fewer.
                        timeout(Duration::from_millis(1), other.read_exact([0; 8])).await.ok();
                    }
                }
                assert_eq!(settled().await, before, "descriptors leak");
            });
        });
    });
}

#[test]
fn datagrams_carry_descriptors() {
    in_own_process("unix_fds::datagrams_carry_descriptors", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            case.run(async {
                let (one, other) = UnixDatagram::pair().unwrap();
                let before = settled().await;
                one.send_with_fds("two", vec![tagged(&folder, 4), tagged(&folder, 5)])
                    .await
                    .0
                    .unwrap();
                one.send_with_fds("", vec![tagged(&folder, 6)]).await.0.unwrap();
                one.send("none").await.0.unwrap();
                one.send_with_fds("lost", vec![tagged(&folder, 7)]).await.0.unwrap();
                one.send_with_fds("too long for the buffer", vec![tagged(&folder, 8)])
                    .await
                    .0
                    .unwrap();
                let (received, buf) = soon("two", other.recv_with_fds([0; 16], 8)).await;
                let received = received.unwrap();
                assert_eq!(&buf[..received.len], b"two");
                assert!(received.fds.iter().all(closes_on_exec));
                assert_eq!(tags(received.fds), [4, 5]);
                // Even an empty datagram.
                let received = soon("empty", other.recv_with_fds([0; 16], 8)).await.0.unwrap();
                assert_eq!((received.len, tags(received.fds)), (0, vec![6]));
                let received = soon("none", other.recv_with_fds([0; 16], 8)).await.0.unwrap();
                assert_eq!((received.len, received.fds.len(), received.lost_fds), (4, 0, false));
                // A receive that accepts no descriptors loses them, and nothing else.
                assert_eq!(soon("lost", other.recv([0; 16])).await.0.unwrap(), 4);
                let error = soon("truncated", other.recv_with_fds([0; 4], 8)).await.0.unwrap_err();
                assert_eq!(windlass::os_code(&error), Some(libc::EMSGSIZE));
                assert_eq!(settled().await, before, "a descriptor leaks");
            });
        });
    });
}
