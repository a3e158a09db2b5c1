//! What openraft is configured with, and short names for its types.

use std::fmt;

use openraft_rt_windlass::WindlassRuntime;
use serde::{Deserialize, Serialize};

/// A change of the store, as it is in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Sets a key.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Sets a key if it has the expected value.
    Cas {
        /// The key.
        key: String,
        /// The value that it must have; `None`: it must be absent.
        expect: Option<String>,
        /// Its new value.
        value: String,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Put { key, value } => write!(f, "put {key}={value}"),
            Request::Cas { key, expect, value } => write!(f, "cas {key}: {expect:?}={value}"),
        }
    }
}

/// The result of applying a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// The entry was no request.
    Nothing,
    /// The key was set.
    Set,
    /// The key had another value than the expected one: this.
    Mismatch(Option<String>),
}

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// For other nodes: `host:port`.
    pub raft: String,
    /// For clients: `host:port`.
    pub http: String,
}

openraft::declare_raft_types!(
    /// The types of this store.
    pub TypeConfig:
        D = Request,
        R = Applied,
        Node = Peer,
        AsyncRuntime = WindlassRuntime,
);

pub(crate) type Raft = openraft::Raft<TypeConfig, crate::state::StateMachine>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type LogState = openraft::storage::LogState<TypeConfig>;
pub(crate) type IOFlushed = openraft::storage::IOFlushed<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type Snapshot = openraft::alias::SnapshotOf<TypeConfig, Vec<u8>>;
pub(crate) type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(crate) type AppendEntriesResponse = openraft::raft::AppendEntriesResponse<TypeConfig>;
pub(crate) type VoteRequest = openraft::raft::VoteRequest<TypeConfig>;
pub(crate) type VoteResponse = openraft::raft::VoteResponse<TypeConfig>;
pub(crate) type SnapshotResponse = openraft::raft::SnapshotResponse<TypeConfig>;
pub(crate) type ForwardToLeader = openraft::errors::ForwardToLeader<TypeConfig>;
