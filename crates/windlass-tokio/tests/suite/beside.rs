//! Futures that use the tokio runtime beside the loop.

use std::cell::Cell;
use std::future::{Future, pending};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use windlass::net::TcpListener;
use windlass_tokio::WithTokio;

use crate::support::on_every_driver;

/// Notes whether it was dropped inside of a tokio runtime.
struct NoteDrop(Rc<Cell<Option<bool>>>);

impl Drop for NoteDrop {
    fn drop(&mut self) {
        self.0.set(Some(Handle::try_current().is_ok()));
    }
}

#[test]
fn timers_sockets_and_tasks_of_tokio_work_next_to_those_of_windlass() {
    on_every_driver(|event_loop| {
        let program = async {
            assert!(Handle::try_current().is_err());
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let addr = listener.local_addr()?;
            let serving = windlass::spawn(async move {
                let (stream, _) = listener.accept().await?;
                let (read, bytes) = stream.read_exact(vec![0; 4]).await;
                read?;
                stream.write_all(bytes).await.0
            });
            let here = thread::current().id();
            let client = async {
                let mut stream = tokio::net::TcpStream::connect(addr).await?;
                stream.write_all(b"ahoy").await?;
                // Both kinds of timers.
                tokio::time::sleep(Duration::from_millis(1)).await;
                windlass::time::sleep(Duration::from_millis(1)).await;
                let mut bytes = [0; 4];
                stream.read_exact(&mut bytes).await?;
                let there = tokio::spawn(async { thread::current().id() }).await?;
                assert_eq!(thread::current().id(), here);
                assert_ne!(there, here);
                std::io::Result::Ok(bytes)
            };
            assert_eq!(&client.with_tokio().await?, b"ahoy");
            serving.await??;
            assert!(Handle::try_current().is_err());
            std::io::Result::Ok(())
        };
        event_loop
            .run_until_complete(program)
            .expect("the loop runs")
            .expect("no error");
    });
}

#[test]
fn futures_are_polled_and_dropped_inside_of_the_runtime() {
    on_every_driver(|event_loop| {
        event_loop
            .run_until_complete(async {
                for completes in [true, false] {
                    let dropped = Rc::new(Cell::new(None));
                    let note = NoteDrop(dropped.clone());
                    let future = async move {
                        let _note = note;
                        assert!(Handle::try_current().is_ok());
                        if !completes {
                            pending::<()>().await;
                        }
                    };
                    let mut future = Box::pin(future.with_tokio());
                    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert_eq!(polled.is_ready(), completes);
                    drop(future);
                    assert_eq!(dropped.get(), Some(true));
                }
                // Never polled, and dropped with its task.
                let dropped = Rc::new(Cell::new(None));
                let note = NoteDrop(dropped.clone());
                let task = windlass::spawn(async move { drop(note) }.with_tokio());
                task.cancel();
                assert!(task.await.is_err());
                assert_eq!(dropped.get(), Some(true));
            })
            .expect("the loop runs");
    });
}

#[test]
fn another_runtime_can_be_used() {
    on_every_driver(|event_loop| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("another")
            .enable_all()
            .build()
            .expect("a runtime");
        let named = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let name = || thread::current().name().map(str::to_owned);
            tokio::spawn(async move { name() }).await.expect("no panic")
        };
        let name = event_loop.run_until_complete(named.with_tokio_on(runtime.handle().clone()));
        assert_eq!(name.expect("the loop runs").as_deref(), Some("another"));
        // The process has a runtime already, or this call starts it.
        drop(windlass_tokio::handle());
        assert!(windlass_tokio::set_handle(runtime.handle().clone()).is_err());
    });
}

#[test]
fn spawned_tasks_run_on_tokios_thread_and_report_panics() {
    on_every_driver(|event_loop| {
        event_loop
            .run_until_complete(async {
                let here = thread::current().id();
                let there = windlass_tokio::spawn(async { thread::current().id() });
                assert_ne!(there.await.expect("no panic"), here);
                let panic = windlass_tokio::spawn(async { panic!("{}", "expected") });
                assert!(panic.await.expect_err("it panics").is_panic());
            })
            .expect("the loop runs");
    });
}

/// Wakes come from tokio's thread, each through the loop's inbox.
#[test]
fn a_channel_between_the_threads_loses_no_wake() {
    on_every_driver(|event_loop| {
        event_loop
            .run_until_complete(async {
                let (request, mut requests) = tokio::sync::mpsc::channel(1);
                let (answer, mut answers) = tokio::sync::mpsc::channel(1);
                windlass_tokio::spawn(async move {
                    while let Some(number) = requests.recv().await {
                        answer.send(number).await.expect("the test receives");
                    }
                });
                for number in 0..1_000 {
                    request.send(number).await.expect("the task receives");
                    assert_eq!(answers.recv().await, Some(number));
                }
            })
            .expect("the loop runs");
    });
}

#[test]
fn any_executor_can_poll_the_future() {
    let mut future = pin!(async { 7 }.with_tokio());
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(7));
}
