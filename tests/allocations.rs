//! After warm-up an echoed message allocates nothing, and a turn makes at most one system call (two when busy-polling).
//! Locks and queues allocate nothing either.
//!
//! A separate binary, for its counting allocator. It counts only on the thread that asks, so the clients and the test
//! harness may allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream as StdStream;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::Builder;
use windlass::compat::Bridge;
use windlass::net::{RecvBatch, SendBatch, TcpListener, TcpStream, UdpSocket};

#[path = "suite/support.rs"]
mod support;

use support::{Case, on_every_kernel_driver, rounds};

struct Counting;

thread_local! {
    // Const-initialised without a destructor: reading them allocates nothing and works until the thread ends.
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    if IS_COUNTING.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
}

// SAFETY: every call is forwarded to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_allocator_counts() {
    IS_COUNTING.set(true);
    drop(std::hint::black_box(vec![1u8; 100]));
    IS_COUNTING.set(false);
    assert!(ALLOCATIONS.get() > 0);
}

const WARM_UP: usize = 200;
const MESSAGE: [u8; 64] = [7; 64];

/// Sends messages one at a time and waits for each echo.
fn client(addr: std::net::SocketAddr, messages: usize) {
    let mut client = StdStream::connect(addr).expect("connect");
    client.set_nodelay(true).expect("nodelay");
    let mut echo = [0; MESSAGE.len()];
    for _ in 0..messages {
        client.write_all(&MESSAGE).expect("write");
        client.read_exact(&mut echo).expect("read");
        assert_eq!(echo, MESSAGE);
    }
}

/// Echoes one message.
trait Echo {
    async fn echo(&mut self);
}

struct Managed(TcpStream);

impl Echo for Managed {
    async fn echo(&mut self) {
        let bytes = self.0.read_managed().await.expect("read");
        assert_eq!(&*bytes, MESSAGE);
        self.0.write_all(bytes).await.0.expect("write");
    }
}

/// With a buffer that each call returns for the next.
struct Lent(TcpStream, Vec<u8>);

impl Echo for Lent {
    async fn echo(&mut self) {
        let (result, bytes) = self.0.read(std::mem::take(&mut self.1)).await;
        assert_eq!((result.expect("read"), &bytes[..]), (MESSAGE.len(), &MESSAGE[..]));
        let (result, bytes) = self.0.write_all(bytes).await;
        result.expect("write");
        self.1 = bytes;
    }
}

/// As poll-based code does it.
struct Bridged(Bridge<TcpStream>);

impl Echo for Bridged {
    async fn echo(&mut self) {
        let mut message = [0; 2 * MESSAGE.len()];
        let count = poll_fn(|cx| self.0.poll_read(cx, &mut message)).await.expect("read");
        assert_eq!(message[..count], MESSAGE);
        let written = poll_fn(|cx| self.0.poll_write(cx, &message[..count])).await;
        assert_eq!(written.expect("write"), count);
        poll_fn(|cx| self.0.poll_flush(cx)).await.expect("flush");
    }
}

/// Counts allocations on the loop's thread, system calls and turns while messages are echoed: by a loop that blocks
/// when idle, and by one that busy-polls.
fn measure<E: Echo>(case: Case, make: impl Fn(TcpStream) -> E) {
    measure_on(case.builder().busy_poll(Duration::ZERO), &make, 1);
    // While busy-polling, submissions take a second call.
    measure_on(case.builder(), &make, 2);
}

fn measure_on<E: Echo>(builder: Builder, make: impl FnOnce(TcpStream) -> E, calls_per_turn: u64) {
    let messages = rounds();
    let event_loop = builder.build().expect("the driver was tried before");
    let result = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("an address");
        let client = std::thread::spawn(move || client(addr, WARM_UP + messages));
        let (stream, _) = listener.accept().await.expect("accept");
        stream.set_nodelay(true).expect("nodelay");
        let mut echo = make(stream);
        for _ in 0..WARM_UP {
            echo.echo().await;
        }
        let before = windlass::counters();
        ALLOCATIONS.set(0);
        IS_COUNTING.set(true);
        for _ in 0..messages {
            echo.echo().await;
        }
        IS_COUNTING.set(false);
        let after = windlass::counters();
        client.join().expect("no panic");
        (before, after)
    });
    let (before, after) = result.expect("the loop runs");
    assert_eq!(ALLOCATIONS.get(), 0, "allocations in {messages} messages");
    let (enters, turns) = (after.driver.enters - before.driver.enters, after.turns - before.turns);
    // Each poll of a reactor is a system call.
    let spins = event_loop.describe().name != "io_uring" && calls_per_turn > 1;
    assert!(
        enters <= calls_per_turn * turns || spins,
        "{enters} system calls in {turns} turns: {calls_per_turn} is enough for each"
    );
    // A read and a write complete in two turns; a signal ends the wait of a turn early.
    let most = 3 * messages as u64 + 2;
    assert!(turns <= most, "{turns} turns for {messages} messages");
}

