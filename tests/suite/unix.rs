//! Unix sockets: streams, datagrams, addresses, credentials. Compared with std.

use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{
    SocketAddr, UnixDatagram as StdDatagram, UnixListener as StdListener, UnixStream as StdStream,
};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use windlass::net::{UnixDatagram, UnixListener, UnixStream};
use windlass::time::{sleep, timeout};

use crate::bytes::numbered;
use crate::child::{UNDISTURBED, in_own_process};
use crate::support::hoard;
use crate::support::{
    Folder, Random, assert_same, exceptions_of, gather, is_interrupted, on_every_driver, on_every_kernel_driver,
    poll_once, rounds, turns, uninterrupted,
};

/// A deadline for events that should come at once.
const SOON: Duration = Duration::from_secs(60);

pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: timed out"),
    }
}

/// Asserts that both have the same path or abstract name, or are both unnamed.
fn assert_same_addr(ours: &SocketAddr, theirs: &SocketAddr) {
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    assert_eq!(ours.as_pathname(), theirs.as_pathname());
    assert_eq!(ours.is_unnamed(), theirs.is_unnamed());
}

#[test]
fn connections_through_a_path() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
            assert!(format!("{listener:?}").contains("socket"));
            // One client of windlass and one of std.
            let ours = UnixStream::connect(&path).await.unwrap();
            let mut theirs = StdStream::connect(&path).unwrap();
            let (first, peer) = soon("ours", listener.accept()).await.unwrap();
            assert_same_addr(&peer, &theirs.local_addr().unwrap());
            assert!(peer.is_unnamed());
            let (second, _) = soon("theirs", listener.accept()).await.unwrap();
            assert_same_addr(&ours.peer_addr().unwrap(), &theirs.peer_addr().unwrap());
            assert_same_addr(&ours.local_addr().unwrap(), &theirs.local_addr().unwrap());
            assert_eq!(first.local_addr().unwrap().as_pathname(), Some(&*path));

            ours.write_all("ping").await.0.unwrap();
            assert_eq!(&*soon("ping", first.read_managed()).await.unwrap(), b"ping");
            theirs.write_all(b"from std").unwrap();
            let (result, buf) = soon("from std", second.read_exact([0; 8])).await;
            result.unwrap();
            assert_eq!(&buf, b"from std");
            second.write_all_vectored(vec!["to ", "std"]).await.0.unwrap();
            second.shutdown(Shutdown::Write).await.unwrap();
            let mut text = String::new();
            theirs.read_to_string(&mut text).unwrap();
            assert_eq!(text, "to std");
            drop(first);
            assert!(soon("the end", ours.read_managed()).await.unwrap().is_empty());
            let error = ours.write_all("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    });
}

/// A closed peer does not kill a process whose SIGPIPE is not ignored.
#[test]
fn writing_to_a_closed_peer_raises_no_sigpipe() {
    in_own_process("unix::writing_to_a_closed_peer_raises_no_sigpipe", &[], || {
        on_every_driver(|case| {
            // SAFETY: the default disposition runs no code of this program.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            case.run(async {
                let (one, other) = UnixStream::pair().unwrap();
                drop(other);
                assert_eq!(one.write("x").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
                let (result, _) = one.write_vectored(vec!["x", "y"]).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
                let (result, _) = one.send_with_fds("x", Vec::new()).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
                let (one, other) = UnixDatagram::pair().unwrap();
                drop(other);
                one.send("x").await.0.unwrap_err();
            });
        });
    });
}

