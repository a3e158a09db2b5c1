//! TCP connections on every driver.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::IoBuf;
use windlass::net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
use windlass::time::timeout;

use crate::bytes::{leave_unread, numbered, read_to_end};
use crate::child::in_own_process;
use crate::support::{
    assert_reset, connect_error, gather, is_null_driver_number, number_of, on_every_driver, on_every_kernel_driver,
    pair, pair_of, poll_once, turns,
};

/// A write to a closed peer is an error, even where SIGPIPE would end the process.
#[test]
fn writing_to_a_closed_peer_raises_no_sigpipe() {
    in_own_process("tcp::writing_to_a_closed_peer_raises_no_sigpipe", &[], || {
        on_every_kernel_driver(|case| {
            crate::support::let_signals_kill();
            for vectored in [false, true] {
                case.run(async move {
                    let (client, server) = pair().await;
                    drop(server);
                    let error = loop {
                        let result = match vectored {
                            true => client.write_all_vectored(vec!["any", "body"]).await.0,
                            false => client.write_all("anybody").await.0,
                        };
                        if let Err(error) = result {
                            break error;
                        }
                    };
                    let expected = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    assert!(expected.contains(&error.kind()), "{error}");
                    // After the reset was returned once, later writes fail with EPIPE; Windows returns the reset again.
                    let error = client.write("anybody").await.0.unwrap_err();
                    let expected = if cfg!(windows) { &expected[..] } else { &expected[..1] };
                    assert!(expected.contains(&error.kind()), "{error}");
                });
            }
        });
    });
}

#[test]
fn split_halves_work_at_the_same_time() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let echo = windlass::spawn(async move {
                let (read, write) = server.split();
                loop {
                    let bytes = read.read_managed().await.unwrap();
                    if bytes.is_empty() {
                        return write.shutdown().await.unwrap();
                    }
                    write.write_all(bytes).await.0.unwrap();
                }
            });
            let (read, write) = client.into_split();
            assert_eq!(read.peer_addr().unwrap(), write.peer_addr().unwrap());
            let len = if cfg!(miri) { 70_000 } else { 1 << 20 };
            let writer = windlass::spawn(async move {
                write.write_all(numbered(len)).await.0.unwrap();
                write
            });
            let (result, body) = read.read_exact(vec![0; len]).await;
            result.unwrap();
            assert!(body == numbered(len));

            let write = writer.await.unwrap();
            let (result, _) = write.write(b"a").await;
            assert_eq!(result.unwrap(), 1);
            if write.write_vectored(vec!["b", "c"]).await.0.unwrap() == 1 {
                write.write_all("c").await.0.unwrap();
            }
            write.write_all_vectored(vec!["d", "e"]).await.0.unwrap();
            let (result, buf) = read.read_exact([0; 5]).await;
            result.unwrap();
            assert_eq!(&buf, b"abcde");
            // Ends the echo, and with it this test.
            drop(write);
            let (result, _) = read.read_vectored(vec![Vec::with_capacity(8)]).await;
            assert_eq!(result.unwrap(), 0);
            echo.await.unwrap();
        });
    });
}

#[test]
fn a_dropped_write_half_ends_the_stream_and_a_read_half_does_not() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let (read, write) = client.into_split();
            drop(write);
            let reading = timeout(Duration::from_secs(60), server.read_managed());
            assert!(reading.await.expect("the end").unwrap().is_empty());
            server.write_all("still open").await.0.unwrap();
            assert_eq!(gather(10, || read.read_managed()).await, b"still open");
            drop(read);

            let (client, server) = pair().await;
            let (read, write) = client.into_split();
            drop(read);
            write.write_all("one way").await.0.unwrap();
            assert_eq!(gather(7, || server.read_managed()).await, b"one way");
        });
    });
}

#[test]
fn only_halves_of_the_same_stream_can_be_reunited() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let (client_read, client_write) = client.into_split();
            let (server_read, server_write) = server.into_split();
            let refused = client_read.reunite(server_write).unwrap_err();
            assert_eq!(refused.to_string(), "the halves belong to different streams");
            let (client_read, server_write): (OwnedReadHalf, OwnedWriteHalf) = (refused.0, refused.1);

            let client = client_read.reunite(client_write).unwrap();
            let server = server_read.reunite(server_write).unwrap();
            // Neither the refusal nor the reunion has closed anything.
            client.write_all("ping").await.0.unwrap();
            assert_eq!(gather(4, || server.read_managed()).await, b"ping");
            server.write_all("pong").await.0.unwrap();
            assert_eq!(gather(4, || client.read_managed()).await, b"pong");
        });
    });
}

