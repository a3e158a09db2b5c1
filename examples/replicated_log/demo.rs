//! Three nodes as processes on this machine: `--demo`.

use std::io;
use std::path::Path;
use std::time::Duration;

use windlass::process::{Child, Command};
use windlass::time::{sleep, timeout};

use crate::support::outln;
use crate::{client, log};

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn run() -> io::Result<()> {
    let addrs = addrs();
    let dirs: Vec<_> = (0..3)
        .map(|node| format!("replicated_log-{}-{node}", std::process::id()))
        .collect();
    let dirs: Vec<_> = dirs.iter().map(|name| std::env::temp_dir().join(name)).collect();
    let start = |node: usize| start(node, &dirs[node], &addrs);
    let mut nodes = vec![start(0)?, start(1)?, start(2)?];
    let leader = addrs[0].as_str();

    add_all(leader, 0..100).await?;
    outln!("100 entries are on at least two of three nodes");
    nodes[1].kill().await?;
    add_all(leader, 100..200).await?;
    outln!("100 more without node 1");
    nodes[1] = start(1)?;
    nodes[2].kill().await?;
    add_all(leader, 200..201).await?;
    outln!("node 1 has caught up, since an entry was acknowledged without node 2");
    nodes[0].kill().await?;
    nodes[0] = start(0)?;
    for index in [0, 100, 200] {
        let entry = until_ok(async || client::get(leader, index).await).await?;
        assert_eq!(entry, format!("entry {index}"));
    }
    drop(nodes);
    for dir in [&dirs[0], &dirs[1]] {
        assert_eq!(log::parse(&windlass::fs::read(dir.join(log::FILE)).await?).0.len(), 201);
    }
    for dir in &dirs {
        windlass::fs::remove_dir_all(dir).await?;
    }
    outln!("the demo succeeded");
    Ok(())
}

/// The addresses of the nodes. Below the ports that the system gives to clients, one of which could get the port of a node
/// that is down.
fn addrs() -> Vec<String> {
    let first = 10_000 + std::process::id() % 7_000 * 3;
    (first..first + 3).map(|port| format!("127.0.0.1:{port}")).collect()
}

fn start(node: usize, dir: &Path, addrs: &[String]) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["node", &node.to_string()]).arg(dir).args(addrs);
    command.kill_on_drop(true).spawn()
}

async fn add_all(leader: &str, numbers: std::ops::Range<usize>) -> io::Result<()> {
    for number in numbers {
        until_ok(async || client::add(leader, &format!("entry {number}")).await).await?;
    }
    Ok(())
}

/// Repeats a call until it succeeds: a node that was just started does not listen yet.
async fn until_ok<T>(call: impl AsyncFn() -> io::Result<T>) -> io::Result<T> {
    let repeat = async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    Ok(timeout(LIMIT, repeat).await?)
}
