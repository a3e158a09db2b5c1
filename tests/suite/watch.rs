//! Readers and writers (`add_reader`, `add_writer`) on every driver: when they are called, and that a removed one is
//! never called. The descriptors are the drivers' own sockets, so all of this runs without a kernel too.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use windlass::net::TcpStream;
use windlass::{EventLoop, add_reader, add_writer, remove_reader, remove_writer};

use crate::child::in_own_process;
use crate::support::{
    CLOSED_NUMBERS, Case, CountDrop, NOT_OPEN, Number, PanicOnDrop, RawSource, Shared, exceptions_of, number_of,
    on_every_driver, on_every_exact_driver, pair, rounds, settle, shown, turn_until, turns,
};

/// Turns within which a ready watcher is called.
const ENOUGH: u64 = 10;

/// A readable stream and its other end.
async fn readable_pair() -> (Shared, TcpStream) {
    let (client, server) = pair().await;
    client.write_all(b"x").await.0.expect("write");
    // The byte has arrived as soon as the server is readable.
    let server = windlass::io::AsyncFd::new(server).expect("it can be watched");
    server.readable().await.expect("readable");
    (Shared(Rc::new(server.into_inner())), client)
}

/// A count, and a callback that increments it.
fn counting() -> (Rc<Cell<u64>>, impl FnMut() + 'static) {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    (count, move || counted.set(counted.get() + 1))
}

/// Runs its closure when dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_reader_that_never_reads_is_called_once_per_turn() {
    // Counts calls by turns.
    on_every_exact_driver(|case| {
        case.run(async {
            let (server, _client) = readable_pair().await;
            let (calls, count) = counting();
            add_reader(&server, count).expect("it can be watched");
            turns(3).await;
            let before = (windlass::counters().turns, calls.get());
            turns(100).await;
            let turned = windlass::counters().turns - before.0;
            let called = calls.get() - before.1;
            assert!((99..=101).contains(&turned), "{turned} turns");
            assert!((95..=turned + 1).contains(&called), "{called} calls in {turned} turns");
            assert!(remove_reader(&server));
        });
    });
}

#[test]
fn a_reader_that_never_reads_starves_neither_timers_nor_io() {
    on_every_driver(|case| {
        if !case.is_kernel() {
            // The virtual clock does not advance while a task is ready.
            return;
        }
        case.run(async {
            let (server, _client) = readable_pair().await;
            let (calls, count) = counting();
            add_reader(&server, count).expect("it can be watched");
            // Measured in turns, which do not depend on the load of the machine. The loop may poll the driver once in
            // 64 turns.
            for _ in 0..20 {
                let deadline = windlass::time::Instant::now() + Duration::from_millis(5);
                let timer = windlass::spawn(windlass::time::sleep_until(deadline));
                while windlass::time::Instant::now() < deadline {
                    turns(1).await;
                }
                let before = windlass::counters().turns;
                timer.await.expect("no panic");
                let late = windlass::counters().turns - before;
                assert!(late <= 70, "a timer was late by {late} turns");
            }
            let mut took = Vec::new();
            for _ in 0..20 {
                let before = windlass::counters().turns;
                let (client, server) = pair().await;
                client.write_all(b"ping").await.0.expect("write");
                let (read, bytes) = server.read(vec![0; 8]).await;
                assert_eq!(&bytes[..read.expect("read")], b"ping");
                took.push(windlass::counters().turns - before);
            }
            // A loaded kernel delivers some of them late.
            took.sort();
            assert!(took[10] < 1_000, "{took:?} turns for a connection and a message");
            assert!(calls.get() > 20, "the reader was not called meanwhile: {}", calls.get());
            remove_reader(&server);
        });
    });
}

#[test]
fn a_watcher_is_not_called_while_nothing_is_ready() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let (calls, count) = counting();
            add_reader(&server, count).expect("it can be watched");
            turns(ENOUGH).await;
            assert_eq!(calls.get(), 0);
            client.write_all(b"x").await.0.expect("write");
            while calls.get() == 0 {
                turns(1).await;
            }
            // Drained: a call that was pending may still come, then none.
            server.read(vec![0; 8]).await.0.expect("read");
            settle().await;
            let drained = calls.get();
            turns(ENOUGH).await;
            assert_eq!(calls.get(), drained);
            client.write_all(b"y").await.0.expect("write");
            while calls.get() == drained {
                turns(1).await;
            }
            server.read(vec![0; 8]).await.0.expect("read");
            settle().await;
            let drained = calls.get();
            drop(client);
            // EOF counts as readable, as long as it is pending.
            while calls.get() < drained + 5 {
                turns(1).await;
            }
            assert!(remove_reader(&server));
        });
    });
}