#[cfg(target_os = "linux")]
#[test]
fn connections_through_an_abstract_name() {
    use std::os::linux::net::SocketAddrExt;
    on_every_kernel_driver(|case| {
        case.run(async {
            let name = format!("windlass test {} {}", std::process::id(), case.name);
            // An abstract name may contain any byte, including NUL.
            for name in [name.clone(), format!("{name}\0with NUL")] {
                let addr = SocketAddr::from_abstract_name(&name).unwrap();
                let listener = UnixListener::bind_addr(&addr).unwrap();
                assert_eq!(listener.local_addr().unwrap().as_abstract_name(), Some(name.as_bytes()));
                let ours = UnixStream::connect_addr(&addr).await.unwrap();
                let path = format!("\0{name}");
                let also_ours = UnixStream::connect(&path).await.unwrap();
                let theirs = StdStream::connect_addr(&addr).unwrap();
                assert_same_addr(&ours.peer_addr().unwrap(), &theirs.peer_addr().unwrap());
                assert_same_addr(&also_ours.peer_addr().unwrap(), &theirs.peer_addr().unwrap());
                for _ in 0..3 {
                    soon("a connection", listener.accept()).await.unwrap();
                }
                let error = UnixListener::bind(&path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::AddrInUse);
                assert!(error.to_string().contains("@windlass test"), "{error}");
                drop(listener);
                turns(3).await;
                // A process that another test starts holds copies of our descriptors between fork and exec.
                let refused = async {
                    loop {
                        match UnixStream::connect(&path).await {
                            Ok(_) => sleep(Duration::from_millis(1)).await,
                            Err(error) => return error,
                        }
                    }
                };
                let error = soon("a refusal", refused).await;
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                assert!(error.to_string().contains("@windlass test"), "{error}");

                let (one, other) = (UnixDatagram::bind(&path).unwrap(), UnixDatagram::unbound().unwrap());
                other.send_to_addr("x", &addr).await.0.unwrap();
                other.send_to("y", &path).await.0.unwrap();
                other.connect_addr(&addr).await.unwrap();
                other.send("z").await.0.unwrap();
                for _ in 0..3 {
                    assert!(soon("x", one.recv_from([0; 4])).await.0.unwrap().1.is_unnamed());
                }
            }
        });
    });
}

#[test]
fn invalid_addresses_are_errors() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let long = folder.join(&"x".repeat(200));
            let bad = [Path::new(""), Path::new("a\0b"), &long];
            for path in bad {
                let errors = [
                    UnixListener::bind(path).unwrap_err(),
                    UnixStream::connect(path).await.unwrap_err(),
                    UnixDatagram::bind(path).unwrap_err(),
                    UnixDatagram::unbound().unwrap().connect(path).await.unwrap_err(),
                    UnixDatagram::unbound().unwrap().send_to("x", path).await.0.unwrap_err(),
                ];
                for error in errors {
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
                }
            }
            let error = UnixListener::bind(&long).unwrap_err().to_string();
            assert!(error.contains("xxx") && error.contains("exceeds the limit"), "{error}");
            // The longest possible path.
            let most = size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path) - 1;
            let path = folder.join(&"y".repeat(most - folder.path().as_os_str().len() - 1));
            let listener = UnixListener::bind(&path).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
            UnixStream::connect(&path).await.unwrap();
            // One byte more is an error, as in std.
            let path = path.with_file_name("y".repeat(most - folder.path().as_os_str().len()));
            assert_same(
                "too long",
                UnixListener::bind(&path).map(|_| ()),
                StdListener::bind(&path).map(|_| ()),
            );

            // In use, missing, without a listener, not a socket: as in std, and with the path.
            let used = folder.join("used");
            let _listener = UnixListener::bind(&used).unwrap();
            let refusing = folder.join("refusing");
            drop(UnixListener::bind(&refusing).unwrap());
            turns(3).await;
            let plain = folder.file("plain", "");
            for path in [&used, &refusing, &plain, &folder.join("no/such/folder")] {
                let error = UnixListener::bind(path).unwrap_err();
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert_same(path, Err(error), StdListener::bind(path).map(|_| ()));
                let error = UnixDatagram::bind(path).unwrap_err();
                assert_same(path, Err(error), StdDatagram::bind(path).map(|_| ()));
            }
            assert_eq!(UnixListener::bind(&used).unwrap_err().kind(), ErrorKind::AddrInUse);
            for path in [&folder.join("missing"), &refusing, &plain, folder.path()] {
                let error = UnixStream::connect(path).await.unwrap_err();
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert_same(path, Err(error), StdStream::connect(path).map(|_| ()));
                let theirs = StdDatagram::unbound().unwrap();
                let ours = UnixDatagram::unbound().unwrap();
                let error = ours.connect(path).await.unwrap_err();
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert_same(path, Err(error), theirs.connect(path));
                let error = ours.send_to("x", path).await.0.unwrap_err();
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert_same(path, Err(error), theirs.send_to(b"x", path));
            }
            let missing = UnixStream::connect(folder.join("missing")).await.unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            // A stream socket is not a datagram socket.
            let error = UnixDatagram::unbound().unwrap().connect(&used).await.unwrap_err();
            assert_same("kind", Err(error), StdDatagram::unbound().unwrap().connect(&used));
        });
    });
}

