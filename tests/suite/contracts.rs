//! Checks of foreign code: buffers with a wrong `IoBuf` implementation, executors inside of a task, and forgotten
//! futures.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use windlass::io::{AsyncRead, IoBuf, IoBufMut, duplex};
use windlass::net::{TcpStream, UdpSocket};
use windlass::spawn;
use windlass::task::yield_now;

use crate::support::{
    exceptions_of, keep_forever, on_every_driver, pair, poll_once, poll_with, quiet, turns, waker_with,
};

/// A buffer whose answers the test chooses. Its memory is larger than any length it reports.
struct WrongBuf {
    memory: Box<[u8; 64]>,
    len: usize,
    capacity: Cell<usize>,
    /// The capacity reported from the second call on.
    later_capacity: usize,
    /// The distance between its two pointers.
    pointer_gap: usize,
    /// Counts the calls of `set_filled`.
    updates: Rc<Cell<u32>>,
}

impl WrongBuf {
    fn new(len: usize, capacity: usize) -> WrongBuf {
        WrongBuf {
            memory: Box::new([0xA5; 64]),
            len,
            capacity: Cell::new(capacity),
            later_capacity: capacity,
            pointer_gap: 0,
            updates: Rc::default(),
        }
    }

    fn later_capacity(self, later_capacity: usize) -> WrongBuf {
        WrongBuf { later_capacity, ..self }
    }

    fn pointer_gap(self, pointer_gap: usize) -> WrongBuf {
        WrongBuf { pointer_gap, ..self }
    }
}

// SAFETY: the memory is initialised, on the heap, and larger than any reported length.
unsafe impl IoBuf for WrongBuf {
    fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: it breaks the rules that are checked, but its memory is large enough for any reported capacity.
unsafe impl IoBufMut for WrongBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.pointer_gap)
    }
    fn capacity(&self) -> usize {
        self.capacity.replace(self.later_capacity)
    }
    unsafe fn set_filled(&mut self, _len: usize) {
        self.updates.set(self.updates.get() + 1);
    }
}

/// The read must panic with a clear message.
#[track_caller]
fn assert_refused<T>(result: Result<T, windlass::JoinError>) {
    let error = result.err().expect("a wrong buffer is refused");
    let text = error.to_string();
    assert!(text.contains("its implementation of IoBuf"), "{text}");
}

#[test]
fn a_buffer_with_wrong_lengths_never_reaches_the_kernel() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            client.write_all(vec![7; 48]).await.0.expect("write");
            // Longer than its capacity; with two different pointers; with a capacity that shrinks after the first call.
            let wrong: [fn() -> WrongBuf; 3] = [
                || WrongBuf::new(32, 16),
                || WrongBuf::new(8, 16).pointer_gap(4),
                || WrongBuf::new(16, 16).later_capacity(8),
            ];
            for make in wrong {
                let stream = server.clone();
                assert_refused(spawn(async move { stream.read(make()).await.0 }).await);
                // `read_exact` asks for the capacity once, so a later answer does not matter.
                if make().len() != 16 {
                    let stream = server.clone();
                    assert_refused(spawn(async move { stream.read_exact(make()).await.0 }).await);
                }
                let stream = server.clone();
                assert_refused(spawn(async move { stream.read_vectored(vec![make()]).await.0 }).await);
                let (mut one, other) = duplex(64);
                let reading = spawn(async move { one.read(make()).await.0 });
                (&other).write_all_of(b"x").await;
                assert_refused(reading.await);
            }
            // The refused reads received nothing, or their bytes were kept.
            let (result, bytes) = server.read_exact(vec![0; 48]).await;
            result.expect("the stream still works");
            assert_eq!(bytes, [7; 48]);
            drop((client, server));
            quiet().await;
            assert_eq!(windlass::counters().ops, 0, "a refused read leaves no slot behind");
        });
    });
}

#[test]
fn a_refused_vectored_read_updates_no_buffer() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            client.write_all(vec![7; 32]).await.0.expect("write");
            let right = WrongBuf::new(16, 16);
            let updates = right.updates.clone();
            // The kernel gets its first capacity; the second is found when the read has completed.
            let wrong = WrongBuf::new(8, 16).later_capacity(8);
            assert_refused(spawn(async move { server.read_vectored(vec![right, wrong]).await.0 }).await);
            assert_eq!(updates.get(), 0);
        });
    });
}

