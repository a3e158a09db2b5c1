//! The spans of tasks and the events of their wakers. What tokio-console makes of them: `examples/tokio-console`.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use windlass::time::sleep;
use windlass::{JoinHandle, spawn};

use crate::support::{Case, exceptions_of, on_every_driver, pair, turns};
use crate::{HookGuard, Pending, WANTS_SPANS, hook};

/// Collects the lines of this thread while the guard lives.
fn collect() -> (Rc<RefCell<Vec<String>>>, HookGuard) {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let hooking = hook({
        let lines = lines.clone();
        move |line| lines.borrow_mut().push(line.to_owned())
    });
    (lines, hooking)
}

/// The id of the span that the line is about: of a call for a span, or of an event about a waker.
fn span_of(line: &str) -> Option<u64> {
    match line.strip_prefix("span ") {
        Some(call) => call.split([' ', ';']).nth(1)?.parse().ok(),
        None if line.contains("tokio::task::waker") => line.rsplit_once("task.id=")?.1.parse().ok(),
        None => None,
    }
}

/// The lines about the span that was created with these fields, in short: `new`, `enter`, `exit`, `close`, or `clone`, `drop`,
/// `wake` and `wake_by_ref` of a waker.
fn calls_for(lines: &[String], fields: &str) -> Vec<String> {
    let is_new = |line: &&String| line.starts_with("span new") && line.contains(fields);
    let mut created = lines.iter().filter(is_new);
    let id = created.next().and_then(|line| span_of(line));
    let id = id.unwrap_or_else(|| panic!("no span with '{fields}' in\n{}", lines.join("\n")));
    assert!(created.next().is_none(), "several spans with '{fields}'");
    let short = |line: &String| match line.split_once("op=\"waker.") {
        Some((_, op)) => op.split('"').next().expect("a first part").to_owned(),
        None => line.split(' ').nth(1).expect("the call").to_owned(),
    };
    let lines = lines.iter().filter(|line| span_of(line) == Some(id));
    lines.map(short).collect()
}

fn count(calls: &[String], call: &str) -> usize {
    calls.iter().filter(|other| *other == call).count()
}

/// The calls for the span alone.
fn without_wakers(calls: &[String]) -> Vec<&str> {
    let is_of_span = |call: &&str| ["new", "enter", "exit", "close"].contains(call);
    calls.iter().map(String::as_str).filter(is_of_span).collect()
}

