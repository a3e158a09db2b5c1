//! Edge cases across modules: self-cancellation, deep nesting, panicking cleanups, and reports whose handle was
//! dropped.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use windlass::metrics::metrics;
use windlass::protocol::{DatagramProtocol, DatagramTransport, connect_datagram_endpoint, create_datagram_endpoint};
use windlass::sync::{Queue, broadcast, thread};
use windlass::task::{CancelOnDrop, TaskGroup, TaskLocal, group, join_all, on_cancel, yield_now};
use windlass::time::{interval, sleep, timeout};

use crate::support::{on_every_driver, poll_once, turns};

const SOON: Duration = Duration::from_secs(60);

/// A task may take its own handle out of shared state and drop it.
#[test]
fn a_task_may_drop_its_own_cancel_on_drop() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let done = event_loop.run_until_complete(async {
            let register: Rc<RefCell<Option<CancelOnDrop<()>>>> = Rc::default();
            let task = windlass::spawn({
                let register = register.clone();
                async move {
                    yield_now().await;
                    let mine = register.take();
                    drop(mine);
                }
            });
            register.replace(Some(task.cancel_on_drop()));
            turns(10).await;
            assert_eq!(windlass::counters().tasks, 1, "{}", windlass::dump());
        });
        done.expect("the loop runs");
    });
}

/// A task that drops another task's `CancelOnDrop` completes only when that task has ended.
#[test]
fn a_task_that_drops_a_cancel_on_drop_waits_for_it() {
    on_every_driver(|case| {
        case.run(async {
            let cleaned = Rc::new(Cell::new(false));
            let inner = windlass::spawn({
                let cleaned = cleaned.clone();
                async move {
                    let cleanup = async move {
                        sleep(Duration::from_millis(5)).await;
                        cleaned.set(true);
                    };
                    on_cancel(SOON, cleanup).during(std::future::pending::<()>()).await;
                }
            });
            turns(2).await;
            let inner = inner.cancel_on_drop();
            let outer = windlass::spawn(async move { drop(inner) });
            outer.await.expect("no panic");
            assert!(cleaned.get(), "joined before the task that it cancelled had ended");
        });
    });
}

/// Dropping nested groups must not recurse on the stack.
#[test]
fn deeply_nested_groups_do_not_overflow_the_stack() {
    const DEPTH: usize = if cfg!(miri) { 20 } else { 3_000 };
    fn nest(depth: usize) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let group = TaskGroup::new();
            if depth > 0 {
                drop(group.spawn(nest(depth - 1)));
            }
            std::future::pending::<()>().await;
        })
    }
    // A small stack, so that a few thousand levels would overflow it.
    on_every_driver(|case| {
        let run = move || {
            case.run(async {
                let outermost = windlass::spawn(nest(DEPTH));
                turns(DEPTH as u64 + 5).await;
                outermost.cancel();
                assert!(outermost.await.expect_err("it was cancelled").is_cancelled());
                assert_eq!(windlass::counters().tasks, 1);
            });
        };
        let builder = std::thread::Builder::new().stack_size(512 * 1024);
        builder.spawn(run).expect("a thread").join().expect("no overflow");
    });
}

/// A closing loop waits for a cleanup and for the tasks that it spawned.
#[test]
fn a_closing_loop_waits_for_tasks_of_a_cleanup() {
    on_every_driver(|case| {
        let reported = Rc::new(Cell::new(0));
        let event_loop = case.event_loop();
        let task = event_loop.spawn({
            let reported = reported.clone();
            async move {
                let cleanup = async move {
                    let helped = group(async |group| {
                        for _ in 0..3 {
                            let reported = reported.clone();
                            group.spawn(async move {
                                sleep(Duration::from_millis(5)).await;
                                reported.set(reported.get() + 1);
                            });
                        }
                    });
                    helped.await.expect("no child fails");
                };
                on_cancel(SOON, cleanup).during(std::future::pending::<()>()).await;
            }
        });
        event_loop.run_until_complete(turns(3)).expect("the loop runs");
        task.cancel();
        // The cleanup and its children are running when the loop closes.
        event_loop.run_until_complete(turns(4)).expect("the loop runs");
        drop(event_loop);
        assert_eq!(reported.get(), 3);
    });
}

