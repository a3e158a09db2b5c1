//! Kernel errors that are hard to provoke, injected between the loop and a real driver.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use windlass::EventLoop;
use windlass::driver::{
    BufferPool, Completion, Control, Description, Driver, DriverCounters, Fd, Notify, Op, OpId, OpResult, OsResult,
    Reply, Scratch, Start, Wait,
};
use windlass::net::{TcpListener, UnixDatagram, UnixListener, UnixStream};
use windlass::task::yield_now;
use windlass::time::{Instant, sleep};

use crate::support::{Case, Folder, exceptions_of, on_every_driver, on_every_kernel_driver, pair_of};

/// The errors to inject next.
#[derive(Default)]
struct Faults {
    accepts: RefCell<VecDeque<i32>>,
    polls: RefCell<VecDeque<i32>>,
    flushes: RefCell<VecDeque<i32>>,
    /// The number of accepts started.
    accepts_started: Cell<usize>,
}

/// A driver that fails on request and otherwise forwards to the inner driver.
struct Faulty {
    inner: Box<dyn Driver>,
    faults: Rc<Faults>,
    /// Accepts that were not forwarded, and their error codes.
    failed: Vec<(OpId, i32)>,
}

// SAFETY: an operation is either forwarded to the inner driver, which keeps the contract, or never started and
// completes once.
unsafe impl Driver for Faulty {
    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn has_virtual_clock(&self) -> bool {
        self.inner.has_virtual_clock()
    }

    fn tries_first(&self) -> bool {
        self.inner.tries_first()
    }

    fn submits_in_batches(&self) -> bool {
        self.inner.submits_in_batches()
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        self.inner.control(call)
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, scratch: *mut Scratch) -> Start {
        if let Op::Accept { .. } = op {
            self.faults.accepts_started.set(self.faults.accepts_started.get() + 1);
            if let Some(code) = self.faults.accepts.borrow_mut().pop_front() {
                self.failed.push((id, code));
                return Start::Pending;
            }
        }
        // SAFETY: the caller keeps the contract.
        unsafe { self.inner.start(id, op, scratch) }
    }

    unsafe fn attempt(&mut self, op: &Op, alone: bool) -> Option<OsResult> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.inner.attempt(op, alone) }
    }

    fn cancel(&mut self, id: OpId, op: &Op) {
        if !self.failed.iter().any(|(failed, _)| *failed == id) {
            self.inner.cancel(id, op);
        }
    }

    fn provide_buffers(&mut self, pool: &Rc<BufferPool>) -> bool {
        self.inner.provide_buffers(pool)
    }

    fn poll(&mut self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        if let Some(code) = self.faults.polls.borrow_mut().pop_front() {
            return Err(io::Error::from_raw_os_error(code));
        }
        let failed = self.failed.drain(..).map(|(id, code)| Completion {
            id,
            result: OpResult::new(Err(code)),
        });
        let before = completed.len();
        completed.extend(failed);
        let wait = if completed.len() > before { Wait::Poll } else { wait };
        self.inner.poll(completed, wait)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.faults.flushes.borrow_mut().pop_front() {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => self.inner.flush(),
        }
    }

    fn descriptor(&mut self) -> io::Result<Fd> {
        self.inner.descriptor()
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.inner.notifier()
    }

    fn counters(&self) -> DriverCounters {
        self.inner.counters()
    }
}

fn faulty(case: Case) -> (EventLoop, Rc<Faults>) {
    let faults = Rc::new(Faults::default());
    let event_loop = case.builder().wrap_driver({
        let faults = faults.clone();
        move |inner| {
            Box::new(Faulty {
                inner,
                faults,
                failed: Vec::new(),
            })
        }
    });
    (event_loop.build().expect("the driver was opened before"), faults)
}

/// Every error that accept(2) says to retry, or that a firewall causes.
const TRANSIENT: [i32; 11] = [
    libc::ECONNABORTED,
    libc::EINTR,
    libc::EPROTO,
    libc::ENOPROTOOPT,
    libc::ENETDOWN,
    libc::EHOSTDOWN,
    libc::ENONET,
    libc::EHOSTUNREACH,
    libc::ENETUNREACH,
    libc::EOPNOTSUPP,
    libc::EPERM,
];

