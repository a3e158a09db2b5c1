//! What a `tracing` subscriber hears: `cargo test --features tracing --test trace`.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use windlass::net::{TcpListener, TcpStream};
use windlass::{Builder, DriverChoice};

/// Writes each event down as one line.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        assert!(!line.0.contains("panics"), "as asked");
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn drivers() -> Vec<DriverChoice> {
    let mut drivers = vec![DriverChoice::Null];
    for (is_built, driver) in [
        (
            cfg!(all(feature = "proactor", target_os = "linux")),
            DriverChoice::Proactor,
        ),
        (cfg!(feature = "reactor"), DriverChoice::Reactor),
    ] {
        if is_built && Builder::new().driver(driver).build().is_ok() {
            drivers.push(driver);
        }
    }
    drivers
}

#[test]
fn tasks_operations_and_exceptions_are_told() {
    for driver in drivers() {
        let heard = Heard::default();
        tracing::subscriber::with_default(heard.clone(), || {
            let event_loop = Builder::new().driver(driver).build().expect("a loop");
            event_loop.set_exception_handler(|_| {});
            let echo = async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let client = TcpStream::connect(listener.local_addr()?).await?;
                let (server, _) = listener.accept().await?;
                client.write_all("ping").await.0?;
                server.read(vec![0; 8]).await.0?;
                let task = windlass::task::Builder::new().name("failing");
                drop(task.spawn(async { panic!("on purpose") }));
                windlass::task::yield_now().await;
                windlass::task::yield_now().await;
                std::io::Result::Ok(())
            };
            event_loop
                .run_until_complete(echo)
                .expect("the loop runs")
                .expect("it echoes");
        });
        let heard = heard.0.lock().unwrap().join("\n");
        for wanted in [
            "INFO windlass::loop: message=opened driver=",
            "DEBUG windlass::task: message=spawned task=1 name=\"main\" spawned_at=tests/trace.rs:",
            "TRACE windlass::op: message=started flight=",
            "op=\"connect\"",
            "op=\"recv\"",
            "message=landed flight=",
            "count=4",
            "DEBUG windlass::task: message=ended task=1",
            "ERROR windlass::loop: message=task 2 'failing'",
            "INFO windlass::loop: message=closed",
        ] {
            assert!(heard.contains(wanted), "{driver:?}: '{wanted}' is missing in\n{heard}");
        }
    }
}

/// A subscriber that panics harms nobody.
#[test]
fn a_panicking_subscriber_is_survived() {
    for driver in drivers() {
        tracing::subscriber::with_default(Heard::default(), || {
            let event_loop = Builder::new().driver(driver).build().expect("a loop");
            event_loop.set_exception_handler(|_| {});
            let spawned = event_loop.run_until_complete(async {
                let task = windlass::task::Builder::new().name("panics").spawn(async { 7 });
                task.await
            });
            assert_eq!(spawned.expect("the loop runs").expect("the task runs"), 7);
        });
    }
}
