//! `ThreadBound`: values of a loop's thread in a `Send` wrapper, used and dropped on other threads; and `JoinHandle::into_remote`.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

use futures_util::StreamExt;
use windlass::compat::{Bridge, ThreadBound, leaked_values};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::{LoopHandle, spawn, spawn_blocking};

use crate::support::{Case, CountDrop, PanicOnDrop, exceptions_of, gather, on_every_driver, rounds};

/// The threads of destructors, and whether each ran inside of a task.
type Drops = Arc<Mutex<Vec<(ThreadId, bool)>>>;

/// Records its drop. Its `Rc` makes it belong to one thread.
struct Traced {
    drops: Drops,
    not_send: Rc<Cell<usize>>,
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.not_send.set(self.not_send.get() + 1);
        let is_inside_of_task = windlass::task::current_id().is_some();
        self.drops
            .lock()
            .unwrap()
            .push((thread::current().id(), is_inside_of_task));
    }
}

fn traced() -> (Traced, Drops) {
    let drops = Drops::default();
    let not_send = Rc::default();
    let traced = Traced {
        drops: Arc::clone(&drops),
        not_send,
    };
    (traced, drops)
}

/// Runs `call` on a thread with a name, and returns its result or the message of its panic.
fn elsewhere<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> Result<R, String> {
    let thread = thread::Builder::new().name("elsewhere".into()).spawn(call).unwrap();
    thread.join().map_err(|payload| *payload.downcast::<String>().unwrap())
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

// Use.

#[test]
fn use_on_another_thread_panics_and_names_both_threads() {
    on_every_driver(|case| {
        case.run(async {
            let home = format!("thread 'test on {}", case.name);
            let bound = ThreadBound::new(Rc::new(Cell::new(1)));
            let bound = elsewhere(move || {
                assert!(!bound.is_home() && bound.get().is_none());
                assert_eq!(format!("{bound:?}"), "ThreadBound(elsewhere)");
                bound
            });
            let mut bound = bound.unwrap();
            assert!(bound.is_home());
            bound.get().unwrap().set(2);
            *Rc::get_mut(&mut bound).unwrap().get_mut() += 1;
            assert_eq!(format!("{bound:?}"), "ThreadBound(Cell { value: 3 })");

            let shared = Arc::new(bound);
            let (by_ref, by_clone) = (shared.clone(), shared.clone());
            let calls: [Result<(), String>; 2] = [
                elsewhere(move || _ = by_ref.take()),
                elsewhere(move || drop(ThreadBound::clone(&by_clone))),
            ];
            for message in calls.map(Result::unwrap_err) {
                assert!(message.contains(&home), "{message}");
                assert!(
                    message.contains("was used on thread 'elsewhere' (ThreadId("),
                    "{message}"
                );
                assert!(message.contains("spawn_with"), "{message}");
            }
            let mut future = ThreadBound::future(pending::<()>());
            let message = elsewhere(move || _ = poll_once(&mut future)).unwrap_err();
            assert!(message.contains("was used on thread 'elsewhere'"), "{message}");
            let mut bound = ThreadBound::new(1);
            let message = elsewhere(move || *bound = 2).unwrap_err();
            assert!(message.contains("was used on thread 'elsewhere'"), "{message}");
        });
    });
}

#[test]
fn into_inner_returns_the_wrapper_elsewhere_and_the_value_at_home() {
    on_every_driver(|case| {
        case.run(async {
            let drops = Rc::new(Cell::new(0));
            let bound = ThreadBound::new(CountDrop(drops.clone()));
            let bound = elsewhere(move || bound.into_inner().map(drop).unwrap_err()).unwrap();
            let value = bound.into_inner().ok();
            assert_eq!(drops.get(), 0);
            drop(value);
            assert_eq!(drops.get(), 1);
            drop(ThreadBound::new(CountDrop(drops.clone())));
            assert_eq!(drops.get(), 2, "at home, the wrapper's drop is the value's");
        });
    });
}

#[test]
fn a_clone_is_a_wrapper_of_its_own() {
    on_every_driver(|case| {
        case.run(async {
            let value = Rc::new(1);
            let bound = ThreadBound::new(value.clone());
            let clone = bound.clone();
            assert_eq!(Rc::strong_count(&value), 3);
            elsewhere(move || drop(clone)).unwrap();
            while Rc::strong_count(&value) > 2 {
                yield_now().await;
            }
            assert_eq!(**bound, 1);
        });
    });
}

#[test]
fn futures_and_streams_are_forwarded() {
    on_every_driver(|case| {
        case.run(async {
            fn send<T: Send + Sync + Unpin>(value: T) -> T {
                value
            }
            let one = Rc::new(1);
            let future = send(ThreadBound::future(async move {
                yield_now().await;
                *one
            }));
            assert_eq!(future.await, 1);
            let items = Rc::new(RefCell::new(vec![1, 2, 3]));
            let stream = futures_util::stream::poll_fn(move |_| Poll::Ready(items.borrow_mut().pop()));
            let stream = send(ThreadBound::new(stream));
            assert_eq!(stream.collect::<Vec<_>>().await, [3, 2, 1]);
        });
    });
}

// Drop.

#[test]
fn a_value_dropped_elsewhere_is_dropped_at_home_between_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let here = thread::current().id();
            for _ in 0..rounds().min(100) {
                let (value, drops) = traced();
                let counted = value.not_send.clone();
                let bound = ThreadBound::new(value);
                elsewhere(move || drop(bound)).unwrap();
                assert_eq!(counted.get(), 0, "dropped while this task runs");
                while counted.get() == 0 {
                    yield_now().await;
                }
                assert_eq!(*drops.lock().unwrap(), [(here, false)]);
            }
        });
    });
}

