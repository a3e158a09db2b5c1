//! A complete driver written against the public interface alone. It numbers its descriptors from 3, as the kernel does,
//! but they are not kernel descriptors: the program's own files must not be touched through them.

#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::io::{self, Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use windlass::Builder;
use windlass::driver::{
    BufferPool, Completion, Control, Description, Driver, DriverCounters, Fd, FdSpace, FileOp, Message, MessageBuf,
    MessageEntry, Name, Notify, Op, OpId, OpResult, OsResult, Reply, Scratch, SocketKind, SocketOption, Start, Stat,
    Wait,
};
use windlass::fs::File;
use windlass::net::{RecvBatch, SendBatch, TcpListener, TcpStream, UdpSocket};
use windlass::time::Instant;

/// The state of the driver as the test observes it, also after the driver was dropped.
#[derive(Default)]
struct Observed {
    open: usize,
    closed: usize,
    dropped: bool,
}

enum Resource {
    Fresh(SocketAddr),
    Listener(SocketAddr, VecDeque<Fd>),
    Stream { peer: Fd, inbox: VecDeque<u8> },
    Datagrams(SocketAddr, VecDeque<(SocketAddr, Vec<u8>)>),
    File(u64),
}

struct Toy {
    resources: BTreeMap<Fd, Resource>,
    next: Fd,
    now: Instant,
    /// The operations in flight, whether each was cancelled, and where the loop keeps it until its completion.
    pending: Vec<(OpId, *const Op, bool)>,
    pool: Option<Rc<BufferPool>>,
    seen: Rc<RefCell<Observed>>,
}

const CREATED: u64 = 1_000_000_000;

impl Toy {
    fn new(seen: &Rc<RefCell<Observed>>) -> Box<Toy> {
        Box::new(Toy {
            resources: BTreeMap::new(),
            next: files().lock().expect("no panic")[0].as_raw_fd(),
            now: Instant::from_origin(Duration::from_secs(1)),
            pending: Vec::new(),
            pool: None,
            seen: seen.clone(),
        })
    }

    fn add(&mut self, thing: Resource) -> Fd {
        let fd = self.next;
        self.next += 1;
        self.resources.insert(fd, thing);
        self.seen.borrow_mut().open += 1;
        fd
    }