/// A cleanup that panicked is finished.
#[test]
fn a_cleanup_that_panicked_is_not_polled_again() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let reported = Rc::new(RefCell::new(Vec::new()));
        event_loop.set_exception_handler({
            let reported = reported.clone();
            move |exception| reported.borrow_mut().push(exception.to_string())
        });
        let joined = event_loop.run_until_complete(async {
            let cleaning = windlass::spawn(async {
                let cleanup = on_cancel(SOON, async {
                    yield_now().await;
                    panic!("on purpose");
                });
                cleanup.run().await
            });
            let joined = cleaning.await;
            turns(5).await;
            joined.expect_err("it panicked").is_panic()
        });
        assert!(joined.expect("the loop runs"));
        drop(event_loop);
        assert_eq!(
            reported.take(),
            [""; 0],
            "the join returned the panic, so it is not reported"
        );
    });
}

/// A panic of the body is reported although the group was dropped.
#[test]
fn the_panic_of_a_dropped_groups_body_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let reported = Rc::new(RefCell::new(Vec::new()));
        event_loop.set_exception_handler({
            let reported = reported.clone();
            move |exception| reported.borrow_mut().push(exception.to_string())
        });
        let result = event_loop.run_until_complete(async {
            let is_dropped = Rc::new(Cell::new(false));
            let seen = is_dropped.clone();
            let slow_to_end = group(async |group| {
                group.spawn(async move {
                    let cleanup = async move {
                        while !seen.get() {
                            sleep(Duration::from_millis(1)).await;
                        }
                    };
                    on_cancel(SOON, cleanup).during(std::future::pending::<()>()).await;
                });
                turns(3).await;
                if !group.is_empty() {
                    panic!("in the body");
                }
            });
            // Dropped by hand: a timeout would wait for the child.
            let mut slow_to_end = Box::pin(slow_to_end);
            for _ in 0..10 {
                let is_pending = poll_once(slow_to_end.as_mut()).await.is_pending();
                assert!(is_pending, "the child cleans up until the group is dropped");
                turns(1).await;
            }
            drop(slow_to_end);
            is_dropped.set(true);
        });
        result.expect("the loop runs");
        drop(event_loop);
        let reported = reported.take();
        assert!(reported.iter().any(|line| line.contains("in the body")), "{reported:?}");
    });
}

/// Debug mode lists the remaining tasks also when cleanups are pending.
#[test]
fn debug_mode_lists_remaining_tasks_beside_cleanups() {
    on_every_driver(|case| {
        let builder = case.builder().debug(true).slow_callback_duration(SOON);
        let event_loop = builder.build().expect("a loop");
        let reported = Rc::new(RefCell::new(String::new()));
        event_loop.set_exception_handler({
            let reported = reported.clone();
            move |exception| *reported.borrow_mut() += &exception.to_string()
        });
        let left = [
            event_loop.spawn(async {
                on_cancel(SOON, async {}).during(std::future::pending::<()>()).await;
            }),
            event_loop.spawn(std::future::pending()),
        ];
        event_loop.run_until_complete(turns(2)).expect("the loop runs");
        drop(event_loop);
        assert!(reported.borrow().contains("2 tasks"), "{}", reported.borrow());
        drop(left);
    });
}

/// When the budget of a poll is used up, the remaining futures are polled in the next turn.
#[test]
fn join_all_does_not_poll_beyond_the_budget() {
    struct Counted<F>(F, Rc<Cell<usize>>);
    impl<F: Future + Unpin> Future for Counted<F> {
        type Output = F::Output;
        fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<F::Output> {
            self.1.set(self.1.get() + 1);
            std::pin::Pin::new(&mut self.0).poll(cx)
        }
    }
    on_every_driver(|case| {
        case.run(async {
            let count = if cfg!(miri) { 300 } else { 4_000 };
            let polls = Rc::new(Cell::new(0));
            let ticks = (0..count).map(|_| {
                let mut every = interval(Duration::from_nanos(1));
                let tick = Box::pin(async move { every.tick().await });
                Counted(tick, polls.clone())
            });
            let ticks: Vec<_> = ticks.collect();
            sleep(Duration::from_millis(1)).await;
            assert_eq!(join_all(ticks).await.len(), count);
            assert!(polls.get() < 3 * count, "{} polls of {count} futures", polls.get());
        });
    });
}

#[test]
fn early_task_done_does_not_count_items_twice() {
    on_every_driver(|case| {
        case.run(async {
            let queue = Queue::unbounded();
            for item in 0..3 {
                queue.put(item).await.expect("open");
            }
            queue.task_done();
            queue.task_done();
            assert_eq!(queue.close_now(), 3);
            timeout(SOON, queue.join()).await.expect("no item is unfinished");
            assert_eq!(queue.unfinished(), 0);
        });
    });
}