#[test]
fn both_directions_of_one_descriptor_have_a_watcher_each() {
    on_every_driver(|case| {
        case.run(async {
            let (server, _client) = readable_pair().await;
            let (reads, read) = counting();
            let (writes, write) = counting();
            add_reader(&server, read).expect("it can be watched");
            add_writer(&server, write).expect("it can be watched");
            turn_until(|| reads.get() > 3 && writes.get() > 3).await;
            assert!(remove_writer(&server));
            assert!(!remove_writer(&server));
            let (read_before, written_before) = (reads.get(), writes.get());
            turns(ENOUGH).await;
            turn_until(|| reads.get() > read_before + 3).await;
            assert_eq!(writes.get(), written_before);
            assert!(remove_reader(&server));
            let read_before = reads.get();
            turns(ENOUGH).await;
            assert_eq!((reads.get(), writes.get()), (read_before, written_before));
        });
    });
}

#[test]
fn a_replaced_reader_is_not_called_any_more() {
    on_every_driver(|case| {
        case.run(async {
            let (server, _client) = readable_pair().await;
            let dropped = Rc::new(Cell::new(0));
            let (first, count) = counting();
            let mut count = count;
            let guard = CountDrop(dropped.clone());
            add_reader(&server, move || {
                let _ = &guard;
                count();
            })
            .expect("it can be watched");
            turn_until(|| first.get() > 0).await;
            let (second, count) = counting();
            let before = first.get();
            add_reader(&server, count).expect("it can be watched");
            assert_eq!(dropped.get(), 1, "its captures were not dropped at once");
            turns(ENOUGH).await;
            turn_until(|| second.get() > 3).await;
            assert_eq!(first.get(), before);
            assert!(remove_reader(&server));
            assert!(!remove_reader(&server), "there was only one");
        });
    });
}

#[test]
fn removing_returns_whether_there_was_one_and_needs_no_running_loop() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (server, client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        assert!(!event_loop.remove_reader(&server) && !event_loop.remove_writer(&server));
        let dropped = Rc::new(Cell::new(0));
        let (calls, mut count) = counting();
        let guard = CountDrop(dropped.clone());
        event_loop
            .add_reader(&server, move || {
                let _ = &guard;
                count();
            })
            .expect("it can be watched");
        assert!(!event_loop.remove_writer(&server));
        // Before its task has run.
        assert!(event_loop.remove_reader(&server));
        assert_eq!(dropped.get(), 1);
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        assert_eq!(calls.get(), 0);
        // After it was called, while its next wait is in flight.
        let (calls, count) = counting();
        event_loop.add_writer(&server, count).expect("it can be watched");
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        let before = calls.get();
        assert!(before > 0);
        assert!(event_loop.remove_writer(&server));
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        assert_eq!(calls.get(), before);
        assert_eq!(
            event_loop.counters().in_flight,
            0,
            "an operation is left with the driver"
        );
        drop((server, client));
    });
}

#[test]
fn a_reader_may_remove_and_replace_itself() {
    on_every_driver(|case| {
        case.run(async {
            let (server, _client) = readable_pair().await;
            let dropped = Rc::new(Cell::new(0));
            let fd = number_of(&server);
            let (calls, mut count) = counting();
            let guard = CountDrop(dropped.clone());
            add_reader(&server, {
                let dropped = dropped.clone();
                move || {
                    let _ = &guard;
                    count();
                    assert!(remove_reader(&Number(fd)));
                    assert_eq!(dropped.get(), 0, "a running callback lost its captures");
                    assert!(!remove_reader(&Number(fd)));
                }
            })
            .expect("it can be watched");
            turn_until(|| dropped.get() > 0).await;
            turns(ENOUGH).await;
            assert_eq!((calls.get(), dropped.get()), (1, 1));

            // Each replaces itself with the next one.
            let generations = Rc::new(RefCell::new(Vec::new()));
            watch_in_turn(fd, 0, generations.clone());
            turn_until(|| generations.borrow().len() >= 5).await;
            turns(ENOUGH).await;
            assert_eq!(*generations.borrow(), [0, 1, 2, 3, 4]);
            assert!(!remove_reader(&server), "the last one has removed itself");
            assert_eq!(windlass::counters().tasks, 1, "a watcher's task is left");
        });
    });
}

