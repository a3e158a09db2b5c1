//! TCP: what a connection promises on every driver.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::{IoBuf, IoBufMut};
use windlass::net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
use windlass::time::timeout;

use crate::child::in_own_process;
use crate::support::{Case, Random, on_every_driver, on_every_kernel_driver, pair, pair_of, poll_once, turns};

/// Bytes that tell where they belong. They repeat after a prime number of them, so that no piece of a usual size fits
/// where another belongs; a block that repeats is made fast even under Miri.
fn numbered(len: usize) -> Vec<u8> {
    const PERIOD: u32 = 4_099;
    let block: Vec<u8> = (0..PERIOD)
        .map(|at| at.wrapping_mul(0x9E37_79B1).to_le_bytes()[3])
        .collect();
    let mut bytes = block.repeat(len.div_ceil(block.len()));
    bytes.truncate(len);
    bytes
}

async fn read_to_end(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = stream.read_managed().await.unwrap();
        if bytes.is_empty() {
            return all;
        }
        all.extend_from_slice(&bytes);
    }
}

fn set_option(stream: &TcpStream, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the descriptor is open, and the option's value outlives the call.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// So small a buffer that nearly every send is a short one.
fn narrow(case: Case, sender: &TcpStream) {
    if case.is_kernel() {
        set_option(sender, libc::SO_SNDBUF, 4096);
    }
}

/// Several tasks write records to one stream at the same time: each record arrives in one piece.
#[test]
fn concurrent_writes_do_not_mix() {
    on_every_driver(|case| {
        case.run(async move {
            const WRITERS: u8 = if cfg!(miri) { 2 } else { 6 };
            const SPREAD: u64 = if cfg!(miri) { 50 } else { 50_000 };
            let records = if cfg!(miri) { 1 } else { 4 };
            // More than the null driver's pipe holds.
            let body = 70_000;
            let (client, server) = pair().await;
            narrow(case, &client);
            let client = Rc::new(client);
            for writer in 0..WRITERS {
                let client = client.clone();
                windlass::spawn(async move {
                    let mut random = Random::new(u64::from(writer));
                    for _ in 0..records {
                        let len = body + random.below(SPREAD) as u32;
                        let mut head = vec![writer];
                        head.extend(len.to_le_bytes());
                        let body = vec![writer; len as usize];
                        if random.below(2) == 0 {
                            client.write_all([head, body].concat()).await.0.unwrap();
                        } else {
                            let half = body.len() / 2;
                            let parts = vec![head, body[..half].to_vec(), body[half..].to_vec()];
                            client.write_all_vectored(parts).await.0.unwrap();
                        }
                    }
                });
            }
            drop(client);
            for _ in 0..u32::from(WRITERS) * records {
                let (result, head) = server.read_exact([0; 5]).await;
                result.unwrap();
                let writer = head[0];
                let len = u32::from_le_bytes(head[1..].try_into().unwrap());
                assert!(
                    writer < WRITERS && len < body + SPREAD as u32,
                    "no head of a record: {head:?}"
                );
                let (result, body) = server.read_exact(vec![0; len as usize]).await;
                result.unwrap();
                assert!(body == vec![writer; len as usize], "records are mixed");
            }
            assert!(server.read_managed().await.unwrap().is_empty());
        });
    });
}

/// A shutdown waits for the writes that were asked for before it.
#[test]
fn shutdown_comes_after_the_writes_before_it() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            narrow(case, &client);
            let len = if cfg!(miri) { 70_000 } else { 1 << 20 };
            let reader = windlass::spawn(async move { read_to_end(&server).await });
            let mut writing = pin!(client.write_all(numbered(len)));
            assert!(poll_once(writing.as_mut()).await.is_pending());
            let mut ending = pin!(client.shutdown(Shutdown::Write));
            assert!(poll_once(ending.as_mut()).await.is_pending());
            writing.await.0.unwrap();
            ending.await.unwrap();
            assert!(reader.await.unwrap() == numbered(len));
            let error = client.write_all("more").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    });
}