/// `write_all` under a name that no stream's own method shadows.
trait WriteAllOf {
    async fn write_all_of(&mut self, bytes: &'static [u8]);
}

impl WriteAllOf for &windlass::io::DuplexStream {
    async fn write_all_of(&mut self, bytes: &'static [u8]) {
        windlass::io::AsyncWrite::write_all(self, bytes).await.0.expect("write");
    }
}

#[test]
fn recv_from_refuses_a_buffer_with_wrong_lengths() {
    on_every_driver(|case| {
        case.run(async {
            let socket = Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("bind"));
            let addr = socket.local_addr().expect("an address");
            socket.send_to("hello", addr).await.0.expect("send");
            let receiver = socket.clone();
            assert_refused(spawn(async move { receiver.recv_from(WrongBuf::new(32, 16)).await.0 }).await);
            let (received, buf) = socket.recv_from(vec![0; 16]).await;
            let (count, _) = received.expect("the datagram is still there");
            assert_eq!(&buf[..count], b"hello");
        });
    });
}

#[test]
fn file_reads_refuse_a_buffer_with_wrong_lengths() {
    on_every_driver(|case| {
        case.run(async {
            let folder = crate::support::Folder::new();
            let path = folder.file("file", [7; 48]);
            let file = Rc::new(windlass::fs::File::open(path).await.expect("open"));
            let wrong: [fn() -> WrongBuf; 2] = [|| WrongBuf::new(32, 16), || WrongBuf::new(16, 16).later_capacity(8)];
            for make in wrong {
                let reader = file.clone();
                assert_refused(spawn(async move { reader.read_at(make(), 0).await.0 }).await);
                if make().len() != 16 {
                    let reader = file.clone();
                    assert_refused(spawn(async move { reader.read_exact_at(make(), 0).await.0 }).await);
                }
                let reader = file.clone();
                assert_refused(spawn(async move { reader.read_vectored_at(vec![make()], 0).await.0 }).await);
            }
        });
    });
}

/// Runs a future on this thread as `futures::executor::block_on` does: it polls again as soon as it is woken. It gives
/// up after many polls, where the real one would never end.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Flag>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    for _ in 0..10_000 {
        assert!(
            flag.0.swap(false, Ordering::SeqCst),
            "not woken: a real executor would sleep for ever"
        );
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
    panic!("the budget is never refilled");
}

/// A stream with `count` leftover bytes for the next reads.
async fn stream_with_unread(count: usize) -> TcpStream {
    let (client, server) = pair().await;
    client.write_all(vec![7; count]).await.0.expect("write");
    drop(client);
    // EOF comes first, so all bytes are kept for later reads.
    server
        .read_exact(vec![0; count + 1])
        .await
        .0
        .expect_err("the stream ends");
    server
}

async fn read_one_by_one(stream: &TcpStream, count: usize) {
    for _ in 0..count {
        let (result, byte) = stream.read(vec![0; 1]).await;
        assert_eq!((result.expect("read"), &byte[..]), (1, &[7][..]));
    }
}

const MANY: usize = 300;

/// A task may take 64 immediate results per poll. An executor inside of that poll needs more.
#[test]
fn the_budget_does_not_stall_a_nested_executor() {
    on_every_driver(|case| {
        case.run(async {
            let stream = stream_with_unread(3 * MANY).await;
            block_on(read_one_by_one(&stream, MANY));
            // Several reads at once, none of which is polled twice in a row; below, one is dropped after it was
            // refused.
            block_on(async {
                let mut reads = (0..3)
                    .map(|_| read_one_by_one(&stream, MANY / 3))
                    .collect::<FuturesUnordered<_>>();
                while reads.next().await.is_some() {}
            });
            block_on(async {
                for _ in 0..MANY / 2 {
                    // The first waker that is refused is never polled again.
                    let mut dropped = [read_one_by_one(&stream, 1)]
                        .into_iter()
                        .collect::<FuturesUnordered<_>>();
                    let _ = poll_once(std::pin::Pin::new(&mut dropped.next())).await;
                    drop(dropped);
                    read_one_by_one(&stream, 1).await;
                }
            });
            // Reads from memory, and a lock.
            block_on(async {
                let bytes = vec![7; MANY];
                let (mut memory, lock) = (&bytes[..], windlass::sync::Lock::new(0));
                for _ in 0..MANY {
                    assert_eq!(memory.read(vec![0; 1]).await.0.expect("read"), 1);
                    *lock.lock().await += 1;
                }
            });
        });
    });
}