/// A value's destructor may receive from the channel.
#[test]
fn a_value_may_receive_while_it_is_dropped() {
    #[derive(Clone)]
    struct Value(u32, Option<Rc<dyn Fn()>>);
    impl Drop for Value {
        fn drop(&mut self) {
            if let Some(at_end) = self.1.take() {
                at_end();
            }
        }
    }
    on_every_driver(|case| {
        case.run(async {
            let (sender, first) = broadcast::channel::<Value>(8);
            let second = Rc::new(RefCell::new(sender.subscribe()));
            let seen = Rc::new(RefCell::new(Vec::new()));
            let receive: Rc<dyn Fn()> = Rc::new({
                let (second, seen) = (Rc::downgrade(&second), seen.clone());
                move || {
                    let Some(second) = second.upgrade() else { return };
                    let Ok(mut second) = second.try_borrow_mut() else {
                        return;
                    };
                    let got = second.try_recv();
                    if let Ok(value) = got {
                        seen.borrow_mut().push(value.0);
                    }
                }
            });
            for number in 0..4 {
                let at_end = (number == 0).then(|| receive.clone());
                let _ = sender.send(Value(number, at_end));
            }
            // The second receiver has read two values; the first has read none and is dropped.
            for number in 0..2 {
                let Ok(mut value) = ({ second.borrow_mut().try_recv() }) else {
                    panic!("a value is there");
                };
                assert_eq!(value.0, number);
                value.1 = None;
            }
            drop(first);
            while let Ok(value) = { second.borrow_mut().try_recv() } {
                seen.borrow_mut().push(value.0);
            }
            assert_eq!(*seen.borrow(), [2, 3], "each value once, in order");
        });
    });
}

#[test]
fn a_channel_without_a_receiver_is_empty() {
    let (sender, receiver) = thread::channel(4);
    sender.try_send(1).expect("room");
    sender.try_send(2).expect("room");
    drop(receiver);
    assert_eq!((sender.len(), sender.is_empty()), (0, true));
}

/// As in asyncio, each callback has its own context.
#[test]
fn task_locals_of_a_remote_callback_stay_with_it() {
    static NUMBER: TaskLocal<u32> = TaskLocal::new();
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        for number in 0..3 {
            let (seen, handle) = (seen.clone(), event_loop.handle());
            let call = move || {
                seen.lock().unwrap().push(NUMBER.try_get());
                NUMBER.set(number);
            };
            handle.call_soon_threadsafe(call).expect("the loop is open");
        }
        event_loop.run_until_complete(turns(3)).expect("the loop runs");
        assert_eq!(*seen.lock().unwrap(), [None, None, None]);
        assert_eq!(NUMBER.try_get(), None, "the value does not stay on the thread");
    });
}

#[test]
fn metrics_since_counts_new_pool_jobs_only() {
    /// A job is counted shortly after its result is available.
    async fn one_job_and_its_count(wanted: u64) {
        windlass::spawn_blocking(|| ()).await.expect("no panic");
        let begun = std::time::Instant::now();
        while metrics().counters.blocking.done < wanted {
            assert!(begun.elapsed() < SOON, "job {wanted} is never counted");
            std::thread::yield_now();
        }
    }
    on_every_driver(|case| {
        case.run(async {
            one_job_and_its_count(1).await;
            let before = metrics();
            assert_eq!(metrics().since(&before).counters.blocking.done, 0);
            one_job_and_its_count(2).await;
            assert_eq!(metrics().since(&before).counters.blocking.done, 1);
        });
    });
}

/// At an urgent byte, splice returns 0, as it does at EOF.
#[cfg(target_os = "linux")]
#[test]
fn a_copy_continues_after_an_urgent_byte() {
    use crate::readiness::{send_urgent, with_std_peer};
    use std::io::Write;
    crate::support::on_every_kernel_driver(|case| {
        case.run(async {
            let (mut source, mut from) = with_std_peer();
            let (mut sink, mut to) = with_std_peer();
            let sent = std::thread::spawn(move || {
                from.write_all(&vec![1; 1 << 20]).expect("write");
                send_urgent(&from, 0xff);
                from.write_all(&[2; 40]).expect("write");
            });
            let received = std::thread::spawn(move || {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut to, &mut bytes).expect("read");
                bytes
            });
            let copied = windlass::io::copy(&mut source, &mut sink).await.expect("copy");
            drop((source, sink));
            sent.join().expect("no panic");
            let received = received.join().expect("no panic");
            assert_eq!((copied, received.len()), ((1 << 20) + 40, (1 << 20) + 40));
            assert!(received.ends_with(&[2; 40]));
        });
    });
}