#[test]
fn a_managed_echo_allocates_nothing() {
    on_every_kernel_driver(|case| {
        // On io_uring without buffer rings, managed reads use the heap.
        if case.tries_first() || case.event_loop().describe().features.contains(&"buffer ring") {
            measure(case, Managed);
        }
    });
}

#[test]
fn a_bridged_echo_allocates_nothing() {
    on_every_kernel_driver(|case| {
        if case.tries_first() || case.event_loop().describe().features.contains(&"buffer ring") {
            measure(case, |stream| Bridged(Bridge::new(stream)));
        }
    });
}

#[test]
fn an_echo_with_a_lent_buffer_allocates_nothing() {
    on_every_kernel_driver(|case| measure(case, |stream| Lent(stream, Vec::with_capacity(4096))));
}

/// Echoes, and counts from the end of the warm-up to the last message.
struct CallbackEcho {
    transport: Option<windlass::protocol::Transport>,
    left: usize,
    /// The number of messages that are counted, at the end.
    counted: usize,
    done: windlass::Promise<()>,
}

impl windlass::protocol::Protocol for CallbackEcho {
    fn connection_made(&mut self, transport: windlass::protocol::Transport) {
        self.transport = Some(transport);
    }

    fn data_received(&mut self, data: &[u8]) {
        assert_eq!(data, MESSAGE);
        self.left -= 1;
        if self.left == 0 {
            IS_COUNTING.set(false);
            let _ = self.done.resolve(());
        }
        if self.left == self.counted {
            ALLOCATIONS.set(0);
            IS_COUNTING.set(true);
        }
        self.transport.as_ref().expect("made").write(data);
    }
}

#[test]
fn an_echo_by_callbacks_allocates_nothing() {
    on_every_kernel_driver(|case| {
        if !case.tries_first() && !case.event_loop().describe().features.contains(&"buffer ring") {
            return;
        }
        case.run(async {
            let (done, is_done) = windlass::promise();
            let messages = WARM_UP + rounds();
            let mut echo = Some(CallbackEcho {
                transport: None,
                left: messages,
                counted: rounds(),
                done,
            });
            let factory = move || echo.take().expect("one connection");
            let server = windlass::protocol::create_server(factory, "127.0.0.1:0")
                .await
                .expect("bind");
            let addr = server.local_addr().expect("an address");
            let client = std::thread::spawn(move || client(addr, messages));
            is_done.await.expect("it ends");
            assert_eq!(ALLOCATIONS.get(), 0, "allocations in {messages} messages");
            server.close();
            server.wait_closed().await;
            client.join().expect("no panic");
        });
    });
}

/// Echoes datagrams one at a time and counts the allocations after the warm-up.
fn measure_datagrams(case: Case, is_managed: bool) {
    let messages = rounds();
    let event_loop = case.event_loop();
    let result = event_loop.run_until_complete(async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let addr = socket.local_addr().expect("an address");
        let client = std::thread::spawn(move || {
            let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            client.connect(addr).expect("connect");
            let mut echo = [0; MESSAGE.len()];
            for _ in 0..WARM_UP + messages {
                client.send(&MESSAGE).expect("send");
                support::uninterrupted(|| client.recv(&mut echo)).expect("receive");
                assert_eq!(echo, MESSAGE);
            }
        });
        let mut buf = Vec::with_capacity(4096);
        for round in 0..WARM_UP + messages {
            if round == WARM_UP {
                ALLOCATIONS.set(0);
                IS_COUNTING.set(true);
            }
            if is_managed {
                let datagram = socket.recv_managed().await.expect("receive");
                let from = datagram.from();
                socket.send_to(datagram.into_bytes(), from).await.0.expect("send");
            } else {
                let result;
                (result, buf) = socket.recv_from(buf).await;
                let (_, from) = result.expect("receive");
                let result;
                (result, buf) = socket.send_to(buf, from).await;
                result.expect("send");
            }
        }
        IS_COUNTING.set(false);
        client.join().expect("no panic");
    });
    result.expect("the loop runs");
    assert_eq!(ALLOCATIONS.get(), 0, "allocations in {messages} datagrams");
}

