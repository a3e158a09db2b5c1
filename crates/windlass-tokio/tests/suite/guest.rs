//! The loop under tokio's `current_thread` runtime.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use windlass::net::{TcpListener, TcpStream};
use windlass::{Builder, DriverChoice, EventLoop};
use windlass_tokio::Guest;

use crate::support::on_every_driver;

/// Runs a program as a guest on each driver.
fn as_guest<F: Future<Output = ()>>(program: impl Fn() -> F + Clone + Send + 'static) {
    on_every_driver(move |event_loop| {
        let guest = Guest::new(event_loop).expect("a guest");
        guest.block_on(program()).expect("the loop runs");
    });
}

/// A windlass server that echoes, for one connection after the other.
async fn echo(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        loop {
            let bytes = stream.read_managed().await?;
            if bytes.is_empty() {
                break;
            }
            stream.write_all(bytes).await.0?;
        }
    }
}

#[test]
fn each_kind_of_task_can_use_the_other_kind() {
    as_guest(|| async {
        let here = thread::current().id();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("an address");
        windlass::spawn(echo(listener)).detach();

        // tokio's socket and timer in a windlass task.
        let ours = windlass::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut stream = tokio::net::TcpStream::connect(addr).await?;
            stream.write_all(b"tokio's").await?;
            let mut bytes = [0; 7];
            stream.read_exact(&mut bytes).await?;
            assert_eq!(&bytes, b"tokio's");
            assert_eq!(tokio::spawn(async { thread::current().id() }).await?, here);
            io::Result::Ok(())
        });
        ours.await.expect("no panic").expect("no error");

        // windlass's in a tokio task.
        let theirs = tokio::spawn(async {
            windlass::time::sleep(Duration::from_millis(1)).await;
            let task = windlass::spawn(async { thread::current().id() }).into_remote();
            task.await.expect("no panic")
        });
        assert_eq!(theirs.await.expect("no panic"), here);
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async move {
                let stream = TcpStream::connect(addr).await.expect("connect");
                let exchange = tokio::task::spawn_local(async move {
                    stream.write_all("windlass's").await.0?;
                    let (read, bytes) = stream.read_exact(vec![0; 10]).await;
                    read.map(|()| bytes)
                });
                let bytes = exchange.await.expect("no panic").expect("no error");
                assert_eq!(bytes, b"windlass's");
            })
            .await;
    });
}

/// Nothing but the host's waker tells tokio that an operation waits to be submitted, or that a task is ready.
#[test]
fn what_tokios_tasks_start_is_handled_before_tokio_waits() {
    as_guest(|| async {
        // The server has a thread of its own, so that the loop has nothing else to do.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("an address");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut reader = stream.try_clone().expect("a duplicate");
            io::copy(&mut reader, &mut stream).expect("an echo")
        });
        let stream = TcpStream::connect(addr).await.expect("connect");
        for round in 0..100u32 {
            // The main future is not a windlass task.
            stream.write_all(round.to_ne_bytes().to_vec()).await.0.expect("write");
            let (read, bytes) = stream.read_exact(vec![0; 4]).await;
            read.expect("read");
            assert_eq!(bytes, round.to_ne_bytes());
            if round % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                windlass::spawn(async {}).await.expect("no panic");
            }
        }
        drop(stream);
        assert_eq!(server.join().expect("no panic"), 400);
    });
}

/// Turns that something needed: a loop that spins makes thousands.
#[test]
fn sleeps_cost_a_few_turns_and_an_idle_loop_none() {
    as_guest(|| async {
        const SLEEPS: u64 = 50;
        windlass::time::sleep(Duration::from_millis(1)).await;
        let before = windlass::counters().turns;
        for _ in 0..SLEEPS {
            windlass::time::sleep(Duration::from_micros(100)).await;
        }
        let turns = windlass::counters().turns - before;
        assert!(turns <= 4 * SLEEPS, "{turns} turns for {SLEEPS} sleeps");
        let before = windlass::counters().turns;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let turns = windlass::counters().turns - before;
        assert!(turns <= 4, "{turns} turns while nothing happened");
    });
}

#[test]
fn the_main_future_is_polled_only_if_it_is_woken() {
    as_guest(|| async {
        let ticking = windlass::spawn(async {
            for _ in 0..100 {
                windlass::time::sleep(Duration::from_micros(50)).await;
            }
        });
        let mut ticking = std::pin::pin!(ticking);
        let mut polls = 0;
        let ended = std::future::poll_fn(|cx| {
            polls += 1;
            ticking.as_mut().poll(cx)
        });
        ended.await.expect("no panic");
        assert!(polls <= 2, "{polls} polls");
    });
}