/// A path without permission is an error. Root may access any path, so there the test drops its privileges in its own
/// process.
#[test]
fn a_forbidden_path_is_an_error() {
    in_own_process("unix::a_forbidden_path_is_an_error", &[], || {
        on_every_kernel_driver(|case| {
            use std::os::unix::fs::PermissionsExt;
            let folder = Folder::new();
            let path = folder.join("socket");
            let listener = StdListener::bind(&path).unwrap();
            let permit = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            permit(0);
            // SAFETY: these calls only read and set ids of the process.
            let was_root = unsafe { libc::geteuid() } == 0;
            // SAFETY: as above.
            if was_root && unsafe { libc::seteuid(65_534) } != 0 {
                return println!("-- SKIPPED: root may access any path, and cannot drop its privileges here");
            }
            case.run(async {
                let error = UnixStream::connect(&path).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                assert_eq!(windlass::os_code(&error), Some(libc::EACCES));
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                let there = Path::new("/proc/windlass-test");
                assert_same(
                    "bind",
                    UnixListener::bind(there).map(|_| ()),
                    StdListener::bind(there).map(|_| ()),
                );
            });
            // SAFETY: as above.
            assert!(!was_root || unsafe { libc::seteuid(0) } == 0);
            permit(0o700);
            drop(listener);
        });
    });
}

#[test]
fn peer_credentials_are_right() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let client = UnixStream::connect(&path).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let (one, other) = UnixStream::pair().unwrap();
            // SAFETY: these calls only read ids of the process.
            let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
            for stream in [&client, &server, &one, &other] {
                let credentials = stream.peer_credentials().unwrap();
                assert_eq!((credentials.user, credentials.group), (user, group));
                let process = cfg!(target_os = "linux").then(std::process::id);
                assert_eq!(credentials.process, process);
            }
        });
    });
}

#[test]
fn a_pair_can_be_split_and_reunited() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, other) = UnixStream::pair().unwrap();
            let theirs = StdStream::pair().unwrap();
            assert_same_addr(&one.local_addr().unwrap(), &theirs.0.local_addr().unwrap());
            assert_same_addr(&other.peer_addr().unwrap(), &theirs.1.peer_addr().unwrap());
            for stream in [&one, &other] {
                // SAFETY: the descriptor is open, and fcntl(2) only reads its flags.
                unsafe {
                    assert_eq!(libc::fcntl(stream.as_raw_fd(), libc::F_GETFD), libc::FD_CLOEXEC);
                    assert_ne!(libc::fcntl(stream.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK, 0);
                }
            }
            // Both directions at once, with more bytes than the kernel buffers.
            let len = 1 << 20;
            let echo = windlass::spawn(async move {
                let (read, write) = other.split();
                loop {
                    let bytes = read.read_managed().await.unwrap();
                    if bytes.is_empty() {
                        write.shutdown().await.unwrap();
                        return other;
                    }
                    write.write_all(bytes).await.0.unwrap();
                }
            });
            let (read, write) = one.into_split();
            let writing = windlass::spawn(async move {
                write.write_all(numbered(len)).await.0.unwrap();
                write
            });
            let (result, bytes) = read.read_exact(vec![0; len]).await;
            result.unwrap();
            assert!(bytes == numbered(len));
            let write = writing.await.unwrap();
            // Halves of the same stream can be reunited, others cannot.
            let (foreign_read, foreign_write) = UnixStream::pair().unwrap().0.into_split();
            let refused = read.reunite(foreign_write).unwrap_err();
            let (read, foreign_write) = (refused.0, refused.1);
            foreign_read.reunite(foreign_write).unwrap();
            let one = read.reunite(write).unwrap();
            one.shutdown(Shutdown::Write).await.unwrap();
            assert!(soon("the end", one.read_managed()).await.unwrap().is_empty());
            echo.await.unwrap();
            // A dropped write half ends the stream.
            let (one, other) = UnixStream::pair().unwrap();
            let (read, write) = one.into_split();
            drop(write);
            assert!(soon("the end", other.read_managed()).await.unwrap().is_empty());
            other.write_all("still open").await.0.unwrap();
            assert_eq!(&*soon("still open", read.read_managed()).await.unwrap(), b"still open");
        });
    });
}