    fn name_of(&self, fd: Fd) -> io::Result<Name> {
        match self.resources.get(&fd) {
            Some(Resource::Fresh(addr) | Resource::Listener(addr, _) | Resource::Datagrams(addr, _)) => {
                Ok(Name::from(*addr))
            }
            Some(Resource::Stream { .. }) => Ok(Name::from(SocketAddr::from(([127, 0, 0, 1], 9)))),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn find(&self, matches: impl Fn(&Resource) -> bool) -> Option<Fd> {
        self.resources
            .iter()
            .find(|(_, thing)| matches(thing))
            .map(|(&fd, _)| fd)
    }

    /// Executes an operation if it need not wait.
    ///
    /// # Safety
    ///
    /// The operation is in flight: it owns the memory that `op` points to until its completion.
    unsafe fn attempt(&mut self, op: &Op) -> Option<OpResult> {
        let Op::RecvManaged { fd, medium, drained } = *op else {
            // SAFETY: the caller keeps the contract.
            return unsafe { self.execute(op) }.map(OpResult::new);
        };
        let pool = self.pool.clone().expect("provided before the first managed receive");
        let Some(index) = pool.take() else {
            return Some(OpResult::new(Err(libc::ENOBUFS)));
        };
        let (ptr, len) = (pool.address(index), pool.buffer_len());
        // SAFETY: the buffer was just taken from the pool.
        let res = unsafe {
            self.execute(&Op::Recv {
                fd,
                medium,
                drained,
                ptr,
                len,
            })
        };
        match res {
            Some(Ok(count)) if count > 0 => Some(OpResult::new(Ok(count)).with_buffer(index)),
            res => {
                // SAFETY: no result names the buffer, and nothing uses it.
                unsafe { pool.give_back(index) };
                res.map(OpResult::new)
            }
        }
    }

    /// # Safety
    ///
    /// As for `attempt`.
    unsafe fn execute(&mut self, op: &Op) -> Option<OsResult> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            match *op {
                Op::Accept { fd } => match self.resources.get_mut(&fd) {
                    Some(Resource::Listener(_, waiting)) => waiting.pop_front().map(|fd| Ok(fd as u32)),
                    _ => Some(Err(libc::EINVAL)),
                },
                Op::Connect { fd, name } => {
                    let to = (*name).as_socket()?;
                    let at = self.find(|thing| matches!(thing, Resource::Listener(addr, _) if *addr == to));
                    let Some(at) = at else {
                        return Some(Err(libc::ECONNREFUSED));
                    };
                    let server = self.add(Resource::Stream {
                        peer: fd,
                        inbox: VecDeque::new(),
                    });
                    self.resources.insert(
                        fd,
                        Resource::Stream {
                            peer: server,
                            inbox: VecDeque::new(),
                        },
                    );
                    if let Some(Resource::Listener(_, waiting)) = self.resources.get_mut(&at) {
                        waiting.push_back(server);
                    }
                    Some(Ok(0))
                }
                Op::Recv { fd, ptr, len, .. } => match self.resources.get_mut(&fd) {
                    Some(Resource::Stream { peer, inbox }) => {
                        let (peer, count) = (*peer, inbox.len().min(len));
                        for at in 0..count {
                            ptr.add(at).write(inbox.pop_front()?);
                        }
                        (count > 0 || !self.resources.contains_key(&peer)).then_some(Ok(count as u32))
                    }
                    _ => Some(Err(libc::EBADF)),
                },
                Op::Send { fd, ptr, len, .. } => {
                    let Some(&Resource::Stream { peer, .. }) = self.resources.get(&fd) else {
                        return Some(Err(libc::EBADF));
                    };
                    match self.resources.get_mut(&peer) {
                        Some(Resource::Stream { inbox, .. }) => inbox.extend(std::slice::from_raw_parts(ptr, len)),
                        _ => return Some(Err(libc::EPIPE)),
                    }
                    Some(Ok(len as u32))
                }
                Op::RecvMessage { fd, message } => self.receive(fd, &mut *message),
                Op::SendMessage { fd, message, .. } => Some(self.send(fd, &*message)),
                Op::File(FileOp::Open { path, .. }) => {
                    let len = CStr::from_ptr(path).count_bytes() as u64;
                    Some(Ok(self.add(Resource::File(len)) as u32))
                }
                Op::File(FileOp::Stat { fd, path, out, .. }) => match (path.is_null(), self.resources.get(&fd)) {
                    (true, Some(&Resource::File(len))) => {
                        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(CREATED);
                        let stat = Stat::new(libc::S_IFREG | 0o640, len);
                        out.write(
                            stat.with_times(made, made, Some(made))
                                .with_identity(1, 77, 2)
                                .with_owner(5, 6),
                        );
                        Some(Ok(0))
                    }
                    _ => Some(Err(libc::EBADF)),
                },
                _ => Some(Err(libc::EOPNOTSUPP)),
            }
        }
    }

    /// # Safety
    ///
    /// The message and everything it points to is valid and not used elsewhere.
    unsafe fn receive(&mut self, fd: Fd, message: &mut Message) -> Option<OsResult> {
        let Some(Resource::Datagrams(_, inbox)) = self.resources.get_mut(&fd) else {
            return Some(Err(libc::EBADF));
        };
        let (from, bytes) = inbox.pop_front()?;
        // SAFETY: the caller guarantees that the message is valid.
        unsafe {
            let place = message.bytes();
            let count = bytes.len().min(place.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.base, count);
            message.deliver(&Name::from(from), count < bytes.len());
            Some(Ok(count as u32))
        }
    }

    /// # Safety
    ///
    /// As for `receive`.
    unsafe fn send(&mut self, fd: Fd, message: &Message) -> OsResult {
        // SAFETY: the caller guarantees that the message is valid.
        let (bytes, to) = unsafe { (message.bytes(), message.name()) };
        let to = to.and_then(|name| name.as_socket()).ok_or(libc::EDESTADDRREQ)?;
        let Some(&Resource::Datagrams(from, _)) = self.resources.get(&fd) else {
            return Err(libc::EBADF);
        };
        // SAFETY: the caller guarantees that the message is valid.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.base, bytes.len) }.to_vec();
        let count = bytes.len() as u32;
        let at = self.find(|thing| matches!(thing, Resource::Datagrams(addr, _) if *addr == to));
        if let Some(Resource::Datagrams(_, inbox)) = at.and_then(|at| self.resources.get_mut(&at)) {
            inbox.push_back((from, bytes));
        }
        Ok(count)
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.seen.borrow_mut().dropped = true;
    }
}

