//! The events and spans that a `tracing` subscriber receives, and what it may call:
//! `cargo test --features tracing --test trace`.
//!
//! The subscriber is the process's global one, because only that one receives events emitted while it handles another.
//! Each thread has its own hook, so tests do not see each other's events.

mod spans;
#[path = "../suite/support.rs"]
mod support;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use windlass::net::{TcpListener, TcpStream};
use windlass::time::sleep;
use windlass::{JoinHandle, add_reader, remove_reader, spawn};

use crate::support::{Case, Shared, exceptions_of, on_every_driver, pair, poll_with, turns};

type Hook = Rc<dyn Fn(&str)>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// Whether the subscriber wants spans on this thread.
    static WANTS_SPANS: Cell<bool> = const { Cell::new(true) };
}

/// Calls the thread's hook with each event, and each call for a span, as one line.
struct Hooked;

fn call_hook(line: &str) {
    if let Some(hook) = HOOK.with_borrow(Clone::clone) {
        hook(line);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Hooked {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() || WANTS_SPANS.get()
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        let (metadata, root) = (span.metadata(), if span.is_root() { " root" } else { "" });
        let mut line = Line(format!(
            "span new {id};{root} {} {} {}:",
            metadata.level(),
            metadata.target(),
            metadata.name()
        ));
        span.record(&mut line);
        call_hook(&line.0);
        Id::from_u64(id)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        call_hook(&line.0);
    }
    fn enter(&self, id: &Id) {
        call_hook(&format!("span enter {};", id.into_u64()));
    }
    fn exit(&self, id: &Id) {
        call_hook(&format!("span exit {};", id.into_u64()));
    }
    fn try_close(&self, id: Id) -> bool {
        call_hook(&format!("span close {};", id.into_u64()));
        true
    }
}

/// While this lives, the thread's events go to its hook.
struct HookGuard;

fn hook(hook: impl Fn(&str) + 'static) -> HookGuard {
    static GLOBAL: Once = Once::new();
    GLOBAL.call_once(|| tracing::subscriber::set_global_default(Hooked).expect("the only subscriber"));
    HOOK.set(Some(Rc::new(hook)));
    HookGuard
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        HOOK.set(None);
    }
}

#[test]
fn tasks_operations_and_exceptions_are_traced() {
    on_every_driver(|case| {
        let events = Rc::new(RefCell::new(Vec::new()));
        let lines = events.clone();
        let hooking = hook(move |line| lines.borrow_mut().push(line.to_owned()));
        let event_loop = case.event_loop();
        event_loop.set_exception_handler(|_| {});
        let echo = async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let client = TcpStream::connect(listener.local_addr()?).await?;
            let (server, _) = listener.accept().await?;
            client.write_all("ping").await.0?;
            server.read(vec![0; 8]).await.0?;
            let task = windlass::task::Builder::new().name("failing");
            drop(task.spawn(async { panic!("on purpose") }));
            turns(2).await;
            std::io::Result::Ok(())
        };
        event_loop
            .run_until_complete(echo)
            .expect("the loop runs")
            .expect("it echoes");
        drop(event_loop);
        drop(hooking);
        let events = events.borrow().join("\n");
        for wanted in [
            "INFO windlass::loop: message=opened driver=",
            "DEBUG windlass::task: message=spawned task=1 name=\"main\" spawned_at=tests/trace/main.rs:",
            "TRACE windlass::op: message=started id=",
            "op=\"connect\"",
            "op=\"recv\"",
            "message=completed id=",
            "count=4",
            "DEBUG windlass::task: message=ended task=1",
            "ERROR windlass::loop: message=task 2 'failing'",
            "INFO windlass::loop: message=closed",
        ] {
            assert!(events.contains(wanted), "{case:?}: '{wanted}' is missing in\n{events}");
        }
    });
}

/// A panicking subscriber affects nothing else.
#[test]
fn a_panicking_subscriber_does_not_stop_the_loop() {
    on_every_driver(|case| {
        let _hooking = hook(|line| assert!(!line.contains("panics"), "as asked"));
        let event_loop = case.event_loop();
        event_loop.set_exception_handler(|_| {});
        let spawned = event_loop.run_until_complete(async {
            let task = windlass::task::Builder::new().name("panics").spawn(async { 7 });
            task.await
        });
        assert_eq!(spawned.expect("the loop runs").expect("the task runs"), 7);
    });
}

/// A watched stream and its other end.
async fn watched(callback: impl FnMut() + 'static) -> (Shared, TcpStream) {
    let (client, server) = pair().await;
    let server = Shared(Rc::new(server));
    add_reader(&server, callback).expect("it can be watched");
    (server, client)
}