/// Sets the shortest possible backlog.
#[cfg(target_os = "linux")]
fn shorten_backlog(listener: &impl AsRawFd) {
    // SAFETY: the descriptor is a listening socket; listen(2) only changes its backlog.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
}

/// Only Linux makes the client wait; other systems refuse the connection.
#[cfg(target_os = "linux")]
#[test]
fn connect_waits_for_a_full_backlog() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            shorten_backlog(&listener);
            let _first = UnixStream::connect(&path).await.unwrap();
            // More clients than threads that could wait for them.
            let waiting: Vec<_> = (0..40u8)
                .map(|number| {
                    let path = path.clone();
                    windlass::spawn(async move {
                        let stream = UnixStream::connect(&path).await.unwrap();
                        stream.write_all([number]).await.0.unwrap();
                        stream
                    })
                })
                .collect();
            // A dropped connect leaves nothing behind.
            let given_up = timeout(Duration::from_millis(30), UnixStream::connect(&path)).await;
            assert!(given_up.is_err(), "the backlog was not full");
            assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
            let workers = names.filter(|name| name.starts_with("iou-wrk")).count();
            println!("{workers} io_uring worker threads");
            // Files and timers work meanwhile.
            let file = folder.file("file", "contents");
            assert_eq!(soon("a file", windlass::fs::read(&file)).await.unwrap(), b"contents");
            let mut numbers = Vec::new();
            let mut held = Vec::new();
            held.push(soon("the first", listener.accept()).await.unwrap());
            while numbers.len() < 40 {
                let (stream, addr) = soon("one that waited", listener.accept()).await.unwrap();
                let (result, byte) = soon("its number", stream.read_exact([0])).await;
                result.unwrap();
                numbers.push(byte[0]);
                held.push((stream, addr));
            }
            numbers.sort_unstable();
            assert_eq!(numbers, (0..40).collect::<Vec<u8>>());
            for stream in waiting {
                soon("connected", stream).await.unwrap();
            }
            // A connect that waits for a listener fails when the listener closes.
            shorten_backlog(&listener);
            let fill: Vec<_> = (0..3)
                .map(|_| {
                    let path = path.clone();
                    windlass::spawn(async move { UnixStream::connect(&path).await })
                })
                .collect();
            sleep(Duration::from_millis(20)).await;
            drop(listener);
            let mut errors = 0;
            for stream in fill {
                if let Err(error) = soon("a result", stream).await.unwrap() {
                    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
                    errors += 1;
                }
            }
            println!("{errors} were refused");
        });
    });
}

#[test]
fn bytes_of_a_closed_peer_are_received() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            for _ in 0..5 {
                let mut client = StdStream::connect(&path).unwrap();
                client.write_all(b"my last words").unwrap();
                drop(client);
                let (stream, peer) = soon("accept", listener.accept()).await.unwrap();
                assert!(peer.is_unnamed());
                assert_eq!(&*stream.read_managed().await.unwrap(), b"my last words");
                assert!(stream.read_managed().await.unwrap().is_empty());
            }
        });
    });
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            for round in 0..rounds().min(200) {
                let mut client = {
                    let mut accepting = pin!(listener.accept());
                    if round % 2 == 0 {
                        assert!(poll_once(accepting.as_mut()).await.is_pending());
                    }
                    let client = StdStream::connect(&path).unwrap();
                    turns(round as u64 % 3).await;
                    client
                };
                client.write_all(&[round as u8]).unwrap();
                let (stream, _) = soon("the client", listener.accept()).await.unwrap();
                let (result, byte) = soon("its byte", stream.read_exact([0])).await;
                result.unwrap();
                assert_eq!(byte, [round as u8]);
            }
        });
    });
}

#[test]
fn sockets_convert_to_std_and_back() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let listener = UnixListener::bind(&path).unwrap().into_std().await.unwrap();
            let listener = UnixListener::from_std(listener).unwrap();
            let client = StdStream::connect(&path).unwrap();
            let (server, _) = soon("accept", listener.accept()).await.unwrap();
            let client = UnixStream::from_std(client).unwrap();
            // Refused while bytes would be lost.
            {
                let mut reading = pin!(server.read([0; 16]));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                client.write_all("kept").await.0.unwrap();
            }
            let refused = server.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
            let server = refused.into_inner();
            assert_eq!(&*server.read_managed().await.unwrap(), b"kept");
            client.write_all("for std").await.0.unwrap();
            let mut server = server.into_std().unwrap();
            let mut buf = [0; 16];
            assert_eq!(server.read(&mut buf).unwrap(), 7);
            assert_eq!(server.read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);

            let (one, other) = UnixDatagram::pair().unwrap();
            let one = one.into_std().unwrap();
            one.send(b"from std").unwrap();
            assert_eq!(soon("from std", other.recv([0; 16])).await.0.unwrap(), 8);
            let one = UnixDatagram::from_std(one).unwrap();
            other.send("back").await.0.unwrap();
            assert_eq!(soon("back", one.recv([0; 16])).await.0.unwrap(), 4);
        });
    });
}

