//! Diagnostics: metrics, debug mode, task dumps, and the stall meter.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use windlass::metrics::{StallMeter, metrics, monitor};
use windlass::net::TcpListener;
use windlass::task::{Builder, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{EventLoop, TaskState, Waiting};

use crate::child::in_own_process;
use crate::support::{Case, number_of, on_every_driver, on_every_kernel_driver, pair, settle, turns};

/// The messages that the exception handler received.
type Messages = Rc<RefCell<Vec<String>>>;

fn collect_messages(event_loop: &EventLoop) -> Messages {
    let messages = Messages::default();
    event_loop.set_exception_handler({
        let messages = messages.clone();
        move |exception| messages.borrow_mut().push(exception.to_string())
    });
    messages
}

fn debug_loop(case: Case, slow: Duration) -> (EventLoop, Messages) {
    let builder = case.builder().debug(true).slow_callback_duration(slow);
    let event_loop = builder.build().expect("a loop");
    let messages = collect_messages(&event_loop);
    (event_loop, messages)
}

fn compute(time: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn metrics_separate_sleeping_from_running_time() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        event_loop
            .run_until_complete(async {
                // On a busy machine a part of the sleep may be over before the loop blocks.
                let mut slept = Vec::new();
                while slept.last().is_none_or(|&asleep| asleep < Duration::from_millis(50)) {
                    assert!(slept.len() < 20, "asleep in each of 60 ms: {slept:?}");
                    let before = metrics();
                    sleep(Duration::from_millis(60)).await;
                    slept.push(metrics().since(&before).times.idle);
                }

                let before = metrics();
                compute(Duration::from_millis(60));
                yield_now().await;
                let ran = metrics().since(&before);
                assert!(ran.times.running >= Duration::from_millis(50), "{ran}");
                assert!(ran.times.idle < Duration::from_millis(10), "{ran}");
                assert!(ran.counters.turns >= 1 && ran.counters.ran >= 1, "{ran}");
            })
            .expect("the loop runs");
        // Outside of a run, no time is counted.
        let before = event_loop.metrics();
        std::thread::sleep(Duration::from_millis(20));
        let since = event_loop.metrics().since(&before);
        assert_eq!(since.times, Default::default(), "{since}");
    });
}

#[test]
fn a_busy_loop_does_not_count_as_asleep() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let before = metrics();
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {
                yield_now().await;
            }
            let since = metrics().since(&before);
            assert!(since.times.busy() >= Duration::from_millis(45), "{since}");
            assert!(
                since.times.driver > Duration::ZERO,
                "one poll in 64 is measured: {since}"
            );
            assert!(since.times.idle < Duration::from_millis(10), "{since}");
        });
    });
}

#[test]
fn measuring_time_can_be_disabled() {
    on_every_driver(|case| {
        let event_loop = case.builder().measure_time(false).build().expect("a loop");
        event_loop
            .run_until_complete(sleep(Duration::from_millis(5)))
            .expect("the loop runs");
        let times = event_loop.metrics().times;
        assert_eq!((times.idle, times.driver), (Duration::ZERO, Duration::ZERO));
    });
}

#[test]
fn operations_are_counted_by_kind() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let features = event_loop.describe().features;
        let counted = event_loop.run_until_complete(async {
            let count = |name: &str| {
                let ops = metrics().ops;
                ops.iter()
                    .find(|(kind, _)| *kind == name)
                    .map_or(0, |(_, count)| *count)
            };
            assert_eq!((count("recv"), count("recv_managed"), count("accept")), (0, 0, 0));
            let (one, other) = pair().await;
            let (third, _fourth) = pair().await;
            let reads = [
                windlass::spawn(async move { drop(one.read(vec![0; 8]).await) }),
                windlass::spawn(async move { drop(other.read(vec![0; 8]).await) }),
                windlass::spawn(async move { drop(third.read_managed().await) }),
            ];
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let accept = windlass::spawn(async move { drop(listener.accept().await) });
            turns(3).await;
            // Without a buffer ring, a managed read uses the heap.
            let has_pool = !case.has_rings() || features.contains(&"buffer ring");
            let reads_wanted = if has_pool { (2, 1) } else { (3, 0) };
            if case.has_quirks() {
                // The pool may seem empty.
                settle().await;
                assert_eq!(count("recv") + count("recv_managed"), 3);
            } else {
                assert_eq!((count("recv"), count("recv_managed")), reads_wanted);
            }
            assert_eq!(count("accept"), 1);
            for task in reads {
                task.cancel();
                let _ = task.await;
            }
            accept.cancel();
            let _ = accept.await;
            assert_eq!(metrics().ops, [], "all operations have completed");
        });
        counted.expect("the loop runs");
    });
}

