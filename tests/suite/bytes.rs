//! Written bytes arrive complete and in order, for every buffer length.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;

use windlass::io::IoBuf;
use windlass::net::TcpStream;

use crate::support::{Case, Random, on_every_driver, pair, poll_once, rounds};

/// Bytes whose value depends on their position. They repeat with a prime period, so that no chunk of a usual size fits
/// in another's place. Repeating a block is fast even under Miri.
pub(crate) fn numbered(len: usize) -> Vec<u8> {
    const PERIOD: u32 = 4_099;
    let block: Vec<u8> = (0..PERIOD)
        .map(|at| at.wrapping_mul(0x9E37_79B1).to_le_bytes()[3])
        .collect();
    let mut bytes = block.repeat(len.div_ceil(block.len()));
    bytes.truncate(len);
    bytes
}

pub(crate) async fn read_to_end(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = stream.read_managed().await.unwrap();
        if bytes.is_empty() {
            return all;
        }
        all.extend_from_slice(&bytes);
    }
}

/// Sets a send buffer so small that nearly every send is short.
fn shrink_send_buffer(case: Case, sender: &TcpStream) {
    if case.is_kernel() {
        socket2::SockRef::from(sender)
            .set_send_buffer_size(4096)
            .expect("an option");
    }
}

/// Several tasks write records to one stream concurrently: each record arrives in one piece.
#[test]
fn concurrent_writes_do_not_interleave() {
    on_every_driver(|case| {
        case.run(async move {
            const WRITERS: u8 = if cfg!(miri) { 2 } else { 6 };
            const SPREAD: u64 = if cfg!(miri) { 50 } else { 50_000 };
            let records = if cfg!(miri) { 1 } else { 4 };
            // More than the null driver's pipe holds.
            let body = 70_000;
            let (client, server) = pair().await;
            shrink_send_buffer(case, &client);
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
                    "not the head of a record: {head:?}"
                );
                let (result, body) = server.read_exact(vec![0; len as usize]).await;
                result.unwrap();
                assert!(body == vec![writer; len as usize], "records are mixed");
            }
            assert!(server.read_managed().await.unwrap().is_empty());
        });
    });
}

/// A shutdown waits for the writes that were started before it.
#[test]
fn shutdown_waits_for_earlier_writes() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            shrink_send_buffer(case, &client);
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

