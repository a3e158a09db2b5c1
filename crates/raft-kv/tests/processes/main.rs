//! Three processes on this machine. Nodes are killed and stopped, and start again on their files, while clients send requests.
//!
//! It waits for states and numbers of requests, never for a time. `RAFT_KV_SECONDS=20` before the command repeats the faults
//! for that long.

#![cfg(unix)]

#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use raft_kv::api::Status;
use raft_kv::client;
use support::{Client, History};
use windlass::process::{Child, Command};
use windlass::time::timeout;

const CLIENTS: u64 = 5;
/// The requests with a result that a fault must last for.
const REQUESTS: u64 = 60;
/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(400);

type TestResult = Result<(), Box<dyn Error>>;

struct Cluster {
    driver: &'static str,
    dir: PathBuf,
    /// By node, from 0.
    raft: Vec<String>,
    http: Vec<String>,
    nodes: Vec<Option<Child>>,
}

impl Cluster {
    /// `number`: of the test, for ports of its own. They are below those that the system gives to clients, one of which could
    /// get the port of a node that is down.
    fn start(driver: &'static str, number: u32) -> std::io::Result<Cluster> {
        let first = 10_000 + std::process::id() % 1_800 * 12 + number * 6;
        let addr = |port| format!("127.0.0.1:{port}");
        let mut cluster = Cluster {
            driver,
            dir: std::env::temp_dir().join(format!("raft-kv-{}-{driver}", std::process::id())),
            raft: (first..first + 3).map(addr).collect(),
            http: (first + 3..first + 6).map(addr).collect(),
            nodes: vec![None, None, None],
        };
        for node in 0..3 {
            cluster.start_node(node)?;
        }
        Ok(cluster)
    }

    fn dir_of(&self, node: usize) -> PathBuf {
        self.dir.join((node + 1).to_string())
    }

    fn start_node(&mut self, node: usize) -> std::io::Result<()> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raft-kv"));
        command.args(["--snapshot-after", "150", "--rewrite-at", "20000"]);
        command.arg((node + 1).to_string()).arg(self.dir_of(node));
        command.args(
            self.raft
                .iter()
                .zip(&self.http)
                .map(|(raft, http)| format!("{raft},{http}")),
        );
        command.env("WINDLASS_DRIVER", self.driver);
        self.nodes[node] = Some(command.kill_on_drop(true).spawn()?);
        Ok(())
    }

    /// `kill -9`.
    async fn kill(&mut self, node: usize) -> std::io::Result<()> {
        self.nodes[node].take().expect("the node runs").kill().await
    }

    fn signal(&self, node: usize, signal: i32) {
        let child = self.nodes[node].as_ref().and_then(Child::id).expect("the node runs");
        // SAFETY: `kill` has no preconditions. The child was not waited for, so the number is still its own.
        let result = unsafe { libc::kill(child as libc::pid_t, signal) };
        assert_eq!(result, 0);
    }

    /// As if the process had been killed in the middle of a write.
    fn tear_log(&self, node: usize) -> std::io::Result<()> {
        let path = self.dir_of(node).join("log");
        let mut log = std::fs::OpenOptions::new().append(true).open(path)?;
        // A length, a checksum, and too few bytes.
        log.write_all(&[200, 0, 0, 0, 1, 2, 3, 4, b'{', b'"', b'E'])
    }

    /// A leader that one of these nodes knows, if it is one of them.
    async fn leader_of(&self, nodes: &[usize]) -> usize {
        support::until(async || {
            for node in nodes {
                let status = timeout(Duration::from_secs(1), client::status(&self.http[*node])).await;
                if let Ok(Ok(Status {
                    leader: Some(leader), ..
                })) = status
                    && nodes.contains(&(leader as usize - 1))
                {
                    return Some(leader as usize - 1);
                }
            }
            None
        })
        .await
    }

    async fn is_up(&self, node: usize) {
        let status = async || {
            timeout(Duration::from_secs(1), client::status(&self.http[node]))
                .await
                .ok()?
                .ok()
        };
        support::until(async || status().await.filter(|status| status.applied.is_some())).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
}

/// A fault of a node while the others serve requests.
async fn fault(cluster: &mut Cluster, fault: Fault, of_leader: bool, history: &History) -> std::io::Result<()> {
    let leader = cluster.leader_of(&[0, 1, 2]).await;
    let node = if of_leader { leader } else { (leader + 1) % 3 };
    let others: Vec<usize> = (0..3).filter(|other| *other != node).collect();
    match fault {
        Fault::Kill => cluster.kill(node).await?,
        Fault::Stop => cluster.signal(node, libc::SIGSTOP),
    }
    let next = cluster.leader_of(&others).await;
    assert_ne!(next, node);
    progress(history).await;
    match fault {
        Fault::Kill => {
            cluster.tear_log(node)?;
            cluster.start_node(node)?;
        }
        Fault::Stop => cluster.signal(node, libc::SIGCONT),
    }
    cluster.is_up(node).await;
    progress(history).await;
    println!(
        "{fault:?} of node {node} (leader: {of_leader}): node {next} leads; {} requests",
        history.len()
    );
    Ok(())
}

/// Waits until clients have got more results.
async fn progress(history: &History) {
    let target = history.done.get() + REQUESTS;
    support::until(async || (history.done.get() >= target).then_some(())).await;
}

async fn survives(driver: &'static str, number: u32) -> TestResult {
    let mut cluster = Cluster::start(driver, number)?;
    cluster.leader_of(&[0, 1, 2]).await;
    let history = Rc::new(History::default());
    let is_over = Rc::new(Cell::new(false));
    let clients = (0..CLIENTS).map(|number| {
        let client = Client::new(number, &cluster.http, Duration::from_secs(5));
        let (history, is_over) = (history.clone(), is_over.clone());
        windlass::spawn(client.run(history, Duration::from_millis(10), move || !is_over.get()))
    });
    let clients: Vec<_> = clients.collect();
    let seconds = std::env::var("RAFT_KV_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    let (begin, least) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(0)));
    loop {
        for what in [Fault::Kill, Fault::Stop] {
            for of_leader in [true, false] {
                fault(&mut cluster, what, of_leader, &history).await?;
            }
        }
        if begin.elapsed() >= least {
            break;
        }
    }
    is_over.set(true);
    for client in clients {
        client.await?;
    }
    // All at once, and back from their files.
    for node in 0..3 {
        cluster.kill(node).await?;
    }
    for node in 0..3 {
        cluster.start_node(node)?;
    }
    let checked = history.finish(&cluster.http).await?;
    let (done, unknown) = (history.done.get(), history.unknown.get());
    println!(
        "{driver}: {checked} requests are linearizable; {done} had a result, {unknown} none; {:?}",
        begin.elapsed()
    );
    let status = client::status(&cluster.http[0]).await?;
    println!("{status:?}");
    let dir = cluster.dir.clone();
    drop(cluster);
    windlass::fs::remove_dir_all(dir).await?;
    Ok(())
}

fn test(driver: &'static str, number: u32) {
    let limit = HANG + Duration::from_secs(std::env::var("RAFT_KV_SECONDS").map_or(0, |s| s.parse().unwrap_or(0)));
    let result = windlass::run(timeout(limit, survives(driver, number))).expect("the loop runs");
    result
        .expect("the nodes make progress")
        .expect("the history is linearizable");
}

/// On io_uring, IOCP or, where they are not available, the reactor.
#[test]
fn default_driver() {
    test("auto", 0);
}

#[test]
fn reactor() {
    test("reactor", 1);
}
