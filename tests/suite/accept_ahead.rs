//! `accept_ahead`: how many connections a listener accepts before the program calls `accept` for them.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use windlass::metrics::metrics;
use windlass::net::{TcpListener, UnixListener};
use windlass::task::yield_now;

use crate::child::{UNDISTURBED, in_own_process};
use crate::support::{Folder, on_every_kernel_driver, open_descriptors, poll_once, turns};

const CLIENTS: usize = 300;

/// The documented default.
const DEFAULT: usize = 1;

/// Waits until every accept in flight has completed; the backlog holds more than enough connections for that.
async fn no_accept_in_flight() {
    while metrics().ops.iter().any(|(name, _)| *name == "accept") {
        yield_now().await;
    }
}

/// The number of connections in the kernel's backlog.
fn backlog(listener: &TcpListener) -> usize {
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let info_ptr = (&raw mut info).cast();
    // SAFETY: the kernel fills the two locals and keeps no pointer to them.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info_ptr,
            &mut len,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    info.tcpi_unacked as usize
}

/// The clients that were never accepted see the connection close: EOF or a reset.
fn assert_all_closed(clients: impl Iterator<Item = std::net::TcpStream>) {
    for mut client in clients {
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        match client.read(&mut [0]) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

#[test]
fn a_tcp_listener_accepts_ahead_within_its_limit() {
    let test = "accept_ahead::a_tcp_listener_accepts_ahead_within_its_limit";
    in_own_process(test, &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            for ahead in [None, Some(0), Some(1), Some(5), Some(16)] {
                let most = ahead.unwrap_or(DEFAULT as u32).max(1) as usize;
                case.run(async move {
                    let builder = TcpListener::builder();
                    let builder = match ahead {
                        Some(ahead) => builder.accept_ahead(ahead),
                        None => builder,
                    };
                    let listener = builder.listen("127.0.0.1:0").await.expect("bind");
                    let addr = listener.local_addr().expect("an address");
                    let connect = |_| std::net::TcpStream::connect(addr).expect("connect");
                    let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
                    while backlog(&listener) < CLIENTS {
                        yield_now().await;
                    }
                    turns(5).await;
                    let before = open_descriptors();
                    let mut accepted = Vec::new();
                    let mut most_held = 0;
                    for wanted in [1, 2, 10, 60, 61] {
                        while accepted.len() < wanted {
                            accepted.push(listener.accept().await.expect("accept"));
                        }
                        no_accept_in_flight().await;
                        let held = metrics().accepted_waiting;
                        most_held = most_held.max(held);
                        assert!(held <= most, "{held} connections held, the limit is {most}");
                        assert!(wanted > 1 || held == 0, "{held} held after the first accept");
                        assert_eq!(open_descriptors(), before + wanted + held);
                        assert_eq!(backlog(&listener), CLIENTS - wanted - held);
                    }
                    let has_batches = case.has_rings() && most > 1;
                    assert_eq!(most_held > 0, has_batches, "{most_held} connections held");
                    // A dropped accept keeps the connection for the next call, and no more accepts are started than the
                    // limit allows.
                    for _ in 0..50 {
                        if let Poll::Ready(served) = poll_once(pin!(listener.accept())).await {
                            accepted.push(served.expect("accept"));
                        }
                        no_accept_in_flight().await;
                        let held = metrics().accepted_waiting;
                        assert!(held <= most, "{held} connections held, the limit is {most}");
                        assert_eq!(open_descriptors(), before + accepted.len() + held);
                    }
                    drop(listener);
                    no_accept_in_flight().await;
                    assert_eq!(metrics().accepted_waiting, 0);
                    let peers: Vec<_> = accepted.iter().map(|(_, peer)| *peer).collect();
                    let is_unaccepted =
                        |client: &std::net::TcpStream| !peers.contains(&client.local_addr().expect("an address"));
                    assert_all_closed(clients.into_iter().filter(is_unaccepted));
                });
            }
        });
    });
}

#[test]
fn a_unix_listener_accepts_ahead_within_its_limit() {
    let test = "accept_ahead::a_unix_listener_accepts_ahead_within_its_limit";
    in_own_process(test, &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            for ahead in [None, Some(0), Some(5), Some(16)] {
                let most = ahead.unwrap_or(DEFAULT as u32).max(1) as usize;
                case.run(async move {
                    let folder = Folder::new();
                    let path = folder.join("socket");
                    let listener = UnixListener::bind(&path).expect("bind");
                    if let Some(ahead) = ahead {
                        listener.set_accept_ahead(ahead);
                    }
                    let connect = |_| std::os::unix::net::UnixStream::connect(&path).expect("connect");
                    let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
                    turns(5).await;
                    let before = open_descriptors();
                    let mut accepted = Vec::new();
                    for wanted in [1, 2, 10, 60, 61] {
                        while accepted.len() < wanted {
                            accepted.push(listener.accept().await.expect("accept"));
                        }
                        no_accept_in_flight().await;
                        let held = metrics().accepted_waiting;
                        assert!(held <= most, "{held} connections held, the limit is {most}");
                        assert_eq!(open_descriptors(), before + wanted + held);
                    }
                    // The other connections are still in the backlog.
                    while accepted.len() < CLIENTS {
                        accepted.push(listener.accept().await.expect("accept"));
                    }
                    assert_eq!(metrics().accepted_waiting, 0);
                    drop(clients);
                });
            }
        });
    });
}