#[test]
fn cancelled_timers_are_counted() {
    on_every_driver(|case| {
        case.run(async {
            let timers: Vec<_> = (0..10)
                .map(|_| windlass::call_later(Duration::from_secs(3600), || {}))
                .collect();
            let before = windlass::counters();
            timers[..4].iter().for_each(windlass::TimerHandle::cancel);
            let after = windlass::counters();
            assert_eq!((before.timers, before.timers_cancelled), (10, 0));
            assert_eq!((after.timers, after.timers_cancelled), (6, 4));
        });
    });
}

#[test]
fn a_monitor_reports_differences() {
    on_every_driver(|case| {
        case.run(async {
            // So that the totals are larger than the differences.
            turns(100).await;
            let messages = Rc::new(RefCell::new(Vec::new()));
            let monitor = monitor(Duration::from_millis(10), {
                let messages = messages.clone();
                move |since| messages.borrow_mut().push(since.counters.turns)
            });
            sleep(Duration::from_millis(105)).await;
            drop(monitor);
            sleep(Duration::from_millis(30)).await;
            let messages = messages.take();
            // A late loop reports less often; on the virtual clock nothing is late.
            assert!(
                messages.len() <= 11 && messages.len() >= if case.is_kernel() { 1 } else { 10 },
                "{messages:?}"
            );
            // Each report counts some turns, and not all turns since the start.
            assert!(messages.iter().all(|turns| (1..=20).contains(turns)), "{messages:?}");
        });
    });
}

#[test]
fn slow_tasks_and_callbacks_are_reported_with_name_and_location() {
    on_every_kernel_driver(|case| {
        let (event_loop, messages) = debug_loop(case, Duration::from_millis(30));
        event_loop
            .run_until_complete(async {
                let task = Builder::new().name("hasher").spawn(async {
                    yield_now().await;
                    compute(Duration::from_millis(40));
                });
                task.await.expect("no panic");
                windlass::call_soon(|| compute(Duration::from_millis(40)));
                yield_now().await;
                yield_now().await;
                windlass::call_later(Duration::from_millis(1), || compute(Duration::from_millis(40)));
                sleep(Duration::from_millis(5)).await;
            })
            .expect("the loop runs");
        let mut messages = messages.take();
        // On a busy machine any task may be slow.
        messages.retain(|line| !line.contains("'main'"));
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(
            messages[0].contains("'hasher', spawned at tests/suite/diagnostics.rs:"),
            "{messages:?}"
        );
        assert!(
            messages[1].contains("a callback scheduled at tests/suite/diagnostics.rs:"),
            "{messages:?}"
        );
        assert!(
            messages[2].contains("a callback scheduled at tests/suite/diagnostics.rs:"),
            "{messages:?}"
        );
        for line in &messages {
            assert!(line.contains("blocked the loop for "), "{line}");
            assert!(line.contains("spawn_blocking"), "it suggests a remedy: {line}");
        }
    });
}

/// The reports would depend on the machine's load, and a simulation must not.
#[test]
fn a_virtual_clock_reports_no_slow_callbacks() {
    let builder = windlass::Builder::new()
        .driver(windlass::DriverChoice::Null)
        .debug(true);
    let event_loop = builder
        .slow_callback_duration(Duration::from_millis(1))
        .build()
        .expect("a loop");
    let messages = collect_messages(&event_loop);
    event_loop
        .run_until_complete(async { compute(Duration::from_millis(5)) })
        .expect("the loop runs");
    assert_eq!(messages.take(), [""; 0]);
}