// SAFETY: the driver uses an operation's memory only in `attempt`, and reports its only completion afterwards.
unsafe impl Driver for Toy {
    fn describe(&self) -> Description {
        Description::new("toy", Vec::new(), "a test")
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn has_virtual_clock(&self) -> bool {
        true
    }

    fn fd_space(&self) -> FdSpace {
        FdSpace::Own
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Socket { kind } => {
                let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
                let thing = match kind {
                    SocketKind::UdpV4 => Resource::Datagrams(nowhere, VecDeque::new()),
                    _ => Resource::Fresh(nowhere),
                };
                Ok(Reply::Fd(self.add(thing)))
            }
            Control::Bind { fd, name } => {
                let mut addr = name.as_socket().ok_or(io::ErrorKind::Unsupported)?;
                addr.set_port(1000 + fd as u16);
                match self.resources.get_mut(&fd) {
                    Some(Resource::Fresh(bound) | Resource::Datagrams(bound, _)) => *bound = addr,
                    _ => return Err(io::Error::from_raw_os_error(libc::EBADF)),
                }
                Ok(Reply::Done)
            }
            Control::Listen { fd, .. } => {
                if let Some(&Resource::Fresh(addr)) = self.resources.get(&fd) {
                    self.resources.insert(fd, Resource::Listener(addr, VecDeque::new()));
                }
                Ok(Reply::Done)
            }
            Control::LocalName { fd } | Control::PeerName { fd } => self.name_of(fd).map(Reply::Name),
            Control::Close { fd } | Control::Reset { fd } => {
                assert!(self.resources.remove(&fd).is_some(), "{fd} was closed and is not open");
                self.seen.borrow_mut().closed += 1;
                Ok(Reply::Done)
            }
            Control::SetOption { .. } => Ok(Reply::Done),
            Control::Seek { .. } => Ok(Reply::Position(0)),
            call => Err(io::Error::new(io::ErrorKind::Unsupported, format!("{call:?}"))),
        }
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        match op {
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Recv { .. }
            | Op::RecvManaged { .. }
            | Op::Send { .. }
            | Op::RecvMessage { .. }
            | Op::SendMessage { .. }
            | Op::File(FileOp::Open { .. } | FileOp::Stat { .. }) => {
                self.pending.push((id, op, false));
                Start::Pending
            }
            // Delegated to a thread. The loop refuses those on a descriptor, which is not the kernel's.
            _ => Start::Blocking,
        }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.pool = Some(pool.clone());
        true
    }

    /// A datagram "refused" stands for an error. There is no `send_batch`: the loop sends one by one.
    unsafe fn recv_batch(&mut self, fd: Fd, entries: &mut [MessageEntry]) -> usize {
        for (index, entry) in entries.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the message is valid.
            let Some(mut result) = (unsafe { self.receive(fd, entry.message_mut()) }) else {
                return index;
            };
            if result == Ok("refused".len() as u32) {
                result = Err(libc::ECONNREFUSED);
            }
            entry.set_result(result);
            assert_eq!(entry.result(), result);
            if result.is_err() {
                return index + 1;
            }
        }
        entries.len()
    }

    fn cancel(&mut self, id: OpId, _op: &Op) {
        for pending in self.pending.iter_mut().filter(|pending| pending.0 == id) {
            pending.2 = true;
        }
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let before = completed.len();
        for (id, op, cancelled) in std::mem::take(&mut self.pending) {
            // SAFETY: the operation is in flight, so the loop keeps it in place.
            match unsafe { self.attempt(&*op) } {
                Some(result) => completed.push(Completion { id, result }),
                None if cancelled => completed.push(Completion {
                    id,
                    result: OpResult::new(Err(libc::ECANCELED)),
                }),
                None => self.pending.push((id, op, false)),
            }
        }
        match wait {
            Wait::Until(deadline) | Wait::Between(_, deadline) if completed.len() == before => {
                self.now = self.now.max(deadline);
            }
            Wait::Forever if completed.len() == before => panic!("the loop would wait forever"),
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        struct Silent;
        impl Notify for Silent {
            fn notify(&self) {}
        }
        Arc::new(Silent)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

/// Files of the program at the numbers that the driver hands out: from 3, unless the test was started with more open
/// files.
fn files() -> &'static Mutex<Vec<std::fs::File>> {
    static FILES: OnceLock<Mutex<Vec<std::fs::File>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let file = || {
            // SAFETY: the name ends in NUL; the descriptor is new and has no other owner.
            unsafe {
                let fd = libc::memfd_create(c"windlass-test".as_ptr(), libc::MFD_CLOEXEC);
                assert!(fd >= 0);
                std::fs::File::from_raw_fd(fd)
            }
        };
        Mutex::new((0..32).map(|_| file()).collect())
    })
}