/// As for TCP: `accept` returns no error when the process has no free descriptors.
#[test]
fn accept_pauses_without_descriptors() {
    in_own_process("unix::accept_pauses_without_descriptors", &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            drop(hoard(0));
            let folder = Folder::new();
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let result = event_loop.run_until_complete(async {
                let path = folder.join("socket");
                let listener = UnixListener::bind(&path).unwrap();
                let served = Rc::new(std::cell::RefCell::new(Vec::new()));
                windlass::spawn({
                    let served = served.clone();
                    async move {
                        loop {
                            let (stream, _) = listener.accept().await.expect("no error of accept");
                            served.borrow_mut().push(stream);
                        }
                    }
                });
                let clients: Vec<_> = (0..50).map(|_| StdStream::connect(&path).unwrap()).collect();
                let hoard = hoard(10);
                let until = async |is_so: &dyn Fn() -> bool| {
                    let waiting = async {
                        while !is_so() {
                            sleep(Duration::from_millis(50)).await;
                        }
                    };
                    soon("accepting", waiting).await;
                };
                until(&|| served.borrow().len() >= 10 && exceptions.borrow().len() == 1).await;
                sleep(Duration::from_millis(50)).await;
                assert!((10..=11).contains(&served.borrow().len()), "{}", served.borrow().len());
                let (before, begin) = (windlass::counters().driver.submissions, Instant::now());
                let tries = || windlass::counters().driver.submissions - before;
                until(&|| tries() >= 2).await;
                let (tries, took) = (tries(), begin.elapsed());
                assert!(tries <= took.as_millis() as u64 / 100 + 2, "{tries} tries in {took:?}");
                assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
                drop(hoard);
                until(&|| served.borrow().len() == 50).await;
                for stream in served.take() {
                    stream.write_all("x").await.0.unwrap();
                }
                for mut client in clients {
                    uninterrupted(|| client.read_exact(&mut [0])).unwrap();
                }
                assert_eq!(exceptions.borrow().len(), 1);
            });
            result.expect("the loop runs");
        });
    });
}

#[test]
fn datagrams_behave_as_in_std() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let (here, there) = (folder.join("here"), folder.join("there"));
            let ours = UnixDatagram::bind(&here).unwrap();
            let theirs = StdDatagram::bind(&there).unwrap();
            assert_eq!(ours.local_addr().unwrap().as_pathname(), Some(&*here));
            assert!(format!("{ours:?}").contains("here"));
            for len in [0, 1, 1_000, 60_000] {
                let (sent, back) = ours.send_to(numbered(len), &there).await;
                assert_eq!((sent.unwrap(), back.len()), (len, len));
                let mut buf = vec![0; 65_536];
                let (count, from) = theirs.recv_from(&mut buf).unwrap();
                assert_eq!((count, from.as_pathname()), (len, Some(&*here)));
                assert!(buf[..len] == numbered(len));
                theirs.send_to(&numbered(len), &here).unwrap();
                let (result, buf) = soon("from std", ours.recv_from(Vec::with_capacity(65_536))).await;
                let (count, from) = result.unwrap();
                assert_eq!((count, from.as_pathname()), (len, Some(&*there)));
                assert!(buf == numbered(len));
                // The reply goes to the sender's address.
                ours.send_to_addr("answer", &from).await.0.unwrap();
                assert_eq!(theirs.recv(&mut [0; 16]).unwrap(), 6);
            }
            // From an unnamed socket, and to a path without a socket.
            let unbound = UnixDatagram::unbound().unwrap();
            unbound.send_to("x", &here).await.0.unwrap();
            let (_, from) = soon("x", ours.recv_from([0; 16])).await.0.unwrap();
            assert!(from.is_unnamed());
            let error = ours.send_to_addr("x", &from).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = unbound.send("x").await.0.unwrap_err();
            assert_same("send", Err(error), StdDatagram::unbound().unwrap().send(b"x"));
            // Truncated, and reported.
            theirs.send_to(b"much too long", &here).unwrap();
            theirs.send_to(b"short", &here).unwrap();
            let (result, buf) = soon("truncated", ours.recv_from([0; 4])).await;
            let error = result.unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(libc::EMSGSIZE), "{error}");
            assert_eq!(&buf, b"much");
            let (result, buf) = soon("short", ours.recv([0; 16])).await;
            assert_eq!(&buf[..result.unwrap()], b"short");
        });
    });
}

