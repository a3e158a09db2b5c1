//! The rules of the simulated network and processes, the reports of failures, and [scenarios].

mod determinism;
#[cfg(unix)]
mod disks;
mod failures;
#[cfg(unix)]
#[path = "../suite/file_rules.rs"]
mod file_rules;
#[cfg(unix)]
mod limits;
mod misuse;
mod network;
#[cfg(unix)]
#[path = "../suite/network_rules.rs"]
mod network_rules;
mod pools;
mod processes;
mod quirks;
#[cfg(unix)]
mod replicated_log;
mod scenarios;
mod thread_bound;

use std::error::Error;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::sim::{self, Dist, Link, Report, Sim};

pub(crate) type TestResult = Result<(), Box<dyn Error>>;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);

/// For the rules of the model that the suite tests on every driver.
#[cfg(unix)]
mod support {
    /// Runs a body in a world with a few seeds.
    pub(crate) fn everywhere<F: Future + 'static>(body: impl Fn() -> F + Copy + Send + Sync + 'static) {
        windlass::sim::sweep(0..5, move |_sim| async move {
            body().await;
            Ok(())
        });
    }

    pub(crate) fn may_have_quirks() -> bool {
        false
    }
}

/// Runs a test with a few seeds.
pub(crate) fn seeds<F>(test: impl Fn(Sim) -> F + Sync) -> Report
where
    F: Future<Output = TestResult> + 'static,
{
    sim::sweep(0..8, test)
}

/// A link of 1 ms without short counts.
pub(crate) fn plain() -> Link {
    Link::new().latency(Dist::constant(MS)).short_counts(0.0)
}

/// A host that echoes what it gets on port 7000.
pub(crate) fn start_echo(sim: &Sim, name: &str) {
    sim.host(name).start(echo);
}

pub(crate) async fn echo() -> std::io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        windlass::spawn(async move {
            loop {
                let bytes = stream.read_managed().await?;
                if bytes.is_empty() {
                    return Ok::<(), std::io::Error>(());
                }
                stream.write_all(bytes).await.0?;
            }
        });
    }
}

pub(crate) async fn connect(name: &str) -> std::io::Result<TcpStream> {
    TcpStream::connect((name, 7000)).await
}

pub(crate) async fn ping(stream: &TcpStream, text: &'static str) -> std::io::Result<()> {
    stream.write_all(text).await.0?;
    let (result, bytes) = stream.read_exact(vec![0; text.len()]).await;
    result?;
    assert_eq!(bytes, text.as_bytes());
    Ok(())
}

#[track_caller]
pub(crate) fn assert_kind<T: std::fmt::Debug>(result: std::io::Result<T>, kind: ErrorKind) {
    match result {
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
        Ok(value) => panic!("no error, but {value:?}"),
    }
}

/// The text of the failure of a run.
pub(crate) fn failure_of<F>(test: impl Fn(Sim) -> F + Sync) -> String
where
    F: Future<Output = TestResult> + 'static,
{
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim::run(1, &test)));
    let payload = panicked.expect_err("the run fails");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a text")).to_owned(),
    }
}

/// The IPv4 address of a host: a UDP socket reaches one kind of address only.
pub(crate) async fn v4(name: &str, port: u16) -> io::Result<SocketAddr> {
    let found = windlass::net::lookup_host((name, port)).await?;
    found
        .into_iter()
        .find(SocketAddr::is_ipv4)
        .ok_or_else(|| ErrorKind::NotFound.into())
}