#[test]
fn the_drop_wakes_a_sleeping_loop() {
    on_every_driver(|case| {
        case.run(async {
            let (sender, receiver) = windlass::sync::thread::oneshot::<()>();
            let bound = ThreadBound::new(sender);
            let thread = thread::spawn(move || drop(bound));
            // The loop has nothing else to do until the sender is dropped.
            assert!(receiver.await.is_err());
            thread.join().unwrap();
        });
    });
}

#[test]
fn a_value_not_collected_before_the_loop_closes_is_dropped_at_home() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (value, drops) = traced();
        let bound = event_loop
            .run_until_complete(async move { ThreadBound::new(value) })
            .unwrap();
        elsewhere(move || drop(bound)).unwrap();
        assert_eq!(drops.lock().unwrap().len(), 0);
        drop(event_loop);
        assert_eq!(*drops.lock().unwrap(), [(thread::current().id(), false)]);
    });
}

#[test]
fn a_destructor_that_panics_on_its_way_home_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        event_loop
            .run_until_complete(async {
                let bound = ThreadBound::new(PanicOnDrop("on its way home"));
                elsewhere(move || drop(bound)).unwrap();
                while exceptions.borrow().is_empty() {
                    yield_now().await;
                }
            })
            .unwrap();
        assert!(exceptions.borrow()[0].contains("on its way home"), "{exceptions:?}");
    });
}

#[test]
fn a_future_polled_once_and_dropped_elsewhere_ends_at_home() {
    on_every_driver(|case| {
        case.run(async {
            let (value, drops) = traced();
            let counted = value.not_send.clone();
            let mut future = ThreadBound::future(async move {
                let borrowed = &value;
                yield_now().await;
                drop(borrowed.not_send.clone());
                pending::<()>().await;
            });
            assert!(
                poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx)))
                    .await
                    .is_pending()
            );
            elsewhere(move || drop(future)).unwrap();
            while counted.get() == 0 {
                yield_now().await;
            }
            assert_eq!(*drops.lock().unwrap(), [(thread::current().id(), false)]);
        });
    });
}

/// Held by tests that leak values: they are counted for the whole process.
static LEAKS: Mutex<()> = Mutex::new(());