#[test]
fn shutdown_ends_one_direction() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("last words").await.0.unwrap();
            client.shutdown(Shutdown::Write).await.unwrap();
            assert_eq!(read_to_end(&server).await, b"last words");
            server.write_all("answer").await.0.unwrap();
            assert_eq!(gather(6, || client.read_managed()).await, b"answer");
            let error = client.write("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);

            // A pending read returns EOF when its own side shuts down.
            let server = Rc::new(server);
            let reader = windlass::spawn({
                let server = server.clone();
                async move { client.read_managed().await.unwrap().len() + server.read_managed().await.unwrap().len() }
            });
            turns(3).await;
            server.shutdown(Shutdown::Both).await.unwrap();
            assert_eq!(timeout(Duration::from_secs(60), reader).await.unwrap().unwrap(), 0);
        });
    });
}

#[test]
fn addresses_and_options() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            assert!(addr.ip().is_loopback() && addr.port() != 0);
            let connecting = windlass::spawn(TcpStream::connect(addr));
            let (server, peer) = listener.accept().await.unwrap();
            let client = connecting.await.unwrap().unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            assert_eq!(server.peer_addr().unwrap(), peer);
            assert_eq!(server.local_addr().unwrap(), addr);
            assert_eq!(client.peer_addr().unwrap(), addr);
            for stream in [&client, &server] {
                assert!(!stream.nodelay().unwrap());
                stream.set_nodelay(true).unwrap();
                assert!(stream.nodelay().unwrap());
                stream.set_nodelay(false).unwrap();
                assert!(!stream.nodelay().unwrap());
                assert!(format!("{stream:?}").contains(&addr.to_string()));
            }
            assert!(format!("{listener:?}").contains(&addr.to_string()));
            let (in_use, _) = (TcpListener::bind(addr).await.unwrap_err(), listener);
            assert_eq!(in_use.kind(), ErrorKind::AddrInUse);
            assert!(in_use.to_string().contains(&addr.to_string()), "{in_use}");
        });
    });
}

#[test]
fn a_closed_peer_gives_eof_or_a_reset() {
    on_every_driver(|case| {
        case.run(async move {
            // Closed: every read returns EOF.
            let (client, server) = pair().await;
            server.write_all("bye").await.0.unwrap();
            drop(server);
            assert_eq!(&*client.read_managed().await.unwrap(), b"bye");
            assert_eq!(client.read([0; 4]).await.0.unwrap(), 0);
            assert_eq!(client.read_vectored(vec![[0; 4]]).await.0.unwrap(), 0);
            assert!(client.read_managed().await.unwrap().is_empty());

            // Closed with unread bytes: a reset, for a pending read and for a later one.
            for waits in [true, false] {
                let (client, server) = pair().await;
                client.write_all("unread").await.0.unwrap();
                let client = Rc::new(client);
                let mut reading = pin!(client.read([0; 4]));
                if waits {
                    assert!(poll_once(reading.as_mut()).await.is_pending());
                    turns(3).await;
                }
                drop(server);
                turns(3).await;
                assert_reset(reading.await.0);
            }
        });
    });
}

#[test]
fn a_refused_connection_names_the_address() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            let error = connect_error(addr).await;
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
        });
    });
}

/// Connections that were not accepted are reset with their listener.
#[test]
fn a_dropped_listener_resets_pending_connections() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let (_first, _) = pair_of(&listener).await;
            let second = TcpStream::connect(addr).await.unwrap();
            turns(3).await;
            drop(listener);
            let reading = timeout(Duration::from_secs(60), second.read([0; 4]));
            assert_reset(reading.await.expect("the peer sees a reset").0);
        });
    });
}

#[test]
fn a_stream_converts_to_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("early").await.0.unwrap();
            let number = number_of(&server);
            let mut server = server.into_std().unwrap();
            assert_eq!(number_of(&server), number);
            let mut buf = [0; 16];
            assert_eq!(server.read(&mut buf).unwrap(), 5);
            assert_eq!(server.read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            server.write_all(b"from std").unwrap();
            assert_eq!(&*client.read_managed().await.unwrap(), b"from std");

            server.set_nonblocking(false).unwrap();
            let server = TcpStream::from_std(server).unwrap();
            assert_eq!(number_of(&server), number);
            server.write_all("back").await.0.unwrap();
            assert_eq!(&*client.read_managed().await.unwrap(), b"back");
            drop(server);
            assert!(client.read_managed().await.unwrap().is_empty());
        });
    });
}