fn watch_in_turn(fd: RawSource, generation: u32, generations: Rc<RefCell<Vec<u32>>>) {
    let callback = move || {
        generations.borrow_mut().push(generation);
        match generation {
            4 => assert!(remove_reader(&Number(fd))),
            _ => watch_in_turn(fd, generation + 1, generations.clone()),
        }
    };
    add_reader(&Number(fd), callback).expect("it can be watched");
}

#[test]
fn a_reader_removed_in_the_turn_in_which_it_was_ready_is_not_called() {
    on_every_driver(|case| {
        case.run(async {
            for _ in 0..rounds().min(100) {
                let (one, _one) = readable_pair().await;
                let (two, _two) = readable_pair().await;
                let calls = Rc::new(Cell::new(0));
                // Both are ready in the same turn; the first one to run removes the other, which is in the ready queue.
                for (mine, other) in [(&one, &two), (&two, &one)] {
                    let (calls, other) = (calls.clone(), Number(number_of(other)));
                    add_reader(mine, move || {
                        calls.set(calls.get() + 1);
                        remove_reader(&other);
                    })
                    .expect("it can be watched");
                }
                let before = windlass::counters().turns;
                while calls.get() == 0 {
                    turns(1).await;
                }
                let (first, second) = (remove_reader(&one), remove_reader(&two));
                assert!(first != second, "both or none are left");
                let turned = windlass::counters().turns - before;
                assert!(calls.get() as u64 <= turned, "{} calls in {turned} turns", calls.get());
                let before = calls.get();
                turns(3).await;
                assert_eq!(calls.get(), before);
            }
        });
    });
}

#[test]
fn a_ready_reader_removed_by_a_task_is_not_called() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (server, _client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        for _ in 0..rounds().min(200) {
            let (calls, count) = counting();
            event_loop.add_reader(&server, count).expect("it can be watched");
            while calls.get() == 0 {
                event_loop.turn_nowait().expect("it turns");
            }
            // Its task has been polled and waits again. This call runs before it in the next turn, after its operation
            // completed.
            let before = calls.get();
            let fd = number_of(&server);
            event_loop.call_soon(move || assert!(remove_reader(&Number(fd))));
            for _ in 0..3 {
                event_loop.turn_nowait().expect("it turns");
            }
            assert_eq!(calls.get(), before);
        }
        // Hangs if an operation is left.
        let is_idle = || windlass::counters().ops == 0;
        event_loop.run_until_complete(turn_until(is_idle)).expect("it runs");
    });
}

#[test]
fn destructors_may_remove_other_watchers() {
    on_every_driver(|case| {
        case.run(async {
            let (one, _one) = readable_pair().await;
            let (two, _two) = readable_pair().await;
            let (three, _three) = readable_pair().await;
            let (second, mut count_second) = counting();
            let (third, count_third) = counting();
            let removed = Rc::new(Cell::new((false, true)));
            // The captures of the second remove the third, and the second once more.
            let guard = {
                let (two, three) = (Number(number_of(&two)), Number(number_of(&three)));
                let removed = removed.clone();
                OnDrop(move || removed.set((remove_reader(&three), remove_reader(&two))))
            };
            let (first, mut count_first) = counting();
            let number = Number(number_of(&two));
            add_reader(&one, move || {
                count_first();
                remove_reader(&number);
            })
            .expect("it can be watched");
            add_reader(&two, move || {
                let _ = &guard;
                count_second();
            })
            .expect("it can be watched");
            add_reader(&three, count_third).expect("it can be watched");
            while first.get() == 0 {
                turns(1).await;
            }
            assert_eq!(removed.get(), (true, false));
            let before = (second.get(), third.get());
            turns(ENOUGH).await;
            assert_eq!((second.get(), third.get()), before);
            assert!(remove_reader(&one));
        });
    });
}