/// Counts the polls of a future.
async fn counted<F: Future>(polls: Rc<Cell<usize>>, future: F) -> F::Output {
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

fn named(name: &str) -> windlass::task::Builder {
    windlass::task::Builder::new().name(name)
}

#[test]
fn a_span_is_entered_for_each_poll_and_closed_when_its_task_ends() {
    on_every_driver(|case| {
        let (lines, hooking) = collect();
        let event_loop = case.event_loop();
        event_loop.set_exception_handler(|_| {});
        let names = [
            "yields",
            "sleeps",
            "reads",
            "panics",
            "cancelled",
            "unpolled",
            "detached",
        ];
        let polls: Vec<Rc<Cell<usize>>> = names.iter().map(|_| Rc::default()).collect();
        let polls_of = |name| polls[names.iter().position(|other| *other == name).expect("a name")].clone();
        let main = async {
            let spawn_counted = |name, future: Pending| named(name).spawn(counted(polls_of(name), future));
            let yields = spawn_counted("yields", Box::pin(turns(3)));
            let sleeps = spawn_counted("sleeps", Box::pin(sleep(Duration::from_millis(1))));
            let (client, server) = pair().await;
            let read = async move {
                server.read(vec![0; 8]).await.0.expect("a read");
            };
            let reads = spawn_counted("reads", Box::pin(read));
            let panics = spawn_counted("panics", Box::pin(async { panic!("on purpose") }));
            let cancelled = spawn_counted("cancelled", Box::pin(pending()));
            turns(2).await;
            client.write_all("ping").await.0.expect("a write");
            cancelled.cancel();
            let unpolled = spawn_counted("unpolled", Box::pin(pending()));
            unpolled.cancel();
            spawn_counted("detached", Box::pin(turns(2))).detach();
            for task in [yields, sleeps, reads] {
                task.await.expect("it ends");
            }
            for task in [panics, cancelled, unpolled] {
                task.await.expect_err("it has no output");
            }
            turns(3).await;
        };
        event_loop.run_until_complete(main).expect("the loop runs");
        drop(event_loop);
        drop(hooking);
        let lines = lines.borrow();
        for (name, polls) in names.iter().zip(&polls) {
            let all = calls_for(&lines, &format!("task.name=\"{name}\""));
            let calls = without_wakers(&all);
            let mut wanted = vec!["new"];
            wanted.extend(["enter", "exit"].repeat(polls.get()));
            wanted.push("close");
            assert_eq!(calls, wanted, "{case:?}: '{name}' was polled {} times", polls.get());
            // Every waker is gone, and so is the one of the loop.
            assert_eq!(
                count(&all, "clone"),
                count(&all, "drop") + count(&all, "wake"),
                "{case:?}: '{name}': {all:?}"
            );
        }
        let polls = |name| polls_of(name).get();
        assert_eq!(
            [polls("panics"), polls("cancelled"), polls("unpolled")],
            [1, 1, 0],
            "{case:?}"
        );
        assert!(polls("sleeps") >= 2 && polls("reads") >= 2, "{case:?}");
        // Of every task, also those of `main` and `pair`.
        let count = |part| lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(count("span new"), count("message=spawned"), "{case:?}");
        assert_eq!(count("span close"), count("message=ended"), "{case:?}");
        assert_eq!(count("span close"), count("span new"), "{case:?}");
        assert_eq!(count("span enter"), count("span exit"), "{case:?}");
    });
}

/// The form that `console-subscriber` reads.
#[test]
fn a_span_has_the_fields_of_a_tokio_task() {
    on_every_driver(|case| {
        let (lines, _hooking) = collect();
        let (line, ids) = case.run(async {
            let child = async {
                let size = [0_u8; 100];
                turns(1).await;
                std::hint::black_box(size);
                spawn(async {}).id()
            };
            let size = size_of_val(&child);
            let task = named("parent").spawn(child);
            ((line!() - 1, size), (task.id(), task.await.expect("it ends")))
        });
        let (line, size) = line;
        let fields = format!(
            "; root TRACE tokio::task runtime.spawn: kind=\"local\" task.name=\"parent\" task.id={} size.bytes={size} \
             loc.file=\"tests/trace/spans.rs\" loc.line={line} loc.col=40",
            ids.0
        );
        calls_for(&lines.borrow(), &fields);
        // A task without a name has no such field; a task that is spawned inside another one is a root too.
        let fields = format!(
            "; root TRACE tokio::task runtime.spawn: kind=\"local\" task.id={} size",
            ids.1
        );
        calls_for(&lines.borrow(), &fields);
    });
}

#[test]
fn the_span_of_an_eager_task_is_entered_inside_that_of_its_parent() {
    on_every_driver(|case| {
        let (lines, _hooking) = collect();
        let outer = async {
            let task = named("inner").spawn_eager(turns(1));
            task.await.expect("it ends");
        };
        case.run(async { named("outer").spawn(outer).await.expect("it ends") });
        let lines = lines.borrow();
        let id_of = |name: &str| {
            let is_new = |line: &&String| line.starts_with("span new") && line.contains(name);
            lines.iter().find(is_new).and_then(|line| span_of(line))
        };
        let (outer, inner) = (id_of("\"outer\""), id_of("\"inner\""));
        let of_both = lines
            .iter()
            .filter(|line| line.starts_with("span") && !line.starts_with("span new"));
        let calls: Vec<_> = of_both
            .filter(|line| [outer, inner].contains(&span_of(line)))
            .take(4)
            .map(|line| (line.split(' ').nth(1).expect("the call"), span_of(line)))
            .collect();
        assert_eq!(
            calls,
            [("enter", outer), ("enter", inner), ("exit", inner), ("exit", outer)],
            "{case:?}"
        );
    });
}

#[test]
fn each_operation_on_a_waker_is_an_event_with_the_id_of_the_span() {
    on_every_driver(|case| {
        let (lines, _hooking) = collect();
        let kept = Rc::new(Cell::new(None::<Waker>));
        let threads_calls = Rc::new(RefCell::new(Vec::new()));
        let main = async {
            let mut step = 0;
            let kept = kept.clone();
            let threads_calls = threads_calls.clone();
            let task = named("waked").spawn(poll_fn(move |cx| {
                step += 1;
                match step {
                    1 => cx.waker().wake_by_ref(),
                    2 => {
                        let waker = cx.waker().clone();
                        waker.wake();
                    }
                    3 => {
                        let waker = cx.waker().clone();
                        let thread = std::thread::spawn(move || {
                            let (lines, _hooking) = collect();
                            waker.wake_by_ref();
                            drop(waker.clone());
                            waker.wake();
                            lines.take()
                        });
                        *threads_calls.borrow_mut() = thread.join().expect("the thread ends");
                    }
                    4 => {
                        let waker = cx.waker().clone();
                        waker.wake_by_ref();
                        kept.set(Some(waker));
                    }
                    _ => return Poll::Ready(()),
                }
                Poll::Pending
            }));
            task.await.expect("it ends");
        };
        case.run(main);
        // The task is done: these are no events.
        let waker = kept.take().expect("it was kept");
        drop(waker.clone());
        waker.wake_by_ref();
        waker.wake();
        let mut lines = lines.borrow().clone();
        let calls = calls_for(&lines, "task.name=\"waked\"");
        let ops: Vec<_> = calls
            .iter()
            .filter(|call| !["new", "enter", "exit"].contains(&call.as_str()))
            .collect();
        #[rustfmt::skip]
        let wanted = [
            "clone", // the loop's
            "wake_by_ref",
            "clone", "wake",
            "clone", // woken by the thread
            "clone", "wake_by_ref",
            "drop", // the loop's
            "close",
        ];
        assert_eq!(ops, wanted, "{case:?}");
        lines.extend(threads_calls.take());
        let calls = calls_for(&lines, "task.name=\"waked\"");
        assert_eq!(
            calls[calls.len() - 4..],
            ["wake_by_ref", "clone", "drop", "wake"],
            "{case:?}"
        );
    });
}

/// An operation wakes its task without a waker.
#[test]
fn a_wake_by_an_operation_is_an_event() {
    on_every_driver(|case| {
        let (lines, _hooking) = collect();
        case.run(async {
            let (client, server) = pair().await;
            let reads = named("reads").spawn(async move {
                server.read(vec![0; 8]).await.0.expect("a read");
            });
            turns(3).await;
            client.write_all("ping").await.0.expect("a write");
            reads.await.expect("it ends");
        });
        let calls = calls_for(&lines.borrow(), "task.name=\"reads\"");
        let (polls, wakes) = (
            count(&calls, "enter"),
            count(&calls, "wake_by_ref") + count(&calls, "wake"),
        );
        assert!(wakes >= 1, "{case:?}: {calls:?}");
        assert!(polls >= 2 && polls <= wakes + 1, "{case:?}: {calls:?}");
        // Between a wake and the end of the task there is a poll.
        let last = calls.iter().rposition(|call| call == "wake_by_ref").expect("a wake");
        assert!(calls[last..].contains(&"enter".to_owned()), "{case:?}: {calls:?}");
    });
}

#[test]
fn a_task_without_a_span_causes_no_calls() {
    on_every_driver(|case| {
        let (lines, _hooking) = collect();
        WANTS_SPANS.set(false);
        case.run(async {
            spawn(turns(3)).await.expect("it ends");
            sleep(Duration::from_millis(1)).await;
        });
        WANTS_SPANS.set(true);
        let lines = lines.borrow();
        let of_spans = lines.iter().filter(|line| span_of(line).is_some()).count();
        assert_eq!(of_spans, 0, "{case:?}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains("message=spawned")), "{case:?}");
    });
}

/// Counts its drops.
struct CountsDrops(Rc<Cell<u32>>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// What a subscriber does with the handle of the very task that it is called for.
const ENDINGS: [fn(JoinHandle<()>); 3] = [
    |handle| {
        handle.cancel();
        drop(handle);
    },
    drop,
    |handle| {
        let eager = windlass::task::spawn_eager(async move {
            handle.cancel();
            let _ = handle.await;
        });
        eager.detach();
    },
];

/// In each call for a task, the subscriber cancels or detaches that task.
#[test]
fn a_subscriber_may_end_the_task_that_it_is_called_for() {
    // The task is polled twice or more, and ends by itself.
    let calls = [
        "span enter",
        "span exit",
        "span close",
        "clone",
        "drop",
        "\"waker.wake\"",
        "wake_by_ref",
    ];
    on_every_driver(move |case| {
        for call in calls {
            for (number, end) in ENDINGS.iter().enumerate() {
                // Miri takes seconds for each.
                for nth in 0..if cfg!(miri) { 1 } else { 3 } {
                    end_in_call(case, call, nth, number, *end);
                }
            }
        }
    });
}

/// Ends the task in the call with this number of those that contain `call`.
fn end_in_call(case: Case, call: &'static str, nth: usize, ending: usize, end: fn(JoinHandle<()>)) {
    let context = format!("{case:?}, '{call}' {nth}, ending {ending}");
    let event_loop = case.event_loop();
    let exceptions = exceptions_of(&event_loop);
    let drops = Rc::new(Cell::new(0));
    let calls = Rc::new(RefCell::new(Vec::new()));
    let handle = Rc::new(RefCell::new(None::<JoinHandle<()>>));
    let (target, seen) = (Cell::new(None), Cell::new(0));
    let hooking = hook({
        let (calls, handle) = (calls.clone(), handle.clone());
        move |line| {
            if line.starts_with("span new") && line.contains("\"target\"") {
                target.set(span_of(line));
            }
            if target.get().is_none() || span_of(line) != target.get() {
                return;
            }
            calls.borrow_mut().push(line.to_owned());
            // The handle exists once the task is spawned.
            if line.contains(call) && handle.borrow().is_some() {
                seen.set(seen.get() + 1);
                let handle = if seen.get() == nth + 1 { handle.take() } else { None };
                if let Some(handle) = handle {
                    end(handle);
                }
            }
        }
    });
    let main = async {
        let dropped = CountsDrops(drops.clone());
        let task = named("target").spawn(async move {
            let _dropped = dropped;
            turns(1).await;
            poll_fn({
                let mut waker = None;
                move |cx| match waker.take() {
                    None => {
                        let new = cx.waker().clone();
                        new.wake_by_ref();
                        waker = Some(new.clone());
                        new.wake();
                        Poll::Pending
                    }
                    Some(_) => Poll::Ready(()),
                }
            })
            .await;
            sleep(Duration::from_millis(1)).await;
        });
        *handle.borrow_mut() = Some(task);
        sleep(Duration::from_millis(5)).await;
        while drops.get() == 0 {
            turns(1).await;
        }
        turns(3).await;
        assert_eq!(windlass::counters().tasks, 1, "{context}: a task is left");
    };
    event_loop.run_until_complete(main).expect("the loop runs");
    assert!(nth > 0 || handle.borrow().is_none(), "{context}: no such call");
    drop(handle.take());
    drop(event_loop);
    drop(hooking);
    assert_eq!(drops.get(), 1, "{context}");
    let count = |call: &str| calls.borrow().iter().filter(|line| line.starts_with(call)).count();
    assert_eq!(count("span enter"), count("span exit"), "{context}");
    assert_eq!(count("span close"), 1, "{context}");
    assert!(
        calls.borrow().last().is_some_and(|line| line.starts_with("span close")),
        "{context}"
    );
    assert!(exceptions.borrow().is_empty(), "{context}: {:?}", exceptions.borrow());
}

/// A subscriber that panics in each call of one kind.
#[test]
fn a_subscriber_that_panics_in_a_span_affects_nothing_else() {
    let calls = [
        "span new",
        "span enter",
        "span exit",
        "span close",
        "tokio::task::waker",
    ];
    on_every_driver(move |case| {
        for call in calls {
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let lines = Rc::new(RefCell::new(Vec::new()));
            let hooking = hook({
                let lines = lines.clone();
                move |line| {
                    lines.borrow_mut().push(line.to_owned());
                    assert!(!line.contains(call), "as asked");
                }
            });
            let outputs = event_loop.run_until_complete(async {
                let yields = spawn(async {
                    turns(2).await;
                    1
                });
                let eager = windlass::task::spawn_eager(async { 2 });
                let cancelled = spawn(pending::<()>());
                sleep(Duration::from_millis(1)).await;
                cancelled.cancel();
                assert!(cancelled.await.expect_err("it has no output").is_cancelled());
                (yields.await.expect("it ends"), eager.await.expect("it ends"))
            });
            assert_eq!(outputs.expect("the loop runs"), (1, 2), "{case:?}, '{call}'");
            drop(event_loop);
            drop(hooking);
            let lines = lines.borrow();
            let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
            let panics = count(call);
            assert!(panics > 0, "{case:?}: no '{call}'");
            let reports = exceptions.borrow();
            assert_eq!(reports.len(), panics, "{case:?}, '{call}': {reports:?}");
            assert!(
                reports
                    .iter()
                    .all(|line| line.contains("a tracing subscriber panicked: as asked"))
            );
            // A span that was not created is not used, and one that was not entered is not left.
            let is_new = call == "span new";
            assert_eq!(count("span close"), if is_new { 0 } else { 4 }, "{case:?}, '{call}'");
            let exits = if is_new || call == "span enter" {
                0
            } else {
                count("span enter")
            };
            assert_eq!(count("span exit"), exits, "{case:?}, '{call}'");
        }
    });
}