/// Short sends: a body much larger than the socket's buffer arrives whole, however it is written.
#[test]
fn a_large_body_arrives_whole() {
    on_every_driver(|case| {
        for vectored in [false, true] {
            let len = match vectored {
                _ if cfg!(miri) => 70_000,
                // Through so small a buffer the kernel moves about 2 MiB in a second.
                true => 2 << 20,
                false => 8 << 20,
            };
            case.run(async move {
                let (client, server) = pair().await;
                narrow(case, &client);
                let reader = windlass::spawn(async move { read_to_end(&server).await });
                let body = numbered(len);
                if vectored {
                    let parts: Vec<Vec<u8>> = body.chunks(len / 3).map(<[u8]>::to_vec).collect();
                    client.write_all_vectored(parts).await.0.unwrap();
                } else {
                    client.write_all(body).await.0.unwrap();
                }
                drop(client);
                assert!(reader.await.unwrap() == numbered(len), "vectored: {vectored}");
            });
        }
    });
}

/// A plain `write` may take less than all, and says how much it took.
#[test]
fn a_short_write_tells_its_count() {
    on_every_driver(|case| {
        case.run(async move {
            let len = if cfg!(miri) { 70_000 } else { 1 << 20 };
            let (client, server) = pair().await;
            narrow(case, &client);
            let (result, body) = client.write(numbered(len)).await;
            let first = result.unwrap();
            assert!(0 < first && first < len, "{first} bytes of {len} were taken");
            let reader = windlass::spawn(async move { read_to_end(&server).await });
            client.write_all(body.slice(first..)).await.0.unwrap();
            drop(client);
            assert!(reader.await.unwrap() == numbered(len));
        });
    });
}

/// More slices than one system call takes (1,024), some of them empty.
#[test]
fn more_slices_than_the_kernel_takes() {
    on_every_driver(|case| {
        case.run(async move {
            let count = if cfg!(miri) { 1_100 } else { 3_000 };
            let (client, server) = pair().await;
            let whole = numbered(count * 3);
            let mut parts: Vec<Vec<u8>> = whole.chunks(3).map(<[u8]>::to_vec).collect();
            for at in (0..count).step_by(7) {
                parts.insert(at, Vec::new());
            }

            let expected = whole.clone();
            let (result, parts) = client.write_vectored(parts).await;
            let taken = result.unwrap();
            assert!(0 < taken && taken <= 1024 * 3, "{taken} bytes were taken");
            let (result, start) = server.read_exact(vec![0; taken]).await;
            result.unwrap();
            assert!(start == expected[..taken]);

            let reader = windlass::spawn(async move {
                let mut received = Vec::new();
                while received.len() < expected.len() {
                    let mut bufs: Vec<Vec<u8>> = (0..count).map(|at| Vec::with_capacity(at % 4)).collect();
                    for buf in &mut bufs {
                        buf.resize(buf.capacity(), 0xAA);
                    }
                    let (result, bufs) = server.read_vectored(bufs).await;
                    let got = result.unwrap();
                    assert!(got > 0);
                    assert_filled_in_order(&bufs, got);
                    received.extend(bufs.concat());
                }
                assert!(received == expected);
            });
            client.write_all_vectored(parts).await.0.unwrap();
            reader.await.unwrap();
        });
    });
}

/// Every buffer is full before the next is begun, and their lengths say so.
fn assert_filled_in_order(bufs: &[Vec<u8>], count: usize) {
    let mut left = count;
    for buf in bufs {
        assert_eq!(buf.len(), left.min(buf.capacity()));
        left -= buf.len();
    }
    assert_eq!(left, 0);
}

/// What a dropped read left behind is distributed as the kernel would do it.
#[test]
fn read_vectored_fills_in_order() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("0123456789").await.0.unwrap();
            let bufs = vec![Vec::new(), Vec::with_capacity(3), Vec::new(), Vec::with_capacity(100)];
            let (result, bufs) = server.read_vectored(bufs).await;
            assert_eq!(result.unwrap(), 10);
            assert_eq!(bufs.concat(), b"0123456789");
            assert_filled_in_order(&bufs, 10);

            leave_unread(&client, &server, "abcdefgh").await;
            let mut received = Vec::new();
            while received.len() < 8 {
                let bufs = vec![vec![], vec![1; 3], vec![2; 2]];
                let (result, bufs) = server.read_vectored(bufs).await;
                assert_filled_in_order(&bufs, result.unwrap());
                received.extend(bufs.concat());
            }
            assert_eq!(received, b"abcdefgh");

            // Arrays keep their length.
            client.write_all("xyz").await.0.unwrap();
            let (result, arrays) = server.read_vectored(vec![[0u8; 2]; 2]).await;
            assert_eq!(result.unwrap(), 3);
            assert_eq!(arrays, [*b"xy", *b"z\0"]);
        });
    });
}