#[test]
fn a_destructor_that_runs_in_its_own_callback_may_add_a_reader() {
    on_every_driver(|case| {
        case.run(async {
            let (server, _client) = readable_pair().await;
            let fd = number_of(&server);
            let (calls, count) = counting();
            let mut count = Some(count);
            let guard = OnDrop(move || {
                let count = count.take().expect("it is dropped once");
                add_reader(&Number(fd), count).expect("it can be watched");
            });
            add_reader(&server, move || {
                let _ = &guard;
                remove_reader(&Number(fd));
            })
            .expect("it can be watched");
            // Hangs if the destructor's reader is not called.
            turn_until(|| calls.get() > 3).await;
            assert!(remove_reader(&server));
        });
    });
}

#[test]
fn a_panic_in_a_callback_is_reported_and_the_reader_stays() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let (server, client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        let (calls, mut count) = counting();
        event_loop
            .add_reader(&server, move || {
                count();
                panic!("on purpose");
            })
            .expect("it can be watched");
        while calls.get() < 3 {
            event_loop.turn().expect("it turns");
        }
        assert!(event_loop.remove_reader(&server));
        let exceptions = exceptions.borrow();
        assert_eq!(exceptions.len(), 3, "{exceptions:?}");
        let right = |line: &String| line.contains("on purpose") && line.contains("watch.rs");
        assert!(exceptions.iter().all(right), "{exceptions:?}");
        drop((server, client));
    });
}

#[test]
fn a_panic_in_a_captured_destructor_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let (server, _client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        let guarded = |guard: PanicOnDrop| {
            move || {
                let _ = &guard;
            }
        };
        let (one, two, three) = ("removed", "replaced", "removed by itself");
        event_loop
            .add_reader(&server, guarded(PanicOnDrop(one)))
            .expect("added");
        assert!(event_loop.remove_reader(&server));
        event_loop
            .add_reader(&server, guarded(PanicOnDrop(two)))
            .expect("added");
        let (fd, guard) = (number_of(&server), PanicOnDrop(three));
        let by_itself = move || {
            let _ = &guard;
            remove_reader(&Number(fd));
        };
        event_loop.add_reader(&server, by_itself).expect("added");
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        let exceptions = exceptions.borrow();
        let expected = [one, two, three];
        assert_eq!(exceptions.len(), 3, "{exceptions:?}");
        assert!(
            exceptions.iter().zip(expected).all(|(line, what)| line.contains(what)),
            "{exceptions:?}"
        );
    });
}

/// For tests that close a descriptor under its watcher: no other test may get its number meanwhile.
fn alone_on_every_driver(test: &str, body: impl Fn(Case) + Send + Clone + 'static) {
    if cfg!(miri) {
        return on_every_driver(body);
    }
    in_own_process(test, &[], || on_every_driver(body));
}

#[test]
fn a_descriptor_closed_under_its_reader_is_reported_once() {
    let test = "watch::a_descriptor_closed_under_its_reader_is_reported_once";
    alone_on_every_driver(test, |case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let (server, client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        let fd = number_of(&server);
        let dropped = Rc::new(Cell::new(0));
        let (calls, mut count) = counting();
        let guard = CountDrop(dropped.clone());
        let mut server = Some(server);
        let number = Number(fd);
        event_loop
            .add_reader(&number, move || {
                let _ = &guard;
                count();
                drop(server.take());
            })
            .expect("it can be watched");
        let is_dropped = || dropped.get() > 0;
        event_loop.run_until_complete(turn_until(is_dropped)).expect("it runs");
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        assert_eq!((calls.get(), dropped.get()), (1, 1));
        assert!(!event_loop.remove_reader(&number), "it is still watched");
        let exceptions = exceptions.borrow();
        assert_eq!(exceptions.len(), 1, "{exceptions:?}");
        assert!(exceptions[0].contains(&format!("descriptor {fd}")), "{exceptions:?}");
        drop(client);
    });
}