/// The watcher's task is being polled when its operation starts and completes.
#[test]
fn a_subscriber_may_remove_the_reader_that_is_being_polled() {
    on_every_driver(|case| {
        for event in ["message=started", "message=completed"] {
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let (calls, removed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let main = async {
                let counted = calls.clone();
                let (server, client) = watched(move || counted.set(counted.get() + 1)).await;
                let _hooking = hook({
                    let (server, removed) = (Shared(server.0.clone()), removed.clone());
                    move |line| {
                        let is_wanted =
                            line.contains(event) && (event != "message=started" || line.contains("readiness"));
                        if is_wanted && !removed.get() {
                            removed.set(remove_reader(&server));
                        }
                    }
                });
                client.write_all("x").await.0.expect("write");
                turns(20).await;
                assert!(removed.get(), "{event}: no such event");
                assert_eq!(windlass::counters().tasks, 1, "{event}: the watcher is still there");
                assert_eq!(
                    windlass::counters().in_flight,
                    0,
                    "{event}: its operation is still in flight"
                );
            };
            event_loop.run_until_complete(main).expect("the loop runs");
            assert!(exceptions.borrow().is_empty(), "{:?}", exceptions.borrow());
        }
    });
}

/// The second watcher is removed during the first one's poll, which is an event too; inside that event the first is
/// removed.
#[test]
fn a_subscriber_may_remove_a_reader_while_another_ends() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let main = async {
            let (other, _other_client) = watched(|| {}).await;
            turns(3).await;
            let (first, _first_client) = watched(|| {}).await;
            let removed = Rc::new(Cell::new((false, false)));
            let _hooking = hook({
                let (first, other, removed) = (Shared(first.0.clone()), Shared(other.0.clone()), removed.clone());
                move |line| {
                    if line.contains("readiness") && !removed.get().0 {
                        removed.set((true, false));
                        assert!(remove_reader(&other));
                    } else if line.contains("message=ended") && !removed.get().1 {
                        removed.set((true, remove_reader(&first)));
                    }
                }
            });
            turns(10).await;
            assert_eq!(removed.get(), (true, true));
            assert_eq!(windlass::counters().tasks, 1, "a watcher is left");
            assert_eq!(windlass::counters().in_flight, 0, "an operation is left");
        };
        event_loop.run_until_complete(main).expect("the loop runs");
        assert!(exceptions.borrow().is_empty(), "{:?}", exceptions.borrow());
    });
}

/// The loop closes inside the event and waits for the operation, which the driver must have by then.
#[test]
fn a_subscriber_may_close_the_loop_when_an_operation_starts() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let (_client, server) = event_loop.run_until_complete(pair()).expect("the loop runs");
        let owned = RefCell::new(Some(event_loop));
        let _hooking = hook(move |line| {
            if line.contains("message=started") {
                drop(owned.take());
            }
        });
        // Polled while the loop does not run, so that the loop can be closed.
        let mut read = Box::pin(server.read(vec![0; 8]));
        match poll_with(Waker::noop(), read.as_mut()) {
            Poll::Ready((Err(_), _)) => {}
            other => panic!("{other:?}"),
        }
        assert!(exceptions.borrow().is_empty(), "{:?}", exceptions.borrow());
    });
}

/// While the loop closes, the watchers' tasks end before the watchers are removed from the list.
#[test]
fn a_subscriber_may_remove_the_reader_whose_task_ends() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let watching = async {
            let watched = watched(|| {}).await;
            turns(3).await;
            watched
        };
        let (server, _client) = event_loop.run_until_complete(watching).expect("the loop runs");
        let removed = Rc::new(Cell::new(false));
        let hooking = hook({
            let removed = removed.clone();
            move |line| {
                if line.contains("message=ended") && remove_reader(&server) {
                    removed.set(true);
                }
            }
        });
        drop(event_loop);
        assert!(removed.get(), "the task ended while it was watched");
        drop(hooking);
        let wrong = exceptions
            .borrow()
            .iter()
            .filter(|line| line.contains("panicked"))
            .count();
        assert_eq!(wrong, 0, "{:?}", exceptions.borrow());
    });
}

/// The kinds of events, by a part of their lines.
const EVENTS: [&str; 16] = [
    "message=spawned",
    "message=ended",
    "message=started",
    "message=completed",
    "message=completed at once",
    "message=closed",
    "ERROR windlass::loop",
    "windlass::",
    "span new",
    "span enter",
    "span exit",
    "span close",
    "waker.clone",
    "waker.drop",
    "\"waker.wake\"",
    "waker.wake_by_ref",
];

type Pending = Pin<Box<dyn Future<Output = ()>>>;

/// The objects that a subscriber can reach.
#[derive(Default)]
struct World {
    tasks: RefCell<Vec<JoinHandle<()>>>,
    streams: RefCell<Vec<TcpStream>>,
    watched: RefCell<Vec<Shared>>,
    reads: RefCell<Vec<Pending>>,
}