/// Sends, and drops a read whose receive gets the bytes all the same.
async fn leave_unread(client: &TcpStream, server: &TcpStream, bytes: &'static str) {
    client.write_all(bytes).await.0.unwrap();
    let mut reading = Box::pin(server.read(Vec::with_capacity(1024)));
    assert!(poll_once(reading.as_mut()).await.is_pending());
}

#[test]
fn zero_length_is_not_the_end() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            // Nothing to send is sent, whatever else is going on.
            assert_eq!(client.write(Vec::new()).await.0.unwrap(), 0);
            assert_eq!(client.write("").await.0.unwrap(), 0);
            client.write_all([0u8; 0]).await.0.unwrap();
            assert_eq!(client.write_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap(), 0);
            assert_eq!(client.write_vectored(vec!["", ""]).await.0.unwrap(), 0);
            client.write_all_vectored(vec!["", ""]).await.0.unwrap();
            client.write_all_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap();
            client.write_all_vectored(vec!["", "a", "", "b", ""]).await.0.unwrap();
            assert_eq!(client.write_vectored(vec!["", "c", ""]).await.0.unwrap(), 1);

            // No room is an error, with bytes waiting and without.
            for waiting in [true, false] {
                let kinds = [
                    server.read(Vec::new()).await.0.unwrap_err().kind(),
                    server.read([0; 0]).await.0.unwrap_err().kind(),
                    server.read_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap_err().kind(),
                    server.read_vectored(vec![Vec::new(); 3]).await.0.unwrap_err().kind(),
                ];
                assert_eq!(kinds, [ErrorKind::InvalidInput; 4], "bytes are waiting: {waiting}");
                // Nothing was asked for, and nothing is missing.
                server.read_exact(Vec::new()).await.0.unwrap();
                server.read_exact([0; 0]).await.0.unwrap();
                if waiting {
                    let (result, buf) = server.read_exact([0; 3]).await;
                    result.unwrap();
                    assert_eq!(&buf, b"abc");
                }
            }

            drop(client);
            assert_eq!(
                server.read(Vec::new()).await.0.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            assert_eq!(server.read(vec![0; 8]).await.0.unwrap(), 0);
            server.read_exact(Vec::new()).await.0.unwrap();
        });
    });
}

/// `read` fills up to the capacity, `read_exact` up to the length, and a refused or ended read gives the buffer back.
#[test]
fn buffers_come_back_with_the_right_length() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("hello world").await.0.unwrap();
            let mut buf = Vec::with_capacity(5);
            buf.push(9);
            let at = buf.as_ptr();
            let (result, buf) = server.read(buf).await;
            assert_eq!((result.unwrap(), &buf[..], buf.as_ptr()), (5, &b"hello"[..], at));

            let mut buf = Vec::with_capacity(100);
            buf.extend([0; 6]);
            let (result, buf) = server.read_exact(buf).await;
            result.unwrap();
            assert_eq!((&buf[..], buf.capacity()), (&b" world"[..], 100));

            client.write_all("end").await.0.unwrap();
            drop(client);
            let (result, buf) = server.read_exact(vec![7; 4]).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(buf.len(), 4);
            let (result, buf) = server.read(Vec::with_capacity(9)).await;
            assert_eq!((result.unwrap(), &buf[..]), (3, &b"end"[..]));
            let (result, buf) = server.read(vec![1, 2, 3]).await;
            assert_eq!((result.unwrap(), buf.len()), (0, 0));
        });
    });
}

/// Address space of any size, most of it never touched.
struct Huge {
    ptr: *mut u8,
    len: usize,
}

impl Huge {
    fn new(len: usize) -> Huge {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert!(ptr != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Huge { ptr: ptr.cast(), len }
    }

    fn head(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.len);
        // SAFETY: the mapping is zeroed, this long, and this value's alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, len) }
    }
}