/// `close` ends a pause.
#[cfg(target_os = "linux")]
#[test]
fn closing_a_paused_subprocess_ends_it() {
    use windlass::process::Command;
    use windlass::protocol::{SubprocessProtocol, SubprocessTransport, subprocess_exec};
    struct Paused(windlass::Promise<()>);
    impl SubprocessProtocol for Paused {
        fn connection_made(&mut self, transport: SubprocessTransport) {
            transport.pause_reading();
        }
        fn connection_lost(&mut self, _error: Option<std::io::Error>) {
            let _ = self.0.resolve(());
        }
    }
    crate::support::on_every_kernel_driver(|case| {
        case.run(async {
            let (done, is_done) = windlass::promise();
            let mut command = Command::new("sh");
            command.args(["-c", "echo something; sleep 60"]);
            let (transport, _protocol) = subprocess_exec(|| Paused(done), &mut command)
                .await
                .expect("the child starts");
            sleep(Duration::from_millis(20)).await;
            transport.close();
            timeout(SOON, is_done)
                .await
                .expect("the child ends")
                .expect("connection_lost is called");
        });
    });
}

/// A protocol that sends again from every error callback must not starve other tasks.
#[test]
fn an_endpoint_that_keeps_failing_does_not_starve_other_tasks() {
    struct Stubborn(Option<DatagramTransport>, Rc<Cell<usize>>);
    impl DatagramProtocol for Stubborn {
        fn connection_made(&mut self, transport: DatagramTransport) {
            transport.send("no address");
            self.0 = Some(transport);
        }
        fn error_received(&mut self, _error: std::io::Error) {
            self.1.set(self.1.get() + 1);
            // Not connected: each send fails.
            self.0.as_ref().expect("made").send("no address");
        }
    }
    on_every_driver(|case| {
        case.run(async {
            let errors = Rc::new(Cell::new(0));
            let factory = || Stubborn(None, errors.clone());
            let (transport, _protocol) = create_datagram_endpoint(factory, "127.0.0.1:0").await.expect("bind");
            turns(50).await;
            assert!(errors.get() > 1, "each error is reported");
            transport.abort();
        });
    });
}

/// An empty datagram counts against the watermark too.
#[test]
fn empty_datagrams_count_against_the_watermark() {
    #[derive(Default)]
    struct Flow(Rc<Cell<usize>>);
    impl DatagramProtocol for Flow {
        fn pause_writing(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    on_every_driver(|case| {
        case.run(async {
            let pauses = Rc::new(Cell::new(0));
            let peer: SocketAddr = "127.0.0.1:9".parse().expect("an address");
            let factory = || Flow(pauses.clone());
            let (transport, _protocol) = connect_datagram_endpoint(factory, peer).await.expect("connect");
            for _ in 0..10_000 {
                transport.send("");
            }
            turns(3).await;
            assert_eq!(pauses.get(), 1);
            transport.abort();
        });
    });
}

/// The error of a failed send names the path of the closed receiver.
#[cfg(unix)]
#[test]
fn a_datagram_to_a_closed_receiver_names_the_path() {
    use windlass::net::UnixDatagram;
    crate::support::on_every_kernel_driver(|case| {
        case.run(async {
            let folder = crate::support::Folder::new();
            let path = folder.path().join("gone");
            let receiver = UnixDatagram::bind(&path).expect("bind");
            let sender = UnixDatagram::unbound().expect("a socket");
            sender.connect(&path).await.expect("connect");
            sender.send("received").await.0.expect("send");
            drop(receiver);
            let begin = std::time::Instant::now();
            let error = loop {
                match sender.send("not received").await.0 {
                    Err(error) => break error,
                    // A process started by another test inherits our descriptors until it executes its program.
                    Ok(_) => assert!(begin.elapsed() < SOON, "the receiver is still open"),
                }
                windlass::time::sleep(std::time::Duration::from_millis(1)).await;
            };
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
            assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
            assert!(windlass::os_code(&error).is_some());
        });
    });
}