/// Unlike UDP, no datagram is lost. A send waits for a full queue, whichever socket filled it and however the sender is
/// connected.
#[test]
fn a_send_waits_for_a_full_queue() {
    on_every_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            for (is_connected, is_own) in [(true, true), (true, false), (false, true), (false, false)] {
                if !is_own && !case.is_kernel() {
                    continue;
                }
                let path = folder.join(&format!("{is_connected}-{is_own}"));
                let receiver = UnixDatagram::bind(&path).unwrap();
                let sender = UnixDatagram::unbound().unwrap();
                if is_connected {
                    sender.connect(&path).await.unwrap();
                }
                // Fills the queue.
                let mut filled = 0;
                if is_own {
                    while timeout(Duration::from_millis(20), send(&sender, is_connected, &path))
                        .await
                        .is_ok()
                    {
                        filled += 1;
                    }
                } else {
                    let filler = StdDatagram::unbound().unwrap();
                    filler.set_nonblocking(true).unwrap();
                    while filler.send_to(b"filler", &path).is_ok() {
                        filled += 1;
                    }
                }
                assert!(filled > 0);
                let sending = windlass::spawn({
                    let path = path.clone();
                    async move { send(&sender, is_connected, &path).await }
                });
                sleep(Duration::from_millis(20)).await;
                assert!(!sending.is_finished());
                let work = || {
                    let counters = windlass::counters();
                    counters.turns + counters.driver.enters + counters.driver.submissions
                };
                let before = work();
                let begin = Instant::now();
                sleep(Duration::from_millis(100)).await;
                // On systems without a readiness event for this, the sender retries periodically.
                let (work, took) = (work() - before, begin.elapsed());
                assert!(
                    work <= 50 + took.as_millis() as u64 * 2 || is_interrupted(),
                    "{work} turns, system calls and submissions for waiting"
                );
                for _ in 0..=filled {
                    soon("a datagram", receiver.recv([0; 16])).await.0.unwrap();
                }
                let what = format!("connected: {is_connected}, filled by itself: {is_own}");
                soon(&what, sending).await.unwrap();
            }
        });
    });
}

async fn send(sender: &UnixDatagram, is_connected: bool, path: &Path) {
    let (result, _) = match is_connected {
        true => sender.send("datagram").await,
        false => sender.send_to("datagram", path).await,
    };
    assert_eq!(result.unwrap(), 8);
}

/// After a dropped send that had to wait, the socket can connect to another peer.
#[test]
fn a_socket_with_a_dropped_send_can_connect_again() {
    on_every_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let (full, free) = (folder.join("full"), folder.join("free"));
            let (_slow, quick) = (UnixDatagram::bind(&full).unwrap(), UnixDatagram::bind(&free).unwrap());
            let sender = UnixDatagram::unbound().unwrap();
            sender.connect(&full).await.unwrap();
            while timeout(Duration::from_millis(20), sender.send("x")).await.is_ok() {}
            soon("connect", sender.connect(&free)).await.unwrap();
            assert_eq!(sender.peer_addr().unwrap().as_pathname(), Some(&*free));
            soon("send", sender.send("y")).await.0.unwrap();
            assert_eq!(soon("receive", quick.recv([0; 4])).await.0.unwrap(), 1);
        });
    });
}