/// Owns nothing, so that tools which look for leaks do not report the value that is leaked on purpose.
struct CountStatic(&'static AtomicUsize);

impl Drop for CountStatic {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_value_whose_thread_has_ended_is_leaked_and_counted() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let _leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
    on_every_driver(|case| {
        let before = leaked_values();
        let thread = thread::spawn(move || case.run(async { ThreadBound::new(CountStatic(&DROPS)) }));
        let bound = thread.join().unwrap();
        assert!(bound.home().is_closed() && !bound.is_home());
        drop(bound);
        assert_eq!((leaked_values() - before, DROPS.load(SeqCst)), (1, 0));

        // A panic leaks a value in the same way.
        let thread = thread::spawn(move || case.run(async { ThreadBound::new(CountStatic(&DROPS)) }));
        let bound = thread.join().unwrap();
        assert!(catch_unwind(AssertUnwindSafe(move || bound.0.load(SeqCst))).is_err());
        assert_eq!((leaked_values() - before, DROPS.load(SeqCst)), (2, 0));
    });
}

#[test]
fn after_the_loop_has_closed_the_value_still_works_at_home() {
    on_every_driver(|case| {
        let drops = Rc::new(Cell::new(0));
        let count = || CountDrop(drops.clone());
        let (first, second) = case.run(async { (ThreadBound::new(count()), ThreadBound::new(count())) });
        assert!(first.home().is_closed() && first.is_home());
        assert_eq!(first.0.get(), 0);
        let first = elsewhere(move || first).unwrap();
        drop(first);
        assert_eq!(drops.get(), 1);
        drop(second.into_inner().ok());
        assert_eq!(drops.get(), 2);
    });
}

#[test]
fn a_value_in_a_thread_local_is_dropped_when_its_thread_ends() {
    thread_local! {
        static LAST: RefCell<Option<ThreadBound<Traced>>> = const { RefCell::new(None) };
    }
    on_every_driver(|case| {
        let (send, receive) = mpsc::channel();
        let thread = thread::spawn(move || {
            // Registers its destructor before any other thread-local that could end first.
            LAST.with_borrow_mut(|last| *last = None);
            let (value, drops) = traced();
            let bound = case.run(async { ThreadBound::new(value) });
            LAST.with_borrow_mut(|last| *last = Some(bound));
            send.send((thread::current().id(), drops)).unwrap();
        });
        thread.join().unwrap();
        let (id, drops) = receive.recv().unwrap();
        assert_eq!(*drops.lock().unwrap(), [(id, false)]);
    });
}

#[test]
fn drops_race_with_the_end_of_the_loop() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    let _leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
    on_every_driver(|case| {
        let before = leaked_values() + DROPS.load(SeqCst);
        let rounds = rounds().min(100);
        for _ in 0..rounds {
            let (send, receive) = mpsc::channel();
            let dropping = thread::spawn(move || receive.iter().for_each(drop));
            case.run(async {
                for _ in 0..3 {
                    send.send(ThreadBound::new((OnOneThread::new(), CountStatic(&DROPS))))
                        .unwrap();
                }
                drop(send);
            });
            dropping.join().unwrap();
        }
        let ended = leaked_values() + DROPS.load(SeqCst) - before;
        assert_eq!(ended, 3 * rounds, "each value is dropped at home or leaked");
    });
}

/// Aborts the process if it is dropped on another thread than its own.
struct OnOneThread(ThreadId, PhantomData<*const ()>);

impl OnOneThread {
    fn new() -> OnOneThread {
        OnOneThread(thread::current().id(), PhantomData)
    }
}

impl Drop for OnOneThread {
    fn drop(&mut self) {
        if self.0 != thread::current().id() {
            eprintln!("a value was dropped on another thread");
            std::process::abort();
        }
    }
}

// Streams.

#[test]
fn a_bridge_in_a_wrapper_reads_and_writes() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut bridge = Bridge::new(client).into_send();
            fn is_send<T: Send + Sync>(_: &T) {}
            is_send(&bridge);
            let mut len = 0;
            while len < 4 {
                len += poll_fn(|cx| bridge.poll_write(cx, &b"ping"[len..])).await.unwrap();
            }
            assert_eq!(gather(4, || server.read_managed()).await, b"ping");
            // A wrapped stream in a bridge works as well.
            let mut server = Bridge::new(ThreadBound::new(server));
            len = 0;
            while len < 4 {
                len += poll_fn(|cx| server.poll_write(cx, &b"pong"[len..])).await.unwrap();
            }
            poll_fn(|cx| server.poll_flush(cx)).await.unwrap();
            let (mut reply, mut len) = ([0; 8], 0);
            while len < 4 {
                len += poll_fn(|cx| bridge.poll_read(cx, &mut reply[len..])).await.unwrap();
            }
            assert_eq!(&reply[..len], b"pong");
            // Dropped on another thread, with a read in flight: the peer sees the end of the stream.
            assert!(
                poll_fn(|cx| Poll::Ready(bridge.poll_read(cx, &mut reply)))
                    .await
                    .is_pending()
            );
            elsewhere(move || drop(bridge)).unwrap();
            assert_eq!(poll_fn(|cx| server.poll_read(cx, &mut reply)).await.unwrap(), 0);
        });
    });
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (client, server) = windlass::task::join((connect, listener.accept())).await;
    (client.unwrap(), server.unwrap().0)
}

