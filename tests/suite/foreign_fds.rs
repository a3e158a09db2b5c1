//! Descriptors that the loop does not own: numbers that change owner, destructors that call back into the loop, devices
//! without readiness.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::AsyncFd;
use windlass::{EventLoop, add_reader, remove_reader};

use crate::support::{on_every_driver, on_every_kernel_driver, pair, poll_once, turns};

/// Makes `number` refer to the file behind `from`, closing the old one: a close and a reuse of the number in one step.
fn take_over(from: &UnixStream, number: RawFd) {
    // SAFETY: both numbers are open descriptors; dup2(2) touches no memory.
    let result = unsafe { libc::dup2(from.as_raw_fd(), number) };
    assert_eq!(result, number, "{}", std::io::Error::last_os_error());
}

/// Adds a reader when dropped.
struct AddsReader(Rc<dyn Fn()>);

impl Drop for AddsReader {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn when_a_destructor_adds_a_reader_only_one_stays() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let called = Rc::new(RefCell::new(Vec::new()));
            let add = {
                let (server, called) = (Rc::downgrade(&server), called.clone());
                Rc::new(move || {
                    let called = called.clone();
                    let server = server.upgrade().expect("the stream is open");
                    add_reader(&server, move || called.borrow_mut().push("from the destructor")).expect("added");
                })
            };
            let adds = AddsReader(add);
            add_reader(&server, move || drop(adds.0.clone())).expect("added");
            let replacing = called.clone();
            add_reader(&server, move || replacing.borrow_mut().push("replacing")).expect("added");
            client.write_all("x").await.0.expect("write");
            while called.borrow().is_empty() {
                turns(1).await;
            }
            turns(5).await;
            assert!(remove_reader(&server), "there is one");
            let so_far = called.borrow().clone();
            turns(5).await;
            assert!(
                so_far.iter().all(|reader| *reader == so_far[0]),
                "more than one reader was called: {so_far:?}"
            );
            assert_eq!(*called.borrow(), so_far, "a removed reader was called");
        });
    });
}

#[test]
fn a_reader_that_removed_itself_starts_no_operation() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            let ours = Rc::new(ours);
            let called = Rc::new(Cell::new(false));
            add_reader(&ours, {
                let (ours, called) = (ours.clone(), called.clone());
                move || {
                    let mut byte = [0];
                    (&*ours).read_exact(&mut byte).expect("a byte");
                    assert!(remove_reader(&ours));
                    called.set(true);
                }
            })
            .expect("it can be watched");
            theirs.write_all(&[1]).expect("write");
            turns(1).await;
            let before = windlass::counters().driver.submissions;
            while !called.get() {
                turns(1).await;
            }
            turns(5).await;
            let more = windlass::counters().driver.submissions - before;
            // io_uring may have submitted the read on its own eventfd.
            assert!(
                more <= u64::from(case.has_rings()),
                "{more} operations after the reader was removed"
            );
        });
    });
}

#[test]
fn a_new_reader_on_a_reused_fd_watches_the_new_file() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (old, _old_peer) = UnixStream::pair().expect("a pair");
            let (new, mut new_peer) = UnixStream::pair().expect("a pair");
            let fd = old.as_raw_fd();
            add_reader(&fd, || {}).expect("it can be watched");
            turns(3).await;
            take_over(&new, fd);
            drop(new);
            let (called, is_called) = windlass::promise();
            add_reader(&fd, move || called.resolve(()).unwrap_or(())).expect("it can be watched");
            turns(3).await;
            new_peer.write_all(&[1]).expect("write");
            let result = windlass::time::timeout(Duration::from_secs(60), is_called).await;
            assert!(matches!(result, Ok(Ok(()))), "{result:?}");
            assert!(remove_reader(&fd));
        });
    });
}