#[test]
fn neither_kind_of_task_starves_the_other() {
    as_guest(|| async {
        let ours = windlass::spawn(async {
            loop {
                windlass::task::yield_now().await;
            }
        });
        let theirs = tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            windlass::time::sleep(Duration::from_millis(1)).await;
        }
        let (reader, mut writer) = tokio::io::duplex(8);
        let mut reader = reader;
        writer.write_all(b"x").await.expect("write");
        reader.read_u8().await.expect("read");
        ours.cancel();
        theirs.abort();
    });
}

#[test]
fn other_threads_wake_the_guest() {
    as_guest(|| async {
        let handle = windlass::LoopHandle::current().expect("the loop is entered");
        let (done, is_done) = tokio::sync::oneshot::channel();
        let caller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            let call = move || done.send(()).expect("the test waits");
            handle.call_soon_threadsafe(call).expect("the loop is open");
        });
        is_done.await.expect("called");
        caller.join().expect("no panic");
        let work = windlass::spawn_blocking(|| 7);
        assert_eq!(work.await.expect("no panic"), 7);
    });
}

/// Notes whether it was dropped inside of a tokio runtime, and of a loop.
struct NoteDrop(Rc<Cell<Option<(bool, bool)>>>);

impl Drop for NoteDrop {
    fn drop(&mut self) {
        let is_in_loop = windlass::LoopHandle::current().is_some();
        self.0.set(Some((Handle::try_current().is_ok(), is_in_loop)));
    }
}

#[test]
fn tasks_that_are_left_are_dropped_inside_of_both() {
    on_every_driver(|event_loop| {
        let (task, main) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        let guest = Guest::new(event_loop).expect("a guest");
        let notes = (NoteDrop(task.clone()), NoteDrop(main.clone()));
        guest
            .block_on(async move {
                let (note, _main) = notes;
                windlass::spawn(async move {
                    let _note = note;
                    pending::<()>().await;
                })
                .detach();
                windlass::task::yield_now().await;
            })
            .expect("the loop runs");
        assert_eq!((task.get(), main.get()), (Some((true, true)), Some((true, true))));
        assert!(windlass::LoopHandle::current().is_none());
    });
}

#[test]
fn a_guest_can_be_driven_by_a_local_task_and_again() {
    on_every_driver(|event_loop| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let guest = Rc::new(Guest::new(event_loop).expect("a guest"));
        for round in 0..3 {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let driver = tokio::task::spawn_local({
                    let guest = guest.clone();
                    async move { guest.drive().await }
                });
                // The guest enters its loop when it is first polled.
                tokio::task::yield_now().await;
                let task = windlass::spawn(windlass::time::sleep(Duration::from_millis(1)));
                task.await.expect("no panic");
                driver.abort();
                assert!(driver.await.is_err_and(|error| error.is_cancelled()));
            });
            let answer = runtime.block_on(guest.run(async { windlass::spawn(async move { round }).await }));
            assert_eq!(answer.expect("the loop runs").expect("no panic"), round);
            assert!(windlass::LoopHandle::current().is_none());
        }
    });
}

#[test]
fn the_main_futures_panic_is_the_callers() {
    on_every_driver(|event_loop| {
        let guest = Guest::new(event_loop).expect("a guest");
        let run = std::panic::AssertUnwindSafe(|| guest.block_on(async { panic!("{}", "expected") }));
        let payload = std::panic::catch_unwind(run).expect_err("it panics");
        assert_eq!(*payload.downcast::<String>().expect("a message"), "expected");
        assert!(windlass::LoopHandle::current().is_none());
    });
}

#[test]
fn a_loop_without_a_descriptor_cannot_be_a_guest() {
    let event_loop = Builder::new().driver(DriverChoice::Null).build().expect("a loop");
    let error = Guest::new(event_loop).expect_err("it has no descriptor");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn run_needs_no_settings() {
    let sum = windlass_tokio::run(async {
        let one = windlass::spawn(async { 1 });
        let two = tokio::spawn(async { 2 });
        one.await.expect("no panic") + two.await.expect("no panic")
    });
    assert_eq!(sum.expect("the loop runs"), 3);
    drop(EventLoop::new().expect("a loop"));
}