#[test]
fn an_echoed_datagram_allocates_nothing() {
    on_every_kernel_driver(|case| {
        measure_datagrams(case, false);
        if case.tries_first() || case.event_loop().describe().features.contains(&"buffer ring") {
            measure_datagrams(case, true);
        }
    });
}

/// Batches that are echoed, by two system calls each. The client has a window of them on their way.
#[test]
fn echoed_batches_allocate_nothing() {
    const WINDOW: usize = 8;
    on_every_kernel_driver(|case| {
        let batches = rounds() / WINDOW;
        case.run(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
            let addr = socket.local_addr().expect("an address");
            let client = move || {
                let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
                client.connect(addr).expect("connect");
                let mut echo = [0; MESSAGE.len()];
                for _ in 0..WARM_UP + batches {
                    for _ in 0..WINDOW {
                        client.send(&MESSAGE).expect("send");
                    }
                    for _ in 0..WINDOW {
                        support::uninterrupted(|| client.recv(&mut echo)).expect("receive");
                        assert_eq!(echo, MESSAGE);
                    }
                }
            };
            let (mut queries, mut answers) = (RecvBatch::new(WINDOW, 2_048), SendBatch::new());
            // The client's datagrams may arrive in batches of any size, and a batch allocates the first time it is so
            // large. So whole batches come first, sent after the receive has begun to wait.
            for _ in 0..2 {
                let sending = async {
                    windlass::task::yield_now().await;
                    for _ in 0..WINDOW {
                        answers.push(&MESSAGE, addr);
                    }
                    socket.send_batch(&mut answers).await
                };
                let (received, sent) = windlass::join!(socket.recv_batch(&mut queries), sending);
                assert_eq!((received.expect("receive"), sent.expect("send")), (WINDOW, WINDOW));
            }
            // After 64 calls that did not wait, one lets other tasks run, and sends from a buffer of its own. The sink is never read.
            let sink = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            for _ in 0..100 {
                answers.push(&MESSAGE, sink.local_addr().expect("an address"));
                socket.send_batch(&mut answers).await.expect("send");
            }
            let client = std::thread::spawn(client);
            let mut echoed = 0;
            while echoed < (WARM_UP + batches) * WINDOW {
                if echoed >= WARM_UP * WINDOW && !IS_COUNTING.get() {
                    ALLOCATIONS.set(0);
                    IS_COUNTING.set(true);
                }
                echoed += socket.recv_batch(&mut queries).await.expect("receive");
                for query in &queries {
                    answers.push(&query, query.from());
                }
                socket.send_batch(&mut answers).await.expect("send");
            }
            IS_COUNTING.set(false);
            client.join().expect("no panic");
        });
        assert_eq!(ALLOCATIONS.get(), 0, "allocations in {batches} batches");
    });
}

/// The memory of ended tasks is used again: of 8 at a time, which wait, and of one that completes inside of `spawn_eager`.
#[test]
fn spawning_and_joining_allocates_nothing() {
    support::on_every_driver(|case| {
        let rounds = rounds();
        case.run(async {
            for round in 0..WARM_UP + rounds {
                if round == WARM_UP {
                    ALLOCATIONS.set(0);
                    IS_COUNTING.set(true);
                }
                let tasks: [_; 8] = std::array::from_fn(|number| {
                    windlass::spawn(async move {
                        windlass::task::yield_now().await;
                        number
                    })
                });
                for (number, task) in tasks.into_iter().enumerate() {
                    assert_eq!(task.await.expect("no panic"), number);
                }
                let eager = windlass::task::spawn_eager(async move { round });
                assert_eq!(eager.await.expect("no panic"), round);
            }
            IS_COUNTING.set(false);
            assert_eq!(ALLOCATIONS.get(), 0, "allocations in {rounds} rounds");
        });
    });
}

