//! The keys and values, in memory, and their snapshot, in a file.
//!
//! A node begins with its newest snapshot and applies the log from there. A snapshot is durable before openraft learns of it,
//! so that the entries in it may be purged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::types::{Applied, LogId, Request, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};

const FILE: &str = "snapshot";

/// The state machine, as openraft uses it. Clones share it.
#[derive(Clone)]
pub struct StateMachine(Rc<Shared>);

struct Shared {
    path: PathBuf,
    state: RefCell<State>,
    /// The newest durable snapshot, with the file's contents.
    snapshot: RefCell<Option<(SnapshotMeta, Vec<u8>)>>,
    /// Held while a snapshot is written: builds and installations can overlap.
    writing: windlass::sync::Lock<()>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    applied: Option<LogId>,
    membership: StoredMembership,
    values: BTreeMap<String, String>,
}

impl State {
    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
        }
    }

    fn apply(&mut self, request: Request) -> Applied {
        match request {
            Request::Put { key, value } => {
                self.values.insert(key, value);
                Applied::Set
            }
            Request::Cas { key, expect, value } => {
                let current = self.values.get(&key);
                if current != expect.as_ref() {
                    return Applied::Mismatch(current.cloned());
                }
                self.values.insert(key, value);
                Applied::Set
            }
        }
    }
}

impl StateMachine {
    /// The state of the newest snapshot in a directory.
    pub async fn open(dir: &Path) -> io::Result<StateMachine> {
        disk::make_dir(dir).await?;
        let path = dir.join(FILE);
        let snapshot = match disk::read_if_exists(&path).await? {
            None => None,
            Some(bytes) => {
                // It was replaced as a whole, so it is never torn.
                let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the snapshot is damaged");
                Some(disk::record_at(&bytes, 0).ok_or_else(damaged)?.to_vec())
            }
        };
        let state: State = match &snapshot {
            None => State::default(),
            Some(contents) => serde_json::from_slice(contents)?,
        };
        Ok(StateMachine(Rc::new(Shared {
            path,
            snapshot: RefCell::new(snapshot.map(|contents| (state.meta(), contents))),
            state: RefCell::new(state),
            writing: windlass::sync::Lock::new(()),
        })))
    }

    /// The value of a key in this node's copy.
    pub fn get(&self, key: &str) -> Option<String> {
        self.0.state.borrow().values.get(key).cloned()
    }

    /// Makes a snapshot durable, unless there is a newer one.
    async fn save(&self, meta: &SnapshotMeta, contents: &[u8]) -> io::Result<()> {
        let _writing = self.0.writing.lock().await;
        let newest = self.0.snapshot.borrow().as_ref().and_then(|(meta, _)| meta.last_log_id);
        if newest > meta.last_log_id {
            return Ok(());
        }
        let mut bytes = Vec::new();
        disk::push_record(&mut bytes, 0, contents);
        disk::replace(&self.0.path, bytes).await?;
        *self.0.snapshot.borrow_mut() = Some((meta.clone(), contents.to_vec()));
        Ok(())
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachine {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (meta, contents) = {
            let state = self.0.state.borrow();
            (state.meta(), serde_json::to_vec(&*state)?)
        };
        self.save(&meta, &contents).await?;
        Ok(Snapshot {
            meta,
            snapshot: contents,
        })
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.0.state.borrow();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let applied = {
                let mut state = self.0.state.borrow_mut();
                state.applied = Some(entry.log_id);
                match entry.payload {
                    EntryPayload::Blank => Applied::Nothing,
                    EntryPayload::Normal(request) => state.apply(request),
                    EntryPayload::Membership(membership) => {
                        state.membership = StoredMembership::new(Some(entry.log_id), membership);
                        Applied::Nothing
                    }
                }
            };
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Vec<u8>) -> io::Result<()> {
        let state: State = serde_json::from_slice(&snapshot)?;
        self.save(meta, &snapshot).await?;
        *self.0.state.borrow_mut() = state;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let snapshot = self.0.snapshot.borrow().clone();
        Ok(snapshot.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

impl fmt::Debug for StateMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.borrow();
        f.debug_struct("StateMachine")
            .field("applied", &state.applied)
            .field("values", &state.values.len())
            .finish()
    }
}