/// Refused while bytes would be lost; the stream is returned unchanged.
#[test]
fn a_busy_stream_cannot_be_converted_to_std() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            // A receive is in flight and has received bytes already.
            let (client, server) = pair().await;
            leave_unread(&client, &server, "hello").await;
            let refused = server.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
            let server = refused.into_inner();
            // It has completed, and some of its bytes are unread.
            let (result, buf) = server.read(Vec::with_capacity(2)).await;
            assert_eq!((result.unwrap(), &buf[..]), (2, &b"he"[..]));
            let server = server.into_std().unwrap_err().into_inner();
            let (result, buf) = server.read(Vec::with_capacity(8)).await;
            assert_eq!((result.unwrap(), &buf[..]), (3, &b"llo"[..]));
            let server = server.into_std().unwrap();

            // A send is in flight.
            let mut writing = Box::pin(client.write_all(vec![0; 64 << 20]));
            // Fills the socket buffer: then the send waits in the kernel.
            for _ in 0..100 {
                assert!(poll_once(writing.as_mut()).await.is_pending());
                turns(2).await;
            }
            drop(writing);
            let client = client.into_std().unwrap_err().into_inner();
            drop(server);
            client.shutdown(Shutdown::Write).await.ok();
            client.into_std().unwrap();
        });
    });
}

#[test]
fn a_listener_converts_to_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0")
                .await
                .unwrap()
                .into_std()
                .await
                .unwrap();
            let addr = listener.local_addr().unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            assert_eq!(listener.local_addr().unwrap(), addr);
            pair_of(&listener).await;
            // Its accept is pending in the kernel, and is cancelled.
            let listener = TcpListener::from_std(listener.into_std().await.unwrap()).unwrap();
            pair_of(&listener).await;
            // A pending connection was either accepted already, and must not be lost, or still waits in the backlog.
            let waiting = std::net::TcpStream::connect(addr).unwrap();
            turns(5).await;
            let listener = match listener.into_std().await {
                Ok(listener) => TcpListener::from_std(listener).unwrap(),
                Err(refused) => {
                    assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
                    refused.into_inner()
                }
            };
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, waiting.local_addr().unwrap());
        });
    });
}

/// A socket that outlives its loop can only be closed; every other call returns an error that says so.
#[test]
fn a_socket_whose_loop_has_closed_returns_an_error() {
    on_every_driver(|case| {
        let (listener, client, _server) = case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (client, server) = pair_of(&listener).await;
            (listener, client, server)
        });
        case.run(async move {
            let errors = [
                client.read(vec![0; 8]).await.0.unwrap_err(),
                client.write_all("any").await.0.unwrap_err(),
                client.read_managed().await.unwrap_err(),
                listener.accept().await.unwrap_err(),
                client.peer_addr().unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.to_string(), "the event loop has closed");
                assert_eq!(error.kind(), ErrorKind::NotConnected);
            }
            // More synchronous results than a budget allows: the budget of a loop that does not run is never refilled.
            for _ in 0..200 {
                client.read(vec![0; 8]).await.0.unwrap_err();
            }
        });
    });
}

/// The null driver's sockets cannot be used as kernel sockets, nor the other way round.
#[test]
fn null_driver_sockets_do_not_mix_with_kernel_sockets() {
    on_every_driver(|case| {
        if case.is_kernel() {
            return;
        }
        case.run(async move {
            let (client, _server) = pair().await;
            assert!(is_null_driver_number(number_of(&client)));
            let refused = client.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::Unsupported);
            if !cfg!(miri) {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                TcpListener::from_std(listener).unwrap_err();
            }
        });
    });
}

#[cfg(unix)]
#[test]
fn every_socket_closes_on_exec() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (client, server) = pair_of(&listener).await;
            for fd in [listener.as_fd(), client.as_fd(), server.as_fd()] {
                // SAFETY: the descriptor is open, and fcntl(2) only reads its flags.
                let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
                assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            }
        });
    });
}

/// The peer resets while a large write is pending. The writer gets ECONNRESET, not just EPIPE.
#[test]
fn a_reset_during_a_write_is_returned() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for _ in 0..10 {
                let (client, server) = pair().await;
                let writing = windlass::spawn(async move { client.write_all(vec![7; 16 << 20]).await.0 });
                // The socket buffer is full, and the rest waits.
                server.read_exact(vec![0; 1 << 20]).await.0.unwrap();
                crate::support::reset_on_close(&server);
                drop(server);
                let error = writing.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            }
        });
    });
}