/// Uncontended, and, after the first time, with a waiter in the queue too.
#[test]
fn locks_permits_and_items_allocate_nothing() {
    use windlass::sync::{Event, Lock, Notify, Queue, RwLock, Semaphore, thread};
    support::on_every_driver(|case| {
        let rounds = rounds();
        case.run(async {
            let (lock, rwlock, semaphore) = (Lock::new(0), RwLock::new(0), Semaphore::new(2));
            let (event, notify, queue) = (Event::new(), Notify::new(), Queue::bounded(4));
            let (sender, receiver) = thread::channel(4);
            let (ping, pong) = (Queue::bounded(1), Queue::bounded(1));
            let echo = windlass::spawn({
                let (ping, pong) = (ping.clone(), pong.clone());
                async move {
                    while let Ok(item) = ping.get().await {
                        pong.put(item).await.expect("open");
                    }
                }
            });
            event.set();
            for round in 0..WARM_UP + rounds {
                if round == WARM_UP {
                    ALLOCATIONS.set(0);
                    IS_COUNTING.set(true);
                }
                *lock.lock().await += 1;
                let read = *rwlock.read().await;
                *rwlock.write().await += read;
                drop(semaphore.acquire_many(2).await.expect("open"));
                event.wait().await;
                notify.notify_one();
                notify.notified().await;
                queue.put(round).await.expect("open");
                assert_eq!(queue.get().await, Ok(round));
                queue.task_done();
                queue.join().await;
                sender.send(round).await.expect("open");
                assert_eq!(receiver.recv().await, Ok(round));
                ping.put(round).await.expect("open");
                assert_eq!(pong.get().await, Ok(round));
            }
            IS_COUNTING.set(false);
            assert_eq!(ALLOCATIONS.get(), 0, "allocations in {rounds} rounds");
            ping.close();
            echo.await.expect("no panic");
        });
    });
}

/// A buffer on the heap that counts the operations it is lent to.
struct Counted {
    bytes: Box<[u8]>,
    lent: Rc<Cell<usize>>,
    sent_from: Cell<usize>,
}

impl Counted {
    fn new(len: usize) -> Counted {
        Counted {
            bytes: vec![7; len].into(),
            lent: Rc::default(),
            sent_from: Cell::default(),
        }
    }
}

// SAFETY: the box's memory does not move.
unsafe impl windlass::io::IoBuf for Counted {
    fn as_ptr(&self) -> *const u8 {
        self.sent_from.set(self.sent_from.get() + 1);
        self.bytes.as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above; the whole box is always initialised.
unsafe impl windlass::io::IoBufMut for Counted {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lent.set(self.lent.get() + 1);
        self.bytes.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

/// A `read_exact` that needs several receives, a `write_all` of more bytes than a socket takes at once, and reads that are
/// dropped while they wait.
#[test]
fn continuations_and_cancels_allocate_nothing() {
    on_every_kernel_driver(|case| {
        let rounds = rounds().min(500);
        case.run(async {
            let (client, server) = support::pair().await;
            // So that no send takes all of `large`.
            socket2::SockRef::from(&client)
                .set_send_buffer_size(64 << 10)
                .expect("an option");
            socket2::SockRef::from(&server)
                .set_recv_buffer_size(64 << 10)
                .expect("an option");
            let mut counted = Counted::new(64);
            let lent = counted.lent.clone();
            let (mut large, mut sink) = (Counted::new(4 << 20), Vec::with_capacity(64 << 10));
            for round in 0..WARM_UP / 10 + rounds {
                if round == WARM_UP / 10 {
                    ALLOCATIONS.set(0);
                    IS_COUNTING.set(true);
                }
                // A read that is dropped while it waits: the next one waits for its cancel.
                {
                    let mut dropped = pin!(server.read_managed());
                    assert!(support::poll_once(dropped.as_mut()).await.is_pending());
                }
                lent.set(0);
                {
                    let mut reading = pin!(server.read_exact(counted));
                    for part in 1..=4 {
                        // Until this receive waits.
                        while lent.get() < part {
                            assert!(support::poll_once(reading.as_mut()).await.is_pending());
                            support::turns(1).await;
                        }
                        client.write_all([round as u8; 16]).await.0.expect("write");
                    }
                    let (result, back) = reading.await;
                    result.expect("read");
                    counted = back;
                }
                assert!(lent.get() >= 4, "{} receives", lent.get());
                assert!(counted.bytes.iter().all(|&byte| byte == round as u8));
                if round % 50 == 0 {
                    let mut left = large.bytes.len();
                    large.sent_from.set(0);
                    let receiving = async {
                        while left > 0 {
                            let (result, back) = server.read(sink).await;
                            left -= result.expect("read");
                            sink = back;
                        }
                        sink
                    };
                    let ((result, back), emptied) =
                        futures_util::future::join(client.write_all(large), receiving).await;
                    result.expect("write");
                    (large, sink) = (back, emptied);
                    assert!(large.sent_from.get() >= 4, "{} sends", large.sent_from.get());
                }
            }
            IS_COUNTING.set(false);
            assert_eq!(ALLOCATIONS.get(), 0, "allocations in {rounds} rounds");
        });
    });
}