/// Combinators that poll with wakers of their own, but return when refused, also get at most 64 results per poll.
#[test]
fn combinators_with_their_own_wakers_respect_the_budget() {
    on_every_driver(|case| {
        case.run(async {
            for kind in 0..3 {
                // Reads since the other task last ran.
                let (reads, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
                let other = spawn({
                    let (reads, most) = (reads.clone(), most.clone());
                    async move {
                        loop {
                            most.set(most.get().max(reads.replace(0)));
                            yield_now().await;
                        }
                    }
                });
                yield_now().await;
                let read = || {
                    let reads = reads.clone();
                    async move {
                        let bytes = [7; 100];
                        let mut memory = &bytes[..];
                        for _ in 0..100 {
                            memory.read(vec![0; 1]).await.0.expect("read");
                            reads.set(reads.get() + 1);
                        }
                    }
                };
                let all = (0..50).map(|_| read());
                match kind {
                    0 => all.collect::<FuturesUnordered<_>>().collect::<()>().await,
                    1 => drop(futures_util::future::join_all(all).await),
                    _ => drop(windlass::task::join_all(all).await),
                }
                yield_now().await;
                other.cancel();
                assert!(most.get() <= 64, "{} reads in one poll, kind {kind}", most.get());
                assert!(most.get() > 0);
            }
        });
    });
}

/// A forgotten future's buffer stays valid, and its stream can still be closed.
#[test]
fn a_forgotten_read_keeps_its_memory_and_blocks_later_reads() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut read = Box::pin(server.read(vec![0xA5; 64]));
            assert!(poll_once(read.as_mut()).await.is_pending());
            std::mem::forget(read);
            client.write_all(vec![7; 64]).await.0.expect("write");
            // The kernel writes into leaked memory, which no other allocation can get.
            let others: Vec<Vec<u8>> = (0..64).map(|_| vec![0x5A; 64]).collect();
            turns(10).await;
            quiet().await;
            assert!(others.iter().flatten().all(|&byte| byte == 0x5A));
            let mut next = Box::pin(server.read(vec![0; 64]));
            for _ in 0..10 {
                assert!(poll_once(next.as_mut()).await.is_pending());
                yield_now().await;
            }
            drop(next);
            // The other direction works, and dropping the stream closes it.
            server.write_all("pong").await.0.expect("write");
            drop(server);
            let (result, pong) = client.read_exact(vec![0; 4]).await;
            result.expect("read");
            assert_eq!(pong, b"pong");
            match client.read(vec![0; 4]).await.0 {
                Ok(count) => assert_eq!(count, 0, "closed"),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            }
            drop(client);
            turns(5).await;
            quiet().await;
            assert_eq!(windlass::counters().ops, 0, "the operation was released");
        });
    });
}

/// A vector that says when it is freed, and that can be made to panic once when it is asked for its address.
struct Noted {
    bytes: Vec<u8>,
    freed: Rc<Cell<usize>>,
    panics: Rc<Cell<bool>>,
}

impl Noted {
    fn new(bytes: Vec<u8>, freed: &Rc<Cell<usize>>) -> Noted {
        Noted {
            bytes,
            freed: freed.clone(),
            panics: Rc::default(),
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.freed.set(self.freed.get() + 1);
    }
}

// SAFETY: the vector's memory does not move while it is not changed, and `set_filled` only sets its length.
unsafe impl IoBuf for Noted {
    fn as_ptr(&self) -> *const u8 {
        assert!(!self.panics.replace(false), "on purpose");
        self.bytes.as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Noted {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.set_len(len) };
    }
}

/// A forgotten future holds nothing but its operation's slot. Dropping its stream cancels the operation, keeps the
/// descriptor open until that has completed, and then frees the buffer and closes.
#[test]
fn a_forgotten_call_ends_when_its_stream_is_dropped() {
    on_every_driver(|case| {
        case.run(async {
            for way in 0..4 {
                let (client, server) = pair().await;
                let freed = Rc::new(Cell::new(0));
                let buffer = |len| Noted::new(vec![1; len], &freed);
                let mut expected = 1;
                match way {
                    0 => forget_pending(server.read(buffer(64))).await,
                    1 => {
                        client.write_all([7; 10]).await.0.expect("write");
                        forget_pending(server.read_exact(buffer(64))).await;
                    }
                    2 => {
                        forget_pending(server.read_managed()).await;
                        expected = 0;
                    }
                    // More than any socket takes while the peer does not read.
                    _ => forget_pending(server.write_all(buffer(64 << 20))).await,
                }
                assert_eq!(freed.get(), 0, "it is in flight");
                drop(server);
                quiet().await;
                assert_eq!(windlass::counters().ops, 0, "way {way}: the slot is free");
                assert_eq!(freed.get(), expected, "way {way}: the buffer is free");
                // Closed, perhaps with unread bytes, or in the middle of a write.
                loop {
                    match client.read(vec![0; 1 << 20]).await.0 {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                            break;
                        }
                    }
                }
            }
        });
    });
}