#[test]
fn accept_skips_errors_of_single_connections() {
    on_every_driver(|case| {
        let (event_loop, faults) = faulty(case);
        let result = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            for code in TRANSIENT {
                faults.accepts.borrow_mut().extend([code; 3]);
                let (client, server) = pair_of(&listener).await;
                client.write_all("here").await.0.expect("write");
                assert_eq!(&server.read_exact([0; 4]).await.1, b"here");
                assert!(faults.accepts.borrow().is_empty());
            }
            if !case.is_kernel() {
                return;
            }
            let folder = Folder::new();
            let listener = UnixListener::bind(folder.join("socket")).expect("bind");
            for code in TRANSIENT {
                faults.accepts.borrow_mut().extend([code; 3]);
                let client = UnixStream::connect(folder.join("socket")).await.expect("connect");
                let (server, _) = listener
                    .accept()
                    .await
                    .expect("errors of single connections are skipped");
                client.write_all("here").await.0.expect("write");
                assert_eq!(&server.read_exact([0; 4]).await.1, b"here");
                assert!(faults.accepts.borrow().is_empty());
            }
        });
        result.expect("the loop runs");
    });
}

/// An error that may also be permanent is returned when it repeats, without spinning.
#[test]
fn accept_returns_a_permanent_error() {
    on_every_driver(|case| {
        let (event_loop, faults) = faulty(case);
        let result = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            for code in [libc::EOPNOTSUPP, libc::EPERM] {
                faults.accepts.borrow_mut().extend([code; 1_000]);
                faults.accepts_started.set(0);
                let error = listener.accept().await.expect_err("accept fails each time");
                assert_eq!(windlass::os_code(&error), Some(code));
                assert!(faults.accepts_started.get() < 100);
                faults.accepts.borrow_mut().clear();
            }
            faults.accepts.borrow_mut().push_back(libc::EINVAL);
            faults.accepts_started.set(0);
            let error = listener.accept().await.expect_err("an error of the listener");
            assert_eq!(windlass::os_code(&error), Some(libc::EINVAL));
            assert_eq!(faults.accepts_started.get(), 1, "it was retried");
            pair_of(&listener).await;
        });
        result.expect("the loop runs");
    });
}

/// A datagram socket cannot accept at all.
#[test]
fn accepting_from_a_datagram_socket_is_an_error() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (socket, _peer) = UnixDatagram::pair().expect("a pair");
            let socket = socket.into_std().expect("no operation is in flight");
            let socket = std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
            let listener = UnixListener::from_std(socket).expect("a socket");
            let error = listener.accept().await.expect_err("a datagram socket");
            assert_eq!(windlass::os_code(&error), Some(libc::EOPNOTSUPP));
        });
    });
}

#[test]
fn a_poll_short_of_memory_does_not_end_the_loop() {
    on_every_driver(|case| {
        for code in [libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN] {
            let (event_loop, faults) = faulty(case);
            let reported = exceptions_of(&event_loop);
            let result = event_loop.run_until_complete(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
                let (client, server) = pair_of(&listener).await;
                let read = windlass::spawn(async move { server.read_exact([0; 4]).await.1 });
                // In polls that may not sleep,
                faults.polls.borrow_mut().extend([code; 3]);
                while !faults.polls.borrow().is_empty() {
                    yield_now().await;
                }
                // and in polls that may.
                faults.polls.borrow_mut().extend([code; 5]);
                sleep(Duration::from_millis(1)).await;
                client.write_all("here").await.0.expect("write");
                assert_eq!(&read.await.expect("no panic"), b"here");
            });
            result.expect("the loop continues");
            assert!(faults.polls.borrow().is_empty());
            let reported = reported.borrow();
            assert_eq!(reported.len(), 1, "{reported:?}");
            assert!(reported[0].contains("short of memory"), "{reported:?}");
        }
    });
}

/// Other errors of a poll end the run.
#[test]
fn other_poll_errors_end_the_run() {
    on_every_driver(|case| {
        let (event_loop, faults) = faulty(case);
        faults.polls.borrow_mut().push_back(libc::EBADF);
        let error = event_loop.run_until_complete(async {}).expect_err("the driver failed");
        assert_eq!(windlass::os_code(&error), Some(libc::EBADF));
        event_loop.run_until_complete(async {}).expect("a second run succeeds");
    });
}

/// Embedded in an outer loop, which must be woken to flush again.
#[test]
fn a_flush_short_of_memory_wakes_the_outer_loop() {
    on_every_kernel_driver(|case| {
        let (event_loop, faults) = faulty(case);
        let reported = exceptions_of(&event_loop);
        let ours = event_loop.pollable().expect("a descriptor");
        let is_readable = || {
            let mut poll = libc::pollfd {
                fd: ours.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: the kernel reads and writes the one local structure.
            unsafe { libc::poll(&mut poll, 1, 0) == 1 }
        };
        // Consumes the notification of opening the driver.
        event_loop.turn_nowait().expect("a turn");
        event_loop.flush().expect("a flush");
        assert!(!is_readable());
        faults.flushes.borrow_mut().push_back(libc::ENOMEM);
        event_loop.flush().expect("a shortage is not an error");
        assert!(is_readable(), "the outer loop was not woken");
        let reported = reported.borrow();
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains("short of memory"), "{reported:?}");
    });
}