#[test]
fn dropped_receives_lose_no_datagram() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let mut random = Random::new(11);
            let path = folder.join("socket");
            let receiver = UnixDatagram::bind(&path).unwrap();
            let names = [folder.join("a"), folder.join("b")];
            let senders = names.each_ref().map(|name| StdDatagram::bind(name).unwrap());
            let mut expected = std::collections::VecDeque::new();
            let mut number = 0;
            while number < rounds() || !expected.is_empty() {
                let mut receiving = pin!(receiver.recv_from(Vec::with_capacity(100)));
                let mut received = std::task::Poll::Pending;
                if random.below(2) == 0 {
                    received = poll_once(receiving.as_mut()).await;
                }
                if number < rounds() && expected.len() < 6 {
                    for _ in 0..random.below(3) {
                        let sender = random.below(2) as usize;
                        let bytes = numbered(random.below(4) as usize * 10 + number % 7);
                        senders[sender].send_to(&bytes, &path).unwrap();
                        expected.push_back((sender, bytes));
                        number += 1;
                    }
                }
                for _ in 0..random.below(4) {
                    if received.is_pending() {
                        received = poll_once(receiving.as_mut()).await;
                        turns(random.below(2)).await;
                    }
                }
                if let std::task::Poll::Ready((result, bytes)) = received {
                    let (_, from) = result.unwrap();
                    let (sender, wanted) = expected.pop_front().expect("a datagram came twice");
                    assert_eq!((from.as_pathname(), bytes), (Some(&*names[sender]), wanted));
                }
            }
        });
    });
}

/// Readiness is edge-triggered. A datagram, or bytes sent with descriptors, end a receive although more bytes are
/// queued.
#[test]
fn a_short_receive_does_not_clear_readiness() {
    on_every_driver(|case| {
        case.run(async {
            for round in 0..rounds().min(100) {
                let (one, other) = UnixStream::pair().unwrap();
                let other = Rc::new(other);
                let reading = windlass::spawn({
                    let other = other.clone();
                    async move { other.read(Vec::with_capacity(64)).await.1 }
                });
                if round % 2 == 0 {
                    sleep(Duration::from_micros(100)).await;
                } else {
                    turns(2).await;
                }
                // Three writes are queued; the second carries a descriptor.
                let (first, second) = (io::pipe().unwrap(), io::pipe().unwrap());
                let sending = [
                    one.send_with_fds("aa", vec![first.0.into()]),
                    one.send_with_fds("bb", vec![second.0.into()]),
                ];
                for sending in sending {
                    sending.await.0.unwrap();
                }
                one.write_all("cc").await.0.unwrap();
                let mut bytes = soon("the first", reading).await.unwrap();
                while bytes.len() < 6 {
                    bytes.extend(soon("the rest", other.read(Vec::with_capacity(64))).await.1);
                }
                assert_eq!(bytes, b"aabbcc");
            }
            // Before any read.
            let (one, other) = UnixStream::pair().unwrap();
            timeout(Duration::from_millis(1), other.read(vec![0; 4])).await.ok();
            for way in 0..3 {
                for number in 0..4u8 {
                    let fd = io::pipe().unwrap().0.into();
                    one.send_with_fds([number; 2], vec![fd]).await.0.unwrap();
                }
                sleep(Duration::from_millis(1)).await;
                let mut bytes = Vec::new();
                while bytes.len() < 8 {
                    bytes.extend(match way {
                        0 => soon("read", other.read(Vec::with_capacity(64))).await.1,
                        1 => soon("managed", other.read_managed()).await.unwrap().to_vec(),
                        _ => {
                            let reading = other.read_vectored(vec![Vec::with_capacity(16), Vec::with_capacity(16)]);
                            soon("vectored", reading).await.1.concat()
                        }
                    });
                }
                assert_eq!(bytes, [0, 0, 1, 1, 2, 2, 3, 3], "way {way}");
            }
        });
    });
}