/// Polls a future until its operation is in flight, and forgets it.
async fn forget_pending<F: Future>(future: F) {
    let mut future = Box::pin(future);
    for _ in 0..10 {
        assert!(poll_once(future.as_mut()).await.is_pending());
        turns(1).await;
    }
    assert!(windlass::counters().in_flight > 0);
    keep_forever(future);
}

/// Polls until the buffer has panicked, and reads what arrives meanwhile. The future may be polled again afterwards.
async fn poll_until_panic<F: Future>(mut future: std::pin::Pin<&mut F>, from: &TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        let polled = std::future::poll_fn(|cx| {
            let poll = std::panic::AssertUnwindSafe(|| future.as_mut().poll(cx).is_pending());
            Poll::Ready(std::panic::catch_unwind(poll))
        });
        match polled.await {
            Ok(is_pending) => assert!(is_pending),
            Err(_) => return received,
        }
        if let Poll::Ready((result, some)) = poll_once(pin!(from.read(vec![0; 1 << 20]))).await {
            result.expect("read");
            received.extend(some);
        }
        turns(1).await;
    }
}

/// The bytes of an operation count once, also if the buffer panics before the next operation of the call is started.
#[test]
fn a_call_continues_after_its_buffer_has_panicked() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let buf = Noted::new(vec![0; 8], &Rc::default());
            let panics = buf.panics.clone();
            {
                let mut reading = pin!(server.read_exact(buf));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                panics.set(true);
                client.write_all("abc").await.0.expect("write");
                assert_eq!(poll_until_panic(reading.as_mut(), &client).await, []);
                client.write_all("defgh").await.0.expect("write");
                let (result, buf) = reading.await;
                result.expect("read");
                assert_eq!(buf.bytes, b"abcdefgh");
            }

            // More than any socket takes while the peer does not read.
            let len = if case.is_kernel() { 64 << 20 } else { 1 << 20 };
            let sent: Vec<u8> = (0..len).map(|number: u32| (number / 251) as u8).collect();
            let buf = Noted::new(sent.clone(), &Rc::default());
            let panics = buf.panics.clone();
            let mut writing = pin!(client.write_all(buf));
            assert!(poll_once(writing.as_mut()).await.is_pending());
            panics.set(true);
            let mut received = poll_until_panic(writing.as_mut(), &server).await;
            let receiving = async {
                while received.len() < sent.len() {
                    let (result, some) = server.read(vec![0; 1 << 20]).await;
                    assert!(result.expect("read") > 0);
                    received.extend(some);
                }
            };
            let ((result, _), ()) = futures_util::future::join(writing, receiving).await;
            result.expect("write");
            assert!(received == sent, "bytes are missing or came twice");
        });
    });
}

/// A waker that panics when it is dropped does not keep a dropped call from being cancelled.
#[test]
fn a_call_whose_wakers_destructor_panics_is_cancelled() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let (client, server) = pair().await;
            {
                let panics = Cell::new(true);
                let waker = waker_with(|| {}, move || assert!(!panics.replace(false), "on purpose"));
                let mut reading = pin!(server.read(vec![0; 8]));
                assert!(poll_with(&waker, reading.as_mut()).is_pending());
                // The operation has the last clone.
                drop(waker);
            }
            drop(server);
            quiet().await;
            assert_eq!(windlass::counters().ops, 0, "it was cancelled and freed");
            drop(client);
        });
        run.expect("the loop runs");
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
    });
}