/// Asserts that each file is still open and still the same.
fn assert_unharmed() {
    for (at, file) in files().lock().expect("no panic").iter_mut().enumerate() {
        let mut text = String::new();
        file.set_len(0).expect("the program's file is open");
        file.rewind().expect("it is a file");
        write!(file, "{at}").expect("it can be written");
        file.rewind().expect("it is a file");
        file.read_to_string(&mut text).expect("it can be read");
        assert_eq!(text, at.to_string());
    }
}

#[test]
fn closes_go_through_the_driver_before_it_is_dropped() {
    let seen = Rc::new(RefCell::new(Observed::default()));
    let event_loop = Builder::new().with_driver(Toy::new(&seen)).build().expect("a loop");
    let kept = event_loop
        .run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let client = TcpStream::connect(addr).await.expect("connect");
            let (server, _) = listener.accept().await.expect("accept");
            client.write_all("hello").await.0.expect("write");
            let (count, buf) = server.read(vec![0; 16]).await;
            assert_eq!(&buf[..count.expect("read")], b"hello");
            // This stream closes at the end of the block, and its peer outlives the loop.
            drop(server);
            // On the kernel drivers a lingering socket is closed by a thread.
            let _ = client.set_linger(Some(Duration::from_secs(1)));
            (listener, client)
        })
        .expect("the loop runs");
    drop(event_loop);
    assert!(!seen.borrow().dropped, "the driver was dropped before its descriptors");
    let open = seen.borrow().open;
    assert_eq!(seen.borrow().closed, open - 2);
    drop(kept);
    assert_eq!(seen.borrow().closed, open, "a close did not reach the driver");
    assert!(seen.borrow().dropped);
    assert_unharmed();
}

#[test]
fn managed_receives_use_the_loops_buffers() {
    let seen = Rc::default();
    let event_loop = Builder::new()
        .with_driver(Toy::new(&seen))
        .managed_buffers(1, 4)
        .build()
        .expect("a loop");
    let ran = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:80").await.expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("an address"))
            .await
            .expect("connect");
        let (server, _) = listener.accept().await.expect("accept");
        client.write_all("abcdefgh").await.0.expect("write");
        let first = server.read_managed().await.expect("read");
        assert_eq!(&*first, b"abcd");
        // The only buffer is in use, so this is read into other memory.
        assert_eq!(&*server.read_managed().await.expect("read"), b"efgh");
        drop(first);
        client.write_all("ij").await.0.expect("write");
        assert_eq!(&*server.read_managed().await.expect("read"), b"ij");
        drop(client);
        assert!(server.read_managed().await.expect("read").is_empty());
    });
    ran.expect("the loop runs");
}

#[test]
fn datagrams_have_addresses() {
    let seen = Rc::new(RefCell::new(Observed::default()));
    let event_loop = Builder::new().with_driver(Toy::new(&seen)).build().expect("a loop");
    event_loop
        .run_until_complete(async {
            let one = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
            let other = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
            let (sent, _) = one.send_to("ping", other.local_addr().expect("an address")).await;
            assert_eq!(sent.expect("send"), 4);
            let (received, buf) = other.recv_from(vec![0; 16]).await;
            let (count, from) = received.expect("receive");
            assert_eq!(
                (&buf[..count], from),
                (&b"ping"[..], one.local_addr().expect("an address"))
            );
        })
        .expect("the loop runs");
    drop(event_loop);
    assert!(seen.borrow().dropped);
    assert_eq!(seen.borrow().closed, seen.borrow().open);
}

