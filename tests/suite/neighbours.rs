//! Descriptors of others in odd hands: numbers that change owner, destructors that answer back, devices that cannot wait.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::AsyncFd;
use windlass::{EventLoop, add_reader, remove_reader};

use crate::support::{on_every_driver, on_every_kernel_driver, pair, poll_once, turns};

/// Gives the file behind `from` the number `number`, closing what had it: what a careless neighbour does in two steps.
fn take_over(from: &UnixStream, number: RawFd) {
    // SAFETY: both numbers are open descriptors; dup2(2) touches no memory.
    let result = unsafe { libc::dup2(from.as_raw_fd(), number) };
    assert_eq!(result, number, "{}", std::io::Error::last_os_error());
}

/// Adds a reader when it is dropped.
struct AddsReader(Rc<dyn Fn()>);

impl Drop for AddsReader {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn of_readers_that_are_added_while_one_is_replaced_the_last_stays() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let server = Rc::new(server);
            let called = Rc::new(RefCell::new(Vec::new()));
            let add = {
                let (server, called) = (Rc::downgrade(&server), called.clone());
                Rc::new(move || {
                    let called = called.clone();
                    let server = server.upgrade().expect("it is there");
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
            assert!(so_far.iter().all(|who| *who == so_far[0]), "one reader: {so_far:?}");
            assert_eq!(*called.borrow(), so_far, "and none once it is removed");
        });
    });
}

#[test]
fn a_reader_that_has_removed_itself_asks_for_nothing_more() {
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
                "{more} operations after the reader was gone"
            );
        });
    });
}

#[test]
fn a_reader_of_a_number_that_was_closed_behind_our_back_hears_of_the_new_file() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (old, _old_peer) = UnixStream::pair().expect("a pair");
            let (new, mut new_peer) = UnixStream::pair().expect("a pair");
            let fd = old.as_raw_fd();
            add_reader(&fd, || {}).expect("it can be watched");
            turns(3).await;
            take_over(&new, fd);
            drop(new);
            let (heard, told) = windlass::promise();
            add_reader(&fd, move || heard.resolve(()).unwrap_or(())).expect("it can be watched");
            turns(3).await;
            new_peer.write_all(&[1]).expect("write");
            let told = windlass::time::timeout(Duration::from_secs(60), told).await;
            assert!(matches!(told, Ok(Ok(()))), "{told:?}");
            assert!(remove_reader(&fd));
        });
    });
}

#[test]
fn a_wait_that_was_forgotten_does_not_stand_in_the_way_of_the_next_owner() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (old, _old_peer) = UnixStream::pair().expect("a pair");
            let (new, mut new_peer) = UnixStream::pair().expect("a pair");
            let fd = old.as_raw_fd();
            let watched = AsyncFd::new(old).expect("it can be watched");
            let mut waiting = Box::pin(watched.readable());
            assert!(poll_once(waiting.as_mut()).await.is_pending());
            crate::support::keep_forever(waiting);
            // The number goes to another file in one step, so that no other test is given it.
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
fn a_descriptor_awaited_and_dropped_outside_of_its_loop_closes_at_once() {
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

/// Daemons and pipelines have it as their standard input.
#[cfg(target_os = "linux")]
#[test]
fn a_device_that_cannot_wait_is_always_ready() {
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

/// A write to an eventfd wakes its readers in a place where the kernel does not signal other eventfds at once.
#[cfg(target_os = "linux")]
#[test]
fn an_outer_loop_hears_of_a_foreign_eventfd_each_time() {
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
            // Until there is nothing left to do, so that only the eventfd can make the outer loop return.
            while event_loop.next_deadline().is_some() || poll_in(ours, 30) {
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("flush");
            }
            (&*eventfd).write_all(&1u64.to_ne_bytes()).expect("write");
            while calls.get() < round {
                assert!(poll_in(ours, 60_000), "the outer loop was not told, round {round}");
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("flush");
            }
        }
        assert!(event_loop.remove_reader(&eventfd));
    });
}

/// Whether a descriptor becomes readable within so many milliseconds.
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
        // A signal ends the call, not the wait.
        if count >= 0 || left.is_zero() {
            return count > 0;
        }
    }
}