#[test]
fn a_leaked_wait_does_not_block_the_next_owner_of_the_fd() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (old, _old_peer) = UnixStream::pair().expect("a pair");
            let (new, mut new_peer) = UnixStream::pair().expect("a pair");
            let fd = old.as_raw_fd();
            let watched = AsyncFd::new(old).expect("it can be watched");
            let mut waiting = Box::pin(watched.readable());
            assert!(poll_once(waiting.as_mut()).await.is_pending());
            crate::support::keep_forever(waiting);
            // dup2 replaces the file in one step, so no other test can get the number in between.
            let old = watched.into_inner();
            take_over(&new, fd);
            let next = AsyncFd::new(old).expect("it can be watched");
            let peer = windlass::spawn(async move {
                turns(5).await;
                new_peer.write_all(&[1]).expect("write");
                new_peer
            });
            let ready = windlass::time::timeout(Duration::from_secs(60), next.readable()).await;
            assert!(matches!(ready, Ok(Ok(()))), "{ready:?}");
            drop(peer.await);
        });
    });
}

#[test]
fn a_descriptor_dropped_outside_its_loop_closes_at_once() {
    on_every_kernel_driver(|case| {
        let event_loop: EventLoop = case.event_loop();
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.set_nonblocking(true).expect("non-blocking");
        let waiting = event_loop
            .run_until_complete(async {
                let ours = AsyncFd::new(ours).expect("it can be watched");
                let mut waiting = Box::pin(async move { ours.readable().await });
                assert!(poll_once(waiting.as_mut()).await.is_pending());
                turns(3).await;
                Some(waiting)
            })
            .expect("the loop runs");
        drop(waiting);
        let end = theirs.read(&mut [0]);
        assert!(matches!(end, Ok(0)), "{end:?}");
    });
}

/// Daemons and pipelines often have /dev/null as standard input.
#[cfg(target_os = "linux")]
#[test]
fn a_device_without_readiness_is_always_ready() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let null = std::fs::File::open("/dev/null").expect("/dev/null");
            let null = AsyncFd::new(null).expect("it can be watched");
            null.readable().await.expect("readable");
            null.writable().await.expect("writable");
            let count = null.read_with(|mut null| null.read(&mut [0])).await;
            assert_eq!(count.expect("read"), 0);
        });
    });
}

/// A write to an eventfd wakes its readers in a context where the kernel defers signalling other eventfds.
#[cfg(target_os = "linux")]
#[test]
fn an_outer_loop_is_woken_by_each_write_to_a_foreign_eventfd() {
    use std::os::fd::FromRawFd;
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        // SAFETY: eventfd(2) touches no memory of ours.
        let number = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) };
        assert!(number >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just made and has no other owner.
        let eventfd = Rc::new(unsafe { std::fs::File::from_raw_fd(number) });
        let calls = Rc::new(Cell::new(0));
        event_loop
            .add_reader(&eventfd, {
                let (eventfd, calls) = (eventfd.clone(), calls.clone());
                move || {
                    (&*eventfd).read_exact(&mut [0; 8]).expect("a count");
                    calls.set(calls.get() + 1);
                }
            })
            .expect("it can be watched");
        let ours = event_loop.pollable().expect("a descriptor").as_raw_fd();
        for round in 1..=5 {
            // Runs the loop until it is idle, so that only the eventfd can wake the outer loop.
            while event_loop.next_deadline().is_some() || poll_in(ours, 30) {
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("flush");
            }
            (&*eventfd).write_all(&1u64.to_ne_bytes()).expect("write");
            while calls.get() < round {
                assert!(poll_in(ours, 60_000), "the outer loop was not woken in round {round}");
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("flush");
            }
        }
        assert!(event_loop.remove_reader(&eventfd));
    });
}

/// Whether the descriptor becomes readable within `timeout` milliseconds.
#[cfg(target_os = "linux")]
fn poll_in(fd: RawFd, timeout: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(timeout as u64);
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        // SAFETY: the kernel reads and writes the one local structure.
        let count = unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32) };
        // Retried after EINTR.
        if count >= 0 || left.is_zero() {
            return count > 0;
        }
    }
}