/// The calls that a subscriber may make, one of each kind.
const ACTIONS: [fn(&World); 12] = [
    |world| {
        let task = spawn(sleep(Duration::from_secs(3600)));
        world.tasks.borrow_mut().push(task);
    },
    |world| {
        let task = windlass::task::spawn_eager(async { windlass::task::yield_now().await });
        world.tasks.borrow_mut().push(task);
    },
    |world| world.tasks.borrow().iter().for_each(JoinHandle::cancel),
    |world| drop(world.tasks.take()),
    |world| {
        let watched = world.watched.take();
        watched.iter().for_each(|stream| _ = remove_reader(stream));
        world.watched.replace(watched);
    },
    |world| {
        let watched = world.watched.take();
        for stream in &watched {
            // The loop may be closed.
            let _ = add_reader(stream, || {});
        }
        world.watched.replace(watched);
    },
    |world| drop(world.streams.take()),
    |world| drop(world.reads.take()),
    |_| {
        windlass::call_soon(|| {});
        windlass::call_later(Duration::ZERO, || {});
        windlass::call_later(Duration::from_secs(3600), || {}).cancel();
    },
    |_| {
        let _ = windlass::counters();
        let _ = windlass::metrics::metrics();
        let _ = windlass::dump().to_string();
    },
    |world| {
        // A poll from outside of any task's own poll, with another waker.
        let mut reads = world.reads.take();
        reads.retain_mut(|read| poll_with(Waker::noop(), read.as_mut()).is_pending());
        world.reads.borrow_mut().extend(reads);
    },
    |_| {
        let error = windlass::run(async {}).expect_err("a loop is running");
        assert!(error.to_string().contains("already running"), "{error}");
    },
];

/// Runs a mixed workload while a subscriber runs `ACTIONS[action]`, or all actions, at every event of one kind.
fn run_actions_at(case: Case, event: &'static str, action: Option<usize>) {
    let event_loop = case.event_loop();
    let exceptions = exceptions_of(&event_loop);
    let world = Rc::new(World::default());
    let setup = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        for _ in 0..2 {
            let (server, client) = watched(|| {}).await;
            world.watched.borrow_mut().push(server);
            world.streams.borrow_mut().push(client);
        }
        for _ in 0..2 {
            let (client, server) = support::pair_of(&listener).await;
            world.streams.borrow_mut().push(client);
            let mut read: Pending = Box::pin(async move {
                let _ = server.read(vec![0; 8]).await;
            });
            assert!(poll_with(Waker::noop(), read.as_mut()).is_pending());
            world.reads.borrow_mut().push(read);
        }
    };
    event_loop.run_until_complete(setup).expect("the loop runs");
    let (depth, left) = (Cell::new(0), Cell::new(if cfg!(miri) { 6 } else { 24 }));
    let meddling = world.clone();
    let hooking = hook(move |line| {
        // The actions cause events too: the hook handles those one level deep, and a bounded number in total.
        if !line.contains(event) || depth.get() == 2 || left.get() == 0 {
            return;
        }
        depth.set(depth.get() + 1);
        left.set(left.get() - 1);
        match action {
            Some(action) => ACTIONS[action](&meddling),
            None => ACTIONS.iter().for_each(|act| act(&meddling)),
        }
        depth.set(depth.get() - 1);
    });
    let main = async {
        let (client, server) = pair().await;
        let reading = spawn(async move {
            let _ = server.read(vec![0; 8]).await;
        });
        turns(2).await;
        let _ = client.write_all("ping").await;
        for _ in 0..4 {
            // Not under the borrow, because a write is an event.
            let Some(stream) = ({ world.streams.borrow_mut().pop() }) else {
                break;
            };
            let _ = stream.write_all("ping").await;
        }
        let _ = reading.await;
        let task = windlass::task::spawn_eager(async {
            let (client, server) = pair().await;
            drop(client);
            let _ = server.read(vec![0; 8]).await;
        });
        world.tasks.borrow_mut().push(task);
        let task = spawn(pending());
        world.tasks.borrow_mut().push(task);
        drop(spawn(async { panic!("on purpose") }));
        turns(8).await;
        drop(world.reads.take());
        let tasks = world.tasks.take();
        tasks.iter().for_each(JoinHandle::cancel);
        for task in tasks {
            let _ = task.await;
        }
        turns(3).await;
    };
    event_loop.run_until_complete(main).expect("the loop runs");
    // A cancelled task drops the handle of its connect, which fails when the listener is gone.
    let is_unread_connect = |line: &str| line.contains("never read") && line.contains("suite/support.rs");
    let is_expected = |line: &str| line.contains("on purpose") || is_unread_connect(line);
    let kinds = exceptions.borrow().iter().filter(|line| !is_expected(line)).count();
    assert_eq!(kinds, 0, "'{event}', action {action:?}: {:?}", exceptions.borrow());
    drop(event_loop);
    drop(hooking);
    let kinds = exceptions
        .borrow()
        .iter()
        .filter(|line| !is_expected(line) && !line.contains("pending"))
        .count();
    assert_eq!(
        kinds,
        0,
        "'{event}', action {action:?}, while it closed: {:?}",
        exceptions.borrow()
    );
}

#[test]
fn a_subscriber_may_call_everything_at_every_event() {
    on_every_driver(|case| {
        for event in EVENTS {
            // Miri takes seconds for each.
            for action in (0..ACTIONS.len()).filter(|_| !cfg!(miri)) {
                run_actions_at(case, event, Some(action));
            }
            run_actions_at(case, event, None);
        }
    });
}