// Remote handles of tasks.

#[test]
fn a_remote_handle_of_a_task_returns_its_result_on_any_thread() {
    on_every_driver(|case| {
        case.run(async {
            let shared = Rc::new(5);
            let task = spawn(async move {
                yield_now().await;
                *shared
            });
            let task = task.into_remote();
            assert_eq!(spawn_blocking(move || task.wait()).await.unwrap().unwrap(), 5);
            // On this thread, and of a task that has finished.
            let task = spawn(async { 6 });
            while !task.is_finished() {
                yield_now().await;
            }
            let task = task.into_remote();
            assert!(task.is_finished());
            assert_eq!(task.await.unwrap(), 6);
        });
    });
}

#[test]
fn a_remote_handle_of_a_task_returns_panics_and_cancels() {
    on_every_driver(|case| {
        case.run(async {
            let panics = spawn(async { panic!("in the task") });
            let id = panics.id();
            let panics: windlass::RemoteHandle<()> = panics.into_remote();
            let error = spawn_blocking(move || panics.wait()).await.unwrap().unwrap_err();
            assert_eq!((error.is_panic(), error.id()), (true, id));
            assert!(error.to_string().contains("in the task"));

            let drops = Rc::new(Cell::new(0));
            let count = CountDrop(drops.clone());
            let task = spawn(async move {
                let _count = count;
                pending::<()>().await;
            });
            let id = task.id();
            let task = task.into_remote();
            let error = spawn_blocking(move || {
                task.cancel();
                task.wait()
            });
            let error = error.await.unwrap().unwrap_err();
            assert_eq!((error.is_cancelled(), error.id(), drops.get()), (true, id, 1));
        });
    });
}

#[test]
fn an_unread_error_of_a_remote_handle_is_reported() {
    on_every_driver(|case| {
        for is_late in [false, true] {
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let run = async {
                let task = windlass::task::Builder::new().name("named").spawn(async move {
                    yield_now().await;
                    Err::<(), _>("never read")
                });
                let task = task.into_remote();
                while is_late && !task.is_finished() {
                    yield_now().await;
                }
                elsewhere(move || drop(task)).unwrap();
                while exceptions.borrow().is_empty() {
                    yield_now().await;
                }
            };
            event_loop.run_until_complete(run).unwrap();
            drop(event_loop);
            let exceptions = exceptions.borrow();
            assert_eq!(exceptions.len(), 1, "{exceptions:?}");
            let parts = ["'named', spawned at ", "thread_bound.rs", "never read"];
            assert!(parts.iter().all(|part| exceptions[0].contains(part)), "{exceptions:?}");
        }
    });
}

#[test]
fn a_remote_handle_gets_the_result_of_a_task_that_ended_when_the_loop_did() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let (ended, pending_task) = event_loop
            .run_until_complete(async {
                // The second turn below ends the task. The one after it would forward its result.
                let ended = spawn(async {
                    yield_now().await;
                    7
                });
                (ended.into_remote(), spawn(pending::<()>()).into_remote())
            })
            .unwrap();
        let late = event_loop.spawn(async { 8 });
        event_loop.turn_nowait().unwrap();
        event_loop.turn_nowait().unwrap();
        assert!(!ended.is_finished());
        drop(event_loop);
        assert_eq!(ended.wait().unwrap(), 7);
        assert!(pending_task.wait().unwrap_err().is_cancelled());
        assert_eq!(late.into_remote().wait().unwrap(), 8);
    });
}

#[test]
fn a_task_of_another_loop_has_no_remote_handle_here() {
    on_every_driver(|case: Case| {
        let event_loop = case.event_loop();
        let task = event_loop.spawn(async {});
        let panic = catch_unwind(AssertUnwindSafe(move || drop(task.into_remote()))).unwrap_err();
        let message = panic.downcast::<&str>().unwrap();
        assert!(message.contains("outside of the task's event loop"), "{message}");
        assert!(LoopHandle::current().is_none());
    });
}