#[test]
fn without_debug_mode_nothing_is_reported() {
    on_every_driver(|case| {
        let slow = Duration::from_millis(1);
        let builder = case.builder().debug(false).slow_callback_duration(slow);
        let event_loop = builder.build().expect("a loop");
        let messages = collect_messages(&event_loop);
        let left = event_loop.spawn(std::future::pending::<()>());
        event_loop
            .run_until_complete(async { compute(Duration::from_millis(5)) })
            .expect("the loop runs");
        drop(event_loop);
        assert_eq!(messages.take(), [""; 0]);
        drop(left);
    });
}

#[test]
fn fast_callbacks_are_not_reported() {
    on_every_driver(|case| {
        let builder = case
            .builder()
            .debug(true)
            .slow_callback_duration(Duration::from_secs(60));
        let event_loop = builder.build().expect("a loop");
        let messages = collect_messages(&event_loop);
        event_loop
            .run_until_complete(async {
                compute(Duration::from_millis(2));
                sleep(Duration::from_millis(2)).await;
            })
            .expect("the loop runs");
        drop(event_loop);
        assert_eq!(messages.take(), [""; 0]);
    });
}

#[test]
fn tasks_left_at_the_end_are_listed() {
    on_every_driver(|case| {
        let (event_loop, messages) = debug_loop(case, Duration::from_secs(60));
        let left = event_loop.run_until_complete(async {
            let (one, other) = pair().await;
            let reader = Builder::new().name("reader").spawn(async move {
                let _other = other;
                drop(one.read(vec![0; 8]).await);
            });
            turns(3).await;
            vec![reader]
        });
        drop(event_loop);
        drop(left);
        let messages = messages.take();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains("1 task\n"), "{messages:?}");
        assert!(
            messages[0].contains("'reader', spawned at tests/suite/diagnostics.rs:"),
            "{messages:?}"
        );
        assert!(messages[0].contains("waits for recv on descriptor"), "{messages:?}");
    });
}

#[test]
fn the_variable_enables_debug_mode() {
    in_own_process(
        "diagnostics::the_variable_enables_debug_mode",
        &[("WINDLASS_DEBUG", "1")],
        || {
            on_every_kernel_driver(|case| {
                let slow = Duration::from_millis(1);
                let event_loop = case.builder().slow_callback_duration(slow).build().expect("a loop");
                let messages = collect_messages(&event_loop);
                event_loop
                    .run_until_complete(async { compute(Duration::from_millis(5)) })
                    .expect("the loop runs");
                assert_eq!(messages.take().len(), 1);
            });
        },
    );
}