impl Drop for Huge {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and its only owner goes.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

// SAFETY: the mapping is zeroed and stays where it is until this value is dropped.
unsafe impl IoBuf for Huge {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as for reading; the mapping is this value's alone.
unsafe impl IoBufMut for Huge {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
    fn capacity(&self) -> usize {
        self.len
    }
    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// Lengths that do not fit 32 bits, or whose low 32 bits are few or none, or that are negative as an `i32`.
#[test]
fn huge_buffers_do_not_wrap_around() {
    on_every_kernel_driver(|case| {
        for len in [(4 << 30) + 3, 4 << 30, 2 << 30, (2 << 30) - 1, 5 << 30] {
            case.run(async move {
                let part = 1 << 20;
                let (client, server) = pair().await;
                client.write_all("hello").await.0.unwrap();
                let (result, mut huge) = server.read(Huge::new(len)).await;
                assert_eq!(result.unwrap(), 5, "into {len} bytes");
                assert_eq!(huge.head(5), b"hello");

                client.write_all("hello").await.0.unwrap();
                let (result, mut bufs) = server.read_vectored(vec![huge, Huge::new(len)]).await;
                assert_eq!(result.unwrap(), 5, "into twice {len} bytes");
                assert_eq!(bufs[0].head(5), b"hello");

                let mut huge = bufs.pop().unwrap();
                huge.head(part).copy_from_slice(&numbered(part));
                let writer = windlass::spawn(async move {
                    let (result, huge) = client.write(huge).await;
                    let taken = result.unwrap();
                    assert!(taken > 3, "{taken} bytes of {len} were taken");
                    // The whole would take too long: this is dropped once the peer has seen enough.
                    client.write_all(huge.slice(taken..)).await.0.unwrap();
                });
                let (result, received) = server.read_exact(vec![0; 4 * part]).await;
                result.unwrap_or_else(|error| panic!("of {len} bytes: {error}"));
                assert!(received[..part] == numbered(part));
                assert!(received[part..].iter().all(|&byte| byte == 0));
                writer.cancel();
                assert!(writer.await.unwrap_err().is_cancelled());
            });
        }
    });
}

/// A write to a peer that has gone is an error, even where the signal would end the process.
#[test]
fn a_closed_peer_is_no_signal() {
    in_own_process("tcp::a_closed_peer_is_no_signal", &[], || {
        on_every_kernel_driver(|case| {
            // SAFETY: the default disposition runs no code of ours.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
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
                    // Once the reset was told, every further write is a broken pipe.
                    let error = client.write("anybody").await.0.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
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
            assert_eq!(write.write_vectored(vec!["b", "c"]).await.0.unwrap(), 2);
            write.write_all_vectored(vec!["d", "e"]).await.0.unwrap();
            let (result, buf) = read.read_exact([0; 5]).await;
            result.unwrap();
            assert_eq!(&buf, b"abcde");
            // Ends the echo, which ends us.
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
            let reading = timeout(Duration::from_secs(1), server.read_managed());
            assert!(reading.await.expect("the end").unwrap().is_empty());
            server.write_all("still open").await.0.unwrap();
            assert_eq!(&*read.read_managed().await.unwrap(), b"still open");
            drop(read);

            let (client, server) = pair().await;
            let (read, write) = client.into_split();
            drop(read);
            write.write_all("one way").await.0.unwrap();
            assert_eq!(&*server.read_managed().await.unwrap(), b"one way");
        });
    });
}

#[test]
fn halves_are_reunited_with_their_own() {
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
            // Neither the refusal nor the reunion has ended anything.
            client.write_all("ping").await.0.unwrap();
            assert_eq!(&*server.read_managed().await.unwrap(), b"ping");
            server.write_all("pong").await.0.unwrap();
            assert_eq!(&*client.read_managed().await.unwrap(), b"pong");
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
            assert_eq!(&*client.read_managed().await.unwrap(), b"answer");
            let error = client.write("x").await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);

            // A reader that waits is told when its own side shuts down.
            let server = Rc::new(server);
            let reader = windlass::spawn({
                let server = server.clone();
                async move { client.read_managed().await.unwrap().len() + server.read_managed().await.unwrap().len() }
            });
            turns(3).await;
            server.shutdown(Shutdown::Both).await.unwrap();
            assert_eq!(timeout(Duration::from_secs(1), reader).await.unwrap().unwrap(), 0);
        });
    });
}

#[test]
fn names_and_options() {
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
fn a_peer_that_is_gone() {
    on_every_driver(|case| {
        case.run(async move {
            // Closed: the end, as often as one asks.
            let (client, server) = pair().await;
            server.write_all("bye").await.0.unwrap();
            drop(server);
            assert_eq!(&*client.read_managed().await.unwrap(), b"bye");
            assert_eq!(client.read([0; 4]).await.0.unwrap(), 0);
            assert_eq!(client.read_vectored(vec![[0; 4]]).await.0.unwrap(), 0);
            assert!(client.read_managed().await.unwrap().is_empty());

            // Closed with something unread: a reset, for a read that waits and for one that comes later.
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
                let error = reading.await.0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "waits: {waits}");
            }
        });
    });
}