/// Short sends: a body much larger than the socket buffer arrives complete, however it is written.
#[test]
fn a_large_body_arrives_complete() {
    on_every_driver(|case| {
        for vectored in [false, true] {
            let len = match vectored {
                _ if cfg!(miri) => 70_000,
                // Through such a small buffer the kernel moves about 2 MiB per second: the long transfer is for long
                // runs only.
                false if rounds() >= 10_000 => 8 << 20,
                _ => 2 << 20,
            };
            case.run(async move {
                let (client, server) = pair().await;
                shrink_send_buffer(case, &client);
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

/// A plain `write` may write a part only, and returns the count.
#[test]
fn a_short_write_returns_its_count() {
    on_every_driver(|case| {
        case.run(async move {
            let len = if cfg!(miri) { 70_000 } else { 1 << 20 };
            let (client, server) = pair().await;
            shrink_send_buffer(case, &client);
            let (result, body) = client.write(numbered(len)).await;
            let first = result.unwrap();
            assert!(0 < first && first < len, "{first} bytes of {len} were written");
            let reader = windlass::spawn(async move { read_to_end(&server).await });
            client.write_all(body.slice(first..)).await.0.unwrap();
            drop(client);
            assert!(reader.await.unwrap() == numbered(len));
        });
    });
}

/// More slices than one system call accepts (1,024), some of them empty.
#[test]
fn more_slices_than_one_system_call_accepts() {
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
            assert!(0 < taken && taken <= 1024 * 3, "{taken} bytes were written");
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

/// Every buffer is full before the next one is used, and the lengths agree.
pub(crate) fn assert_filled_in_order(bufs: &[Vec<u8>], count: usize) {
    let mut left = count;
    for buf in bufs {
        assert_eq!(buf.len(), left.min(buf.capacity()));
        left -= buf.len();
    }
    assert_eq!(left, 0);
}

/// Leftover bytes of a dropped read are distributed over the buffers as the kernel would do it.
#[test]
fn read_vectored_fills_in_order() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("0123456789").await.0.unwrap();
            let bufs = vec![Vec::new(), Vec::with_capacity(3), Vec::new(), Vec::with_capacity(100)];
            let (result, bufs) = server.read_vectored(bufs).await;
            let count = result.unwrap();
            assert!(count == 10 || case.has_quirks(), "{count}");
            assert_eq!(bufs.concat(), b"0123456789"[..count]);
            assert_filled_in_order(&bufs, count);
            assert_eq!(server.read_exact(vec![0; 10 - count]).await.1, b"0123456789"[count..]);

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
            let count = result.unwrap();
            assert!(count == 3 || case.has_quirks(), "{count}");
            let expected = b"xyz"[..count].iter().chain(&[0; 4]).take(4).copied();
            assert_eq!(arrays.concat(), expected.collect::<Vec<u8>>());
        });
    });
}

/// Sends bytes and drops a read that has received them but was not polled since.
pub(crate) async fn leave_unread(client: &TcpStream, server: &TcpStream, bytes: &'static str) {
    let before = windlass::counters().in_flight;
    let mut reading = Box::pin(server.read(Vec::with_capacity(1024)));
    assert!(poll_once(reading.as_mut()).await.is_pending());
    client.write_all(bytes).await.0.unwrap();
    while windlass::counters().in_flight > before {
        windlass::task::yield_now().await;
    }
}

#[test]
fn an_empty_buffer_is_not_eof() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            // Empty writes succeed.
            assert_eq!(client.write(Vec::new()).await.0.unwrap(), 0);
            assert_eq!(client.write("").await.0.unwrap(), 0);
            client.write_all([0u8; 0]).await.0.unwrap();
            assert_eq!(client.write_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap(), 0);
            assert_eq!(client.write_vectored(vec!["", ""]).await.0.unwrap(), 0);
            client.write_all_vectored(vec!["", ""]).await.0.unwrap();
            client.write_all_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap();
            client.write_all_vectored(vec!["", "a", "", "b", ""]).await.0.unwrap();
            assert_eq!(client.write_vectored(vec!["", "c", ""]).await.0.unwrap(), 1);

            // A read into an empty buffer is an error, with or without bytes to read.
            for waiting in [true, false] {
                let kinds = [
                    server.read(Vec::new()).await.0.unwrap_err().kind(),
                    server.read([0; 0]).await.0.unwrap_err().kind(),
                    server.read_vectored(Vec::<Vec<u8>>::new()).await.0.unwrap_err().kind(),
                    server.read_vectored(vec![Vec::new(); 3]).await.0.unwrap_err().kind(),
                ];
                assert_eq!(kinds, [ErrorKind::InvalidInput; 4], "bytes are waiting: {waiting}");
                // `read_exact` of zero bytes succeeds.
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

/// `read` fills up to the capacity, `read_exact` up to the length; a failed read or EOF returns the buffer too.
#[test]
fn buffers_are_returned_with_the_right_length() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            client.write_all("hello world").await.0.unwrap();
            let mut buf = Vec::with_capacity(5);
            buf.push(9);
            let at = buf.as_ptr();
            let (result, buf) = server.read(buf).await;
            let count = result.unwrap();
            assert!(count == 5 || case.has_quirks(), "{count}");
            assert_eq!((&buf[..], buf.as_ptr()), (&b"hello"[..count], at));
            server.read_exact(vec![0; 5 - count]).await.0.unwrap();

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
            let count = result.unwrap();
            assert!(count == 3 || case.has_quirks(), "{count}");
            assert_eq!(buf, b"end"[..count]);
            server.read_exact(vec![0; 3 - count]).await.0.unwrap();
            let (result, buf) = server.read(vec![1, 2, 3]).await;
            assert_eq!((result.unwrap(), buf.len()), (0, 0));
        });
    });
}

#[cfg(unix)]
pub(crate) use self::huge::Huge;

#[cfg(unix)]
mod huge {
    use super::*;
    use crate::support::on_every_kernel_driver;
    use windlass::io::IoBufMut;

    /// Address space of any size, most of it never touched.
    pub(crate) struct Huge {
        ptr: *mut u8,
        len: usize,
    }

    impl Huge {
        pub(crate) fn new(len: usize) -> Huge {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // FreeBSD reserves no memory anyway, and has no flag for this.
            #[cfg(target_os = "freebsd")]
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            #[cfg(not(target_os = "freebsd"))]
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
            let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
            assert!(ptr != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            Huge { ptr: ptr.cast(), len }
        }

        pub(crate) fn head(&mut self, len: usize) -> &mut [u8] {
            assert!(len <= self.len);
            // SAFETY: the mapping is zeroed, at least `len` bytes long, and owned by this value alone.
            unsafe { std::slice::from_raw_parts_mut(self.ptr, len) }
        }
    }

    impl Drop for Huge {
        fn drop(&mut self) {
            // SAFETY: `new` mapped exactly this range, and its only owner is being dropped.
            unsafe { libc::munmap(self.ptr.cast(), self.len) };
        }
    }

    // SAFETY: the mapping is zeroed and stays at its address until this value is dropped.
    unsafe impl IoBuf for Huge {
        fn as_ptr(&self) -> *const u8 {
            self.ptr
        }
        fn len(&self) -> usize {
            self.len
        }
    }

    // SAFETY: as for reading; this value alone owns the mapping.
    unsafe impl IoBufMut for Huge {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.ptr
        }
        fn capacity(&self) -> usize {
            self.len
        }
        unsafe fn set_filled(&mut self, _len: usize) {}
    }

    /// Lengths that do not fit in 32 bits, whose low 32 bits are small or zero, or that are negative as an `i32`.
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
                        assert!(taken > 3, "{taken} bytes of {len} were written");
                        // All of it would take too long: this write is cancelled once the peer has seen enough.
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
}