#[test]
fn a_dump_shows_what_each_task_waits_for() {
    on_every_driver(|case| {
        case.run(async {
            let (one, other) = pair().await;
            let one = Rc::new(one);
            let fd = number_of(&*one) as i32;
            let named = |name: &str| Builder::new().name(name);
            let reading = named("reading").spawn({
                let one = one.clone();
                async move { drop(one.read(vec![0; 8]).await) }
            });
            let behind = named("behind").spawn({
                let one = one.clone();
                async move { drop(one.read(vec![0; 8]).await) }
            });
            let sleeping = named("sleeping").spawn(sleep(Duration::from_secs(1000)));
            let reading_id = reading.id();
            let joining = named("joining").spawn(async move { drop(reading.await) });
            let (promise, placeholder) = windlass::promise::<()>();
            let promised = named("promised").spawn(async move { assert!(placeholder.await.is_err()) });
            let both = named("both").spawn(async move {
                drop(timeout(Duration::from_secs(500), other.read(vec![0; 8])).await);
            });
            turns(3).await;
            let new = named("new").spawn(async {});

            let dump = windlass::dump();
            let task = |name: &str| {
                let found = dump.tasks.iter().find(|task| task.name.as_deref() == Some(name));
                found.unwrap_or_else(|| panic!("no task '{name}' in {dump}"))
            };
            assert_eq!(task("main").state, TaskState::Running);
            assert_eq!((task("new").state, task("new").since), (TaskState::Ready, None));
            let op = |fd| Waiting::Op {
                name: "recv",
                fd: Some(fd),
            };
            assert_eq!(task("reading").state, TaskState::Waiting);
            assert_eq!(task("reading").waits_for, [op(fd)]);
            assert_eq!(task("behind").waits_for, [Waiting::Other("an earlier call")]);
            assert_eq!(task("joining").waits_for, [Waiting::Task(reading_id)]);
            assert_eq!(task("promised").waits_for, [Waiting::Other("a promise")]);
            assert!(
                matches!(task("sleeping").waits_for[..], [Waiting::Timer(left)] if left > Duration::from_secs(900)),
                "{dump}"
            );
            let both_for = &task("both").waits_for;
            assert_eq!(both_for.len(), 2, "{dump}");
            assert!(both_for.iter().any(|what| matches!(what, Waiting::Timer(_))), "{dump}");
            assert!(
                both_for
                    .iter()
                    .any(|what| matches!(what, Waiting::Op { name: "recv", .. })),
                "{dump}"
            );
            let ids: Vec<_> = dump.tasks.iter().map(|task| task.id).collect();
            assert!(ids.is_sorted(), "{dump}");
            assert!(
                dump.to_string()
                    .contains("'sleeping', spawned at tests/suite/diagnostics.rs:"),
                "{dump}"
            );

            sleep(Duration::from_millis(50)).await;
            let dump = windlass::dump();
            let since = dump
                .tasks
                .iter()
                .find(|task| task.id == reading_id)
                .and_then(|task| task.since);
            assert!(since >= Some(Duration::from_millis(45)), "{dump}");
            drop(promise);
            for task in [behind, joining, promised, both, new] {
                task.cancel();
            }
            sleeping.cancel();
        });
    });
}

/// Waits that are neither an operation nor a timer name themselves.
#[test]
fn a_dump_shows_locks_queues_and_other_waits() {
    use windlass::sync::{Event, Lock, Queue, Semaphore};
    use windlass::task::{CancelToken, gather, group};
    on_every_driver(|case| {
        case.run(async {
            let lock = Rc::new(Lock::new(()));
            let guard = lock.lock().await;
            let queue = Queue::<u32>::bounded(1);
            let (event, semaphore) = (Rc::new(Event::new()), Rc::new(Semaphore::new(0)));
            let token = CancelToken::new();
            let tasks = [
                (
                    "a lock",
                    windlass::spawn({
                        let lock = lock.clone();
                        async move { drop(lock.lock().await) }
                    }),
                ),
                (
                    "a queue",
                    windlass::spawn({
                        let queue = queue.clone();
                        async move { assert!(queue.get().await.is_err()) }
                    }),
                ),
                (
                    "an event",
                    windlass::spawn({
                        let event = event.clone();
                        async move { event.wait().await }
                    }),
                ),
                (
                    "a semaphore",
                    windlass::spawn({
                        let semaphore = semaphore.clone();
                        async move { assert!(semaphore.acquire().await.is_err()) }
                    }),
                ),
                (
                    "a cancel",
                    windlass::spawn({
                        let token = token.clone();
                        async move { token.cancelled().await }
                    }),
                ),
                (
                    "its children",
                    windlass::spawn(async {
                        let _ = group(async |group| {
                            group.spawn(std::future::pending::<()>());
                        })
                        .await;
                    }),
                ),
                (
                    "several futures",
                    windlass::spawn(async {
                        let _ = gather([windlass::spawn(std::future::pending::<()>())]).await;
                    }),
                ),
            ];
            turns(3).await;
            let dump = windlass::dump();
            for (name, task) in &tasks {
                let found = dump
                    .tasks
                    .iter()
                    .find(|found| found.id == task.id())
                    .expect("the task is listed");
                assert_eq!(found.waits_for, [Waiting::Other(name)], "{dump}");
            }
            // A wake without result does not change the reported waits.
            event.set();
            turns(2).await;
            for (name, task) in tasks {
                assert_eq!(task.is_finished(), name == "an event", "{name}");
                task.cancel();
            }
            drop(guard);
        });
    });
}