/// Names of Unix sockets: which are taken, which are refused, and what each end sees.
#[test]
fn sockets_have_names() {
    on_every_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let path = folder.join("socket");
            let kind = |error: io::Error| error.kind();
            assert_eq!(kind(UnixStream::connect(&path).await.unwrap_err()), ErrorKind::NotFound);
            let listener = UnixListener::bind(&path).unwrap();
            assert_eq!(kind(UnixListener::bind(&path).unwrap_err()), ErrorKind::AddrInUse);
            assert_eq!(kind(UnixDatagram::bind(&path).unwrap_err()), ErrorKind::AddrInUse);
            let datagram = UnixDatagram::unbound().unwrap();
            let error = datagram.connect(&path).await.unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(libc::EPROTOTYPE));
            let client = UnixStream::connect(&path).await.unwrap();
            let (server, peer) = soon("accept", listener.accept()).await.unwrap();
            assert!(peer.is_unnamed() && client.local_addr().unwrap().is_unnamed());
            for addr in [client.peer_addr(), server.local_addr(), listener.local_addr()] {
                assert_eq!(addr.unwrap().as_pathname(), Some(&*path));
            }
            client.write_all("ping").await.0.unwrap();
            assert_eq!(gather(4, || soon("ping", server.read_managed())).await, b"ping");
            // A close with unread bytes is a reset.
            client.write_all("unread").await.0.unwrap();
            drop(server);
            let error = soon("a reset", client.read_managed()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            // The path outlives its listener.
            drop(listener);
            turns(3).await;
            assert_eq!(kind(UnixListener::bind(&path).unwrap_err()), ErrorKind::AddrInUse);
            assert_eq!(
                kind(UnixStream::connect(&path).await.unwrap_err()),
                ErrorKind::ConnectionRefused
            );
            windlass::fs::remove_file(&path).await.unwrap();
            assert_eq!(kind(UnixStream::connect(&path).await.unwrap_err()), ErrorKind::NotFound);
            assert!(windlass::fs::remove_file(&path).await.is_err());
            drop(UnixListener::bind(&path).unwrap());
        });
    });
}

/// Datagrams of Unix sockets: boundaries, senders, truncation, and which sockets may send.
#[test]
fn datagrams_have_senders_and_boundaries() {
    on_every_driver(|case| {
        let folder = Folder::new();
        case.run(async {
            let [one, two, three] = ["one", "two", "three"].map(|name| {
                let path = folder.join(name);
                (UnixDatagram::bind(&path).unwrap(), path)
            });
            for len in [0, 1, 1_000] {
                assert_eq!(one.0.send_to(numbered(len), &two.1).await.0.unwrap(), len);
                let (result, bytes) = soon("a datagram", two.0.recv_from(Vec::with_capacity(2_000))).await;
                let (count, from) = result.unwrap();
                assert_eq!((count, from.as_pathname()), (len, Some(&*one.1)));
                assert!(bytes == numbered(len));
            }
            one.0.send_to("much too long", &two.1).await.0.unwrap();
            one.0.send_to("short", &two.1).await.0.unwrap();
            let (result, bytes) = soon("truncated", two.0.recv_from([0; 4])).await;
            assert_eq!(windlass::os_code(&result.unwrap_err()), Some(libc::EMSGSIZE));
            assert_eq!(&bytes, b"much");
            assert_eq!(soon("short", two.0.recv([0; 8])).await.0.unwrap(), 5);
            // A connected socket takes datagrams of its peer only.
            two.0.connect(&one.1).await.unwrap();
            let error = three.0.send_to("x", &two.1).await.0.unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(libc::EPERM));
            one.0.send_to("y", &two.1).await.0.unwrap();
            assert_eq!(soon("y", two.0.recv([0; 8])).await.0.unwrap(), 1);
            let error = three.0.send("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            drop(one);
            turns(3).await;
            let error = two.0.send("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        });
    });
}

/// A write to a full stream waits, and its descriptors arrive with its bytes.
#[test]
fn writes_that_waited_arrive_whole() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = UnixStream::pair().unwrap();
            let mut filled = 0;
            while let Ok((result, _)) = timeout(Duration::from_millis(20), one.write(vec![7; 10_000])).await {
                filled += result.unwrap();
            }
            let one = Rc::new(one);
            let sending = windlass::spawn({
                let one = one.clone();
                async move {
                    one.send_with_fds("numbered", vec![io::pipe().unwrap().0.into()])
                        .await
                        .0
                }
            });
            sleep(Duration::from_millis(20)).await;
            assert!(!sending.is_finished());
            let mut bytes = Vec::new();
            let mut fds = 0;
            while !bytes.ends_with(b"numbered") {
                let (received, some) = soon("more", other.recv_with_fds(Vec::with_capacity(4_096), 4)).await;
                bytes.extend(some);
                fds += received.unwrap().fds.len();
            }
            assert_eq!(soon("sent", sending).await.unwrap().unwrap(), 8);
            // A dropped write may have sent any prefix.
            assert!(
                bytes.len() >= filled + 8 && fds == 1,
                "{} bytes, {fds} descriptors",
                bytes.len()
            );
        });
    });
}