/// An error that follows datagrams in a batch is returned by the next receive.
#[test]
fn an_error_behind_datagrams_is_kept() {
    let event_loop = Builder::new()
        .with_driver(Toy::new(&Rc::default()))
        .build()
        .expect("a loop");
    let ran = event_loop.run_until_complete(async {
        let one = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let other = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
        let to = other.local_addr().expect("an address");
        let (mut sending, mut batch) = (SendBatch::new(), RecvBatch::new(8, 16));
        for text in ["one", "two", "refused", "three", "refused"] {
            sending.push(text.as_bytes(), to);
        }
        assert_eq!(one.send_batch(&mut sending).await.expect("send"), 5);
        for expected in [Some(&["one", "two"][..]), None, Some(&["three"][..]), None] {
            match (other.recv_batch(&mut batch).await, expected) {
                (Ok(_), Some(texts)) => {
                    let received: Vec<_> = batch.iter().map(|datagram| datagram.to_vec()).collect();
                    assert_eq!(received, texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
                    assert!(
                        batch
                            .iter()
                            .all(|datagram| Some(datagram.from()) == one.local_addr().ok())
                    );
                }
                (Err(error), None) => assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused),
                (received, _) => panic!("{received:?} instead of {expected:?}"),
            }
        }
    });
    ran.expect("the loop runs");
}

#[test]
fn a_file_has_metadata_and_no_thread_works_on_the_drivers_descriptors() {
    let seen = Rc::new(RefCell::new(Observed::default()));
    let event_loop = Builder::new().with_driver(Toy::new(&seen)).build().expect("a loop");
    event_loop
        .run_until_complete(async {
            let file = File::open("twelve chars").await.expect("open");
            let metadata = file.metadata().await.expect("stat");
            assert!(metadata.is_file());
            assert_eq!((metadata.len(), metadata.mode() & 0o777), (12, 0o640));
            assert_eq!(
                (metadata.ino(), metadata.nlink(), metadata.uid(), metadata.gid()),
                (77, 2, 5, 6)
            );
            let made = SystemTime::UNIX_EPOCH + Duration::from_secs(CREATED);
            assert_eq!(metadata.modified().expect("a time"), made);
            assert_eq!(metadata.created().expect("a time"), made);
            let error = file.sync_all().await.expect_err("no thread may do this");
            assert_eq!(windlass::os_code(&error), Some(libc::EOPNOTSUPP), "{error}");
        })
        .expect("the loop runs");
    drop(event_loop);
    assert_eq!(seen.borrow().closed, 1);
    assert_unharmed();
}

/// The driver's descriptors are not shown as the kernel's, and the kernel's are not passed to the driver.
#[test]
fn driver_and_kernel_descriptors_are_kept_apart() {
    let seen = Rc::new(RefCell::new(Observed::default()));
    let event_loop = Builder::new().with_driver(Toy::new(&seen)).build().expect("a loop");
    event_loop
        .run_until_complete(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bind");
            let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| socket.as_fd().as_raw_fd()));
            assert!(shown.is_err(), "the driver's number passes for the kernel's");
            let error = socket.into_std().expect_err("it is not the kernel's");
            assert_eq!(error.error().kind(), io::ErrorKind::Unsupported);
            let std_socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
            let error = UdpSocket::from_std(std_socket).expect_err("it is not the driver's");
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        })
        .expect("the loop runs");
    assert_unharmed();
}

#[test]
fn messages_and_addresses_can_be_created() {
    let addr = SocketAddr::from(([127, 0, 0, 1], 4000));
    let name = Name::from(addr);
    assert_eq!(
        Name::from_bytes(name.as_bytes()).and_then(|name| name.as_socket()),
        Some(addr)
    );
    assert!(Name::from_bytes(&[0; 1000]).is_none());
    let (mut bytes, mut message) = ([0; 4], MessageBuf::new());
    let header = message.to_receive(&mut bytes);
    // SAFETY: the buffer and the bytes are alive and not used elsewhere.
    unsafe {
        assert_eq!((*header).bytes().len, 4);
        (*header).deliver(&name, true);
    }
    let (sender, cut_off) = message.received();
    assert_eq!((sender.and_then(|name| name.as_socket()), cut_off), (Some(addr), true));
    let option = SocketOption::Nodelay(true);
    assert!(matches!(
        Reply::Option(option),
        Reply::Option(SocketOption::Nodelay(true))
    ));
}