#[test]
fn a_refused_connection_says_where() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            drop(listener);
            let error = TcpStream::connect(addr).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(error.to_string().contains(&addr.to_string()), "{error}");
        });
    });
}

/// Connections that nobody accepted are ended with their listener.
#[test]
fn a_dropped_listener_resets_what_it_had_accepted() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let (_first, _) = pair_of(&listener).await;
            let second = TcpStream::connect(addr).await.unwrap();
            turns(3).await;
            drop(listener);
            let reading = timeout(Duration::from_secs(1), second.read([0; 4]));
            let error = reading.await.expect("the peer is told").0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        });
    });
}

#[test]
fn a_stream_becomes_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("early").await.0.unwrap();
            let number = server.as_raw_fd();
            let mut server = server.into_std().unwrap();
            assert_eq!(server.as_raw_fd(), number);
            let mut buf = [0; 16];
            assert_eq!(server.read(&mut buf).unwrap(), 5);
            assert_eq!(server.read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            server.write_all(b"from std").unwrap();
            assert_eq!(&*client.read_managed().await.unwrap(), b"from std");

            server.set_nonblocking(false).unwrap();
            let server = TcpStream::from_std(server).unwrap();
            assert_eq!(server.as_raw_fd(), number);
            server.write_all("back").await.0.unwrap();
            assert_eq!(&*client.read_managed().await.unwrap(), b"back");
            drop(server);
            assert!(client.read_managed().await.unwrap().is_empty());
        });
    });
}

/// Refused while something would be lost, and each time the stream comes back unharmed.
#[test]
fn a_busy_stream_does_not_become_std() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            // A receive is in the air, and has taken bytes already.
            let (client, server) = pair().await;
            leave_unread(&client, &server, "hello").await;
            let refused = server.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
            let server = refused.into_inner();
            // It has landed, and some of its bytes are unread.
            let (result, buf) = server.read(Vec::with_capacity(2)).await;
            assert_eq!((result.unwrap(), &buf[..]), (2, &b"he"[..]));
            let server = server.into_std().unwrap_err().into_inner();
            let (result, buf) = server.read(Vec::with_capacity(8)).await;
            assert_eq!((result.unwrap(), &buf[..]), (3, &b"llo"[..]));
            let server = server.into_std().unwrap();

            // A send is in the air.
            let mut writing = Box::pin(client.write_all(vec![0; 64 << 20]));
            assert!(poll_once(writing.as_mut()).await.is_pending());
            turns(3).await;
            drop(writing);
            let client = client.into_std().unwrap_err().into_inner();
            drop(server);
            client.shutdown(Shutdown::Write).await.ok();
            client.into_std().unwrap();
        });
    });
}

#[test]
fn a_listener_becomes_std_and_back() {
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
            // Its accept goes on in the kernel, and is ended.
            let listener = TcpListener::from_std(listener.into_std().await.unwrap()).unwrap();
            pair_of(&listener).await;
            // A connection that nobody has accepted is either handed over already, and then not to be lost, or still waits.
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

/// A socket can outlive its loop; then it can only be closed, and says so.
#[test]
fn a_socket_without_its_loop_says_so() {
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
            // More than a budget of results that are there at once: nobody refills that of a loop which does not run.
            for _ in 0..200 {
                client.read(vec![0; 8]).await.0.unwrap_err();
            }
        });
    });
}

/// The null driver's sockets are not the kernel's, and neither pretends to be the other's.
#[test]
fn sockets_without_a_kernel_stay_so() {
    on_every_driver(|case| {
        if case.is_kernel() {
            return;
        }
        case.run(async move {
            let (client, _server) = pair().await;
            assert!(client.as_raw_fd() < 0);
            let refused = client.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::Unsupported);
            if !cfg!(miri) {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                TcpListener::from_std(listener).unwrap_err();
            }
        });
    });
}

#[test]
fn every_descriptor_closes_on_exec() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (client, server) = pair_of(&listener).await;
            for fd in [listener.as_fd(), client.as_fd(), server.as_fd()] {
                // SAFETY: the descriptor is open, and this only asks for its flags.
                let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
                assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            }
        });
    });
}