/// The exception handler is user code that runs while the watcher's task is polled, so the task must not be destroyed
/// under it.
#[test]
fn the_exception_handler_may_remove_the_watcher_that_failed() {
    let test = "watch::the_exception_handler_may_remove_the_watcher_that_failed";
    alone_on_every_driver(test, |case| {
        let event_loop = case.event_loop();
        let (server, client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        let fd = number_of(&server);
        let calls = Rc::new(Cell::new(0));
        event_loop.set_exception_handler({
            let calls = calls.clone();
            move |_| {
                calls.set(calls.get() + 1);
                remove_reader(&Number(fd));
            }
        });
        let dropped = Rc::new(Cell::new(0));
        let guard = CountDrop(dropped.clone());
        let mut server = Some(server);
        event_loop
            .add_reader(&Number(fd), move || {
                let _ = &guard;
                drop(server.take());
            })
            .expect("it can be watched");
        let is_dropped = || dropped.get() > 0;
        event_loop.run_until_complete(turn_until(is_dropped)).expect("it runs");
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        assert_eq!(dropped.get(), 1);
        assert_eq!(calls.get(), 1);
        drop(client);
    });
}

#[test]
fn a_closing_loop_drops_what_its_watchers_captured() {
    on_every_driver(|case| {
        let dropped = Rc::new(Cell::new(0));
        let closed_error = Rc::new(RefCell::new(None));
        let event_loop = case.event_loop();
        let (server, client) = event_loop.run_until_complete(readable_pair()).expect("it runs");
        let (idle, other) = event_loop.run_until_complete(pair()).expect("it runs");
        // One is being called, one waits, one never ran. Each owns a stream, and so a reference to the loop.
        let guard = CountDrop(dropped.clone());
        let number = Number(number_of(&server));
        let captured = (guard, server);
        event_loop
            .add_reader(&number, move || {
                let _ = &captured;
            })
            .expect("it can be watched");
        let late = Number(number_of(&client));
        let number = Number(number_of(&idle));
        let guard = (CountDrop(dropped.clone()), idle, client, {
            let closed_error = closed_error.clone();
            OnDrop(move || *closed_error.borrow_mut() = add_reader(&late, || {}).err())
        });
        event_loop
            .add_reader(&number, move || {
                let _ = &guard;
            })
            .expect("it can be watched");
        event_loop.run_until_complete(turns(ENOUGH)).expect("it runs");
        let number = Number(number_of(&other));
        let guard = (CountDrop(dropped.clone()), other);
        event_loop
            .add_writer(&number, move || {
                let _ = &guard;
            })
            .expect("it can be watched");
        drop(event_loop);
        assert_eq!(dropped.get(), 3);
        let error = closed_error.borrow_mut().take().expect("a closed loop watches nothing");
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");
    });
}

#[test]
fn an_invalid_descriptor_is_refused() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        // No process here has a million open descriptors.
        for number in CLOSED_NUMBERS {
            let (calls, count) = counting();
            let error = event_loop.add_reader(&Number(number), count).expect_err("refused");
            assert_bad(&error, number);
            assert_eq!(Rc::strong_count(&calls), 1, "the callback was not dropped");
            let error = event_loop.add_writer(&Number(number), || {}).expect_err("refused");
            assert_bad(&error, number);
            assert!(!event_loop.remove_reader(&Number(number)) && !event_loop.remove_writer(&Number(number)));
            let wrapped = async { windlass::io::AsyncFd::new(Number(number)).map(drop) };
            assert_bad(
                &event_loop.run_until_complete(wrapped).unwrap().expect_err("refused"),
                number,
            );
        }
        event_loop.run_until_complete(turns(3)).expect("it runs");
        assert_eq!(event_loop.counters().tasks, 0);
    });
}

fn assert_bad(error: &std::io::Error, number: RawSource) {
    let code = windlass::os_code(error).expect("the system's code");
    assert!(NOT_OPEN.contains(&code), "{error}");
    let plain = std::io::Error::from_raw_os_error(code);
    assert_eq!(error.kind(), plain.kind(), "{error}");
    assert!(
        error.to_string().contains(&format!("descriptor {}", shown(number))),
        "{error}"
    );
}

/// A failed replacement keeps the existing watcher.
#[test]
fn a_watcher_belongs_to_its_loop() {
    on_every_driver(|case| {
        let (one, two): (EventLoop, EventLoop) = (case.event_loop(), case.event_loop());
        let (server, client) = one.run_until_complete(readable_pair()).expect("it runs");
        let (calls, count) = counting();
        one.add_reader(&server, count).expect("it can be watched");
        assert!(!two.remove_reader(&server), "another loop does not know it");
        one.run_until_complete(turn_until(|| calls.get() > 3)).expect("it runs");
        assert!(one.remove_reader(&server));
        drop((server, client));
    });
}
