//! A node of the store.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::SnapshotPolicy;
use windlass::net::TcpListener;
use windlass::task::{Either, select};
use windlass::time::sleep;

use crate::api::Api;
use crate::log::LogStore;
use crate::network::Network;
use crate::state::StateMachine;
use crate::types::{Peer, Raft};
use crate::{api, network};

/// Mistakes that the tests switch on, to see that they are found. Leave them out of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// Entries and votes are reported as durable when they are written, not when they are synced.
    UnsyncedLog,
    /// A leader reads without asking a quorum whether it still leads.
    UncheckedRead,
    /// A leader that starts again leads on in its old term, without knowing what it had committed.
    RestoredLeader,
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of this node.
    pub node: u64,
    /// All nodes of the cluster, by their numbers, the same on each node.
    pub peers: BTreeMap<u64, Peer>,
    /// Where the log and the snapshot are.
    pub dir: PathBuf,
    /// A snapshot is made after this many entries, and about as many entries before it are kept in the log, for followers that
    /// are behind.
    pub snapshot_after: u64,
    /// The log file is rewritten after a purge if it is longer than this many bytes.
    pub rewrite_at: u64,
    /// How often a leader sends a heartbeat. Elections begin after 4 to 8 times as long.
    pub heartbeat: Duration,
    /// A mistake to make.
    pub bug: Option<Bug>,
}

impl Config {
    /// The usual settings.
    pub fn new(node: u64, peers: BTreeMap<u64, Peer>, dir: impl Into<PathBuf>) -> Config {
        Config {
            node,
            peers,
            dir: dir.into(),
            snapshot_after: 1_000,
            rewrite_at: 1 << 20,
            heartbeat: Duration::from_millis(150),
            bug: None,
        }
    }

    fn raft(&self) -> io::Result<Arc<openraft::Config>> {
        let heartbeat = self.heartbeat.as_millis() as u64;
        let config = openraft::Config {
            cluster_name: "raft-kv".to_owned(),
            heartbeat_interval: heartbeat,
            election_timeout_min: heartbeat * 4,
            election_timeout_max: heartbeat * 8,
            install_snapshot_timeout: 5_000,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_after),
            max_in_snapshot_log_to_keep: self.snapshot_after,
            // The state machine is in memory and the last committed entry is not saved, so an old leader must learn from an
            // election what is committed. Otherwise it would answer reads from a state of the past.
            enable_leader_restore: Some(self.bug == Some(Bug::RestoredLeader)),
            ..openraft::Config::default()
        };
        config.validate().map(Arc::new).map_err(io::Error::other)
    }
}

/// Runs a node until its disk fails or raft stops. A node that is dropped, or whose process is killed, can be started again
/// from its directory.
pub async fn run(config: Config) -> io::Result<()> {
    let own = config.peers.get(&config.node);
    let own = own.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the node is not among the peers"))?;
    let (log, writer) = LogStore::open(&config.dir, config.rewrite_at, config.bug).await?;
    let state = StateMachine::open(&config.dir).await?;
    let for_nodes = bind(&own.raft).await?;
    let for_clients = bind(&own.http).await?;
    let serve = async {
        let raft = Raft::new(config.node, config.raft()?, Network::default(), log, state.clone());
        let raft = raft.await.map_err(io::Error::other)?;
        let api = Api {
            raft: raft.clone(),
            state,
            bug: config.bug,
        };
        let stopped = async {
            let wait = raft.wait(None);
            let stopped = wait.metrics(|metrics| metrics.running_state.is_err(), "raft has stopped");
            let reason = stopped.await.map(|metrics| metrics.running_state);
            Err(io::Error::other(format!("raft has stopped: {reason:?}")))
        };
        let begin = async {
            // All nodes do this with the same peers, so that it does not matter which one is first. It is refused by a node
            // that knows of a cluster.
            if !raft.is_initialized().await.map_err(io::Error::other)? {
                drop(raft.initialize(config.peers.clone()).await);
            }
            std::future::pending().await
        };
        let nodes = select(network::serve(for_nodes, raft.clone()), begin);
        let clients = select(api::serve(for_clients, api), stopped);
        first(select(async { first(nodes.await) }, async { first(clients.await) }).await)
    };
    // The first to end is the one that failed.
    first(select(writer.run(), serve).await)
}

fn first(either: Either<io::Result<()>, io::Result<()>>) -> io::Result<()> {
    match either {
        Either::Left(result) | Either::Right(result) => result,
    }
}

/// Listens. The address may be in use for a moment when a node starts again: the sockets of a process that was killed are
/// closed in the background if it used io_uring.
async fn bind(addr: &str) -> io::Result<TcpListener> {
    for _ in 0..600 {
        match TcpListener::bind(addr).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(Duration::from_millis(50)).await,
            bound => return bound,
        }
    }
    TcpListener::bind(addr).await
}