/// A task that waited for a promise and now waits for bytes reports the read alone.
#[test]
fn a_dump_omits_finished_waits() {
    on_every_driver(|case| {
        case.run(async {
            let (one, _other) = pair().await;
            let (promise, placeholder) = windlass::promise::<()>();
            let task = windlass::spawn(async move {
                placeholder.await.expect("the promise is resolved");
                drop(one.read(vec![0; 8]).await);
            });
            turns(2).await;
            promise.resolve(()).expect("the promise is awaited");
            turns(3).await;
            let dump = windlass::dump();
            let found = dump
                .tasks
                .iter()
                .find(|found| found.id == task.id())
                .expect("the task is listed");
            assert!(
                matches!(found.waits_for[..], [Waiting::Op { name: "recv", .. }]),
                "{dump}"
            );
        });
    });
}

/// `kill -USR2` writes a dump each time, until the guard is dropped.
#[cfg(unix)]
#[test]
fn a_signal_triggers_a_dump() {
    in_own_process("diagnostics::a_signal_triggers_a_dump", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let messages = Messages::default();
                let guard = windlass::dump_on(windlass::signal::SignalKind::user_defined2(), {
                    let messages = messages.clone();
                    move |dump| messages.borrow_mut().push(dump.to_string())
                });
                let guard = guard.expect("the signal can be handled");
                let sleeper = Builder::new().name("sleeper").spawn(sleep(Duration::from_secs(1000)));
                turns(3).await;
                for wanted in 1..=3 {
                    // SAFETY: sends this process a signal that has a handler.
                    unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
                    let arrival = async {
                        while messages.borrow().len() < wanted {
                            sleep(Duration::from_millis(1)).await;
                        }
                    };
                    timeout(Duration::from_secs(60), arrival).await.expect("a dump arrives");
                    let dump = messages.borrow()[wanted - 1].clone();
                    assert!(
                        dump.contains("'sleeper', spawned at tests/suite/diagnostics.rs:"),
                        "{dump}"
                    );
                    assert!(dump.contains("'dump on a signal'"), "{dump}");
                }
                drop(guard);
                // SAFETY: as above; the handler stays installed, so the signal does not end the process.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
                sleep(Duration::from_millis(30)).await;
                assert_eq!(messages.borrow().len(), 3);
                sleeper.cancel();
            });
        });
    });
}

/// A stall counts once, not once per missed tick.
#[test]
fn a_stall_counts_as_one_late_tick() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let meter = StallMeter::start(Duration::from_millis(2));
            turns(2).await;
            compute(Duration::from_millis(200));
            let begin = std::time::Instant::now();
            turns(20).await;
            let report = meter.report();
            // Missed ticks would fire in the following turns, one per turn. `due` ticks are due in that time.
            let due = begin.elapsed().as_millis() as u64 / 2;
            assert!((1..=4 + due).contains(&report.ticks), "{report:?}, {due} were due");
        });
    });
}

#[test]
fn a_stall_is_measured_and_a_sleep_is_not() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let meter = StallMeter::start(Duration::from_millis(5));
            sleep(Duration::from_millis(30)).await;
            compute(Duration::from_millis(120));
            sleep(Duration::from_millis(30)).await;
            let report = meter.report();
            assert!(report.worst >= Duration::from_millis(110), "{report:?}");
            assert!(report.ticks >= 2, "{report:?}");
            meter.reset();
            assert_eq!(meter.report().ticks, 0);
        });
    });
    // The virtual clock shows no stall at all.
    on_every_driver(|case| {
        if case.is_kernel() {
            return;
        }
        case.run(async {
            let meter = StallMeter::start(Duration::from_millis(10));
            sleep(Duration::from_millis(1_005)).await;
            let report = meter.report();
            assert_eq!((report.ticks, report.worst), (100, Duration::ZERO));
        });
    });
}
